"""Where the reports of the studies are, and how the pages about them read their results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from antipodes.studies.reports import Places

RESEARCH = Path(__file__).resolve().parents[1]
STUDIES = RESEARCH / "studies"
PLACES = Places(RESEARCH / "results", RESEARCH / "pages", RESEARCH / "figures", RESEARCH / "notes")
RESULTS = PLACES.results
PROJECT = RESEARCH.parent
DOCS = PROJECT / "docs"
FROM_DOCS = "../research/pages"
"""How a page of docs/ links to a page of a study."""


def studies() -> list[str]:
    """The names of the studies."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def study_file(name: str) -> Path:
    """The YAML file of a study."""
    return STUDIES / f"{name}.yaml"


def command(name: str) -> str:
    """The call that runs a study, from the top of a checkout."""
    return f"antipodes study research/studies/{name}.yaml"


def read_results(names: Sequence[str], results: Path) -> Mapping[str, Any] | None:
    """Variant -> seed -> scores of the first of these studies that has a report; None if none has."""
    for name in names:
        if (file := results / f"{name}.json").is_file():
            found: Mapping[str, Any] = json.loads(file.read_text())["results"]
            return found
    return None
