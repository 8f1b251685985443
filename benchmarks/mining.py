"""Mining of hard negatives compared with sentence-transformers' `mine_hard_negatives`, on questions with known intents.

Queries are the test questions of a table with columns split, text and group (Banking77), the corpus its training
questions; the positive of a query is one training question of its intent, drawn at random. The other training questions
of that intent are relevant as well, which the miner is not told: what counts is their share among the mined negatives.

Both mine from the same MiniLM vectors, computed before. Times are process CPU time, one thread, the best of several
interleaved rounds; memory is the growth of the resident set's peak in a process of its own.

    python benchmarks/mining.py [--data ../shared/data/banking77.csv.gz] [--quick]

The last line of the output is JSON: name -> ratio, and shares.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import gc
import gzip
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from contrast import best_times, show
from numpy.typing import NDArray
from scale import resident
from torch import Tensor
from torch.nn.functional import normalize

from antipodes import load, mine

K, MARGIN = 8, 0.05
DATA = Path(__file__).parents[2] / "shared" / "data" / "banking77.csv.gz"


class Questions:
    """Queries, corpus, positives and their vectors."""

    def __init__(self, path: Path, vectors: Path | None, limit: int | None = None) -> None:
        with gzip.open(path, "rt", newline="") as file:
            rows = list(csv.DictReader(file))
        parts = ([row for row in rows if row["split"] == split] for split in ("test", "train"))
        test, train = (part[:: max(1, len(part) // limit)] if limit else part for part in parts)  # of every intent
        self.queries, self.corpus = ([row["text"] for row in part] for part in (test, train))
        groups = np.array([row["group"] for row in train])
        self.relevant = np.array([row["group"] for row in test])[:, None] == groups
        kept = self.relevant.any(1).nonzero()[0]  # with a limit some intents are missing
        self.queries, self.relevant = [self.queries[row] for row in kept], self.relevant[kept]
        draw = np.random.default_rng(0)
        self.positives = [int(draw.choice(row.nonzero()[0])) for row in self.relevant]
        if vectors is None:
            encoder = load("minilm")
            self.vectors = [encoder(texts).numpy() for texts in (self.queries, self.corpus)]
        else:
            with np.load(vectors) as arrays:
                self.vectors = [arrays["queries"], arrays["corpus"]]
        self.of_text = dict(zip([*self.queries, *self.corpus], np.concatenate(self.vectors), strict=True))

    def encode(self, texts: list[str], **_: Any) -> NDArray[np.float32]:
        """The vectors of texts, as an encoder gives them."""
        return np.stack([self.of_text[text] for text in texts])

    def ours(self, margin: float = MARGIN) -> NDArray[np.int64]:
        """Rows of the corpus by `mine`, -1 for none."""
        return mine(self.queries, self.corpus, self.positives, encoder=self.encode, k=K, margin=margin).indices

    def plain(self) -> NDArray[np.int64]:
        """The most similar documents but the positive: no margin excludes any."""
        options: dict[str, Any] = {"margin": -9.0, "relative": False}
        return mine(self.queries, self.corpus, self.positives, encoder=self.encode, k=K, **options).indices

    def theirs(self) -> NDArray[np.int64]:
        """Rows of the corpus by sentence-transformers, -1 for none."""
        from datasets import Dataset
        from sentence_transformers.util import mine_hard_negatives

        def encode(texts: list[str], **options: Any) -> Any:
            found = self.encode(texts)
            return torch.from_numpy(found) if options.get("convert_to_tensor") else found

        model = SimpleNamespace(
            device="cpu",
            encode_query=encode,
            encode_document=encode,
            similarity=lambda one, other: _unit(one) @ _unit(other).T,
            similarity_pairwise=lambda one, other: (_unit(one) * _unit(other)).sum(1),
            model_card_data=SimpleNamespace(base_model=""),
        )
        pairs = {"query": self.queries, "positive": [self.corpus[row] for row in self.positives]}
        mined = mine_hard_negatives(
            Dataset.from_dict(pairs), model, corpus=self.corpus, relative_margin=MARGIN, num_negatives=K,
            output_format="triplet", verbose=False,
        )  # fmt: skip
        query_rows = {text: row for row, text in enumerate(self.queries)}
        rows = {text: row for row, text in enumerate(self.corpus)}
        found = np.full((len(self.queries), K), -1)
        for query, negative in zip(mined["query"], mined["negative"], strict=True):
            row = found[query_rows[query]]
            row[(row >= 0).sum()] = rows[negative]
        return found

    def relevant_share(self, found: NDArray[np.int64]) -> float:
        """The share of mined negatives that have the query's intent."""
        there = found >= 0
        return float(self.relevant[there.nonzero()[0], found[there]].mean())


def _unit(vectors: Any) -> Tensor:
    return normalize(torch.as_tensor(vectors), dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Mining of hard negatives compared with sentence-transformers.")
    parser.add_argument("--data", type=Path, default=DATA, help="table with columns split, text and group")
    parser.add_argument("--quick", action="store_true", help="few questions")
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "VECTORS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    limit = 400 if arguments.quick else None
    if not arguments.data.is_file():
        print(f"{arguments.data} is not here: give --data")
        print("{}")
        return
    if arguments.memory:
        questions = Questions(arguments.data, Path(arguments.memory[1]), limit)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")  # the peak starts again
        before = resident("VmRSS")
        getattr(questions, arguments.memory[0])()
        print(resident("VmHWM") - before)
        return
    questions = Questions(arguments.data, None, limit)
    names = ["ours", "plain"]
    if importlib.util.find_spec("sentence_transformers") is not None:
        names.insert(0, "theirs")
    else:
        print("sentence-transformers is not installed: ours alone")
    best = best_times({name: getattr(questions, name) for name in names}, 1 if arguments.quick else 3)
    found = {name: getattr(questions, name)() for name in names}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npz"
        np.savez(path, queries=questions.vectors[0], corpus=questions.vectors[1])
        growth = {name: _memory(name, path, arguments) for name in names}
    titles = {"theirs": "mine_hard_negatives", "ours": "antipodes.mine", "plain": "no margin"}
    rows = [
        (
            titles[name],
            f"{best[name]:.2f} s",
            f"{growth[name]:.0f} MB",
            f"{(found[name] >= 0).sum() / len(questions.queries):.2f}",
            f"{100 * questions.relevant_share(found[name]):.1f} %",
        )
        for name in names
    ]
    show(
        f"{len(questions.queries):,} queries, {len(questions.corpus):,} documents, k = {K}, margin {MARGIN:.0%}",
        ("", "time", "memory", "negatives a query", "of them relevant"),
        rows,
    )
    numbers = {f"relevant share, {titles[name]}": questions.relevant_share(found[name]) for name in names}
    if "theirs" in names:
        numbers["mine, time"] = best["ours"] / best["theirs"]
        numbers["mine, memory"] = growth["ours"] / growth["theirs"]
        numbers["mine, relevant share"] = numbers["relevant share, antipodes.mine"] / max(
            numbers["relevant share, mine_hard_negatives"], 1e-9
        )
    print(json.dumps({name: round(value, 4) for name, value in numbers.items()}))


def _memory(name: str, vectors: Path, arguments: argparse.Namespace) -> float:
    """The growth of the peak in a fresh process, in MB."""
    command = [sys.executable, __file__, "--data", str(arguments.data), "--memory", name, str(vectors)]
    command += ["--quick"] if arguments.quick else []
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
