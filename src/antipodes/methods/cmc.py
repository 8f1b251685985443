"""CMC: the luminance and the colours of an image as two views, each against the other's memory bank."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from antipodes.candidates.bank import MemoryBank
from antipodes.encoders.heads import HeadKind
from antipodes.functional.colour import rgb_to_lab
from antipodes.methods.draw import Draw, Whole, against_bank, check_draw
from antipodes.methods.method import Method, Network, Projection, embed_supports, opens_cone
from antipodes.negatives.policy import Policy
from antipodes.objectives import InfoNCE, Objective, Treatment
from antipodes.pairs import normalise


class LabFeatures(nn.Module):
    """Two encoders side by side: RGB in [0, 1] to the L features and the ab features, joined."""

    def __init__(self, of_l: nn.Module, of_ab: nn.Module) -> None:
        super().__init__()
        self.of_l = of_l
        self.of_ab = of_ab

    def split(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What each of the two makes of its channels."""
        lab = rgb_to_lab(images)
        return self.of_l(lab[:, :1]), self.of_ab(lab[:, 1:])

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) to (B, F_l + F_ab)."""
        return torch.cat(self.split(images), dim=1)


class CMC(Method):
    """Contrastive multiview coding (Tian et al. 2020) of the Lab colour space.

    The L embedding of a sample is contrasted with the bank of ab embeddings and the other way round; the loss is the
    sum of both. The evaluated features are those of both encoders, joined. With `negatives` Ring this is CMCRing.

    Args:
        encoder_l: Encoder of the luminance, (B, 1, H, W) to features.
        encoder_ab: Encoder of the colours, (B, 2, H, W) to features.
        num_samples: Size of the dataset.
        temperature: Divides the similarities.
        samples: Bank entries drawn per anchor and direction.
        draw: Where the entries come from. `each`: every anchor draws its own from what the policy keeps of the whole
            bank (without a policy one draw serves all anchors, which is the same distribution); `once`: one draw for
            all anchors, and the policy judges the draw; `expected`: everything the policy keeps of the whole bank, the
            sum scaled to `samples`, which is the mean over draws.
        bank_momentum: Share of a bank entry that stays when it is written.
        seed: The banks' first entries and their draws follow from it.
        head: Projection head between features and loss.
        hidden: Width of the heads' hidden layers.
        dim: Dimension of the embeddings that the loss compares.
        centred: End the head in a batch normalisation without scale and shift; by default where the policy ranks.
        negatives: The policy that decides which entries count; None keeps all.
        treatment: What happens to false negatives: eliminate, attract or refine.
    """

    channels = (1, 2)
    views = 1
    recipe = "moco-v1"
    normalised = False
    accumulates = True
    network: LabFeatures

    def __init__(
        self,
        encoder_l: nn.Module,
        encoder_ab: nn.Module,
        num_samples: int,
        temperature: float = 0.07,
        samples: int = 4096,
        draw: Draw = "each",
        bank_momentum: float = 0.5,
        seed: int = 0,
        head: HeadKind = "linear",
        hidden: int = 512,
        dim: int = 128,
        centred: bool | None = None,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
    ) -> None:
        super().__init__()
        check_draw(draw, samples)
        self.draw: Draw | Whole = draw
        self.samples = samples
        parts = (encoder_l, encoder_ab)
        centred = opens_cone(centred, negatives)
        self.network = LabFeatures(*(Projection(part, head, hidden, dim, centred=centred) for part in parts))
        self.bank_l = MemoryBank(num_samples, dim, bank_momentum, 2 * seed)
        self.bank_ab = MemoryBank(num_samples, dim, bank_momentum, 2 * seed + 1)
        # a policy per direction: thresholds of L anchors mean nothing to ab anchors
        self.objective: Objective = InfoNCE(temperature, negatives, treatment)
        self.objective_ab: Objective = InfoNCE(temperature, copy.deepcopy(negatives), treatment)
        self._fresh: list[tuple[Tensor, list[Tensor]]] = []

    def loss(self, network: Network, ids: Tensor, views: Sequence[Tensor], progress: float) -> Tensor:
        """Each channel group against the bank of the other."""
        embeddings = [normalise(part) for part in network(views[0]).chunk(2, dim=1)]
        self._fresh.append((ids, [part.detach() for part in embeddings]))
        supports = embed_supports(self.network, views[1:])
        of_directions = (None, None) if supports is None else supports.chunk(2, dim=2)
        banks, objectives = (self.bank_ab, self.bank_l), (self.objective, self.objective_ab)
        losses = []
        for anchors, bank, objective, support in zip(embeddings, banks, objectives, of_directions, strict=True):
            losses.append(against_bank(objective, bank, anchors, ids, support, self.draw, self.samples, progress))
        return losses[0] + losses[1]

    def after_step(self) -> None:
        """Both banks take the embeddings of this step."""
        for ids, embeddings in self._fresh:
            for part, bank in zip(embeddings, (self.bank_l, self.bank_ab), strict=True):
                bank.write(ids, part)
        self._fresh.clear()

    def statistics(self) -> dict[str, float]:
        """The mean of both directions."""
        ours, theirs = self.objective.stats, self.objective_ab.stats
        return {name: (ours[name] + theirs[name]) / 2 for name in ours}

    def backbone(self) -> nn.Module:
        """Both encoders without their heads, joined."""
        return LabFeatures(*self.exports().values())

    def exports(self) -> dict[str, nn.Module]:
        """One file per encoder."""
        of_l, of_ab = self.network.of_l, self.network.of_ab
        assert isinstance(of_l, Projection)
        assert isinstance(of_ab, Projection)
        return {"encoder-l": of_l.encoder, "encoder-ab": of_ab.encoder}
