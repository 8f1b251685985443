"""Instance discrimination: anchors against a memory bank of the whole dataset."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from antipodes.candidates.bank import MemoryBank
from antipodes.encoders.heads import HeadKind
from antipodes.methods.draw import Draw, Whole, against_bank, check_draw
from antipodes.methods.method import Method, Network, Projection, embed_supports, opens_cone
from antipodes.negatives.policy import Policy
from antipodes.objectives import InfoNCE, Objective, Treatment
from antipodes.pairs import normalise


class InstanceDiscrimination(Method):
    """Instance discrimination (Wu et al. 2018): every sample is a class, its bank entry the positive.

    With `negatives` Ring this is IRing (Wu et al. 2021): a policy judges the whole bank, and every anchor draws from
    what it keeps.

    Args:
        encoder: Images (B, 3, H, W) to features (B, num_features).
        num_samples: Size of the dataset.
        temperature: Divides the similarities.
        samples: Bank entries drawn per anchor.
        draw: Where the entries come from. `each`: every anchor draws its own from what the policy keeps of the whole
            bank (without a policy one draw serves all anchors, which is the same distribution); `once`: one draw for
            all anchors, and the policy judges the draw; `expected`: everything the policy keeps of the whole bank, the
            sum scaled to `samples`, which is the mean over draws.
        bank_momentum: Share of a bank entry that stays when it is written.
        seed: The bank's first entries and its draws follow from it.
        head: Projection head between features and loss.
        hidden: Width of the head's hidden layers.
        dim: Dimension of the embeddings that the loss compares.
        centred: End the head in a batch normalisation without scale and shift; by default where the policy ranks.
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
        self.network = Projection(encoder, head, hidden, dim, centred=opens_cone(centred, negatives))
        self.bank = MemoryBank(num_samples, dim, bank_momentum, seed)
        self.objective: Objective = InfoNCE(temperature, negatives, treatment)
        self._fresh: list[tuple[Tensor, Tensor]] = []

    def loss(self, network: Network, ids: Tensor, views: Sequence[Tensor], progress: float) -> Tensor:
        """Embeddings against their own bank entries and a draw of the others."""
        anchors = normalise(network(views[0]))
        self._fresh.append((ids, anchors.detach()))
        supports = embed_supports(self.network, views[1:])
        return against_bank(self.objective, self.bank, anchors, ids, supports, self.draw, self.samples, progress)

    def after_step(self) -> None:
        """The bank takes the embeddings of this step."""
        for ids, anchors in self._fresh:
            self.bank.write(ids, anchors)
        self._fresh.clear()

    def backbone(self) -> nn.Module:
        """The encoder without its head."""
        return self.network.encoder
