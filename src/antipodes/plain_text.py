"""Escaping of texts from data (names of files and classes) for terminals, spreadsheets and Markdown."""

from __future__ import annotations

import html
import re
import unicodedata

_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNSHOWN = ("Cc", "Cs", "Zl", "Zp")  # control characters, lone surrogates, separators of lines and paragraphs
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def printable(text: str) -> str:
    r"""Return a text that is safe on any terminal: control characters and bytes that are not UTF-8 become escapes.

    Characters that change the direction of the following text are escaped too.

    Example:
        >>> printable("red \x1b[31m.jpg"), printable("caf\udce9.jpg")
        ('red \\x1b[31m.jpg', 'caf\\xe9.jpg')
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def csv_cell(value: object) -> object:
    """Return a cell of a csv file that no spreadsheet reads as a formula; numbers are unchanged.

    A text that begins like a formula gets an apostrophe in front, which `from_csv_cell` removes.

    Example:
        >>> csv_cell("=1+1"), csv_cell("-0.5"), csv_cell(-0.5), csv_cell("a=b")
        ("'=1+1", '-0.5', -0.5, 'a=b')
    """
    if not isinstance(value, str) or not _FORMULA.match(value) or _is_number(value):
        return value
    return f"'{value}"


def from_csv_cell(text: str) -> str:
    """Return the text that `csv_cell` was given.

    Example:
        >>> from_csv_cell("'=1+1"), from_csv_cell("it's")
        ('=1+1', "it's")
    """
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def escape_markdown(text: str) -> str:
    r"""Return a text as one line of Markdown that displays it literally: no HTML, no links, no new table cell.

    Example:
        >>> escape_markdown("<b>a|b</b>")
        '&lt;b&gt;a\\|b&lt;/b&gt;'
    """
    line = html.escape(printable(" ".join(text.split())), quote=False)
    return re.sub(r"([\\`*\[\]|])", r"\\\1", line)


def _escaped(letter: str) -> str:
    if "\udc80" <= letter <= "\udcff":  # how Python holds a byte of a file's name that is no UTF-8
        return f"\\x{ord(letter) - 0xDC00:x}"
    if unicodedata.category(letter) in _UNSHOWN or letter in _BIDIRECTIONAL:
        return letter.encode("unicode_escape").decode()
    return letter


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
