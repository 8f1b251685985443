"""Features of frozen towers: embedded once, kept by weights and data, looked up by row or by text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from antipodes import InfoNCE
from antipodes.data import Raw
from antipodes.data.augment import Plain
from antipodes.evaluation.compared import compared_embeddings
from antipodes.losses import SoftLabel
from antipodes.methods import CLIP, SANE, Method, Tower, Towers
from antipodes.pairs import normalise
from antipodes.runs.embedding import digest, use_cached_features
from antipodes.runs.views import BatchMaker, FrozenFeatures
from tests.training.paired import FEATURES, Dense, Paired, Pixels

PLAIN: dict[str, Any] = {"augmentation": {"name": "plain"}}
RANDOM: dict[str, Any] = {"augmentation": {"name": "simclr"}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def clip(*frozen: str, seed: int = 0) -> Method:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        towers = {"image": Tower(Pixels(), nn.Linear(12, 5)), "vector": Tower(Dense(FEATURES), nn.Linear(10, 5))}
    for name in frozen:
        towers[name].freeze()
    return CLIP(Towers(towers, CLIP.plan(Paired.modalities)), InfoNCE(0.1)).train()


def looked_up(method: Method, config: dict[str, Any], data: Paired | None = None) -> tuple[BatchMaker, list[str]]:
    said: list[str] = []
    views = BatchMaker(config, data or Paired(20), method)
    use_cached_features(views, method, views.data, config, said.append)
    return views, said


def test_what_is_looked_up_is_what_the_encoder_makes_of_the_plain_input(cache: Path) -> None:
    method = clip("image", "vector")
    views, said = looked_up(method, PLAIN)
    assert sorted(views.locked) == ["image", "vector"]
    assert said == [f"embedding 20 inputs of the frozen tower {name} once" for name in ("image", "vector")]
    rows = torch.tensor([7, 0, 19])
    raw = views.data.inputs(rows)
    batch = views.batch(rows, raw, (0,))
    for name in ("image", "vector"):
        expected = method.network[name].encoder(views.plain[name](raw[name]))
        torch.testing.assert_close(batch[name].views[0], expected)
        assert method.network[name].cached
    loss = method.loss(method.network, batch, 0.5)
    other = clip("image", "vector")
    torch.testing.assert_close(
        loss, other.loss(other.network, BatchMaker(PLAIN, views.data, other).batch(rows, raw, (0,)), 0.5)
    )
    assert len(list(cache.iterdir())) == 2


def test_only_towers_that_are_frozen_and_see_nothing_random() -> None:
    assert sorted(looked_up(clip(), PLAIN)[0].locked) == []
    assert sorted(looked_up(clip("image"), PLAIN)[0].locked) == ["image"]
    assert sorted(looked_up(clip("image", "vector"), RANDOM)[0].locked) == ["vector"]


def test_runs_share_what_is_kept_and_others_do_not(cache: Path) -> None:
    assert len(looked_up(clip("image"), PLAIN)[1]) == 1
    assert looked_up(clip("image"), PLAIN)[1] == []  # the same weights and data: nothing to do
    assert len(looked_up(clip("image", seed=1), PLAIN)[1]) == 1  # other weights
    assert len(looked_up(clip("image"), PLAIN, Paired(24))[1]) == 1  # other data
    other = clip("image")
    other.pixels = {"mean": (0.1, 0.1, 0.1), "std": (1.0, 1.0, 1.0)}
    assert len(looked_up(other, PLAIN)[1]) == 1  # other pixels
    assert len(list(cache.glob("*.npy"))) == 4
    assert not [path for path in cache.iterdir() if path.suffix != ".npy"]


def test_a_cache_that_cannot_be_written_is_done_without(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("not a folder")
    views, said = looked_up(clip("vector"), PLAIN)
    rows = torch.arange(3)
    assert len(said) == 1
    expected = views.method.network["vector"].encoder(views.data.inputs(rows)["vector"])
    torch.testing.assert_close(views.batch(rows, views.data.inputs(rows), (0,))["vector"].views[0], expected)
    assert os.listdir(cache.parent) == ["features"]


def test_looked_up_by_text_where_a_row_has_several() -> None:
    table = FrozenFeatures(torch.arange(6.0).view(3, 2), {"a": 0, "b": 1, "c": 2})
    raw: Raw = ["c", "a", "c"]
    assert table(torch.tensor([0, 1, 2]), raw).tolist() == [[4, 5], [0, 1], [4, 5]]
    by_row = FrozenFeatures(torch.arange(6.0).view(3, 2))
    assert by_row(torch.tensor([2, 0]), raw).tolist() == [[4, 5], [0, 1]]


def test_texts_are_embedded_once_each() -> None:
    class Words(nn.Module):
        """Lengths of texts."""

        num_features = 2
        modality = "text"

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 2)

        def tokenize(self, texts: list[str]) -> Tensor:
            return torch.tensor([[len(text)] for text in texts])

        def forward(self, tokens: Tensor) -> Tensor:
            out: Tensor = self.layer(tokens.float())
            return out

    class Captioned(Paired):
        """Every row one of three texts, by the draw."""

        modalities = {"text": "text", "vector": "vector"}

        def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> dict[str, Raw]:
            texts = ["x" * (1 + (row + sum(draw or ())) % 3) for row in rows.tolist()]
            return {"text": texts, "vector": self.vectors[rows]}

    towers = {"text": Tower(Words(), nn.Linear(2, 5)), "vector": Tower(Dense(FEATURES), nn.Linear(10, 5))}
    towers["text"].freeze()
    method = CLIP(Towers(towers, CLIP.plan(Captioned.modalities)), InfoNCE(0.1))
    views, said = looked_up(method, RANDOM, Captioned(20))
    assert said == ["embedding 3 inputs of the frozen tower text once"]
    rows = torch.arange(4)
    raw = views.data.inputs(rows, (1, 1))
    assert raw["text"] != views.data.inputs(rows)["text"]
    encoder = towers["text"].encoder
    expected = encoder(encoder.tokenize(raw["text"]))  # type: ignore[operator]
    torch.testing.assert_close(views.batch(rows, raw, (0,))["text"].views[0], expected)


def test_a_method_that_mixes_images_needs_them() -> None:
    tower = Tower(Pixels(), nn.Linear(12, 5))
    tower.freeze()
    method = SANE(Towers({"image": tower}), SoftLabel(), 5, queue_size=4)
    assert looked_up(method, PLAIN)[0].locked == {}
    assert not tower.cached


def test_a_digest_is_of_weights_tables_and_what_is_said() -> None:
    layer = nn.BatchNorm1d(3)
    found = {digest(layer), digest(layer, "a"), digest(layer, "b")}
    layer.running_mean.add_(1)  # type: ignore[union-attr]
    found.add(digest(layer))
    assert len(found) == 4
    assert digest(nn.Flatten()) != digest(nn.Identity())  # neither has weights


def test_what_a_policy_judges_after_training_comes_from_the_kept_features(cache: Path) -> None:
    method = clip("image", "vector")
    views, _ = looked_up(method, PLAIN)
    ids = torch.arange(20)
    expected = [
        normalise(method.network[name].head(method.network[name].encoder(views.plain[name](raw))))
        for name, raw in views.data.inputs(ids).items()
    ]
    fresh = clip("image", "vector")
    fresh.load_state_dict(method.state_dict())
    for name in ("image", "vector"):
        fresh.network[name].encoder.register_forward_pre_hook(lambda *_: pytest.fail("embedded once more"))
    judged = compared_embeddings(fresh, views.data, Plain(views.data.image_size), seed=0)
    torch.testing.assert_close(judged.anchors, expected[0].detach())
    torch.testing.assert_close(judged.candidates, expected[1].detach())
