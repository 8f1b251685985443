"""`antipodes demo` on a little data: an audit, three trainings, a table, what was flagged, a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antipodes.cli import demo
from tests.cli.command import here


def test_the_demo_without_a_networks_weights_is_guided_by_patches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "find_packaged", lambda *_: None)
    monkeypatch.setattr("antipodes.encoders.patches.PATCHES", 4000)  # to be quick
    monkeypatch.setattr(demo, "AUDITED", 60)
    out = tmp_path / "demo"
    code, said, errors = here("demo", "--data", "shapes", "--limit", 300, "--epochs", 1, "--out", out)
    assert code == 0, errors
    assert "patches instead" in said
    for row in ("random weights", "SimCLR, 1 epochs", "SimCLR + GloFND, 1 epochs", "SimCLR + distillation, 1 epochs"):
        assert row in said
    assert "The guide of the distillation flagged 10." in said
    found = re.search(r"found (\d+) of 40 changed copies .* among 100 images", said)
    assert found is not None
    assert int(found[1]) >= 38
    assert said.index("changed copies") < said.index("training SimCLR")
    assert (out / "audit" / "report.html").stat().st_size > 10_000
    assert all((out / part / "encoder.safetensors").is_file() for part in ("plain", "glofnd", "guided"))
    assert "name: patches" in (out / "guided" / "config.yaml").read_text()
    assert (out / "report.html").stat().st_size > 10_000
