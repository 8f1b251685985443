"""Runs of several processes that are killed, restarted by torchrun or SLURM, and resumed by another number of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from antipodes import train
from antipodes.runs.folder import Run, load_checkpoint
from antipodes.runs.records import RunningMeans, read_epochs, read_records
from tests.cli.command import ENVIRONMENT, free_port, here, launched, on_ranks, refused, together
from tests.training.test_resume import equal, write_npz

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
STEPS = 8  # per epoch
TRAIN = ["train", "--data", "shapes", "--data.count", 128, "--batch_size", 16, "--encoder", "resnet8-slim-gn"]
TRAIN += ["--head.hidden", 16, "--head.batch_norm", "false"]
TRAIN += ["--knn_every", 0, "--log_every", 1, "--checkpoint_steps", 3, "--threads", 1]
TRAIN += ["--negatives", "glofnd", "--negatives.start", 0]
EPOCHS = ["--epochs", 3]
LONG = 200  # seconds until a test gives up: two processes share the cores with other tests


class Started:
    """A command that runs, with its output in a file; everything that it has started is killed at the end."""

    def __init__(self, *arguments: object, **more: str) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self.process = subprocess.Popen(
            list(map(str, arguments)), env=ENVIRONMENT | more, stdout=self._output, stderr=subprocess.STDOUT
        )

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._output.close()

    def kill(self) -> None:
        """Kill the command and everything that it has started, as when a machine loses its power."""
        for member in members(self.process.pid):
            os.kill(member, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        """Return the output until now."""
        self._output.seek(0)
        return self._output.read()

    def wait_for_step(self, out: Path, step: int) -> None:
        """Wait until the run has taken a step."""
        deadline = time.monotonic() + LONG
        while max((int(line["step"]) for line in read_records(out)), default=0) < step:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.005)

    def ends(self) -> None:
        """Wait until the command has ended well."""
        assert self.process.wait(LONG) == 0, self.said()


def members(root: int) -> list[int]:
    """A process and all that it has started, directly or not, as far as they run."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:  # it has just ended
            continue
        if fields and fields[0] != "Z":
            parents[int(entry.name)] = int(fields[1])
    found = [root] if root in parents else []
    for parent in found:
        found += [child for child, its in parents.items() if its == parent]
    return found


