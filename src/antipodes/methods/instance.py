"""Instance discrimination: anchors against a memory bank of the whole dataset."""

from __future__ import annotations

from torch import Tensor, nn

from antipodes.candidates.bank import MemoryBank
from antipodes.losses import Loss
from antipodes.methods.batch import Batch
from antipodes.methods.draw import Draw, against_bank, check_draw
from antipodes.methods.method import Method
from antipodes.methods.towers import Network, Towers, embed_supports
from antipodes.pairs import normalise


class InstanceDiscrimination(Method):
    """Instance discrimination (Wu et al. 2018): every sample is a class, its bank entry the positive.

    With the policy `ring` this is IRing (Wu et al. 2021): a policy judges the whole bank, and every anchor draws from
    what it keeps. With the loss `local-aggregation` it is local aggregation (Zhuang et al. 2019).

    Args:
        network: One tower.
        loss_fn: The loss, with the policy that decides which entries count.
        num_samples: Rows of the dataset.
        dim: Dimension of the embeddings.
        samples: Bank entries drawn per anchor.
        draw: Where the entries come from. `each`: every anchor draws its own from what the policy keeps of the whole
            bank (without a policy one draw serves all anchors, which is the same distribution); `once`: one draw for
            all anchors, and the policy judges the draw; `expected`: everything the policy keeps of the whole bank, the
            sum scaled to `samples`, which is the mean over draws.
        bank_momentum: Share of a bank entry that stays when it is written.
        seed: Determines the bank's initial entries and its draws.
        identities: (n,) the identity of each row's sample; None if all differ.
    """

    run = {
        "augmentation": "moco-v1",
        "head": {"kind": "linear", "centred": None},
        "loss": {"temperature": 0.07},
    }
    trains = ("info-nce", "global-contrastive", "local-aggregation")
    views = 1
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
        super().__init__(network, {network.names()[0]: loss_fn})
        check_draw(draw, samples)
        self.draw: Draw = draw
        self.samples = samples
        self.bank = MemoryBank(num_samples, dim, bank_momentum, seed, identities)
        self._fresh: list[tuple[Tensor, Tensor]] = []

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the loss of embeddings (b, D) against their own bank entries and a draw of the others."""
        (tower,) = self.network.names()
        inputs = batch[self.network.plans[tower].input]
        anchors = normalise(network({tower: inputs.views[0]})[tower])
        self._fresh.append((batch.rows, anchors.detach()))
        supports = embed_supports(self.network, tower, inputs.supports)
        (loss_fn,) = self.pair_losses().values()
        return against_bank(loss_fn, self.bank, anchors, batch, supports, self.draw, self.samples, progress)

    def compared(self, direction: str) -> tuple[nn.Module, nn.Module | Tensor]:
        """Return the module that makes the anchors, and the bank (n, D)."""
        return self.evaluated(self.anchor_tower(direction), head=True), self.bank.entries()[0]

    def after_step(self) -> None:
        """Write the embeddings of this step into the bank."""
        for rows, anchors in self._fresh:
            self.bank.write(rows, anchors)
        self._fresh.clear()
