"""Scores of several encoders as a table for people, and as a dictionary for scripts."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from antipodes.evaluation.names import is_setting

Row = Mapping[str, str | float]
NO_PERCENT = ("MAE", "RMSE", "alignment", "uniformity")
"""Suffixes of the scores that are distances or cosines, not percentages."""


def results_table(rows: Sequence[Row], title: str | None = None) -> Table:
    """Return a table with a line per row and a column per score, in percent with one decimal.

    Args:
        rows: such as ``{"encoder": "trained", "linear top-1": 62.14}``; a score that a row lacks shows as a dash,
            and settings that a protocol chose (see names.is_setting) are left out.
        title: above the table.
    """
    columns = [name for name in _columns(rows) if not is_setting(name)]
    table = Table(title=title)
    for name in columns:
        text = any(isinstance(row.get(name), str) for row in rows)
        table.add_column(name, justify="left" if text else "right", no_wrap=text)
    for row in rows:
        table.add_row(*(_cell(name, row.get(name)) for name in columns))
    return table


def scores_table(row: Row, title: str | None = None) -> Table:
    """Return the scores of one encoder in one column, which fits any terminal."""
    table = Table("score", title=title)
    table.add_column(str(row["encoder"]), justify="right")
    for name in _columns([row]):
        if not is_setting(name) and name != "encoder":
            table.add_row(name, _cell(name, row[name]))
    return table


def results_dictionary(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the scores for JSON: encoder -> score -> percent with three decimals (settings are not rounded).

    Raises:
        ValueError: if a row has no encoder, or two rows have the same.

    Example:
        >>> results_dictionary([{"encoder": "trained", "knn top-1": 61.00000001}])
        {'trained': {'knn top-1': 61.0}}
    """
    names = [str(row.get("encoder", "")) for row in rows]
    if "" in names or len(set(names)) < len(names):
        raise ValueError(f"every row needs an 'encoder' of its own, got {names}")
    return {
        name: {
            key: float(value) if is_setting(key) else round(float(value), 3)
            for key, value in row.items()
            if key != "encoder"
        }
        for name, row in zip(names, rows, strict=True)
    }


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _cell(name: str, value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.3f}" if name.endswith(NO_PERCENT) else f"{value:.1f}"
