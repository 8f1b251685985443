"""Pairs of questions with one intent: what helps a small text encoder, each variant at its own best temperature.

    python -m research.text_pairs --seeds 0 1 2 3 4 --out research/results/text_pairs.json

The encoder is MiniLM's table of token vectors, averaged over the tokens of a text and trained end to end. Half of the
intents are for training, a sixth is for validation and a third for the test, the same for all seeds. Every question of
a training intent is once the query of a pair; its document is another question of the intent, drawn at random.

1. Every variant is trained at every temperature with the seeds 100 and 101, and scored on the validation intents every
   few epochs. The temperature and number of epochs with the best mean MAP@R are the variant's own.
2. With these it is trained with the seeds of the report, and scored on the test intents.
3. Step 2 is repeated at a temperature of 0.06, near the usual scale of 20, with the number of epochs that is best
   there: the difference says what choosing the temperature alone brings.
4. Frozen MiniLM and the untrained table are scored on the test intents. Of the training texts, the share of right ones
   among every text's most similar ones is recorded: the precision that GloFND and FNC can reach at the true share.

Scores: every text asks for the others of its intent among all texts of the held-out intents, by cosine. nDCG@10, and
MAP@R (Musgrave et al. 2020), where R is the number of other texts of the intent.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn
from torch.nn import functional as F

from antipodes import FNC, Chance, GloFND, Guided, InfoNCE, Known, Policy
from antipodes.encoders.minilm import MiniLM
from research.records import DATA, Key, Records, best_setting, sha256

CHOICE_SEEDS = (100, 101)
TEMPERATURES = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0)
USUAL_TEMPERATURE = 0.06
DATASETS = ("banking77", "clinc150")
Knows = Literal["closure", "intents", "guide table", "guide MiniLM", "glofnd", "fnc", "chance"]


@dataclass(frozen=True)
class Settings:
    """What all runs have in common."""

    batch_size: int = 512
    learning_rate: float = 0.001
    epochs: int = 12
    every: int = 2


@dataclass(frozen=True)
class Variant:
    """What is different from plain training.

    Args:
        redrawn: Draw new documents before every epoch, which takes more than one fixed list of pairs.
        knows: What says which candidates are false negatives.
        treatment: What happens to them.
    """

    redrawn: bool = False
    knows: Knows | None = None
    treatment: Literal["eliminate", "attract"] = "eliminate"


VARIANTS: dict[str, Variant] = {
    "plain": Variant(),
    "pairs redrawn": Variant(redrawn=True),
    "closure dropped": Variant(knows="closure"),
    "closure pulled": Variant(knows="closure", treatment="attract"),
    "Known dropped": Variant(knows="intents"),
    "Known pulled": Variant(knows="intents", treatment="attract"),
    "redrawn, Known pulled": Variant(redrawn=True, knows="intents", treatment="attract"),
    "Guided by the frozen table": Variant(knows="guide table"),
    "Guided by frozen MiniLM": Variant(knows="guide MiniLM"),
    "GloFND": Variant(knows="glofnd"),
    "GloFND pulled": Variant(knows="glofnd", treatment="attract"),
    "FNC": Variant(knows="fnc"),
    "FNC pulled": Variant(knows="fnc", treatment="attract"),
    "as many by chance": Variant(knows="chance"),
}


class Corpus(NamedTuple):
    """Texts as padded token numbers (n, L) with 0 for none, and their intents (n,)."""

    tokens: Tensor
    intents: Tensor


class Data(NamedTuple):
    """A dataset, split by intents."""

    learn: Corpus
    choice: Corpus
    test: Corpus
    table: Tensor  # (tokens in use + 1, 384), the first row for padding
    guide: Tensor  # (len(learn), 384), MiniLM's vectors of the training texts
    guide_test: Tensor  # (len(test), 384), those of the test texts
    false_share: float  # of a batch's negatives, by the intents


def read_texts(path: Path) -> tuple[list[str], list[str]]:
    """The texts of all splits, each different text once, and the name of its intent."""
    found: dict[str, str] = {}
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["text"].strip(), row["group"])
    return list(found), list(found.values())


def split_intents(names: list[str]) -> dict[str, list[str]]:
    """Intents for training, validation and test: 3, 1 and 2 of every 6 in a fixed random order."""
    ordered = sorted(set(names))
    order = torch.randperm(len(ordered), generator=torch.Generator().manual_seed(77)).tolist()
    parts: dict[str, list[str]] = {"learn": [], "choice": [], "test": []}
    for position, place in enumerate(order):
        part = ("test", "choice", "learn", "test", "learn", "learn")[position % 6]
        parts[part].append(ordered[place])
    return parts


def read_tokens(path: Path, encoder: MiniLM) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Tokenise a dataset: tokens, their places in the rows of MiniLM's table in use, these rows, intents, splits."""
    texts, names = read_texts(path)
    tokens = encoder.tokenize(texts)
    used, places = tokens.unique(return_inverse=True)  # 0, the padding, comes first
    table = encoder.embeddings.word_embeddings.weight.detach()[used].clone()
    table[0] = 0
    number = {name: count for count, name in enumerate(sorted(set(names)))}
    intents = torch.tensor([number[name] for name in names])
    parts = {}
    for part, chosen in split_intents(names).items():
        parts[part] = torch.isin(intents, torch.tensor([number[name] for name in chosen])).nonzero()[:, 0]
    return tokens, places, table, intents, parts


