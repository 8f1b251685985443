import copy
import sys

import pytest
import torch
from torch import nn

from antipodes.encoders import byte_pairs, create
from antipodes.encoders.loading import LoadedEncoder
from antipodes.encoders.packages import find_packaged
from antipodes.encoders.text import encode_by_length
from antipodes.methods.towers import Tower

CAPTIONS = [
    "A black dog runs through the grass.",
    "Two children play football in the street.",
    "A man in a red shirt climbs a rock; it's steep!",
    "A dog jumps over a log.",
] * 3


def text_transformer(**arguments):
    pytest.importorskip("tokenizers", reason="tokenizers is absent")
    return create("text-transformer", **{"width": 32, "layers": 2, "heads": 2, "vocabulary_size": 400} | arguments)


def bag(**arguments):
    return create("bag-of-words", **{"vocabulary_size": 50, "width": 8} | arguments)


BUILDERS = {
    "text-transformer": text_transformer,
    "bag-of-words": bag,
    "bag-of-words, learned": lambda: bag(words="learned"),
}


@pytest.fixture(params=BUILDERS.values(), ids=BUILDERS.keys())
def encoder(request):
    built = request.param()
    built.fit_tokenizer(iter(CAPTIONS))
    return built


def test_texts_become_features(encoder):
    tokens = encoder.tokenize(CAPTIONS[:3])
    assert tokens.dtype == torch.int64
    assert encoder.modality == "text"
    features = encoder(tokens)
    assert features.shape == (3, encoder.num_features)
    features.square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_tokens_are_the_same_every_time_and_in_any_batch(encoder):
    twin = copy.deepcopy(encoder)
    tokens = encoder.tokenize(CAPTIONS[:4])
    assert torch.equal(tokens, twin.tokenize(CAPTIONS[:4]))
    for row, text in zip(tokens, CAPTIONS, strict=False):
        alone = encoder.tokenize([text])[0]
        assert torch.equal(row[: len(alone)], alone)
        assert (row[len(alone) :] == 0).all()


def test_features_do_not_depend_on_padding(encoder):
    encoder.eval()
    short, long = CAPTIONS[3], CAPTIONS[2] * 3
    with torch.no_grad():
        batch_neighbours, alone = encoder(encoder.tokenize([short, long])), encoder(encoder.tokenize([short]))
    torch.testing.assert_close(batch_neighbours[:1], alone, rtol=1e-5, atol=1e-6)


def test_the_state_dict_carries_the_vocabulary(encoder):
    arguments = encoder.origin[1]
    again = create(encoder.origin[0], **arguments)
    again.load_state_dict(encoder.state_dict())
    tokens = encoder.tokenize(CAPTIONS)
    assert torch.equal(again.tokenize(CAPTIONS), tokens)
    assert torch.equal(again(tokens), encoder(tokens))
    again.fit_tokenizer(["something else entirely"])
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again.tokenize(CAPTIONS), tokens)


def test_fitting_twice_gives_the_same_vocabulary(encoder):
    again = create(encoder.origin[0], **encoder.origin[1])
    again.fit_tokenizer(CAPTIONS)
    assert torch.equal(again.vocabulary, encoder.vocabulary)


def test_odd_texts_stay_finite(encoder):
    tokens = encoder.tokenize(["", "\U0001f642", "word " * 10_000, "\x00"])
    assert tokens.shape[1] <= encoder.max_length
    assert encoder(tokens).isfinite().all()
    assert encoder.tokenize([]).shape[0] == 0


def test_what_is_not_a_list_of_strings_is_refused(encoder):
    for texts, what in [("one text", "one string"), (["a", 3], "int"), ([None], "NoneType")]:
        with pytest.raises(ValueError, match=f"texts must be a list of strings, got {what}"):
            encoder.tokenize(texts)


