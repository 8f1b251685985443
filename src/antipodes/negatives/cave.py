"""`Cave`: negatives from the anchor's own cluster only."""

from __future__ import annotations

from collections.abc import Sequence

from antipodes.negatives.clustered import Clustered
from antipodes.negatives.policy import Space
from antipodes.pairs import Pairs, Rule


class Cave(Clustered):
    """Cave discrimination (Wu et al. 2021, appendix F): only samples of the anchor's k-means cluster are negatives.

    The clusters take the place of Ring's ball: hard, because they are the anchor's neighbourhood, and cheap, because
    nothing is ranked. Before the first `fit`, which comes after the first `every` epochs, all candidates count.

    Args:
        num_samples: Size of the dataset.
        clusters: Number of clusters; several take the mean of their losses. The paper gives none: 10 leave about the
            tenth of the candidates that Ring ends with.
        every: Epochs between two fits.
        space: What is clustered. `seen`, the embeddings that came by since the last time, is the bank of the paper on
            every base and costs nothing; `features` of the encoder and `embeddings` of its head take a pass over the
            training images.
        seed: Of the first clustering; later ones start from the labels of the last.

    Raises:
        ValueError: for more clusters than samples, and for numbers out of their range.

    Example:
        >>> import torch
        >>> policy = Cave(num_samples=4, clusters=(2,))
        >>> policy.fit(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), progress=0.5)
        >>> sorted(policy.labels[0].tolist())
        [0, 0, 1, 1]
    """

    def __init__(
        self,
        num_samples: int,
        clusters: Sequence[int] = (10,),
        every: int = 1,
        space: Space = "seen",
        seed: int = 0,
    ) -> None:
        super().__init__(num_samples, clusters, every, space, seed)

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Ignore what is in another cluster, one rule per number of clusters."""
        self.observe(pairs, learn)
        if not self.fitted():
            return [Rule()]
        return self.same_cluster(pairs)
