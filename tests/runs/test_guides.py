"""Guides of a run: what the loss is handed by row, what is refused, what is learned, saved and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import save_file
from torch import Tensor, nn

from antipodes import DatasetNeighbours, Guided, InfoNCE, TableGuide
from antipodes.cli.train import parse
from antipodes.encoders.loading import LoadedEncoder
from antipodes.encoders.patches import PatchEncoder
from antipodes.evaluation.compared import compared_embeddings
from antipodes.guides import GuideSource, HistoryGuide, RunGuide
from antipodes.methods import Batch, Method
from antipodes.pairs import Pairs, normalise
from antipodes.runs import guides as run_guides
from antipodes.runs.build import build_data, build_method
from antipodes.runs.settings import Settings
from antipodes.runs.views import BatchMaker
from antipodes.training.between import fit_policies
from tests.cases import every
from tests.training.paired import FEATURES, Dense, Paired

N = 64
PAIRED: list[object] = [
    "--data", "tests.training.paired.Paired", "--encoder", "tests.training.paired.Pixels", "--encoders.vector",
    "tests.training.paired.Dense", "--head.hidden", 8, "--head.dim", 5, "--head.batch_norm", "false",
]  # fmt: skip
GUIDED: list[object] = ["--negatives", "guided", "--negatives.margin", 0.6]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    np.save(tmp_path / "table.npy", noise(N, 4).numpy())
    return tmp_path / "table.npy"


def made(*options: object) -> tuple[Method, Paired, dict[str, Any]]:
    """A method as the command line builds it, its data and its configuration."""
    config, _ = parse([str(option) for option in (*PAIRED, *options)])
    data = build_data(config["data"])
    assert isinstance(data, Paired)
    torch.manual_seed(0)
    return build_method(config, data).train(), data, config


def batch(method: Method, data: Paired, config: dict[str, Any], rows: Tensor, step: int = 0) -> Batch:
    return BatchMaker(config, data, method).batch(rows, data.inputs(rows), (0, step, 0))


class Tens(GuideSource):
    """A source of one's own: ten rows share a direction.

    Args:
        num_samples: Given by the run.
        angle: Between two of them, in radians.
    """

    def __init__(self, num_samples: int, angle: float = 0.5) -> None:
        super().__init__()
        self.count, self.angle = num_samples, angle

    def forward(self, rows: Tensor, inputs: Any = None) -> Tensor:
        angles = (rows // 10).float() * self.angle
        return torch.stack((angles.cos(), angles.sin()), dim=1)


def test_every_method_hands_the_guide_of_the_rows_to_its_loss(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anchors and candidates of the batch, a queue with empty slots, a bank and the other modality alike."""
    empty: list[bool] = []
    judge = Guided.judge
    vectors = normalise(torch.from_numpy(np.load(table)))

    def checked(self: Guided, pairs: Pairs, progress: float, learn: bool = True) -> Any:
        assert pairs.guide is not None
        anchors, candidates = pairs.rows()
        torch.testing.assert_close(pairs.guide.anchors, vectors[anchors])
        torch.testing.assert_close(pairs.guide.positives, torch.ones(len(anchors)))
        expected = vectors[candidates.clamp(min=0)].masked_fill((candidates < 0)[:, None], 0.0)
        torch.testing.assert_close(pairs.guide.keys(), expected)
        assert (pairs.guide.candidates is None) == (pairs.candidates is None)
        empty.append(bool((candidates < 0).any()))
        return judge(self, pairs, progress, learn)

    monkeypatch.setattr(Guided, "judge", checked)
    rows = torch.arange(20, 36)
    grey: list[object] = ["--encoders.l", f"{__name__}.Grey", "--encoders.ab", f"{__name__}.Grey"]
    for name, more in {
        "simclr": [],
        "moco": ["--method.queue_size", 24],
        "instance": ["--method.samples", 9],
        "cmc": ["--method.samples", 9, *grey],
        "clip": [],
        "siglip": [],
    }.items():
        method, data, config = made("--method", name, *GUIDED, "--guide", table, *more)
        for step in range(2):
            method.loss(method.network, batch(method, data, config, rows, step), 0.5)
            method.after_step()
        assert len(empty) == 2 * len(method.pair_losses())
        assert any(empty) == (name == "moco")
        empty.clear()


class Grey(nn.Module):
    """An encoder of any number of channels."""

    num_features = 4

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.layer = nn.Linear(in_channels, 4)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layer(images.mean((2, 3)))
        return out


