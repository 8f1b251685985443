"""`antipodes neighbours`: the nearest samples of samples."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from antipodes.auditing.embeddings import FORMATS
from antipodes.auditing.neighbourhood import OUTPUTS, Neighbourhood, neighbours
from antipodes.cli.tables import cell
from antipodes.parsing import FORCE, ArgumentParser
from antipodes.plain_text import printable

SHOWN = 5
DESCRIPTION = """Find the nearest samples, by cosine, of every sample in a file of embeddings, or of photos or texts
that an encoder embeds first; or of some of them. The search is exact (above 100,000 samples it goes through an inverted
file). A sample is not its own neighbour.

Examples:
antipodes neighbours photos.npz --k 5 --out neighbours.csv - of every photo;
antipodes neighbours photos.npz --queries holiday/7.jpg - of one, on the screen;
antipodes neighbours photos.npz --queries new.npz --out near.parquet - of other embeddings of the same encoder;
antipodes neighbours questions.csv --encoder minilm --queries "how do I pay?" - of a new text;
antipodes neighbours texts.txt --encoder runs/clip --tower text --out neighbours.csv - by one of the towers of a run."""


def main(arguments: list[str]) -> None:
    """Parse the call, search, print the first neighbours."""
    parser = ArgumentParser(prog="antipodes neighbours", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "embeddings",
        metavar="EMBEDDINGS|DATA",
        help=f"File of antipodes embed, or any {', '.join(FORMATS)}; with --encoder photos or texts, as in embed.",
    )
    parser.add_argument(
        "--encoder", type=str | None, default=None, help="Run or encoder, as in antipodes embed, of photos or texts."
    )
    parser.add_argument("--tower", type=str | None, default=None, help="Which encoder, where a run has several: text.")
    parser.add_argument("--columns", type=str | None, default=None, help="Column of texts in a table.")
    parser.add_argument("--k", type=int, default=5, help="Neighbours of every sample.")
    parser.add_argument(
        "--queries",
        type=str,
        nargs="+",
        default=[],
        metavar="PATH",
        help="Only of these samples: paths as they are in the file (the end of a path is enough), one more file of "
        "embeddings, or with --encoder new texts or photos. All samples if not given.",
    )
    parser.add_argument(
        "--out",
        type=str | None,
        default=None,
        help=f"File of the answer, a line for every sample and neighbour: {', '.join(OUTPUTS)}.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.add_argument("--force", action="store_true", help=FORCE)
    call = parser.parse_args(arguments)

    found = neighbours(
        call.embeddings,
        encoder=call.encoder,
        tower=call.tower,
        columns=None if call.columns is None else call.columns.split(","),
        k=call.k,
        queries=call.queries,
        out=call.out,
        progress=True,
        force=call.force,
    )
    count, k = found.indices.shape
    if call.json:
        facts = {"queries": count, "k": k, "exact": found.exact}
        print(json.dumps(facts | ({"neighbours": _lists(found)} if call.out is None else {"out": call.out})))
        return
    _show(found)
    if call.out is not None:
        print(f"{count} samples x {k} neighbours: {printable(call.out)}")


def _lists(found: Neighbourhood) -> dict[str, list[dict[str, object]]]:
    """The neighbours of every query, the nearest first."""
    return {
        query: [
            {"path": found.paths[other], "similarity": round(similarity, 6)}
            for other, similarity in zip(rows, similarities, strict=True)
        ]
        for query, rows, similarities in zip(
            found.queries, found.indices.tolist(), found.similarities.tolist(), strict=True
        )
    }


def _show(found: Neighbourhood) -> None:
    """Print the first samples with their neighbours."""
    table = Table("sample", "neighbour", title="nearest samples" + ("" if found.exact else " (approximate)"))
    table.add_column("similarity", justify="right")
    for row, query in enumerate(found.queries[:SHOWN]):
        for place in range(min(SHOWN, found.indices.shape[1])):
            other, similarity = int(found.indices[row, place]), float(found.similarities[row, place])
            table.add_row("" if place else cell(query), cell(found.paths[other]), f"{similarity:.3f}")
    Console().print(table)
    if len(found.queries) > SHOWN:
        print(f"the first {SHOWN} of {len(found.queries)} samples")
