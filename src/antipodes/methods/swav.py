"""SwAV: each view predicts to which prototypes the other view of the sample is assigned."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from antipodes.candidates.queue import Queue
from antipodes.distributed import gather, rank
from antipodes.functional.tensors import NotFinite, eager_full_precision
from antipodes.losses import LossModule
from antipodes.methods.batch import Batch
from antipodes.methods.method import Method
from antipodes.methods.towers import PREDICTION, Network, PredictingTowers, Towers
from antipodes.pairs import normalise
from antipodes.seeding import generator


class Codebook(nn.Module):
    """Learned prototypes of length 1: embeddings (B, D) of any length to cosines (B, K)."""

    def __init__(self, count: int, dim: int, seed: int = 0) -> None:
        super().__init__()
        drawn = torch.randn(count, dim, generator=generator("codebook", seed))
        self.weight = nn.Parameter(normalise(drawn))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the cosine of every embedding and prototype; prototypes have length 1 after `shorten`."""
        return normalise(embeddings) @ self.weight.T

    @torch.no_grad()
    def shorten(self) -> None:
        """Set the length of every prototype back to 1, after the optimiser has moved them."""
        self.weight.copy_(normalise(self.weight))


class SwappedCodes(LossModule):
    """The cross entropy of a view's softmax over prototypes with the code of another view (SwAV, Eqs. 2 to 5).

    A code is the assignment of a sample to the prototypes that Sinkhorn's algorithm finds for the whole batch, so that
    all prototypes have the same share of it.

    Args:
        temperature: Divides the scores in the softmax.
        epsilon: Divides the scores in the codes; a small one makes them nearly one-hot.
        iterations: Of Sinkhorn's algorithm.
    """

    def __init__(self, temperature: float = 0.1, epsilon: float = 0.05, iterations: int = 3) -> None:
        super().__init__()
        for name, value in (("temperature", temperature), ("epsilon", epsilon)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be above 0 and finite, got {value}: it divides the scores")
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}: one makes the first code")
        self.temperature, self.epsilon, self.iterations = temperature, epsilon, iterations

    @torch.no_grad()
    def codes(self, scores: Tensor) -> Tensor:
        """Return the codes (C, K) of scores (C, K): rows sum to 1, columns to about C / K.

        1. Q = e^(scores / epsilon), scaled to a sum of 1
        2. per iteration: columns are divided by K times their sums, then rows by C times theirs
        3. times C

        Example:
            >>> SwappedCodes(iterations=50).codes(torch.tensor([[1.0, 0.0], [0.9, 0.0]])).sum(0)
            tensor([1., 1.])
        """
        assigned = ((scores - scores.max()) / self.epsilon).exp()
        count, prototypes = assigned.shape
        tiny = torch.finfo(assigned.dtype).tiny
        for _ in range(self.iterations):
            assigned = assigned / (prototypes * assigned.sum(0, keepdim=True).clamp(min=tiny))
            assigned = assigned / (count * assigned.sum(1, keepdim=True).clamp(min=tiny))
        return assigned * count

    @eager_full_precision
    def forward(self, scores: Sequence[Tensor], codes: Sequence[Tensor]) -> Tensor:
        """Return the mean loss over codes, the other views, and samples.

        1. Code v belongs to view v. Every other view u has the loss - sum_k code_v[k] log softmax(scores_u / tau)[k].
        2. The mean over the other views, then over codes, then over samples.

        Args:
            scores: The scores (b, K) of each view, with gradient; the views with codes come first.
            codes: The codes (b, K) of the first views.
        """
        logs = [log_softmax(each / self.temperature, dim=1) for each in scores]
        loss = scores[0].new_zeros(())
        for view, code in enumerate(codes):
            others = [-(code * log).sum(1).mean() for other, log in enumerate(logs) if other != view]
            loss = loss + torch.stack(others).mean() / len(codes)
        if not bool(loss.detach().isfinite()):
            raise NotFinite("the scores hold NaN or infinite numbers: check the encoder's output before the loss")
        every = torch.cat(tuple(codes))
        share = torch.cat([log.detach() for log in logs]).exp().mean(0)
        entropy = -(share * share.clamp(min=torch.finfo(share.dtype).tiny).log()).sum()
        self._report({"code_confidence": every.max(1).values.mean(), "prototypes_used": entropy.exp()})
        return loss


