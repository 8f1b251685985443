"""What the pages say is there: links and anchors, commands with their options, the names of the registry."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import jsonargparse
import pytest
import torch
from PIL import Image

import antipodes
from antipodes.__main__ import COMMANDS
from antipodes.evaluation.protocol import PROTOCOLS
from antipodes.losses import TreatmentName
from antipodes.registry import NAMES
from tests.test_rooms import ALLOWED

ROOT = Path(__file__).parents[1]
NAMES_PAGE = (ROOT / "docs" / "names.md").read_text()
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "llms.txt", "skills/antipodes/SKILL.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "research" / "README.md",
    *sorted((ROOT / "research" / "pages").glob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def is_broken(page: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    file = (page.parent / target).resolve() if target else page
    return not file.exists() or bool(anchor and anchor not in anchors(file))


def test_what_code_on_the_pages_imports_is_there() -> None:
    """Adapters are left out: their modules ask for the other library when they are imported."""
    missing, found = [], 0
    for page in PAGES:
        for language, code in FENCE.findall(page.read_text()):
            for node in ast.walk(ast.parse(code)) if language == "python" else ():
                module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
                if module.split(".")[0] == "antipodes" and not module.startswith("antipodes.integrations"):
                    names = [alias.name for alias in node.names]  # type: ignore[attr-defined]
                    found += len(names)
                    missing += [f"{page.name}: {name}" for name in names if not hasattr(import_module(module), name)]
    assert not missing
    assert found > 50


def test_every_link_leads_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(prose(page)) if "://" not in link]
    assert len(links) > 100
    assert [f"{page.relative_to(ROOT)}: {link}" for page, link in links if is_broken(page, link)] == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n")
    found = [is_broken(page, link) for link in ("#a-title", "page.md#a-title", "#another", "other.md")]
    assert found == [False, False, True, True]


def commands(page: Path) -> Iterator[list[str]]:
    """The calls of antipodes in a page's blocks of commands, without comments and what stands for anything."""
    for language, block in FENCE.findall(page.read_text()):
        for line in block.splitlines() if language in ("", "bash", "sh") else ():
            words = shlex.split(line.replace("`", "'"), comments=True)
            if "antipodes" in words and words[0] in ("antipodes", "torchrun") and "..." not in words:
                yield words[words.index("antipodes") + 1 :]


CALLS = sorted({tuple(words) for page in PAGES for words in commands(page)})


class Parsed(Exception):
    """The options were understood, and nothing needs to be done."""


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every parser stop when it has understood its call."""
    parse_args = jsonargparse.ArgumentParser.parse_args

    def stop(self: jsonargparse.ArgumentParser, *arguments: Any, **options: Any) -> None:
        raise Parsed(parse_args(self, *arguments, **options))

    monkeypatch.setattr(jsonargparse.ArgumentParser, "parse_args", stop)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the pages speak of, where a command looks for them."""
    monkeypatch.chdir(tmp_path)
    for folder in ("path/to/photos", "path/to/flickr8k", "path/to/imagenet"):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (40, 40), (number * 90, 0, 0)).save(tmp_path / folder / f"{number}.png")
    captions = "image,caption\n0.png,a black square\n1.png,a red square\n"
    (tmp_path / "path/to/flickr8k/captions.csv").write_text(captions)
    (tmp_path / "pairs.csv").write_text("query,document\nwhere?,here\n")
    return tmp_path


def test_the_pages_show_every_command() -> None:
    shown = {call[0] for call in CALLS}
    assert shown - set(COMMANDS) == set()
    assert set(COMMANDS) - {call[0] for call in map(tuple, commands(ROOT / "README.md"))} == set()


def is_understood(call: tuple[str, ...]) -> bool:
    name, *arguments = (word for word in call if word != "--help")
    if "--resume" in arguments and "auto" not in arguments:  # needs the run
        return len(arguments) == 2
    try:
        import_module(f"antipodes.cli.{name}").main(arguments)
    except Parsed:
        return True
    except (SystemExit, ValueError):
        return False
    return False


@pytest.mark.usefixtures("parse_only", "photos")
def test_the_commands_of_the_pages_are_understood() -> None:
    assert len(CALLS) > 50
    assert [" ".join(call) for call in CALLS if not is_understood(call)] == []


@pytest.mark.usefixtures("parse_only", "photos")
def test_a_wrong_command_is_found() -> None:
    assert not is_understood(("audit", "path/to/photos", "--no_such_option", "3"))
    assert not is_understood(("train", "--data", "path/to/photos", "--negatives.alpha", "0.1"))


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/audit.md"])
def test_the_snippets_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "audit").mkdir()
    groups = {"row": range(4), "path": ["a", "b", "c", "d"], "group": [0, 0, -1, -1]}
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").table(groups), tmp_path / "audit" / "groups.parquet")
    z1, z2 = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    names: dict[str, Any] = {"dataset": range(4), "z1": z1, "z2": z2, "ids": torch.arange(4), "step": 1, "total": 2}
    codes = [code for language, code in FENCE.findall((ROOT / page).read_text()) if language == "python"]
    assert codes
    for code in codes:
        exec(code, names)
    assert names["loss_fn"](z1, z2, torch.arange(4), progress=0.5).isfinite()


