"""HNSSL: which network sees what, who takes the gradient, how the target follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from antipodes.cli.train import parse
from antipodes.losses import HardPairs
from antipodes.losses.observation import Observation
from antipodes.methods import HNSSL, Batch, Tower, Towers
from antipodes.runs.build import build_data, build_method
from antipodes.runs.records import read_records
from antipodes.runs.views import plain_view
from antipodes.training.loop import run_training
from tests.methods.tiny import LABELS, Tiny, Training, batch, build
from tests.reference.hard_pairs import hard_pairs as reference

SHAPES = ["--encoder", "resnet8-slim", "--data.count", "128", "--batch_size", "32", "--method", "hnssl"]


def hnssl(name: str = "hnssl") -> HNSSL:
    method = build(name)
    assert isinstance(method, HNSSL)
    return method


def headless() -> Towers:
    return Towers({"image": Tower(Tiny(), nn.Identity())})


def turn(method: HNSSL) -> None:
    """Give the target weights of its own."""
    with torch.no_grad():
        for number, parameter in enumerate(method.target.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))


MININGS: list[dict[str, Any]] = [{}, {"top_k": 2}, {"quantile": 0.5}, {"threshold": 2.0}, {"quantile": 1.0}]


@pytest.mark.parametrize("mining", MININGS)
def test_is_the_loss_of_its_paper(mining: dict[str, Any]) -> None:
    torch.manual_seed(0)
    method = HNSSL(headless(), HardPairs(**mining)).double()
    turn(method)
    given = batch(0, method, dtype=torch.float64)
    (view,), plain = given["image"].views, given["image"].plain
    assert plain is not None
    loss = method.loss(method.network, given, 0.5)
    online, target = method.backbone()(view), method.target(plain)
    expected = reference(online, target.detach(), given.ids.tolist(), **mining)
    torch.testing.assert_close(loss, expected)
    parameters = list(method.backbone().parameters())
    assert {id(each) for each in parameters} == {id(each) for each in method.network.parameters()}
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_target_starts_as_a_copy_that_takes_no_gradient() -> None:
    method = hnssl()
    for target, online in zip(method.target.parameters(), method.network.parameters(), strict=True):
        assert torch.equal(target, online)
        assert target.data_ptr() != online.data_ptr()
        assert not target.requires_grad


@pytest.mark.parametrize("momentum", [1.0, 0.999, 0.5, 0.0])
def test_the_target_follows_the_online_encoder(momentum: float) -> None:
    """The momentum is the share of the target that stays: 1 never moves it, 0 copies the online encoder."""
    method = hnssl()
    method.momentum = momentum
    turn(method)
    before = [each.clone() for each in method.target.parameters()]
    online = [each.clone() for each in method.backbone().parameters()]
    method.after_step()
    for old, leader, target in zip(before, online, method.target.parameters(), strict=True):
        torch.testing.assert_close(target, momentum * old + (1 - momentum) * leader)
    for old, leader in zip(online, method.backbone().parameters(), strict=True):
        assert torch.equal(old, leader)


def test_gradients_do_not_train_the_target() -> None:
    training = Training("hnssl", "none")
    method = training.method
    assert isinstance(method, HNSSL)
    method.momentum = 1.0
    before = [each.clone() for each in method.target.parameters()]
    training.step(0)
    assert all(torch.equal(a, b) for a, b in zip(before, method.target.parameters(), strict=True))


def test_labels_are_looked_up_by_row() -> None:
    scores = []
    for shift in (0, 1000):
        method = hnssl()
        seen: list[Observation] = []
        for part in method.losses().values():
            part.observer = seen.append
        whole = batch(0, method)
        method.loss(method.network, Batch(whole.ids + shift, whole.inputs, whole.rows), 0.5)
        scores.append([observation.score(LABELS) for observation in seen])
    assert scores[0] == scores[1]
    assert 0 <= scores[0][0]["hard_same_label"] <= 1


def test_wrong_arguments_get_one_sentence() -> None:
    for momentum in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"momentum must be in \[0, 1\]"):
            HNSSL(headless(), HardPairs(), momentum)
    with pytest.raises(ValueError, match="give one of them"):
        HardPairs(top_k=1, quantile=0.1)


def test_the_loop_hands_over_a_view_and_the_plain_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Batch] = []
    original = HNSSL.loss

    def spy(self: HNSSL, network: Any, batch: Batch, progress: float) -> Tensor:
        seen.append(batch)
        return original(self, network, batch, progress)

    monkeypatch.setattr(HNSSL, "loss", spy)
    config, _ = parse([*SHAPES, "--epochs", "1", "--out", str(tmp_path / "run")])
    folder = run_training(config).folder
    data = build_data(config["data"])
    inputs = seen[0]["image"]
    (view,) = inputs.views
    plain = plain_view(build_method(config, data), data.image_size)(data.inputs(seen[0].rows)["image"])
    assert inputs.plain is not None
    assert torch.equal(inputs.plain, plain)
    assert not torch.equal(view, plain)
    epoch = read_records(folder)[-1]
    assert epoch["kept_per_anchor"] == 1
    assert 0 <= epoch["hard_same_label"] <= 1
