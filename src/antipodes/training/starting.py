"""Initialisation of a new run from weights or from an earlier run (`--init`).

1. Encoders get weights from any source. A run with the same several towers initialises all of them and their heads.
2. A run of the same method also initialises the head and the method's other state: momentum encoders, a queue, a bank.
   So local aggregation can continue from the bank of instance discrimination, and a ring from that of a plain run. A
   part is loaded whole or not at all: shapes must agree, and state by rows needs the same data and heads.

Policies, losses and the optimiser start from their initial state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from antipodes.data import Samples
from antipodes.encoders.initial import initialise, initialise_head
from antipodes.methods import Method
from antipodes.registry import find
from antipodes.runs.folder import Run, load_checkpoint

NOT_TAKEN = ("network", "directions", "guide")
"""The parts of a method that are not taken from the checkpoint: weights come from files, the others start new."""
FIRST = "keeps its initial values"


def start_from(method: Method, source: str, data: Samples, say: Callable[[str], None]) -> None:
    """Initialise the encoders of a new method from weights, and its other state from an earlier run.

    Args:
        method: The method of the new run; it is changed in place.
        source: A source of weights, as for `initialise`.
        data: The training data of the new run.
        say: Shows the user which parts were taken.

    Raises:
        ValueError: if the source has no weights for the first tower's encoder.
    """
    names, folder = method.network.names(), Path(source).expanduser()
    several = len(names) > 1 and all((folder / f"encoder-{name}.safetensors").is_file() for name in names)
    before, problem = _earlier_run(method, folder)
    heads = []
    for name in names if several else names[:1]:
        line = str(initialise(method.network[name].encoder, source, name if several else None))
        file = folder / (f"head-{name}.safetensors" if several else "head.safetensors")
        if (several or before is not None) and file.is_file():
            heads.append(initialise_head(method.network[name].head, file))
            line += "; its head too" if heads[-1] else f"; its head has another shape there and {FIRST}"
        for copy in method.copies(name)[1:]:
            copy.encoder.load_state_dict(method.network[name].encoder.state_dict())
            copy.head.load_state_dict(method.network[name].head.state_dict())
        say(f"tower {name}: {line}" if len(names) > 1 else line)
    if before is not None:
        for sentence in _take_state(method, before, data, all(heads)):
            say(sentence)
    elif problem:
        say(problem)


def _earlier_run(method: Method, folder: Path) -> tuple[Mapping[str, Any] | None, str]:
    """Return the checkpoint of a run of the same method, or a sentence why only its encoder is taken."""
    run = Run(folder)
    if not (run.config_file.is_file() and run.last.is_file()):
        return None, ""
    try:
        name = run.config["method"]["name"]
        if find("method", name).target is not type(method):
            return None, f"{folder} was trained by another method, {name}: only its encoder is taken"
        return load_checkpoint(run.last), ""
    except ValueError as error:
        return None, f"only the encoder of {folder} is taken: {error}"


def _take_state(method: Method, saved: Mapping[str, Any], data: Samples, same_heads: bool) -> list[str]:
    """Load the parts of a method outside its network that fit; return sentences about what was and was not taken."""
    model: Mapping[str, Tensor] = saved["model"]
    own = method.state_dict()
    same_data = saved["identity"]["fingerprint"] == data.fingerprint
    sentences, taken = [], []
    for part in sorted({key.partition(".")[0] for key in own} - set(NOT_TAKEN)):
        keys = [key for key in own if key.partition(".")[0] == part]
        words = part.strip("_").replace("_", " ")
        if not all(key in model and model[key].shape == own[key].shape for key in keys):
            sentences.append(f"its {words} has another shape there and {FIRST}")
        elif _goes_by_rows(method, part) and not same_data:
            sentences.append(f"its {words} is of other data and {FIRST}")
        elif not same_heads:
            sentences.append(f"its {words} belongs to the head that was not taken and {FIRST}")
        else:
            method.load_state_dict({key: model[key] for key in keys}, strict=False)
            taken.append(words)
    return ([f"its {' and '.join(taken)} too"] if taken else []) + sentences


def _goes_by_rows(method: Method, part: str) -> bool:
    """Return True if a part of a method stores something by row of the data, such as a bank or a queue."""
    module = getattr(method, part)
    return hasattr(module, "modules") and any(getattr(type(each), "row_state", {}) for each in module.modules())
