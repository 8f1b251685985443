"""Tables on the terminal: cells show names from data as they are, without markup and control characters."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape
from rich.table import Table

from antipodes.plain_text import printable


def cell(value: object) -> str:
    """A value as a cell: thousands apart, and nothing in a text that a terminal or rich would obey."""
    return f"{value:,}" if isinstance(value, int | float) else escape(printable(str(value)))


def facts_table(title: str, facts: Mapping[str, object]) -> Table:
    """Names with values, one a line."""
    table = Table("", title=cell(title), show_header=False)
    table.add_column("", justify="right")
    for name, value in facts.items():
        table.add_row(cell(name), cell(value))
    return table
