"""The layers of a network in the order of their depth, and learning rates that fall towards its input.

What comes first in a network is the most general and should move least when it is trained on (Clark et al. 2020,
Bao et al. 2022): layer i of L learns at `decay ** (L - i)` of the rate, counted from 0 at the input, and what is put on
top at all of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

_CONTAINERS = (nn.Sequential, nn.ModuleList)


def layers(network: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters of a network by layer, from the input to the output.

    Blocks in an `nn.Sequential` or `nn.ModuleList` are a layer each, and so is every other part with a weight matrix,
    in the order in which the network names them. What has only vectors (normalisation) belongs to the layer before it,
    and parameters of the network itself (positions, class tokens) to the first.

    Example:
        >>> [len(layer) for layer in layers(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))]
        [4, 2]
    """
    while isinstance(network, _CONTAINERS) and len(trained := _trained(network)) == 1:  # what is around an encoder
        network = trained[0]
    found: list[list[nn.Parameter]] = []
    for part in _parts(network):
        fresh = [parameter for parameter in part if not any(parameter is other for layer in found for other in layer)]
        if fresh and (not found or any(parameter.ndim > 1 for parameter in fresh)):
            found.append(fresh)
        elif fresh:
            found[-1] += fresh
    loose = [parameter for parameter in _loose(network) if not any(parameter is o for layer in found for o in layer)]
    if loose:
        found = [loose + found[0], *found[1:]] if found else [loose]
    return found


def decayed_rates(network: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """What share of the learning rate every parameter of an encoder gets.

    Args:
        network: The encoder.
        decay: From one layer to the one before it, in (0, 1].

    Raises:
        ValueError: for another decay.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"layer_decay must be in (0, 1], got {decay}: it is the rate of a layer over that of the next")
    found = layers(network)
    return {parameter: decay ** (len(found) - depth) for depth, layer in enumerate(found) for parameter in layer}


def _parts(network: nn.Module) -> Iterator[list[nn.Parameter]]:
    """The parameters of the parts that may be layers, in order."""
    blocks = isinstance(network, _CONTAINERS)
    for child in _trained(network):
        if isinstance(child, _CONTAINERS) or (not blocks and _is_deep(child)):
            yield from _parts(child)
            if loose := _loose(child):
                yield loose
        else:
            yield list(child.parameters())


def _trained(network: nn.Module) -> list[nn.Module]:
    """The parts of a network that have parameters."""
    return [child for child in network.children() if next(child.parameters(), None) is not None]


def _is_deep(module: nn.Module) -> bool:
    """Whether a module has blocks in it."""
    return any(isinstance(part, _CONTAINERS) and len(list(part.children())) > 1 for part in module.modules())


def _loose(network: nn.Module) -> list[nn.Parameter]:
    """The parameters of a network that are in none of its parts."""
    return list(network.parameters(recurse=False))
