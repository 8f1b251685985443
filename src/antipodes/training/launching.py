"""The processes of a run: started here, by torchrun, or by SLURM's srun."""

from __future__ import annotations

import os
import socket
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch._C._distributed_c10d import TCPStore

from antipodes.processes import end_with_parent
from antipodes.runs.settings import Settings

ADDRESS = "antipodes/store"  # the key in torchrun's store under which the first rank publishes its own one
TO_CONNECT = timedelta(seconds=5)  # of one attempt to reach a published store, which may be that of a dead process
PATIENCE = 1800.0  # seconds until processes that do not find each other give up


def launch(settings: Settings) -> Fabric:
    """Start the processes, or join those that torchrun or SLURM's srun has started."""
    # Lightning warns of processes that wait for each other; here a job without srun is one process
    warnings.filterwarnings("ignore", message="The `srun` command is available on your system but is not used")
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    if settings.precision == "16-mixed" and (settings.accelerator == "cpu" or not gpu):
        raise ValueError("precision 16-mixed needs a GPU: on a CPU use 32-true, or bf16-mixed where it is supported")
    devices, nodes = _processes(settings)
    try:
        fabric = Fabric(
            accelerator=settings.accelerator,
            devices=devices,
            num_nodes=nodes,
            precision=settings.precision,
            strategy=_strategy(settings, devices * nodes),
            # outside srun a job of SLURM is one process, whatever number of tasks the job has
            plugins=[LightningEnvironment()] if SLURMEnvironment.detect() and not _started_by_srun() else None,
        )
    except (RuntimeError, MisconfigurationException) as error:
        raise ValueError(f"accelerator {settings.accelerator} cannot be used here: {error}") from error
    parent = os.getppid()
    if devices * nodes > 1 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and not dist.is_initialized():
        _join_torchrun("nccl" if fabric.device.type == "cuda" else "gloo")
    fabric.launch()
    if fabric.local_rank > 0 or "TORCHELASTIC_RUN_ID" in os.environ:  # Fabric or torchrun has started this process
        end_with_parent(parent)
    return fabric


def _strategy(settings: Settings, processes: int) -> str | ModelParallelStrategy:
    if processes == 1:
        return "auto"
    if settings.strategy == "ddp":
        return "ddp"
    from antipodes.training.sharding import shard_network

    return ModelParallelStrategy(shard_network, data_parallel_size=processes, tensor_parallel_size=1)


def _processes(settings: Settings) -> tuple[int, int]:
    """Return the number of processes on this node, and the number of nodes: as they were started, or as asked for."""
    if SLURMEnvironment.detect() and _started_by_srun():
        nodes = int(os.environ.get("SLURM_NNODES", 1))
        return int(os.environ["SLURM_NTASKS"]) // nodes, nodes
    if "LOCAL_WORLD_SIZE" in os.environ:  # torchrun
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        return devices, int(os.environ["WORLD_SIZE"]) // devices
    gpus = torch.cuda.device_count() if torch.cuda.is_available() and settings.accelerator != "cpu" else 0
    most = gpus or max(os.cpu_count() or 1, 2)  # two processes on one core are slow but let users try them
    if settings.devices > most:
        raise ValueError(f"devices must be at most {most} here, got {settings.devices}: each device needs a process")
    return settings.devices, max(1, int(os.environ.get("WORLD_SIZE", settings.devices)) // settings.devices)


def _started_by_srun() -> bool:
    return "SLURM_STEP_ID" in os.environ


def _join_torchrun(backend: str) -> None:
    """Form the group of processes through a store of the first rank instead of torchrun's.

    torchrun keeps its store over restarts, with the addresses of workers that were killed. A restarted worker that
    reads them waits for processes that do not exist (pytorch issue 135712). So the first rank opens a new store and
    publishes its address; the others take what is published until they reach a store that is alive.
    """
    here, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    shared = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=PATIENCE))
    store: TCPStore | None = None
    if here == 0:
        own = _address_towards(host, port)
        store = TCPStore(own, 0, is_master=True, wait_for_workers=False)
        shared.set(ADDRESS, f"{own} {store.port}")
    ends = time.monotonic() + PATIENCE
    while store is None:
        try:
            own, number = shared.get(ADDRESS).decode().split()
            socket.create_connection((own, int(number)), timeout=1).close()  # refused quickly where TCPStore waits
            store = TCPStore(own, int(number), is_master=False, timeout=TO_CONNECT)
        except (OSError, dist.DistNetworkError, dist.DistStoreError):
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)
    store.set_timeout(timedelta(seconds=PATIENCE))
    dist.init_process_group(backend, store=store, rank=here, world_size=world)


def _address_towards(host: str, port: int) -> str:
    """Return the address by which other nodes reach this one: that of the connection to torchrun's store."""
    with socket.create_connection((host, port), timeout=60) as connection:
        own, other = connection.getsockname()[0], connection.getpeername()[0]
    return host if own == other else str(own)  # the store is on this node, and the others know it by its name
