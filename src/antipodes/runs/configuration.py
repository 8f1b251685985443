"""The options of a run: from names and values to one typed `Configuration`, for the command line and for functions.

1. Options come as a mapping (a YAML file, keywords of `antipodes.train`) and, on the command line, as arguments.
2. The names among them choose the components, and each component's constructor says which options there are.
3. Defaults of the method and of a preset are filled in, every value is checked against its type, paths become absolute.
"""

from __future__ import annotations

import inspect
import json
from argparse import SUPPRESS
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast, get_args

import jsonargparse

from antipodes.encoders.heads import Head
from antipodes.parsing import ArgumentParser
from antipodes.registry import ELSE, NAMES, Kind, choices, find, find_preset, hub_layout, merge_options
from antipodes.runs.build import GIVEN, Learned, policy_names
from antipodes.runs.folder import Run, absolute
from antipodes.runs.settings import Settings
from antipodes.runs.views import Recipes

DEFAULTS: dict[Kind, str] = {
    "method": "simclr",
    "loss": "info-nce",
    "negatives": "none",
    "guide": "none",
    "data": "shapes",
    "encoder": "resnet18-slim",
    "augmentation": "simclr",
}
CHOICES: dict[Kind, str] = {kind: f"{', '.join(names)}, {ELSE[kind]}" for kind, names in NAMES.items()} | {
    "negatives": f"none, {', '.join(NAMES['negatives'])}, several joined by +, or {ELSE['negatives']}",
    "guide": f"none, {', '.join(NAMES['guide'])}, a .npy, .npz or .safetensors file, or {ELSE['guide']}",
    "encoder": choices("encoder"),
    "augmentation": f"{', '.join(NAMES['augmentation'])}; by default what the method's paper uses",
}
RENAMED = {
    "objective": "loss",
    "together": "batch_neighbours",
    "guide_view": "distill",
    "guide_view_temperature": "distill_temperature",
}
"""Options of earlier versions, with those that replaced them."""
MAY_CHANGE = ("devices", "threads", "workers", "log_every", "snapshot_every", "tensorboard", "wandb")
"""Options that may change when a run is resumed: they do not change what is learned. (With batch normalisation the
number of devices does, and the run says so.)"""
TABLES = (".npy", ".npz", ".safetensors")
"""The files that are the guide `table` when they are named as a guide."""


