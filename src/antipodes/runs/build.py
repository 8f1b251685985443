"""Building of the objects that a configuration names: data, towers, policies, losses and methods."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import and_
from typing import Any, Literal

import torch

from antipodes import encoders
from antipodes.data import Samples
from antipodes.encoders.encoder import Encoder
from antipodes.encoders.heads import Head
from antipodes.guides import RunGuide
from antipodes.losses import Distillation, Loss, Refine, Temperature
from antipodes.methods import Method, Tower, TowerPlan, Towers
from antipodes.negatives import Known, Policy
from antipodes.registry import Kind, find
from antipodes.runs.guides import attach_guide
from antipodes.runs.rows import place_groups

Spec = Mapping[str, Any]
"""A component in a configuration: its name and its constructor arguments."""

GIVEN: dict[Kind, frozenset[str]] = {
    "method": frozenset({"network", "loss_fn", "num_samples", "labels", "identities", "input_ids", "dim", "seed"}),
    "loss": frozenset({"num_samples", "negatives", "treatment", "distill", "seed", "reduction", "total_steps"}),
    "negatives": frozenset({"num_samples", "labels", "seed", "identities"}),
    "guide": frozenset({"data", "method", "num_samples"}),
    "data": frozenset({"split", "dataset"}),
    "encoder": frozenset({"in_channels", "in_features", "model"}),
    "augmentation": frozenset({"size"}),
}
"""Constructor arguments that the run supplies; a configuration does not contain them."""

ENCODERS = {"image": "resnet18-slim", "text": "bag-of-words", "vector": "identity"}
"""The default encoder of a tower, by modality."""


@dataclass(frozen=True)
class Learned:
    """Whether and how the temperature is learned; by default it is fixed.

    Args:
        learnable: Learn one temperature for all pairs, as CLIP does.
        per_sample: Learn one temperature for every sample, as iSogCLR does.
        floor: Smallest value of a learned temperature.
        form: The learned parameter: the logarithm of the temperature (CLIP, SigLIP) or the temperature (FastCLIP).
        rate: Learning rate of the temperature, divided by 3 below 0.03 (FastCLIP uses 2e-4); by default the run's.
    """

    learnable: bool = False
    per_sample: bool = False
    floor: float | None = None
    form: Literal["log", "linear"] = "log"
    rate: float | None = None

    def around(self, value: Any, num_samples: int) -> Any:
        """Return the temperature of a loss: the number itself, or a module that starts there and learns."""
        if not (self.learnable or self.per_sample) or not isinstance(value, (int, float)):
            return value
        return Temperature(
            value, self.learnable, self.floor, per_sample=num_samples if self.per_sample else None, form=self.form
        )


def build_data(spec: Spec) -> Samples:
    """The training split."""
    data: Samples = _call("data", spec, {})
    return data


def build_method(config: Spec, data: Samples) -> Method:
    """Build the method with its towers, loss, policy and guide, for a configuration and its data."""
    method_class: type[Method] = find("method", config["method"]["name"]).target  # type: ignore[assignment]
    plans = method_class.plan(data.modalities)
    plans = {name: _unless_named(plan, name, config) for name, plan in plans.items()}
    parts = {name: _build_encoder(config, name, plan, data) for name, plan in plans.items() if plan.shares is None}
    given: dict[str, Any] = {
        "num_samples": len(data),
        "labels": data.labels,
        "seed": config["seed"],
        "identities": data.samples,
        "input_ids": data.input_ids if "input_ids" in inspect.signature(method_class).parameters else None,
    }
    policy = _build_policy(place_groups(config["negatives"], data), given, data)
    head = Head(**config["head"])
    ranked = policy is not None and policy.needs.order
    built = {name: Tower(encoder, head.build(encoder.num_features, ranked)) for name, encoder in parts.items()}
    towers = {name: built[plan.shares or name] for name, plan in plans.items()}
    loss_fn = _build_loss(config, given, policy, method_class.trains)
    network = Towers(towers, plans)
    freeze(network, config.get("freeze", ()))  # before the method copies any of them
    given |= {"network": network, "loss_fn": loss_fn, "dim": head.dim}
    method: Method = _call("method", config["method"], given)
    method.pixels = {name: config["augmentation"][name] for name in ("mean", "std") if name in config["augmentation"]}
    guide = config.get("guide", {"name": "none"})  # runs of earlier versions have none
    names = {"guide": guide["name"], "negatives": config["negatives"]["name"]}
    attach_guide(
        method, _build_guide(guide, method, data), names, batch_neighbours=config.get("batch_neighbours", 1) > 1
    )
    return method


def with_revisions(config: dict[str, Any], method: Method) -> dict[str, Any]:
    """Return the configuration with the commit of every encoder that came from a hub, which may move on.

    Args:
        config: The configuration of a new run.
        method: The method with its encoders.
    """
    found: dict[str, Any] = {}
    for name in method.network.names():
        origin: tuple[str, dict[str, Any]] = getattr(method.network[name].encoder, "origin", ("", {}))
        found[origin[0]] = origin[1].get("revision")

    def pinned(spec: Spec) -> dict[str, Any]:
        revision = found.get(spec["name"])
        return dict(spec) if revision is None else {**spec, "revision": revision}

    towers = {name: pinned(spec) for name, spec in config.get("encoders", {}).items()}
    return {**config, "encoder": pinned(config["encoder"]), "encoders": towers}


def freeze(network: Towers, towers: Sequence[str]) -> None:
    """Freeze the encoders of these towers: no gradient, and no update of batch statistics.

    Raises:
        ValueError: if the method has no tower of that name.
    """
    for name in towers:
        if name not in network.names():
            raise ValueError(f"there is no tower {name!r} to freeze: the method has {', '.join(network.names())}")
        network[name].freeze()


def policy_names(name: str) -> list[str]:
    """Return the policies that a name joins with +: `ring+glofnd` keeps a pair if both keep it.

    Raises:
        ValueError: if it joins a policy with itself.
    """
    names = name.split("+")
    if twice := next((one for one in names if one and names.count(one) > 1), None):
        raise ValueError(f"negatives {name} names {twice} twice: a policy joined with itself keeps what it kept alone")
    return names


def _unless_named(plan: TowerPlan, tower: str, config: Spec) -> TowerPlan:
    """Give a tower an encoder of its own if the configuration names one for it, or for the tower it would share."""
    named = config.get("encoders", {}).keys()
    return replace(plan, shares=None) if named & {tower, plan.shares} else plan


def _of_data(data: Samples, ids: Mapping[str, torch.Tensor] | None) -> Policy:
    """Build the policy `known` from the data alone: its pairs of queries and documents, or its exact duplicates."""
    if ids is not None:
        return Known.from_pairs(ids["query"], ids["document"])
    return Known(data.groups(), num_samples=len(data))


def _build_policy(spec: Spec, given: Spec, data: Samples) -> Policy | None:
    if spec["name"] == "none":
        return None
    names = policy_names(spec["name"])
    specs = [spec] if len(names) == 1 else [{"name": name, **spec.get(name, {})} for name in names]
    parts: list[Policy] = []
    for part in specs:
        of_data = part["name"] == "known" and part.get("groups") is None and part.get("pairs") is None
        parts.append(_of_data(data, given["input_ids"]) if of_data else _call("negatives", part, given))
    return reduce(and_, parts)


def _build_guide(spec: Spec, method: Method, data: Samples) -> RunGuide | None:
    if spec["name"] == "none":
        return None
    found = _call("guide", spec, {"data": data, "method": method, "num_samples": len(data)})
    # a user's own source serves all towers
    return found if isinstance(found, RunGuide) else RunGuide(dict.fromkeys(method.network.names(), found))


def _build_loss(config: Spec, given: Spec, policy: Policy | None, trains: Sequence[str]) -> Loss:
    name = config["loss"]["name"]
    target = find("loss", name).target
    if name not in trains and not (getattr(target, "general", False) and "info-nce" in trains):
        raise ValueError(
            f"method {config['method']['name']} cannot train the loss {name}: it takes {', '.join(trains)}"
        )
    takes = inspect.signature(target).parameters
    treatment = config["treatment"]
    if policy is not None and "negatives" not in takes:
        raise ValueError(f"loss {name} chooses its negatives itself: leave --negatives out")
    if treatment != "eliminate" and "treatment" not in takes:
        raise ValueError(f"loss {name} chooses itself which pairs it pulls: leave --treatment out")
    if treatment == "refine":
        # runs of earlier versions do not name all of them
        names = (field.name for field in fields(Refine) if f"refine_{field.name}" in config)
        treatment = Refine(**{name: config[f"refine_{name}"] for name in names})
    view = None
    if weight := config.get("distill", 0.0):  # runs of earlier versions do not name it
        if "distill" not in takes:
            raise ValueError(f"loss {name} cannot be trained with distillation: leave --distill out")
        view = Distillation(weight, config["distill_temperature"])
    spec = _with_temperature(config, target, given["num_samples"])
    parts = {"negatives": policy, "treatment": treatment, "distill": view}
    loss_fn: Loss = _call("loss", spec, {**given, **parts})
    return loss_fn


def _with_temperature(config: Spec, target: Any, num_samples: int) -> Spec:
    """Return the loss's specification, with a learned temperature if the run has one."""
    spec: Spec = config["loss"]
    learned = Learned(**config.get("temperature", {}))
    if not (learned.learnable or learned.per_sample):
        return spec
    if isinstance(target, type) and not issubclass(target, Loss):
        raise ValueError(f"loss {spec['name']} has no temperature that can learn: leave --temperature out")
    value = spec.get("temperature", inspect.signature(target).parameters["temperature"].default)
    return {**spec, "temperature": learned.around(value, num_samples)}


