from __future__ import annotations

import json
from pathlib import Path

import pytest

from antipodes.pages.page import Card, Curves, Facts, Gallery, Map, Page, Picture, Point, Table, render
from antipodes.pages.picture_store import PictureStore, data_uri
from antipodes.reporting.drawings import draw_lines
from tests.auditing.scenes import scene
from tests.pages.browser import opened

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>.jpg"


def sample_page() -> Page:
    """A page with every section, a hostile name in every place that takes a name."""
    cards = [
        Card("near duplicate", [Picture(0, EVIL), Picture(1, "b/two.jpg", "cat")], 0.99, "similarity 0.99", True),
        Card("false negative", [Picture(1, "b/two.jpg"), Picture(2, "three.jpg")], 0.7, "similarity 0.7", False),
        *(Card("false negative", [Picture(-1, f"no{i}.jpg")], 0.6 - i / 1000, "no picture") for i in range(70)),
    ]
    points = [Point(0.0, 0.0, 0, 0, EVIL), Point(1.0, 1.0, 1, 1, "b/two.jpg"), Point(0.5, 0.5, -1, -1, "alone")]
    lines = {EVIL: [(1.0, 3.0), (2.0, 2.0)], "b": [(1.0, 2.5), (2.0, float("nan"))]}
    return Page(
        f"A page of {EVIL}",
        "for the tests",
        [
            Facts("In numbers", [("samples", 12345), (EVIL, EVIL), ("nothing", None)], "A note."),
            Curves("Curves", [draw_lines("loss", lines, [EVIL, "b"])], [EVIL, "b"]),
            Table("Scores", ["run", "accuracy"], [["b", 9.5], [EVIL, 61.25], ["a10", 100.0], ["a2", None]]),
            Gallery("Pairs", cards),
            Map("Map", points, [EVIL, "cat"]),
        ],
        [data_uri(scene(number)) for number in range(3)],
    )


def test_the_page_is_whole_by_itself() -> None:
    html = render(sample_page())
    assert EVIL not in html
    assert "http://" not in html
    assert "https://" not in html
    assert "NaN" not in html.split('id="pictures"')[0].split("<script")[0]
    assert json.loads(html.split('id="pictures">')[1].split("</script>")[0]) == list(sample_page().pictures)


def test_odd_bytes_of_a_name_are_shown(tmp_path: Path) -> None:
    Page("\udcff.jpg", "", []).save(tmp_path / "x.html")
    assert r"\udcff.jpg" in (tmp_path / "x.html").read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["x.html"]


def test_curves_without_a_point_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_lines("loss", {"a": [(1.0, float("nan"))]}, ["a"])
    assert "<circle" in draw_lines("one point", {"a": [(1.0, 1.0)]}, ["a"])


def test_a_picture_store_holds_each_picture_once() -> None:
    picture_store = PictureStore()
    assert [picture_store.add(key, lambda: scene(0)) for key in ("a", "b", "a")] == [0, 1, 0]
    assert picture_store.add("gone", lambda: (_ for _ in ()).throw(OSError)) == -1
    assert len(picture_store.pictures) == 2


def test_the_page_in_a_browser(tmp_path: Path) -> None:
    sample_page().save(tmp_path / "page.html")
    with opened(tmp_path / "page.html", viewport={"width": 1200, "height": 900}) as page:
        assert page.title() == f"A page of {EVIL}"
        assert page.locator("h1").inner_text() == f"A page of {EVIL}"

        column = "section.table tbody td:first-child"
        head = page.locator("section.table th")
        head.nth(1).click()  # numbers: the largest first, those without at the end
        assert page.locator(column).all_inner_texts() == ["a10", EVIL, "b", "a2"]
        head.nth(1).click()
        assert page.locator(column).all_inner_texts() == ["b", EVIL, "a10", "a2"]
        head.nth(0).click()
        assert page.locator(column).all_inner_texts()[1:] == ["a2", "a10", "b"]
        assert head.nth(0).get_attribute("aria-sort") == "ascending"
        page.locator("section.table .words").fill("a1")
        assert page.locator(f"{column}:visible").all_inner_texts() == ["a10"]

        cards = page.locator("section.gallery .card:visible")
        assert cards.count() == 60
        page.locator("section.gallery .more").click()
        assert cards.count() == 72
        page.get_by_role("button", name="near duplicate").click()
        assert cards.count() == 1
        assert cards.locator("img").first.evaluate("image => image.complete && image.naturalWidth") == 128
        assert cards.locator(".name").first.get_attribute("title") is None
        page.get_by_role("button", name="all").click()
        page.locator("section.gallery .words").fill("three")
        assert cards.count() == 1
        assert cards.first.locator(".verdict").inner_text() == "✗ other label"
        page.locator("section.gallery .words").fill("")
        page.locator("section.gallery .order").click()
        assert cards.first.locator(".name").inner_text() == "no69.jpg"

        canvas = page.locator("canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + 17, box["y"] + box["height"] - 17)
        assert page.locator(".tip span").inner_text() == EVIL
        assert page.locator(".tip img").evaluate("image => image.naturalWidth") == 128
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert page.locator(".tip span").inner_text() == "alone"
        assert page.locator(".tip img").is_hidden()
        assert page.locator("polyline").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_reader_and_a_phone_needs_no_sideways_scroll(tmp_path: Path, scheme: str) -> None:
    sample_page().save(tmp_path / "page.html")
    with opened(tmp_path / "page.html", viewport={"width": 360, "height": 740}, color_scheme=scheme) as page:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
        assert (colour > 128) == (scheme == "light")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
