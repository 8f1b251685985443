"""The page on which pairs are decided, driven in a real Chromium: keyboard, mouse, file, phone, dark, 5,000 pairs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import antipodes
from antipodes.auditing.decisions import DIFFERENT, SAME
from antipodes.pages.page import Page, Review, ReviewPair
from antipodes.pages.picture_store import data_uri
from tests.auditing.scenes import scene
from tests.auditing.test_audit import TEXTS, kinds_of
from tests.pages.browser import opened

EVIL = '</script><script>alert(1)</script><img src=x onerror=alert(2)> "quoted" \x1b[31m\u202e'


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("review")
    rows = [*TEXTS, f"{EVIL} track it", f"{EVIL} track IT"]
    (folder / "x.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in rows))
    antipodes.audit(folder / "x.jsonl", encoder="ngrams", out=folder / "audit")
    return folder


def current(page: Any) -> str:
    return str(page.locator(".pair.current blockquote").first.text_content())


def test_pairs_are_decided_by_keys_and_mouse_and_the_file_is_applied(texts: Path, tmp_path: Path) -> None:
    with opened(texts / "audit" / "report.html", accept_downloads=True) as page:
        assert "0 of" in page.locator(".review-state").text_content()
        shown = page.locator(".pair")
        assert shown.count() >= 4
        first = shown.first.locator("blockquote").all_text_contents()
        assert len(first) == 2  # both texts in full
        assert {text.casefold().split()[0] for text in first} <= {"how", EVIL.casefold().split()[0]}
        page.keyboard.press("j")
        page.keyboard.press("k")
        assert shown.first.evaluate("each => each === document.activeElement")
        page.keyboard.press("s")  # decides, and goes on
        assert shown.first.get_attribute("data-decision") == "same"
        assert shown.nth(1).evaluate("each => each.classList.contains('current')")
        page.keyboard.press("x")
        near = page.locator(".pair", has_text="near duplicate")
        for place in range(near.count()):
            near.nth(place).get_by_role("button", name="different", exact=True).click()
        page.locator(".words").first.fill("s d j")  # letters in a box decide nothing
        page.locator(".words").first.fill("rome")
        assert page.locator(".pair").count() == 1
        page.get_by_role("button", name="same", exact=True).click()
        page.get_by_role("button", name="same", exact=True).click()  # once more takes it back
        page.get_by_role("button", name="same", exact=True).click()
        page.locator(".words").first.fill("")
        state = page.locator(".review-state").text_content()
        assert "5 of 6 decided: 2 same, 2 different" in state
        assert "1 skipped" in state
        assert "not saved" in state
        with page.expect_download() as download:
            page.get_by_role("button", name="save decisions.json").click()
        download.value.save_as(tmp_path / "decisions.json")
        assert "not saved" not in page.locator(".review-state").text_content()
        page.reload()  # localStorage keeps them
        assert page.locator(".review-state").text_content().startswith(state.split(":")[0])
        page.locator(".review-open").check()
        assert page.locator(".pair[data-decision=same]").count() == 0
    found = antipodes.audit(
        texts / "x.jsonl", encoder="ngrams", out=tmp_path / "again", decisions=tmp_path / "decisions.json"
    )
    kinds = kinds_of(found)
    assert kinds[40, 42] == kinds[41, 42] == DIFFERENT
    assert kinds[44, 45] == SAME
    assert found.groups["group"][44] == found.groups["group"][45] >= 0
    with opened(tmp_path / "again" / "report.html") as page:  # the next page starts with them
        assert "2 same" in page.locator(".review-state").text_content()


def test_a_group_is_decided_at_once_and_other_words_are_marked(texts: Path) -> None:
    with opened(texts / "audit" / "report.html") as page:
        group = page.locator(".pair", has_text="group of 3 pairs")
        assert group.count() == 3
        assert set(group.locator("mark").all_text_contents()) == {"parcel", "its", "way?", "parcle", "it's", "way", "?"}
        group.first.get_by_role("button", name="group of").click()
        assert page.locator(".pair").count() == 3
        page.keyboard.press("Shift+D")
        assert "3 different" in page.locator(".review-state").text_content()
        page.get_by_role("button", name="all same").last.click()
        assert "3 same, 0 different" in page.locator(".review-state").text_content()
        page.get_by_role("button", name="all same").first.click()  # once more takes it back
        assert "0 of 6 decided" in page.locator(".review-state").text_content()


def test_decisions_of_a_file_are_loaded_on_the_page(texts: Path, tmp_path: Path) -> None:
    with opened(texts / "audit" / "report.html") as page:
        item = page.evaluate("JSON.parse(document.querySelector('.review-data').textContent)[0]")
        content = {"decisions": [{"a": item["b"], "b": item["a"], "decision": "different"}, {"a": "gone", "b": "x"}]}
        (tmp_path / "d.json").write_text(json.dumps(content))
        page.locator(".review-load").set_input_files(tmp_path / "d.json")
        page.locator(".review-state", has_text="1 loaded").wait_for()
        (tmp_path / "d.json").write_text("no json")
        page.locator(".review-load").set_input_files(tmp_path / "d.json")
        page.locator(".review-state", has_text="no decisions").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_suits_a_phone_and_a_screen_reader(texts: Path, scheme: str) -> None:
    viewport = {"width": 360, "height": 740}
    with opened(texts / "audit" / "report.html", viewport=viewport, color_scheme=scheme) as page:
        width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1]
        button = page.get_by_role("button", name="different", exact=True).first.bounding_box()
        assert button["height"] >= 44
        assert page.get_by_role("group", name="exact duplicate").first.is_visible()
        assert page.locator(".pair .same").first.get_attribute("aria-pressed") == "false"
        assert page.get_by_role("progressbar", name="decided pairs").count() == 1
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(paper.removeprefix("rgb(").split(",")[0]) < 100) is (scheme == "dark")
        assert page.evaluate("document.querySelectorAll('script').length") == 4  # none came with the texts


def many(file: Path, count: int) -> Path:
    """A page of pairs of photos."""
    pictures = [data_uri(scene(number), 224) for number in range(20)]
    numbers = np.random.default_rng(0).integers(0, 20, (count, 2)).tolist()
    pairs = [
        ReviewPair(
            (f"a/{i}.jpg", f"b/{i}.jpg"), (f"a/{i}.jpg", f"b/{i}.jpg"), "near duplicate", "near duplicate", 0.9, "",
            (one, other),
        )
        for i, (one, other) in enumerate(numbers)
    ]  # fmt: skip
    Page("Many", "", [Review("Pairs", pairs, "x")], pictures).save(file)
    return file


NAMED = {"button", "image", "checkbox", "searchbox", "combobox", "progressbar", "group", "link"}
"""What a screen reader reads out by its name."""


def accessible(page: Any) -> list[dict[str, Any]]:
    """What the browser tells a screen reader: role, name and properties, in the order of the page."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    return [
        {"role": node["role"]["value"], "name": node.get("name", {}).get("value", "")}
        | {each["name"]: each["value"].get("value") for each in node.get("properties", ())}
        for node in nodes
        if not node.get("ignored")
    ]