def _build_encoder(config: Spec, tower: str, plan: TowerPlan, data: Samples) -> Encoder:
    """Build the encoder of a tower: the one named for it, else the run's if it has the right modality."""
    modality = plan.modality
    spec = config.get("encoders", {}).get(tower)
    if spec is None:
        fits = getattr(find("encoder", config["encoder"]["name"]).target, "modality", "image") == modality
        spec = config["encoder"] if fits else {"name": ENCODERS[modality]}
    arguments = {key: value for key, value in spec.items() if key != "name"}
    takes = inspect.signature(find("encoder", spec["name"]).target).parameters
    if modality == "image":
        if "in_channels" in takes:
            arguments["in_channels"] = plan.channels
        elif plan.channels != 3:
            raise ValueError(
                f"encoder {spec['name']} takes no in_channels, and the method needs one for {plan.channels}"
            )
        return encoders.create(spec["name"], **arguments, probe_size=data.image_size)
    if "in_features" in takes:
        raw = data.inputs(torch.tensor([0]))[plan.input]
        arguments["in_features"] = raw.shape[1]  # type: ignore[union-attr]
    return encoders.create(spec["name"], **arguments)


def _call(kind: Kind, spec: Spec, given: Spec) -> Any:
    component = find(kind, spec["name"])
    takes = inspect.signature(component.target).parameters
    supplied = {key: value for key, value in given.items() if key in takes}
    if "labels" in supplied and supplied["labels"] is None:
        raise ValueError(f"{kind} {spec['name']} learns from labels, and this dataset has none")
    arguments = {**component.preset, **{key: value for key, value in spec.items() if key != "name"}, **supplied}
    try:
        inspect.signature(component.target).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"{kind} {spec['name']!r} cannot be built: {error}; it takes {', '.join(takes)}") from error
    return component.target(**arguments)
