"""The papers' ways of judging an encoder: all of its towers, streamed and augmented SGD, schedules, lists, crops."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from antipodes.cli.train import parse
from antipodes.data import Folder, TensorImages
from antipodes.encoders.encoder import rgb_to_lab
from antipodes.evaluation.accuracy import average_precision, fit_loss, judge
from antipodes.evaluation.labelled import LabelledSplits, labelled_shares, read_listed_rows
from antipodes.evaluation.protocol import run_protocols
from antipodes.evaluation.protocols import linear_sgd
from antipodes.evaluation.protocols.fine_tune import FineTune, TransferFineTune, rate_factor
from antipodes.evaluation.protocols.frozen import Semi
from antipodes.evaluation.protocols.linear_sgd import (
    LinearSGD,
    TransferLinearSGD,
    frozen_network,
)
from antipodes.evaluation.subject import Subject
from antipodes.runs.build import build_method
from antipodes.runs.towers import tower_features, tower_network
from tests.evaluation.test_network_protocols import images, maps_before_pooling


@pytest.fixture(scope="module")
def small() -> Subject:
    """An untrained encoder on images whose colours tell six classes apart."""
    data = images(60)
    torch.manual_seed(0)
    return Subject(build_method(parse(["--encoder", "resnet8-slim", "--head.hidden", "7"])[0], data), data)


def equally_light() -> tuple[Tensor, Tensor]:
    """Two colours (3,) uint8 of almost the same lightness and very different hue."""
    colours = torch.randint(0, 256, (4000, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    lab = rgb_to_lab(colours[:, :, None, None].float() / 255)[:, :, 0, 0]
    order = lab[:, 0].argsort()
    gap = lab[order[1:], 0] - lab[order[:-1], 0]
    hue = (lab[order[1:], 1:] - lab[order[:-1], 1:]).norm(dim=1)
    best = int((hue - 1e4 * gap * hue.max()).argmax())
    return colours[order[best]], colours[order[best + 1]]


def test_every_protocol_asks_both_encoders_of_cmc() -> None:
    """A feature changes with lightness alone and with colour alone: neither encoder is left out."""
    grey = torch.tensor([[80, 80, 80], [190, 190, 190]], dtype=torch.uint8)  # the same ab, another L
    hues = torch.stack(equally_light())  # the same L, another ab
    pixels = torch.cat((grey, hues))[:, :, None, None].expand(4, 3, 32, 32).contiguous()
    pixels[:, :, :16] = pixels[:, :, :16] // 2 * 2  # not quite flat
    data = TensorImages(pixels, torch.tensor([0, 1, 0, 1]))
    method = build_method(parse(["--method", "cmc", "--encoder", "resnet8-slim"])[0], data)
    subject = Subject(method, data)
    width = subject.embed(data).shape[1]
    assert width == 128
    view = subject.plain_view(method.pixels)(pixels)
    with torch.no_grad():
        found = {
            "features of linear, kNN, semi and transfer": subject.embed(data),
            "features of the network that is fine-tuned": tower_network(method, "image").eval()(view),
            "pooled features of linear-sgd": frozen_network(subject, "pooled").eval()(view),
            "maps of linear-sgd": maps_before_pooling(subject, data),
            "features of pictures": tower_features(method, data),
        }
    for what, features in found.items():
        lightness, colour = features.chunk(2, dim=1)  # of the encoder of L, and of that of ab
        assert not torch.allclose(lightness[0], lightness[1], rtol=1e-2, atol=1e-2), what
        torch.testing.assert_close(colour[0], colour[1], rtol=2e-2, atol=2e-2, msg=what)
        assert not torch.allclose(colour[2], colour[3], rtol=1e-2, atol=1e-2), what
        torch.testing.assert_close(lightness[2], lightness[3], rtol=5e-2, atol=5e-2, msg=what)
    scores = run_protocols([LinearSGD(epochs=2)], Subject(method, images(24), batch_size=8))
    assert scores["linear-sgd top-1"] >= 0


@pytest.mark.parametrize("space", ["map", "pooled"])
def test_streamed_features_give_the_scores_of_stored_ones(
    space: linear_sgd.Space, small: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = LinearSGD(space=space, epochs=4, batch_size=16, rates=(1e-7, 0.05))
    stored = run_protocols([protocol], small)
    monkeypatch.setattr(linear_sgd, "MOST_STORED", 0)
    assert run_protocols([protocol], small) == pytest.approx(stored)
    assert stored["linear-sgd rate"] == 0.05


def test_augmented_training_with_steps_and_adamw_learns(small: Subject) -> None:
    options = {"space": "pooled", "epochs": 10, "batch_size": 16, "augment": True}
    steps = LinearSGD(rates=(1.0,), schedule="step", milestones=(0.5,), **options)  # type: ignore[arg-type]
    adam = LinearSGD(rates=(0.03,), optimizer="adamw", weight_decay=1e-4, **options)  # type: ignore[arg-type]
    for protocol in (steps, adam):
        scores = run_protocols([protocol], small)
        assert scores["linear-sgd top-1"] > 50
        assert run_protocols([protocol], small) == scores  # the views follow from the seed


def test_options_by_share_are_those_of_runs_on_one_share(small: Subject) -> None:
    """GloFND trains longer on fewer labels; IFND's linear layer has a rate for 1 % and one for 10 %."""
    common = {"space": "pooled", "batch_size": 16}
    every = LinearSGD(fractions=(1.0, 0.5), epochs=(1, 6), **common)  # type: ignore[arg-type]
    one, half = (LinearSGD(fractions=(1.0, 0.5), epochs=epochs, **common) for epochs in (1, 6))  # type: ignore[arg-type]
    scores, ones, halves = (run_protocols([each], small) for each in (every, one, half))
    mean = scores.pop("linear-sgd mean of shares")
    assert mean == pytest.approx((scores["linear-sgd 100 % labels top-1"] + scores["linear-sgd 50 % labels top-1"]) / 2)
    assert scores == {name: (halves if "50 %" in name else ones)[name] for name in scores}
    assert ones["linear-sgd 50 % labels top-1"] != halves["linear-sgd 50 % labels top-1"]
    with pytest.raises(ValueError, match="head_rate must be one value, or one for each of 3 shares"):
        FineTune(head_rate=(1.0, 0.1))


