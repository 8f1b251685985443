"""What users copy runs: every snippet of docs/own-loop.md, every file and the notebook of examples/."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-loop.md").read_text()
FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)
IMPORTED = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)
SETUP = FENCE.search(PAGE)
SECTIONS = {
    part.splitlines()[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:] if FENCE.search(part)
}
SNIPPETS = [(title, number) for title, part in SECTIONS.items() for number in range(len(FENCE.findall(part)))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PACKAGES = {
    "hugging_face_trainer": "accelerate",
    "lightning_module": "lightning",
    "metric_learning_miner": "pytorch_metric_learning",
}


def missing(code: str) -> str | None:
    """The first package that a snippet imports and that is not installed."""
    return next((name for name in IMPORTED.findall(code) if importlib.util.find_spec(name) is None), None)


@pytest.mark.parametrize(("title", "number"), SNIPPETS, ids=[f"{title}-{number}" for title, number in SNIPPETS])
def test_a_snippet_runs_after_those_before_it(title: str, number: int) -> None:
    assert SETUP is not None
    *before, code = FENCE.findall(SECTIONS[title])[: number + 1]
    if (package := missing(code)) is not None:
        pytest.skip(f"{package} is not installed: pip install {package}")
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    for each in (SETUP.group(1), *(each for each in before if missing(each) is None), code):
        exec(each, names)
    if "loss" in names:
        assert math.isfinite(names["loss"].item())


def test_the_page_has_the_loops_that_people_ask_for() -> None:
    for title in (
        "A plain loop",
        "A queue or a bank",
        "Text pairs",
        "Images and texts",
        "Lightning",
        "Gradient accumulation",
        "A policy of your own",
    ):
        assert title in SECTIONS


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(path.read_text().splitlines()) < 60
    if path.stem == "sentence_transformers_pairs":
        pytest.skip("its test, tests/integrations, gives it an encoder: make test-integrations")
    if (package := PACKAGES.get(path.stem)) is not None:
        pytest.importorskip(package, reason=f"{package} is not installed: make test-integrations")
    assert math.isfinite(runpy.run_path(str(path))["main"]())


def test_the_notebook_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples" / "audit.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec("".join(cell["source"]), names)
            assert printed.getvalue() == "".join(line for output in cell["outputs"] for line in output["text"])


def test_no_example_hides_a_module_of_python() -> None:
    """Python looks for modules beside the script first, so that a name like queue.py would break `import torch`."""
    assert not {path.stem for path in EXAMPLES} & sys.stdlib_module_names


def test_an_example_runs_as_a_script(tmp_path: Path) -> None:
    """Its folder is then the first place where modules are looked for."""
    script = ROOT / "examples" / "gradient_accumulation.py"
    call = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert call.returncode == 0, call.stderr


def test_the_accumulated_gradient_is_that_of_the_whole_batch() -> None:
    """What docs/own-loop.md does in two passes, against one pass."""
    assert SETUP is not None
    names: dict[str, Any] = {}
    exec(SETUP.group(1), names)
    (code,) = FENCE.findall(SECTIONS["Gradient accumulation"])
    exec(code.replace("optimizer.step()", ""), names)
    encoder = names["encoder"]
    gradients = [parameter.grad.clone() for parameter in encoder.parameters()]
    encoder.zero_grad()
    names["loss_fn"](*encoder(names["views"]).chunk(2), names["ids"]).backward()
    for gradient, parameter in zip(gradients, encoder.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_two_towers_learn_from_a_file_of_users_and_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two groups of users, each with items of its own: half of them are for the test."""
    rows = [(user, 40 * (user % 2) + (user * 7 + 3 * place) % 40, place) for user in range(60) for place in range(12)]
    lines = [f"{'test' if place % 3 == 2 else 'train'},u{user},i{item}" for user, item, place in rows]
    (tmp_path / "table.csv").write_text("\n".join(["split,user,item", *lines]) + "\n")
    recall = runpy.run_path(str(ROOT / "examples" / "two_tower.py"))["main"](str(tmp_path / "table.csv"), epochs=200)
    first, second = (float(number) for number in re.findall(r"recall@20 ([\d.]+)", capsys.readouterr().out))
    assert recall == pytest.approx(second, abs=1e-3)
    assert recall > first + 0.2
