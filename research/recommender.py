"""Two towers on user-item pairs: which correction of in-batch negatives pays, each at its own best temperature.

    python -m research.recommender --seeds 0 1 2 3 4 --out research/results/recommender.json

1. A tenth of every user's training pairs is set aside. Every variant is trained on the rest at every temperature, with
   the seeds 100 and 101, and scored on what was set aside every `--every` epochs.
2. The temperature and the number of epochs with the best mean recall are the variant's own.
3. It is trained so on all training pairs with the seeds of the report, and scored on the test pairs.
4. Step 3 is repeated at a temperature of 0.1 with the number of epochs that is best there: the difference says what
   choosing the temperature alone brings.

Users and items are rows of two embedding tables. Ranking leaves out the items that the user has in training.
Recall@20 is hits / test items of the user, averaged over users.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from antipodes import Chance, InfoNCE, Known, Policy
from research.records import DATA, Key, Records, best_setting, sha256

CHOICE_SEEDS = (100, 101)
USUAL_TEMPERATURE = 0.1
TOP = 20


@dataclass(frozen=True)
class Settings:
    """What all runs have in common."""

    dim: int = 64
    batch_size: int = 512
    learning_rate: float = 0.01
    epochs: int = 40
    every: int = 5
    held_out: float = 0.1
    temperatures: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)


class Interactions(NamedTuple):
    """User-item pairs (n, 2) to learn from and to be scored on, as numbers from 0."""

    learn: Tensor
    score: Tensor
    users: int
    items: int


@dataclass(frozen=True)
class Variant:
    """How a batch's negatives are corrected.

    Args:
        same_item: The anchor's own item, drawn again by another pair, is no negative.
        history: What happens to items that the user has in training: nothing, dropped or pulled.
        log_q: Subtract the log frequency of an item from its logits.
        chance: Drop as many candidates as the history would, by chance.
    """

    same_item: bool = False
    history: str | None = None
    log_q: bool = False
    chance: bool = False


VARIANTS: dict[str, Variant] = {
    "plain": Variant(),
    "same item masked": Variant(same_item=True),
    "history dropped": Variant(same_item=True, history="eliminate"),
    "history pulled": Variant(same_item=True, history="attract"),
    "logQ": Variant(same_item=True, log_q=True),
    "logQ, history dropped": Variant(same_item=True, history="eliminate", log_q=True),
    "logQ, history pulled": Variant(same_item=True, history="attract", log_q=True),
    "as many dropped by chance": Variant(same_item=True, chance=True),
    "logQ, as many dropped by chance": Variant(same_item=True, log_q=True, chance=True),
}


def read_interactions(path: Path) -> tuple[Tensor, Tensor, int, int]:
    """Read columns split, user, item: pairs of train and test (n, 2), and the numbers of users and items."""
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    pairs: dict[str, list[tuple[int, int]]] = {"train": [], "test": []}
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for row in csv.DictReader(file):
            if row["split"] not in pairs:
                raise ValueError(f"{path}: split must be train or test, got {row['split']!r}")
            user, item = users.setdefault(row["user"], len(users)), items.setdefault(row["item"], len(items))
            pairs[row["split"]].append((user, item))
    return torch.tensor(pairs["train"]), torch.tensor(pairs["test"]), len(users), len(items)


def set_aside(train: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Split pairs (n, 2) into the rest and a share of every user's; a user of fewer than 1 / share pairs keeps all."""
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    shuffled = train[order]
    shuffled = shuffled[shuffled[:, 0].argsort(stable=True)]
    count = shuffled[:, 0].bincount()
    first = count.cumsum(0) - count
    position = torch.arange(len(shuffled)) - first[shuffled[:, 0]]
    aside = position < (share * count[shuffled[:, 0]]).long()
    return shuffled[~aside], shuffled[aside]


def log_frequency(data: Interactions) -> Tensor:
    """The log of the share of training pairs that each item has, (items,)."""
    return (data.learn[:, 1].bincount(minlength=data.items).clamp(min=1) / len(data.learn)).log()


def history(data: Interactions) -> Known:
    """All training pairs as knowledge: users are rows from 0, items the rows after them."""
    pairs = data.learn.clone()
    pairs[:, 1] += data.users
    return Known(pairs=pairs, num_samples=data.users + data.items)


def known_share(data: Interactions) -> float:
    """The expected share of a batch's candidates, other than the anchor's item, that the anchor's user knows."""
    frequency = data.learn[:, 1].bincount(minlength=data.items).double() / len(data.learn)
    of_user = torch.zeros(data.users, dtype=torch.float64).index_add_(0, data.learn[:, 0], frequency[data.learn[:, 1]])
    return float((of_user[data.learn[:, 0]] - frequency[data.learn[:, 1]]).mean())


