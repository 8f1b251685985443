"""Layers by depth, against groups made by hand for every kind of encoder."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from antipodes import encoders
from antipodes.encoders.layers import decayed_rates, layers
from antipodes.training.optimizers import optimizer, parameter_groups


def names(network: nn.Module) -> list[list[str]]:
    """The first parts of the names of the parameters of every layer."""
    known = {id(parameter): name for name, parameter in network.named_parameters()}
    return [[known[id(parameter)] for parameter in layer] for layer in layers(network)]


def by_prefix(network: nn.Module, *prefixes: tuple[str, ...]) -> list[list[str]]:
    """By hand: the parameters whose names begin so."""
    every = [name for name, _ in network.named_parameters()]
    return [sorted(name for name in every if name.startswith(several)) for several in prefixes]


HAND = {
    "resnet18": [("conv1.", "bn1."), *((f"layer{s}.{b}.",) for s in range(1, 5) for b in range(2))],
    "resnet8-slim": [("conv1.", "bn1."), *((f"layer{s}.0.",) for s in range(1, 4))],
    "efficientnet-lite0": [
        ("_conv_stem.", "_bn0."), *((f"_blocks.{b}.",) for b in range(16)), ("_conv_head.", "_bn1."),
    ],
    "text-transformer": [
        ("positional_embedding", "token_embedding."),
        ("transformer.resblocks.0.",), ("transformer.resblocks.1.",), ("transformer.resblocks.2.", "ln_final."),
    ],
    "bag-of-words": [("embedding.",)],
}  # fmt: skip


def test_equal_to_groups_by_hand() -> None:
    for name in HAND:
        options = {"text-transformer": {"layers": 3}}.get(name, {})
        with encoders.without_pretrained():
            encoder = encoders.create(name, **options)
        if hasattr(encoder, "fit_tokenizer") and not list(encoder.parameters()):
            encoder.fit_tokenizer(["a few words", "some more"])
        found = [sorted(layer) for layer in names(encoder)]
        assert found == by_prefix(encoder, *HAND[name])
        every = sorted(name for layer in found for name in layer)
        assert every == sorted(name for name, _ in encoder.named_parameters())  # each once, none lost


def test_vectors_and_wrapped_networks() -> None:
    mlp = encoders.create("mlp", in_features=6)
    assert sum(map(len, names(mlp))) == len(list(mlp.parameters()))
    assert len(layers(mlp)) == len([module for module in mlp.modules() if isinstance(module, nn.Linear)])
    resnet = encoders.create("resnet8-slim")
    assert len(layers(nn.Sequential(nn.Identity(), resnet))) == len(layers(resnet))
    assert layers(encoders.create("identity", in_features=6)) == []


def test_rates_and_groups() -> None:
    encoder = encoders.create("resnet8-slim")
    rates = decayed_rates(encoder, 0.5)
    assert rates[encoder.conv1.weight] == rates[encoder.bn1.bias] == 0.5**4
    assert rates[encoder.layer3[0].conv1.weight] == 0.5
    head = nn.Linear(4, 2)
    groups = parameter_groups(nn.Sequential(encoder, head), 0.1, shares=rates)
    found = {(group.get("share", 1.0), group["weight_decay"]) for group in groups}
    assert found == {(0.5**power, decay) for power in range(5) for decay in (0.1, 0.0)}
    assert sum(len(group["params"]) for group in groups) == len([*encoder.parameters(), *head.parameters()])
    plain = optimizer("sgd", encoder, 1.0, weight_decay=0.1).param_groups
    assert [len(group["params"]) for group in plain] == [len(g["params"]) for g in parameter_groups(encoder, 0.1)]
    assert "share" not in plain[0]
    with pytest.raises(ValueError, match="layer_decay must be in"):
        decayed_rates(encoder, 1.5)


def test_a_step_moves_by_the_share() -> None:
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    before = [parameter.detach().clone() for parameter in network.parameters()]
    steps = optimizer("sgd", network, 1.0, momentum=0.0, shares=decayed_rates(network, 0.1))
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    steps.step()
    moved = [(old - new).mean().item() for old, new in zip(before, network.parameters(), strict=True)]
    assert moved == pytest.approx([0.01, 0.1])
