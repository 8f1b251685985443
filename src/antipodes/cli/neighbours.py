"""`antipodes neighbours`: the nearest samples of samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from antipodes.audit.embeddings import FORMATS, Embeddings, read_embeddings
from antipodes.audit.neighbours import DatasetNeighbours, nearest_large, nearest_of
from antipodes.audit.outputs import is_table_of, require_out, write_table
from antipodes.cli.evaluate import progress_bar
from antipodes.cli.parser import FORCE, ArgumentParser
from antipodes.cli.tables import cell
from antipodes.files import refuse_foreign
from antipodes.plain_text import printable

OUTPUTS = (".csv", ".parquet", ".json", ".npz")
COLUMNS = ("path", "rank", "neighbour", "similarity")
ARRAYS = ("paths", "neighbours", "similarities")
"""The names in tables and in .npz files."""

SHOWN = 5
DESCRIPTION = """Find the nearest samples, by cosine, of every sample in a file of embeddings, or of some of them. The
search is exact (above 300,000 samples it is faiss's, where faiss is installed). A sample is not its own neighbour.

Examples:
antipodes neighbours photos.npz --k 5 --out neighbours.csv - of every photo;
antipodes neighbours photos.npz --queries holiday/7.jpg - of one, on the screen;
antipodes neighbours photos.npz --queries new.npz --out near.parquet - of other embeddings of the same encoder."""


def main(arguments: list[str]) -> None:
    """Parse, search, write, show."""
    parser = ArgumentParser(prog="antipodes neighbours", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "embeddings", metavar="EMBEDDINGS", help=f"File of antipodes embed, or any {', '.join(FORMATS)}."
    )
    parser.add_argument("--k", type=int, default=5, help="Neighbours of every sample.")
    parser.add_argument(
        "--queries",
        type=str,
        nargs="+",
        default=[],
        metavar="PATH",
        help="Only of these samples: paths as they are in the file (the end of a path is enough), or one more file of "
        "embeddings. All samples if not given.",
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

    out = None if call.out is None else require_out(call.out, OUTPUTS)
    if out is not None:
        names = ARRAYS if out.suffix == ".npz" else COLUMNS
        refuse_foreign(out, "--out", lambda file: is_table_of(file, names), call.force)
    known = read_embeddings(call.embeddings)
    with progress_bar("neighbours") as progress:
        vectors = torch.from_numpy(known.vectors)
        if call.queries:
            queries, own_rows = _queries(call.queries, known)
            found = nearest_of(torch.from_numpy(queries.vectors), vectors, call.k, own_rows, progress)
        else:
            queries, found = known, nearest_large(vectors, call.k, progress)
    if out is not None:
        write_table(out, _columns(queries, known, found, wide=out.suffix == ".npz"))
    if call.json:
        shown = len(queries) if out is None else 0
        answer = {
            queries.paths[row]: [
                {"path": known.paths[other], "similarity": round(float(similarity), 6)}
                for other, similarity in zip(found.rows[row].tolist(), found.similarities[row].tolist(), strict=True)
            ]
            for row in range(shown)
        }
        facts = {"queries": len(queries), "k": found.rows.shape[1], "exact": found.exact}
        print(json.dumps(facts | ({"neighbours": answer} if out is None else {"out": str(out)})))
        return
    _show(queries, known, found)
    if out is not None:
        print(f"{len(queries)} samples x {found.rows.shape[1]} neighbours: {printable(str(out))}")


def _queries(names: list[str], known: Embeddings) -> tuple[Embeddings, Tensor | None]:
    """The samples that were asked for, and their rows among the known ones."""
    if len(names) == 1 and Path(names[0]).suffix in FORMATS and names[0] not in known.paths:
        return read_embeddings(names[0]), None
    rows = [_row(name, known) for name in names]
    chosen = Embeddings(known.vectors[rows], tuple(known.paths[row] for row in rows))
    return chosen, torch.tensor(rows)


def _row(name: str, known: Embeddings) -> int:
    """The row of a path, or of the one path that ends like it."""
    if name in known.paths:
        return known.paths.index(name)
    ending = [row for row, path in enumerate(known.paths) if path.endswith("/" + name.lstrip("/"))]
    if len(ending) != 1:
        why = "no path ends" if not ending else f"{len(ending)} paths end"
        raise ValueError(f"--queries {name}: {why} so in the embeddings, such as {known.paths[0]}")
    return ending[0]


def _columns(queries: Embeddings, known: Embeddings, found: DatasetNeighbours, wide: bool) -> dict[str, Any]:
    """The answer as columns: a line for each neighbour, or for .npz a row of neighbours for each sample."""
    if wide:
        return dict(zip(ARRAYS, (list(queries.paths), found.rows.numpy(), found.similarities.numpy()), strict=True))
    count, k = found.rows.shape
    columns = (
        [path for path in queries.paths for _ in range(k)],
        list(range(1, k + 1)) * count,
        [known.paths[row] for row in found.rows.flatten().tolist()],
        found.similarities.flatten().numpy(),
    )
    return dict(zip(COLUMNS, columns, strict=True))


def _show(queries: Embeddings, known: Embeddings, found: DatasetNeighbours) -> None:
    """The first samples with their neighbours, as a table."""
    table = Table("sample", "neighbour", title="nearest samples" + ("" if found.exact else " (approximate)"))
    table.add_column("similarity", justify="right")
    for row in range(min(SHOWN, len(queries))):
        for place in range(min(SHOWN, found.rows.shape[1])):
            other, similarity = int(found.rows[row, place]), float(found.similarities[row, place])
            table.add_row("" if place else cell(queries.paths[row]), cell(known.paths[other]), f"{similarity:.3f}")
    Console().print(table)
    if len(queries) > SHOWN:
        print(f"the first {SHOWN} of {len(queries)} samples")