def test_images_with_several_labels_are_fine_tuned_and_judged_by_the_mean_average_precision(small: Subject) -> None:
    """The loss is the mean logistic loss of the labels that count; the score that of scikit-learn (all points)."""
    logits = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 0, 1], [0, 1, -1], [1, 1, 0], [0, 0, 1], [-1, 0, 0], [0, 1, 1], [1, 0, 0]])
    counted = [(i, k) for i in range(7) for k in range(3) if labels[i, k] >= 0]
    expected = 0.0
    for i, k in counted:
        chance = 1 / (1 + math.exp(-float(logits[i, k])))
        expected -= math.log(chance if labels[i, k] else 1 - chance) / len(counted)
    assert float(fit_loss(logits, labels)) == pytest.approx(expected, rel=1e-12)
    precisions = [average_precision(logits[:, k], labels[:, k]) for k in range(3)]
    assert judge(logits, labels).named("x") == {"x mAP": pytest.approx(100 * sum(precisions) / 3)}

    other = images(90)
    bright = other.images.float().mean((2, 3)) > 128
    other.name, other.labels = "several", torch.cat((bright.long(), 1 - bright.long()), dim=1)
    other.labels[::9, 0] = -1
    tuned = TransferFineTune(rates=(1e-6, 0.3), epochs=3, min_steps=30, batch_size=32)
    sgd = TransferLinearSGD(rates=(1e-7, 0.05), epochs=20, batch_size=16)
    scores = run_protocols([tuned, sgd], Subject(small.method, small.data, others=[other]))
    assert scores["fine-tune on several mAP"] > 90
    assert scores["linear-sgd on several mAP"] > 90
    assert (scores["fine-tune rate, several"], scores["linear-sgd rate, several"]) == (0.3, 0.05)