def test_the_loss_of_a_run_is_that_of_the_same_vectors_given_by_hand(table: Path) -> None:
    method, data, config = made("--method", "simclr", *GUIDED, "--guide", table)
    rows = torch.arange(3, 19)
    given = batch(method, data, config, rows)
    loss = method.loss(method.network, given, 0.5)
    first, second = method.network({"image": torch.cat(tuple(given["image"].views))})["image"].chunk(2)
    vectors = torch.from_numpy(np.load(table))[rows]
    expected = InfoNCE(0.2, Guided(margin=0.6))(first, second, rows, guide=(vectors, vectors))
    torch.testing.assert_close(loss, expected)
    (loss_fn,) = method.pair_losses().values()
    assert 0 < loss_fn.stats["flagged_share"] < 1
    parameters = list(method.network.parameters())
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters))


def test_a_table_can_be_narrowed_to_the_directions_in_which_it_varies(table: Path, tmp_path: Path) -> None:
    method, *_ = made("--method", "simclr", *GUIDED, "--guide", table, "--guide.dim", 2)
    assert isinstance(method.guide, RunGuide)
    expected = TableGuide(table).principal(2).vectors()
    torch.testing.assert_close(method.guide.vectors("image"), expected)
    both = ("--method", "clip", "--negatives", "guided", "--guide", table, "--guide.second", table)
    with pytest.raises(ValueError, match=r"guide\.dim cannot be combined with guide\.second"):
        made(*both, "--guide.dim", 2)


def test_two_tables_of_one_space_have_positives_of_their_own(table: Path, tmp_path: Path) -> None:
    save_file({"text": noise(N, 4, seed=1)}, tmp_path / "other.safetensors")
    options = ("--method", "clip", "--negatives", "guided", "--guide", table)
    method, *_ = made(*options, "--guide.second", tmp_path / "other.safetensors")
    assert isinstance(method.guide, RunGuide)
    rows = torch.tensor([5, 0])
    pairs = Pairs(noise(2, 5), rows, torch.zeros(2), noise(2, 5), rows)
    images, others = normalise(noise(N, 4)), normalise(noise(N, 4, seed=1))
    there, back = (method.guide.for_pairs(pairs, towers) for towers in (("image", "vector"), ("vector", "image")))
    torch.testing.assert_close(there.anchors, images[rows])
    torch.testing.assert_close(there.candidates, others[rows])
    torch.testing.assert_close(there.positives, (images * others).sum(1)[rows])
    torch.testing.assert_close(back.anchors, others[rows])
    torch.testing.assert_close(back.candidates, images[rows])
    with pytest.raises(ValueError, match=r"guide\.second needs a method with two inputs"):
        made("--method", "simclr", *GUIDED, "--guide", table, "--guide.second", table)


