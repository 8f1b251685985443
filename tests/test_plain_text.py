"""Names from data: no terminal, spreadsheet or page obeys them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from antipodes.auditing.embeddings import Vectors, read_embeddings, write_embeddings
from antipodes.data import Folder
from antipodes.encoders import create, patches
from antipodes.encoders.export import export_backbone
from antipodes.plain_text import csv_cell, from_csv_cell, printable
from antipodes.tables import write_table
from tests.cli.command import here, refused

ESCAPE = "\x1b]0;owned\x07\x1b[31m\u202e"
FORMULA = "=1+1"


def starts_no_escape(text: str) -> bool:
    return not set(text) & {"\x1b", "\x07", "\u202e", "\x9b"}


@given(st.text(st.characters(exclude_categories=[])))
def test_whatever_is_printed_is_printable_and_plain_text_stays(text: str) -> None:
    shown = printable(text)
    shown.encode()  # no lone surrogates
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in shown)
    if text.isprintable():
        assert shown == text


@given(st.one_of(st.text(), st.text("'=+-@\t\r01.e", max_size=6)))
def test_a_cell_of_a_csv_file_is_no_formula_and_comes_back(text: str) -> None:
    cell = csv_cell(text)
    assert isinstance(cell, str)
    assert from_csv_cell(cell) == text
    if cell[:1] and cell[0] in "=+-@\t\r":
        float(cell)  # a number is the one thing that may begin so


def test_names_of_files_and_classes_reach_the_terminal_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "PATCHES", 4000)  # to be quick
    vectors = tmp_path / "v.npz"
    names = [f"album/{number}{ESCAPE}[bold]x.jpg" for number in range(4)]
    np.savez(vectors, embeddings=np.eye(4, dtype=np.float32) + 0.1, paths=np.array(names))
    code, text, errors = here("neighbours", vectors, "--k", 1)
    assert code == 0, errors
    assert starts_no_escape(text)
    assert "owned" in text
    assert starts_no_escape(refused("neighbours", vectors, "--queries", f"none{ESCAPE}"))
    photos = tmp_path / f"photos{ESCAPE}"
    for kind in (f"a{ESCAPE}", "b"):
        (photos / kind).mkdir(parents=True)
        for number in range(10):
            Image.effect_noise((40, 40), 50 + number).save(photos / kind / f"{number}.png")
    (photos / "b" / f"bad{ESCAPE}.png").write_bytes(b"damaged")
    for call in (["audit", photos, "--encoder", "patches"], ["embed", "patches", photos]):
        out = tmp_path / ("audit" if call[0] == "audit" else f"{ESCAPE}.npz")
        code, text, errors = here(*call, "--out", out)
        assert code == 0, errors
        assert starts_no_escape(text + errors)
        assert "owned" in errors  # the file that was left out


def test_tables_of_names_start_no_formula(tmp_path: Path) -> None:
    (tmp_path / "photos" / FORMULA).mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(tmp_path / "photos" / FORMULA / f"{number}.png")
    (tmp_path / "photos" / FORMULA / "bad.png").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="bad"):
        data = Folder(str(tmp_path / "photos"))
    data.write_skipped(tmp_path / "skipped.csv")
    write_table(tmp_path / "table.csv", {"path": [f"{FORMULA}/a.png", "b"], "score": [-0.5, 2.0]})
    with (tmp_path / "skipped.csv").open(newline="") as first, (tmp_path / "table.csv").open(newline="") as second:
        assert list(csv.reader(first))[1][0] == f"'{FORMULA}/bad.png"
        assert list(csv.reader(second))[1:] == [[f"'{FORMULA}/a.png", "-0.5"], ["b", "2.0"]]
    paths = (f"{FORMULA}/a.png", "b.png")
    write_embeddings(tmp_path / "v.npy", Vectors(np.eye(2, dtype=np.float32), paths))
    assert f"'{FORMULA}" in (tmp_path / "v.paths.csv").read_text()
    assert read_embeddings(tmp_path / "v.npy").paths == paths


def test_a_model_card_holds_no_html_of_names(tmp_path: Path) -> None:
    encoder = create("resnet8-slim")
    encoder.origin = ("<img src=x onerror=alert(1)>`<b>", {"path": "`<script>alert(2)</script>"})
    facts = {"data": "<script>alert(3)</script> [x](javascript:alert(4)) \x1b[31m", "<b>": "1 | 2"}
    export_backbone(encoder, tmp_path / "encoder.safetensors", card=facts)
    text = (tmp_path / "encoder.md").read_text()
    outside = "".join(part for line in text.splitlines() for part in line.split("`")[::2])
    assert "<" not in outside
    assert "&lt;script&gt;" in outside
    assert "[x](" not in text
    assert starts_no_escape(text)
    assert all(line.count("`") % 2 == 0 for line in text.splitlines() if line.startswith("|"))