def read_data(path: Path, encoder: MiniLM) -> Data:
    """Tokenise a dataset and keep the rows of MiniLM's table that it uses."""
    tokens, places, table, intents, parts = read_tokens(path, encoder)
    learn = parts["learn"]
    guides = {
        "guide": minilm_vectors(encoder, tokens[learn]),
        "guide_test": minilm_vectors(encoder, tokens[parts["test"]]),
    }
    share = intents[learn].bincount().double() / len(learn)
    corpora = {part: Corpus(places[rows], intents[rows]) for part, rows in parts.items()}
    return Data(**corpora, **guides, table=table, false_share=float((share**2).sum()))


@torch.no_grad()
def minilm_vectors(encoder: MiniLM, tokens: Tensor) -> Tensor:
    """MiniLM's vectors (n, 384) of texts (n, L), in batches of similar length."""
    length = (tokens != 0).sum(1)
    order = length.argsort()
    found = [encoder(tokens[some, : int(length[some].max())]) for some in order.split(128)]
    return torch.cat(found)[order.argsort()]


class Table(nn.Module):
    """The mean of the token vectors of a text: tokens (B, L), 0 where padded, to (B, 384)."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Parameter(table.clone())

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed texts."""
        tokens = tokens[:, : int((tokens != 0).sum(1).max())]
        return F.embedding_bag(tokens, self.vectors, mode="mean", padding_idx=0)


def draw_documents(intents: Tensor, draw: torch.Generator) -> Tensor:
    """For every text as a query another text of its intent, drawn evenly: rows (n,)."""
    documents = torch.empty_like(intents)
    for intent in intents.unique():
        rows = (intents == intent).nonzero()[:, 0]
        offset = torch.randint(1, len(rows), (len(rows),), generator=draw)
        documents[rows] = rows[(torch.arange(len(rows)) + offset) % len(rows)]
    return documents


def closure(documents: Tensor) -> Tensor:
    """The connected component of every text (n,) when text i and documents[i] are joined."""
    count = len(documents)
    joined = csr_array((np.ones(count), (np.arange(count), documents.numpy())), shape=(count, count))
    return torch.from_numpy(connected_components(joined, directed=False)[1]).long()


def make_policy(variant: Variant, data: Data, documents: Tensor, seed: int) -> Policy | None:
    """The policy of a variant; shares are those of the true false negatives."""
    if variant.knows == "closure":
        return Known(closure(documents))
    if variant.knows == "intents":
        return Known(data.learn.intents)
    if variant.knows == "glofnd":
        return GloFND(len(data.learn.intents), alpha=data.false_share)
    if variant.knows == "fnc":
        return FNC(alpha=data.false_share)
    if variant.knows == "chance":
        return Chance(data.false_share, seed=seed)
    return None if variant.knows is None else Guided(margin=0.0)


