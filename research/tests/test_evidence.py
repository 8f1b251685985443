"""Parts of the studies of right flags, copies and mined negatives, against formulas and by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from antipodes import GloFND, InfoNCE, Known, Oracle
from research import copies, frozen_views, mining, right_flags, tables
from research.frozen_views import Split, Training
from research.text_pairs import Corpus, Table

SMALL = Training(width=8, dim=4, batch_size=6, epochs=2, every=1)


def small_split(views: int = 3) -> Split:
    """Twelve samples of two classes."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(12) % 2
    plain = torch.randn(12, 5, generator=draw) + 4.0 * labels[:, None]
    return Split(plain + 0.1 * torch.randn(views, 12, 5, generator=draw), plain, labels)


def test_two_views_of_a_sample_are_different_ones_of_its_own() -> None:
    views = torch.arange(3)[:, None, None] * 100 + torch.arange(50)[None, :, None]  # 100 view + sample
    rows = torch.tensor([7, 3, 3, 49])
    for seed in range(20):
        first, second = frozen_views.draw_two_views(views, rows, torch.Generator().manual_seed(seed))
        assert (first % 100)[:, 0].tolist() == rows.tolist() == (second % 100)[:, 0].tolist()
        assert not bool((first == second).any())


def test_directions_are_those_of_the_first_split_in_order_and_of_mean_square_one() -> None:
    split = small_split()
    (reduced,) = frozen_views.reduce_width([split], 2)
    assert reduced.views.shape == (3, 12, 2)
    assert float(reduced.plain.square().mean()) == pytest.approx(1)
    assert float(reduced.plain[:, 0].var()) > float(reduced.plain[:, 1].var())
    distance = torch.cdist(reduced.plain, reduced.plain) / torch.cdist(split.plain, split.plain).clamp(min=1e-9)
    assert float(distance.max()) <= float(distance.max(1).values.min()) * 10  # a projection: nothing is blown up


def test_vectors_are_computed_once_and_read_from_the_file_afterwards(tmp_path: Path) -> None:
    made = []

    def make() -> list[Split]:
        made.append(1)
        return [small_split()]

    first, second = (frozen_views.cached(tmp_path / "new" / "a.pt", make) for _ in range(2))
    assert made == [1]
    torch.testing.assert_close(first[0].views, second[0].views)


def test_the_precision_of_the_quantile_by_hand() -> None:
    angles = torch.tensor([0.0, 0.1, 0.3, 3.0])
    vectors, labels = torch.stack((angles.cos(), angles.sin()), dim=1), torch.tensor([0, 1, 0, 1])
    # the nearest: 0 -> 1 wrong, 1 -> 0 wrong, 2 -> 1 wrong, 3 -> 2 wrong; the two nearest: 1 of 2, 0, 1 of 2, 1 of 2
    assert frozen_views.quantile_precision(vectors, labels, 1 / 3) == 0
    assert frozen_views.quantile_precision(vectors, labels, 2 / 3) == pytest.approx(100 * 1.5 / 4)
    assert frozen_views.same_class_share(labels) == pytest.approx(1 / 3)