def row(title: str) -> set[str]:
    """The names in a row of the tables of docs/names.md."""
    (found,) = re.findall(rf"^\| {re.escape(title)} \| (.+) \|$", NAMES_PAGE, flags=re.MULTILINE)
    return set(re.findall(r"`([^`]+)`", found))


def test_the_page_of_names_lists_the_registry() -> None:
    assert row("`--method`") == set(NAMES["method"])
    assert row("`--loss`") == set(NAMES["loss"])
    assert row("`--negatives`") - {"+"} == set(NAMES["negatives"])
    assert row("`--treatment`") == set(get_args(TreatmentName)) == row("treatments")
    assert row("`--data`") - {".npz", ".npy"} == set(NAMES["data"])
    family = {
        f"resnet{depth}{wide}{small}"
        for depth in (18, 34, 50, 101, 152, 200)
        for wide in ("", "-2x", "-4x")
        for small in ("", "-cifar")
    }
    named = row("`--encoder`, `--encoders.TOWER`") - {"-2x", "-4x", "-cifar", "timm:<model>", "hf:<model>"}
    assert named | family == set(NAMES["encoder"])


def test_the_page_of_names_shows_what_can_be_imported() -> None:
    names = row("losses") | row("policies")
    assert {name for name in names if name.isidentifier()} <= set(antipodes.__all__)
    policies = {entry.path.rpartition(".")[2] for entry in NAMES["negatives"].values()}
    assert policies <= names


def test_the_page_of_protocols_lists_all() -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text()
    assert set(PROTOCOLS) == set(re.findall(r"^\| `([\w-]+)` \|", page, flags=re.MULTILINE))


def test_the_page_of_the_architecture_has_every_room_and_its_files_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert [room for room in ALLOWED if f"| `{room}/`" not in page and f"| `{room}.py`" not in page] == []
    for text in (page, (ROOT / "CONTRIBUTING.md").read_text()):
        for path in re.findall(r"`((?:[a-z]+/)*[a-z_*]+\.py)`", text.replace("src/antipodes/", "")):
            folder = ROOT if path.startswith("tests/") else ROOT / "src" / "antipodes"
            assert "yours" in path or list(folder.glob(path)), f"{path} does not exist"


def test_the_site_shows_every_page() -> None:
    shown = (ROOT / "mkdocs.yml").read_text()
    tops = sorted((ROOT / "docs").rglob("*.md"))
    assert [page.name for page in tops if str(page.relative_to(ROOT / "docs")) not in shown] == []


def test_the_version_is_one() -> None:
    (project,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert f"\nversion: {project}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[0] == project
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", antipodes.__version__)


def test_links_of_the_built_site_are_looked_at(tmp_path: Path) -> None:
    broken = runpy.run_path(str(ROOT / "docs" / "links.py"))["broken"]
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.png").write_bytes(b"")
    index = '<h1 id="top"></h1><a href="sub/#there">x</a><img src="a.png"><a href="https://else.where/x">y</a>'
    (tmp_path / "index.html").write_text(index)
    (tmp_path / "sub" / "index.html").write_text('<p id="there"></p><a href="..#top">up</a>')
    assert broken(tmp_path) == []
    (tmp_path / "sub" / "index.html").write_text('<p id="here"></p><a href="../#bottom">up</a><img src="b.png">')
    assert broken(tmp_path) == [
        "index.html: sub/#there has no such anchor",
        "sub/index.html: ../#bottom has no such anchor",
        "sub/index.html: b.png does not exist",
    ]


def test_a_recording_shows_what_was_left_on_the_screen(tmp_path: Path) -> None:
    record = runpy.run_path(str(ROOT / "docs" / "record.py"))
    cast, picture = tmp_path / "x.cast", tmp_path / "x.svg"
    record["record"](
        tmp_path, cast, [r"printf 'half\rdone <b>\n\033[31mred\033[0m\ngone\n\033[1A\033[2Klast\n'", "pwd"]
    )
    header, *events = map(json.loads, cast.read_text().splitlines())
    assert header["version"] == 2
    shown = [re.sub(r"\x1b\[[\d;]*m|\r\n", "", text) for _, _, text in events]
    assert shown[1:4] == ["done <b>", "red", "last"]
    assert [moment for moment, _, _ in events] == sorted(moment for moment, _, _ in events)
    record["draw"](cast, picture)
    text = picture.read_text()
    assert "done &lt;b&gt;" in text
    assert "fill=" in text
    ElementTree.fromstring(text)  # well-formed
