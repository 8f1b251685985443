"""Which code a run depends on, as short digests, so that stale results are noticed.

A run depends on the modules that its configuration names, on the training loop and the evaluation, and on whatever
these import. A component that nothing names does not count, though some module of the core may know its class: an edit
of IFND leaves the runs of SimCLR as they are. A component of the user's own, named by its dotted path, counts with its
module and with what that imports from the package. Experiments with a runner of their own, and the records of earlier
versions, go by whole rooms of the package.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from antipodes.evaluation.protocol import PROTOCOLS
from antipodes.registry import NAMES, Kind, find

PACKAGE = Path(__file__).parents[1]
ROOMS = (
    "functional",
    "negatives",
    "guides",
    "candidates",
    "losses",
    "encoders",
    "methods",
    "data",
    "runs",
    "training",
    "evaluation",
)
"""Rooms that numbers come from; commands, reports and studies only pass them on."""
TOP = "top"  # modules of the package outside of its rooms, such as pairs and state
CORE = ("training/loop.py", "runs/build.py", "evaluation/protocol.py")
"""Where every run passes through."""
PASSED_ON = ("registry.py",)
"""What a run takes from here is in its configuration."""
CHOSEN: tuple[Kind, ...] = ("method", "loss", "negatives", "guide", "encoder", "data")
"""Kinds of components of which only those count that a run names."""
DEFAULT_ENCODERS = ("resnet18-slim", "bag-of-words", "identity")  # of towers that a configuration leaves open


@cache
def code_digests() -> dict[str, str]:
    """The digest of every room that is there, and of the modules next to them."""
    found = {room: _digest(sorted((PACKAGE / room).rglob("*.py"))) for room in ROOMS if (PACKAGE / room).is_dir()}
    return found | {TOP: _digest(sorted(path for path in PACKAGE.glob("*.py") if path.name != "__main__.py"))}


def run_digests(
    configuration: Mapping[str, Any], protocols: Sequence[str] = (), transfer: Sequence[str] = ()
) -> dict[str, str]:
    """The digests of all modules that a run depends on, by their paths in the package.

    Args:
        configuration: Of the run, complete.
        protocols: By which it is evaluated.
        transfer: Other data that it is evaluated on.
    """
    named = [_module(kind, name) for kind, name in _components(configuration)]
    named += [_module("data", name) for name in transfer]
    named += [PROTOCOLS[name].rpartition(".")[0] for name in protocols if name in PROTOCOLS]
    named += [entry.path.rpartition(".")[0] for entry in NAMES["augmentation"].values()]
    roots = {file for name in named if name for file in [_file(name)] if file}
    own = {name: Path(file) for name in named if name and _file(name) is None and (file := _own_file(name))}
    roots |= {found for file in own.values() for found in _imports(file) if found.name != "__init__.py"}
    for kind in {kind for kind, name in _components(configuration) if _module(kind, name) is None}:
        roots |= _files_of(kind)  # any of them may have been used
    optional = {file for kind in CHOSEN for file in _files_of(kind)} - roots
    found = {str(file.relative_to(PACKAGE)): _digest([file]) for file in _reached(roots, optional)}
    return found | {name: _content(file) for name, file in own.items()}


def runner_digests(module: str, depends: Sequence[str] = ("functional",)) -> dict[str, str]:
    """The digests that an experiment with a runner of its own depends on: its module, and what that names.

    Args:
        module: Its dotted path; it has been imported.
        depends: Rooms of the package, and modules of the runner's folder.
    """
    file = Path(str(sys.modules[module].__file__))
    rooms = {name: code_digests()[name] for name in depends if name in code_digests()}
    modules = [name for name in depends if name not in rooms]
    return rooms | {name: _content(file.with_name(f"{name}.py")) for name in (*modules, file.stem)}


def changed(before: Mapping[str, str] | None, now: Mapping[str, str]) -> str | None:
    """What has changed since a run was started, in a few words; None if nothing has.

    Args:
        before: The digests that were written down then; those of whole rooms are compared with today's rooms.
        now: Those of today.
    """
    if not before:
        return "the code that it was run with is not known"
    rooms = {*ROOMS, TOP}
    if set(before) <= rooms and not set(now) <= rooms:
        now = code_digests()
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} changed since" if names else None


def _components(configuration: Mapping[str, Any]) -> Iterator[tuple[Kind, str]]:
    """Every component that a configuration names."""
    for kind in CHOSEN:
        for name in configuration.get(kind, {"name": "none"})["name"].split("+" if kind == "negatives" else None):
            if name != "none":
                yield kind, name
    for spec in (configuration.get("encoders") or {}).values():
        yield "encoder", spec["name"]
    for name in DEFAULT_ENCODERS:
        yield "encoder", name


@cache
def _module(kind: Kind, name: str) -> str | None:
    """The dotted module of a component; None if it cannot be found any more, such as data that was moved."""
    try:
        return find(kind, name).target.__module__
    except ValueError:
        return None


def _files_of(kind: Kind) -> set[Path]:
    """The modules of all components of a kind."""
    files = (_file(entry.path.rpartition(".")[0]) for entry in NAMES[kind].values())
    return {file for file in files if file is not None and file.name != "__init__.py"}


def _reached(roots: Iterable[Path], optional: set[Path]) -> list[Path]:
    """The files of the core and of the roots, and what they import; the core alone leads to no optional one."""
    reached: set[Path] = set()
    waiting = [PACKAGE / name for name in CORE]
    follows = set(roots)  # components may bring others with them
    waiting += follows
    while waiting:
        file = waiting.pop()
        if file in reached or file.name in PASSED_ON:
            continue
        reached.add(file)
        for other in _imports(file):
            if other not in optional:
                waiting.append(other)
            elif file in follows:
                follows.add(other)
                waiting.append(other)
    return sorted(reached)


@cache
def _imports(file: Path) -> frozenset[Path]:
    """The modules of the package from which a module takes names, wherever packages pass those names on."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "antipodes":
            found |= {path for alias in node.names if (path := _source(node.module, alias.name)) is not None}
    return frozenset(found)


def _source(module: str, name: str) -> Path | None:
    """The file in which a name is defined that is imported from a module or package."""
    if (file := _file(f"{module}.{name}") or _file(module)) is None or file.name != "__init__.py":
        return file
    for node in ast.walk(ast.parse(file.read_text())):
        passed_on = isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == name for each in node.names)
        if passed_on and node.module and node.module.startswith(f"{module}."):  # type: ignore[attr-defined]
            return _source(node.module, name)  # type: ignore[attr-defined]
    return file


def _file(module: str) -> Path | None:
    """The file of a module of the package; None for any other."""
    first, *parts = module.split(".")
    path = PACKAGE.joinpath(*parts)
    files = (path.with_suffix(".py"), path / "__init__.py") if parts else (path / "__init__.py",)
    return next((file for file in files if first == "antipodes" and file.is_file()), None)


def _own_file(module: str) -> str | None:
    """The file of an imported module that is not one of the package."""
    return sys.modules[module].__file__ if module in sys.modules else None


def _content(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


def _digest(files: list[Path]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        digest.update(str(file.relative_to(PACKAGE)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