def test_a_screen_reader_is_told_what_everything_is(tmp_path: Path) -> None:
    with opened(many(tmp_path / "many.html", 500)) as page:
        page.keyboard.press("s")
        told = accessible(page)
    named = [each for each in told if each["role"] in NAMED]
    assert [each for each in named if not each["name"].strip()] == []
    assert {each["name"] for each in named if each["role"] == "image"} >= {"a/0.jpg", "b/0.jpg"}
    assert {each["name"] for each in named if each["role"] == "button"} >= {"same", "different", "skip"}
    focused = [each["name"] for each in named if each.get("focused")]
    assert focused == ["near duplicate: a/1.jpg and b/1.jpg"]  # the key has decided about the first and gone on
    pressed = [each["name"] for each in named if each.get("pressed") == "true"]
    assert pressed == ["same"]
    assert any(each["role"] == "status" and each.get("live") == "polite" for each in told)


def test_five_thousand_pairs_stay_fast(tmp_path: Path) -> None:
    with opened(many(tmp_path / "many.html", 5000), viewport={"width": 1200, "height": 800}) as page:
        assert page.locator(".pair").count() < 200  # cards are made when they come into view
        start = time.monotonic()
        for key in "sdx" * 30:
            page.keyboard.press(key)
        assert time.monotonic() - start < 20
        assert "90 of 5000 decided: 30 same" in page.locator(".review-state").text_content()
        assert page.locator(".pair.current figcaption").first.text_content() == "a/90.jpg"
        slowest = page.evaluate(
            """() => { const start = performance.now(); const box = document.querySelector('.review .words');
            box.value = 'b/4999'; box.dispatchEvent(new Event('input')); return performance.now() - start }"""
        )
        assert slowest < 1000
        assert page.locator(".pair").count() == 1
