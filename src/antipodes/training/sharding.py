"""FSDP2: towers whose parameters, gradients and optimiser states are shared by the processes, and their checkpoints.

`fully_shard` splits every parameter over the processes and joins it while it is used. A checkpoint is a folder to which
every process writes its part (`torch.distributed.checkpoint`), next to last.pt with all the rest.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from antipodes.methods import Method, Tower
from antipodes.runs.folder import SHARDS, load_pointer
from antipodes.runs.settings import Settings


def shard_network(network: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard a method's towers over the data-parallel processes: each part of an encoder by itself, then the rest."""
    processes = mesh["data_parallel"]
    # an encoder may end in a view of its features, which nothing here changes in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for parameter in network.parameters():
        parameter.data = parameter.data.contiguous()  # FSDP2 splits no tensor of another memory format
    split: set[int] = set()  # towers may have an encoder in common
    for tower in (each for each in network.modules() if isinstance(each, Tower)):
        for part in [*_stages(tower.encoder), tower.encoder, tower.head]:
            if id(part) not in split and any(True for _ in part.parameters()):
                split.add(id(part))
                fully_shard(part, mesh=processes)
    fully_shard(network, mesh=processes)
    return network


def _stages(encoder: nn.Module) -> list[nn.Module]:
    """Return the stages or blocks of an encoder, each of which is joined by itself."""
    stages: list[nn.Module] = []
    for child in encoder.children():
        stages += child.children() if isinstance(child, nn.ModuleList) else [child]
    return [stage for stage in stages if isinstance(stage, nn.Sequential) or len(list(stage.children())) > 1]


def check_sharding(settings: Settings, method: Method) -> None:
    """Refuse what does not work on shared parameters.

    Raises:
        ValueError: with the options to leave out.
    """
    if settings.strategy != "fsdp":
        return
    if any(len(method.copies(name)) > 1 for name in method.network.names()):
        raise ValueError("strategy fsdp cannot follow a momentum encoder: choose a method without one, such as simclr")
    unfit = {
        "micro_batch": settings.micro_batch is not None,
        "freeze": bool(settings.freeze),
        "snapshot_every": settings.snapshot_every > 0,
        "precision 16-mixed": settings.precision == "16-mixed",
        "optimizer lars": settings.optimizer == "lars",
    }
    if names := [name for name, given in unfit.items() if given]:
        raise ValueError(f"strategy fsdp does not go with {', '.join(names)}: leave that out, or take strategy ddp")


def shard_optimizer_state(optimizer: Optimizer) -> None:
    """Split an optimiser's state that was loaded whole as its parameters are split."""
    for parameter, state in optimizer.state.items():
        if isinstance(parameter, DTensor):
            for name, value in state.items():
                if getattr(value, "shape", None) == parameter.shape and not isinstance(value, DTensor):
                    state[name] = distribute_tensor(value, parameter.device_mesh, parameter.placements)


def save_shards(checkpoints: Path, step: int, model: dict[str, Any], optimizer: dict[str, Any]) -> str:
    """Write the parts of all processes into a folder of this step; all of them call it. Returns the folder's name."""
    name = f"{SHARDS}-{step}"
    shared = {key: value for key, value in model.items() if isinstance(value, DTensor)}
    save({"model": shared, "optimizer": optimizer}, checkpoint_id=checkpoints / name)
    return name


def remove_shards(checkpoints: Path) -> None:
    """Remove the folders of earlier steps that neither last.pt nor best.pt needs."""
    kept = {load_pointer(checkpoints / name) for name in ("last.pt", "best.pt")}
    for folder in checkpoints.glob(f"{SHARDS}-*"):
        if folder.name not in kept:
            shutil.rmtree(folder, ignore_errors=True)
