"""What `make docs` changes on its way from the pages and docstrings to the site."""

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
RESEARCH = ("research/README.md", "research/pages/*.md", "research/figures/*.png")
"""Files of the repository that the site shows, although they are not in docs/."""
_OUTSIDE = re.compile(r"\]\((?:\.\./)+research/")
_INTO_DOCS = re.compile(r"\]\((?:\.\./)+docs/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and figures of the studies, at the paths that they have in the repository."""
    for pattern in RESEARCH:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Render what is inside of collapsed parts, as GitHub does, and link between docs/ and research/ as the site does.

    On the site the content of docs/ is at the top: `docs/a.md` links to `../research/b.md` and becomes `a.md`, so its
    link has to be `research/b.md`, and that of `research/pages/b.md` to `../../docs/a.md` has to be `../../a.md`.
    """
    path = page.file.src_uri
    up = "../" * path.count("/")
    markdown = (
        _INTO_DOCS.sub(f"]({up}", markdown)
        if path.startswith("research/")
        else _OUTSIDE.sub(f"]({up}research/", markdown)
    )
    return markdown.replace("<details>", '<details markdown="1">')


class Examples(griffe.Extension):
    """Read `Example:` as the section of examples, which Griffe knows as `Examples:` only."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of a function, class, method or module."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
