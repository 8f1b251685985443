"""Folders in Hugging Face's conventions with the real packages: what we write they load, what they write we load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import antipodes
from antipodes.encoders import create
from antipodes.encoders.encoder import Preprocessing
from antipodes.encoders.hub_folder import push_to_hub, save_hub_folder
from antipodes.encoders.loading import LoadedEncoder
from antipodes.functional.feature_quality import ranked_measures
from antipodes.runs.folder import Run
from tests.cli.command import here, refused
from tests.integrations import peers

TEXTS = ["red car", "a big old king sleeps", "green tree near the river stone bird fish", "dog"]


@pytest.fixture(scope="module")
def sentences(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that sentence-transformers has saved: the first token, two layers, unit length, at most 6 tokens."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(0)
    layers = [Dense(16, 12, activation_function=nn.Tanh()), Dense(12, 8, bias=False, activation_function=nn.Identity())]
    modules = [Transformer(str(folder), max_seq_length=6), Pooling(16, "cls"), *layers, Normalize()]
    place = tmp_path_factory.mktemp("sentences") / "model"
    library.SentenceTransformer(modules=modules, device="cpu").save(str(place))
    return place


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    words = peers.WORDS
    rows = [f"{words[i % 20]} {words[(i * 7 + i // 20) % 20]},{words[i % 20]} {words[i * 3 % 17]}" for i in range(40)]
    path.write_text("\n".join(["query,document", *rows]))
    return path


def theirs(place: Path) -> Any:
    library = pytest.importorskip("sentence_transformers")
    return library.SentenceTransformer(str(place), device="cpu").encode(TEXTS)


def test_a_model_of_sentence_transformers_gives_its_own_vectors(sentences: Path, tmp_path: Path) -> None:
    expected = theirs(sentences)
    for name in (f"hf:{sentences}", str(sentences)):
        loaded = antipodes.load(name)
        assert loaded.num_features == 8
        np.testing.assert_allclose(loaded(TEXTS).numpy(), expected, atol=1e-6)
    antipodes.export(str(sentences), hugging_face=tmp_path / "copy")
    np.testing.assert_allclose(theirs(tmp_path / "copy"), expected, atol=1e-6)


def test_a_run_that_starts_from_a_folder_ends_in_sentence_transformers(
    folder: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)  # the run remembers the whole path
    call = ["train", "--method", "retrieval", "--data", pairs, "--encoder", folder.name, "--batch_size", 10]
    call += ["--epochs", 2, "--head.kind", "linear", "--head.dim", 5]
    call += ["--guide", "network", "--guide.encoder", f"hf:{folder}", "--negatives", "guided"]
    code, _, errors = here(*call, "--out", tmp_path / "run")
    assert code == 0, errors
    assert Run(tmp_path / "run").config["encoder"]["name"] == str(folder)
    monkeypatch.chdir(tmp_path)
    assert here("train", "--resume", tmp_path / "run", "--epochs", 3)[0] == 0
    for option, embeddings in (([], False), (["--embeddings"], True)):
        place = tmp_path / f"model{embeddings}"
        code, text, errors = here("export", "run", "--hugging_face", place, *option)
        assert code == 0, errors
        assert "sentence-transformers" in text
        expected = antipodes.load("run", embeddings=embeddings)(TEXTS).numpy()
        np.testing.assert_allclose(theirs(place), expected, atol=1e-6)
        np.testing.assert_allclose(antipodes.load(place)(TEXTS).numpy(), expected, atol=1e-6)
    card = (place / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: sentence-transformers\n")
    assert "retrieval" in card
    assert here("export", "run", "--hugging_face", place)[0] == 0  # an earlier export is replaced
    assert "--hugging_face" in refused("export", "run", "--hugging_face", folder)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    code, text, errors = here("embed", place, "texts.txt", "--out", "vectors.npz", "--json")
    assert code == 0, errors
    assert json.loads(text)["vectors"] == len(TEXTS)


def test_minilms_wheel_is_the_published_model(tmp_path: Path) -> None:
    from antipodes.encoders.minilm import WEIGHTS
    from antipodes.encoders.packages import find_packaged

    tokenizer = find_packaged(WEIGHTS, "/tokenizer.json")
    if tokenizer is None:
        pytest.skip("the package with MiniLM's weights is not installed")
    antipodes.export("minilm", hugging_face=tmp_path / "minilm")
    expected = antipodes.load("minilm")(TEXTS).numpy()
    np.testing.assert_allclose(theirs(tmp_path / "minilm"), expected, atol=1e-6)
    np.testing.assert_allclose(antipodes.load(tokenizer.parent)(TEXTS).numpy(), expected, atol=1e-6)


def test_a_model_that_is_not_there_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"'hf:nobody/nothing'.*cache.*minilm"):
        create("hf:nobody/nothing@v1")
    (folder.parent / "broken").mkdir(exist_ok=True)
    (folder.parent / "broken" / "config.json").write_text('{"model_type": "nothing"}')
    with pytest.raises(ValueError, match="broken"):
        antipodes.load(folder.parent / "broken")


def test_the_commit_that_was_found_is_asked_for_from_then_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    asked: list[dict[str, Any]] = []

    def local(kind: Any) -> Any:
        def load(name: str, **options: Any) -> Any:
            asked.append({"name": name, **options})
            found = kind.from_pretrained(str(folder))
            found._commit_hash = "abc123"
            return found

        return SimpleNamespace(from_pretrained=load)

    from antipodes.encoders import hugging_face

    stand_in = {name: local(getattr(transformers, name)) for name in ("AutoConfig", "AutoTokenizer", "AutoModel")}
    monkeypatch.setattr(hugging_face, "import_transformers", lambda model: SimpleNamespace(**stand_in))
    monkeypatch.setattr(hugging_face, "_file", lambda place, name, options: None)
    encoder = create("hf:owner/model@main")
    assert [each.get("revision") for each in asked] == ["main", "abc123", "abc123"]
    name, arguments = encoder.origin
    assert (name, arguments) == ("hf:owner/model@main", {"revision": "abc123"})
    create(name, **arguments)
    assert {each.get("revision") for each in asked[3:]} == {"abc123"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The hosts whose address was asked for."""
    hosts: list[Any] = []

    def ask(host: Any, *_: Any, **__: Any) -> Any:
        hosts.append(host)
        raise OSError("no network")

    monkeypatch.setattr("socket.getaddrinfo", ask)
    return hosts


