"""Pictures of real tiny runs: what is drawn, what it shows, and what is said where nothing can be drawn."""

from __future__ import annotations

import copy
import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from antipodes.data.shapes import Shapes
from antipodes.evaluation import figures, maps, pictures
from antipodes.evaluation.compared import dataset_quantiles, judge_frozen
from antipodes.evaluation.maps import planar, turned
from antipodes.evaluation.pictures import PicturedRun, strongest_flags
from antipodes.evaluation.protocol import score
from antipodes.negatives import IFND, GloFND
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.snapshots import Snapshot, load_snapshots, save_snapshot
from antipodes.runs.views import build_augmentation
from tests.cli.command import here, refused
from tests.reference.contrast import judge

pytest.importorskip("matplotlib", reason="pictures need the plots extra")
from matplotlib.colors import to_rgba

TRAIN = ["train", "--encoder", "resnet8-slim", "--head.hidden", 16, "--batch_size", 32, "--log_every", 2]
SHAPES = ["--data", "shapes", "--data.count", 128, "--epochs", 2, "--snapshot_every", 1]
JOINED = ["--negatives", "glofnd+fnc", "--negatives.glofnd.alpha", 0.1, "--negatives.glofnd.initial", "quantile"]
NAMES = ("thresholds", "flagged", "detection", "flags", "map", "maps")
ALPHA = ["--negatives.alpha", 0.1]
CENTROID = "nearest to a centroid"
NO_SNAPSHOTS = "no maps: the run kept no snapshots, train with --snapshot_every 10 (or another number of epochs)"


def trained(folder: Path, *arguments: object) -> Path:
    code, _, errors = here(*TRAIN, *arguments, "--out", folder)
    assert code == 0, errors
    return folder


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "joined", *SHAPES, *JOINED, "--negatives.fnc.alpha", 0.05)


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    policy = ["--negatives", "ifnd", "--negatives.clusters", "[12,4]", "--negatives.final_rate", 0.5]
    return trained(tmp_path_factory.mktemp("runs") / "clustered", *SHAPES, *policy)


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number, image in enumerate(Shapes(64).fetch(torch.arange(64))):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number:02}.png")
    data = ["--data", folder, "--data.size", 32, "--epochs", 1, "--workers", 0]
    return trained(
        tmp_path_factory.mktemp("runs") / "unlabelled", *data, "--negatives", "fnc", "--negatives.alpha", 0.1
    )