@pytest.mark.parametrize("build", [text_transformer, lambda: bag(words="learned")])
def test_a_vocabulary_has_to_be_learned_first(build):
    with pytest.raises(ValueError, match="has no vocabulary yet: call fit_tokenizer"):
        build().tokenize(["a dog"])
    with pytest.raises(ValueError, match="cannot be learned from"):
        build().fit_tokenizer([])


def test_the_transformer_equals_torchs_own_layers():
    encoder = text_transformer().double()
    encoder.fit_tokenizer(CAPTIONS)
    tokens = encoder.tokenize(CAPTIONS[:4])
    x = encoder.token_embedding(tokens) + encoder.positional_embedding[: tokens.shape[1]]
    for block in encoder.blocks():
        layer = nn.TransformerEncoderLayer(
            32, 2, 128, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, dtype=torch.float64
        )
        names = {"self_attn": "attn", "linear1": "mlp.c_fc", "linear2": "mlp.c_proj", "norm1": "ln_1", "norm2": "ln_2"}
        given = block.state_dict()
        layer.load_state_dict(
            {key: given[names[key.split(".")[0]] + "." + key.split(".", 1)[1]] for key in layer.state_dict()}
        )
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=torch.float64)
        x = layer(x, src_mask=causal, is_causal=True)
    ends = (tokens == 399).nonzero()[:, 1]
    expected = encoder.ln_final(x[torch.arange(4), ends])
    torch.testing.assert_close(encoder(tokens), expected, rtol=1e-10, atol=1e-10)


def test_the_transformers_tokens_start_and_end_as_in_clip():
    encoder = text_transformer(max_length=9)
    encoder.fit_tokenizer(CAPTIONS)
    tokens = encoder.tokenize(["A DOG", "a dog", "a long text " * 9])
    assert torch.equal(tokens[0], tokens[1])
    assert (tokens[:, 0] == 398).all()
    assert tokens[2, 8] == 399
    assert ((tokens == 399).sum(1) == 1).all()


def test_quick_gelu_is_another_network():
    plain, quick = text_transformer(), text_transformer(quick_gelu=True)
    quick.load_state_dict(plain.state_dict())
    tokens = torch.tensor([[398, 5, 6, 399]])
    assert not torch.allclose(plain(tokens), quick(tokens), atol=1e-6)
    torch.testing.assert_close(plain(tokens), quick(tokens), atol=0.1, rtol=0)


def test_clips_vocabulary_is_read_from_its_package(monkeypatch):
    if find_packaged(byte_pairs.PACKAGES, byte_pairs.FILE) is None:
        pytest.skip("the package with CLIP's byte pairs is absent")
    encoder = create("text-transformer", byte_pairs="clip", width=16, layers=1, heads=1)
    assert encoder.tokenize(["a photo of a cat"]).tolist() == [[49406, 320, 1125, 539, 320, 2368, 49407]]
    monkeypatch.setattr(byte_pairs, "PACKAGES", ("no-such-package",))
    without = create("text-transformer", byte_pairs="clip", width=16, layers=1, heads=1)
    with pytest.raises(ValueError, match=r"CLIP's byte pairs .* pip install '\.\[open_clip\]'"):
        without.fit_tokenizer(CAPTIONS)
    without.load_state_dict(encoder.state_dict())
    assert torch.equal(without.tokenize(CAPTIONS), encoder.tokenize(CAPTIONS))


def test_a_bag_is_the_mean_of_its_words():
    encoder = bag(words="learned")
    encoder.fit_tokenizer(["b a a", "c a b"])
    assert encoder.tokenize(["A, b: C d"]).tolist() == [[2, 3, 4, 1]]
    weight = encoder.embedding.weight
    torch.testing.assert_close(encoder(torch.tensor([[2, 3, 0, 0]])), (weight[2] + weight[3])[None] / 2)
    assert encoder(torch.tensor([[0, 0]])).abs().sum() == 0


def test_a_hashed_bag_needs_no_corpus():
    encoder = bag()
    tokens = encoder.tokenize(["a dog", "Dog a"])
    assert tokens.min() >= 1
    assert tokens.max() < 50
    assert tokens[0].tolist() == tokens[1].tolist()[::-1]