def guide_of(variant: Variant, data: Data) -> Tensor | None:
    """The guide's vectors of all training texts."""
    if variant.knows == "guide MiniLM":
        return data.guide
    if variant.knows == "guide table":
        with torch.no_grad():
            frozen: Tensor = Table(data.table)(data.learn.tokens)
        return frozen
    return None


def batch_loss(
    loss: InfoNCE, model: Table, data: Data, query: Tensor, document: Tensor, guide: Tensor | None
) -> Tensor:
    """The loss of a batch of pairs: every query against the documents of all pairs.

    Args:
        loss: The loss.
        model: The encoder.
        data: The dataset.
        query: (B,) rows of texts, each of them once an epoch, so that they name the pairs.
        document: (B,) rows of texts.
        guide: (n, G) a guide's vectors of the texts.
    """
    first, second = model(data.learn.tokens[torch.cat((query, document))]).chunk(2)
    seen = {} if guide is None else {"guide": (guide[query], guide[document]), "candidate_guide": guide[document]}
    value: Tensor = loss(
        first, second, query, rows=query, candidates=second, candidate_ids=query, candidate_rows=document, **seen
    )
    return value


@torch.no_grad()
def embed(model: Table, corpus: Corpus) -> Tensor:
    """The vectors (n, 384) of all texts."""
    return torch.cat([model(some) for some in corpus.tokens.split(1024)])


def quantile_precision(vectors: Tensor, intents: Tensor, share: float) -> float:
    """Of every text's most similar other texts, a share of all, those of its own intent, in per cent."""
    unit, right = F.normalize(vectors, dim=1), []
    count = round(share * len(unit))
    for rows in torch.arange(len(unit)).split(512):
        similarity = unit[rows] @ unit.T
        similarity[torch.arange(len(rows)), rows] = -torch.inf
        right.append((intents[similarity.topk(count, dim=1).indices] == intents[rows, None]).double().mean(1))
    return 100 * float(torch.cat(right).mean())


def scores(vectors: Tensor, intents: Tensor) -> dict[str, float]:
    """nDCG@10 and MAP@R in per cent of vectors (n, D) of texts with these intents (n,)."""
    unit = F.normalize(vectors, dim=1)
    count = intents.bincount()[intents] - 1
    longest = min(max(int(count.max()), 10), len(unit) - 1)
    discount = 1 / torch.arange(2, 12).double().log2()
    ndcg, precision = [], []
    for rows in torch.arange(len(unit)).split(512):
        similarity = unit[rows] @ unit.T
        similarity[torch.arange(len(rows)), rows] = -torch.inf
        nearest = similarity.topk(longest, dim=1).indices
        hit = (intents[nearest] == intents[rows, None]).double()
        wanted = count[rows]
        ndcg.append(hit[:, :10] @ discount[:longest] / discount.cumsum(0)[wanted.clamp(max=10) - 1])
        place = torch.arange(1, longest + 1)
        inside = hit * (place <= wanted[:, None])
        precision.append((inside * inside.cumsum(1) / place).sum(1) / wanted)
    return {"ndcg@10": 100 * float(torch.cat(ndcg).mean()), "map@r": 100 * float(torch.cat(precision).mean())}


def train(
    name: str, data: Data, scored: Corpus, settings: Settings, temperature: float, seed: int, epochs: int, every: int
) -> dict[str, dict[str, float]]:
    """Train a variant; returns its scores after every `every` epochs, by epoch."""
    model, found = Table(data.table), {}
    for epoch in train_epochs(model, VARIANTS[name], data, settings, temperature, seed, epochs):
        if epoch % every == 0:
            found[str(epoch)] = scores(embed(model, scored), scored.intents)
    return found


