"""`antipodes train`: the parser shows the options of the very method, data, encoder and policy that were chosen."""

from __future__ import annotations

import inspect
import json
import sys
from argparse import SUPPRESS, HelpFormatter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

import jsonargparse

from antipodes.cli.parser import ArgumentParser
from antipodes.cli.train_help import short_help
from antipodes.encoders.heads import Head
from antipodes.registry import ELSE, NAMES, PRESETS, Kind, find, find_preset, merged
from antipodes.runs.build import GIVEN, Learned, policy_names
from antipodes.runs.folder import Run, absolute
from antipodes.runs.settings import Settings
from antipodes.runs.views import Recipes
from antipodes.runs.yaml_files import read_options
from antipodes.training.loop import train

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
    "augmentation": f"{', '.join(NAMES['augmentation'])}; by default what the method's paper uses",
}
RENAMED = {
    "--objective": "--loss",
    "--together": "--batch_neighbours",
    "--guide_view": "--distill",
    "--guide_view_temperature": "--distill_temperature",
}
"""Options of earlier versions, with those that replaced them."""
# on resume: they do not change what is learned
MAY_CHANGE = ("threads", "workers", "log_every", "snapshot_every", "tensorboard", "wandb")
USAGE = """antipodes train [--method NAME] [--negatives NAME] [--data NAME] [--encoder NAME] [--out FOLDER] [options]
       antipodes train --resume RUN [--epochs MORE] [--data WHERE_IT_IS_NOW]
       antipodes train [--method NAME ...] --help [all]"""
DESCRIPTION = """Pretrain an encoder by contrastive learning. The run folder gets config.yaml, metrics.jsonl,
metrics.csv, checkpoints and the encoder as safetensors. Options below are those of the chosen components:
add --method moco before --help to see MoCo's. --resume RUN continues a run that was stopped or killed, bit by bit
as if nothing had happened."""


def main(arguments: list[str]) -> None:
    """Parse, then train or resume."""
    config, resume = parse(arguments)
    if resume is None and not _names_data(_long_form(arguments)):
        raise ValueError(
            "which data? --data path/to/photos trains on a folder, --data cifar10 on a dataset by its name (shapes "
            "needs no download), antipodes train --help all lists them, and antipodes demo shows it in a few minutes"
        )
    run = train(config, resume, say=lambda line: print(line, file=sys.stderr, flush=True))
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_rank() == 0:
        print(run.folder)


def parse(arguments: list[str]) -> tuple[dict[str, Any], Run | None]:
    """The complete configuration that a call asks for, and the run it continues, if any."""
    for argument in arguments:
        name, _, rest = argument.partition("=")[0].partition(".")
        if name in RENAMED:
            new = ".".join(filter(None, (RENAMED[name], rest)))
            raise ValueError(f"{argument.partition('=')[0]} is now called {new}")
    arguments = _long_form(arguments)
    run = None if _help(arguments) else _option(arguments, "--resume")
    if run is None:
        return _parse(arguments), None
    resumed = Run.open(run, _option(arguments, "--data.name"))
    saved = resumed.config()
    # options given beside --resume may only repeat what the run was started with, but for more epochs and for where
    # its data is now; what its version did not know is as this version has it by default
    started = ["--config", json.dumps(_checked(saved, str(resumed.config_file)))]
    repeated = _without(_without(arguments, "--resume"), "--data.name")
    asked, before = _parse([*started, *repeated]), _parse(started)
    if asked["epochs"] < before["epochs"]:
        raise ValueError(
            f"{run} was started with epochs {before['epochs']}, so it cannot be resumed with {asked['epochs']}: "
            "it may be more, not fewer"
        )
    if difference := _first_difference(_fixed(asked), _fixed(before)):
        name, new, old = difference
        raise ValueError(f"{run} was started with {name} {old}, so it cannot be resumed with {new}: start a new run")
    return asked, resumed


def _names_data(arguments: list[str]) -> bool:
    """Whether a call says what to train on, itself or by its configuration."""
    given = _option(arguments, "--config")
    return "--data.name" in arguments or (given is not None and "name" in json.loads(given).get("data", {}))


