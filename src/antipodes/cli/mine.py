"""`antipodes mine`: hard negatives for queries, as a file that other trainers read."""

from __future__ import annotations

import json
from typing import get_args

from rich.console import Console

from antipodes.auditing.mined_files import OUTPUTS, Format, suspected_table
from antipodes.auditing.mining import mine
from antipodes.cli.tables import facts_table
from antipodes.parsing import FORCE, ArgumentParser
from antipodes.tables import require_out

DESCRIPTION = """Mine hard negatives: for every query the k most similar documents that are unlikely to be relevant. A
candidate that is too similar to the query or to its positive is suspected to be a false negative; it is listed in a
table next to the output.

Examples:
antipodes mine queries.jsonl corpus.jsonl --positives qrels.tsv --out negatives.parquet;
antipodes mine queries.csv corpus.csv --positives qrels.tsv --encoder runs/text --format list --out negatives.jsonl;
antipodes mine queries.npy corpus.npy --positives pairs.csv --ranks 10:100 --margin 0.1 --out negatives.parquet."""


def main(arguments: list[str]) -> None:
    """Parse the call, mine, say what was found."""
    parser = ArgumentParser(prog="antipodes mine", description=DESCRIPTION, allow_abbrev=False)
    kinds = "a table (csv, tsv, jsonl, parquet) of texts or embeddings with ids, vectors (.npy, .npz), or photos."
    parser.add_argument("queries", metavar="QUERIES", help=f"The queries: {kinds}")
    parser.add_argument("corpus", metavar="CORPUS", help="The documents, likewise.")
    parser.add_argument(
        "--positives",
        type=str,
        required=True,
        help="File of the positive pairs: query-id, corpus-id and perhaps score, TREC's four columns, or "
        "rows with their groups.",
    )
    parser.add_argument("--out", type=str, required=True, help=f"File of the negatives: {' or '.join(OUTPUTS)}.")
    parser.add_argument(
        "--encoder",
        type=str | None,
        default=None,
        help="hf:MODEL, timm:MODEL, a folder of such a model, a run or an exported file; by default minilm for texts, "
        "efficientnet-lite0 for photos, whose weights are in packages.",
    )
    parser.add_argument("--k", type=int, default=8, help="Negatives of every query.")
    parser.add_argument(
        "--margin", type=float, default=0.05, help="How much less similar than the positive a negative must be."
    )
    parser.add_argument(
        "--relative", type=bool, default=True, help="Whether the margin is a share of the positive's similarity."
    )
    parser.add_argument(
        "--ranks",
        type=str,
        default="0:",
        help="First rank of candidates and the rank to stop before, such as 10:100; 0: goes as deep as it must.",
    )
    parser.add_argument(
        "--format",
        type=str,
        default="triplet",
        help="triplet (anchor, positive, negative), n-tuple (negative_1 to negative_k) or list (query, pos, neg).",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.add_argument("--force", action="store_true", help=FORCE)
    call = parser.parse_args(arguments)
    if call.format not in get_args(Format):
        raise ValueError(f"--format must be one of {', '.join(get_args(Format))}, got {call.format!r}")

    mined = mine(
        call.queries,
        call.corpus,
        call.positives,
        encoder=call.encoder,
        k=call.k,
        margin=call.margin,
        relative=call.relative,
        ranks=_ranks(call.ranks),
        out=call.out,
        format=call.format,
        progress=True,
        force=call.force,
    )
    facts = {
        "queries": len(mined.queries),
        "documents": len(mined.corpus),
        "negatives": int((mined.indices >= 0).sum()),
        "suspected": len(mined.suspected["query"]),
        "false negatives without a margin, estimated": round(mined.false_negative_rate, 4),
        "search": mined.method,
        "out": call.out,
        "suspected candidates": str(suspected_table(require_out(call.out, OUTPUTS))),
    }
    if call.json:
        print(json.dumps(facts))
        return
    Console().print(facts_table("mined", facts))


def _ranks(text: str) -> tuple[int, int | None]:
    """`10:100` as two numbers, `10:` without an end.

    Raises:
        ValueError: if it is something else.
    """
    first, colon, last = text.partition(":")
    if not colon or not (first or "0").isdecimal() or not (last or "0").isdecimal():
        raise ValueError(f"--ranks must be two whole numbers such as 10:100, or 10: without an end, got {text!r}")
    return int(first or 0), int(last) if last else None
