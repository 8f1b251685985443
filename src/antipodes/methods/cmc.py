"""CMC: the luminance and the colours of an image as two views, each against the memory bank of the other."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor, nn

from antipodes.candidates.bank import MemoryBank
from antipodes.encoders.encoder import rgb_to_lab
from antipodes.losses import Loss
from antipodes.methods.batch import Batch
from antipodes.methods.draw import Draw, against_bank, check_draw
from antipodes.methods.method import Method
from antipodes.methods.towers import Network, TowerPlan, Towers, embed_supports
from antipodes.pairs import normalise

CHANNELS = {"l": slice(0, 1), "ab": slice(1, 3)}
"""Tower -> its channels in Lab."""


class LabChannels(nn.Module):
    """A module that converts RGB in [0, 1], (B, 3, H, W), to some channels of Lab."""

    def __init__(self, channels: slice) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, images: Tensor) -> Tensor:
        """Return the channels (B, k, H, W)."""
        return rgb_to_lab(images)[:, self.channels]


class CMC(Method):
    """Contrastive multiview coding (Tian et al. 2020) of the Lab colour space.

    The L embedding of a sample is contrasted with the bank of ab embeddings, and the ab embedding with the bank of L
    embeddings; the loss is the sum of both. The evaluated features are those of both encoders, concatenated. With the
    policy `ring` this is CMCRing.

    Args:
        network: Two towers, `l` and `ab`.
        loss_fn: The loss of `l_to_ab`. `ab_to_l` gets a copy with policies of its own, because thresholds for L anchors
            do not apply to ab anchors.
        num_samples: Rows of the dataset.
        dim: Dimension of the embeddings.
        samples: Bank entries drawn per anchor and direction.
        draw: Where the entries come from: `each`, `once` or `expected`, as in `InstanceDiscrimination`.
        bank_momentum: Share of a bank entry that stays when it is written.
        seed: Determines the banks' initial entries and their draws.
        identities: (n,) the identity of each row's sample; None if all differ.
    """

    run = {
        "augmentation": "moco-v1",
        "head": {"kind": "linear", "centred": None},
        "loss": {"temperature": 0.07},
    }
    trains = ("info-nce", "global-contrastive", "local-aggregation")
    views = 1
    normalised = False
    accumulates = True

    def __init__(
        self,
        network: Towers,
        loss_fn: Loss,
        num_samples: int,
        dim: int = 128,
        samples: int = 4096,
        draw: Draw = "each",
        bank_momentum: float = 0.5,
        seed: int = 0,
        identities: Tensor | None = None,
    ) -> None:
        super().__init__(network, {"l_to_ab": loss_fn, "ab_to_l": copy.deepcopy(loss_fn)})
        check_draw(draw, samples)
        self.draw: Draw = draw
        self.samples = samples
        self.banks = nn.ModuleDict()
        for number, name in enumerate(CHANNELS):
            self.banks[name] = MemoryBank(num_samples, dim, bank_momentum, 2 * seed + number, identities)
        self._fresh: list[tuple[Tensor, dict[str, Tensor]]] = []

    @classmethod
    def plan(cls, modalities: Mapping[str, str]) -> dict[str, TowerPlan]:
        """Return a tower for the luminance and one for the colours."""
        if modalities.get("image") != "image":
            raise ValueError(f"CMC looks at the colours of images and the data has {', '.join(modalities)}")
        return {
            name: TowerPlan("image", "image", channels.stop - channels.start, LabChannels(channels))
            for name, channels in CHANNELS.items()
        }

    def anchor_tower(self, direction: str) -> str:
        """Return the anchors' tower, such as `l` of `l_to_ab`."""
        return direction.partition("_to_")[0]

    def candidate_tower(self, direction: str) -> str:
        """Return the candidates' tower, such as `ab` of `l_to_ab`."""
        return direction.partition("_to_")[2]

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the sum of both directions' losses: each tower's embeddings against the bank of the other."""
        inputs = batch["image"]
        embeddings = {name: normalise(part) for name, part in network(_split(inputs.views[0])).items()}
        self._fresh.append((batch.rows, {name: part.detach() for name, part in embeddings.items()}))
        total: Tensor | None = None
        for direction, loss_fn in self.pair_losses().items():
            anchors, bank = self.anchor_tower(direction), self.banks[self.candidate_tower(direction)]
            assert isinstance(bank, MemoryBank)
            supports = embed_supports(self.network, anchors, [_split(view)[anchors] for view in inputs.supports])
            loss = against_bank(loss_fn, bank, embeddings[anchors], batch, supports, self.draw, self.samples, progress)
            total = loss if total is None else total + loss
        assert total is not None
        return total

    def compared(self, direction: str) -> tuple[nn.Module, nn.Module | Tensor]:
        """Return the module that makes a direction's anchors, and the other tower's bank (n, D)."""
        bank = self.banks[self.candidate_tower(direction)]
        assert isinstance(bank, MemoryBank)
        return self.evaluated(self.anchor_tower(direction), head=True), bank.entries()[0]

    def after_step(self) -> None:
        """Write the embeddings of this step into both banks."""
        for rows, embeddings in self._fresh:
            for name, bank in self.banks.items():
                assert isinstance(bank, MemoryBank)
                bank.write(rows, embeddings[name])
        self._fresh.clear()


def _split(images: Tensor) -> dict[str, Tensor]:
    """Return the input of each tower, for images in [0, 1]."""
    lab = rgb_to_lab(images)
    return {name: lab[:, channels] for name, channels in CHANNELS.items()}
