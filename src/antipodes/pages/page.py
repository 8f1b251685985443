"""The page: sections of facts, curves, tables, pictures and maps, rendered to one file that needs no network.

A section is plain data with a `template`; `templates/page.html` has one macro for each. Every string is escaped by
jinja2, also inside the JSON that the page's script reads: a file name is text, whatever it contains."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, ClassVar

from antipodes.files import MARK, replacing


@dataclass(frozen=True)
class Spread:
    """A mean with the standard deviation of what it is the mean of."""

    mean: float
    deviation: float


Cell = str | float | int | Spread | None


@dataclass(frozen=True)
class Facts:
    """Names with values, such as the numbers of a summary, and a note below them."""

    title: str
    items: Sequence[tuple[str, Cell]]
    note: str = ""
    template: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Table:
    """Rows that can be sorted by any column and filtered by words."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    folded: bool = False
    template: ClassVar[str] = "table"


@dataclass(frozen=True)
class Scores:
    """Rows as in a table, and drawings of some columns below them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    drawings: Sequence[Any]
    note: str = ""
    template: ClassVar[str] = "scores"


@dataclass(frozen=True)
class Curves:
    """Drawings, each an SVG with its caption, with a legend of names."""

    title: str
    drawings: Sequence[Any]
    legend: Sequence[str]
    note: str = ""
    folded: bool = False
    template: ClassVar[str] = "curves"


@dataclass(frozen=True)
class Picture:
    """A picture by its number among the pictures of the page (-1 for none), with its name and a caption."""

    image: int
    name: str
    caption: str = ""


@dataclass(frozen=True)
class Card:
    """One or two pictures with a kind, a number to sort by, a line of text, and whether labels say it is right."""

    kind: str
    pictures: Sequence[Picture]
    score: float
    text: str
    right: bool | None = None


@dataclass(frozen=True)
class Gallery:
    """Cards that can be filtered by kind and by words; `first` of them are shown before more are asked for."""

    title: str
    cards: Sequence[Card]
    note: str = ""
    first: int = 60
    template: ClassVar[str] = "gallery"

    @property
    def kinds(self) -> list[str]:
        """The kinds of the cards, in their order."""
        return list(dict.fromkeys(card.kind for card in self.cards))

    @property
    def are_pairs(self) -> bool:
        """Whether cards have two pictures."""
        return any(len(card.pictures) > 1 for card in self.cards)


@dataclass(frozen=True)
class Point:
    """A sample on a map: its place in [0, 1] x [0, 1], its class (-1 for none), its picture and its name."""

    x: float
    y: float
    group: int
    image: int
    name: str


@dataclass(frozen=True)
class Map:
    """Samples on a plane, shown with their picture when pointed at."""

    title: str
    points: Sequence[Point]
    groups: Sequence[str]
    note: str = ""
    template: ClassVar[str] = "map"

    def data(self) -> dict[str, Any]:
        """What the page's script draws."""
        points = [[round(p.x, 4), round(p.y, 4), p.group, p.image, p.name] for p in self.points]
        return {"points": points, "groups": list(self.groups)}


@dataclass(frozen=True)
class ReviewPair:
    """Two samples about which a person decides.

    Args:
        keys: by which the decision is found again.
        names: with their folders.
        kind: of the pair.
        found: the kind before it was decided.
        similarity: of the two.
        numbers: the similarity and what belongs to it, in words.
        images: numbers among the pictures of the page, -1 for none.
        texts: in full, empty for none.
        labels: or captions, empty for none.
        tags: such as `leak`.
        decision: what was decided before.
        group: of duplicates, by number; all pairs of a group can be decided at once. -1 for none.
    """

    keys: tuple[str, str]
    names: tuple[str, str]
    kind: str
    found: str
    similarity: float
    numbers: str
    images: tuple[int, int] = (-1, -1)
    texts: tuple[str, str] = ("", "")
    labels: tuple[str, str] = ("", "")
    tags: tuple[str, ...] = ()
    decision: str = ""
    group: int = -1


