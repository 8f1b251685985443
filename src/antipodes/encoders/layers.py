"""The layers of a network in order of depth, and learning rates that decrease towards the input.

The first layers are the most general and should change least in fine-tuning (Clark et al. 2020, Bao et al. 2022). Layer
i of L, counted from 0 at the input, learns at `decay ** (L - i)` of the learning rate; a head on top learns at the full
rate.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

_CONTAINERS = (nn.Sequential, nn.ModuleList)


def layers(network: nn.Module) -> list[list[nn.Parameter]]:
    """Return the parameters of a network by layer, from the input to the output.

    1. Each block in an `nn.Sequential` or `nn.ModuleList` is a layer, and so is each other module with a weight matrix,
       in the order of registration.
    2. A module with vectors only (normalisation) belongs to the layer before it.
    3. Parameters of the network itself (positions, class tokens) belong to the first layer.

    Example:
        >>> [len(layer) for layer in layers(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))]
        [4, 2]
    """
    while isinstance(network, _CONTAINERS) and len(trained := _trained(network)) == 1:  # unwrap
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
    """Return the factor on the learning rate of each parameter of an encoder.

    Args:
        network: The encoder.
        decay: The ratio of a layer's learning rate to that of the next layer, in (0, 1].

    Raises:
        ValueError: if decay is out of range.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"layer_decay must be in (0, 1], got {decay}: it is the rate of a layer over that of the next")
    found = layers(network)
    return {parameter: decay ** (len(found) - depth) for depth, layer in enumerate(found) for parameter in layer}


def _parts(network: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters of each module that may be a layer, in order."""
    blocks = isinstance(network, _CONTAINERS)
    for child in _trained(network):
        if isinstance(child, _CONTAINERS) or (not blocks and _is_deep(child)):
            yield from _parts(child)
            if loose := _loose(child):
                yield loose
        else:
            yield list(child.parameters())


def _trained(network: nn.Module) -> list[nn.Module]:
    """Return the children of a network that have parameters."""
    return [child for child in network.children() if next(child.parameters(), None) is not None]


def _is_deep(module: nn.Module) -> bool:
    """Return True if a module contains several blocks."""
    return any(isinstance(part, _CONTAINERS) and len(list(part.children())) > 1 for part in module.modules())


def _loose(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that a network holds itself, outside its children."""
    return list(network.parameters(recurse=False))
