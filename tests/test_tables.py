from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antipodes import tables
from antipodes.tables import read_table, write_table


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_a_table_written_in_parts_is_the_table_written_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str
) -> None:
    columns: dict[str, Any] = {
        "path": [f"a{row}.png" for row in range(8)],
        "text": [None, None, None, None, "d", "e", None, "h"],  # a part without any value
        "row": np.arange(8),
        "score": [1, 2, 3, 0.5, 4, 5, 6, 7],  # whole numbers in some parts
        "leak": [True, False] * 4,
    }
    write_table(tmp_path / f"whole{ending}", columns)
    monkeypatch.setattr(tables, "_AT_A_TIME", 3)
    write_table(tmp_path / f"parts{ending}", columns)
    whole, parts = (read_table(tmp_path / f"{name}{ending}") for name in ("whole", "parts"))
    assert {name: list(values) for name, values in whole.items()} == {
        name: list(values) for name, values in parts.items()
    }
    if ending == ".csv":
        assert (tmp_path / "whole.csv").read_bytes() == (tmp_path / "parts.csv").read_bytes()
    else:
        import pyarrow.parquet

        first, second = (pyarrow.parquet.read_schema(tmp_path / f"{name}.parquet") for name in ("whole", "parts"))
        assert first.equals(second, check_metadata=True)  # the same types, and the same digest
    monkeypatch.undo()
    assert list(read_table(tmp_path / f"parts{ending}")["path"]) == columns["path"]
