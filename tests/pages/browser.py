"""A real browser for the tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def opened(file: Path, **options: Any) -> Iterator[Any]:
    """A page from a file in headless Chromium; fails at the end if the page logged or threw anything."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if BROWSER is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        try:
            page = browser.new_context(**options).new_page()
            page.set_default_timeout(120_000)  # of a machine that does other work, too
            said: list[str] = []
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("dialog", lambda dialog: (said.append("a dialog"), dialog.dismiss()))
            page.on("requestfailed", lambda request: said.append(f"failed: {request.url[:80]}"))
            page.goto(file.as_uri())
            yield page
            assert said == []
        finally:
            browser.close()
