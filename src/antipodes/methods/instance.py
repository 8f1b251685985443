"""Instance discrimination: anchors against a memory bank of the whole dataset."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from antipodes.candidates.bank import MemoryBank
from antipodes.encoders.heads import HeadKind
from antipodes.methods.method import Method, Network, Projection
from antipodes.negatives.policy import Policy
from antipodes.objectives import InfoNCE, Treatment
from antipodes.pairs import Pairs, normalise


class InstanceDiscrimination(Method):
    """Instance discrimination (Wu et al. 2018): every sample is a class, its bank entry the positive.

    The negatives of a step are drawn once for all its anchors: for each anchor the same distribution as a draw of its
    own, without a (B, k, D) gather.

    Args:
        encoder: Images (B, 3, H, W) to features (B, num_features).
        num_samples: Size of the dataset.
        temperature: Divides the similarities.
        samples: Bank entries drawn per step.
        bank_momentum: Share of a bank entry that stays when it is written.
        seed: The bank's first entries and its draws follow from it.
        head: Projection head between features and loss.
        hidden: Width of the head's hidden layers.
        dim: Dimension of the embeddings that the loss compares.
        negatives: The policy that decides which entries count; None keeps all.
        treatment: What happens to false negatives: eliminate, attract or refine.
    """

    views = 1
    recipe = "moco-v1"
    accumulates = True
    network: Projection

    def __init__(
        self,
        encoder: nn.Module,
        num_samples: int,
        temperature: float = 0.07,
        samples: int = 4096,
        bank_momentum: float = 0.5,
        seed: int = 0,
        head: HeadKind = "linear",
        hidden: int = 512,
        dim: int = 128,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
    ) -> None:
        super().__init__()
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}: it is the number of bank entries drawn")
        self.samples = samples
        self.network = Projection(encoder, head, hidden, dim)
        self.bank = MemoryBank(num_samples, dim, bank_momentum, seed)
        self.objective = InfoNCE(temperature, negatives, treatment)
        self._fresh: list[tuple[Tensor, Tensor]] = []

    def loss(self, network: Network, ids: Tensor, views: Sequence[Tensor], progress: float) -> Tensor:
        """Embeddings against their own bank entries and a draw of the others."""
        anchors = normalise(network(views[0]))
        self._fresh.append((ids, anchors.detach()))
        entries = self.bank.read(ids)
        pairs = Pairs(anchors, ids, (anchors * entries).sum(1), *self.bank.draw(self.samples), entries)
        return self.objective.evaluate(pairs, progress)

    def after_step(self) -> None:
        """The bank takes the embeddings of this step."""
        for ids, anchors in self._fresh:
            self.bank.write(ids, anchors)
        self._fresh.clear()

    def backbone(self) -> nn.Module:
        """The encoder without its head."""
        return self.network.encoder
