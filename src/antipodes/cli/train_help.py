"""The help of `antipodes train` on one screen; `--help all` is the parser's own."""

from __future__ import annotations

import inspect
import re
from argparse import Action
from collections.abc import Iterable, Mapping, Sequence
from textwrap import shorten

import jsonargparse

from antipodes.registry import NAMES, PRESETS, Kind, find

WIDTH = 118
COLUMN = 30
KINDS: tuple[Kind, ...] = ("data", "method", "negatives", "guide", "encoder", "augmentation", "loss")
SETTINGS = (
    "out",
    "epochs",
    "batch_size",
    "learning_rate",
    "optimizer",
    "seed",
    "treatment",
    "init",
    "freeze",
    "precision",
    "devices",
    "threads",
    "workers",
    "knn_every",
    "snapshot_every",
)
"""The most used ones of `Settings`."""

EXAMPLES = """examples:
  antipodes train --data path/to/photos --epochs 30 --out runs/a
  antipodes train --data cifar10 --method moco --negatives glofnd --negatives.alpha 0.1 --out runs/b
  antipodes train --data path/to/photos --init runs/a --out runs/c
  antipodes train --config runs/b/config.yaml --seed 1 --out runs/d
  antipodes train --resume runs/a --epochs 60"""


def short_help(
    parser: jsonargparse.ArgumentParser,
    usage: str,
    names: Mapping[Kind, str],
    chosen: Sequence[Kind],
    towers: Mapping[str, str],
) -> str:
    """Usage, components, the settings that most people need, the options of what a call names, and examples.

    Args:
        parser: With everything that the call could say.
        usage: Its first lines.
        names: The component of every kind.
        chosen: The kinds that the call names a component of, whose options are shown too; with a method those of the
            loss that belongs to it. What that loss does not take, such as negatives, is left out.
        towers: The encoders of single towers that it names.
    """
    options = {option: action for action in parser._actions for option in action.option_strings}
    takes = inspect.signature(find("loss", names["loss"]).target).parameters
    kinds = [kind for kind in KINDS if kind not in ("negatives", "guide") or "negatives" in takes]
    settings = [name for name in SETTINGS if name != "treatment" or "treatment" in takes]
    lines = [f"usage: {usage}", "", "components, by name or as --help all says:"]
    lines += [_line(f"--{kind} {names[kind] if kind != 'data' else 'NAME|PATH'}", _choices(kind)) for kind in kinds]
    lines += ["", "settings, with their defaults:", *(_option(options[f"--{name}"]) for name in settings)]
    if "temperature" in takes:
        learned = "; --temperature.learnable true learns it" if "negatives" in takes else ""
        lines.append(_line("--loss.temperature TAU", f"Divides similarities{learned}."))
    lines.append(_line("--preset NAME", "A named set of options: " + ", ".join(PRESETS) + "."))
    lines.append(_line("--config FILE", "Options from a YAML file, such as the config.yaml of a run."))
    lines.append(_line("--resume RUN", "Continue a run that was stopped or killed, bit by bit, or for more epochs."))
    lines.append(_line("--resume auto", "Start the run, or continue it if --out holds it: one command to repeat."))
    own_loss = "method" in chosen and names["loss"] != "info-nce" and "loss" not in chosen
    more: tuple[Kind, ...] = ("loss",) if own_loss else ()
    for kind in (*chosen, *more):
        lines += _component_options(f"{kind} {names[kind]}", options.values(), kind)
    for tower, name in towers.items():
        lines += _component_options(f"encoder {name} of {tower}", options.values(), f"encoders.{tower}")
    known = "--help all shows every option; --method moco --help those of a component"
    return "\n".join([*lines, "", EXAMPLES, "", known])


def _component_options(title: str, actions: Iterable[Action], key: str) -> list[str]:
    found = [
        _option(action)
        for action in dict.fromkeys(actions)
        for option in action.option_strings[:1]
        if option.startswith(f"--{key}.") and option != f"--{key}.name" and not option.endswith(".help")
    ]
    return ["", f"{title}:", *found] if found else []


def _choices(kind: Kind) -> str:
    """Some names of a kind; those of data with what else it may be."""
    what = {
        "data": "path to a folder, archive, table or .npz, or: ",
        "negatives": "which negatives are false, several joined by +: none, ",
        "guide": "a second encoder that policies may use, or a file of vectors by row: none, ",
        "augmentation": "by default what the method's paper uses: ",
        "loss": "by default the method's: ",
    }.get(kind, "")
    return what + ", ".join(NAMES[kind])


def _option(action: Action) -> str:
    """An option, its default and the first sentence about it."""
    default = "" if action.default in (None, "==SUPPRESS==") else f" {_plain(action.default)}"
    text = re.split(r"(?<=\.) ", str(action.help or "").replace("%%", "%"))[0].rstrip(".")
    return _line(f"{action.option_strings[0]}{default}", text)


def _plain(value: object) -> str:
    return "[" + ",".join(map(str, value)) + "]" if isinstance(value, (list, tuple)) else str(value)


def _line(option: str, text: str) -> str:
    room = max(WIDTH - 3 - max(COLUMN, len(option)), 30)
    return f"  {option:<{COLUMN}} {shorten(text, room, placeholder=' ...', break_on_hyphens=False)}"
