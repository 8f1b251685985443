"""The results of a study for people (terminal, Markdown) and for scripts (JSON): an overview, and a table per score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.markup import escape
from rich.table import Table

from antipodes.studies.definition import Options, Paper, Study, flatten_options
from antipodes.studies.statistics import Line, Results

Cells = tuple[list[str], list[list[str]]]
"""A table: its header and its rows."""


def tables(lines: Sequence[Line], paper: Sequence[Paper] = ()) -> list[Table]:
    """A terminal table per score."""
    return [_table(score, _cells(part, paper)) for score, part in _by_score(lines)]


def text_table(lines: Sequence[Line]) -> str:
    """Return one table of plain text: mean and spread of the first scores, and the paired difference to the baseline.

    Args:
        lines: The scores of every variant.
    """
    if not lines:
        return "no scores yet"
    header, rows = overview(lines)
    widths = [max(len(row[place]) for row in (header, *rows)) for place in range(len(header))]
    aligned = [str.ljust if name in TEXTS else str.rjust for name in header]
    rule = ["-" * width for width in widths]
    text = [
        "  ".join(align(cell, width) for align, cell, width in zip(aligned, row, widths, strict=True))
        for row in (header, rule, *rows)
    ]
    return "\n".join(line.rstrip() for line in text)


TEXTS = ("variant", "against", "paper", "claim", "score", "here")
"""The columns that hold no numbers."""
MORE = "<!-- more -->"
"""A line of a note: what follows it is folded away, to keep the page short."""
IMPORTANT = 4
"""How many scores the overview and the figure show: the first ones."""


def markdown(
    report: Mapping[str, Any], lines: Sequence[Line], paper: Sequence[Paper], figures: Mapping[str, str] | None = None
) -> str:
    """The report of `study_report` as a page of Markdown.

    Args:
        report: Its content.
        lines: What its tables show.
        paper: Published figures.
        figures: Caption -> link to the file.
    """
    blocks = [f"# {report['title']}", *([report["question"]] if report["question"] else [])]
    blocks += [*_in_short(report["facts"]), _markdown_table(overview(lines, report["records"]))]
    single = any(line.deviation is None for line in lines)
    other = f"{report['baseline']}, or to the variant under *against*," if _several(lines) else report["baseline"]
    blocks.append(OVERVIEW_LEGEND.format(other=other) + (SINGLE_LEGEND if single else ""))
    pictures = [f"![{caption}]({file})" for caption, file in (figures or {}).items()]
    blocks += pictures[:1]
    short, _, rest = report["notes"].partition(MORE)
    blocks += [f"## What it shows\n\n{short.strip()}"] if short.strip() else []
    blocks += [report["appendix"]] if report.get("appendix") else []
    if report["failed"]:
        blocks.append(_list("Runs that failed:", (f"{run}: {why}" for run, why in report["failed"].items())))
    stale = report.get("stale") or {}
    if stale:
        blocks.append(f"{len(stale)} of the runs were made by older code than the others; they are listed below.")
    blocks += ["<details>", "<summary>Every score, the options of all variants, published figures</summary>"]
    blocks += [f"## More of what it shows\n\n{rest.strip()}"] if rest.strip() else []
    blocks.append(_list("", (f"**{name}**: {value}" for name, value in report["facts"].items())))
    if stale:
        blocks.append(_list("Runs of older code:", (f"{run}: {why}" for run, why in stale.items())))
    blocks += pictures[1:]
    for score, part in _by_score(lines):
        blocks += [f"## {score}", _markdown_table(_cells(part, paper))]
    blocks.append(LEGEND.format(other=other))
    if paper:
        blocks.append(_list("Published figures:", sources(paper)))
    rows = [[name, _options(options)] for name, options in report["variants"].items()]
    blocks += ["## Variants", _markdown_table((["variant", "options that differ"], rows)), "</details>"]
    return "\n\n".join(blocks) + "\n"


def _in_short(facts: Mapping[str, str]) -> list[str]:
    """The facts that a reader of the first table needs, as a line; none where there are none."""
    needed = [f"{name}: {facts[name]}" for name in ("data", "encoder", "epochs", "made by") if name in facts]
    return [f"*{'; '.join(needed)}*"] if needed else []


def _list(title: str, entries: Iterable[str]) -> str:
    return "\n".join([*([title, ""] if title else []), *(f"- {entry}" for entry in entries)])


SINGLE = " †"
OVERVIEW_LEGEND = "Mean ± standard deviation over the seeds, *difference* to {other} with *p* as below."
SINGLE_LEGEND = """
† A single seed: no spread, no test, and a difference that may be chance."""
LEGEND = """Means over the seeds; *spread* is the standard deviation over them. *difference* is the mean difference to
{other} over the seeds both have, *p* that of a two-sided paired t-test on these (none with fewer than two), *p >* that
of the one-sided one: is the variant better?"""


def sources(paper: Sequence[Paper]) -> list[str]:
    """Where the published figures come from and what they were measured on, numbered as in the tables."""
    return [f"({number}) {entry.source}: {entry.measured}" for number, entry in enumerate(paper, 1)]


def shown(lines: Sequence[Line], study: Study, hidden: Callable[[str], bool]) -> list[Line]:
    """What the study's tables show: the scores and records it names, in its order, else all but the hidden scores."""
    if study.scores is None:
        return [line for line in lines if not hidden(line.score)]
    order = [*study.scores, *study.records]
    return sorted((line for line in lines if line.score in order), key=lambda line: order.index(line.score))