def test_a_text_model_in_the_cache_asks_no_network(
    sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cache, commit = tmp_path / "models--me--model", "1" * 40
    shutil.copytree(sentences, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    encoder = create("hf:me/model").eval()
    assert encoder.origin == ("hf:me/model", {"revision": commit})
    with torch.no_grad():
        found = encoder(encoder.tokenize(TEXTS))
    np.testing.assert_allclose(found.numpy(), theirs(sentences), atol=1e-6)
    assert asked == []


def test_a_model_of_timm_is_read_from_the_cache_and_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]
) -> None:
    """Without a network: two commits in the cache of Hugging Face, of which the branch names the first."""
    timm = peers.with_empty_torchvision("timm")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    name, cache = "test_resnet.r160_in1k", tmp_path / "models--timm--test_resnet.r160_in1k"
    with pytest.raises(ValueError, match=rf"'timm:{name}'.*connect once.*efficientnet-lite0"):
        create(f"timm:{name}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    commits, models = ("1" * 40, "2" * 40), []
    for seed, commit in enumerate(commits):
        torch.manual_seed(seed)
        models.append(timm.create_model(name, num_classes=1000).eval())
        (cache / "snapshots" / commit).mkdir(parents=True)
        save_file(models[-1].state_dict(), cache / "snapshots" / commit / "model.safetensors")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commits[0])
    images = torch.randn(2, 3, 64, 64)
    for given, which in ((f"timm:{name}", 0), (f"timm:{name}@{commits[1]}", 1)):
        encoder = create(given).eval()
        assert encoder.origin == (given, {"revision": commits[which]})
        expected = models[which].forward_head(models[which].forward_features(images), pre_logits=True)
        torch.testing.assert_close(encoder(images), expected)
    (cache / "refs" / "main").write_text(commits[1])  # the branch moves on, and a run asks for what it has found
    for given in (f"timm:{name}", f"timm:{name}@main"):
        again = create(given, revision=commits[0]).eval()
        torch.testing.assert_close(again(images), models[0].forward_head(models[0].forward_features(images), True))
    assert asked == []


@pytest.mark.parametrize("name", ["resnet18", "efficientnet-lite0"])
def test_timm_loads_the_folder_of_an_image_encoder(name: str, tmp_path: Path) -> None:
    timm = peers.with_empty_torchvision("timm")
    torch.manual_seed(0)
    arguments = {"pretrained": False} if name == "efficientnet-lite0" else {}
    encoder = create(name, **arguments)
    for buffer in encoder.buffers():  # statistics that are not the initial ones
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    loaded = LoadedEncoder([encoder], [Preprocessing(64, decode=72)], name)
    save_hub_folder(loaded, tmp_path / "model")
    model = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(images), encoder.eval()(images), rtol=1e-4, atol=1e-4)
        again = antipodes.load(tmp_path / "model")
        torch.testing.assert_close(again.network(images), encoder(images), rtol=1e-4, atol=1e-4)
    assert again.preprocessing == [Preprocessing(64, decode=72)]


