import copy
import math

import pytest
import torch
from torch import nn

from antipodes.training.optimizers import LARS, optimizer, parameter_groups


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))


def lars_by_hand(weights, gradients, velocity, learning_rate, momentum, weight_decay, trust, adapt):
    """One step of LARS on lists of numbers, in plain Python."""
    weight_norm = math.sqrt(sum(w * w for w in weights))
    gradient_norm = math.sqrt(sum(g * g for g in gradients))
    local = 1.0
    if adapt and weight_norm > 0 and gradient_norm > 0:
        local = trust * weight_norm / (gradient_norm + weight_decay * weight_norm)
    for position, (w, g) in enumerate(zip(weights, gradients, strict=True)):
        velocity[position] = momentum * velocity[position] + learning_rate * local * (g + weight_decay * w)
    return [w - v for w, v in zip(weights, velocity, strict=True)]


def test_lars_is_the_papers_formula():
    module = network().double()
    # A weight that starts at zero, and one whose gradient is zero, are moved without adaptation.
    module.zero = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    module.still = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    settings = {"momentum": 0.8, "weight_decay": 0.1, "trust": 0.02}
    lars = optimizer("lars", module, 0.5, **settings)
    generator = torch.Generator().manual_seed(1)
    expected = {name: parameter.flatten().tolist() for name, parameter in module.named_parameters()}
    velocities = {name: [0.0] * len(values) for name, values in expected.items()}
    for learning_rate in (0.5, 0.3, 0.1):
        for group in lars.param_groups:
            group["lr"] = learning_rate
        for name, parameter in module.named_parameters():
            parameter.grad = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            if name == "still":
                parameter.grad.zero_()
            matrix = parameter.ndim > 1
            expected[name] = lars_by_hand(
                expected[name],
                parameter.grad.flatten().tolist(),
                velocities[name],
                learning_rate,
                settings["momentum"],
                settings["weight_decay"] if matrix else 0.0,
                settings["trust"],
                adapt=matrix,
            )
        lars.step()
        for name, parameter in module.named_parameters():
            assert parameter.flatten().tolist() == pytest.approx(expected[name], rel=1e-12, abs=1e-15), name


def test_lars_steps_do_not_depend_on_the_scale_of_the_gradient():
    steps = []
    for scale in (1.0, 1000.0):
        parameter = nn.Parameter(torch.eye(3))
        lars = LARS([parameter], lr=1.0, momentum=0.0)
        parameter.grad = scale * torch.ones(3, 3)
        lars.step()
        steps.append(torch.eye(3) - parameter.detach())
    torch.testing.assert_close(steps[0], steps[1])
    # |step| = trust * |w|
    assert steps[0].norm().item() == pytest.approx(0.001 * math.sqrt(3), rel=1e-4)


def test_lars_leaves_parameters_without_gradient_and_runs_a_closure():
    module = nn.Linear(2, 2, bias=False)
    idle = nn.Parameter(torch.ones(2, 2))
    lars = LARS([module.weight, idle], lr=1.0)

    def closure():
        loss = module(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    assert lars.step(closure).item() > 0
    assert torch.equal(idle, torch.ones(2, 2))
    assert idle not in lars.state


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars"])
def test_saving_and_loading_continues_bit_equal(name):
    def train(module, chosen, steps):
        for number in steps:
            generator = torch.Generator().manual_seed(number)
            chosen.zero_grad()
            module(torch.randn(4, 2, 4, 4, generator=generator)).square().mean().backward()
            chosen.step()

    module = network()
    chosen = optimizer(name, module, 0.1, weight_decay=0.01)
    train(module, chosen, range(3))
    other = copy.deepcopy(module)
    resumed = optimizer(name, other, 0.7)
    resumed.load_state_dict(copy.deepcopy(chosen.state_dict()))
    train(module, chosen, range(3, 6))
    train(other, resumed, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars"])
def test_training_reduces_a_loss(name):
    module = network()
    chosen = optimizer(name, module, 0.01 if name == "adamw" else 0.1, trust=0.02)
    images = torch.randn(16, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(30):
        chosen.zero_grad()
        loss = (module(images) - images.mean(dim=(2, 3))).square().mean()
        loss.backward()
        chosen.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_vectors_are_in_a_group_without_weight_decay():
    module = network()
    module[0].weight.requires_grad_(False)
    matrices, vectors = parameter_groups(module, 0.1)
    assert [id(parameter) for parameter in matrices["params"]] == [id(module[3].weight)]
    assert matrices["weight_decay"] == 0.1
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    assert [names[id(parameter)] for parameter in vectors["params"]] == ["0.bias", "1.weight", "1.bias", "3.bias"]
    assert vectors["weight_decay"] == 0.0
    assert [group["weight_decay"] for group in parameter_groups(module, 0.1, decay_vectors=True)] == [0.1, 0.1]


def test_parameters_may_come_in_a_list_even_twice():
    weight = nn.Parameter(torch.ones(2, 2))
    groups = parameter_groups(iter([weight, weight]), 0.1)
    assert [len(group["params"]) for group in groups] == [1]


def test_weight_decay_moves_matrices_only():
    module = network()
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    sgd = optimizer("sgd", module, 0.5, weight_decay=0.2, momentum=0.0)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    sgd.step()
    for name, parameter in module.named_parameters():
        factor = 0.9 if parameter.ndim > 1 else 1.0
        torch.testing.assert_close(parameter.detach(), factor * before[name])


def test_settings_reach_the_optimizer():
    module = network()
    assert optimizer("sgd", module, 0.1, momentum=0.7, nesterov=True).param_groups[0]["nesterov"] is True
    assert optimizer("sgd", module, 0.1, momentum=0.7).param_groups[1]["momentum"] == 0.7
    assert optimizer("adamw", module, 0.1, betas=(0.8, 0.98)).param_groups[0]["betas"] == (0.8, 0.98)
    lars = optimizer("lars", module, 0.1, trust=0.02)
    assert (lars.param_groups[0]["trust"], lars.param_groups[0]["lr"]) == (0.02, 0.1)


@pytest.mark.parametrize(
    ("name", "learning_rate", "settings", "message"),
    [
        ("adam", 0.1, {}, "unknown optimizer 'adam': choose one of sgd, adamw, lars"),
        ("sgd", -0.1, {}, "must be at least 0, got -0.1 and 0.0"),
        ("sgd", math.nan, {}, "must be at least 0"),
        ("lars", 0.1, {"weight_decay": -1.0}, "must be at least 0"),
        ("lars", 0.1, {"momentum": 1.0}, r"momentum must be in \[0, 1\)"),
        ("lars", 0.1, {"trust": 0.0}, "trust must be above 0"),
    ],
)
def test_impossible_settings_are_refused(name, learning_rate, settings, message):
    with pytest.raises(ValueError, match=message):
        optimizer(name, network(), learning_rate, **settings)


def test_nothing_to_optimise_is_refused():
    with pytest.raises(ValueError, match="nothing to optimise"):
        optimizer("sgd", network().requires_grad_(False), 0.1)