@dataclass(frozen=True)
class Configuration(Mapping[str, Any]):
    """All options of a run, typed. As a mapping it holds what config.yaml holds.

    Args:
        settings: how the run is trained.
        components: kind (`method`, `loss`, `negatives`, `guide`, `data`, `encoder`, `augmentation`) -> its name and
            arguments.
        encoders: tower -> name and arguments of its encoder, for towers that have one of their own.
        head: arguments of the projection head.
        temperature: how the temperature is learned.
    """

    settings: Settings
    components: Mapping[Kind, Mapping[str, Any]]
    encoders: Mapping[str, Mapping[str, Any]]
    head: Mapping[str, Any]
    temperature: Mapping[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Configuration:
        """Return the configuration of complete options, such as those of a run's config.yaml."""
        settings = Settings(**{field.name: options[field.name] for field in fields(Settings)})
        components = {kind: options[kind] for kind in get_args(Kind)}
        return cls(settings, components, options.get("encoders") or {}, options["head"], options["temperature"])

    def __getitem__(self, name: str) -> Any:
        if name in self.components:
            return self.components[cast(Kind, name)]
        if name in ("encoders", "head", "temperature"):
            return getattr(self, name)
        if name in Settings.__dataclass_fields__:
            return getattr(self.settings, name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from Settings.__dataclass_fields__
        yield from ("head", "temperature")
        yield from self.components
        yield "encoders"

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Options:
    """The options that a run may have, given the names of its components.

    Args:
        given: options as a mapping, components as mappings with a name (see `checked_options`).
        names: components that the command line names.
        towers: encoders of single towers that the command line names.
        preset: the preset that the command line names.
        parser: takes the options; one without arguments of its own if not given.

    Attributes:
        names: the component of every kind.
        towers: the encoder of every tower that has one of its own.
        parser: with an argument for every option.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        names: Mapping[Kind, str] | None = None,
        towers: Mapping[str, str] | None = None,
        preset: str | None = None,
        parser: ArgumentParser | None = None,
    ) -> None:
        preset = preset or given.get("preset")
        chosen: Mapping[str, Any] = {} if preset is None else find_preset(preset).run
        method = _names(given, names or {}, chosen)["method"]
        run = merge_options(find("method", method).run, chosen)
        self.names = _names(given, names or {}, run)
        own = {tower: spec["name"] for tower, spec in (given.get("encoders") or {}).items()}
        self.towers: dict[str, str] = {**run.get("encoders", {}), **own, **(towers or {})}
        self.parser = parser or ArgumentParser(prog="antipodes train", allow_abbrev=False)
        self._given = {name: value for name, value in given.items() if name != "preset"}
        for kind, name in self.names.items():
            if (self._given.get(kind) or {}).get("name", name) != name:  # the command line replaces the component
                self._given[kind] = {"name": name}
        for tower, name in self.towers.items():
            if own.get(tower, name) != name:
                self._given["encoders"] = {**self._given["encoders"], tower: {"name": name}}
        self._add_options()
        self.parser.set_defaults(_defaults(run, self.names))

    def _add_options(self) -> None:
        """Add every option of the settings and of the chosen components to the parser."""
        parser = self.parser
        parser.add_class_arguments(Settings, as_group=True)
        for options, key in ((Head, "head"), (Learned, "temperature")):
            parser.add_class_arguments(options, key, as_group=True)
            _hide(parser, f"--{key}")
        for kind in get_args(Kind):
            name = self.names[kind]
            parser.add_argument(f"--{kind}.name", type=str, default=name, metavar="NAME", help=CHOICES[kind])
            parts = policy_names(name) if kind == "negatives" else [name]
            for part in parts:
                if part != "none":
                    _add_component(parser, kind, part, kind if len(parts) == 1 else f"{kind}.{part}")
        parser.add_class_arguments(Recipes, "augmentation", as_group=False)
        for tower, name in self.towers.items():
            key = f"encoders.{tower}"
            parser.add_argument(f"--{key}.name", type=str, default=name, metavar="NAME", help=CHOICES["encoder"])
            _add_component(parser, "encoder", name, key)

    def resolve(self, arguments: list[str] | None = None) -> Configuration:
        """Check every value against its type and fill in the defaults.

        Args:
            arguments: of the command line, with options in full (`--method.name moco`); they win over `given`.

        Raises:
            ValueError: if an option is unknown, or its value does not fit.
        """
        # options without a default may be among the arguments: parse_args refuses a call that has them nowhere
        parsed = self.parser.parse_object(self._given, _skip_required=arguments is not None)
        if arguments is not None:
            parsed = self.parser.parse_args(arguments, namespace=parsed)
        found: dict[str, Any] = parsed.as_dict()
        found["data"]["name"] = absolute(found["data"]["name"])
        for spec in (found["encoder"], *(found.get("encoders") or {}).values()):
            if hub_layout(Path(spec["name"]).expanduser()) is not None:
                spec["name"] = str(Path(spec["name"]).expanduser().absolute())
        if found["guide"].get("path") is not None:
            found["guide"]["path"] = str(Path(found["guide"]["path"]).expanduser().absolute())
        if found["init"] is not None and Path(found["init"]).expanduser().exists():
            found["init"] = str(Path(found["init"]).expanduser().absolute())
        return Configuration.of(found)


def resolve(options: Mapping[str, Any]) -> Configuration:
    """Resolve the options of a run, nested or by dotted names, into its configuration.

    Raises:
        ValueError: if an option is unknown, or its value does not fit.

    Example:
        >>> found = resolve({"negatives": "glofnd", "negatives.alpha": 0.1, "epochs": 3})
        >>> found.components["negatives"]["alpha"], found.settings.epochs
        (0.1, 3)
    """
    return Options(checked_options(nested(options), "options")).resolve()


def refuse_differences(run: Run, asked: Configuration, before: Configuration) -> None:
    """Refuse options given with --resume that differ from those of the run; more epochs and moved data are allowed.

    Raises:
        ValueError: with the first option that differs.
    """
    epochs = before.settings.epochs
    if asked.settings.epochs < epochs:
        raise ValueError(
            f"{run.folder} was started with epochs {epochs}, so it cannot be resumed with {asked.settings.epochs}: "
            "it may be more, not fewer"
        )
    if difference := _first_difference(_fixed(asked), _fixed(before)):
        name, new, old = difference
        raise ValueError(
            f"{run.folder} was started with {name} {old}, so it cannot be resumed with {new}: start a new run"
        )


def resolve_saved(run: Run) -> Configuration:
    """Return the configuration of a run as its config.yaml has it, with the defaults of what it does not name.

    Raises:
        ValueError: if a part of it is missing, unknown or of the wrong type; the message names the file.
    """
    file, saved = run.config_file, checked_options(run.config, str(run.config_file))
    if nameless := [kind for kind in get_args(Kind) if kind in saved and "name" not in saved[kind]]:
        raise ValueError(f"{file} is damaged: {nameless[0]} has no name")
    try:
        return Options(saved).resolve()
    except ValueError as error:
        raise ValueError(f"{file} is damaged, or of another version of antipodes: {error}") from error


def resolve_resumed(
    folder: str | Path, options: Mapping[str, Any], data: str | None = None
) -> tuple[Configuration, Run]:
    """Return the configuration of a run that is continued, and the run; options may only repeat its own.

    Args:
        folder: of the run.
        options: more epochs, or what does not change what is learned.
        data: where its data is now, if it has moved.

    Raises:
        ValueError: if it is not a run, or the options are others than the run was started with.
    """
    run = Run.open(folder, data)
    before = resolve_saved(run)
    saved = checked_options(run.config, str(run.config_file))
    asked = Options(_laid_over(saved, checked_options(nested(options), "options"))).resolve()
    refuse_differences(run, asked, before)
    return asked, run


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those under dotted names inside their components.

    Example:
        >>> nested({"negatives": "glofnd", "negatives.alpha": 0.1, "data": {"name": "cifar10"}, "data.limit": 10})
        {'negatives': {'name': 'glofnd', 'alpha': 0.1}, 'data': {'name': 'cifar10', 'limit': 10}}
    """
    found: dict[str, Any] = {}
    for name, value in sorted(options.items(), key=lambda item: item[0].count(".")):
        place = found
        *groups, last = name.split(".")
        for group in groups:
            inner = place.get(group, {})
            place[group] = {"name": inner} if isinstance(inner, str) else dict(inner)
            place = place[group]
        place[last] = str(value) if isinstance(value, Path) else value
    return found


def checked_options(loaded: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return options with their components as mappings: `method: moco` is short for `method: {name: moco}`.

    Raises:
        ValueError: if a component is neither a name nor a mapping with one.
    """
    loaded = dict(loaded)
    for old in loaded:
        if old in RENAMED:
            raise ValueError(f"{source}: {old} is now called {RENAMED[old]}")
    for kind in get_args(Kind):
        if kind in loaded:
            loaded[kind] = _component(loaded[kind], kind, source)
    towers = loaded.get("encoders") or {}
    if not isinstance(towers, dict):
        raise ValueError(f"{source}: encoders must be a mapping of towers to encoders")
    loaded["encoders"] = {tower: _component(spec, f"encoders.{tower}", source) for tower, spec in towers.items()}
    for tower, spec in loaded["encoders"].items():
        if "name" not in spec:
            raise ValueError(f"{source}: encoders.{tower} has no name")
    try:
        json.dumps(loaded)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source} holds something that is no option: {error}") from error
    return loaded


def _component(spec: Any, kind: str, source: str) -> dict[str, Any]:
    if kind == "guide" and isinstance(spec, str) and spec.endswith(TABLES):
        return {"name": "table", "path": spec}
    spec = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(spec, dict):
        raise ValueError(f"{source}: {kind} must be a name, or a mapping with a name and arguments")
    if not isinstance(spec.get("name", ""), str):
        raise ValueError(f"{source}: the name of {kind} must be a word, got {spec['name']!r}")
    return spec


def _names(given: Mapping[str, Any], named: Mapping[Kind, str], run: Mapping[str, Any]) -> dict[Kind, str]:
    """Return the components that a call names: on the command line, in its options, or by its method or preset."""
    names = dict(DEFAULTS)
    for kind in get_args(Kind):
        usual = run.get(kind)
        usual = usual.get("name") if isinstance(usual, Mapping) else usual
        name = named.get(kind) or (given.get(kind) or {}).get("name") or usual
        if name is not None:
            names[kind] = name
    return names


def _laid_over(options: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return options, with the values of others in their place at every depth."""
    result = dict(options)
    for name, value in others.items():
        before = result.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[name] = _laid_over(before, value) if both else value  # type: ignore[arg-type]
    return result


def _defaults(run: Mapping[str, Any], names: dict[Kind, str]) -> dict[str, Any]:
    """Return the defaults of a method's name and a preset by option; replaced components have none."""
    found: dict[str, Any] = {}
    for option, value in run.items():
        if option == "encoders":  # names of towers' encoders, which have options of their own
            continue
        if option in get_args(Kind):
            kind = cast(Kind, option)
            spec = value if isinstance(value, Mapping) else {"name": value}
            if names[kind] == "none" or spec.get("name", names[kind]) != names[kind]:
                continue
            takes = inspect.signature(find(kind, names[kind]).target).parameters
            found |= {f"{option}.{key}": item for key, item in spec.items() if key in takes}
        elif isinstance(value, Mapping):
            found |= {f"{option}.{key}": item for key, item in value.items()}
        else:
            found[option] = value
    return found


def _add_component(parser: jsonargparse.ArgumentParser, kind: Kind, name: str, key: str) -> None:
    """Add the constructor's arguments of a component under the key, with the defaults that its name implies."""
    component = find(kind, name)
    skip = GIVEN[kind] | ({"path"} if "path" in component.preset else frozenset())
    add = parser.add_class_arguments if isinstance(component.target, type) else parser.add_function_arguments
    add(component.target, key, as_group=True, skip=set(skip))
    (parser.groups or {})[key].title = f"{kind} {name}"
    _hide(parser, f"--{key}")
    shown = {argument: value for argument, value in component.preset.items() if argument not in skip}
    parser.set_defaults({f"{key}.{argument}": value for argument, value in shown.items()})


def _hide(parser: jsonargparse.ArgumentParser, option: str) -> None:
    """Leave jsonargparse's own option for a component's configuration file out of the help: --config does that."""
    for action in parser._actions:
        if option in action.option_strings and action.metavar == "CONFIG":
            action.help = SUPPRESS


def _fixed(config: Configuration) -> dict[str, Any]:
    """Return the options that may not change when a run is resumed, as a file would hold them."""
    changing = (*MAY_CHANGE, "epochs")
    return {name: value for name, value in json.loads(json.dumps(dict(config))).items() if name not in changing}


def _first_difference(asked: Any, saved: Any, name: str = "") -> tuple[str, Any, Any] | None:
    if isinstance(asked, dict) and isinstance(saved, dict):
        for key in asked | saved:
            if found := _first_difference(asked.get(key), saved.get(key), f"{name}.{key}" if name else str(key)):
                return found
        return None
    return None if asked == saved else (name, asked, saved)
