"""`Method`: how a batch of named inputs runs through towers and becomes a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from antipodes.losses import LossModule
from antipodes.losses.loss import Loss
from antipodes.methods.batch import Batch
from antipodes.methods.towers import JoinedEncoders, Network, Tower, TowerPlan, Towers
from antipodes.negatives.policy import Policy, Space
from antipodes.pairs import Guide


class Method(nn.Module, ABC):
    """The base of all methods: the interface between a method and the training loop.

    `network` holds the towers, which gradients train and data-parallel training wraps. Queues, banks, momentum encoders
    and policies' tables are outside of it. `directions` are the losses by name, each with policies of its own: one for
    SimCLR, two for CMC and CLIP. No other code counts towers or directions. `state_dict()` holds all state.
    """

    run: ClassVar[Mapping[str, Any]] = {}  # default options of a run with this method
    trains: ClassVar[tuple[str, ...]] = ("info-nce", "global-contrastive", "sigmoid")  # the losses it can train
    views: ClassVar[int] = 2  # random views of every input
    plain: ClassVar[bool] = False  # True: it also needs the input without augmentation
    crops: tuple[int, ...] = ()  # sizes of smaller views
    crop_recipe: str = "moco-v2"  # the smaller views' augmentation
    normalised: ClassVar[bool] = True  # False: it needs RGB in [0, 1]
    mixes: ClassVar[bool] = False  # True: it mixes inputs, so features of a frozen encoder cannot be looked up
    accumulates: ClassVar[bool] = False  # True: negatives do not come from the batch, so gradients may be accumulated

    network: Towers
    pixels: Mapping[str, Sequence[float]] = {}  # mean and std of the images' channels, if a run gives them
    precision: Callable[[], AbstractContextManager[None]] = nullcontext  # autocast, for networks outside `network`

    def __init__(self, network: Towers, directions: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.network = network
        self.directions = nn.ModuleDict(dict(directions))
        self.guide: nn.Module | None = None

    def use_guide(self, guide: nn.Module, for_pairs: Callable[..., Guide]) -> None:
        """Take a guide; where a loss uses one, all compare pairs in its space, too.

        Args:
            guide: It is saved with the method.
            for_pairs: From pairs, `learn` and the names of both towers of a direction to the guide's view of the pairs.
        """
        self.guide = guide
        losses = self.pair_losses()
        for direction, loss in losses.items() if any(each.uses_guide for each in losses.values()) else ():
            towers = self.anchor_tower(direction), self.candidate_tower(direction)
            loss.use_guide(partial(for_pairs, towers=towers))

    @classmethod
    def plan(cls, modalities: Mapping[str, str]) -> dict[str, TowerPlan]:
        """Return the towers for data with these inputs: by default one, for the image or the only input.

        Raises:
            ValueError: if the data lacks an input that the method needs.
        """
        name = "image" if "image" in modalities else next(iter(modalities))
        if len(modalities) > 1 and name != "image":
            raise ValueError(
                f"{cls.__name__} takes one input and the data has {', '.join(modalities)}: use clip or retrieval"
            )
        return {name: TowerPlan(name, modalities[name])}

    @abstractmethod
    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the loss of one batch.

        Args:
            network: `self.network`, or its data-parallel wrapper.
            batch: This rank's samples, with the `views`, `crops`, `plain` and `supports` that the method needs.
            progress: Share of training done, in [0, 1].
        """

    def anchor_tower(self, direction: str) -> str:
        """Return the name of the tower that makes the anchors of a direction."""
        return self.network.names()[0]

    def candidate_tower(self, direction: str) -> str:
        """Return the name of the tower that makes the candidates of a direction."""
        return self.anchor_tower(direction)

    def copies(self, tower: str) -> list[Tower]:
        """Return the tower of that name, and its momentum copies with the same input."""
        return [self.network[tower]]

    def pair_losses(self) -> dict[str, Loss]:
        """Return the directions whose loss takes a policy."""
        return {name: part for name, part in self.directions.items() if isinstance(part, Loss)}

    def losses(self) -> dict[str, LossModule]:
        """Return the losses of all directions."""
        return {name: part for name, part in self.directions.items() if isinstance(part, LossModule)}

    def policies(self) -> Iterator[tuple[str, Policy]]:
        """Yield every policy with its direction; the parts of a joined policy one by one."""
        for name, loss in self.losses().items():
            for policy in loss.policies():
                yield name, policy

    @property
    def supports(self) -> int:
        """The number of support views that the policies need in addition."""
        return max((policy.needs.supports for _, policy in self.policies()), default=0)

    def backbone(self, input_name: str | None = None) -> nn.Module:
        """Return the module that is evaluated: from an input without augmentation to the features (B, F) of all its
        towers.

        Args:
            input_name: The name of the input; by default that of the first tower.
        """
        towers = self.network
        name = towers.plans[towers.names()[0]].input if input_name is None else input_name
        parts = [self.evaluated(tower) for tower in towers.seeing(name)]
        return parts[0] if len(parts) == 1 else JoinedEncoders(parts)

    def evaluated(self, tower: str, head: bool = False) -> nn.Module:
        """Return a tower from its input to the encoder's features, or with `head` to the head's embeddings."""
        part = self.network[tower]
        found = [each for each in (self.network.plans[tower].prepare, part.encoder) if each is not None]
        found += [part.head] if head else []
        return found[0] if len(found) == 1 else nn.Sequential(*found)

    def clustered(self, tower: str, space: Space) -> nn.Module:
        """Return the network from a tower's input to what a policy clusters: `features` or `embeddings`."""
        return self.evaluated(tower, head=space == "embeddings")

    def compared(self, direction: str) -> tuple[nn.Module, nn.Module | Tensor]:
        """Return the modules or tables that a direction compares, to evaluate policies on whole datasets.

        Returns:
            The module that makes anchors of the anchor tower's input without augmentation; and the module that makes
            candidates, or a table of them by row (n, D).
        """
        return (
            self.evaluated(self.anchor_tower(direction), head=True),
            self.evaluated(self.candidate_tower(direction), head=True),
        )

    def exports(self) -> dict[str, nn.Module]:
        """Return the encoders that are written when the run ends, by file name without ending."""
        towers = self.network
        names = [name for name in towers.names() if towers.plans[name].input]
        if len({id(towers[name].encoder) for name in names}) == 1:
            return {"encoder": towers[names[0]].encoder}
        return {f"encoder-{name}": self.network[name].encoder for name in names}

    def after_step(self) -> None:
        """Update momentum encoders, queues and banks after the optimiser's step."""

    def statistics(self) -> dict[str, float]:
        """Return the last step's numbers for the log: means over directions and, if there are several, each one's."""
        every = {name: loss.stats for name, loss in self.losses().items()}
        found: dict[str, list[float]] = {}
        for stats in every.values():
            for name, value in stats.items():
                found.setdefault(name, []).append(value)
        numbers = {name: sum(values) / len(values) for name, values in found.items()}
        if len(every) > 1:
            numbers |= {f"{name}/{number}": value for name, stats in every.items() for number, value in stats.items()}
        return numbers
