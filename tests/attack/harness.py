"""How the cases of a part are run: seeded, bounded in time, in worker processes whose death is a finding as well.

A part is a module with two functions:

    prepare(folder)          makes what its cases share; called once in every worker, in a folder of its own
    attempt(random, folder)  makes one case, runs it, and returns "ok" or "refused"; raises `Failure` otherwise

Every case has a `random.Random` of its own that the part, the seed and the case's number decide. So the same three
repeat a case.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

Outcome = Literal["ok", "refused"]
PROGRESS = 20.0  # seconds between two lines of progress


class Failure(Exception):
    """What a case has shown to be wrong."""


@dataclass
class Counts:
    """What became of the cases of a part; a failure is described so that it can be repeated."""

    tried: int = 0
    ok: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def generator(part: str, seed: int, case: int) -> random.Random:
    """The random numbers of one case."""
    return random.Random(f"{part} {seed} {case}")


def run(part: ModuleType, count: int, seed: int, seconds: float, jobs: int = 1, case: int | None = None) -> Counts:
    """Run up to `count` cases of a part in `jobs` processes for so many seconds; or one case, by its number."""
    name = part.__name__.rpartition(".")[2]
    numbers = [list(range(job, count, jobs)) for job in range(jobs)] if case is None else [[case]]
    counts, context = Counts(), multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        journals = [Path(place) / f"{job}.jsonl" for job in range(len(numbers))]
        workers = [
            context.Process(target=_work, args=(part, name, seed, mine, time.monotonic() + seconds, journal))
            for mine, journal in zip(numbers, journals, strict=True)
        ]
        for worker in workers:
            worker.start()
        told = time.monotonic()
        while any(worker.is_alive() for worker in workers):
            time.sleep(0.05)
            if time.monotonic() - told > PROGRESS:
                told = time.monotonic()
                print(f"{name}: {_collect(journals, [], name, seed).tried:,} cases", file=sys.stderr, flush=True)
        counts = _collect(journals, [worker.exitcode for worker in workers], name, seed)
    return counts


def _work(part: ModuleType, name: str, seed: int, numbers: list[int], deadline: float, journal: Path) -> None:
    """Run the cases one after the other and write down what becomes of each, before and after."""
    import torch

    torch.set_num_threads(1)
    folder = journal.with_suffix("")
    folder.mkdir()
    with journal.open("a", buffering=1) as file:
        file.write(json.dumps([-1, "began", ""]) + "\n")
        part.prepare(folder)
        for number in numbers:
            if time.monotonic() > deadline:
                return
            file.write(json.dumps([number, "began", ""]) + "\n")
            try:
                outcome, text = part.attempt(generator(name, seed, number), folder), ""
            except Failure as failure:
                outcome, text = "failure", str(failure)
            except Exception:  # of the case itself: a finding too, here or in the package
                outcome, text = "failure", traceback.format_exc(limit=-4)
            file.write(json.dumps([number, outcome, text]) + "\n")


def _collect(journals: list[Path], codes: list[int | None], name: str, seed: int) -> Counts:
    counts = Counts()
    for index, journal in enumerate(journals):
        lines = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
        for number, outcome, text in lines:
            counts.tried += outcome != "began"
            counts.ok += outcome == "ok"
            counts.refused += outcome == "refused"
            if outcome == "failure":
                counts.failures.append(f"--part {name} --seed {seed} --case {number}: {text}")
        if codes and codes[index]:
            last = lines[-1][0] if lines else -1
            counts.tried += 1
            counts.failures.append(f"--part {name} --seed {seed} --case {last}: the worker died, code {codes[index]}")
    return counts


class Ended(NamedTuple):
    """How a child process ended; a code below 0 is a signal."""

    code: int
    out: str
    errors: str
    seconds: float
    megabytes: float  # that it grew by at its largest
    timed_out: bool


def in_child(function: Callable[[], int], folder: Path, seconds: float = 60.0) -> Ended:
    """Run a function in a forked child with `folder` as its current one; it and its children are killed in the end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as size:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            os.write(size.fileno(), str(_resident()).encode())  # less than the parent's: only what is shared at once
            _child(function, folder, out.fileno(), errors.fileno())
        timed_out = False
        while True:
            ended, status, usage = os.wait4(child, os.WNOHANG)
            if ended:
                break
            if time.monotonic() - began > seconds and not timed_out:
                timed_out = True
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.002)
        took = time.monotonic() - began
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what it may have left behind
        texts = []
        for stream in (size, out, errors):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
        before, printed, complained = texts
        grown = usage.ru_maxrss / 1024 - float(before or 0)
        return Ended(os.waitstatus_to_exitcode(status), printed, complained, took, grown, timed_out)


def _resident() -> float:
    """Megabytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def _child(function: Callable[[], int], folder: Path, out: int, errors: int) -> None:
    code = 70
    try:
        os.setpgid(0, 0)
        os.dup2(out, 1)
        os.dup2(errors, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        os.chdir(folder)
        limit = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, limit))  # so that a bomb does not end the machine
        code = function()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 70
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def warm_up() -> None:
    """Import what the commands need, once for all children."""
    from antipodes.__main__ import COMMANDS

    for module in (*(f"antipodes.cli.{name}" for name in COMMANDS), "sklearn.manifold", "matplotlib.pyplot", "pyarrow"):
        import_module(module)


def command(arguments: list[str], folder: Path, seconds: float = 90.0) -> Ended:
    """`antipodes ...` in a forked child: the real `main` without the seconds that its imports take."""

    def call() -> int:
        from antipodes.__main__ import main

        return main(arguments)

    return in_child(call, folder, seconds)


def sentence(ended: Ended, call: str) -> str:
    """The one sentence with which a call was refused.

    Lines before it may warn or say what the data is; nothing may follow it.

    Raises:
        Failure: if there is no such sentence, or anything else went wrong.
    """
    lines = ended.errors.strip().splitlines()
    told = [line for line in lines if line.startswith("antipodes: ")]
    wrong = None
    if ended.timed_out:
        wrong = f"no end after {ended.seconds:.0f} s"
    elif "Traceback" in ended.errors:
        wrong = f"a traceback: {lines[-1]}"
    elif ended.code != 2:
        wrong = f"exit code {ended.code}"
    elif len(told) != 1 or lines[-1] != told[0]:
        wrong = f"{len(told)} sentences in {len(lines)} lines: {' | '.join(lines[-3:])}"
    elif any(character < " " or character == "\x7f" for character in told[0]):
        wrong = f"control characters in {told[0]!r}"
    if wrong is not None:
        raise Failure(f"{call}: {wrong}")
    return told[0]


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of every file below, and every folder; the lock of a run does not count."""
    found: dict[str, tuple[int, int]] = {}
    for path in folder.rglob("*"):
        if path.name != ".lock":
            state = path.lstat()
            found[str(path.relative_to(folder))] = (-1, 0) if path.is_dir() else (state.st_size, state.st_mtime_ns)
    return found


def changes(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> str:
    """What differs between two snapshots, as text; empty if nothing does."""
    gone, new = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    other = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    named = (("gone", gone), ("new", new), ("changed", other))
    return "; ".join(f"{what}: {', '.join(names[:5])}" for what, names in named if names)


def fresh(folder: Path, name: str) -> Path:
    """An empty folder of this name."""
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place
