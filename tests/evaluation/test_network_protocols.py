"""Protocols that run a method's network: on tiny methods, against plain loops and by hand."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from antipodes.cli.train import parse
from antipodes.data import HuggingFaceCaptions, Samples, TensorImages
from antipodes.evaluation.compared import compared_embeddings, judge_frozen
from antipodes.evaluation.labelled import custom_metric, other_splits
from antipodes.evaluation.pictures import caption_lines, tile
from antipodes.evaluation.protocol import run_protocols
from antipodes.evaluation.protocols import fine_tune, linear_sgd
from antipodes.evaluation.protocols.false_negatives import FalseNegatives, cluster_rates, flag_scores
from antipodes.evaluation.protocols.fine_tune import FineTune, TransferFineTune
from antipodes.evaluation.protocols.label_free import LabelFree
from antipodes.evaluation.protocols.linear_sgd import LinearSGD, TransferLinearSGD, frozen_network
from antipodes.evaluation.protocols.retrieval import RetrievalProtocol
from antipodes.evaluation.protocols.transfer import Transfer
from antipodes.evaluation.protocols.zero_shot import ZeroShot, class_vectors
from antipodes.evaluation.subject import Subject
from antipodes.losses import InfoNCE
from antipodes.methods import CLIP, Tower, TowerPlan, Towers
from antipodes.negatives import FNC, IFND, GloFND
from antipodes.negatives.flags import FlagCounts, count_flags
from antipodes.pairs import normalise
from antipodes.runs.build import build_method
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.towers import PairedFeatures, tower_features, tower_network
from tests.cli.command import here, refused
from tests.methods.tiny import SIZE, build
from tests.reference.flags import rates_of_flags


def images(count: int, seed: int = 0, classes: int = 6, labelled: bool = True) -> TensorImages:
    """Noise on colours that tell the classes apart."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    colours = torch.rand(classes, 3, generator=torch.Generator().manual_seed(99)) * 200
    pixels = colours[labels][:, :, None, None] + 55 * torch.rand(count, 3, SIZE, SIZE, generator=generator)
    return TensorImages(pixels.to(torch.uint8), labels if labelled else None, name="colours")


def with_policy(policy: nn.Module) -> Subject:
    method = build("simclr")
    (loss_fn,) = method.directions.values()
    loss_fn.negatives = policy
    return Subject(method, images(48), batch_size=24)


def test_judging_moves_nothing_and_flags_by_the_thresholds_as_they_stand() -> None:
    policy = GloFND(48, alpha=0.2, initial="one")
    subject = with_policy(policy)
    assert subject.method is not None
    assert subject.data is not None
    judged = compared_embeddings(subject.method, subject.data, None, 0)
    before = copy.deepcopy(policy.state_dict())
    pairs = judged.pairs(torch.arange(24))
    counts = count_flags(pairs, judge_frozen(policy, pairs), subject.data.labels)
    assert counts.flagged.sum() == 0  # thresholds of 1: nothing was learned yet, and judging is no lesson
    policy._table.rows[:, 0].fill_(0.9)
    above = (judged.anchors[:24] @ judged.anchors[:24].T).fill_diagonal_(-1) > 0.9
    counts = count_flags(pairs, judge_frozen(policy, pairs), subject.data.labels)
    assert torch.equal(counts.flagged[0], above.sum(1).double())
    run_protocols([FalseNegatives()], subject)
    policy._table.rows[:, 0].fill_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


