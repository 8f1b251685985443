"""`antipodes train`: the parser shows the options of the very method, data, encoder and policy that were chosen."""

from __future__ import annotations

import json
import sys
from argparse import HelpFormatter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

from antipodes.cli.train_help import short_help
from antipodes.parsing import ArgumentParser
from antipodes.registry import PRESETS, Kind
from antipodes.runs.configuration import (
    RENAMED,
    TABLES,
    Configuration,
    Options,
    checked_options,
    refuse_differences,
    resolve_saved,
)
from antipodes.runs.folder import Run
from antipodes.runs.yaml_files import read_options
from antipodes.training.loop import run_training

USAGE = """antipodes train [--method NAME] [--negatives NAME] [--data NAME] [--encoder NAME] [--out FOLDER] [options]
       antipodes train --resume RUN [--epochs MORE] [--data WHERE_IT_IS_NOW]
       antipodes train --resume auto [--method NAME ...] --out FOLDER
       antipodes train [--method NAME ...] --help [all]"""
DESCRIPTION = """Pretrain an encoder by contrastive learning. The run folder gets config.yaml, metrics.jsonl,
metrics.csv, checkpoints and the encoder as safetensors. Options below are those of the chosen components:
add --method moco before --help to see MoCo's. --resume RUN continues a run that was stopped or killed, bit by bit
as if nothing had happened. --resume auto continues the run in --out if there is one and starts it otherwise, so that
torchrun --max-restarts or a queue of jobs can repeat one command until the run has ended."""


def main(arguments: list[str]) -> None:
    """Parse the call, train or resume, print the folder of the run."""
    configuration, resumed = parse(arguments)
    if resumed is None and not _names_data(_long_form(arguments)):
        raise ValueError(
            "which data? --data path/to/photos trains on a folder, --data cifar10 on a dataset by its name (shapes "
            "needs no download), antipodes train --help all lists them, and antipodes demo shows it in a few minutes"
        )
    run = run_training(configuration, resumed, say=lambda line: print(line, file=sys.stderr, flush=True))
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_rank() == 0:
        print(run.folder)


def parse(arguments: list[str]) -> tuple[Configuration, Run | None]:
    """The configuration that a call asks for, and the run it continues, if any."""
    for argument in arguments:
        name, _, rest = argument.partition("=")[0].removeprefix("--").partition(".")
        if argument.startswith("--") and name in RENAMED:
            new = ".".join(filter(None, (RENAMED[name], rest)))
            raise ValueError(f"{argument.partition('=')[0]} is now called --{new}")
    arguments = _long_form(arguments)
    folder = None if _help(arguments) else _option(arguments, "--resume")
    if folder is None:
        given, arguments = _files(arguments)
        return _resolve(given, arguments), None
    moved = _option(arguments, "--data.name")
    if folder == "auto":
        arguments = _without(arguments, "--resume")
        given, own = _files(arguments)
        asked = _resolve(given, own)
        if not Run(Path(asked.settings.out)).exists:
            return asked, None
        folder, moved = asked.settings.out, None
    run = Run.open(folder, moved)
    # options given next to --resume may only repeat what the run was started with, but for more epochs and for where
    # its data is now; what its version did not know is as this version has it by default
    before, saved = resolve_saved(run), checked_options(run.config, str(run.config_file))
    repeated = _without(arguments, "--resume")
    given, repeated = _files(repeated if moved is None else _without(repeated, "--data.name"))
    asked = _resolve(_over(saved, given), repeated)
    refuse_differences(run, asked, before)
    return asked, run


def _resolve(given: Mapping[str, Any], arguments: list[str]) -> Configuration:
    """The configuration of options from files and from the command line, which wins; or the help."""
    parser = _Parser(prog="antipodes train", usage=USAGE, description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="YAML file of options, such as a run's config.yaml.")
    parser.add_argument("--resume", metavar="RUN|auto", help="Continue this run; auto: that in --out, if there is one.")
    parser.add_argument("--preset", metavar="NAME", help=f"A named set of options: {_presets()}.")
    parser.add_argument(
        "--strict", metavar="", help="Refuse a folder with damaged images (same as --data.strict true)."
    )
    named = {kind: _option(arguments, f"--{kind}.name") for kind in get_args(Kind)}
    names = {kind: name for kind, name in named.items() if name is not None}
    preset = _option(arguments, "--preset")
    options = Options(given, cast(Mapping[Kind, str], names), _towers(arguments), preset, parser)
    asked = _help(arguments)
    if asked == "all":
        arguments = ["--help"]
    elif asked == "short":
        chosen = [kind for kind in options.names if f"--{kind}.name" in arguments]
        print(short_help(parser, USAGE, options.names, chosen, options.towers))
        raise SystemExit(0)
    return options.resolve(arguments)


def _files(arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The options of the files that `--config` names, later ones over earlier ones, and the other arguments."""
    given: dict[str, Any] = {}
    while "--config" in arguments:
        place = arguments.index("--config")
        if place + 1 == len(arguments) or arguments[place + 1].startswith("--"):
            raise ValueError("--config needs a value")
        source = f"--config {arguments[place + 1]}"
        given = _over(given, checked_options(read_options(arguments[place + 1], source), source))
        arguments = arguments[:place] + arguments[place + 2 :]
    return given, arguments


def _over(options: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Options with those of a later file over them; a component of another name replaces the earlier one."""
    result = dict(options)
    for name, value in others.items():
        before = result.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            same = name == "encoders" or value.get("name", before.get("name")) == before.get("name")
            result[name] = {**before, **value} if same else value
        else:
            result[name] = value
    return result


def _names_data(arguments: list[str]) -> bool:
    """Whether a call says what to train on, itself or by its configuration."""
    return "--data.name" in arguments or "name" in _files(arguments)[0].get("data", {})


def _towers(arguments: list[str]) -> dict[str, str]:
    """The encoders of single towers that the command line names: `--encoders.text minilm`."""
    return {
        argument.removeprefix("--encoders.").removesuffix(".name"): _option(arguments, argument) or ""
        for argument in arguments
        if argument.startswith("--encoders.") and argument.endswith(".name")
    }


def _presets() -> str:
    return "; ".join(f"{name} ({preset.what}; {preset.evidence})" for name, preset in PRESETS.items())


class _Parser(ArgumentParser):
    """Help that shows `--method NAME`, which `_long_form` turns into the parser's own `--method.name NAME`."""

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        text: str = super().format_help(formatter)
        for kind in get_args(Kind):
            text = text.replace(f"--{kind}.name NAME", f"--{kind} NAME     ")
        return text


def _long_form(arguments: list[str]) -> list[str]:
    """`--method moco` as `--method.name moco`, `--guide file.npy` as a table, `--freeze image,text` as a list,
    `--strict` as `--data.strict true`."""
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
        elif argument == "--freeze" and place + 1 < len(out) and not out[place + 1].startswith(("[", "--")):
            out[place + 1] = json.dumps(out[place + 1].split(","))
    while "--guide.name" in out and out[-1] != "--guide.name":
        place = out.index("--guide.name")
        if not out[place + 1].endswith(TABLES):
            break
        out[place : place + 2] = ["--guide.name", "table", "--guide.path", out[place + 1]]
    while "--strict" in out:
        place = out.index("--strict")
        out[place : place + 1] = ["--data.strict", "true"]
    return out


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
