"""The adapter for sentence-transformers with the real package: their loss, their wrappers and their trainer."""

from __future__ import annotations

import json
import math
import os
import random
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

try:
    import datasets
    import sentence_transformers
    import transformers
    from sentence_transformers.sentence_transformer import losses as theirs
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from sentence_transformers.util import batch_to_device, cos_sim, dot_score, pairwise_cos_sim

    from antipodes.integrations.sentence_transformers import MultipleNegativesRankingLoss, attach
    from tests.integrations import two_ranks_training
except (ImportError, RuntimeError) as error:
    pytest.skip(f"make test-integrations installs sentence-transformers: {error}", allow_module_level=True)

from antipodes import GloFND, Guided, Hardest, Known, mine
from antipodes.auditing.mining import Mined
from tests.integrations.peers import WORDS

ROOT = Path(__file__).parents[2]


def model_of(folder: Path, seed: int | None = None) -> Any:
    transformer = Transformer(str(folder))
    built = sentence_transformers.SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_embedding_dimension())], device="cpu"
    )
    if seed is not None:
        torch.manual_seed(seed)
        for parameter in built.parameters():
            if parameter.ndim == 2:
                parameter.data = torch.randn_like(parameter) * 0.5
    return built


def sentences(count: int, seed: int, length: int = 4) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, len(WORDS), (count, length), generator=generator).tolist()
    return [" ".join(WORDS[number] for number in row) for row in numbers]


def columns(count: int = 8, hard: int = 0) -> list[list[str]]:
    return [sentences(count, seed) for seed in range(2 + hard)]


def features_of(model: Any, texts: list[list[str]]) -> list[dict[str, Any]]:
    return [batch_to_device(model.preprocess(column), "cpu") for column in texts]


def value_and_gradient(loss: Any, model: Any, features: list[dict[str, Any]], labels: Any = None) -> tuple[Any, ...]:
    model.zero_grad()
    value = loss(features, labels)
    value.backward()
    gradient = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
    return value.detach(), gradient


def assert_equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    for ours, expected in zip(one, other, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


ALL = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"scale": 7.0},
    {"similarity_fct": "dot", "scale": 0.5},
    {"directions": ("query_to_doc", "query_to_query")},
    {"directions": ("query_to_doc", "doc_to_doc"), "scale": 5.0},
    {"directions": ALL},
    {"directions": ALL, "similarity_fct": "dot", "scale": 0.5},
    {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"},
    *({"hardness_mode": f"{mode}_negatives", "hardness_strength": 5.0} for mode in ("in_batch", "hard", "all")),
    {"hardness_mode": "all_negatives", "hardness_strength": 3.0, "directions": ALL},
    {
        "hardness_mode": "all_negatives",
        "hardness_strength": 3.0,
        "directions": ("query_to_doc", "doc_to_query"),
        "partition_mode": "per_direction",
    },
]  # fmt: skip


@pytest.mark.parametrize("hard", [0, 1, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_without_a_policy_it_equals_theirs(folder: Path, options: dict[str, Any], hard: int) -> None:
    model = model_of(folder)
    options = options | {"similarity_fct": dot_score if "similarity_fct" in options else cos_sim}
    features = features_of(model, columns(hard=hard))
    expected = value_and_gradient(theirs.MultipleNegativesRankingLoss(model, **options), model, features)
    assert_equal(
        value_and_gradient(MultipleNegativesRankingLoss(model, **options, ids=None), model, features), expected
    )


@pytest.mark.parametrize("size", [None, 3])
def test_own_negatives_only(folder: Path, size: int | None) -> None:
    model = model_of(folder)
    texts = columns(hard=3)
    loss = MultipleNegativesRankingLoss(model, ids=None, in_batch=False, mini_batch_size=size)
    found = value_and_gradient(loss, model, features_of(model, texts))

    def dense(features: list[dict[str, Any]], labels: Any) -> Tensor:
        anchors, *others = (model(column)["sentence_embedding"] for column in features)
        logits = torch.stack([torch.cosine_similarity(anchors, other) for other in others], 1) * 20
        return torch.nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))

    assert_equal(found, value_and_gradient(dense, model, features_of(model, texts)))


