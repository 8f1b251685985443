"""Where the report of a study goes: all into one folder, or into the folders of a project."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import relpath
from pathlib import Path

from antipodes.studies.definition import Study


@dataclass(frozen=True)
class Places:
    """The folders of reports.

    Args:
        results: Of the JSON files.
        pages: Of the Markdown pages.
        figures: Of the PNG files.
        notes: Of the notes that pages include.
    """

    results: Path
    pages: Path
    figures: Path
    notes: Path

    @classmethod
    def of(cls, folder: Path) -> Places:
        """The places in a folder: those of a project if it has the folders `results` and `pages`, else all in one."""
        if (folder / "results").is_dir() and (folder / "pages").is_dir():
            return cls(folder / "results", folder / "pages", folder / "figures", folder / "notes")
        return cls(folder, folder, folder, folder / "notes")

    def create(self) -> None:
        """Create the folders that are written to."""
        for folder in (self.results, self.pages, self.figures):
            folder.mkdir(parents=True, exist_ok=True)

    def link(self, figure: str) -> str:
        """The link from a page to a figure."""
        return Path(relpath(self.figures / figure, self.pages)).as_posix()

    def note(self, name: str) -> str:
        """The note on a study, without the space around it; empty if there is none."""
        file = self.notes / f"{name}.md"
        return file.read_text().strip() if file.is_file() else ""


def project_of(study: Study) -> Path | None:
    """The project that a study's file belongs to: the folder with `results` and `pages` whose `studies` holds it."""
    folder = study.path.absolute().parent
    project = folder.parent
    in_project = folder.name == "studies" and (project / "results").is_dir() and (project / "pages").is_dir()
    return project if in_project else None