def test_impossible_arguments_are_refused():
    for build, arguments, message in [
        (text_transformer, {"byte_pairs": "gpt"}, "byte_pairs must be"),
        (text_transformer, {"byte_pairs": "clip"}, "CLIP's vocabulary has 49408 tokens, not 400"),
        (text_transformer, {"vocabulary_size": 100}, "at least 258"),
        (text_transformer, {"heads": 3}, "width must be a multiple of heads"),
        (bag, {"words": "some"}, "words must be"),
        (bag, {"width": 0}, "width and max_length at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            build(**arguments)


def test_tokenizers_that_are_missing_are_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"needs the package tokenizers, .* pip install '\.\[text\]'"):
        create("text-transformer").fit_tokenizer(CAPTIONS)


def test_transformers_that_is_missing_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"'hf:bert-base' needs transformers, .* pip install '\.\[text\]'"):
        create("hf:bert-base")


def test_a_hugging_face_folder_becomes_an_encoder(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is absent")
    words = tmp_path / "vocab.txt"
    words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "cat"]))
    tokenizer = transformers.BertTokenizerFast(vocab_file=str(words))
    config = transformers.BertConfig(
        vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.BertModel(config).eval()
    tokenizer.save_pretrained(tmp_path), model.save_pretrained(tmp_path)
    encoder = create(f"hf:{tmp_path}").eval()
    texts = ["a dog", "a cat a dog"]
    given = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**given)[0]
        weight = given["attention_mask"].unsqueeze(2)
        expected = (hidden * weight).sum(1) / weight.sum(1)
        torch.testing.assert_close(encoder(encoder.tokenize(texts)), expected, rtol=1e-5, atol=1e-6)
        first = create(f"hf:{tmp_path}", pooling="first").eval()
        torch.testing.assert_close(first(first.tokenize(texts)), hidden[:, 0], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="transformers could not load the text model"):
        create(f"hf:{tmp_path / 'nothing'}")


MIXED = [text for short, long in zip(["a dog", "a man"] * 6, CAPTIONS, strict=False) for text in (short, long * 3)]


def test_pieces_of_similar_length_give_the_same_features_with_less_padding(encoder):
    tokens, seen = encoder.double().tokenize(MIXED), []
    encoder.register_forward_hook(lambda _, inputs, __: seen.append(tuple(inputs[0].shape)))
    whole = encoder(tokens)
    expected = torch.autograd.grad(whole.square().sum(), list(encoder.parameters()))
    seen.clear()
    features = encode_by_length(encoder, tokens, piece=4)
    torch.testing.assert_close(features, whole)
    found = torch.autograd.grad(features.square().sum(), list(encoder.parameters()))
    torch.testing.assert_close(found, expected)
    assert [rows for rows, _ in seen] == [4] * 6
    assert sum(rows * length for rows, length in seen) < 0.7 * tokens.numel()


def test_a_tower_embeds_texts_by_length(encoder):
    tokens, seen = encoder.tokenize(MIXED), []
    encoder.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    Tower(encoder, nn.Identity())(tokens)
    assert len(seen) == 3
    assert seen[0] < seen[-1] == tokens.shape[1]


def test_a_list_of_texts_is_embedded_by_length(encoder):
    loaded, calls = LoadedEncoder([encoder.eval()], [None], "texts"), []
    features = loaded.embed(MIXED, batch_size=4, progress=lambda *numbers: calls.append(numbers))
    alone = torch.stack([loaded(text) for text in MIXED])
    torch.testing.assert_close(features, alone, rtol=1e-4, atol=1e-6)
    assert calls[-1] == (len(MIXED), len(MIXED))
    seen = []
    encoder.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    loaded.embed(MIXED, batch_size=4)
    assert seen == sorted(seen)
    assert seen[0] < seen[-1]