def test_a_network_follows_from_its_seed_and_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (frozen_views.Network(5, SMALL, seed)(small_split().plain) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_every_finder_is_what_its_variant_says() -> None:
    labels = torch.arange(200) % 4
    share = 49 / 199
    policies = {name: right_flags.make_policy(variant, labels, 0) for name, variant in right_flags.VARIANTS.items()}
    glofnd, paper, few = (policies[f"GloFND{name} dropped"] for name in ("", ", paper's start,", " 2 %"))
    assert isinstance(glofnd, GloFND)
    assert isinstance(paper, GloFND)
    assert isinstance(few, GloFND)
    assert (glofnd.initial, glofnd.lr, glofnd.alpha) == ("quantile", 0.01, pytest.approx(share))
    assert (paper.initial, paper.lr, paper.alpha) == ("one", 0.05, pytest.approx(share))
    assert few.alpha == right_flags.FEW
    assert isinstance(policies["labels pulled (SupCon)"], Oracle)
    assert policies["plain"] is None


@pytest.mark.parametrize("name", ["labels dropped (Oracle)", "IFND pulled", "plain"])
def test_training_counts_how_right_the_flags_are(name: str) -> None:
    labels = torch.arange(60) % 2
    draw = torch.Generator().manual_seed(0)
    plain = torch.randn(60, 5, generator=draw) + 4.0 * labels[:, None]
    split = Split(plain + 0.1 * torch.randn(3, 60, 5, generator=draw), plain, labels)
    found = right_flags.train(name, split, split, SMALL, 0.5, 0)
    assert list(found) == ["1", "2"]
    assert found["2"]["linear, features"] > 90
    if name == "plain":
        assert "flag precision" not in found["2"]
    elif name != "IFND pulled":
        assert (found["2"]["flag precision"], found["2"]["flag recall"]) == (100, 100)


def test_a_photo_has_five_changed_copies_that_follow_it() -> None:
    draw = torch.Generator().manual_seed(1)
    noise = torch.randint(256, (2, copies.SIDE, copies.SIDE, 3), dtype=torch.uint8, generator=draw)
    made = copies.make_copies([Image.fromarray(each.numpy()) for each in noise])
    images = copies.as_tensor(made)
    assert images.shape == (12, 3, copies.SIDE, copies.SIDE)
    assert torch.equal(images[0], noise[0].permute(2, 0, 1))
    assert torch.equal(images[2], noise[0].permute(2, 0, 1).flip(2))
    assert len(images.flatten(1).unique(dim=0)) == 12


def test_an_audit_is_scored_by_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "COPIES", 3)
    # photo 0 found whole; of photo 1 one pair, with a stranger of photo 2 in it
    groups = torch.tensor([0, 0, 0, 1, 1, -1, 1, -1, -1])
    found = copies.audit_scores(groups)
    assert found["precision"] == pytest.approx(100 * 4 / 6)
    assert found["recall"] == pytest.approx(100 * 4 / 9)
    assert found["photos found whole"] == pytest.approx(100 / 3)