def test_flags_pooled_and_per_anchor_by_hand() -> None:
    # three anchors with 5 candidates each: flags 2 of which 1 right of 2; none, 1 to find; 3 of which 2 right, of 4
    available, true, flagged, found = [5.0, 5, 5], [2.0, 1, 4], [[2.0, 0, 3]], [[1.0, 0, 2]]
    scores = flag_scores(FlagCounts(*(torch.tensor(counts).double() for counts in (available, true, flagged, found))))
    assert scores["flags pooled precision"] == pytest.approx(100 * 3 / 5)
    assert scores["flags pooled recall"] == pytest.approx(100 * 3 / 7)
    assert scores["flags pooled f1"] == pytest.approx(100 * 2 * 3 / (5 + 7))
    precision, recall = (1 / 2 + 1 + 2 / 3) / 3, (1 / 2 + 0 + 2 / 4) / 3
    assert scores["flags per-anchor precision"] == pytest.approx(100 * precision)
    assert scores["flags per-anchor recall"] == pytest.approx(100 * recall)
    assert scores["flags per-anchor f1"] == pytest.approx(200 * precision * recall / (precision + recall))
    assert scores["flags mtpr"] == pytest.approx(100 * recall)
    assert scores["flags mtnr"] == pytest.approx(100 * (2 / 3 + 4 / 4 + 0 / 1) / 3)


def test_rates_of_a_clustering_are_those_of_its_rules_on_the_whole_dataset() -> None:
    policy = IFND(48, clusters=(3, 7), final_rate=0.5)
    subject = with_policy(policy)
    assert subject.method is not None
    assert subject.data is not None
    labels = subject.data.labels
    assert labels is not None
    features = tower_features(subject.method, subject.data)
    policy.fit(features, progress=0.5)
    scores = run_protocols([FalseNegatives()], subject)
    judged = compared_embeddings(subject.method, subject.data, None, 0)
    pairs = judged.pairs(torch.arange(48))
    for rule, clusters in zip(judge_frozen(policy, pairs), (3, 7), strict=True):
        mtpr, mtnr = rates_of_flags(rule, pairs, labels)
        assert scores[f"mtpr, {clusters} clusters"] == pytest.approx(100 * mtpr)
        assert scores[f"mtnr, {clusters} clusters"] == pytest.approx(100 * mtnr)
    both = [scores[f"mtpr, {clusters} clusters"] for clusters in (3, 7)]
    assert scores["mtpr, mean of granularities"] == pytest.approx(sum(both) / 2)
    assert cluster_rates(FNC(alpha=0.1), labels) == {}


def test_fine_tuning_on_another_dataset_is_fine_tuning_with_its_images_and_labels() -> None:
    method, own, other = build("simclr"), images(30), images(90)
    other.name, other.metric = "other", "mean per class"
    options: dict[str, Any] = {"rates": (1e-6, 0.3), "epochs": 3, "min_steps": 30, "batch_size": 32}
    scores = run_protocols([TransferFineTune(**options)], Subject(method, own, others=[other]))
    expected = run_protocols([FineTune(fractions=(1.0,), **options)], Subject(method, other))
    assert scores["fine-tune on other top-1"] == expected["fine-tune top-1"]
    assert scores["fine-tune rate, other"] == 0.3
    assert "fine-tune on other mean per class" in scores
    assert "fine-tune on others, mean" not in scores  # there is one
    twin = images(90)
    twin.name = "twin"
    both = run_protocols([TransferFineTune(**options)], Subject(method, own, others=[other, twin]))
    customs = [both["fine-tune on other mean per class"], both["fine-tune on twin top-1"]]  # each by its own
    assert both["fine-tune on others, mean"] == pytest.approx(sum(customs) / 2)
    with pytest.raises(ValueError, match="transfer-fine-tune needs other datasets"):
        run_protocols([TransferFineTune(**options)], Subject(method, own))