def test_what_has_no_place_in_their_layouts_is_refused(tmp_path: Path) -> None:
    slim = LoadedEncoder([create("resnet8-slim")], [Preprocessing(32)], "slim")
    with pytest.raises(ValueError, match="resnet8-slim"):
        save_hub_folder(slim, tmp_path / "slim")
    bag = create("bag-of-words")
    with pytest.raises(ValueError, match="BagOfWords"):
        save_hub_folder(LoadedEncoder([bag], [None], "bag"), tmp_path / "bag")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_uploaded_to_a_repository_that_is_made_first(tmp_path: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    class Api:
        def create_repo(self, **options: Any) -> None:
            calls.append(("create_repo", options))

        def upload_folder(self, **options: Any) -> str:
            calls.append(("upload_folder", options))
            if options["repo_id"] == "me/full":
                raise OSError("no space\nleft")
            return "the commit"

    assert push_to_hub(tmp_path, "me/model", private=True, api=Api()) == "the commit"
    assert [name for name, _ in calls] == ["create_repo", "upload_folder"]
    assert calls[0][1] == {"repo_id": "me/model", "private": True, "exist_ok": True}
    assert calls[1][1]["folder_path"] == str(tmp_path)
    with pytest.raises(ValueError, match=r"me/full.*\(no space\)$"):
        push_to_hub(tmp_path, "me/full", api=Api())
    with pytest.raises(ValueError, match="owner/name"):
        push_to_hub(tmp_path, "model", api=Api())
    with pytest.raises(ValueError, match="--hugging_face"):
        antipodes.export("runs/a", onnx="x.onnx", push_to_hub="me/model")


def test_measures_of_retrieval_are_those_of_trec_eval_and_sentence_transformers() -> None:
    trec = pytest.importorskip("pytrec_eval")
    pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    draw = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(30, 6, generator=draw), torch.randn(80, 6, generator=draw)
    asking = torch.cat((torch.arange(30), torch.randint(30, (90,), generator=draw)))
    pairs = torch.stack((asking, torch.randint(80, (120,), generator=draw)), 1)
    pairs = pairs.unique(dim=0)
    gains = torch.randint(1, 4, (len(pairs),), generator=draw)
    ours = ranked_measures(queries, keys, pairs, gains.float(), (1, 5, 10))
    similarity = nn.functional.normalize(queries, dim=1) @ nn.functional.normalize(keys, dim=1).T
    run = {f"q{i}": {f"d{k}": float(similarity[i, k]) for k in range(80)} for i in range(30)}
    judged: dict[str, dict[str, int]] = {}
    for (query, key), gain in zip(pairs.tolist(), gains.tolist(), strict=True):
        judged.setdefault(f"q{query}", {})[f"d{key}"] = gain
    most = max(map(len, judged.values()))
    asked = {"ndcg_cut.10", "recall.1,5,10", "map_cut." + ",".join(map(str, range(1, most + 1)))}
    scores = trec.RelevanceEvaluator(judged, asked).evaluate(run)
    first = {query: dict(sorted(found.items(), key=lambda each: -each[1])[:10]) for query, found in run.items()}
    reciprocal = trec.RelevanceEvaluator(judged, {"recip_rank"}).evaluate(first)
    expected = {
        "nDCG@10": np.mean([each["ndcg_cut_10"] for each in scores.values()]),
        "MRR@10": np.mean([each["recip_rank"] for each in reciprocal.values()]),
        "MAP@R": np.mean([each[f"map_cut_{len(judged[query])}"] for query, each in scores.items()]),
        **{f"recall@{k}": np.mean([each[f"recall_{k}"] for each in scores.values()]) for k in (1, 5, 10)},
    }
    assert ours == pytest.approx(expected, rel=1e-6)

    class Vectors:
        """Stands for a model: a text is the name of its vector."""

        similarity_fn_name, model_card_data = "cosine", SimpleNamespace()
        similarity = staticmethod(lambda a, b: nn.functional.normalize(a, dim=1) @ nn.functional.normalize(b, dim=1).T)

        def encode(self, texts: list[str], **_: Any) -> torch.Tensor:
            return torch.stack([(queries if text[0] == "q" else keys)[int(text[1:])] for text in texts])

        encode_query = encode_document = encode

    named = {name: name for name in run}
    corpus = {f"d{k}": f"d{k}" for k in range(80)}
    relevant = {query: set(found) for query, found in judged.items()}
    evaluator = InformationRetrievalEvaluator(
        named, corpus, relevant, mrr_at_k=[10], ndcg_at_k=[10], precision_recall_at_k=[1, 5, 10], map_at_k=[100],
        score_functions={"cosine": Vectors.similarity}, write_csv=False,
    )  # fmt: skip
    binary = ranked_measures(queries, keys, pairs, torch.ones(len(pairs)), (1, 5, 10))
    found = evaluator.compute_metrices(Vectors())["cosine"]
    assert binary["nDCG@10"] == pytest.approx(found["ndcg@k"][10], rel=1e-6)
    assert binary["MRR@10"] == pytest.approx(found["mrr@k"][10], rel=1e-6)
    assert [binary[f"recall@{k}"] for k in (1, 5, 10)] == pytest.approx([found["recall@k"][k] for k in (1, 5, 10)])
