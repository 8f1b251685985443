"""Two nodes of torchrun, each in a network namespace of its own: they reach each other by one link only."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import launched
from tests.training.test_ranks import EPOCHS, LONG, STEPS, TORCHRUN, TRAIN, Started, equal, lines, state, worker

PORT = 29400  # free, because nothing else is in the namespace


def ip(*arguments: object) -> None:
    """Run a command of iproute2."""
    subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True, text=True, timeout=30)


@pytest.fixture
def nodes() -> Iterator[list[tuple[str, str, str]]]:
    """Two namespaces joined by a link: of each its name, its end of the link and its address."""
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2")
    if os.geteuid() != 0:
        pytest.skip("needs root: an ordinary user cannot make network namespaces")
    names = [f"antipodes{os.getpid()}{end}" for end in "ab"]
    links = [f"anti{os.getpid() % 10**7}{end}" for end in "ab"]  # at most 15 characters
    made = []
    try:
        try:
            for name in names:
                ip("netns", "add", name)
                made.append(name)
            ip("link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
            addresses = [f"10.213.7.{number}" for number in (1, 2)]
            for name, link, address in zip(names, links, addresses, strict=True):
                ip("-n", name, "address", "add", f"{address}/24", "dev", link)
                for device in (link, "lo"):
                    ip("-n", name, "link", "set", device, "up")
                ip("netns", "exec", name, "true")
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        yield list(zip(names, links, addresses, strict=True))
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def test_workers_and_a_whole_node_come_back_by_rendezvous(nodes: list[tuple[str, str, str]], tmp_path: Path) -> None:
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "run"
    finished = launched(*TRAIN, *EPOCHS, "--devices", 2, "--out", undisturbed, timeout=LONG)
    assert finished.returncode == 0, finished.stderr

    def started(number: int) -> Started:
        """The agent of a node; the first holds the rendezvous."""
        name, link, address = nodes[number]
        agent = ["ip", "netns", "exec", name, *TORCHRUN, "--nnodes", 2, "--nproc_per_node", 1, "--max_restarts", 5]
        agent += ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"{nodes[0][2]}:{PORT}", "--rdzv_id", "nodes"]
        agent += ["--rdzv_conf", f"keep_alive_interval=2,is_host={1 - number}", "--local_addr", address]
        agent += ["-m", "antipodes", *TRAIN, *EPOCHS, "--devices", 2, "--resume", "auto", "--out", out]
        return Started(*agent, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", GLOO_SOCKET_IFNAME=link)

    def kill_worker(node: Started) -> None:
        """Kill the one worker of a node, whatever its rank is."""
        for rank in range(2):
            try:
                os.kill(worker(node.process.pid, rank), signal.SIGKILL)
                return
            except AssertionError:
                continue
        raise AssertionError(f"no worker: {node.said()}")

    with started(0) as first:
        with started(1) as second:
            second.wait_for_step(out, 5)
            kill_worker(second)  # its agent and the other node start again
            second.wait_for_step(out, STEPS + 5)
        with started(1) as again:  # leaving the block has killed the whole node
            first.ends()
            again.ends()
    assert equal(state(out), state(undisturbed))
    assert lines(out) == lines(undisturbed)