def _parse(arguments: list[str]) -> dict[str, Any]:
    preset = _preset(arguments)
    run = merged(find("method", _names(arguments, preset)["method"]).run, preset)
    names = _names(arguments, run)
    arguments = _without_replaced(arguments, names)
    parser = _Parser(prog="antipodes train", usage=USAGE, description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="YAML file of options, such as a run's config.yaml.")
    parser.add_argument("--resume", metavar="RUN", help="Continue this run; nothing else is needed.")
    parser.add_argument("--preset", metavar="NAME", help=f"Options that go together: {_presets()}.")
    parser.add_argument(
        "--strict", metavar="", help="Refuse a folder with damaged images (same as --data.strict true)."
    )
    parser.add_class_arguments(Settings, as_group=True)
    for options, key in ((Head, "head"), (Learned, "temperature")):
        parser.add_class_arguments(options, key, as_group=True)
        _hide(parser, f"--{key}")
    for kind in get_args(Kind):
        parser.add_argument(f"--{kind}.name", type=str, default=names[kind], metavar="NAME", help=CHOICES[kind])
        parts = policy_names(names[kind]) if kind == "negatives" else [names[kind]]
        for part in parts:
            if part != "none":
                _add_component(parser, kind, part, kind if len(parts) == 1 else f"{kind}.{part}")
    parser.add_class_arguments(Recipes, "augmentation", as_group=False)
    towers = _towers(arguments, run)
    for tower, name in towers.items():
        parser.add_argument(f"--encoders.{tower}.name", type=str, default=name, metavar="NAME", help=CHOICES["encoder"])
        _add_component(parser, "encoder", name, f"encoders.{tower}")
    parser.set_defaults(_defaults(run, names))
    asked = _help(arguments)
    if asked == "all":
        arguments = ["--help"]
    elif asked == "short":
        print(short_help(parser, USAGE, names, [kind for kind in names if f"--{kind}.name" in arguments], towers))
        raise SystemExit(0)
    config: dict[str, Any] = parser.parse_args(arguments).as_dict()
    for extra in ("config", "resume", "preset", "strict"):
        config.pop(extra, None)
    config["data"]["name"] = absolute(config["data"]["name"])
    if config["guide"].get("path") is not None:
        config["guide"]["path"] = str(Path(config["guide"]["path"]).expanduser().absolute())
    if config["init"] is not None and Path(config["init"]).expanduser().exists():
        config["init"] = str(Path(config["init"]).expanduser().absolute())
    return {**config, "encoders": config.get("encoders") or {}}


def _preset(arguments: list[str]) -> Mapping[str, Any]:
    """The options of the preset that a call names, itself or in its configuration; none without."""
    given = _option(arguments, "--config")
    name = _option(arguments, "--preset") or (json.loads(given).get("preset") if given else None)
    return {} if name is None else find_preset(name).run


def _presets() -> str:
    return "; ".join(f"{name} ({preset.what}; {preset.evidence})" for name, preset in PRESETS.items())


def _defaults(run: Mapping[str, Any], names: dict[Kind, str]) -> dict[str, Any]:
    """What a method's name and a preset bring, by its names on the command line; nothing of components replaced."""
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


class _Parser(ArgumentParser):
    """Help that shows `--method NAME`, which `_long_form` turns into the parser's own `--method.name NAME`."""

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        text: str = super().format_help(formatter)
        for kind in get_args(Kind):
            text = text.replace(f"--{kind}.name NAME", f"--{kind} NAME     ")
        return text


def _hide(parser: jsonargparse.ArgumentParser, option: str) -> None:
    """Leave jsonargparse's own option for a component's configuration file out of the help: --config does that."""
    for action in parser._actions:
        if option in action.option_strings and action.metavar == "CONFIG":
            action.help = SUPPRESS


def _long_form(arguments: list[str]) -> list[str]:
    """`--method moco` as `--method.name moco`, `--guide file.npy` as a table, `--freeze image,text` as a list,
    `--strict` as `--data.strict true`, configurations in full."""
    out: list[str] = []
    for argument in arguments:
        if argument.startswith("--") and "=" in argument and not argument.startswith("--print_config"):
            option, _, value = argument.partition("=")
            out += [option, value]
        else:
            out.append(argument)
    for place, argument in enumerate(out):
        tower = argument.startswith("--encoders.") and argument.count(".") == 1
        if tower or (argument.removeprefix("--") in get_args(Kind) and argument.startswith("--")):
            out[place] = f"{argument}.name"
        elif argument == "--config" and place + 1 < len(out):
            out[place + 1] = json.dumps(_read_config(out[place + 1]))
        elif argument == "--freeze" and place + 1 < len(out) and not out[place + 1].startswith(("[", "--")):
            out[place + 1] = json.dumps(out[place + 1].split(","))
    while "--guide.name" in out and out[-1] != "--guide.name":
        place = out.index("--guide.name")
        if not out[place + 1].endswith((".npy", ".npz", ".safetensors")):
            break
        out[place : place + 2] = ["--guide.name", "table", "--guide.path", out[place + 1]]
    while "--strict" in out:
        place = out.index("--strict")
        out[place : place + 1] = ["--data.strict", "true"]
    return out