def test_schedules_and_rates_of_fine_tuning() -> None:
    assert [rate_factor("step", at, (0.6, 0.8), 0.2) for at in (0.0, 0.59, 0.6, 0.8)] == pytest.approx(
        [1, 1, 0.2, 0.04]
    )
    assert rate_factor("constant", 0.9, (), 0.1) == 1
    network = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2))
    protocol = FineTune(head_rate=1.0, decay_vectors=False, weight_decay=5e-4)
    groups = protocol._groups(network, 0.1, 128)
    assert [(group["lr"], group["weight_decay"], len(group["params"])) for group in groups] == [
        (0.05, 5e-4, 1),  # the encoder's matrix
        (0.05, 0.0, 3),  # its bias and normalisation
        (0.5, 5e-4, 1),
        (0.5, 0.0, 1),
    ]
    assert {group["weight_decay"] for group in FineTune()._groups(network, 0.1, 128)} == {1e-4}


@pytest.mark.parametrize(
    "wrong",
    [
        {"schedule": "linear"},
        {"milestones": (1.5,)},
        {"factor": 0.0},
        {"space": "last"},
        {"optimizer": "lbfgs"},
    ],
)
def test_wrong_options_are_named(wrong: dict) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        LinearSGD(**wrong)


def test_lists_of_labelled_images(tmp_path: Path, small: Subject) -> None:
    for kind, colour in (("a", 10), ("b", 200)):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (16, 16), (colour, 20 * number, 90)).save(
                tmp_path / "photos" / kind / f"{kind}{number}.png"
            )
    folder, file = Folder(str(tmp_path / "photos"), size=16), tmp_path / "1percent.txt"
    file.write_text("b1.png\na2.png\n\n")
    rows = read_listed_rows(str(file), folder)
    assert [Path(folder.paths[row]).name for row in rows.tolist()] == ["a2.png", "b1.png"]
    file.write_text("3\n0\n")
    assert read_listed_rows(str(file), folder).tolist() == [0, 3]
    for text, sentence in (("c9.png", "c9.png"), ("", "lists no image"), ("17", "17")):
        file.write_text(text)
        with pytest.raises(ValueError, match=sentence):
            read_listed_rows(str(file), folder)
    file.write_text("b1.png")
    with pytest.raises(ValueError, match="is no folder of images"):
        read_listed_rows(str(file), images(6))
    file.write_text("\n".join(map(str, range(30))))
    splits = LabelledSplits.of(images(60), images(6), small.method.pixels)
    ((name, listed, used),) = labelled_shares("fine-tune", splits, (0.1,), str(file), 0)
    assert (name, listed.tolist(), used) == ("fine-tune labels of 1percent", list(range(30)), {})
    other = tmp_path / "10percent.txt"
    other.write_text("\n".join(map(str, range(40))))
    both = (str(file), str(other))
    scores = run_protocols([Semi(ids=both), LinearSGD(ids=both, epochs=(1, 2))], small)
    assert {f"linear labels of {part}percent top-1" for part in (1, 10)} <= set(scores)
    assert {f"linear-sgd labels of {part}percent top-1" for part in (1, 10)} <= set(scores)
    named = run_protocols([LinearSGD(ids=both, fractions=(0.5, 0.6), epochs=(1, 2))], small)
    assert {f"linear-sgd {part} % labels top-1" for part in (50, 60)} < set(named)
    assert named["linear-sgd 60 % labels top-1"] == scores["linear-sgd labels of 10percent top-1"]
    with pytest.raises(ValueError, match="ids names nowhere"):
        FineTune(ids="nowhere.txt")


def test_the_centre_crop_is_cut_from_the_decoded_photo() -> None:
    generator = torch.Generator().manual_seed(1)
    data = TensorImages(torch.randint(0, 256, (6, 3, 32, 32), generator=generator, dtype=torch.uint8))
    method = build_method(parse(["--encoder", "resnet8-slim"])[0], data)
    inner = TensorImages(data.fetch(torch.arange(6))[:, :, 2:30, 2:30].contiguous())
    cropped = Subject(method, data, size=28, centre_crop=0.875)  # as 224 of 256
    torch.testing.assert_close(cropped.embed(data), Subject(method, inner).embed(inner))
    assert not torch.allclose(cropped.embed(data), Subject(method, data, size=28).embed(data))
