"""Mined hard negatives: how many of them are relevant after all, and what training with them brings.

    python -m research.mining --seeds 0 1 2 3 4 --out research/results/mining.json

Questions with intents, with the encoder and the split of intents of `research/text_pairs.py`. Half of the texts of
every training intent are queries, the other half is the corpus. Every query has one positive, a text of its intent
drawn at random; all other texts of its intent are relevant too, and nothing says so. Five negatives are mined for every
query by each of these ways, from the similarities of a model that is not trained, MiniLM or the untrained table:

naive: The five nearest texts.
ranks 10 to 15, 50 to 55, 200 to 205: Nearer ones are left out.
margin 0.05: Only texts with s <= s+ - 0.05, s+ the similarity of the query to its positive.
95 % of the positive: Only texts with s <= 0.95 s+.
95 %, positive asked too: And the positive's own similarity to the text is at most 0.95 s+ as well.
groups by intent: No text of the query's intent: perfect knowledge.
random: Five texts by chance, the control.

1. Part `mined`: the share of mined texts that are relevant, by both models.
2. Parts `choice` and `test`, as in `research/text_pairs.py`: training with MiniLM's negatives next to those of the
   batch, each way at its own best temperature and number of epochs. The mined texts of all queries of a batch are
   candidates of each of them, as in MultipleNegativesRankingLoss; a query's own positive is never its negative.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from antipodes import InfoNCE
from antipodes.encoders.minilm import MiniLM
from research.records import DATA, Key, Records, best_setting, sha256
from research.text_pairs import DATASETS, Corpus, Table, embed, minilm_vectors, read_tokens, scores

CHOICE_SEEDS = (100, 101)
TEMPERATURES = (0.06, 0.12, 0.25)
CHOSEN_BY = "map@r"
MINED = 5


@dataclass(frozen=True)
class Settings:
    """What all runs have in common."""

    batch_size: int = 256
    learning_rate: float = 0.001
    epochs: int = 12
    every: int = 3


class Learn(NamedTuple):
    """Queries and corpus of the training intents; everything by row.

    Args:
        queries: The queries.
        corpus: The texts that are mined.
        positives: (n,) rows of the corpus.
        models: By name a model's vectors of the queries (n, D) and the corpus (m, D), of length 1.
        table: The encoder's token vectors before training.
    """

    queries: Corpus
    corpus: Corpus
    positives: Tensor
    models: dict[str, tuple[Tensor, Tensor]]
    table: Tensor


class Data(NamedTuple):
    """A dataset, split by intents."""

    learn: Learn
    choice: Corpus
    test: Corpus


class Similarities(NamedTuple):
    """What a way of mining goes by.

    Args:
        query: (n, m) of queries to corpus.
        positive: (n, m) of the queries' positives to the corpus.
        own: (n, 1) of queries to their positives.
        rank: (n, m) 0 for the nearest text of a query, the positive apart.
        same_intent: (n, m)
        random: (n, m) numbers by chance.
    """

    query: Tensor
    positive: Tensor
    own: Tensor
    rank: Tensor
    same_intent: Tensor
    random: Tensor


Kept = Callable[[Similarities], Tensor]
"""Which texts (n, m) a way of mining keeps; the nearest five of them are mined."""

WAYS: dict[str, Kept] = {
    "naive": lambda seen: seen.rank >= 0,
    "ranks 10 to 15": lambda seen: seen.rank >= 10,
    "ranks 50 to 55": lambda seen: seen.rank >= 50,
    "ranks 200 to 205": lambda seen: seen.rank >= 200,
    "margin 0.05": lambda seen: seen.query <= seen.own - 0.05,
    "95 % of the positive": lambda seen: seen.query <= 0.95 * seen.own,
    "95 %, positive asked too": lambda seen: (seen.query <= 0.95 * seen.own) & (seen.positive <= 0.95 * seen.own),
    "groups by intent": lambda seen: ~seen.same_intent,
    "random": lambda seen: seen.random >= seen.random.topk(MINED, dim=1).values[:, -1:],
}
BASELINE = "batch only"
NOT_TRAINED = ("ranks 10 to 15", "ranks 200 to 205")
"""Ways whose mined texts are counted only."""
VARIANTS = (BASELINE, *(name for name in WAYS if name not in NOT_TRAINED))


def compare(learn: Learn, model: str) -> Similarities:
    """Compare all queries with the corpus as a model sees them."""
    queries, corpus = learn.models[model]
    query, positive, rows = queries @ corpus.T, corpus[learn.positives] @ corpus.T, torch.arange(len(queries))
    own = query[rows, learn.positives][:, None].clone()
    others = query.clone()
    others[rows, learn.positives] = -torch.inf  # behind all others
    rank = others.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return Similarities(
        query,
        positive,
        own,
        rank,
        learn.queries.intents[:, None] == learn.corpus.intents,
        torch.rand(query.shape, generator=torch.Generator().manual_seed(5)),
    )


def mine(seen: Similarities, positives: Tensor, kept: Kept) -> Tensor:
    """The nearest texts that are kept and are not the positive: (n, MINED) rows of the corpus, -1 for none."""
    allowed = kept(seen)
    allowed[torch.arange(len(positives)), positives] = False
    found = seen.query.masked_fill(~allowed, -torch.inf).topk(MINED, dim=1)
    return found.indices.masked_fill(found.values == -torch.inf, -1)


def read_data(path: Path, encoder: MiniLM) -> Data:
    """Tokenise a dataset, split it by intents, and halve the training intents into queries and corpus."""
    tokens, places, table, intents, parts = read_tokens(path, encoder)
    queries, corpus, positives = halve(intents[parts["learn"]], torch.Generator().manual_seed(7))
    queries, corpus = parts["learn"][queries], parts["learn"][corpus]
    untrained = Table(table)

    def part_of(rows: Tensor) -> Corpus:
        return Corpus(places[rows], intents[rows])

    models = {"MiniLM": (minilm_vectors(encoder, tokens[queries]), minilm_vectors(encoder, tokens[corpus]))}
    models["untrained table"] = (embed(untrained, part_of(queries)), embed(untrained, part_of(corpus)))
    unit = {name: (F.normalize(a, dim=1), F.normalize(b, dim=1)) for name, (a, b) in models.items()}
    learn = Learn(part_of(queries), part_of(corpus), positives, unit, table)
    return Data(learn, part_of(parts["choice"]), part_of(parts["test"]))


def halve(intents: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of queries (n,), rows of the corpus (m,), and for every query a text of its intent in the corpus (n,)."""
    queries, corpus = [], []
    for intent in intents.unique():
        rows = (intents == intent).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=draw)]
        queries.append(rows[: len(rows) // 2])
        corpus.append(rows[len(rows) // 2 :])
    offset, positives = 0, []
    for asked, texts in zip(queries, corpus, strict=True):
        positives.append(offset + torch.randint(len(texts), asked.shape, generator=draw))
        offset += len(texts)
    return torch.cat(queries), torch.cat(corpus), torch.cat(positives)


def batch_loss(loss: InfoNCE, model: Table, learn: Learn, query: Tensor, mined: Tensor | None) -> Tensor:
    """The loss of a batch of queries against the positives and the mined texts of all of them.

    A text's row in the corpus is its identity, and its positive's that of a query: the positive is never a negative.

    Args:
        loss: The objective.
        model: The encoder.
        learn: The training texts.
        query: (B,) rows of queries.
        mined: (n, MINED) rows of the corpus by query.
    """
    document = learn.positives[query]
    given = document
    if mined is not None:
        extra = mined[query].flatten()
        extra = extra[extra >= 0].unique()
        given = torch.cat((document, extra[~torch.isin(extra, document)]))
    texts, place = given.unique(return_inverse=True)
    tokens = (learn.queries.tokens[query], learn.corpus.tokens[texts])
    first, second = model(tokens[0]), model(tokens[1])[place]
    value: Tensor = loss(first, second[: len(query)], document, candidates=second, candidate_ids=given)
    return value


def train(
    name: str, data: Data, mined: dict[str, Tensor], scored: Corpus, settings: Settings, temperature: float, seed: int
) -> dict[str, dict[str, float]]:
    """Train with a way's negatives; returns the scores by epoch."""
    learn, draw, found = data.learn, torch.Generator().manual_seed(1000 + seed), {}
    model, loss = Table(learn.table), InfoNCE(temperature)
    optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate)
    for epoch in range(1, settings.epochs + 1):
        for query in torch.randperm(len(learn.positives), generator=draw).split(settings.batch_size):
            optimizer.zero_grad()
            batch_loss(loss, model, learn, query, mined.get(name)).backward()
            optimizer.step()
        if epoch % settings.every == 0:
            found[str(epoch)] = scores(embed(model, scored), scored.intents)
    return found


def complete(records: Records, dataset: str, data: Data, settings: Settings, options: argparse.Namespace) -> None:
    """Do the missing runs on one dataset."""
    common, learn = {"dataset": dataset}, data.learn
    mined: dict[str, Tensor] = {}

    def count(key: Key) -> dict[str, float]:
        return relevant(mined[key["variant"]], learn)

    for model in ("untrained table", "MiniLM"):  # MiniLM's are kept for the training
        seen = compare(learn, model)
        mined = {name: mine(seen, learn.positives, kept) for name, kept in WAYS.items()}
        keys = [{**common, "part": "mined", "variant": name, "model": model, "seed": 0} for name in WAYS]
        records.complete(keys, count)

    def run(key: Key) -> dict[str, Any]:
        scored = data.choice if key["part"] == "choice" else data.test
        return train(key["variant"], data, mined, scored, settings, key["temperature"], key["seed"])

    def keys_of(part: str, name: str, temperatures: Iterable[float], seeds: Iterable[int]) -> list[Key]:
        key = {**common, "part": part, "variant": name}
        return [{**key, "temperature": each, "seed": seed} for each in temperatures for seed in seeds]

    for name in options.variants:
        records.complete(keys_of("choice", name, TEMPERATURES, CHOICE_SEEDS), run)
        best, _ = best_setting(records.runs, CHOSEN_BY, {**common, "variant": name})
        records.complete(keys_of("test", name, [best], options.seeds), run)


def relevant(mined: Tensor, learn: Learn) -> dict[str, float]:
    """How many texts were mined for a query, and the per cent of them that have its intent."""
    there = mined >= 0
    same = learn.corpus.intents[mined.clamp(min=0)] == learn.queries.intents[:, None]
    return {"mined": float(there.sum(1).double().mean()), "relevant": 100 * float(same[there].double().mean())}


def main() -> None:
    """Do the missing runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with banking77.csv.gz and clinc150.csv.gz")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--out", type=Path, default=Path("research/results/mining.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings, encoder = Settings(), MiniLM()
    digests = {f"{name}.csv.gz": sha256(options.data / f"{name}.csv.gz") for name in DATASETS}
    header = {**asdict(settings), "temperatures": TEMPERATURES, "mined": MINED}
    records = Records(options.out, "mining", header, digests)
    for dataset in options.datasets:
        complete(records, dataset, read_data(options.data / f"{dataset}.csv.gz", encoder), settings, options)


if __name__ == "__main__":
    main()