@pytest.mark.parametrize("hard", [0, 2])
def test_in_pieces_it_equals_their_cached_loss(folder: Path, hard: int) -> None:
    model = model_of(folder)
    texts = columns(hard=hard)
    expected = value_and_gradient(
        theirs.CachedMultipleNegativesRankingLoss(model, mini_batch_size=3), model, features_of(model, texts)
    )
    for size in (3, None):
        ours = MultipleNegativesRankingLoss(model, mini_batch_size=size, ids=None)
        assert_equal(value_and_gradient(ours, model, features_of(model, texts)), expected)


@pytest.mark.parametrize("size", [None, 3])
def test_inside_matryoshka_it_equals_theirs(folder: Path, size: int | None) -> None:
    model = model_of(folder)
    texts = columns(hard=1)
    inner = theirs.MultipleNegativesRankingLoss(model)
    expected = value_and_gradient(theirs.MatryoshkaLoss(model, inner, [16, 8, 4]), model, features_of(model, texts))
    ours = theirs.MatryoshkaLoss(model, MultipleNegativesRankingLoss(model, mini_batch_size=size, ids=None), [16, 8, 4])
    assert_equal(value_and_gradient(ours, model, features_of(model, texts)), expected)


def test_inside_adaptive_layers_it_equals_theirs(folder: Path) -> None:
    model = model_of(folder)
    results = []
    for inner in (theirs.MultipleNegativesRankingLoss(model), MultipleNegativesRankingLoss(model, ids=None)):
        torch.manual_seed(0)
        random.seed(0)
        results.append(value_and_gradient(theirs.AdaptiveLayerLoss(model, inner), model, features_of(model, columns())))
    assert_equal(*results)


@pytest.mark.parametrize("size", [None, 3])
def test_tables_move_once_for_a_batch_inside_matryoshka(folder: Path, size: int | None) -> None:
    model = model_of(folder)
    rows = torch.arange(8)
    alone_policy, policy = (GloFND(num_samples=8, alpha=0.2, start=0.0) for _ in range(2))
    alone = MultipleNegativesRankingLoss(model, negatives=alone_policy, ids="label", mini_batch_size=size)
    inner = MultipleNegativesRankingLoss(model, negatives=policy, ids="label", mini_batch_size=size)
    alone.progress = inner.progress = 0.5
    wrapped = theirs.MatryoshkaLoss(model, inner, [16, 8, 4])
    for _ in range(3):  # the same inputs again are a new batch after backward
        features = features_of(model, columns())
        before = policy.threshold.clone()
        value_and_gradient(alone, model, features, rows)
        value_and_gradient(wrapped, model, features, rows)
        assert not torch.equal(policy.threshold, before)
        torch.testing.assert_close(policy.threshold, alone_policy.threshold)


def trainer_for(folder: Path, out: Path, data: Any, loss: Callable[[Any], Any], **options: Any) -> Any:
    model = model_of(folder)
    built = loss(model)
    arguments = {
        "output_dir": str(out), "per_device_train_batch_size": 8, "num_train_epochs": 1, "report_to": "none",
        "save_strategy": "no", "logging_steps": 1, "use_cpu": True, "disable_tqdm": True, "seed": 0,
    }  # fmt: skip
    return sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=sentence_transformers.SentenceTransformerTrainingArguments(**arguments | options),
        train_dataset=data,
        loss=built,
        **({"eval_dataset": data} if "eval_strategy" in options else {}),
    )


def repeated_pairs(count: int = 24) -> Any:
    """Pairs with few different texts, some of which are a query here and a document there; one negative each."""
    few = sentences(6, 5)
    take = torch.Generator().manual_seed(1)
    places = torch.randint(0, 6, (count, 3), generator=take).tolist()
    places = [[a, b if b != a else (a + 1) % 6, c] for a, b, c in places]
    return datasets.Dataset.from_dict(
        {name: [few[row[at]] for row in places] for at, name in enumerate(("anchor", "positive", "negative"))}
    )


