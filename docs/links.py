"""Look at every link of the built site: `python docs/links.py site` fails if one leads nowhere.

MkDocs checks the links of the pages' Markdown. This looks at what it made of them, with images, scripts, and the
references between docstrings.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the anchors that others may link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "__top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note what an element links to, and what it is called."""
        for name, value in attributes:
            if value is not None and name in ("href", "src"):
                self.links.append(value)
            if value is not None and (name == "id" or (name == "name" and tag == "a")):
                self.anchors.add(value)


def broken(site: Path) -> list[str]:
    """A line for every link inside of a site that leads to no file or no anchor."""
    pages = {file.resolve(): Page(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        if file.name == "404.html":  # shown anywhere, so its links begin at the root
            continue
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            name = file.relative_to(site.resolve())
            if not target.is_file():
                found.append(f"{name}: {link} does not exist")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name}: {link} has no such anchor")
    return found


if __name__ == "__main__":
    problems = broken(Path(sys.argv[1]))
    print("\n".join(problems) or "every link leads somewhere")
    sys.exit(1 if problems else 0)