@pytest.fixture
def by_pca(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps by PCA, which takes no time, where it does not matter how points are laid out."""
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)


def subject(folder: Path, anchors: int = 5, seed: int = 0) -> PicturedRun:
    run = Run.open(folder)
    return PicturedRun(run, *open_method(run), anchors, seed)


def slow_flags(of: PicturedRun) -> list[tuple[int, list[int]]]:
    """Anchors and the samples they flag, most similar first, by a loop over pairs."""
    strongest = strongest_flags(of)
    order = torch.randperm(len(of.data), generator=pictures.generator("pictures", of.seed))[: of.config["batch_size"]]
    assert [flags.anchor for flags in strongest] == order[: of.anchors].tolist()
    z, keys = of.judged.anchors[order], of.judged.candidates[order]
    rules = judge_frozen(of.require_policy(), of.judged.pairs(order), 1.0)
    found = []
    for i in range(of.anchors):
        flagged = []
        for k in range(len(order)):
            similarity = (z[i] @ keys[k]).item()
            if i != k and not all(judge(rule, i, k, (similarity, 0))[0] for rule in rules):
                flagged.append((similarity, int(order[k])))
        found.append((int(order[i]), [sample for _, sample in sorted(flagged, reverse=True)]))
    return found


def test_every_picture_of_a_run_is_a_png_with_something_on_it(joined: Path, tmp_path: Path) -> None:
    pyplot = "matplotlib.pyplot" in sys.modules
    code, out, errors = here("pictures", joined, "--out", tmp_path / "drawn", "--anchors", 3)
    assert code == 0, errors
    files = [tmp_path / "drawn" / f"{name}.png" for name in NAMES]
    assert out.splitlines() == list(map(str, files))
    assert sorted((tmp_path / "drawn").iterdir()) == sorted(files)
    for file in files:
        with Image.open(file) as image:
            assert image.format == "PNG"
            assert image.width == 900
            colours = image.convert("RGB").getcolors(maxcolors=2**24)
        assert len(colours) > 100, file
        assert max(count for count, _ in colours) < 0.97 * image.width * image.height, file  # more than a background
    again = here("pictures", joined, "--anchors", 3, "--format", "png")[1].splitlines()
    assert again[3] == str(joined / "pictures" / "flags.png")
    for first, second in zip(files, again, strict=True):
        assert first.read_bytes() == Path(second).read_bytes()
    assert ("matplotlib.pyplot" in sys.modules) == pyplot  # and with it everybody's backend


@pytest.mark.parametrize("kind", ["joined", "clustered"])
def test_the_flags_shown_are_those_of_a_slow_loop(kind: str, request: pytest.FixtureRequest) -> None:
    of = subject(request.getfixturevalue(kind), anchors=16, seed=3)
    expected = slow_flags(of)
    assert any(flagged for _, flagged in expected)
    assert [(flags.anchor, flags.ids) for flags in strongest_flags(of)] == expected
    labels = of.data.labels
    assert labels is not None
    grid = [axes for axes in pictures.flags(of).axes if axes.images]
    for anchor, flagged in expected:
        shown = [anchor, *flagged[: pictures.FLAGGED_SHOWN]]
        cells, grid = grid[: len(shown)], grid[len(shown) :]
        for axes, sample in zip(cells, shown, strict=True):
            drawn = torch.as_tensor(axes.images[0].get_array()).permute(2, 0, 1)
            assert torch.equal(drawn, of.data.fetch(torch.tensor([sample]))[0])
            assert of.data.classes is not None
            assert axes.get_xlabel().startswith(of.data.classes[labels[sample]])
        signs = [axes.texts[0].get_text() for axes in cells[1:]]
        assert signs == ["✓" if labels[sample] == labels[anchor] else "✗" for sample in shown[1:]]
        frames = [axes.spines["left"].get_edgecolor() for axes in cells[1:]]
        assert frames == [to_rgba(figures.GREEN if sign == "✓" else figures.RED) for sign in signs]
    assert not grid
    assert expected[0][0] != strongest_flags(subject(of.run.folder, seed=4))[0].anchor


@pytest.mark.usefixtures("by_pca")
def test_drawing_moves_no_threshold(joined: Path) -> None:
    of = subject(joined)
    before = copy.deepcopy(of.method.state_dict())
    for picture in pictures.PICTURES.values():
        picture(of)
    assert all(torch.equal(value, before[name]) for name, value in of.method.state_dict().items())


def test_thresholds_of_both_parts_of_a_joined_policy(joined: Path) -> None:
    of = subject(joined)
    glofnd = next(part for part in of.require_policy().modules() if isinstance(part, GloFND))
    truth = dataset_quantiles(of.judged.anchors, of.judged.candidates, 0.1)
    axes = pictures.thresholds(of).axes
    assert len(axes) == 4
    legends = [[text.get_text() for text in one.get_legend().get_texts()] for one in axes]
    recipe = build_augmentation(of.config["augmentation"], of.data.image_size, of.method.normalised)
    scores = score(of.method, of.data, ["false-negatives"], batch_size=of.config["batch_size"], recipe=recipe)
    assert legends[0][-1] == f"learned, MAE {scores['threshold MAE']:.3f}"
    assert legends[2][-1] == f"batch quantile (FNC), MAE {scores['batch MAE']:.3f}"  # of the last part, FNC
    assert not any("learned" in text for text in legends[2])  # FNC learns nothing
    learned = axes[1].collections[-1].get_offsets()
    torch.testing.assert_close(torch.as_tensor(learned).float(), torch.stack([truth, glofnd.threshold], 1))
    assert sum(bar.get_height() for bar in axes[0].containers[0]) == len(of.data)


def test_the_share_flagged_and_its_judgement_are_those_of_the_log(joined: Path) -> None:
    of = subject(joined)
    (axes,) = pictures.flagged(of).axes
    curve, *dashed = axes.lines
    assert list(curve.get_ydata()) == pytest.approx([100 * line["flagged_share"] for line in of.epochs])
    assert sorted(line.get_ydata()[0] for line in dashed) == pytest.approx([5, 10])  # the two alphas, in percent
    left, right = pictures.detection(of).axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in (*left.lines, *right.lines)}
    assert len(drawn) == 10
    for label, name in (
        ("F1, fine labels", "f1"),
        ("precision, coarse", "coarse_precision"),
        ("MTNR, coarse", "coarse_mtnr"),
    ):
        assert drawn[label] == pytest.approx([100 * line[name] for line in of.epochs])


@pytest.mark.usefixtures("by_pca")
def test_a_run_without_a_policy_gets_the_map_only(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "--data", "shapes", "--data.count", 64, "--epochs", 1)
    code, out, _ = here("pictures", run)
    assert code == 0
    *sentences, file, no_maps = out.splitlines()
    assert sentences == [f"no {name}: the run has no policy, train with --negatives" for name in NAMES[:-2]]
    assert no_maps == NO_SNAPSHOTS
    assert file == str(run / "pictures" / "map.png")
    assert [path.name for path in (run / "pictures").iterdir()] == ["map.png"]


@pytest.mark.usefixtures("by_pca")
def test_the_map_of_ifnd_shows_the_coarsest_pseudo_labels_and_greys_the_others(clustered: Path) -> None:
    of = subject(clustered)
    policy = of.require_policy()
    assert isinstance(policy, IFND)
    true, pseudo = pictures.feature_map(of).axes
    assert len(true.get_legend().get_texts()) == 20
    *points, centroids = pseudo.collections
    counts = {group.get_facecolor()[0][:3].tobytes(): len(group.get_offsets()) for group in points}
    assert len(centroids.get_offsets()) == len(counts) - 1  # each at a sample
    everywhere = {tuple(point) for group in points for point in group.get_offsets().tolist()}
    assert {tuple(point) for point in centroids.get_offsets().tolist()} <= everywhere
    assert [text.get_text() for text in pseudo.get_legend().get_texts()] == ["not accepted", "nearest to a centroid"]
    accepted = policy.standing[1] <= 0.5  # 4 clusters, the second of the two
    assert len(counts) == 1 + len(policy.labels[1][accepted].unique())
    assert max(len(group.get_offsets()) for group in true.collections) < 64
    grey = next(
        group for group in pseudo.collections if tuple(group.get_facecolor()[0][:3]) == to_rgba(figures.GREY)[:3]
    )
    assert len(grey.get_offsets()) == int((~accepted).sum()) == 64
    assert "no thresholds: the policy has no thresholds" in here("pictures", clustered)[1]


@pytest.mark.usefixtures("by_pca")
def test_without_labels_nothing_is_judged_or_framed(unlabelled: Path) -> None:
    of = subject(unlabelled)
    assert of.data.labels is None
    assert not any(axes.texts for axes in pictures.flags(of).axes)
    (axes,) = pictures.feature_map(of).axes
    assert axes.get_legend() is None
    assert len(axes.images) > 20  # of 64, those that have a place of their own
    assert not axes.collections
    lines = here("pictures", unlabelled)[1].splitlines()
    assert lines[2] == "no detection: the data has no labels, by which flags are scored"
    assert lines[5:] == [NO_SNAPSHOTS]


@pytest.mark.usefixtures("by_pca")
def test_the_maps_show_the_pseudo_labels_of_every_snapshot_where_its_points_are(clustered: Path) -> None:
    of = subject(clustered)
    snapshots = load_snapshots(of.run)
    assert [snapshot.epoch for snapshot in snapshots] == [0, 1, 2]
    figure = pictures.feature_maps(of)
    true, pseudo = figure.axes[:3], figure.axes[3:]
    assert [axes.get_title() for axes in true] == ["before training", "epoch 1", "epoch 2"]
    assert [axes.get_xlabel() for axes in pseudo][::2] == [
        "no pseudo labels yet",
        "4 pseudo labels, 50 % accepted",
    ]
    for above, below, snapshot in zip(true, pseudo, snapshots, strict=True):
        sizes = sorted(len(group.get_offsets()) for group in below.collections if group.get_label() != CENTROID)
        labels = snapshot.pseudo_labels.get(4, torch.full((128,), -1))
        assert sizes == sorted(labels.unique(return_counts=True)[1].tolist())
        upper, lower = (sorted(map(tuple, torch.cat(drawn(axes)).tolist())) for axes in (above, below))
        assert upper == lower
    assert len(figure.legends[0].get_texts()) == 22


def drawn(axes: Any) -> list[torch.Tensor]:
    groups = [group for group in axes.collections if group.get_label() != CENTROID]
    return [torch.as_tensor(group.get_offsets()) for group in groups]


def test_of_many_snapshots_a_few_are_shown(joined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(joined, tmp_path / "run")
    of = subject(tmp_path / "run")
    features = torch.zeros(5, 3, dtype=torch.float16)
    for epoch in range(1000, 1008):
        save_snapshot(of.run, Snapshot(epoch, torch.arange(5), features, {}))
    given: list[Any] = []

    def fake(features: torch.Tensor, seed: int, start: torch.Tensor | None) -> tuple[torch.Tensor, str]:
        given.append(start)
        return torch.full((len(features), 2), float(len(given))), "a fake"

    monkeypatch.setattr(maps, "planar", fake)
    figure = pictures.feature_maps(of)  # epochs 0, 1, 2, 1000, ..., 1007
    assert [axes.get_title() for axes in figure.axes] == ["before training", "epoch 1000", "epoch 1004", "epoch 1007"]
    assert given[:2] == [None, None]  # what is not trained is no start
    assert [start[0, 0].item() for start in given[2:]] == [2, 3]  # then each from the one before


def test_a_map_that_starts_from_another_leaves_points_where_they_were() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(5, 30, generator=generator).repeat_interleave(20, 0)
    features += 0.3 * torch.randn(100, 30, generator=generator)
    first, _ = planar(features, seed=0)
    second, _ = planar(features + 0.1 * torch.randn(100, 30, generator=generator), 1, first)
    assert (second - first).norm(dim=1).mean() < 0.3 * first.norm(dim=1).mean()


def test_equal_features_have_a_map_without_t_sne() -> None:
    points, how = planar(torch.full((60, 16), 0.3) * (1 + 1e-8), seed=0)  # t-SNE would end the process
    assert points.shape == (60, 2)
    assert bool(torch.isfinite(points).all())
    assert "equal" in how


def test_t_sne_goes_on_from_the_other_map(monkeypatch: pytest.MonkeyPatch) -> None:
    manifold = pytest.importorskip("sklearn.manifold")
    start = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([9.0, 3.0])
    given: list[Any] = []

    class Fake:
        def __init__(self, **options: Any) -> None:
            given.append(options)

        def fit_transform(self, reduced: Any) -> Any:
            return reduced[:, :2]

    monkeypatch.setattr(manifold, "TSNE", Fake)
    features = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    planar(features, 0)
    planar(features, 0, start)
    assert "init" not in given[0]
    assert torch.equal(torch.from_numpy(given[1]["init"]), start)
    assert given[1]["early_exaggeration"] == 1


def test_points_are_turned_and_reflected_but_not_stretched() -> None:
    others = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).double()
    angle = torch.tensor(2.0).double()
    mirror = torch.tensor([[1.0, 0.0], [0.0, -1.0]]).double()
    rotation = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2) @ mirror
    centred = others - others.mean(0)
    torch.testing.assert_close(turned(3 * others @ rotation + 7, others), 3 * centred + others.mean(0))


def test_pca_stands_in_for_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 9, 2, 5, 1])
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    points, how = planar(features, seed=0)
    assert how == "PCA"
    largest = torch.linalg.eigvalsh(features.double().T.cov()).flip(0)[:2]
    torch.testing.assert_close(points.T.cov(), largest.diag(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        planar(features, 0, start=-points.flip(1))[0].abs(), points.flip(1).abs(), atol=1e-5, rtol=0
    )


def test_neighbours_stay_neighbours_on_the_map() -> None:
    pytest.importorskip("sklearn")
    middles = torch.eye(3, 60).repeat_interleave(20, 0)
    points, how = planar(middles + 0.05 * torch.randn(60, 60, generator=torch.Generator().manual_seed(0)), seed=0)
    assert how == "t-SNE after PCA"
    nearest = torch.cdist(points, points).fill_diagonal_(torch.inf).argmin(1)
    assert torch.equal(nearest // 20, torch.arange(60) // 20)


@pytest.mark.usefixtures("by_pca")
def test_many_classes_are_shown_by_their_coarse_labels(joined: Path) -> None:
    of = subject(joined)
    of.data.labels = torch.arange(len(of.data))
    (axes,) = pictures.feature_map(of).axes
    assert axes.get_title() == "coarse labels"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(of.data.coarse_classes or ())
    of.data.coarse_labels = None
    assert pictures.feature_map(of).axes[0].get_legend() is None


@pytest.mark.usefixtures("by_pca")
def test_flags_of_a_key_network_with_support_views_are_drawn_and_judged(tmp_path: Path) -> None:
    method = ["--method", "moco", "--method.queue_size", 64, "--method.momentum", 0.5]
    run = trained(tmp_path / "moco", *SHAPES, *method, "--negatives", "fnc", "--negatives.supports", 2, *ALPHA)
    of = subject(run, anchors=6)
    assert of.judged.supports is not None
    assert not torch.equal(of.judged.anchors, of.judged.candidates)  # queries are compared with keys
    flags = strongest_flags(of)
    assert [len(row.ids) for row in flags] == [3] * 6  # a tenth of 31
    assert all(picture.file for picture in pictures.draw_pictures(of.run, tmp_path / "drawn", anchors=2))
    assert "flags pooled precision" in here("evaluate", run, "--protocol", "false-negatives", "--json")[1]
    of.__dict__["judged"] = dataclasses.replace(of.judged, supports=None)  # the loop knows no support views
    of.require_policy().supports = 0
    assert slow_flags(of) == [(flags.anchor, flags.ids) for flags in strongest_flags(of)]


@pytest.mark.usefixtures("by_pca")
def test_runs_beside_each_other(joined: Path, clustered: Path, unlabelled: Path, tmp_path: Path) -> None:
    code, out, errors = here("pictures", joined, clustered, "--out", tmp_path, "--anchors", 3)
    assert code == 0, errors
    assert out.split() == [str(tmp_path / f"compared-{name}.png") for name in ("maps", "epochs", "flags")]
    both = [subject(joined, anchors=3), subject(clustered, anchors=3)]
    figure = pictures.compared_maps(both)
    assert [axes.get_title() for axes in figure.axes[:2]] == ["simclr + glofnd+fnc", "simclr + ifnd"]
    assert [axes.get_xlabel() for axes in figure.axes[2:]] == ["no pseudo labels yet", "4 pseudo labels, 50 % accepted"]
    over_time = pictures.compared_epochs(both)
    named = [axes.get_ylabel() for axes in over_time.axes if axes.get_ylabel()]
    assert named == ["simclr + glofnd+fnc", "simclr + ifnd"]  # a row each, of the three snapshots of two epochs
    assert [axes.get_title() for axes in over_time.axes] == ["before training", "epoch 1", "epoch 2"] * 2
    expected = [[flags.ids[:4] for flags in strongest_flags(of)] for of in both]
    shown = [axes for axes in pictures.compared_flags(both).axes if axes.images]
    assert len(shown) == 3 + sum(len(ids) for rows in expected for ids in rows)
    assert "was trained on other data" in refused("pictures", joined, unlabelled, "--out", tmp_path)


def test_flags_of_an_image_text_run_show_captions(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    rows = ["image,caption"]
    for number, image in enumerate(Shapes(32).fetch(torch.arange(32))):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number:02}.png")
        rows += [f"{number:02}.png,number {number} {words}" for words in ("is a rather long caption of it", "again")]
    (folder / "captions.csv").write_text("\n".join(rows))
    options = ["--method", "clip", "--data", folder, "--data.size", 32, "--workers", 0, "--epochs", 1]
    run = trained(tmp_path / "run", *options, "--negatives", "fnc", *ALPHA)
    of = subject(run, anchors=3)
    directions = ["image_to_text", "text_to_image"]
    found = [strongest_flags(of, direction=name) for name in directions]
    assert [len(flags.ids) for rows_of in found for flags in rows_of] == [3] * 6  # a tenth of 31
    figure = pictures.flags(of)
    tiles = [axes for axes in figure.axes if axes.images]
    assert len(tiles) == 3 + 2 * 3 * 3
    words = [" ".join(axes.get_xlabel().split()) for axes in tiles]
    first = found[0][0]
    assert words[0].startswith(f"flags 3 / 3 number {first.anchor} is a rather long")
    assert words[1] == f"{first.similarities[0]:.2f} number {first.ids[0]} is a rather long caption of it"
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")] == [
        "image to text",
        "text to image",
    ]


def test_a_few_far_points_do_not_shrink_a_map() -> None:
    points = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    points[0] = 1000.0
    panel = maps.Panel("all", torch.zeros(500, dtype=torch.int64), {})
    axes = maps.coloured_map_figure(points, "far", [panel]).axes[0]
    assert axes.get_xlim()[1] < 10


def test_without_matplotlib_one_sentence_says_what_to_install(
    joined: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    sentence = refused("pictures", joined, "--out", tmp_path / "drawn")
    assert sentence == "antipodes: pictures need matplotlib: pip install '.[plots]'"
    assert not (tmp_path / "drawn").exists()


def test_wrong_calls_are_refused(joined: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "anchors must be at least 1" in refused("pictures", joined, "--anchors", 0)
    assert "is a file" in refused("pictures", joined, "--out", tmp_path / "file")
    assert "is not a run" in refused("pictures", tmp_path)
