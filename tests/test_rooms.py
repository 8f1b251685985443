"""The map of rooms: which part of the package may import which (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "antipodes"
# small, without knowledge of any room
TOOLS = {"arguments", "distributed", "files", "identity", "parquet", "plain_text", "processes", "registry", "schedules"}
TOOLS |= {"seeding", "threads"}
FACE = {"__init__", "__main__"}  # what users import, and the command line: they name every room
BY_NAME = ("registry", "data")  # the registry finds what names mean in every room, a path to data by asking that room

ALLOWED: dict[str, set[str]] = {
    "functional": set(),
    "pairs": {"functional"},
    "state": {"distributed"},
    "candidates": {"functional", "pairs", "state"},
    "clustering": {"functional"},
    "negatives": {"functional", "pairs", "state", "clustering"},
    "guides": {"pairs", "state"},
    "losses": {"functional", "pairs", "state", "candidates", "negatives"},
    "encoders": {"functional", "clustering", "data"},  # data only to read photos: nothing there knows encoders
    "data": set(),
    "methods": {"functional", "pairs", "state", "candidates", "negatives", "losses", "encoders"},
}
ALLOWED["runs"] = set(ALLOWED) | {"runs"}
ALLOWED["training"] = ALLOWED["runs"] | {"training"}
ALLOWED["evaluation"] = ALLOWED["runs"] | {"evaluation"}
ALLOWED["audit"] = {"functional", "data", "encoders", "audit"}
ALLOWED["report"] = ALLOWED["runs"] | {"evaluation", "audit", "report"}
ALLOWED["study"] = ALLOWED["runs"] | {"evaluation", "audit", "study"}
ALLOWED["cli"] = ALLOWED["study"] | {"training", "report"}
ALLOWED |= {tool: {BY_NAME[1]} if tool == BY_NAME[0] else set() for tool in TOOLS}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "antipodes" else [f"antipodes.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("antipodes.")}
    return found


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem not in FACE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_what_the_map_allows(path: Path) -> None:
    room = room_of(path)
    assert room in ALLOWED, f"{room} is not on the map: add it to ALLOWED and to docs/architecture.md"
    tools = set() if room in TOOLS | {"functional"} else TOOLS  # pure maths and the tools themselves need none of them
    assert imported_rooms(path) <= ALLOWED[room] | tools | {room}


def test_the_map_names_every_room_and_no_other() -> None:
    assert set(ALLOWED) == {room_of(path) for path in FILES}


def rooms_in_cycles(reached: dict[str, set[str]]) -> set[str]:
    """The rooms from which a way of any length leads back to a room that was passed."""
    left = {room: others - {room} for room, others in reached.items()}
    while ends := [room for room, others in left.items() if not others & set(left)]:
        for room in ends:
            del left[room]
    return set(left)


def test_no_way_leads_back_to_a_room_however_long_it_is() -> None:
    reached = {room: set.union(*(imported_rooms(path) for path in FILES if room_of(path) == room)) for room in ALLOWED}
    reached[BY_NAME[0]].discard(BY_NAME[1])
    assert rooms_in_cycles(reached) == set()


def test_long_cycles_are_found() -> None:
    assert rooms_in_cycles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set()}) == {"a", "b", "c"}
    assert rooms_in_cycles({"a": {"a", "b", "c"}, "b": {"c"}, "c": set()}) == set()
