"""The results of a study in one JSON file: every finished run is added at once and never done again."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Key = Mapping[str, Any]
"""What identifies a run: part (choice or test), variant, seed, temperature, ..."""

HERE = Path(__file__).resolve().parent
DATA = HERE.parent.parent / "shared" / "data"
"""Where datasets are looked for: `../shared/data` next to the repository."""


class Records:
    """The runs of one study.

    Args:
        path: The JSON file; it is created with the first run.
        study: Name of the study.
        settings: Everything that all runs have in common; runs of other settings may not share a file.
        data: Digest (SHA-256) by file name of the data.

    Raises:
        ValueError: if the file holds runs of another study, other settings or other data.
    """

    def __init__(self, path: Path, study: str, settings: Mapping[str, Any], data: Mapping[str, str]) -> None:
        self.path = path
        header = {"study": study, "settings": json.loads(json.dumps(settings)), "data": dict(data)}
        self.content: dict[str, Any] = {**header, "runs": []}
        if path.is_file():
            self.content = json.loads(path.read_text())
            for name, value in header.items():
                if self.content[name] != value:
                    raise ValueError(f"{path} holds runs of other {name}: give another --out, or remove the file")
        self._done = {_name(run["key"]) for run in self.content["runs"]}

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The finished runs, each with its key, metrics and commit."""
        runs: list[dict[str, Any]] = self.content["runs"]
        return runs

    def complete(self, keys: Iterable[Key], run: Callable[[Key], dict[str, Any]]) -> None:
        """Do the runs that are missing, one by one, and print how many are left and how long they may take.

        Args:
            keys: The runs wanted.
            run: From a key to the metrics of the run.
        """
        missing = [key for key in keys if _name(key) not in self._done]
        commit, began = code_version(), time.monotonic()
        for number, key in enumerate(missing, 1):
            self._add({"key": dict(key), "metrics": run(key), "commit": commit})
            left = (time.monotonic() - began) / number * (len(missing) - number)
            print(f"{number}/{len(missing)} done, {left / 60:.1f} min left: {_name(key)}", flush=True)

    def _add(self, run: dict[str, Any]) -> None:
        self.runs.append(run)
        self._done.add(_name(run["key"]))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        lines = ",\n  ".join(json.dumps(each) for each in self.runs)
        rest = json.dumps({name: self.content[name] for name in ("study", "settings", "data")}, indent=1)
        temporary.write_text(f'{rest[:-2]},\n "runs": [\n  {lines}\n ]\n}}\n')
        os.replace(temporary, self.path)


def best_setting(
    runs: Iterable[Mapping[str, Any]], score: str, of: Key, epochs: int | None = None
) -> tuple[float, int]:
    """The temperature and number of epochs with the best mean score of the choosing runs of a variant.

    Args:
        runs: Those of a file; the metrics of a choosing run are its scores by epoch.
        score: By which to choose; more is better.
        of: Part of the key: the variant, and the dataset if there are several.
        epochs: A number of epochs that is given; None chooses it as well.
    """
    total: dict[tuple[float, int], float] = {}
    for run in runs:
        key = run["key"]
        if key["part"] == "choice" and all(key[name] == value for name, value in of.items()):
            for epoch, found in run["metrics"].items():
                if epochs not in (None, int(epoch)):
                    continue
                place = (key["temperature"], int(epoch))
                total[place] = total.get(place, 0.0) + found[score]
    return max(total, key=lambda place: total[place])


def sha256(path: Path) -> str:
    """The digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def code_version() -> str:
    """The commit of the code, with a plus where code of the package or of the studies was changed since."""

    def git(*arguments: str) -> str:
        called = subprocess.run(("git", *arguments), cwd=HERE.parent, capture_output=True, text=True, check=False)
        return called.stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "research/*.py")
    return (git("rev-parse", "HEAD") or "unknown") + ("+" if changed else "")


def _name(key: Key) -> str:
    return ", ".join(f"{name} {key[name]}" for name in sorted(key))
