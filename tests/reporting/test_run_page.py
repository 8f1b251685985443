from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path

import pytest

from antipodes.reporting.report import _curves, _lines
from antipodes.runs.records import epoch_lines
from tests.auditing.scenes import scene
from tests.cli.command import here, refused
from tests.pages.browser import opened

CLIPPED = """[...document.querySelectorAll("svg")].flatMap((svg) => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const { left, right, width } = text.getBoundingClientRect();
    return width && (left < box.left - 0.5 || right > box.right + 0.5);
  }).map((text) => text.textContent);
})"""
"""The labels of drawings that stick out of them."""
KINDS = ("bridges", "harbours", "meadows")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs that differ in their seed, on photos of which one has a hostile name and one is damaged."""
    place = tmp_path_factory.mktemp("runs")
    photos = place / "photos"
    for kind in ("cat", "dog"):
        (photos / kind).mkdir(parents=True)
        for number in range(12):
            scene(number + 20 * (kind == "dog")).save(photos / kind / f"{number}.png")
    scene(50).save(photos / "dog" / "<script>alert(1)<.png")
    (photos / "dog" / "broken.png").write_bytes(b"no picture")
    found = []
    for seed in (0, 1):
        run = place / f"seed{seed}"
        options = ["--encoder", "resnet8-slim", "--negatives", "glofnd", "--negatives.alpha", 0.2, "--epochs", 2]
        options += ["--batch_size", 8, "--seed", seed, "--data", photos, "--data.size", 32, "--out", run]
        code, _, errors = here("train", *options)
        assert code == 0, errors
        scores = {"linear top-1": 40.0 + seed, "knn top-1": 30.0}
        (run / "evaluation.json").write_text(json.dumps({run.name: scores, "measured with": {}}))
        found.append(run)
    return found


def test_a_report_of_two_runs(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    code, text, errors = here("report", *runs, "--out", out, "--json", "--shown", 10)
    assert code == 0, errors
    titles = json.loads(text)["sections"]
    flagged = ["Flagged by seed0", "Flagged by seed1"]
    assert titles[:6] == ["Scores", *flagged, "Map of seed0", "Map of seed1", "Curves"]  # the answer comes first
    assert titles[6:] == ["More curves", "Every run", "Scores over seeds", "Settings", "Data"]
    with opened(out) as page:
        scores = page.locator("section.scores")
        assert scores.locator("tbody tr").all_inner_texts() == [
            "simclr + glofnd (eliminate), 2 seeds\t40.5 ± 0.7\t30.0 ± 0.0"
        ]
        assert scores.locator("svg .value").all_text_contents() == ["40.5 ± 0.7", "30.0 ± 0.0"]
        assert scores.locator("svg .seed").count() == 4
        curves = page.locator("section.curves >> figure:visible")
        assert curves.count() == 5
        assert page.locator("section:has(h2:text-is('Every run')) table").is_hidden()  # folded until it is asked for
        page.locator("nav >> text=Every run").click()
        assert page.locator("section:has(h2:text-is('Every run')) table").is_visible()
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        assert page.evaluate(CLIPPED) == []
        assert page.locator("svg polyline").count() >= 2
        assert page.locator("canvas").count() == 2
        flagged = page.locator("section.gallery .card:visible")
        assert flagged.count() > 0
        assert flagged.first.locator("img").first.evaluate("image => image.naturalWidth") > 30
        assert flagged.first.locator(".verdict").count() == 1


def test_what_a_run_without_a_policy_shows(runs: list[Path], tmp_path: Path) -> None:
    run, out = tmp_path / "plain", tmp_path / "report.html"
    options = ["--encoder", "resnet8-slim", "--epochs", 3, "--batch_size", 8, "--data", runs[0].parent / "photos"]
    assert here("train", *options, "--data.size", 32, "--out", run)[0] == 0
    code, text, errors = here("report", run, runs[0], "--out", out, "--json")
    assert code == 0, errors
    titles = json.loads(text)["sections"]
    assert "Likely false negatives by plain" in titles
    assert "Flagged by plain" not in titles
    page = out.read_text()
    assert "similarity of positives" in page
    assert "positive_similarity" not in page
    assert "candidates pulled per anchor" not in page  # always zero
    assert str(runs[0].parent) not in page  # no paths of this machine
    with opened(out, viewport={"width": 400, "height": 800}) as browser:
        widths = browser.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert widths[0] == widths[1]
        table = browser.locator("section.scores .scroll").first
        assert table.evaluate("element => element.scrollWidth > element.clientWidth")
        ticks = browser.locator("section.curves svg").first.locator("text.tick[text-anchor=middle]").all_text_contents()
        assert ticks == ["1", "2", "3"]


def test_scores_of_earlier_weights_and_of_other_data_are_marked(runs: list[Path], tmp_path: Path) -> None:
    copies = [shutil.copytree(run, tmp_path / run.name) for run in runs]
    measured = [{"checkpoint": "last", "weights": "0123", "data": "25 rows a"}, {"data": "9 rows b"}]
    for run, one in zip(copies, measured, strict=True):
        scores = {run.name: {"knn top-1": 30.0}, "measured with": one}
        (run / "evaluation.json").write_text(json.dumps(scores))
    out = tmp_path / "report.html"
    code, text, errors = here("report", *copies, "--samples", 0, "--out", out, "--json")
    assert code == 0, errors
    titles = ["Scores", "Curves", "More curves", "Every run", "Settings"]
    assert json.loads(text)["sections"] == titles  # no mean of unlike scores
    page = out.read_text()
    assert "seed0 †" in page
    assert "seed1 †" not in page
    assert "trained on since" in page
    assert "Measured on different data, so not comparable: seed0: 25 rows a; seed1: 9 rows b." in page


def test_a_quick_report_leaves_the_data_alone(runs: list[Path], tmp_path: Path) -> None:
    code, text, _ = here("report", runs[0], "--samples", 0, "--out", tmp_path / "quick.html", "--json")
    assert code == 0
    assert json.loads(text)["sections"] == ["Scores", "Curves", "More curves", "Every run", "Settings"]


def test_wrong_calls_of_report(runs: list[Path], tmp_path: Path) -> None:
    assert "is not a run" in refused("report", tmp_path, "--out", tmp_path / "x.html")
    assert "named twice" in refused("report", runs[0], runs[0], "--out", tmp_path / "x.html")
    assert "should end in .html" in refused("report", runs[0], "--out", tmp_path / "x.pdf")
    assert "does not exist" in refused("report", runs[0], "--out", tmp_path / "missing" / "x.html")
    assert "samples must be" in refused("report", runs[0], "--samples", -1, "--out", tmp_path / "x.html")
    scores = runs[0] / "evaluation.json"
    kept = scores.read_text()
    scores.write_text("{broken")
    assert "is damaged" in refused("report", runs[0], "--samples", 0, "--out", tmp_path / "x.html")
    scores.write_text(kept)
    assert list(tmp_path.iterdir()) == []


def test_audit_and_embed_a_run(runs: list[Path], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    code, text, errors = here("audit", runs[0], "--out", tmp_path / "audit", "--json")
    assert code == 0, errors
    summary = json.loads(text)
    assert summary["samples"] == 25
    assert "thresholds of GloFND" in summary["encoder"]
    assert parquet.read_table(tmp_path / "audit" / "groups.parquet").num_rows == 25
    code, text, errors = here("embed", runs[0], "--out", tmp_path / "own.npz", "--json")
    assert code == 0, errors
    assert json.loads(text)["vectors"] == 25


def test_groups_of_an_audit_are_read_by_the_loss(runs: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from antipodes import Known

    assert here("audit", runs[0], "--encoder", "patches", "--out", tmp_path / "audit")[0] == 0
    assert len(Known.read(tmp_path / "audit" / "groups.parquet", num_samples=25).groups) == 25


def test_flagged_pairs_of_images_and_texts_show_their_captions(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(16):
        scene(number).save(photos / f"{number}.png")
    lines = "".join(f"{number}.png,a <b>scene</b> of {KINDS[number % 3]}\n" for number in range(16))
    (photos / "captions.csv").write_text(f"image,caption\n{lines}")
    run = tmp_path / "run"
    options = ["--method", "clip", "--encoder", "resnet8-slim", "--negatives", "fnc", "--negatives.alpha", 0.2]
    options += ["--batch_size", 8, "--epochs", 1, "--data", photos, "--data.size", 32, "--out", run]
    code, _, errors = here("train", *options)
    assert code == 0, errors
    photos.rename(tmp_path / "moved")
    out = tmp_path / "report.html"
    code, text, errors = here("report", run, "--out", out, "--json")
    titles = ["Scores", "Curves", "More curves", "Settings", "Data"]
    assert json.loads(text)["sections"] == titles  # the photos are gone, the rest can be shown
    code, text, errors = here("report", run, "--data", tmp_path / "moved", "--out", out, "--json", "--shown", 5)
    assert code == 0, errors
    titles = json.loads(text)["sections"]
    assert {"Flagged by run, image to text", "Flagged by run, text to image", "Map of run"} <= set(titles)
    with opened(out) as page:
        card = page.locator("section.gallery .card:visible").first
        assert card.locator("img").first.evaluate("image => image.naturalWidth") > 30
        assert "a <b>scene</b> of" in card.locator(".caption").first.inner_text()
        assert ".png" in card.locator(".name").first.inner_text()
        page.locator("section.gallery .words").first.fill("bridges")
        shown = page.locator("section.gallery").first.locator(".card:visible")
        assert all("bridges" in words for words in shown.all_inner_texts())
        page.locator("section.gallery .words").first.fill("mountains")
        assert shown.count() == 0


def test_one_place_for_the_data_of_several_runs(runs: list[Path], tmp_path: Path) -> None:
    config = (runs[0] / "config.yaml").read_text()
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text(config.replace("/photos\n", "/others\n"))
    assert "trained on several" in refused("report", runs[0], other, "--data", tmp_path, "--out", tmp_path / "x.html")


def test_a_page_of_many_epochs_is_small_and_needs_little_memory(runs: list[Path], tmp_path: Path) -> None:
    run, out = tmp_path / "long", tmp_path / "report.html"
    shutil.copytree(runs[0], run)
    count = 60_000
    with (run / "metrics.jsonl").open("w") as file:
        for epoch in range(1, count + 1):
            loss = 99.5 if epoch == 31_415 else 1 + 1 / epoch
            file.write(json.dumps({"kind": "epoch", "step": epoch, "epoch": epoch, "loss": loss, "lr": 0.1}) + "\n")
    assert here("report", run, "--samples", 0, "--out", out)[0] == 0
    page = out.read_text()
    assert len(page) < 200_000
    assert f"1 at epoch {count}" in page  # the last
    tracemalloc.start()
    curves = _curves(_lines({"long": epoch_lines(run)}), ["long"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert curves
    assert peak < 10_000_000  # a list of all lines takes 30 MB
    heights = [
        float(point.partition(",")[2]) for point in curves[0].drawings[0].split('points="')[1].split('"')[0].split()
    ]
    assert min(heights) < 60  # the peak at one epoch is still there