def kept_by_hand(texts: list[list[str]], directions: tuple[str, ...]) -> list[int]:
    """How many candidates of every anchor are negatives, text by text."""
    queries, documents, hard = texts
    counts = []
    for i, (query, document) in enumerate(zip(queries, documents, strict=True)):
        own = {query, document}

        def partners(k: int, i: int = i) -> bool:  # pairs of one query, or of one document
            return queries[k] == queries[i] or documents[k] == documents[i]

        kept = sum(not partners(k) and documents[k] not in own for k in range(len(queries)))
        kept += sum(each not in own for each in hard)
        if "query_to_query" in directions:
            kept += sum(not partners(k) and queries[k] not in own for k in range(len(queries)))
        counts.append(kept)
    return counts


@pytest.mark.parametrize("directions", [("query_to_doc",), ("query_to_doc", "query_to_query")])
@pytest.mark.parametrize("size", [None, 3])
def test_no_equal_text_is_a_negative(
    folder: Path, tmp_path: Path, directions: tuple[str, ...], size: int | None
) -> None:
    """The case that users ask for: their trainer on pairs with repeated texts, every negative of it counted."""
    trainer = trainer_for(
        folder, tmp_path, repeated_pairs(),
        lambda model: MultipleNegativesRankingLoss(model, directions=directions, mini_batch_size=size),
    )  # fmt: skip
    seen: list[list[list[str]]] = []
    tokenise = trainer.data_collator.preprocess_fn

    def watched(inputs: list[str], **options: Any) -> Any:
        if not seen or len(seen[-1]) == 3:
            seen.append([])
        seen[-1].append(list(inputs))
        return tokenise(inputs, **options)

    trainer.data_collator.preprocess_fn = watched
    attach(trainer)
    with pytest.warns(UserWarning, match="hard_negatives have the document id of their own anchor"):
        trainer.train()
    assert len(seen) == 3
    for texts, log in zip(seen, (each for each in trainer.state.log_history if "loss" in each), strict=True):
        by_hand = kept_by_hand(texts, directions)
        assert log["antipodes/kept_per_anchor"] == pytest.approx(sum(by_hand) / len(by_hand))
        # some equal texts there were
        assert sum(by_hand) < len(by_hand) * (len(directions) * (len(by_hand) - 1) + len(by_hand))
    ours = torch.tensor([log["loss"] for log in trainer.state.log_history if "loss" in log])
    assert bool(ours.isfinite().all())


