"""Real processes for distributed tests: started once, then given one function after another."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.cli.command import FORKED


class Ranks:
    """`ranks(function, *arguments)` calls function(rank, world_size, *arguments) in every process.

    The function must be importable; what it returns comes back as a list in rank order.
    """

    def __init__(self, world_size: int, store: Path) -> None:
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(world_size):
            ours, theirs = FORKED.Pipe()
            process = FORKED.Process(target=_serve, args=(rank, world_size, str(store), theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((function, arguments))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(120):
                raise TimeoutError(f"rank {rank} does not answer")
            answers.append(pipe.recv())
        for rank, (worked, answer) in enumerate(answers):
            if not worked:
                raise AssertionError(f"rank {rank} failed:\n{answer}")
        return [answer for _, answer in answers]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)
            process.kill()


def _serve(rank: int, world_size: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    while (job := pipe.recv()) is not None:
        function, arguments = job
        try:
            pipe.send((True, function(rank, world_size, *arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()
