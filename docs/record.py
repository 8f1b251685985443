"""Record commands in a terminal, and draw the recording as a picture that plays.

    python docs/record.py record FOLDER docs/images/terminal.cast 'antipodes audit photos --out audit' ...
    python docs/record.py draw docs/images/terminal.cast docs/images/terminal.svg

The recording is an asciicast (version 2) of what the commands wrote into a terminal of their own: every line as it was
left, at the time at which it last changed, so that of a progress bar only its end is kept. In the picture the lines
appear one after the other; waiting is shortened.
"""

import codecs
import fcntl
import html
import json
import os
import pty
import re
import struct
import sys
import termios
import time
from pathlib import Path

from rich.text import Text

COLUMNS, ROWS = 108, 40
PAUSE, READING = 0.8, 6.0  # seconds: the longest wait that is shown, and how long the end stays
WIDTH, HEIGHT, MARGIN = 7.8, 17, 14
CODE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>]|([\x00-\x1f])")


def record(folder: Path, out: Path, commands: list[str]) -> None:
    """Run commands one after the other in a folder, as typed, and write down what they say, with paths within it."""
    began = time.monotonic()
    events: list[tuple[float, str]] = []

    def say(text: str) -> None:
        events.append((time.monotonic() - began, text.replace(f"{folder.resolve()}/", "")))

    for command in commands:
        say(f"\x1b[1;32m$\x1b[0m \x1b[1m{command}\x1b[0m\r\n")
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(folder)
            os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
            os.execvp("sh", ["sh", "-c", command])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            try:
                chunk = os.read(terminal, 65536)
            except OSError:  # the command has ended
                chunk = b""
            if not chunk:
                break
            say(decoder.decode(chunk))
        if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"{command} ended with {status}")
    out.write_text(settled(events))


def settled(events: list[tuple[float, str]]) -> str:
    """An asciicast with every line as it was left."""
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "antipodes", "idle_time_limit": PAUSE}
    lines: list[object] = [header]
    latest = 0.0
    for moment, line in screen(events):
        latest = max(latest, moment)
        text, before = "", ""
        for character, style in line:
            text += ("" if style == before else f"\x1b[0m{style}") + character
            before = style
        if text.strip():
            lines.append([round(latest, 2), "o", f"{text.rstrip()}\x1b[0m\r\n"])
    return "".join(json.dumps(line) + "\n" for line in lines)


def screen(events: list[tuple[float, str]]) -> list[tuple[float, list[tuple[str, str]]]]:
    """The lines that are left in the end: when each was last changed, and its characters with their colour codes."""
    lines: list[list[tuple[str, str]]] = [[]]
    changed = [0.0]
    row, column, style = 0, 0, ""
    for moment, text in events:
        place = 0
        while place < len(text):
            found = CODE.match(text, place)
            if found is None:
                line = lines[row]
                line += [(" ", "")] * (column + 1 - len(line))
                line[column] = (text[place], style)
                changed[row] = moment
                column, place = column + 1, place + 1
                continue
            place = found.end()
            numbers, command, control = found.groups()
            count = int(numbers) if numbers and numbers.isdigit() else 1
            if control == "\r":
                column = 0
            elif control == "\n":
                row += 1
                if row == len(lines):
                    lines.append([])
                    changed.append(moment)
            elif command == "m":
                style = "" if numbers in ("", "0") else f"{style}\x1b[{numbers}m"
            elif command == "A":
                row = max(0, row - count)
            elif command == "K":
                lines[row] = [] if numbers == "2" else lines[row][:column]
    return [(moment, line) for moment, line in zip(changed, lines, strict=True)]


def draw(cast: Path, out: Path) -> None:
    """Draw a recording as an SVG file that plays in a browser, again and again."""
    events = [json.loads(line) for line in cast.read_text().splitlines()[1:]]
    clock, last, shown = 0.0, 0.0, []
    for moment, _, text in events:
        clock += min(moment - last, PAUSE)
        last = moment
        shown.append((clock, text))
    lines = [(moment, line) for moment, line in screen(shown) if "".join(each for each, _ in line).strip()]
    total = clock + READING
    width, height = 2 * MARGIN + COLUMNS * WIDTH, 2 * MARGIN + len(lines) * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">',
        "<style>text{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#d8dee9}</style>",
        '<rect width="100%" height="100%" rx="8" fill="#1d2330"/>',
    ]
    for number, (moment, line) in enumerate(lines):
        y = MARGIN + (number + 0.75) * HEIGHT
        times = f"0;{moment / total:.4f};{moment / total:.4f};1"
        play = f'<animate attributeName="opacity" dur="{total:.1f}s" repeatCount="indefinite" values="0;0;1;1" '
        play += f'keyTimes="{times}"/>'
        parts.append(f'<text x="{MARGIN}" y="{y:.1f}">{play}{"".join(_spans(line))}</text>')
    out.write_text("\n".join([*parts, "</svg>\n"]))


def _spans(line: list[tuple[str, str]]) -> list[str]:
    """The runs of one colour, each at the column where it begins."""
    runs: list[tuple[int, str, str]] = []
    for column, (character, style) in enumerate(line):
        if runs and runs[-1][2] == style:
            runs[-1] = (runs[-1][0], runs[-1][1] + character, style)
        else:
            runs.append((column, character, style))
    found = []
    for column, text, style in runs:
        if not text.strip():
            continue
        spans = Text.from_ansi(f"{style}x").spans
        looks = spans[-1].style if spans else None
        colour = getattr(looks, "color", None)
        fill = f' fill="{colour.get_truecolor().hex}"' if colour is not None and not colour.is_default else ""
        weight = ' font-weight="bold"' if getattr(looks, "bold", False) else ""
        x, length = MARGIN + column * WIDTH, len(text) * WIDTH
        found.append(f'<tspan x="{x:.1f}" textLength="{length:.1f}"{fill}{weight}>{html.escape(text)}</tspan>')
    return found


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    else:
        draw(Path(sys.argv[2]), Path(sys.argv[3]))
