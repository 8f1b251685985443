"""What `make docs` changes on its way from the pages and docstrings to the site."""

import re
from typing import Any

import griffe


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Render what is inside of collapsed parts, as GitHub does."""
    return markdown.replace("<details>", '<details markdown="1">')


class Examples(griffe.Extension):
    """Read `Example:` as the section of examples, which Griffe knows as `Examples:` only."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of a function, class, method or module."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
