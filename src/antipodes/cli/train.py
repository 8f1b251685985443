"""`antipodes train`: the parser shows the options of the very method, data, encoder and policy that were chosen."""

from __future__ import annotations

import json
from argparse import SUPPRESS, HelpFormatter
from pathlib import Path
from typing import Any, get_args

import yaml
from jsonargparse import ArgumentParser

from antipodes.registry import ELSE, NAMES, Kind, find
from antipodes.runs.build import GIVEN, policy_names
from antipodes.runs.folder import Run
from antipodes.runs.settings import Settings
from antipodes.training.loop import train

DEFAULTS: dict[Kind, str] = {"method": "simclr", "negatives": "none", "data": "shapes", "encoder": "resnet18-slim"}
CHOICES: dict[Kind, str] = {kind: f"{', '.join(names)}, {ELSE[kind]}" for kind, names in NAMES.items()} | {
    "negatives": f"none, {', '.join(NAMES['negatives'])}, several joined by +, or {ELSE['negatives']}",
    "augmentation": f"{', '.join(NAMES['augmentation'])}; by default what the method's paper uses",
}
# on resume: they do not change what is learned
MAY_CHANGE = ("threads", "workers", "log_every", "snapshot_every", "tensorboard", "wandb")
USAGE = """antipodes train [--method NAME] [--negatives NAME] [--data NAME] [--encoder NAME] [--out FOLDER] [options]
       antipodes train --resume RUN"""
DESCRIPTION = """Pretrain an encoder by contrastive learning. The run folder gets config.yaml, metrics.jsonl,
metrics.csv, checkpoints and the encoder as safetensors. Options below are those of the chosen components:
add --method moco before --help to see MoCo's. --resume RUN continues a run that was stopped or killed, bit by bit
as if nothing had happened."""


def main(arguments: list[str]) -> None:
    """Parse, then train or resume."""
    config, resume = parse(arguments)
    run = train(config, resume)
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_rank() == 0:
        print(run.folder)


def parse(arguments: list[str]) -> tuple[dict[str, Any], Run | None]:
    """The complete configuration that a call asks for, and the run it continues, if any."""
    arguments = _long_form(arguments)
    run = _option(arguments, "--resume")
    if run is None:
        return _parse(arguments), None
    resumed = Run.open(run)
    saved = resumed.config()
    # options given beside --resume may only repeat what the run was started with; what its version did not know is as
    # this version has it by default
    started = ["--config", json.dumps(saved)]
    asked, before = _parse([*started, *_without(arguments, "--resume")]), _parse(started)
    if difference := _first_difference(_fixed(asked), _fixed(before)):
        name, new, old = difference
        raise ValueError(f"{run} was started with {name} {old}, so it cannot be resumed with {new}: start a new run")
    return asked, resumed


def _parse(arguments: list[str]) -> dict[str, Any]:
    names = _names(arguments)
    arguments = _without_replaced(arguments, names)
    method = find("method", names["method"]).target
    names.setdefault("augmentation", method.recipe)  # type: ignore[attr-defined]
    parser = _Parser(prog="antipodes train", usage=USAGE, description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="YAML file of options, such as a run's config.yaml.")
    parser.add_argument("--resume", metavar="RUN", help="Continue this run; nothing else is needed.")
    parser.add_argument(
        "--strict", metavar="", help="Refuse a folder with damaged images (same as --data.strict true)."
    )
    parser.add_class_arguments(Settings, as_group=True)
    parser.set_defaults(dict(method.settings))  # type: ignore[attr-defined]
    for kind in get_args(Kind):
        parser.add_argument(f"--{kind}.name", type=str, default=names[kind], metavar="NAME", help=CHOICES[kind])
        parts = policy_names(names[kind]) if kind == "negatives" else [names[kind]]
        for part in parts:
            if part != "none":
                _add_component(parser, kind, part, kind if len(parts) == 1 else f"{kind}.{part}")
    config: dict[str, Any] = parser.parse_args(arguments).as_dict()
    for extra in ("config", "resume", "strict"):
        config.pop(extra, None)
    return config


def _add_component(parser: ArgumentParser, kind: Kind, name: str, key: str) -> None:
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


def _hide(parser: ArgumentParser, option: str) -> None:
    """Leave jsonargparse's own option for a component's configuration file out of the help: --config does that."""
    for action in parser._actions:
        if option in action.option_strings and action.metavar == "CONFIG":
            action.help = SUPPRESS


def _long_form(arguments: list[str]) -> list[str]:
    """`--method moco` as `--method.name moco`, `--strict` as `--data.strict true`, configurations in full."""
    out: list[str] = []
    for argument in arguments:
        if argument.startswith("--") and "=" in argument and not argument.startswith("--print_config"):
            option, _, value = argument.partition("=")
            out += [option, value]
        else:
            out.append(argument)
    for place, argument in enumerate(out):
        if argument.removeprefix("--") in get_args(Kind) and argument.startswith("--"):
            out[place] = f"{argument}.name"
        elif argument == "--config" and place + 1 < len(out):
            out[place + 1] = json.dumps(_read_config(out[place + 1]))
    while "--strict" in out:
        place = out.index("--strict")
        out[place : place + 1] = ["--data.strict", "true"]
    return out


def _read_config(path: str) -> dict[str, Any]:
    """A configuration file, its components as mappings: `method: moco` is short for `method: {name: moco}`."""
    if not Path(path).is_file():
        raise ValueError(f"--config {path} does not exist")
    try:
        loaded = yaml.safe_load(Path(path).read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"--config {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict):
        raise ValueError(f"--config {path} is not a mapping of options")
    for kind in get_args(Kind):
        if isinstance(loaded.get(kind), str):
            loaded[kind] = {"name": loaded[kind]}
        if kind in loaded and not isinstance(loaded[kind], dict):
            raise ValueError(f"--config {path}: {kind} must be a name, or a mapping with a name and arguments")
    return loaded


def _names(arguments: list[str]) -> dict[Kind, str]:
    """Which components a call names, on the command line or, failing that, in its configuration."""
    names = dict(DEFAULTS)
    given = _option(arguments, "--config")
    config = json.loads(given) if given else {}
    for kind in get_args(Kind):
        name = _option(arguments, f"--{kind}.name") or config.get(kind, {}).get("name")
        if name is not None:
            names[kind] = name
    return names


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


def _without(arguments: list[str], option: str) -> list[str]:
    place = arguments.index(option)
    return arguments[:place] + arguments[place + 2 :]


def _fixed(config: dict[str, Any]) -> dict[str, Any]:
    """What may not change when a run is resumed, as it would be read from a file."""
    return {name: value for name, value in json.loads(json.dumps(config)).items() if name not in MAY_CHANGE}


def _first_difference(asked: Any, saved: Any, name: str = "") -> tuple[str, Any, Any] | None:
    if isinstance(asked, dict) and isinstance(saved, dict):
        for key in asked | saved:
            if found := _first_difference(asked.get(key), saved.get(key), f"{name}.{key}" if name else str(key)):
                return found
        return None
    return None if asked == saved else (name, asked, saved)
