"""Real training runs that are killed at any moment, resumed, and compared with a run that was left alone.

The weights and every tensor of the last checkpoint must be equal bit by bit; no process and no temporary file stays
behind; and what a user has put into the run's folder is there afterwards as it was.
"""

from __future__ import annotations

import os
import random as random_
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.torch import load_file

import antipodes
from tests.attack.harness import Failure, Outcome, changes, fresh, snapshot
from tests.training.test_resume import equal

COMMAND = str(
    Path(sys.executable).with_name("antipodes")
)  # the installed command: -m puts the current folder on the path
SOURCE = str(Path(antipodes.__file__).parents[1])
SHARED = ["--batch_size", "16", "--log_every", "1", "--checkpoint_steps", "2", "--snapshot_every", "1"]
VARIANTS = {
    "vectors": ["--data", "vectors.npy", "--epochs", "30", "--negatives", "glofnd", "--negatives.alpha", "0.1"],
    "queue": [
        "--data",
        "vectors.npy",
        "--epochs",
        "30",
        "--method",
        "moco",
        "--method.queue_size",
        "40",
        "--negatives",
        "ring",
    ],
    "photos": [
        "--data",
        "photos",
        "--data.size",
        "32",
        "--encoder",
        "resnet8-slim",
        "--head.hidden",
        "8",
        "--epochs",
        "2",
    ],
}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
OWN = {"notes.txt": "mine", "sub/photo.jpg": "mine too"}  # of the user, in the folder of the run
LIKE_OURS = {"checkpoints/mine.pt": "mine", "metrics.csv": "a,b", "snapshots/a.pt": "mine", "wandb/a": "mine"}


def start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE}
    quiet, pipe, call = subprocess.DEVNULL, subprocess.PIPE, [COMMAND, *arguments]
    return subprocess.Popen(
        call, cwd=folder, env=environment, stdout=quiet, stderr=pipe, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str], what: str, seconds: float = 120.0) -> tuple[int, str]:
    """Exit code and standard error of a process that must end."""
    try:
        errors = process.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Failure(f"{what}: no end after {seconds:.0f} s") from None
    return process.returncode, errors


def orphans(session: int) -> list[str]:
    """The processes of a session that are still alive after two seconds."""
    for _ in range(40):
        found = []
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
                if fields and int(fields[3]) == session and fields[0] != "Z":
                    found.append((entry / "cmdline").read_text().replace("\0", " ")[:80])
            except OSError:
                continue  # it has just ended
        if not found:
            return []
        time.sleep(0.05)
    return found


def prepare(folder: Path) -> None:
    np.save(folder / "vectors.npy", np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32))
    (folder / "photos").mkdir()
    for number in range(64):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")


def undisturbed(variant: str, folder: Path) -> tuple[Path, float, float]:
    """A run that was left alone, when it wrote its first file, and when it ended; trained at the first call."""
    out, times = folder / f"whole-{variant}", folder / f"whole-{variant}.times"
    if not times.exists():
        began = time.monotonic()
        process = start(["train", *VARIANTS[variant], *SHARED, "--out", str(out)], folder)
        while not (out / "config.yaml").exists() and process.poll() is None:
            time.sleep(0.002)
        first = time.monotonic() - began
        code, errors = finish(process, "the undisturbed run")
        if code:
            raise RuntimeError(errors)
        times.write_text(f"{first} {time.monotonic() - began}")
    first, total = map(float, times.read_text().split())
    return out, first, total


def attempt(random: random_.Random, folder: Path) -> Outcome:
    variant, sent = random.choice(list(VARIANTS)), random.choice(SIGNALS)
    whole, first, total = undisturbed(variant, folder)
    project = fresh(folder, "project")
    owned = OWN | (LIKE_OURS if random.random() < 0.2 else {})
    for name, text in owned.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    before = snapshot(project)
    call = ["train", *VARIANTS[variant], *SHARED, "--out", str(project)]
    process = start(call, folder)
    early, share = random.random() < 0.2, random.random()
    moment = f"{variant}, {sent.name} after {share:.2f} of {'its start' if early else 'training'}"
    while not early and not (project / "config.yaml").exists() and process.poll() is None:
        time.sleep(0.002)
    time.sleep(share * (first if early else total - first))
    process.send_signal(sent)
    code, errors = finish(process, moment, 60.0)
    if sent != signal.SIGKILL and "Traceback" in errors:
        raise Failure(f"{moment}: {errors[-600:]}")
    if left := orphans(process.pid):
        raise Failure(f"{moment}: processes stay: {left}")
    lost = {name: state for name, state in before.items() if snapshot(project).get(name) != state}
    if lost:
        raise Failure(f"{moment}, exit code {code}: {changes(lost, snapshot(project))}")
    resumed = (project / "config.yaml").exists()
    code, errors = finish(start(["train", "--resume", str(project)] if resumed else call, folder), moment)
    if code == 2 and owned != OWN and not resumed:  # the folder holds files that look like a run's
        return "refused"
    if code:
        raise Failure(f"{moment}: {'resumed' if resumed else 'started again'}, exit code {code}: {errors[-600:]}")
    same(whole, project, moment)
    stray = [name for name in snapshot(project) if name.endswith(".tmp") or name.endswith(".parts")]
    if stray:
        raise Failure(f"{moment}: temporary files stay: {stray}")
    if lost := {name: state for name, state in before.items() if snapshot(project).get(name) != state}:
        raise Failure(f"{moment}, resumed: {changes(lost, snapshot(project))}")
    return "ok"


def same(whole: Path, project: Path, moment: str) -> None:
    from antipodes.runs.folder import load_checkpoint

    if not equal(*(load_file(place / "encoder.safetensors") for place in (whole, project))):
        raise Failure(f"{moment}: other weights in encoder.safetensors")
    states = [load_checkpoint(place / "checkpoints" / "last.pt") for place in (whole, project)]
    if not equal(*states):
        names = [name for name in states[0] if not equal(states[0][name], states[1].get(name))]
        raise Failure(f"{moment}: the last checkpoint differs in {', '.join(names)}")