def _read_config(path: str) -> dict[str, Any]:
    """A configuration file, its components as mappings: `method: moco` is short for `method: {name: moco}`."""
    return _checked(read_options(path, f"--config {path}"), f"--config {path}")


def _checked(loaded: dict[str, Any], source: str) -> dict[str, Any]:
    """Options from a file with their components as mappings.

    Raises:
        ValueError: if a component is neither a name nor a mapping with one.
    """
    loaded = dict(loaded)
    for old in loaded:
        if f"--{old}" in RENAMED:
            raise ValueError(f"{source}: {old} is now called {RENAMED[f'--{old}'][2:]}")
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
    spec = {"name": spec} if isinstance(spec, str) else spec
    if not isinstance(spec, dict):
        raise ValueError(f"{source}: {kind} must be a name, or a mapping with a name and arguments")
    if not isinstance(spec.get("name", ""), str):
        raise ValueError(f"{source}: the name of {kind} must be a word, got {spec['name']!r}")
    return spec


def _names(arguments: list[str], run: Mapping[str, Any]) -> dict[Kind, str]:
    """Which components a call names: on the command line, in its configuration, or by its method's name."""
    names = dict(DEFAULTS)
    given = _option(arguments, "--config")
    config = json.loads(given) if given else {}
    for kind in get_args(Kind):
        usual = run.get(kind)
        usual = usual.get("name") if isinstance(usual, Mapping) else usual
        name = _option(arguments, f"--{kind}.name") or config.get(kind, {}).get("name") or usual
        if name is not None:
            names[kind] = name
    return names


def _towers(arguments: list[str], run: Mapping[str, Any]) -> dict[str, str]:
    """The encoders of single towers: `--encoders.text minilm`, those of its configuration, or of its preset."""
    given = _option(arguments, "--config")
    config = json.loads(given) if given else {}
    towers: dict[str, str] = dict(run.get("encoders", {}))
    towers |= {tower: spec["name"] for tower, spec in (config.get("encoders") or {}).items()}
    for argument in arguments:
        if argument.startswith("--encoders.") and argument.endswith(".name"):
            tower = argument.removeprefix("--encoders.").removesuffix(".name")
            towers[tower] = _option(arguments, argument) or ""
    return towers


def _without_replaced(arguments: list[str], names: dict[Kind, str]) -> list[str]:
    """The call without what its configuration says of components that the call replaces by others."""
    if "--config" not in arguments:
        return arguments
    place = arguments.index("--config") + 1
    config = json.loads(arguments[place])
    for kind, name in names.items():
        if config.get(kind, {}).get("name", name) != name:
            config[kind] = {"name": name}
    return [*arguments[:place], json.dumps(config), *arguments[place + 1 :]]


def _option(arguments: list[str], option: str) -> str | None:
    if option not in arguments:
        return None
    place = len(arguments) - 1 - arguments[::-1].index(option)
    if place + 1 == len(arguments) or arguments[place + 1].startswith("--"):
        raise ValueError(f"{option.removesuffix('.name')} needs a value")
    return arguments[place + 1]


def _help(arguments: list[str]) -> Literal["", "short", "all"]:
    """Whether a call asks for help, and for how much.

    Raises:
        ValueError: if it asks for something else.
    """
    places = [place for place, argument in enumerate(arguments) if argument in ("-h", "--help")]
    if not places:
        return ""
    said = arguments[places[0] + 1 : places[0] + 2]
    if said and said[0] != "all" and not said[0].startswith("-"):
        raise ValueError(f"--help {said[0]} is nothing: --help is one screen, --help all shows every option")
    return "all" if said == ["all"] else "short"


def _without(arguments: list[str], option: str) -> list[str]:
    if option not in arguments:
        return arguments
    place = arguments.index(option)
    return arguments[:place] + arguments[place + 2 :]


def _fixed(config: dict[str, Any]) -> dict[str, Any]:
    """What may not change when a run is resumed, as it would be read from a file."""
    changing = (*MAY_CHANGE, "epochs")
    return {name: value for name, value in json.loads(json.dumps(config)).items() if name not in changing}


def _first_difference(asked: Any, saved: Any, name: str = "") -> tuple[str, Any, Any] | None:
    if isinstance(asked, dict) and isinstance(saved, dict):
        for key in asked | saved:
            if found := _first_difference(asked.get(key), saved.get(key), f"{name}.{key}" if name else str(key)):
                return found
        return None
    return None if asked == saved else (name, asked, saved)