@every(
    ("options", "sentence"),
    [
        (["--negatives", "guided"], "--negatives guided needs a guide and the run has none: add --guide table"),
        (["--negatives", "glofnd+guided"], r"--negatives glofnd\+guided needs a guide"),
        (
            ["--negatives", "dataset-neighbours", "--negatives.space", "guide"],
            "neighbours needs a guide",
        ),
        (["--negatives", "positive-aware", "--negatives.guide", "true"], "positive-aware needs a guide"),
        (
            ["--negatives", "fnc", "--treatment", "refine", "--refine_space", "guide"],
            "--refine_space guide needs a guide",
        ),
        (["--guide", "history"], "--guide history is given and nothing uses it"),
        (["--guide", "history", "--negatives", "glofnd"], "--guide history is given and nothing uses it"),
        (["--guide", "momentum", *GUIDED], "--guide momentum needs a method with a momentum network, such as moco"),
        (["--guide", "histry", *GUIDED], "unknown guide 'histry': did you mean 'history'"),
        (
            ["--guide", "history", "--negatives", "guided"],
            "similarity is 1 and a margin of 0 flags nothing: give",
        ),
        (["--guide", "history", *GUIDED, "--guide.momentum", 1], r"momentum must be in \[0, 1\)"),
    ],
)
def test_what_makes_no_sense_gets_one_sentence(options: list[object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as raised:
        made("--method", "simclr", *options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("method", "guide"), [("simclr", f"{__name__}.Tens"), ("moco", "momentum")], ids=["own source", "momentum"]
)
@pytest.mark.parametrize("negatives", [["dataset-neighbours"], ["ifnd", "--negatives.clusters", "[2]"]], ids=str)
def test_a_guide_without_a_table_cannot_be_fitted_to(method: str, guide: str, negatives: list[object]) -> None:
    sentence = rf"needs a guide's vectors of the whole dataset, and the guide {guide} has none: use --guide history"
    with pytest.raises(ValueError, match=sentence):
        made("--method", method, "--guide", guide, "--negatives", *negatives, "--negatives.space", "guide")


def test_a_source_without_a_table_says_so() -> None:
    source = Tens(30)
    guide = RunGuide({"image": source})
    assert not guide.has_table
    with pytest.raises(ValueError, match=r"Tens has no vectors of the whole dataset: give it a method vectors\(\)"):
        guide.vectors("image")


def test_a_run_tells_neighbours_which_rows_show_one_sample() -> None:
    method, data, _ = made("--method", "simclr", "--negatives", "dataset-neighbours", "--data.records", 2)
    ((_, policy),) = method.policies()
    assert isinstance(policy, DatasetNeighbours)
    assert policy.samples is data.samples is not None


def test_a_space_to_refine_in_belongs_to_refining() -> None:
    with pytest.raises(ValueError, match="belong to --treatment refine"):
        Settings(refine_space="guide")


def test_files_that_do_not_fit_are_refused_before_the_first_step(tmp_path: Path) -> None:
    broken = noise(N, 4)
    broken[7, 2] = torch.nan
    np.save(tmp_path / "short.npy", noise(N - 1, 4).numpy())
    np.save(tmp_path / "broken.npy", broken.numpy())
    np.savez(tmp_path / "other.npz", vectors=broken.numpy())
    for ending in ("npy", "npz"):
        (tmp_path / f"text.{ending}").write_text("no array")
    for name, sentence in {
        "nowhere.npy": "does not exist",
        "short.npy": "has 63 rows and the data 64",
        "broken.npy": "holds NaN or infinite numbers, first in row 7",
        "other.npz": "holds vectors, not embeddings",
        "text.npy": "cannot be read as a .npy array of numbers",
        "text.npz": "cannot be read as an .npz of numbers",
    }.items():
        method, *_ = made("--method", "simclr", *GUIDED, "--guide", tmp_path / name)  # it may only be looked at later
        assert isinstance(method.guide, RunGuide)
        with pytest.raises(ValueError, match=sentence) as raised:
            method.guide.open()
        assert "\n" not in str(raised.value)


def test_a_table_is_mapped_into_memory_and_no_part_of_a_checkpoint(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[str | None] = []
    load = np.load

    def recorded(*given: Any, mmap_mode: Any = None) -> Any:
        modes.append(mmap_mode)
        return load(*given, mmap_mode=mmap_mode)

    monkeypatch.setattr(np, "load", recorded)
    method, *_ = made("--method", "simclr", *GUIDED, "--guide", table)
    assert isinstance(method.guide, RunGuide)
    assert modes == []  # a run that is only evaluated may never need it
    method.guide.open()
    method.guide.open()
    assert modes == ["c"]
    assert not [name for name in method.state_dict() if "guide" in name]


def test_vectors_with_paths_find_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, names = noise(N, 4), [f"photos/{row:02}.jpg" for row in range(N)]
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    paths = np.array([f"/elsewhere/{names[row]}" for row in order])
    np.savez(tmp_path / "photos.npz", embeddings=vectors[order].numpy(), paths=paths)
    monkeypatch.setattr(Paired, "paths", names, raising=False)
    method, *_ = made("--method", "simclr", *GUIDED, "--guide", tmp_path / "photos.npz")
    assert isinstance(method.guide, RunGuide)
    torch.testing.assert_close(method.guide.vectors("image"), vectors)
    monkeypatch.setattr(Paired, "paths", [*names[1:], "photos/new.jpg"])
    method, *_ = made("--method", "simclr", *GUIDED, "--guide", tmp_path / "photos.npz")
    assert isinstance(method.guide, RunGuide)
    with pytest.raises(ValueError, match=r"has no vector of new\.jpg"):
        method.guide.open()


def test_a_network_is_run_once_and_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path))
    torch.manual_seed(0)
    network, said = Dense(FEATURES), []
    monkeypatch.setattr(run_guides, "load", lambda name: LoadedEncoder([network], [None], name))  # type: ignore[list-item]
    options = ("--method", "clip", *GUIDED, "--guide", "network", "--guide.encoder", "dense")
    method, data, _ = made(*options)
    assert isinstance(method.guide, RunGuide)
    method.guide.open(said.append)
    assert said == ["embedding 64 inputs once with the guide dense"]
    torch.testing.assert_close(method.guide.vectors("image"), network(data.vectors))
    again, *_ = made(*options)
    assert isinstance(again.guide, RunGuide)
    again.guide.open(said.append)
    assert len(said) == 1
    assert torch.equal(again.guide.vectors("vector"), method.guide.vectors("image"))
    wrong, *_ = made(*options, "--guide.input", "image")
    assert isinstance(wrong.guide, RunGuide)
    with pytest.raises(ValueError, match="embeds a vector, and the data has no input 'image' of that kind"):
        wrong.guide.open()


def test_several_texts_of_a_row_are_averaged() -> None:
    class Texts(nn.Module):
        num_features, modality = 2, "text"

        def tokenize(self, texts: list[str]) -> Tensor:
            return torch.tensor([[float(len(text)), 1.0] for text in texts])

        def forward(self, tokens: Tensor) -> Tensor:
            return tokens

    class Captioned(Paired):
        modalities = {"image": "image", "text": "text"}

        def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> Any:
            return {"image": self.images[rows], "text": ["one"] * len(rows)}

        def captions(self, row: int) -> list[str]:
            return ["one", "three"][: 1 + row % 2]

    loaded = LoadedEncoder([Texts()], [None], "texts")  # type: ignore[list-item]
    vectors = run_guides._embed_texts(loaded, Captioned(300), "text")
    one, three = normalise(torch.tensor([[3.0, 1.0], [5.0, 1.0]]))
    assert vectors.shape == (300, 2)
    torch.testing.assert_close(vectors[298:], torch.stack((one, (one + three) / 2)))


def test_a_history_takes_in_what_was_seen_after_the_step() -> None:
    method, data, config = made("--method", "clip", "--negatives", "guided", "--guide", "history")
    assert isinstance(method.guide, RunGuide)
    by_hand = {name: HistoryGuide(N, 5) for name in ("image", "vector")}
    for step in range(3):
        rows = torch.randperm(N, generator=torch.Generator().manual_seed(step))[:16]
        given = batch(method, data, config, rows, step)
        method.loss(method.network, given, 0.5)
        embeddings = method.network({name: given[name].views[0] for name in by_hand})
        for name, history in by_hand.items():
            torch.testing.assert_close(method.guide.vectors(name), history.vectors())  # not before the step is done
            history.update(rows, embeddings[name].detach())
        method.guide.after_step()
    for name, history in by_hand.items():
        torch.testing.assert_close(method.guide.vectors(name), history.vectors())
        assert f"guide.sources.{name}.table.rows" in method.state_dict()
    before = method.guide.vectors("image").clone()
    with torch.no_grad():
        method.loss(method.network, batch(method, data, config, torch.arange(16)), 0.5)
    method.guide.after_step()
    assert torch.equal(method.guide.vectors("image"), before)


def test_nobody_is_flagged_by_a_guide_that_does_not_know_him() -> None:
    for options in (GUIDED, ["--negatives", "guided", "--negatives.alpha", 0.5]):
        method, data, config = made("--method", "simclr", *options, "--guide", "history")
        loss = method.loss(method.network, batch(method, data, config, torch.arange(16)), 0.5)
        assert loss.isfinite()
        (loss_fn,) = method.pair_losses().values()
        assert loss_fn.stats["flagged_share"] == 0


def test_neighbours_are_found_in_the_guides_space_once(table: Path) -> None:
    options = (
        "--method",
        "simclr",
        "--negatives",
        "dataset-neighbours",
        "--negatives.k",
        3,
        "--negatives.space",
        "guide",
    )
    method, data, _ = made(*options, "--guide", table)
    (_, policy) = next(iter(method.policies()))
    fabric = Fabric(accelerator="cpu", devices=1)
    fit_policies(method, data, 0, 0.0, fabric)
    vectors = normalise(noise(N, 4))
    similarities = (vectors @ vectors.T).fill_diagonal_(-2)
    found: Tensor = policy.table  # type: ignore[assignment]
    assert torch.equal(found.long().sort(1).values, similarities.topk(3).indices.sort(1).values)
    fit_policies(method, data, 1, 0.5, fabric)
    assert policy.fitted_at == 0  # a table does not move
    method, data, _ = made(*options, "--guide", "history")
    (_, policy) = next(iter(method.policies()))
    fit_policies(method, data, 0, 0.0, fabric)
    assert bool((policy.table == -1).all())  # type: ignore[union-attr]
    assert isinstance(method.guide, RunGuide)
    history = method.guide.sources["image"]
    assert isinstance(history, HistoryGuide)
    history.update(torch.arange(10, 20), noise(10, 5))
    fit_policies(method, data, 1, 0.5, fabric)
    assert policy.fitted_at == 0.5
    known: Tensor = policy.table[10:20]  # type: ignore[index, assignment]
    assert bool(((known == -1) | ((known >= 10) & (known < 20))).all())
    assert bool((known >= 0).any())
    assert bool((policy.table[:10] == -1).all())  # type: ignore[index, union-attr]


def test_a_source_of_ones_own_serves_all_towers() -> None:
    options = ("--method", "clip", *GUIDED, "--guide", "tests.runs.test_guides.Tens", "--guide.angle", 1.5)
    method, data, config = made(*options)
    method.loss(method.network, batch(method, data, config, torch.arange(4, 20)), 0.5)
    shares = [loss_fn.stats["flagged_share"] for loss_fn in method.pair_losses().values()]
    assert shares == pytest.approx([(6 * 5 + 10 * 9) / (16 * 15)] * 2)
    with pytest.raises(ValueError, match="cannot be the guide: it is not a subclass"):
        made("--method", "clip", *GUIDED, "--guide", "antipodes.InfoNCE")


@pytest.mark.parametrize("name", ["simclr", "moco"])
def test_judging_a_run_looks_through_its_guide(name: str, tmp_path: Path) -> None:
    data = Paired()
    assert data.labels is not None
    np.save(tmp_path / "classes.npy", torch.eye(4)[data.labels].numpy())
    method, data, _ = made("--method", name, *GUIDED, "--guide", tmp_path / "classes.npy")
    assert data.labels is not None
    judged = compared_embeddings(method, data, None, 0)
    (loss_fn,) = method.pair_losses().values()
    assert loss_fn.negatives is not None
    flags = loss_fn.negatives.flags(judged.pairs(torch.arange(32)))
    assert bool((data.labels[flags.anchors] == data.labels[flags.candidates]).all())
    assert len(flags.anchors) == 32 * 7


def test_a_momentum_network_guides_by_its_keys() -> None:
    method, data, config = made(
        "--method", "moco", "--method.queue_size", 40, "--negatives", "guided", "--guide", "momentum"
    )
    seen: list[Pairs] = []
    (loss_fn,) = method.pair_losses().values()
    assert loss_fn.ask_guide is not None
    look = loss_fn.ask_guide
    loss_fn.use_guide(lambda pairs, learn: (seen.append(pairs), look(pairs, learn=learn))[1])
    for step in range(2):
        method.loss(method.network, batch(method, data, config, torch.arange(16 * step, 16 * step + 16), step), 0.5)
        method.after_step()
    pairs = seen[1]
    assert pairs.teachers is not None
    assert pairs.candidates is not None
    guide = look(pairs, learn=False)
    torch.testing.assert_close(guide.positives, (pairs.anchors * guide.anchors).sum(1))
    assert torch.equal(guide.keys(), pairs.candidates)
    assert not guide.anchors.requires_grad


def test_a_table_guide_alone_goes_by_rows_too() -> None:
    guide = RunGuide({"image": TableGuide(noise(4, 3))})
    pairs = Pairs(noise(2, 5), torch.tensor([2, 0]), torch.zeros(2), noise(3, 5), torch.tensor([1, -1, 3]))
    assert guide.for_pairs(pairs, ("image", "image")).keys()[1].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"ids must be in 0\.\.3"):
        guide.for_pairs(Pairs(noise(1, 5), torch.tensor([4]), torch.zeros(1)), ("image", "image"))


def test_a_guide_of_patches_is_made_once_from_images_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path / "cache"))
    data = build_data({"name": "shapes", "count": 120, "size": 32})
    said: list[str] = []
    eyes = PatchEncoder(words=12, patch=5, grid=2, dim=6, size=16)
    vectors = run_guides.patch_vectors(eyes, data, notify=said.append)
    assert vectors.shape == (120, 6)
    assert said == ["clustering the patches of 120 images"]
    again = run_guides.patch_vectors(PatchEncoder(words=12, patch=5, grid=2, dim=6, size=16), data, notify=said.append)
    assert torch.equal(again, vectors)
    assert len(said) == 1
    other = run_guides.patch_vectors(PatchEncoder(words=12, patch=5, grid=2, dim=5, size=16), data, notify=said.append)
    assert other.shape == (120, 5)
    assert len(said) == 2


def test_a_guide_of_patches_wants_images() -> None:
    with pytest.raises(ValueError, match="a guide of patches embeds an image, and the data has no input 'vector'"):
        run_guides.patch_vectors(PatchEncoder(), made()[1], "vector")