def test_fine_tuning_and_sgd_on_another_dataset_go_by_its_own_statistics_if_told_so() -> None:
    bright = images(90)  # made pale: by the run's statistics its classes are hard to tell apart
    other = TensorImages(bright.images // 8 + 200, bright.labels, name="pale")
    own = images(30)
    resnet = build_method(parse(["--encoder", "resnet8-slim", "--head.hidden", "7"])[0], own)
    tuned = TransferFineTune(rates=(0.1,), epochs=1, min_steps=10, batch_size=32)
    sgd = TransferLinearSGD(epochs=5, batch_size=16)
    by_run, by_own = (
        run_protocols([tuned, sgd], Subject(resnet, own, others=[other], other_statistics=statistics))
        for statistics in ("run", "own")
    )
    names = {"fine-tune on pale top-1", "linear-sgd on pale top-1", "linear-sgd on pale mean per class"}
    assert names <= set(by_run)
    mean, std = other_splits(other, Subject(resnet, own), "some").train.statistics()  # of the part that is trained on
    normal = copy.copy(resnet)
    normal.pixels = {"mean": mean, "std": std}  # as if the run had been normalised so
    assert by_own == run_protocols([tuned, sgd], Subject(normal, own, others=[other]))
    assert by_own != by_run


def test_sgd_on_another_dataset_is_sgd_with_its_images_and_labels() -> None:
    own, other, twin = images(30), images(90), images(60, 3)
    other.name, twin.name = "other", "twin"
    twin.metric = "mean per class"
    method = build_method(parse(["--encoder", "resnet8-slim", "--head.hidden", "7"])[0], own)
    options: dict[str, Any] = {"epochs": 5, "batch_size": 16}
    scores = run_protocols([TransferLinearSGD(**options)], Subject(method, own, others=[other, twin]))
    expected = run_protocols([LinearSGD(**options)], Subject(method, other))
    assert scores["linear-sgd on other top-1"] == expected["linear-sgd top-1"]
    assert scores["linear-sgd rate, other"] == 0.01
    customs = [scores["linear-sgd on other top-1"], scores["linear-sgd on twin mean per class"]]
    assert scores["linear-sgd on others, mean"] == pytest.approx(sum(customs) / 2)


def test_networks_of_protocols_run_where_the_subject_says(monkeypatch: pytest.MonkeyPatch) -> None:
    data = images(60)
    method = build_method(parse(["--encoder", "resnet8-slim", "--head.hidden", "7"])[0], data)
    told: list[tuple[Any, Any]] = []
    devices: list[Any] = []
    for module in (fine_tune, linear_sgd):
        real = module.embed_dataset

        def spy(*arguments: Any, real: Any = real, **options: Any) -> Any:
            told.append((options.get("device"), options.get("workers")))
            return real(*arguments, **{**options, "workers": 0})

        monkeypatch.setattr(module, "embed_dataset", spy)
    fit = LinearSGD.fit
    monkeypatch.setattr(LinearSGD, "fit", lambda *arguments: (devices.append(arguments[-1]), fit(*arguments))[1])
    protocols = [FineTune(fractions=(1.0,), rates=(0.1,), epochs=1, min_steps=1), LinearSGD(epochs=1)]
    run_protocols(protocols, Subject(method, data, device="cpu:0", workers=3))
    assert told == [("cpu:0", 3)] * 3
    assert devices == ["cpu:0"]


def test_shares_that_are_not_as_asked_for_are_told() -> None:
    other = images(90)  # 15 of each class
    other.name = "other"
    options: dict[str, Any] = {"rates": (0.1,), "epochs": 1, "min_steps": 1}
    tuned = TransferFineTune(fractions=(0.03, 0.2, 0.1, 1.0), **options)
    held_out = Subject(build("simclr"), images(20), others=[other])
    scores = run_protocols([tuned], held_out)
    assert scores["fine-tune on other 3 % labels, used %"] == pytest.approx(100 / 12)  # one of 12 is more
    assert scores["fine-tune on other 20 % labels, used %"] == pytest.approx(100 * 2 / 12)  # and two are less
    assert "fine-tune on other, used %" not in scores
    scores = run_protocols([FineTune(fractions=(0.2, 0.25), **options)], Subject(build("simclr"), other))
    assert scores["fine-tune 20 % labels, used %"] == pytest.approx(100 * 2 / 12)
    assert "fine-tune 25 % labels, used %" not in scores


def test_fine_tuning_learns_and_leaves_the_run_alone() -> None:
    method, data = build("simclr"), images(90)
    before = copy.deepcopy(method.state_dict())
    protocol = FineTune(fractions=(0.1, 1.0), rates=(1e-6, 0.3), epochs=3, min_steps=30, batch_size=32)
    scores = run_protocols([protocol], Subject(method, data))
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    assert scores["fine-tune 100 % labels top-1"] > 60
    assert scores["fine-tune 100 % labels top-1"] <= scores["fine-tune 100 % labels top-5"]
    assert scores["fine-tune rate, 100 % labels"] == 0.3  # the other learns nothing
    assert scores["fine-tune rate, 10 % labels"] == 0.3  # one of each class: none can be held out
    assert run_protocols([protocol], Subject(method, data)) == scores


def test_fine_tuning_chooses_its_rate_without_the_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    protocol = FineTune(fractions=(1.0,), rates=(0.1, 0.2), epochs=1, min_steps=1)
    real = FineTune.accuracy_of

    def spy(self, subject, splits, rows, rate):
        seen.append(len(rows))
        assert (len(rows) + len(splits.test_labels) == len(splits.labels)) or len(rows) == len(splits.labels)
        return real(self, subject, splits, rows, rate)

    monkeypatch.setattr(FineTune, "accuracy_of", spy)
    run_protocols([protocol], Subject(build("simclr"), images(60)))
    assert len(seen) == 3
    assert seen[0] == seen[1] < seen[2]


def maps_before_pooling(subject: Subject, data: Samples, side: int | None = None) -> Tensor:
    """The feature maps before the last pooling of every encoder, flattened, (n, sum of C h w)."""
    assert subject.method is not None
    network = frozen_network(subject, "map", side)
    shown = subject.plain_view(subject.method.pixels)
    return embed_dataset(network, data, preprocess=shown, device=subject.device, workers=subject.workers)


def test_a_linear_layer_by_sgd_on_maps_before_pooling() -> None:
    data = images(60)
    method = build_method(parse(["--encoder", "resnet8-slim", "--head.hidden", "7"])[0], data)
    subject = Subject(method, data)
    maps = maps_before_pooling(subject, data)
    pooled = tower_features(method, data)
    channels = pooled.shape[1]
    torch.testing.assert_close(maps.view(60, channels, -1).mean(2), pooled, atol=2e-3, rtol=2e-3)
    assert maps_before_pooling(subject, data, side=1).shape == (60, channels)
    scores = run_protocols([LinearSGD(epochs=20, batch_size=16, rates=(1e-7, 0.05))], subject)
    assert scores["linear-sgd rate"] == 0.05
    assert scores["linear-sgd top-1"] > 50
    with pytest.raises(ValueError, match="this encoder has none"):
        run_protocols([LinearSGD()], Subject(build("simclr"), data))


def test_sgd_reaches_the_minimum_of_a_convex_problem() -> None:
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(40, 3, generator=generator), torch.arange(40) % 2
    layer = LinearSGD(epochs=400, batch_size=40, weight_decay=0.1).fit(features, labels, 2, 0.1, 0)
    layer.requires_grad_(True).zero_grad()
    loss = nn.functional.cross_entropy(layer(features), labels)
    loss = loss + 0.05 * (layer.weight.square().sum() + layer.bias.square().sum())
    loss.backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().max() < 1e-4


def test_without_labels_something_is_said_all_the_same() -> None:
    subject = Subject(build("simclr"), images(50, labelled=False))
    scores = run_protocols([LabelFree(most=30)], subject)
    recalls = {"other view R@1", "other view R@5", "duplicate recall"}
    assert set(scores) == recalls | {"alignment", "uniformity", "effective rank"}
    assert 0 <= scores["other view R@1"] <= scores["other view R@5"] <= 100
    assert 0 <= scores["duplicate recall"] <= 100
    assert scores["uniformity"] < 0 < scores["alignment"]
    assert scores["effective rank"] > 1


def test_evaluate_on_data_without_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", images=images(40).images.permute(0, 2, 3, 1).numpy())
    options = ["--encoder", "resnet8-slim", "--head.hidden", 16, "--batch_size", 16, "--epochs", 1]
    assert here("train", "--data", tmp_path / "plain.npz", *options, "--out", tmp_path / "run")[0] == 0
    code, out, errors = here("evaluate", tmp_path / "run", "--json")
    assert code == 0, errors
    assert "the data has no labels" in errors
    assert "effective rank" in json.loads(out)["run"]
    assert "needs labels" in refused("evaluate", tmp_path / "run", "--protocol", "fine-tune")
    assert "needs pairs of images and texts" in refused("evaluate", tmp_path / "run", "--protocol", "retrieval")
    assert "names of their classes" in refused("evaluate", tmp_path / "run", "--protocol", "zero-shot")


def test_retrieval_from_files_with_five_captions_an_image(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    pictures = generator.normal(size=(8, 6)).astype(np.float32)
    owners = np.repeat(np.arange(8), 5)
    texts = (pictures[owners] + 0.6 * generator.normal(size=(40, 6))).astype(np.float32)
    shuffled = generator.permutation(40)
    for name, array in (("images", pictures), ("texts", texts[shuffled]), ("owners", owners[shuffled]), ("all", texts)):
        np.save(tmp_path / f"{name}.npy", array)
    files = ["--images", tmp_path / "images.npy", "--texts"]
    code, out, errors = here(
        "evaluate",
        "--protocol",
        "retrieval",
        *files,
        tmp_path / "texts.npy",
        "--owners",
        tmp_path / "owners.npy",
        "--json",
    )
    assert code == 0, errors
    found = json.loads(out)["images"]
    assert json.loads(here("evaluate", *files, tmp_path / "all.npy", "--json")[1])["images"] == found  # five for each
    unit = [array / np.linalg.norm(array, axis=1, keepdims=True) for array in (pictures, texts)]
    similar = unit[0] @ unit[1].T
    for k in (1, 5, 10):
        hits = [any(owners[j] == i for j in np.argsort(-similar[i])[:k]) for i in range(8)]
        assert found[f"image to text R@{k}"] == pytest.approx(100 * np.mean(hits), abs=1e-3)
        hits = [owners[j] in np.argsort(-similar[:, j])[:k] for j in range(40)]
        assert found[f"text to image R@{k}"] == pytest.approx(100 * np.mean(hits), abs=1e-3)
    assert 0 < found["text to image R@1"] < 100
    np.save(tmp_path / "few.npy", texts[:7])
    assert "--owners" in refused("evaluate", *files, tmp_path / "few.npy")
    assert "need both files" in refused("evaluate", "--images", tmp_path / "images.npy")
    assert "does not exist" in refused("evaluate", *files, tmp_path / "nothing.npy")
    assert "which run?" in refused("evaluate")


def test_images_without_a_text_are_no_queries() -> None:
    eye = torch.eye(3)
    pairs = PairedFeatures(eye, eye[:2], torch.tensor([0, 1]))
    scores = run_protocols([RetrievalProtocol()], Subject(paired=pairs))
    assert set(scores.values()) == {100.0}


class Words(nn.Module):
    """A text tower by hand: a vector for every word."""

    modality = "text"
    table = {"cat": [1.0, 0.0], "dog": [0.0, 1.0], "photo": [0.5, 0.5]}

    def tokenize(self, texts: list[str]) -> torch.Tensor:
        return torch.tensor([[float(word in text) for word in self.table] for text in texts])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens @ torch.tensor(list(self.table.values()))


def test_prompts_are_averaged_on_the_sphere() -> None:
    found = class_vectors(Words(), ["cat", "dog"], ["a photo of a {}", "{}"])
    one, two = normalise(torch.tensor([[1.5, 0.5]])), torch.tensor([[1.0, 0.0]])
    torch.testing.assert_close(found[0], normalise((one + two) / 2)[0])
    torch.testing.assert_close(found[1], found[0].flip(0))


def test_every_caption_counts_whoever_has_the_data() -> None:
    """By hand: of the cat's captions only the second finds its image, and one of them is enough for the image."""

    class Pairs(list[dict[str, Any]]):
        """Answers as datasets.Dataset does: rows by number, columns by name."""

        column_names = ("image", "caption")

        def __getitem__(self, key: Any) -> Any:
            return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)

    pictures = [Image.new("RGB", (4, 4), colour) for colour in ((250, 10, 0), (100, 250, 0))]
    captions = [["a dog", "a cat"], ["photo of a dog"]]
    rows = [{"image": one, "caption": texts} for one, texts in zip(pictures, captions, strict=True)]
    data = HuggingFaceCaptions(Pairs(rows), size=4)
    scores = run_protocols([RetrievalProtocol(cutoffs=(1,))], zero_shot_subject(data=data))
    assert scores["image to text R@1"] == pytest.approx(100)  # the cat's first caption alone would give 0
    assert scores["text to image R@1"] == pytest.approx(100 * 2 / 3)
    assert caption_lines(data) > 0
    assert "a dog" in tile(data, 0, "").caption


class Mean(nn.Module):
    """An image tower by hand: the means of the red and of the green channel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3))[:, :2]


def zero_shot_subject(*others: TensorImages, **fields: Any) -> Subject:
    towers = {"image": Tower(Mean(), nn.Identity()), "text": Tower(Words(), nn.Identity())}
    plans = {name: TowerPlan(name, name) for name in towers}
    method = CLIP(Towers(towers, plans), InfoNCE())
    method.pixels = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    return Subject(method, others=others, size=4, **fields)


def coloured(colours: list[tuple[int, int, int]], labels: list[int], name: str) -> TensorImages:
    pixels = torch.tensor(colours, dtype=torch.uint8)[:, :, None, None].expand(-1, -1, 4, 4).contiguous()
    return TensorImages(pixels, torch.tensor(labels), classes=("cat", "dog"), name=name)


def test_zero_shot_by_hand() -> None:
    """A cat is (1, 0) on average of its prompts' directions and a dog (0, 1), so that the stronger channel decides."""
    red, green, reddish = (250, 10, 0), (10, 250, 0), (140, 120, 0)
    first = coloured([red, green, reddish, green], [0, 1, 1, 1], "first")  # the third is a dog, and seen as a cat
    second = coloured([red, green], [1, 0], "second")
    scores = run_protocols([ZeroShot()], zero_shot_subject(first, second))
    assert scores == {
        "zero-shot first top-1": 75.0,
        "zero-shot first mean per class": pytest.approx((100 + 100 * 2 / 3) / 2),
        "zero-shot second top-1": 0.0,
        "zero-shot second mean per class": 0.0,
        "zero-shot mean": 37.5,
    }
    alone = run_protocols([ZeroShot()], zero_shot_subject(first))
    assert alone == {name: score for name, score in scores.items() if "first" in name}
    own = run_protocols([ZeroShot()], zero_shot_subject(second, data=first))
    assert (own["zero-shot top-1"], own["zero-shot second top-1"]) == (75.0, 0.0)
    assert "zero-shot mean" not in own  # the mean is one of other datasets


def test_zero_shot_leaves_out_what_has_no_label_and_refuses_what_has_no_names() -> None:
    data = coloured([(250, 10, 0), (10, 250, 0)], [0, -1], "some")
    assert run_protocols([ZeroShot()], zero_shot_subject(data))["zero-shot some top-1"] == 100.0
    data.classes = None
    with pytest.raises(ValueError, match="needs the names of the classes, and some has none"):
        run_protocols([ZeroShot()], zero_shot_subject(data))
    several = coloured([(250, 10, 0)], [0], "several")
    several.labels = torch.tensor([[1, 0]])
    with pytest.raises(ValueError, match="needs one label an image, and several has several"):
        run_protocols([ZeroShot()], zero_shot_subject(several))
    with pytest.raises(ValueError, match="--transfer FOLDER_OF_CLASSES"):
        run_protocols([ZeroShot()], zero_shot_subject())


def test_names_of_folders_are_read_as_words() -> None:
    class Echo(Words):
        def tokenize(self, texts: list[str]) -> torch.Tensor:
            assert texts == ["a hot dog {x}"]
            return super().tokenize(texts)

    class_vectors(Echo(), ["hot_dog"], ["a {} {x}"])


def test_zero_shot_from_files(tmp_path: Path) -> None:
    pictures = np.array([[2, 0.1], [0.1, 5], [1, 1.1], [3, 1]], np.float32)
    classes = np.array([[10, 0], [0, 1]], np.float32)  # lengths do not count
    for name, array in (("images", pictures), ("classes", classes), ("labels", np.array([0, 1, 0, 0]))):
        np.save(tmp_path / f"{name}.npy", array)
    files = ["--images", tmp_path / "images.npy", "--texts", tmp_path / "classes.npy"]
    labels = ["--labels", tmp_path / "labels.npy"]
    for named in (["--protocol", "zero-shot"], []):
        code, out, errors = here("evaluate", *named, *files, *labels, "--json")
        assert code == 0, errors
        found = json.loads(out)["images"]
        assert found == {
            "zero-shot top-1": 75.0,
            "zero-shot mean per class": pytest.approx((100 * 2 / 3 + 100) / 2, abs=1e-3),
        }
    np.save(tmp_path / "wrong.npy", np.array([0, 1, 2, 0]))
    assert "must hold rows of the classes, 0..1" in refused("evaluate", *files, "--labels", tmp_path / "wrong.npy")
    assert "give one" in refused("evaluate", *files, *labels, "--owners", tmp_path / "labels.npy")
    assert "need both files" in refused("evaluate", *labels)
    assert "needs pairs of images and texts" in refused("evaluate", "--protocol", "retrieval", *files, *labels)
    assert "--labels labels.npy" in refused("evaluate", "--protocol", "zero-shot", *files)


def test_a_dataset_is_judged_by_its_own_custom() -> None:
    several = images(60, 1)
    several.name = "several"
    known = several.labels
    assert known is not None
    several.labels = torch.stack([known < 3, known % 2 == 1, known == 0], 1).long()
    several.labels[0, 2] = -1
    one = images(60, 2)
    one.name, one.metric = "one", "mean per class"
    scores = run_protocols([Transfer()], Subject(build("simclr"), images(20), others=[several, one]))
    assert {"transfer several mAP", "transfer one mean per class", "transfer one top-5", "transfer mean"} <= set(scores)
    assert scores["transfer several mAP"] > 50
    mean = (scores["transfer several mAP"] + scores["transfer one mean per class"]) / 2
    assert scores["transfer mean"] == pytest.approx(mean)
    one.metric = "mAP"
    with pytest.raises(ValueError, match="cannot be judged by 'mAP'"):
        custom_metric(one)


def test_statistics_of_the_target() -> None:
    data = images(30)
    subject = Subject(build("simclr"), data, others=[data], other_statistics="own")
    view = subject.other_view(data)
    assert view is not None
    seen = view(data.images)
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    assert Subject(build("simclr"), data).other_view(data) is None


def test_a_tower_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="has no tower 'text': there are image"):
        tower_network(build("simclr"), "text")
