"""Downloads: https only, also behind redirections, and bounds on size and time, against a real server."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from antipodes.data.dataset import DataError
from antipodes.data.download import download

CONTENT = b"photos" * 1000
CHECKSUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/to-ftp":
            self.send_response(302)
            self.send_header("Location", f"ftp://127.0.0.1:{self.server.server_address[1]}/whole")
            self.end_headers()
            return
        self.send_response(200)
        if self.path != "/unsized":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        for start in range(0, len(CONTENT), 1000):
            try:
                self.wfile.write(CONTENT[start : start + 1000])
            except OSError:  # the client has given up
                return
            if self.path == "/slow":
                time.sleep(0.3)

    def log_message(self, *_: object) -> None:
        """Keep the output of tests clean."""


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def test_only_https_is_downloaded(server: str, tmp_path: Path) -> None:
    for url in (f"{server}/whole", f"file://{__file__}"):
        with pytest.raises(DataError, match="only https"):
            download(url, tmp_path / "a", CHECKSUM)
    with pytest.raises(DataError, match=r"ftp://.* only http"):
        download(f"{server}/to-ftp", tmp_path / "a", CHECKSUM, schemes=("http",))
    assert not list(tmp_path.iterdir())


def test_size_and_time_are_bounded(server: str, tmp_path: Path) -> None:
    for page in ("whole", "unsized"):
        with pytest.raises(DataError, match="5,999 bytes"):
            download(f"{server}/{page}", tmp_path / "a", CHECKSUM, largest=5999, schemes=("http",))
    started = time.monotonic()
    with pytest.raises(DataError, match="too slow"):
        download(f"{server}/slow", tmp_path / "a", CHECKSUM, seconds=0.5, schemes=("http",))
    assert time.monotonic() - started < 1.7  # the whole answer takes 1.8 seconds
    assert not list(tmp_path.iterdir())


def test_a_file_within_the_bounds_arrives(server: str, tmp_path: Path) -> None:
    for page in ("whole", "unsized"):
        download(f"{server}/{page}", tmp_path / page, CHECKSUM, largest=6000, schemes=("http",))
        assert (tmp_path / page).read_bytes() == CONTENT