class SwAV(Method):
    """Swapping assignments between views (Caron et al. 2020).

    1. z = network(view), scores = cosines of z and K learned prototypes, for two views and further smaller ones
    2. codes of both views: Sinkhorn's assignment over the batch of all ranks, and the queue if there is one
    3. `SwappedCodes`: every other view predicts the code; codes have no gradient

    No other sample is pushed away, so it takes no policy.

    Args:
        network: One tower.
        loss_fn: The loss.
        dim: Dimension of the embeddings.
        prototypes: Number of prototypes; the paper takes 3000 for 1000 classes.
        crops: Sizes in pixels of smaller views; the paper has six of 96.
        crop_recipe: Augmentation of the smaller views.
        queue_size: Earlier embeddings of each view that codes are computed with; for batches that are small compared
            with `prototypes`. 0 for none.
        queue_start: Share of training before the queue is used.
        seed: Determines the initial prototypes.
    """

    run = {
        "augmentation": "simclr",
        "head": {"kind": "mlp2", "batch_norm": True},
        "loss": {"name": "swapped-codes"},
    }
    trains = ("swapped-codes",)

    def __init__(
        self,
        network: Towers,
        loss_fn: SwappedCodes,
        dim: int = 128,
        prototypes: int = 100,
        crops: tuple[int, ...] = (),
        crop_recipe: str = "simclr",
        queue_size: int = 0,
        queue_start: float = 0.1,
        seed: int = 0,
    ) -> None:
        if prototypes < 2:
            raise ValueError(f"prototypes must be at least 2, got {prototypes}")
        if queue_size < 0:
            raise ValueError(f"queue_size must be at least 0, got {queue_size}: it is a number of embeddings")
        if not 0 <= queue_start <= 1:
            raise ValueError(f"queue_start must be in [0, 1], got {queue_start}: it is a share of training")
        (name,) = network.names()
        super().__init__(PredictingTowers(network, Codebook(prototypes, dim, seed)), {name: loss_fn})
        self.crops, self.crop_recipe = tuple(crops), crop_recipe
        self.queue_start = queue_start
        self.queues = nn.ModuleList([Queue(queue_size, dim) for _ in range(2 if queue_size else 0)])
        self._fresh: tuple[Tensor, Sequence[Tensor]] | None = None

    @property
    def codebook(self) -> Codebook:
        """Return the prototypes."""
        assert isinstance(self.network, PredictingTowers)
        assert isinstance(self.network.predictor, Codebook)
        return self.network.predictor

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the loss of every view's scores (b, K) with the codes (b, K) of the two full views."""
        (tower,) = self.network.names()
        inputs, count = batch[self.network.plans[tower].input], len(batch.ids)
        out = network({tower: [*inputs.views, *inputs.crops]})
        scores = out[PREDICTION].split(count)
        embeddings = normalise(out[tower].detach()).split(count)[: len(inputs.views)]
        self._fresh = (batch.ids, embeddings)
        here = slice(rank() * count, (rank() + 1) * count)
        loss_fn = self.directions[tower]
        assert isinstance(loss_fn, SwappedCodes)
        codes = []
        for view in range(len(inputs.views)):
            every = gather(scores[view].detach())
            earlier = self._earlier_scores(view, progress)
            codes.append(loss_fn.codes(torch.cat((every, earlier)))[here])
        loss: Tensor = loss_fn(scores, codes)
        return loss

    def _earlier_scores(self, view: int, progress: float) -> Tensor:
        """Return the scores (q, K) of a view's earlier embeddings; none before the queue is full and has started."""
        weight = self.codebook.weight.detach()
        if not self.queues or progress < self.queue_start:
            return weight.new_zeros(0, len(weight))
        queue = self.queues[view]
        assert isinstance(queue, Queue)
        full = bool((queue.ids >= 0).all())
        return queue.keys.to(weight) @ weight.T if full else weight.new_zeros(0, len(weight))

    def after_step(self) -> None:
        """Set the prototypes' length back to 1, and push this step's embeddings into the queues."""
        self.codebook.shorten()
        if self._fresh is not None:
            ids, embeddings = self._fresh
            for queue, each in zip(self.queues, embeddings, strict=False):
                assert isinstance(queue, Queue)
                queue.push(each, ids)
        self._fresh = None
