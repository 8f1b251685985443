"""The map of rooms: which part of the package may import which (docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import antipodes

PACKAGE = Path(__file__).parents[1] / "src" / "antipodes"
# small modules without knowledge of any room, which every room but `functional` may import
TOOLS = {"arguments", "distributed", "files", "identity", "plain_text", "processes", "registry"}
TOOLS |= {"parsing", "progress", "schedules", "seeding", "tables", "threads"}
FACE = {"__init__", "__main__"}  # what users import, and the command line: they name every room

ALLOWED: dict[str, set[str]] = {
    "functional": set(),
    "pairs": {"functional"},
    "state": {"distributed"},
    "candidates": {"functional", "pairs", "state"},
    "clustering": set(),
    "neighbour_search": {"functional", "clustering"},
    "negatives": {"functional", "pairs", "state", "clustering", "neighbour_search"},
    "guides": {"pairs", "state"},
    "losses": {"functional", "pairs", "state", "candidates", "negatives"},
    "encoders": {"functional", "clustering", "data"},  # data only to read photos: nothing there knows encoders
    "data": set(),
    "methods": {"functional", "pairs", "state", "clustering", "candidates", "negatives", "losses", "encoders"},
}
ALLOWED["runs"] = set(ALLOWED) | {"runs"}
ALLOWED["training"] = ALLOWED["runs"] | {"training"}
ALLOWED["pages"] = set()
ALLOWED["evaluation"] = ALLOWED["runs"] | {"pages", "evaluation"}
ALLOWED["auditing"] = ALLOWED["runs"] | {"pages", "auditing"}  # runs in auditing/runs.py alone
ALLOWED["reporting"] = ALLOWED["runs"] | {"pages", "evaluation", "auditing", "reporting"}
ALLOWED["studies"] = ALLOWED["runs"] | {"evaluation", "studies"}
ALLOWED["cli"] = ALLOWED["studies"] | {"training", "pages", "reporting", "auditing"}
ALLOWED["integrations"] = {"public face", "candidates", "functional", "pairs"}
ALLOWED |= {tool: set() for tool in TOOLS} | {"tables": {"files", "plain_text"}}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def of_package(name: str) -> str:
    """What `from antipodes import name` reaches: the public face, or a module."""
    return "antipodes.public face" if name in antipodes.__all__ else f"antipodes.{name}"


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "antipodes" else [of_package(each.name) for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("antipodes.")}
    return found


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem not in FACE)


def files_of(room: str) -> Iterator[Path]:
    return (path for path in FILES if room_of(path) == room)


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_what_the_map_allows(room: str) -> None:
    allowed = ALLOWED[room] | {room} | (set() if room in TOOLS | {"functional"} else TOOLS)
    wrong = {
        str(path.relative_to(PACKAGE)): found for path in files_of(room) if (found := imported_rooms(path) - allowed)
    }
    assert not wrong, f"{room} may import {sorted(ALLOWED[room])}"


def test_the_package_does_not_know_research() -> None:
    """The wheel does not hold research/, so no module of the package may import it."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "research"], path


def test_the_map_names_every_room_and_no_other() -> None:
    assert set(ALLOWED) == {room_of(path) for path in FILES}, "add it to ALLOWED and to docs/architecture.md"


def rooms_in_cycles(reached: dict[str, set[str]]) -> set[str]:
    """The rooms from which imports of any length lead back to them."""
    left = {room: others - {room} for room, others in reached.items()}
    while ends := [room for room, others in left.items() if not others & set(left)]:
        for room in ends:
            del left[room]
    return set(left)


def test_no_chain_of_imports_leads_back_to_a_room() -> None:
    reached = {room: set().union(*map(imported_rooms, files_of(room))) for room in ALLOWED}
    assert rooms_in_cycles(reached) == set()


def test_long_cycles_are_found() -> None:
    assert rooms_in_cycles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set()}) == {"a", "b", "c"}
    assert rooms_in_cycles({"a": {"a", "b", "c"}, "b": {"c"}, "c": set()}) == set()


def test_a_function_fits_on_a_screen() -> None:
    """No function has more than 80 lines."""
    long = [
        (path.relative_to(PACKAGE).as_posix(), node.name)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 80
    ]
    assert not long
