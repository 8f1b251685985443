"""The map of rooms: which part of the package may import which (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "antipodes"
TOOLS = {"distributed", "seeding", "files", "registry", "schedules", "threads"}  # small, without knowledge of any room

ALLOWED: dict[str, set[str]] = {
    "functional": set(),
    "pairs": {"functional"},
    "state": {"distributed"},
    "candidates": {"functional", "pairs", "state"},
    "negatives": {"functional", "pairs", "state"},
    "guides": {"pairs", "state"},
    "objectives": {"functional", "pairs", "state", "candidates", "negatives"},
    "encoders": {"functional", "data"},  # data only to read photos: nothing there knows encoders
    "data": set(),
    "methods": {"functional", "pairs", "state", "candidates", "negatives", "objectives", "encoders"},
}
ALLOWED["runs"] = set(ALLOWED) | {"runs"}
ALLOWED["training"] = ALLOWED["runs"] | {"training"}
ALLOWED["evaluation"] = ALLOWED["runs"] | {"evaluation"}
ALLOWED["audit"] = {"functional", "data", "encoders", "audit"}
ALLOWED["report"] = ALLOWED["runs"] | {"evaluation", "audit", "report"}
ALLOWED["study"] = ALLOWED["runs"] | {"evaluation", "audit", "study"}
ALLOWED["cli"] = ALLOWED["study"] | {"training", "report"}


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


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in ("pairs", "state"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_what_the_map_allows(path: Path) -> None:
    room = room_of(path)
    assert room in ALLOWED, f"{room} is not on the map: add it to ALLOWED and to docs/architecture.md"
    tools = set() if room == "functional" else TOOLS  # pure maths needs none of them
    assert imported_rooms(path) <= ALLOWED[room] | tools | {room}


def test_no_two_rooms_import_each_other() -> None:
    reached = {room: set.union(*(imported_rooms(path) for path in FILES if room_of(path) == room)) for room in ALLOWED}
    cycles = [(one, other) for one in ALLOWED for other in reached[one] & set(ALLOWED) - {one} if one in reached[other]]
    assert cycles == []