def worker(root: int, rank: int) -> int:
    """The process that has this rank, among those that a process has started."""
    for member in members(root):
        try:
            variables = (Path("/proc") / str(member) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RANK={rank}".encode() in variables:
            return member
    raise AssertionError(f"no process of rank {rank}")


def wait_for_server(port: int) -> None:
    deadline = time.monotonic() + LONG
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "no server"
            time.sleep(0.1)


def state(out: Path) -> dict[str, Any]:
    return load_checkpoint(Run.open(out).last)


@pytest.fixture
def plain(tmp_path: Path) -> list[object]:
    """A call for runs that sum in another order and are compared: no flag, and hardly a ReLU, turns over by rounding.

    An image of noise has no flat parts, which would all cross zero at once.
    """
    write_npz(tmp_path / "noise.npz", seed=0)
    call: list[object] = [*TRAIN]
    call[call.index("shapes")], place = tmp_path / "noise.npz", call.index("--data.count")
    return call[:place] + call[place + 2 : call.index("--negatives")]


def lines(out: Path) -> list[dict[str, float]]:
    """The numbers of every step and epoch, without the speed."""
    return [{key: value for key, value in line.items() if key != "images_per_second"} for line in read_records(out)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two processes that nothing has stopped."""
    out = tmp_path_factory.mktemp("ranks") / "undisturbed"
    finished = launched(*TRAIN, *EPOCHS, "--devices", 2, "--out", out, timeout=LONG)
    assert finished.returncode == 0, finished.stderr
    return out


def test_torchrun_restarts_a_killed_worker_and_the_run_ends_as_if_undisturbed(
    undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    arguments = ["-m", "antipodes", *TRAIN, *EPOCHS, "--devices", 2, "--resume", "auto", "--out", out]
    with Started(*TORCHRUN, "--standalone", "--nproc_per_node", 2, "--max_restarts", 2, *arguments) as torchrun:
        torchrun.wait_for_step(out, STEPS + 5)
        os.kill(worker(torchrun.process.pid, 1), signal.SIGKILL)
        torchrun.ends()
    assert equal(state(out), state(undisturbed))
    assert lines(out) == lines(undisturbed)  # each step once, and epochs with the numbers of both ranks


def test_processes_that_share_their_parameters_learn_the_same_and_may_go_on_alone(
    plain: list[object], tmp_path: Path
) -> None:
    out, alone = tmp_path / "run", tmp_path / "alone"
    finished = on_ranks(2, *plain, "--epochs", 2, "--strategy", "fsdp", "--out", out, timeout=LONG)
    assert finished.returncode == 0, finished.stderr
    assert here(*plain, "--epochs", 2, "--out", alone)[0] == 0
    torch.testing.assert_close(state(out)["model"], state(alone)["model"], atol=1e-6, rtol=0)
    shards = {folder.name for folder in (out / "checkpoints").glob("shards-*")}
    assert {f"shards-{2 * STEPS}"} <= shards <= {f"shards-{STEPS}", f"shards-{2 * STEPS}"}  # of best.pt, and of last.pt
    assert len(list((out / "checkpoints" / f"shards-{2 * STEPS}").glob("*.distcp"))) == 2  # a file a process
    for run in (out, alone):
        assert here("train", "--resume", run, "--devices", 1, "--epochs", 3)[0] == 0
    torch.testing.assert_close(state(out)["model"], state(alone)["model"], atol=1e-6, rtol=0)


def test_sharing_parameters_is_refused_where_it_cannot_be() -> None:
    for method, sentence in ((["--method", "moco"], "momentum encoder"), (["--freeze", "image"], "freeze")):
        assert sentence in refused(*TRAIN, "--strategy", "fsdp", *method, "--out", "/nowhere")


def test_a_lost_node_comes_back_by_rendezvous(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    port = free_port()
    agent = [*TORCHRUN, "--nnodes", 2, "--nproc_per_node", 1, "--max_restarts", 3, "--rdzv_backend", "c10d"]
    agent += [
        "--rdzv_conf",
        "keep_alive_interval=2",
        "--rdzv_id",
        "nodes",
        "--rdzv_endpoint",
        f"127.0.0.1:{port}",
        "--local_addr",
        "127.0.0.1",
    ]
    agent += ["-m", "antipodes", *TRAIN, *EPOCHS, "--devices", 2, "--resume", "auto", "--out", out]
    new_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # else torchrun keeps the address of the lost node's store
    with Started(*agent, **new_store) as first:
        wait_for_server(port)  # the first node holds the rendezvous
        with Started(*agent, **new_store) as second:
            second.wait_for_step(out, STEPS + 5)
        with Started(*agent, **new_store) as again:
            first.ends()
            again.ends()
    assert equal(state(out)["model"], state(undisturbed)["model"])
    assert lines(out) == lines(undisturbed)


def test_slurm_starts_the_processes(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
    job |= {"SLURM_NTASKS_PER_NODE": "2"}
    job |= {"SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_NODELIST": "localhost", "MASTER_ADDR": "127.0.0.1"}
    job |= {"MASTER_PORT": str(free_port())}
    ranks = [job | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    ended = together(ranks, *TRAIN, *EPOCHS, "--devices", 1, "--resume", "auto", "--out", out, timeout=LONG)
    assert ended.returncode == 0, ended.stderr
    assert equal(state(out), state(undisturbed))


def test_a_machine_with_srun_needs_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    code, _, errors = here(*TRAIN, "--epochs", 1, "--out", tmp_path / "run")
    assert code == 0
    assert "srun" not in errors


def test_a_job_of_slurm_without_srun_is_one_process(tmp_path: Path) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    job |= {"SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    ended = together([job], *TRAIN, "--epochs", 1, "--out", tmp_path / "run", timeout=LONG)
    assert ended.returncode == 0, ended.stderr


def test_another_number_of_ranks_learns_the_same(plain: list[object], tmp_path: Path) -> None:
    alone, changing = tmp_path / "alone", tmp_path / "changing"
    for epochs, devices in enumerate((1, 2, 4, 1), start=1):
        for out, count in ((alone, 1), (changing, devices)):
            start = [*plain, "--data.limit", 64] if epochs == 1 else ["train"]
            resume = ["--out", out] if epochs == 1 else ["--resume", out]
            call = [*start, *resume, "--epochs", epochs]
            if count == 1:
                assert here(*call)[0] == 0
                continue
            ended = on_ranks(count, *call, timeout=LONG)
            assert ended.returncode == 0, ended.stderr
            assert "batch normalisation" not in ended.stderr
    torch.testing.assert_close(state(changing)["model"], state(alone)["model"], atol=1e-6, rtol=0)
    found, expected = ([float(row["loss"]) for row in read_epochs(out)] for out in (changing, alone))
    assert found == pytest.approx(expected, abs=1e-5)


def test_batch_statistics_of_another_number_of_ranks_are_reported(tmp_path: Path) -> None:
    start = [*TRAIN, "--encoder", "resnet8-slim", "--epochs", 1, "--out", tmp_path / "run"]
    assert here(*start)[0] == 0
    resumed = on_ranks(2, "train", "--resume", tmp_path / "run", "--epochs", 2, timeout=LONG)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stderr.count("trained by 1 process(es) and goes on with 2: batch normalisation") == 1


def test_an_epoch_that_another_number_of_ranks_finishes_has_the_mean_of_its_steps() -> None:
    """Two ranks took two steps with means of 2 and 4; one rank goes on with a step of 9."""
    saved: list[dict[str, tuple[float, float]]] = [{"loss": (5.0, 2), "knn": (1.0, 1)}, {"loss": (7.0, 2)}]
    epoch = RunningMeans.resumed(saved)
    epoch.add({"loss": 9.0})
    assert epoch.over_ranks().means() == {"loss": 5.0, "knn": 1.0}
    assert RunningMeans.resumed(saved[:1]).of_ranks() == saved[:1]


def test_one_command_starts_and_continues(tmp_path: Path) -> None:
    call = [*TRAIN, "--resume", "auto", "--out", tmp_path / "run"]
    assert here(*call, "--epochs", 1)[0] == 0
    first = state(tmp_path / "run")
    assert here(*call, "--epochs", 1)[0] == 0  # it has ended
    assert equal(state(tmp_path / "run"), first)
    assert here(*call, "--epochs", 2)[0] == 0
    assert state(tmp_path / "run")["step"] == 2 * STEPS
    assert "with seed 0" in refused(*call, "--epochs", 2, "--seed", 1)
    options = {"data.count": 128, "encoder": "resnet8-slim-gn", "head.hidden": 16, "head.batch_norm": False}
    options |= {"batch_size": 16, "negatives": "glofnd", "negatives.start": 0.0, "knn_every": 0, "epochs": 3}
    options |= {"log_every": 1, "checkpoint_steps": 3}
    continued = train(data="shapes", out=tmp_path / "run", resume_from="auto", **options)
    assert len(continued.metrics["loss"]) == 3
    assert "--resume auto" in refused(*TRAIN, "--out", tmp_path / "run")