def study_report(
    study: Study,
    configurations: Mapping[str, Options],
    facts: Mapping[str, str],
    results: Results,
    lines: Sequence[Line],
    failed: Mapping[str, str],
    notes: str = "",
    stale: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Everything there is to know about a study that was run, for JSON.

    Args:
        study: What was run.
        configurations: Variant -> its complete configuration.
        facts: Data, sizes, machine and the like, by name.
        results: What came out.
        lines: What the tables show of it.
        failed: Run -> why it failed.
        notes: What was found in it.
        stale: Run -> which code has changed since.
    """
    common, variants = differences(configurations)
    return {
        "study": study.name,
        "budget": study.budget,
        "title": study.title,
        "question": study.question,
        "notes": notes,
        "facts": dict(facts),
        "baseline": study.baseline,
        "common": common,
        "variants": variants,
        "protocols": study.protocols,
        **({"protocol_options": study.protocol_options} if study.protocol_options else {}),
        **({"centre_crop": study.centre_crop} if study.centre_crop < 1 else {}),
        "test_limit": study.test_limit,
        "transfer": study.transfer,
        "transfer_limit": study.transfer_limit,
        "transfer_normalise": study.transfer_normalise,
        "records": study.records,
        "appendix": study.appended(results),
        "paper": [asdict(entry) for entry in study.paper],
        "summary": [asdict(line) for line in lines],
        "results": {variant: dict(seeds) for variant, seeds in results.items()},
        "failed": dict(failed),
        "stale": dict(stale or {}),
    }


def differences(configurations: Mapping[str, Options]) -> tuple[Options, dict[str, Options]]:
    """Options by their dotted names: those that all configurations share, and for each the others."""
    flat = {name: flatten_options(configuration) for name, configuration in configurations.items()}
    first = next(iter(flat.values()))
    common = {key: value for key, value in first.items() if all(key in f and f[key] == value for f in flat.values())}
    return common, {name: {key: v for key, v in f.items() if key not in common} for name, f in flat.items()}


def _by_score(lines: Sequence[Line]) -> list[tuple[str, list[Line]]]:
    names = dict.fromkeys(line.score for line in lines)
    return [(name, [line for line in lines if line.score == name]) for name in names]


def important_scores(names: Iterable[str], records: Sequence[str], most: int = IMPORTANT) -> list[str]:
    """The first scores that are none of the records, each once."""
    return [name for name in dict.fromkeys(names) if name not in records][:most]


def _several(lines: Sequence[Line]) -> bool:
    """Return True if the variants are compared with different ones, which the tables then say."""
    return len({line.against for line in lines} - {None}) > 1


def overview(lines: Sequence[Line], records: Sequence[str] = (), most: int = IMPORTANT) -> Cells:
    """A row per variant: the first scores, of the very first also the difference, and how right the flags were."""
    every = dict(_by_score(lines))
    scores = important_scores(every, records, most)
    for name in ("f1", "precision"):
        scores += [found for found in (name, f"flags pooled {name}") if found in every and found not in scores][:1]
    against = ["against"] if _several(lines) else []
    header = ["variant", *scores[:1], "difference", "p", *against, *scores[1:]]
    rows = []
    for variant in dict.fromkeys(line.variant for line in lines):
        by_score = {line.score: line for line in lines if line.variant == variant}
        cells = [_with_spread(by_score.get(score), every[score]) for score in scores]
        first = by_score.get(scores[0])
        other = [(first.against if first else None) or "-"] if against else []
        rows.append([variant, *cells[:1], *_compared(first, every[scores[0]]), *other, *cells[1:]])
    return header, rows


def _with_spread(line: Line | None, score: Sequence[Line]) -> str:
    """A mean with its spread, or with the mark of a single seed."""
    if line is None:
        return "-"
    digits = _digits(score)
    spread = SINGLE if line.deviation is None else f" ± {_figure(line.deviation, digits)}"
    return _figure(line.mean, digits) + spread


def _compared(line: Line | None, score: Sequence[Line]) -> list[str]:
    """The difference to what the variant is compared with, and its p."""
    if line is None or line.against is None:
        return ["-" if line is None else "baseline", "-"]
    return [_figure(line.difference, _digits(score), "+") + (SINGLE if line.pairs == 1 else ""), _p(line.p)]


def _digits(lines: Sequence[Line]) -> int:
    """Rates in [0, 1] get more digits than percentages."""
    return 2 if median(abs(line.mean) for line in lines) > 1 else 4


def _cells(lines: Sequence[Line], paper: Sequence[Paper]) -> Cells:
    """The table of one score."""
    digits = _digits(lines)
    published = {line.variant: _published(line, paper) for line in lines}
    header = ["variant", "mean", "spread", "seeds", "difference", "p", "p >"]
    header += (["against"] if _several(lines) else []) + (["paper"] if any(published.values()) else [])
    rows = []
    for line in lines:
        row = [line.variant, _figure(line.mean, digits), _figure(line.deviation, digits), str(len(line.seeds))]
        row += ["baseline" if line.against is None else _figure(line.difference, digits, "+")]
        row += [_p(line.p), _p(line.p_greater)]
        row += [line.against or "-"] if "against" in header else []
        rows.append(row + ([published[line.variant]] if "paper" in header else []))
    return header, rows


def _published(line: Line, paper: Sequence[Paper]) -> str:
    figures = [(number, entry.scores.get(line.variant, {}).get(line.score)) for number, entry in enumerate(paper, 1)]
    return ", ".join(f"{figure} ({number})" for number, figure in figures if figure is not None)


def _p(p: float | None) -> str:
    return "<0.001" if p is not None and p < 0.001 else _number(p, ".3f")


def _figure(value: float | None, digits: int, sign: str = "") -> str:
    """A number with so many decimals; a rate too small for them by its power of ten."""
    tiny = value is not None and digits > 2 and 1e-12 < abs(value) < 0.5 * 10**-digits
    return _number(value, f"{sign}.1e" if tiny else f"{sign}.{digits}f")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _options(options: Options) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items()) or "-"


def _table(title: str, cells: Cells) -> Table:
    table = Table(title=title)
    for name in cells[0]:
        table.add_column(name, justify="left" if name in TEXTS else "right")
    for row in cells[1]:
        table.add_row(*map(escape, row))
    return table


def _markdown_table(cells: Cells) -> str:
    header, rows = cells
    rule = ["---" if name in TEXTS or "options" in name else "---:" for name in header]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (header, rule, *rows)
    )