class Towers(nn.Module):
    """One embedding table of users and one of items."""

    def __init__(self, data: Interactions, dim: int, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.users = nn.Parameter(torch.randn(data.users, dim, generator=draw) / dim**0.5)
        self.items = nn.Parameter(torch.randn(data.items, dim, generator=draw) / dim**0.5)


def make_loss(variant: Variant, data: Interactions, temperature: float, seed: int) -> InfoNCE:
    """The loss of a variant."""
    policy: Policy | None = None
    if variant.history:
        policy = history(data)
    elif variant.chance:
        policy = Chance(known_share(data), seed=seed)
    treatment: Any = variant.history or "eliminate"
    return InfoNCE(temperature, policy, treatment)


def batch_loss(
    loss: InfoNCE, variant: Variant, towers: Towers, pairs: Tensor, numbers: Tensor, log_q: Tensor
) -> Tensor:
    """The loss of a batch: every user against the items of all its pairs.

    Args:
        loss: As `make_loss` makes it.
        variant: Of the negatives.
        towers: The tables.
        pairs: (B, 2) users and items.
        numbers: (B,) the pairs' own numbers, which tell them apart where equal items are not masked.
        log_q: (items,) log frequencies.
    """
    user, item = pairs.T
    z_user, z_item = towers.users[user], towers.items[item]
    ids = item if variant.same_item else numbers
    raised = -log_q[item] if variant.log_q else None
    return loss(
        z_user, z_item, ids, rows=user, candidates=z_item, candidate_ids=ids, candidate_rows=len(towers.users) + item,
        candidate_log_weights=raised, positive_log_weights=raised,
    )  # fmt: skip


def scores(similarity: Tensor, data: Interactions) -> dict[str, float]:
    """Recall@20 and nDCG@20 in per cent of a ranking (users, items), without the items of training."""
    ranked = similarity.clone()
    ranked[data.learn[:, 0], data.learn[:, 1]] = -torch.inf
    relevant = torch.zeros(data.users, data.items, dtype=torch.bool)
    relevant[data.score[:, 0], data.score[:, 1]] = True
    count = relevant.sum(1)
    asked = count > 0
    best = ranked[asked].topk(TOP, dim=1).indices
    hit = relevant[asked].gather(1, best).double()
    count = count[asked]
    discount = 1 / torch.arange(2, TOP + 2).double().log2()
    ideal = discount.cumsum(0)[count.clamp(max=TOP) - 1]
    recall, ndcg = hit.sum(1) / count, (hit @ discount) / ideal
    return {"recall@20": 100 * float(recall.mean()), "ndcg@20": 100 * float(ndcg.mean())}


def train(
    name: str, data: Interactions, settings: Settings, temperature: float, seed: int, epochs: int, every: int
) -> dict[str, dict[str, float]]:
    """Train a variant; returns its scores after every `every` epochs and at the end, by epoch."""
    variant = VARIANTS[name]
    towers = Towers(data, settings.dim, seed)
    optimizer = torch.optim.Adam(towers.parameters(), settings.learning_rate)
    loss = make_loss(variant, data, temperature, seed)
    log_q, draw = log_frequency(data), torch.Generator().manual_seed(1000 + seed)
    found: dict[str, dict[str, float]] = {}
    for epoch in range(1, epochs + 1):
        for numbers in torch.randperm(len(data.learn), generator=draw).split(settings.batch_size):
            optimizer.zero_grad()
            batch_loss(loss, variant, towers, data.learn[numbers], numbers, log_q).backward()
            optimizer.step()
        if epoch % every == 0 or epoch == epochs:
            with torch.no_grad():
                unit = [nn.functional.normalize(table, dim=1) for table in (towers.users, towers.items)]
                found[str(epoch)] = scores(unit[0] @ unit[1].T, data)
    return found


def main() -> None:
    """Do the missing runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA / "lastfm.csv.gz", help="CSV with columns split, user, item")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("research/results/recommender.json"))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings()
    train_pairs, test_pairs, users, items = read_interactions(options.data)
    whole = Interactions(train_pairs, test_pairs, users, items)
    part = Interactions(*set_aside(train_pairs, settings.held_out), users, items)
    records = Records(options.out, "recommender", vars(settings), {options.data.name: sha256(options.data)})
    popular = log_frequency(whole).expand(users, items)
    records.complete([{"part": "test", "variant": "popularity", "seed": 0}], lambda key: scores(popular, whole))

    def choose(key: Key) -> dict[str, Any]:
        return train(key["variant"], part, settings, key["temperature"], key["seed"], settings.epochs, settings.every)

    records.complete(
        [
            {"part": "choice", "variant": name, "seed": seed, "temperature": temperature}
            for name in options.variants
            for temperature in settings.temperatures
            for seed in CHOICE_SEEDS
        ],
        choose,
    )

    def test(key: Key) -> dict[str, float]:
        epochs = key["epochs"]
        return train(key["variant"], whole, settings, key["temperature"], key["seed"], epochs, epochs)[str(epochs)]

    for fixed in ({}, {"temperature": USUAL_TEMPERATURE}):
        wanted = []
        for name in options.variants:
            temperature, epochs = best_setting(records.runs, "recall@20", {**fixed, "variant": name})
            best = {"part": "test", "variant": name, "temperature": temperature, "epochs": epochs}
            wanted += [{**best, "seed": seed} for seed in options.seeds]
        records.complete(wanted, test)


if __name__ == "__main__":
    main()
