"""From names in a configuration to objects: methods, data, encoders, augmentations, policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor

from antipodes import encoders
from antipodes.data import ImageDataset
from antipodes.data.augment import Augmentation, multi_crop
from antipodes.encoders.encoder import Encoder
from antipodes.methods import Method
from antipodes.negatives import Policy
from antipodes.objectives import Refine
from antipodes.registry import Kind, find

Spec = dict[str, Any]
"""A component in a configuration: its name and its constructor's arguments."""

GIVEN: dict[Kind, frozenset[str]] = {
    "method": frozenset(
        {"encoder", "encoder_l", "encoder_ab", "num_samples", "labels", "negatives", "treatment", "seed"}
    ),
    "negatives": frozenset({"num_samples", "labels", "seed"}),
    "data": frozenset({"split"}),
    "encoder": frozenset({"in_channels", "model"}),
    "augmentation": frozenset({"size"}),
}
"""Constructor arguments that the run itself supplies, so that nobody has to write them down."""


def build_data(spec: Spec) -> ImageDataset:
    """The training split."""
    data: ImageDataset = _call("data", spec, {})
    return data


def build_augmentation(spec: Spec, size: int, normalised: bool) -> Augmentation:
    """The recipe for views of this size; a method that wants RGB in [0, 1] gets it unnormalised."""
    given: Spec = {"size": size} if normalised else {"size": size, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    recipe: Augmentation = _call("augmentation", spec, given)
    return recipe


def build_views(spec: Spec, size: int, method: Method) -> list[Augmentation]:
    """One recipe per view that the method asks for; its smaller crops show smaller parts, by CLSA's rule."""
    views = [build_augmentation(spec, size, method.normalised)] * (method.views + method.supports)
    if not method.crops:
        return views
    if not all(1 <= crop <= size for crop in method.crops):
        raise ValueError(f"crops must be between 1 and the images' size of {size}, got {list(method.crops)}")
    return [*views, *multi_crop(method.crop_recipe, (size, *method.crops)).views[1:]]


def plain_view(method: Method, size: int) -> Callable[[Tensor], Tensor]:
    """Images (B, 3, H, W) uint8 as the method's encoders see them when nothing is random."""
    recipe = build_augmentation({"name": "plain"}, size, method.normalised)
    return lambda images: recipe(images, torch.Generator())


def build_method(config: Spec, data: ImageDataset) -> Method:
    """The method with its encoders and its policy, as the configuration and the data ask."""
    method_class = find("method", config["method"]["name"]).target
    parts = [_build_encoder(config["encoder"], channels, data.image_size) for channels in method_class.channels]  # type: ignore[attr-defined]
    encoder_names = ["encoder"] if len(parts) == 1 else ["encoder_l", "encoder_ab"]
    given: dict[str, Any] = dict(zip(encoder_names, parts, strict=True))
    given |= {"num_samples": len(data), "labels": data.labels, "treatment": config["treatment"], "seed": config["seed"]}
    if config["treatment"] == "refine":
        given["treatment"] = Refine(config["refine_mu"], config["refine_tau_prime"])
    if config["negatives"]["name"] != "none":
        given["negatives"] = _build_policy(config["negatives"], given)
    method: Method = _call("method", config["method"], given)
    return method


def policy_names(name: str) -> list[str]:
    """The policies that a name joins: `ring+glofnd` keeps what both keep."""
    return name.split("+")


def _build_policy(spec: Spec, given: dict[str, Any]) -> Policy:
    names = policy_names(spec["name"])
    if len(names) == 1:
        policy: Policy = _call("negatives", spec, given)
        return policy
    parts: list[Policy] = [_call("negatives", {"name": name, **spec.get(name, {})}, given) for name in names]
    return reduce(and_, parts)


def _build_encoder(spec: Spec, channels: int, image_size: int) -> Encoder:
    arguments = {key: value for key, value in spec.items() if key != "name"}
    if "in_channels" in inspect.signature(find("encoder", spec["name"]).target).parameters:
        arguments["in_channels"] = channels
    elif channels != 3:
        raise ValueError(f"encoder {spec['name']} takes no in_channels, and the method needs one for {channels}")
    return encoders.create(spec["name"], **arguments, probe_size=image_size)


def _call(kind: Kind, spec: Spec, given: dict[str, Any]) -> Any:
    component = find(kind, spec["name"])
    takes = inspect.signature(component.target).parameters
    supplied = {key: value for key, value in given.items() if key in takes}
    if "labels" in supplied and supplied["labels"] is None:
        raise ValueError(f"{kind} {spec['name']} learns from labels, and this dataset has none")
    if given.get("negatives") is not None and "negatives" not in takes:
        raise ValueError(f"{kind} {spec['name']} decides about its negatives itself: leave --negatives out")
    if given.get("treatment", "eliminate") != "eliminate" and kind == "method" and "treatment" not in takes:
        raise ValueError(f"method {spec['name']} decides itself whom it pulls: leave --treatment out")
    arguments = {**component.preset, **{key: value for key, value in spec.items() if key != "name"}, **supplied}
    try:
        inspect.signature(component.target).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"{kind} {spec['name']!r} cannot be built: {error}; it takes {', '.join(takes)}") from error
    return component.target(**arguments)
