"""What `make docs` does to docstrings: `Example:` is the section of examples, whose code is code."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Griffe knows `Examples:` only."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of a function, class, method or module."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