def test_bursts_come_in_one_batch_and_every_row_once() -> None:
    for together in (False, True):
        parts = list(copies.batches(together, 36, 12, torch.Generator().manual_seed(0)))
        assert sorted(torch.cat(parts).tolist()) == list(range(36))
        whole = [bool((part // copies.COPIES).bincount().eq(copies.COPIES).sum() == 2) for part in parts]
        assert all(whole) is together


def test_copies_flag_the_true_share() -> None:
    training = Training(batch_size=240)
    assert copies.flagged_share("shuffled", training) == pytest.approx(5 / 2879)
    assert copies.flagged_share("bursts", training) == pytest.approx(5 / 239)


def small_learn() -> mining.Learn:
    """Three queries and five texts on a circle, and an encoder that knows a token for each."""
    angles = torch.tensor([0.0, 1.0, 2.0, 0.1, 0.4, 0.9, 1.2, 2.2])
    vectors = torch.stack((angles.cos(), angles.sin()), dim=1)
    tokens, intents = torch.arange(1, 9)[:, None], torch.tensor([0, 1, 2, 0, 0, 1, 2, 2])
    queries, corpus = Corpus(tokens[:3], intents[:3]), Corpus(tokens[3:], intents[3:])
    table = torch.cat((torch.zeros(1, 2), vectors))
    return mining.Learn(queries, corpus, torch.tensor([1, 2, 4]), {"circle": (vectors[:3], vectors[3:])}, table)


def test_ways_of_mining_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mining, "MINED", 2)
    learn = small_learn()
    seen = mining.compare(learn, "circle")
    mined = {name: mining.mine(seen, learn.positives, kept).tolist() for name, kept in mining.WAYS.items()}
    # texts at .1 .4 .9 1.2 2.2; queries at 0, 1, 2 with the positives .4, .9, 2.2
    assert mined["naive"] == [[0, 2], [3, 1], [3, 2]]
    assert mined["margin 0.05"] == [[2, 3], [1, 0], [3, 2]]  # 1.2 is within .05 of query 1's own .995
    assert mined["groups by intent"] == [[2, 3], [3, 1], [2, 1]]
    # of query 0 (s+ = .921): 2 at .9 has s = .622, and .878 to the positive, above .95 s+ = .875
    assert mined["95 % of the positive"][0] == [2, 3]
    assert mined["95 %, positive asked too"][0] == [3, 4]
    assert mined["ranks 10 to 15"] == [[-1, -1]] * 3
    found = mining.relevant(torch.tensor(mined["naive"]), learn)
    assert found == {"mined": 2.0, "relevant": pytest.approx(100 * 2 / 6)}
    assert mining.relevant(torch.tensor([[3, -1], [0, 1], [-1, -1]]), learn) == {"mined": 1.0, "relevant": 0.0}


def test_mined_texts_are_candidates_of_the_whole_batch_and_a_positive_never_is() -> None:
    learn, query = small_learn(), torch.tensor([0, 1])
    mined = torch.tensor([[2, 3], [1, 0], [3, -1]])  # of query 0 the positive of query 1, and the other way round
    model = Table(learn.table)
    loss = mining.batch_loss(InfoNCE(0.5), model, learn, query, mined)
    queries, corpus = learn.models["circle"]
    logits = queries[query] @ corpus[torch.tensor([1, 2, 0, 3])].T / 0.5
    torch.testing.assert_close(loss, F.cross_entropy(logits, torch.arange(2)))
    alone = mining.batch_loss(InfoNCE(0.5), model, learn, query, None)
    torch.testing.assert_close(alone, F.cross_entropy(logits[:, :2], torch.arange(2)))


def test_queries_and_corpus_share_intents_but_no_text() -> None:
    intents = torch.arange(40) % 4
    queries, corpus, positives = mining.halve(intents, torch.Generator().manual_seed(3))
    assert sorted(torch.cat((queries, corpus)).tolist()) == list(range(40))
    assert torch.equal(intents[queries], intents[corpus][positives])


def test_scores_by_epoch_are_those_of_the_chosen_epoch() -> None:
    def run(part: str, temperature: float, seed: int, early: float, late: float) -> dict[str, object]:
        key = {"part": part, "variant": "plain", "temperature": temperature, "seed": seed}
        return {"key": key, "metrics": {"30": {"linear": early}, "60": {"linear": late}}}

    runs = [run("choice", 0.1, 100, 5, 1), run("choice", 0.2, 100, 2, 4), run("test", 0.1, 0, 50, 10)]
    runs.append(run("test", 0.2, 0, 20, 40))
    assert tables.scores_of(runs, "linear", {}) == {"plain": ("0.1, 30", {0: {"linear": 50}})}
    assert tables.scores_of(runs, "linear", {}, epochs=60) == {"plain": ("0.2, 60", {0: {"linear": 40}})}


def test_known_reads_what_an_audit_writes(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text("row,path,group\n0,a,4\n2,c,4\n")
    assert Known.read(path, num_samples=4).groups.tolist() == [4, -1, 4, -1]


def test_tables_of_what_was_found_by_hand() -> None:
    def test_run(seed: int, **metrics: float) -> dict[str, object]:
        key = {"part": "test", "variant": "FNC", "temperature": 0.1, "seed": seed, "dataset": "d"}
        return {"key": key, "metrics": {"30": {"linear": 1.0, **metrics}}}

    choice = {"part": "choice", "variant": "FNC", "temperature": 0.1, "seed": 100, "dataset": "d"}
    runs: list[dict[str, object]] = [{"key": choice, "metrics": {"30": {"linear": 1.0}}}]
    runs.append(test_run(0, **{"flag precision": 40.0, "flag recall": 10.0, "precision of the quantile": 30.0}))
    runs.append(test_run(1, **{"flag precision": 60.0, "flag recall": 20.0, "precision of the quantile": 50.0}))
    assert "| FNC | 50.0 | 15.0 | 40.0 |" in tables.flags(runs, "linear", {"dataset": "d"})
    found = [
        {"key": {"part": "precision", "dataset": "d", "share": share}, "metrics": {"precision": 45}}
        for share in (0.01, 0.1)
    ]
    assert tables.vector_precision(found).splitlines()[-1] == "| d | 45.0 | 45.0 |"
    ways = [
        {"key": {"part": "mined", "variant": way, "dataset": "d", "model": model}, "metrics": {"relevant": share}}
        for way, model, share in (("naive", "a", 90), ("naive", "b", 70), ("random", "b", 2))
    ]
    assert tables.mined(ways).splitlines()[2:] == ["| naive | 90.0 | 70.0 |", "| random | - | 2.0 |"]
