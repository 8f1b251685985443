"""Temperatures that are fixed, scheduled, learned for all or learned for every sample."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import FNC, HCL, Debiased, GlobalContrastive, InfoNCE, Oracle, Temperature
from antipodes.schedules import linear

B = 6


def views(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    z1, z2 = torch.randn(2, B, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return z1.requires_grad_(), z2.requires_grad_()


@pytest.mark.parametrize("negatives", [None, FNC(0.2), Debiased(0.1), HCL(0.1, 0.7)], ids=str)
def test_every_form_of_a_number_is_the_number(negatives: Any) -> None:
    z1, z2 = views()
    expected = InfoNCE(0.2, negatives)(z1, z2, torch.arange(B))
    forms = [
        Temperature(0.2),
        Temperature(schedule=linear(0.3, 0.1)),
        Temperature(0.2, learnable=True).double(),
        Temperature(0.2, per_sample=B).double(),
        Temperature(0.2, learnable=True, form="linear").double(),
    ]
    for temperature in forms:
        loss = InfoNCE(temperature, negatives)(z1, z2, torch.arange(B), progress=0.5)
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", ["log", "linear"])
@pytest.mark.parametrize("treatment", ["eliminate", "attract"])
def test_gradient_by_differences(form: Any, treatment: Any) -> None:
    z1, z2 = views()
    temperature = Temperature(0.2, learnable=True, form=form).double()
    loss_fn = InfoNCE(temperature, Oracle(torch.arange(B) // 2), treatment)
    assert temperature.parameter is not None
    parameter = temperature.parameter
    (gradient,) = torch.autograd.grad(loss_fn(z1, z2, torch.arange(B)), parameter)
    losses = []
    for change in (-1e-6, 1e-6):
        with torch.no_grad():
            parameter += change
            losses.append(loss_fn(z1, z2, torch.arange(B)).item())
            parameter -= change
    assert gradient.item() == pytest.approx((losses[1] - losses[0]) / 2e-6, rel=1e-5)


def test_a_temperature_of_every_sample_gets_its_own_gradient() -> None:
    z1, z2 = views()
    temperature = Temperature(0.2, per_sample=10).double()
    ids = torch.tensor([1, 3, 5, 6, 7, 9])
    each = InfoNCE(temperature, reduction="none")(z1, z2, ids)
    assert temperature.parameter is not None
    (gradient,) = torch.autograd.grad(each[0], temperature.parameter)
    assert gradient.nonzero().flatten().tolist() == [1]
    with pytest.raises(ValueError, match="ids are missing"):
        InfoNCE(temperature)(z1, z2)
    with pytest.raises(ValueError, match=r"ids must be in 0\.\.9"):
        InfoNCE(temperature)(z1, z2, ids + 1)


def test_the_floor_holds_and_can_be_left_again() -> None:
    z1, z2 = views(torch.float32)
    temperature = Temperature(0.02, learnable=True, floor=0.01)
    loss_fn = InfoNCE(temperature)
    optimizer = torch.optim.SGD([temperature.parameter_group(lr=0.1)])
    assert optimizer.param_groups[0]["weight_decay"] == 0
    with torch.no_grad():
        temperature.parameter.fill_(math.log(1e-4))  # type: ignore[union-attr]
    loss_fn(z1, z2, torch.arange(B)).backward()
    assert loss_fn.stats["temperature"] == pytest.approx(0.01)
    assert temperature.parameter is not None
    assert temperature.parameter.grad is not None
    assert temperature.parameter.grad.item() < 0  # random views: warmer would be better
    optimizer.step()
    loss_fn(z1, z2, torch.arange(B))
    assert loss_fn.stats["temperature"] > 0.01


def test_fastclip_learns_slower_below_three_hundredths() -> None:
    assert Temperature(0.07, learnable=True).learning_rate(2e-4) == 2e-4
    assert Temperature(0.029, learnable=True).learning_rate(2e-4) == pytest.approx(2e-4 / 3)


def test_more_rho_means_a_lower_temperature() -> None:
    gradients = []
    for rho in (0.0, 6.5):
        temperature = Temperature(0.1, learnable=True).double()
        loss = GlobalContrastive(B, temperature, rho=rho)(*views(), torch.arange(B))
        assert temperature.parameter is not None
        gradients.append(torch.autograd.grad(loss, temperature.parameter)[0].item())
    assert gradients[1] == pytest.approx(gradients[0] + 6.5 * 0.1)  # d tau / d log tau = tau


def test_a_schedule_asks_for_progress() -> None:
    loss_fn = InfoNCE(Temperature(schedule=linear(0.3, 0.1)))
    with pytest.raises(ValueError, match="give progress="):
        loss_fn(*views())
    assert loss_fn(*views(), progress=1.0) == InfoNCE(0.1)(*views())


def test_refusals() -> None:
    for arguments, sentence in (
        ({"value": 0.0}, "temperature must be above 0"),
        ({"value": 0.1, "floor": 0.2}, "floor must be above 0 and at most the value"),
        ({"per_sample": 0}, "per_sample must be"),
        ({"form": "square"}, "form must be one of log, linear"),
        ({"learnable": True, "schedule": linear(0.3, 0.1)}, "follows a schedule or is learned, not both"),
        ({"schedule": linear(0.3, 0.0)}, "must stay above 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Temperature(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one temperature for all"):
        InfoNCE(Temperature(0.1, per_sample=B), FNC(0.2), "refine")(*views(), torch.arange(B))