def train_epochs(
    model: Table, variant: Variant, data: Data, settings: Settings, temperature: float, seed: int, epochs: int
) -> Iterator[int]:
    """Train the model as the variant says; yields the number of each epoch when it is over."""
    draw = torch.Generator().manual_seed(1000 + seed)
    documents = draw_documents(data.learn.intents, draw)
    loss = InfoNCE(temperature, make_policy(variant, data, documents, seed), variant.treatment)
    guide, optimizer = guide_of(variant, data), torch.optim.Adam(model.parameters(), settings.learning_rate)
    for epoch in range(1, epochs + 1):
        if variant.redrawn and epoch > 1:
            documents = draw_documents(data.learn.intents, draw)
        for query in torch.randperm(len(documents), generator=draw).split(settings.batch_size):
            optimizer.zero_grad()
            batch_loss(loss, model, data, query, documents[query], guide).backward()
            optimizer.step()
        yield epoch


def main() -> None:
    """Do the missing runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with banking77.csv.gz and clinc150.csv.gz")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=Path("research/results/text_pairs.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings, encoder = Settings(), MiniLM()
    digests = {f"{name}.csv.gz": sha256(options.data / f"{name}.csv.gz") for name in DATASETS}
    records = Records(options.out, "text pairs", vars(settings), digests)
    for dataset in options.datasets:
        data = read_data(options.data / f"{dataset}.csv.gz", encoder)
        complete(records, dataset, data, settings, options.variants, options.seeds)


def complete(
    records: Records, dataset: str, data: Data, settings: Settings, variants: list[str], seeds: list[int]
) -> None:
    """Do the missing runs on one dataset: what is not trained, choice, test, precision."""
    common = {"dataset": dataset}
    frozen = {"untrained": embed(Table(data.table), data.test), "frozen MiniLM": data.guide_test}
    records.complete(
        [{**common, "part": "test", "variant": name, "seed": 0} for name in frozen],
        lambda key: scores(frozen[key["variant"]], data.test.intents),
    )

    def choose(key: Key) -> dict[str, Any]:
        place = (key["temperature"], key["seed"], settings.epochs, settings.every)
        return train(key["variant"], data, data.choice, settings, *place)

    records.complete(
        [
            {**common, "part": "choice", "variant": name, "seed": seed, "temperature": temperature}
            for name in variants
            for temperature in TEMPERATURES
            for seed in CHOICE_SEEDS
        ],
        choose,
    )

    def test(key: Key) -> dict[str, float]:
        epochs = key["epochs"]
        place = (key["temperature"], key["seed"], epochs, epochs)
        return train(key["variant"], data, data.test, settings, *place)[str(epochs)]

    for fixed in ({}, {"temperature": USUAL_TEMPERATURE}):
        wanted = []
        for name in variants:
            temperature, epochs = best_setting(records.runs, "map@r", {**common, **fixed, "variant": name})
            best = {**common, "part": "test", "variant": name, "temperature": temperature, "epochs": epochs}
            wanted += [{**best, "seed": seed} for seed in seeds]
        records.complete(wanted, test)
    complete_precision(records, common, data, settings, seeds)


def complete_precision(
    records: Records, common: dict[str, str], data: Data, settings: Settings, seeds: list[int]
) -> None:
    """Measure how right the most similar training texts are: untrained, trained plainly, and by MiniLM."""
    temperature, epochs = best_setting(records.runs, "map@r", {**common, "variant": "plain"})

    def precision(key: Key) -> dict[str, float]:
        vectors = data.guide
        if key["variant"] != "frozen MiniLM":
            model = Table(data.table)
            if key["variant"] == "plain":
                for _ in train_epochs(model, VARIANTS["plain"], data, settings, temperature, key["seed"], epochs):
                    pass
            vectors = embed(model, data.learn)
        return {"precision": quantile_precision(vectors, data.learn.intents, data.false_share)}

    keys = [{**common, "part": "precision", "variant": name, "seed": 0} for name in ("untrained", "frozen MiniLM")]
    keys += [{**common, "part": "precision", "variant": "plain", "seed": seed} for seed in seeds]
    records.complete(keys, precision)


if __name__ == "__main__":
    main()