def test_equal_texts_change_the_loss_as_the_formula_says(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_for(folder, tmp_path, repeated_pairs(), MultipleNegativesRankingLoss)
    attach(trainer)
    batch = trainer.data_collator([repeated_pairs()[row] for row in range(8)])
    features, labels = trainer.collect_features(batch)
    assert [column["content"].shape for column in features] == [(8,)] * 3
    value = trainer.loss(features, labels)
    texts = [[repeated_pairs()[row][name] for row in range(8)] for name in ("anchor", "positive", "negative")]
    queries, documents, hard = (
        torch.nn.functional.normalize(trainer.model.encode(each, convert_to_tensor=True), dim=1) for each in texts
    )
    total = 0.0
    for i in range(8):
        own = {texts[0][i], texts[1][i]}
        scores = [float(queries[i] @ documents[i])]
        for k in range(8):
            if texts[0][k] != texts[0][i] and texts[1][k] not in own:
                scores.append(float(queries[i] @ documents[k]))
            if texts[2][k] not in own:
                scores.append(float(queries[i] @ hard[k]))
        logits = 20 * torch.tensor(scores, dtype=torch.float64)
        total += float(logits.logsumexp(0) - logits[0]) / 8
    assert value.item() == pytest.approx(total, rel=1e-4)


def test_texts_that_are_cut_to_the_same_tokens_stay_apart(folder: Path, tmp_path: Path) -> None:
    long = sentences(1, 3, length=10)[0]
    data = datasets.Dataset.from_dict({"anchor": sentences(4, 1), "positive": [f"{long} {word}" for word in WORDS[:4]]})
    trainer = trainer_for(folder, tmp_path, data, MultipleNegativesRankingLoss)
    trainer.model.max_seq_length = 6
    attach(trainer)
    features, _ = trainer.collect_features(trainer.data_collator([data[row] for row in range(4)]))
    assert len(features[1]["input_ids"].unique(dim=0)) == 1
    trainer.loss(features)
    assert trainer.loss.stats["kept_per_anchor"] == 3


class Reporter(transformers.TrainerCallback):
    """What a reporter that was registered before `attach` gets to log."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append(dict(logs))


def labelled(count: int = 24, first: int = 0) -> Any:
    anchors, positives = sentences(count, 1), sentences(count, 2)
    return datasets.Dataset.from_dict(
        {"anchor": anchors, "positive": positives, "label": list(range(first, first + count))}
    )


def with_tables(model: Any, rows: int = 24) -> Any:
    return MultipleNegativesRankingLoss(model, negatives=GloFND(num_samples=rows, alpha=0.2, start=0.1))


def policy_of(loss: Any) -> GloFND:
    return next(policy for policy in loss.policies() if isinstance(policy, GloFND))


def test_reporters_see_our_numbers_and_the_loss_learns_how_far_training_is(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_for(folder, tmp_path, labelled(), with_tables)
    reporter = Reporter()
    trainer.add_callback(reporter)
    attach(trainer)
    trainer.train()
    steps = [log for log in reporter.logs if "loss" in log]
    assert len(steps) == 3
    assert all("antipodes/flagged_share" in log for log in steps)
    assert trainer.loss.progress == pytest.approx(2 / 3)  # of the beginning of the last step


@pytest.mark.parametrize("wrapped", [False, True])
def test_resuming_continues_with_the_tables(folder: Path, tmp_path: Path, wrapped: bool) -> None:
    def loss(model: Any) -> Any:
        ours = with_tables(model)
        return theirs.MatryoshkaLoss(model, ours, [16, 8]) if wrapped else ours

    def inner(trainer: Any) -> Any:
        return trainer.loss.loss if wrapped else trainer.loss

    saving = {"save_strategy": "steps", "save_steps": 2, "num_train_epochs": 2}
    whole = trainer_for(folder, tmp_path / "whole", labelled(), loss, **saving)
    attach(whole)
    whole.train()
    checkpoint = tmp_path / "whole" / "checkpoint-4"
    assert (checkpoint / "antipodes.safetensors").is_file()
    again = trainer_for(folder, tmp_path / "whole", labelled(), loss, **saving)
    attach(again)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert torch.equal(policy_of(inner(again)).threshold, policy_of(inner(whole)).threshold)
    for one, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)

    elsewhere = trainer_for(folder, tmp_path / "other", labelled(), loss, **saving)
    attach(elsewhere, resume_from=checkpoint)
    elsewhere.train(resume_from_checkpoint=str(checkpoint))
    assert torch.equal(policy_of(inner(elsewhere)).threshold, policy_of(inner(whole)).threshold)

    lost = trainer_for(folder, tmp_path / "third", labelled(), loss, **saving)
    attach(lost)
    with pytest.raises(FileNotFoundError, match="resume_from"):
        lost.train(resume_from_checkpoint=str(checkpoint))
    with pytest.raises(FileNotFoundError, match=r"antipodes\.safetensors"):
        attach(trainer_for(folder, tmp_path, labelled(), loss), resume_from=tmp_path / "nothing")
    smaller = trainer_for(folder, tmp_path / "whole", labelled(), lambda model: MultipleNegativesRankingLoss(model))
    attach(smaller)
    with pytest.raises(ValueError, match="another loss"):
        smaller.train(resume_from_checkpoint=str(checkpoint))


def test_in_their_evaluation_tables_rest_and_flag_nothing(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_for(folder, tmp_path, labelled(), with_tables, eval_strategy="epoch")
    attach(trainer)
    trainer.train()
    before = policy_of(trainer.loss).threshold.clone()
    assert bool((before != before[0]).any())
    value = trainer.evaluate()["eval_loss"]
    assert torch.equal(policy_of(trainer.loss).threshold, before)
    plain = trainer_for(folder, tmp_path, labelled(), MultipleNegativesRankingLoss, eval_strategy="epoch")
    attach(plain)
    plain.model.load_state_dict(trainer.model.state_dict())
    assert plain.evaluate()["eval_loss"] == pytest.approx(value)


def test_several_datasets_share_tables_only_with_rows_of_their_own(folder: Path, tmp_path: Path) -> None:
    overlapping = {"a": labelled(16), "b": labelled(16)}
    with pytest.raises(ValueError, match="unique"):
        attach(trainer_for(folder, tmp_path, overlapping, with_tables))
    attach(trainer_for(folder, tmp_path, overlapping, MultipleNegativesRankingLoss))  # no tables
    for data, loss in (
        ({"a": labelled(16), "b": labelled(8, first=16)}, with_tables),
        (overlapping, lambda model: {"a": with_tables(model), "b": with_tables(model)}),
    ):
        trainer = trainer_for(folder, tmp_path, data, loss, save_strategy="steps", save_steps=2)
        attach(trainer)
        trainer.train()
        assert (tmp_path / "checkpoint-2" / "antipodes.safetensors").is_file()
        resumed = trainer_for(folder, tmp_path, data, loss, save_strategy="steps", save_steps=2)
        attach(resumed)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    def shared(model: Any) -> dict[str, Any]:
        policy = GloFND(num_samples=24, alpha=0.2)
        return {name: MultipleNegativesRankingLoss(model, negatives=policy) for name in ("a", "b")}

    with pytest.raises(ValueError, match="unique"):
        attach(trainer_for(folder, tmp_path, overlapping, shared))


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("margin", [0.0, 0.02])
def test_with_a_guide_it_equals_their_gist_loss(folder: Path, tmp_path: Path, margin: float, size: int | None) -> None:
    guide = model_of(folder, seed=3)
    data = datasets.Dataset.from_dict(dict(zip(("anchor", "positive", "negative"), columns(8, hard=1), strict=True)))

    def gist(model: Any) -> Any:
        return theirs.GISTEmbedLoss(model, guide, temperature=0.05, margin=margin)

    def ours(model: Any) -> Any:
        return MultipleNegativesRankingLoss(
            model, 20.0, directions=("query_to_doc", "query_to_query", "doc_to_doc"), negatives=Guided(margin),
            guide=guide, mini_batch_size=size, ids=None,
        )  # fmt: skip

    results = []
    for name, loss in (("theirs", gist), ("ours", ours)):
        trainer = trainer_for(folder, tmp_path / name, data.select_columns(["anchor", "positive"]), loss)
        if name == "ours":
            attach(trainer)
        rows = [data.select_columns(["anchor", "positive"])[row] for row in range(8)]
        features, labels = trainer.collect_features(trainer.data_collator(rows))
        results.append(value_and_gradient(trainer.loss, trainer.model, features, labels))
    assert results[0][0] > 0.1
    assert_equal(*results)
    trainer = trainer_for(folder, tmp_path / "hard", data, ours)  # and with a column of hard negatives, in training
    attach(trainer)
    trainer.train()
    assert 0 < trainer.loss.stats["flagged_share"] < 1
    assert all(parameter.grad is None for parameter in guide.parameters())


def test_known_pairs_are_found_by_their_texts(folder: Path, tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict(dict(zip(("anchor", "positive"), columns(8), strict=True)))
    pairs = [(data[0]["anchor"], data[5]["positive"]), (data[2]["anchor"], data[1]["positive"])]
    known = Known.from_pairs(*map(list, zip(*pairs, strict=True)))
    trainer = trainer_for(folder, tmp_path, data, lambda model: MultipleNegativesRankingLoss(model, negatives=known))
    attach(trainer)
    trainer.train()
    assert trainer.loss.stats["kept_per_anchor"] == pytest.approx(7 - 2 / 8)


def test_workers_and_labels(folder: Path, tmp_path: Path) -> None:
    data = labelled(16).map(lambda row: {"label": row["label"] % 4})
    trainer = trainer_for(
        folder, tmp_path, data, lambda model: MultipleNegativesRankingLoss(model, ids="label"),
        dataloader_num_workers=1, per_device_train_batch_size=16,
    )  # fmt: skip
    attach(trainer)
    trainer.train()
    assert trainer.loss.stats["kept_per_anchor"] == 12


def test_every_negative_flagged_stays_finite(folder: Path, tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"anchor": ["red car"] * 8, "positive": ["big dog"] * 8})
    trainer = trainer_for(folder, tmp_path, data, MultipleNegativesRankingLoss)
    attach(trainer)
    with pytest.warns(UserWarning, match="no negatives left"):
        trainer.train()
    assert all(bool(parameter.isfinite().all()) for parameter in trainer.model.parameters())


def test_refusals(folder: Path, tmp_path: Path) -> None:
    model = model_of(folder)
    build = MultipleNegativesRankingLoss
    for match, arguments in (
        ("similarity_fct", {"similarity_fct": pairwise_cos_sim}),
        ("directions", {"directions": ("query_to_doc", "query_to_doc")}),
        ("Invalid directions", {"directions": ("query_to_doc", "sideways")}),
        ("ids", {"ids": "row"}),
        ("in_batch", {"in_batch": False, "directions": ALL}),
        ("policy", {"negatives": "glofnd"}),
        ("label column", {"negatives": GloFND(8, alpha=0.1), "ids": None}),
        ("guide", {"guide": model}),
        ("guide", {"negatives": Guided(0.1)}),
        ("mini_batch_size", {"mini_batch_size": 0}),
        ("GloFND", {"negatives": GloFND(8, alpha=0.1), "similarity_fct": dot_score}),
    ):
        with pytest.raises(ValueError, match=match):
            build(model, **arguments)
    features = features_of(model, columns())
    with pytest.raises(ValueError, match="attach"):
        build(model)(features)
    with pytest.raises(ValueError, match="attach"):
        build(model, negatives=GloFND(8, alpha=0.1, start=0.5), ids="label")(features, torch.arange(8))
    with pytest.raises(ValueError, match="column named label"):
        build(model, ids="label")(features)
    with pytest.raises(ValueError, match="whole numbers"):
        build(model, ids="label")(features, torch.rand(8))
    with pytest.raises(ValueError, match="positives"):
        build(model, ids=None)(features[:1])
    with pytest.raises(ValueError, match="has no MultipleNegativesRankingLoss"):
        attach(trainer_for(folder, tmp_path, labelled(), theirs.MultipleNegativesRankingLoss))
    trainer = trainer_for(folder, tmp_path, labelled(), build)
    attach(trainer)
    with pytest.raises(ValueError, match="once"):
        attach(trainer)
    with pytest.raises(ValueError, match="holds a dict"):
        trainer.data_collator.preprocess_fn([{"text": "red car"}])


def test_their_trainer_on_two_ranks_equals_one(folder: Path, tmp_path: Path) -> None:
    """Weights, tables and losses of two processes that torchrun starts, and of one with the whole batches."""
    model_of(folder).save(str(tmp_path / "model"))
    queries, documents = sentences(24, 10), sentences(24, 20)  # some of which repeat
    pairs = {"anchor": queries + queries[:8], "positive": documents + documents[:1] * 8, "negative": sentences(32, 30)}
    (tmp_path / "pairs.json").write_text(json.dumps(pairs | {"label": list(range(32))}))
    two_ranks_training.main(str(tmp_path / "model"), str(tmp_path / "ranks1"), str(tmp_path / "pairs.json"))
    call = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"]
    call += ["tests.integrations.two_ranks_training", "model", "ranks2", "pairs.json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *call], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    one, two = (tmp_path / f"ranks{ranks}" / "checkpoint-8" for ranks in (1, 2))
    for name in ("model.safetensors", "antipodes.safetensors"):
        expected, found = load_file(one / name), load_file(two / name)
        assert expected.keys() == found.keys()
        for key, each in expected.items():
            torch.testing.assert_close(found[key], each, rtol=1e-4, atol=1e-5)
    start, end = (load_file(place / "model.safetensors") for place in (tmp_path / "model", one))
    assert any(bool((start[key] - end[key]).abs().max() > 1e-3) for key in end)
    (table,) = (each for key, each in load_file(one / "antipodes.safetensors").items() if key.endswith("rows"))
    assert len(table.unique(dim=0)) == 32
    logs = [json.loads((place / "trainer_state.json").read_text())["log_history"] for place in (one, two)]
    losses = [[step["loss"] for step in log if "loss" in step] for log in logs]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_policies_without_tables_judge_in_evaluation_too(folder: Path) -> None:
    model = model_of(folder)
    loss = MultipleNegativesRankingLoss(model, negatives=Hardest(2), ids=None)
    with torch.no_grad():
        loss(features_of(model, columns()))
    assert loss.stats["kept_per_anchor"] == 2


def test_the_example_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = ROOT / "examples" / "sentence_transformers_pairs.py"
    model_of(folder).save(str(tmp_path / "encoder"))
    equal = runpy.run_path(str(path))["main"](str(tmp_path / "encoder"))
    assert equal > 0


def test_the_lines_of_the_page_run(folder: Path, tmp_path: Path) -> None:
    """The snippets of docs/coming-from.md and of the skill, and every loss of the page's table, train for an epoch."""
    page = (ROOT / "docs" / "coming-from.md").read_text().split("## sentence-transformers")[1].split("\n## ")[0]
    (snippet,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    dataset = labelled(16).add_column("negative", sentences(16, 3))
    model = model_of(folder)
    arguments = trainer_for(folder, tmp_path, dataset, MultipleNegativesRankingLoss).args
    names: dict[str, Any] = {
        "model": model, "args": arguments, "dataset": dataset, "guide": model_of(folder, seed=3), "GloFND": GloFND,
        "Guided": Guided, "Known": Known,
        "query_texts": dataset["anchor"][:2], "document_texts": dataset["positive"][1:3],
    }  # fmt: skip
    skill = (ROOT / "skills" / "antipodes" / "SKILL.md").read_text()
    recipe = next(each for each in re.findall(r"```python\n(.*?)```", skill, flags=re.DOTALL) if "attach" in each)
    for code in (snippet, recipe):
        exec(code, names)
        assert names["trainer"].state.global_step == 2
    lines = [row.split(" | ")[1] for row in page.splitlines() if row.startswith("| ")][1:]
    calls = [call for line in lines for call in re.findall(r"`(Multiple.*?|negatives=.*?)`", line)]
    assert len(calls) == 5
    for call in calls:
        line = call if call.startswith("Multiple") else f"MultipleNegativesRankingLoss(model, {call})"
        trainer = trainer_for(folder, tmp_path, dataset, lambda model, line=line: eval(line, names | {"model": model}))
        attach(trainer)
        trainer.train()
        assert math.isfinite(trainer.state.log_history[-1]["train_loss"])


def mined_texts(**options: Any) -> Mined:
    texts = sorted(set(sentences(40, 7)))
    vectors = dict(zip(texts, torch.randn(len(texts), 8, generator=torch.Generator().manual_seed(0)), strict=True))

    def encode(some: list[str]) -> Tensor:
        return torch.stack([vectors[text] for text in some])

    return mine(texts[:8], texts[8:], list(range(8)), encoder=encode, k=2, margin=-2.0, relative=False, **options)


@pytest.mark.parametrize("name", ["triplet.parquet", "n-tuple.jsonl"])
def test_their_trainer_reads_mined_negatives(folder: Path, tmp_path: Path, name: str) -> None:
    mined = mined_texts(out=tmp_path / name, format=name.partition(".")[0])
    kind = "parquet" if name.endswith("parquet") else "json"
    data = datasets.load_dataset(
        kind, data_files=str(tmp_path / name), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(data) == (16 if name.startswith("triplet") else 8)
    assert data[0]["negative" if "negative" in data.column_names else "negative_1"] == mined.corpus.shown(
        int(mined.indices[0, 0])
    )
    trainer = trainer_for(folder, tmp_path, data, theirs.MultipleNegativesRankingLoss)
    trainer.train()
    assert math.isfinite(trainer.state.log_history[-1]["train_loss"])


def test_their_cross_encoder_rescores(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(str(folder), num_labels=1)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "cross")
    transformers.AutoTokenizer.from_pretrained(str(folder)).save_pretrained(tmp_path / "cross")
    scorer = sentence_transformers.CrossEncoder(str(tmp_path / "cross"), device="cpu")
    mined = mined_texts(rescore=scorer.predict, ranks=(0, 6))
    pairs = [(mined.queries.inputs[0], mined.corpus.inputs[int(row)]) for row in mined.indices[0]]
    assert mined.scores[0] == pytest.approx(scorer.predict(pairs), abs=1e-5)
    assert list(mined.scores[0]) == sorted(mined.scores[0], reverse=True)
    assert (mined.indices != mined_texts().indices).any()