@dataclass(frozen=True)
class Review:
    """Pairs that are marked as same, different or skipped; the browser saves the decisions to a file.

    Args:
        title: of the section.
        pairs: in the order in which they are shown.
        store: a name of the data, under which the browser keeps decisions that are not saved yet.
        note: below the title.
    """

    title: str
    pairs: Sequence[ReviewPair]
    store: str
    note: str = ""
    template: ClassVar[str] = "review"

    @property
    def kinds(self) -> list[str]:
        """The kinds and the tags of the pairs."""
        tags = dict.fromkeys(tag for pair in self.pairs for tag in pair.tags)
        return list(dict.fromkeys([*(pair.kind for pair in self.pairs), *tags]))

    def data(self) -> list[dict[str, Any]]:
        """What the page's script shows."""
        return [
            {
                "a": pair.keys[0],
                "b": pair.keys[1],
                "names": pair.names,
                "kind": pair.kind,
                "found": pair.found,
                "similarity": pair.similarity if math.isfinite(pair.similarity) else None,
                "numbers": pair.numbers,
                "images": pair.images,
                "texts": pair.texts,
                "labels": pair.labels,
                "tags": pair.tags,
                "decision": pair.decision,
                "group": pair.group,
            }
            for pair in self.pairs
        ]


Section = Facts | Table | Scores | Curves | Gallery | Map | Review


@dataclass(frozen=True)
class Page:
    """A page: sections, and the pictures (data URIs) that they refer to by number."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    pictures: Sequence[str] = field(default=())

    @cached_property
    def html(self) -> str:
        """The page as one HTML text that needs no other file and no network."""
        return render(self)

    def save(self, path: str | Path) -> None:
        """Write the page, whole or not at all. Bytes of a file name that are not UTF-8 are shown as escapes."""
        text = self.html
        with replacing(Path(path)) as temporary:
            temporary.write_bytes(text.encode("utf-8", "backslashreplace"))


def require_jinja() -> Any:
    """Import jinja2.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ValueError("the page needs jinja2: pip install '.[report]'") from error
    return jinja2


def render(page: Page) -> str:
    """The page as HTML."""
    jinja2 = require_jinja()
    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["cell"] = show
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":")}
    parts = ["page", *(["review"] if any(isinstance(section, Review) for section in page.sections) else [])]
    style, script = (
        "\n".join((folder / f"{part}{ending}").read_text() for part in parts) for ending in (".css", ".js")
    )
    html: str = environment.get_template("page.html").render(page=page, mark=MARK, style=style, script=script)
    return html


def show(value: Cell) -> str:
    """A cell as text: thousands apart, four digits of a fraction, a dash for nothing.

    Example:
        >>> show(12345), show(0.123456), show(None)
        ('12,345', '0.1235', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, Spread):
        digits = 1 if abs(value.mean) >= 1 else 4
        return f"{value.mean:,.{digits}f} ± {value.deviation:.{digits}f}"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def short_paths(paths: Sequence[str]) -> list[str]:
    """Paths from the folder on that holds all of them; relative paths are looked at by themselves.

    Example:
        >>> short_paths(["/home/me/photos/a/1.jpg", "/home/me/photos/b/1.jpg", "data/cifar10/3"])
        ['photos/a/1.jpg', 'photos/b/1.jpg', 'cifar10/3']
    """
    above: dict[bool, str] = {}
    for absolute in (True, False):
        folders = {os.path.dirname(path) for path in paths if os.path.isabs(path) is absolute}
        above[absolute] = os.path.dirname(os.path.commonpath(folders)) if folders else ""
    return [
        os.path.relpath(path, folder) if (folder := above[os.path.isabs(path)]) not in ("", os.sep) else path
        for path in paths
    ]


def path_ends(paths: Sequence[str]) -> list[str]:
    """The shortest ends of paths that tell different ones apart; what is not an absolute path stays as it is.

    Example:
        >>> path_ends(["/home/me/photos", "/home/me/photos", "/disk/photos", "cifar10"])
        ['me/photos', 'me/photos', 'disk/photos', 'cifar10']
    """
    parts = {path: PurePath(path).parts for path in paths if os.path.isabs(path)}
    depth = 1
    while len({ends[-depth:] for ends in parts.values()}) < len(parts):
        depth += 1
    return ["/".join(parts[path][-depth:]).replace("//", "/") if path in parts else path for path in paths]
