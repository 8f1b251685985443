"""The studies' own parts: losses against dense formulas, scores and statistics by hand, files that resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import ttest_rel
from torch import Tensor
from torch.nn import functional as F

from research import glofnd_settling, recommender, tables, text_pairs
from research.records import Records, best_setting

PAIRS = torch.tensor([[0, 0], [0, 1], [1, 1], [1, 2], [2, 3], [2, 0], [3, 2]])
DATA = recommender.Interactions(PAIRS, torch.tensor([[0, 3], [1, 0], [1, 3]]), users=4, items=4)


def dense_loss(variant: recommender.Variant, towers: recommender.Towers, log_q: Tensor, temperature: float) -> Tensor:
    """The mean over pairs i of -log softmax over their own item and the items that the variant keeps, in loops."""
    user, item = (F.normalize(table.detach(), dim=1) for table in (towers.users, towers.items))
    known, losses = {tuple(pair) for pair in PAIRS.tolist()}, []
    for place, (u, i) in enumerate(PAIRS.tolist()):
        logit = [float(user[u] @ item[k]) / temperature - variant.log_q * float(log_q[k]) for k in range(4)]
        kept = [k for other, (_, k) in enumerate(PAIRS.tolist()) if other != place]
        if variant.same_item:
            kept = [k for k in kept if k != i]
        pulled = [k for k in kept if (u, k) in known] if variant.history == "attract" else []
        if variant.history == "eliminate":
            kept = [k for k in kept if (u, k) not in known]
        total = torch.tensor([logit[k] for k in (i, *kept)]).logsumexp(0)
        raw = [float(user[u] @ item[k]) / temperature for k in (i, *pulled)]
        constant = logit[i] - raw[0]
        losses.append(total - constant - sum(raw) / len(raw))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("name", [name for name, variant in recommender.VARIANTS.items() if not variant.chance])
def test_the_recommenders_loss_is_the_dense_one(name: str) -> None:
    variant, towers = recommender.VARIANTS[name], recommender.Towers(DATA, 6, seed=0)
    log_q, numbers = recommender.log_frequency(DATA), torch.arange(len(PAIRS))
    loss = recommender.make_loss(variant, DATA, 0.5, seed=0)
    ours = recommender.batch_loss(loss, variant, towers, PAIRS, numbers, log_q)
    torch.testing.assert_close(ours, dense_loss(variant, towers, log_q, 0.5))


def test_a_ranking_is_scored_without_the_items_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommender, "TOP", 2)
    similarity = torch.tensor([[9.0, 8, 1, 2], [1.0, 9, 9, 2], [0.0, 0, 0, 0], [0.0, 0, 0, 0]])
    found = recommender.scores(similarity, DATA)  # user 0 is shown 3, 2 and user 1 is shown 3, 0: all that is wanted
    assert found == {"recall@20": pytest.approx(100), "ndcg@20": pytest.approx(100)}
    similarity[0, 2] = 3.0  # now 2 comes before 3
    assert recommender.scores(similarity, DATA)["ndcg@20"] == pytest.approx(50 + 50 / torch.tensor(3.0).log2().item())


def test_what_is_set_aside_is_a_share_of_every_users_pairs() -> None:
    pairs = torch.stack((torch.arange(60) // 20, torch.arange(60)), dim=1)
    rest, aside = recommender.set_aside(pairs, 0.1)
    assert aside[:, 0].bincount().tolist() == [2, 2, 2]
    assert sorted((*rest[:, 1].tolist(), *aside[:, 1].tolist())) == list(range(60))


def test_as_many_by_chance_is_the_share_that_users_know() -> None:
    count = [2, 2, 2, 1]  # of the items; user 0 has items 0 and 1, and so on
    others = [count[1], count[0], count[2], count[1], count[0], count[3], 0]
    assert recommender.known_share(DATA) == pytest.approx(sum(others) / 7 / 7)


def test_documents_are_other_texts_of_the_intent_and_their_closure_stays_inside() -> None:
    intents = torch.tensor([0, 1, 0, 1, 0, 1, 1, 0])
    documents = text_pairs.draw_documents(intents, torch.Generator().manual_seed(0))
    assert bool((intents[documents] == intents).all())
    assert not bool((documents == torch.arange(8)).any())
    assert text_pairs.closure(torch.tensor([1, 2, 0, 4, 3])).tolist() == [0, 0, 0, 1, 1]


def test_the_parts_of_the_intents_are_disjoint_and_do_not_depend_on_their_order() -> None:
    names = [f"intent {number}" for number in range(12)]
    parts = text_pairs.split_intents(names)
    assert {part: len(some) for part, some in parts.items()} == {"learn": 6, "choice": 2, "test": 4}
    assert sorted(name for part in parts.values() for name in part) == sorted(names)
    assert text_pairs.split_intents(names[::-1]) == parts


def test_texts_are_scored_by_hand() -> None:
    table = text_pairs.Table(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.2]]))
    corpus = text_pairs.Corpus(torch.tensor([[1], [2], [3], [4]]), torch.tensor([0, 0, 1, 1]))
    # nearest first, 1 for the own intent: 0: [1,..], 1: [0 is at .994, 3 at .991], 2: [3], 3: [1, 0, 2]
    found = text_pairs.scores(text_pairs.embed(table, corpus), corpus.intents)
    assert found["map@r"] == pytest.approx(75)
    assert found["ndcg@10"] == pytest.approx((3 + 0.5) / 4 * 100)  # text 3 finds its only partner in the third place


def test_flags_are_scored_per_anchor() -> None:
    flagged, same = torch.tensor([[1, 1], [0, 0]]).bool(), torch.tensor([[1, 0], [1, 0]]).bool()
    found = glofnd_settling.flag_scores(flagged, same, torch.ones(2, 2).bool())
    assert found == {"share flagged": 50.0, "precision": 75.0, "recall": 50.0, "f1": pytest.approx(60.0)}


def test_a_finished_run_is_not_done_again_and_other_settings_are_refused(tmp_path: Path) -> None:
    path, done = tmp_path / "results" / "a.json", []

    def run(key: Any) -> dict[str, float]:
        done.append(key["seed"])
        if key["seed"] == 2:
            raise KeyboardInterrupt
        return {"score": 1.0}

    keys = [{"variant": "plain", "seed": seed} for seed in range(3)]
    with pytest.raises(KeyboardInterrupt):
        Records(path, "a", {"dim": 2}, {}).complete(keys, run)
    assert len(json.loads(path.read_text())["runs"]) == 2
    Records(path, "a", {"dim": 2}, {}).complete(keys[:2], run)
    assert done == [0, 1, 2]
    with pytest.raises(ValueError, match="settings"):
        Records(path, "a", {"dim": 3}, {})


def test_the_best_setting_is_that_of_the_mean() -> None:
    def choice(seed: int, temperature: float, values: dict[str, float]) -> dict[str, Any]:
        key = {"part": "choice", "variant": "plain", "seed": seed, "temperature": temperature}
        return {"key": key, "metrics": {epoch: {"recall": value} for epoch, value in values.items()}}

    runs = [choice(0, 0.1, {"5": 9, "10": 1}), choice(1, 0.1, {"5": 1, "10": 2}), choice(0, 0.2, {"5": 6, "10": 5})]
    runs.append(choice(1, 0.2, {"5": 3, "10": 7}))
    assert best_setting(runs, "recall", {"variant": "plain"}) == (0.2, 10)


def test_holm_and_paired_p() -> None:
    assert tables.holm([0.04, None, 0.01, 0.03]) == [
        pytest.approx(0.06),
        None,
        pytest.approx(0.03),
        pytest.approx(0.06),
    ]
    ours, theirs = [1.0, 2.0, 4.0], [0.5, 1.0, 2.0]
    assert tables.paired_p(ours, theirs) == pytest.approx(ttest_rel(ours, theirs).pvalue)
    assert tables.paired_p([1.0], [0.0]) is None
