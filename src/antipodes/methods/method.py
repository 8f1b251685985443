"""`Method`: how a batch of named inputs runs through towers and becomes a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from torch import Tensor, nn

from antipodes.losses import LossModule
from antipodes.losses.loss import Loss
from antipodes.methods.batch import Batch
from antipodes.methods.towers import JoinedEncoders, Network, Tower, TowerPlan, Towers
from antipodes.negatives.policy import Policy


class Method(nn.Module, ABC):
    """What the training loop needs to know of a method.

    `network` are the towers, which gradients train and data-parallel training wraps; queues, banks, momentum encoders
    and the policies' tables are outside of it. `directions` are the losses by name, each with policies of its own:
    one for SimCLR, two for CMC and CLIP. Nothing outside counts towers or directions. `state_dict()` holds all of it.
    """

    run: ClassVar[Mapping[str, Any]] = {}  # options of a run that come with the method unless told otherwise
    trains: ClassVar[tuple[str, ...]] = ("info-nce", "global-contrastive", "sigmoid")  # losses with a meaning here
    views: ClassVar[int] = 2  # random views of every input
    plain: ClassVar[bool] = False  # True: it also wants the input as evaluation sees it
    crops: tuple[int, ...] = ()  # sizes of smaller views
    crop_recipe: str = "moco-v2"  # their augmentation
    normalised: ClassVar[bool] = True  # False: the method wants RGB in [0, 1]
    mixes: ClassVar[bool] = False  # True: it mixes inputs, for which features of a frozen encoder cannot stand
    accumulates: ClassVar[bool] = False  # True: negatives do not come from the batch, so gradients may be accumulated

    network: Towers
    pixels: Mapping[str, Sequence[float]] = {}  # mean and std of its images' channels, where a run names them
    precision: Callable[[], AbstractContextManager[None]] = nullcontext  # autocast, for networks outside `network`

    def __init__(self, network: Towers, directions: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.network = network
        self.directions = nn.ModuleDict(dict(directions))
        self.guide: nn.Module | None = None  # what the directions' policies look through, if a run has one

    @classmethod
    def plan(cls, modalities: Mapping[str, str]) -> dict[str, TowerPlan]:
        """The towers that it needs for data with these inputs: by default one, for the image or the only input.

        Raises:
            ValueError: if the data has not what it needs.
        """
        name = "image" if "image" in modalities else next(iter(modalities))
        if len(modalities) > 1 and name != "image":
            raise ValueError(f"{cls.__name__} looks at one input and the data has {', '.join(modalities)}: use clip")
        return {name: TowerPlan(name, modalities[name])}

    @abstractmethod
    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """The loss of one batch.

        Args:
            network: `self.network`, or what a data-parallel wrapper made of it.
            batch: This rank's samples, with `views`, `crops`, `plain` and `supports` as the method asks for.
            progress: Share of training done, in [0, 1].
        """

    def anchor_tower(self, direction: str) -> str:
        """The name of the tower whose embeddings are the anchors of a direction."""
        return self.network.names()[0]

    def candidate_tower(self, direction: str) -> str:
        """The name of the tower whose embeddings are the candidates of a direction."""
        return self.anchor_tower(direction)

    def copies(self, tower: str) -> list[Tower]:
        """The tower of that name, and the slowly moving copies of it that see the same input."""
        return [self.network[tower]]

    def pair_losses(self) -> dict[str, Loss]:
        """The directions whose negatives a policy may decide."""
        return {name: part for name, part in self.directions.items() if isinstance(part, Loss)}

    def losses(self) -> dict[str, LossModule]:
        """All directions."""
        return {name: part for name, part in self.directions.items() if isinstance(part, LossModule)}

    def policies(self) -> Iterator[tuple[str, Policy]]:
        """Every policy with its direction, each part of a joined one by itself."""
        for name, loss in self.losses().items():
            for policy in loss.policies():
                yield name, policy

    @property
    def supports(self) -> int:
        """How many views a step needs on top: the support views that policies ask for."""
        return max((policy.supports for _, policy in self.policies()), default=0)

    def backbone(self, input_name: str | None = None) -> nn.Module:
        """What is evaluated: an input as evaluation sees it to features (B, F), of all towers that see it, joined.

        Args:
            input_name: Which input; by default that of the first tower.
        """
        towers = self.network
        name = towers.plans[towers.names()[0]].input if input_name is None else input_name
        parts = [self.evaluated(tower) for tower in towers.seeing(name)]
        return parts[0] if len(parts) == 1 else JoinedEncoders(parts)

    def evaluated(self, tower: str, head: bool = False) -> nn.Module:
        """A tower from its input as evaluation sees it: to the encoder's features, or on to the head's embeddings."""
        part = self.network[tower]
        found = [each for each in (self.network.plans[tower].prepare, part.encoder) if each is not None]
        found += [part.head] if head else []
        return found[0] if len(found) == 1 else nn.Sequential(*found)

    def compared(self, direction: str) -> tuple[nn.Module, nn.Module | Tensor]:
        """What a direction compares, for those who look at whole datasets.

        Returns:
            The module that makes anchors of the anchor tower's input as evaluation sees it, and the one that makes
            candidates, or a table of them by row (n, D).
        """
        return (
            self.evaluated(self.anchor_tower(direction), head=True),
            self.evaluated(self.candidate_tower(direction), head=True),
        )

    def exports(self) -> dict[str, nn.Module]:
        """Encoders to write as files when the run ends, by file name without ending."""
        names = [name for name in self.network.names() if self.network.plans[name].input]
        if len(names) == 1:
            return {"encoder": self.network[names[0]].encoder}
        return {f"encoder-{name}": self.network[name].encoder for name in names}

    def after_step(self) -> None:
        """Take in what is new, once the optimiser has stepped: momentum encoders, queues, banks."""

    def statistics(self) -> dict[str, float]:
        """Numbers of the last step for the log: the mean over directions and, where there are several, each one's."""
        every = {name: loss.stats for name, loss in self.losses().items()}
        found: dict[str, list[float]] = {}
        for stats in every.values():
            for name, value in stats.items():
                found.setdefault(name, []).append(value)
        numbers = {name: sum(values) / len(values) for name, values in found.items()}
        if len(every) > 1:
            numbers |= {f"{name}/{number}": value for name, stats in every.items() for number, value in stats.items()}
        return numbers
