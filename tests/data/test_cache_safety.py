"""The cache of decoded images after damage and kills: no wrong pixels, no hang, and no other user can read it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antipodes.data import Folder, pictures
from antipodes.files import locked

SIDE = 8


@pytest.fixture
def photos(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pictures, "WORTH_KEEPING", 1)
    folder = tmp_path / "photos"
    folder.mkdir()
    for value in range(6):
        Image.new("RGB", (40, 30), (10 * value, value, 3)).save(folder / f"{value}.png")
    return folder


def colours(folder: Path) -> list[int]:
    data = Folder(str(folder), size=SIDE, decode=SIDE, workers=0)
    return data.fetch(torch.arange(len(data)))[:, 0, 0, 0].tolist()


def kept_pixels(cache: Path) -> Path:
    (file,) = cache.glob("decoded/*/pixels-*")
    return file


@pytest.mark.parametrize("harm", ["flipped", "swapped", "cut", "longer", "names swapped"])
def test_damaged_pixels_are_decoded_again(photos: Path, cache: Path, harm: str) -> None:
    expected = colours(photos)
    file = kept_pixels(cache)
    pixels = np.fromfile(file, np.uint8).reshape(6, -1)
    if harm == "flipped":
        pixels[3, 7] ^= 1
    elif harm == "swapped":
        pixels[[1, 4]] = pixels[[4, 1]]
    elif harm == "cut":
        pixels = pixels[:5]
    elif harm == "longer":
        pixels = np.concatenate([pixels, pixels[:1]])
    else:
        index = file.parent / "index.json"
        text = index.read_text()
        index.write_text(text.replace('"1.png"', '"?"').replace('"4.png"', '"1.png"').replace('"?"', '"4.png"'))
    pixels.tofile(file)
    if harm in ("flipped", "swapped"):
        with pytest.warns(UserWarning, match=r"damaged: (3|1\.png, 4)\.png"):
            assert colours(photos) == expected
    else:
        assert colours(photos) == expected
    assert colours(photos) == expected  # and without a word now


def test_only_the_owner_may_read_the_cache(photos: Path, cache: Path, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        colours(photos)
        kept_pixels(cache).parent.chmod(0o755)  # as an earlier version left it
        Image.new("RGB", (40, 30)).save(photos / "new.png")
        colours(photos)
        with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
            for file in photos.iterdir():
                archive.write(file, f"a/{file.name}")
        colours(tmp_path / "photos.zip")
    finally:
        os.umask(before)
    inside = [path for top in ("decoded", "unpacked") for path in [cache / top, *(cache / top).rglob("*")]]
    assert len(inside) > 12
    assert [path for path in inside if path.stat().st_mode & 0o077] == []


SLOW = """
import os, sys, time
from antipodes.cli.errors import exit_code
from antipodes.data import Folder, decode, pictures
pictures.WORTH_KEEPING = 1
original = pictures.decode_sources
def slow(sources, size, keep):
    open(os.path.join(sys.argv[2], f"worker-{os.getpid()}"), "w").close()
    end = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < end and not os.path.exists(os.path.join(sys.argv[2], "go")):
        time.sleep(0.05)
    return original(sources, size, keep)
pictures.decode_sources = slow
def command(arguments):
    print(len(Folder(arguments[0], size=8, decode=8, workers=2)))
sys.exit(exit_code(command, sys.argv[1:]))
"""


@pytest.fixture
def many(tmp_path: Path, cache: Path) -> Path:
    folder = tmp_path / "many"
    folder.mkdir()
    for value in range(130):  # three tasks for two workers
        Image.new("RGB", (8, 8), (value, 0, 0)).save(folder / f"{value}.bmp")
    return folder


def start(folder: Path, notes: Path, seconds: float) -> subprocess.Popen[str]:
    call = [sys.executable, "-c", SLOW, str(folder), str(notes), str(seconds)]
    return subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def workers_of(notes: Path, count: int) -> list[int]:
    end = time.monotonic() + 60
    while len(found := list(notes.glob("worker-*"))) < count and time.monotonic() < end:
        time.sleep(0.05)
    return [int(file.name.partition("-")[2]) for file in found]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_scan_leaves_no_workers_and_no_lock(many: Path, cache: Path, tmp_path: Path, number: int) -> None:
    process = start(many, tmp_path, 600)
    workers = workers_of(tmp_path, 2)
    assert len(workers) == 2
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    if number == signal.SIGTERM:
        assert (process.returncode, errors) == (143, "antipodes: stopped\n")
        assert [path.name for path in cache.glob("decoded/*/*")] == ["lock"]
    else:
        assert process.returncode == -signal.SIGKILL
    end = time.monotonic() + 10
    while any(map(is_running, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
    answer, errors = start(many, tmp_path, 0).communicate(timeout=60)
    assert (answer, errors) == ("130\n", "")
    assert len(list(cache.glob("decoded/*/pixels-*"))) == 1


def test_workers_do_not_hold_the_lock_of_their_parent(tmp_path: Path) -> None:
    code = """
import os, sys, time
from pathlib import Path
from antipodes.files import locked
with locked(Path(sys.argv[1]), "x"):
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(30)
        os._exit(0)
    print(child, flush=True)
    os._exit(0)  # the child lives on
"""
    call = [sys.executable, "-c", code, str(tmp_path / "lock")]
    child = int(subprocess.run(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=True).stdout)
    try:
        begin = time.monotonic()
        with locked(tmp_path / "lock", "x"):
            assert time.monotonic() - begin < 1
        assert is_running(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_who_waits_for_a_lock_says_so_once(many: Path, tmp_path: Path) -> None:
    first = start(many, tmp_path, 60)
    workers_of(tmp_path, 2)
    second = start(many, tmp_path, 0)
    assert second.stderr is not None
    said = second.stderr.readline()
    (tmp_path / "go").touch()
    answer, errors = second.communicate(timeout=60)
    errors = said + errors
    assert first.communicate(timeout=60) == ("130\n", "")
    assert answer == "130\n"
    assert errors.count("\n") == 1
    assert "waiting" in errors
    assert str(many) in errors


@pytest.mark.parametrize("fresh", [True, False], ids=["just decoded", "from an earlier scan"])
def test_a_cache_that_is_cut_while_it_is_used_is_an_error_and_no_signal(photos: Path, cache: Path, fresh: bool) -> None:
    program = """
import os, sys, torch
from pathlib import Path
from antipodes.data import DataError, Folder, pictures
pictures.WORTH_KEEPING = 1
data = Folder(sys.argv[1], size=8, decode=8, workers=0)
os.truncate(next(Path(sys.argv[2]).glob("decoded/*/pixels-*")), 8)
try:
    data.fetch(torch.arange(len(data)))
except DataError as error:
    print(error)
"""
    if not fresh:
        colours(photos)
    call = [sys.executable, "-c", program, str(photos), str(cache)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr  # -7 is SIGBUS
    assert "pixels-" in done.stdout
    assert "cut" in done.stdout
