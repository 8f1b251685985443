"""`RunGuide`: the guide of a training run, which gives the pairs of every direction in the guide's space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from antipodes.guides.guide import GuideSource, Notify
from antipodes.guides.history import HistoryGuide
from antipodes.pairs import Guide, Pairs


class RunGuide(nn.Module):
    """A source of guide vectors for every tower of a method; towers may share one, and all vectors are in one space.

    `for_pairs` turns the pairs of a direction into guide vectors:

    1. Anchors, positives and candidates are looked up by their rows, so candidates of a queue or bank work as well.
    2. A candidate without a row (-1), or a sample without a history yet, gets the zero vector: similarity 0.
    3. The positive of an anchor without a vector gets similarity 1, so that no candidate is as similar as it.

    A row has one vector, whichever view is the anchor. Where both towers share a source, the positive's similarity is
    therefore 1, and a policy needs a margin below 1.

    Args:
        sources: The source of each tower, by the tower's name.

    Attributes:
        has_table: True if the guide has vectors of the whole dataset, for policies that are fitted in its space.
        distinguishes_views: True if a sample and its positive have different vectors; otherwise their similarity is 1.
    """

    def __init__(self, sources: Mapping[str, GuideSource]) -> None:
        super().__init__()
        self.sources = nn.ModuleDict(dict(sources))
        self.has_table = bool(sources) and all(source.has_table for source in sources.values())
        self.distinguishes_views = len({id(source) for source in sources.values()}) > 1
        self._anchors: list[tuple[str, Tensor, Tensor]] = []  # what sources learn from after the step

    @property
    def changes(self) -> bool:
        """Return True if the same pairs may get other vectors later in training."""
        return any(self._source(tower).changes for tower in self.sources)

    @torch.no_grad()
    def for_pairs(self, pairs: Pairs, towers: tuple[str, str], learn: bool = False) -> Guide:
        """Return the guide vectors of the pairs of one direction.

        Args:
            pairs: The anchors (B, D), their positives and candidates (C, D).
            towers: The names of the towers that make the anchors and the candidates.
            learn: True if sources may learn from these anchors; they do so in `after_step`.
        """
        anchors, candidates = (self._source(tower) for tower in towers)
        anchor_rows, candidate_rows = pairs.rows()
        if learn and isinstance(anchors, HistoryGuide):
            self._anchors.append((towers[0], anchor_rows, pairs.anchors.detach()))
        of_anchors: Tensor = anchors(anchor_rows)
        of_positives: Tensor = of_anchors if candidates is anchors else candidates(anchor_rows)
        known = of_anchors.any(1) & of_positives.any(1)
        positives = torch.where(known, (of_anchors * of_positives).sum(1), 1.0)
        keys = None
        if pairs.candidates is not None:
            keys = candidates(candidate_rows.clamp(min=0)).masked_fill((candidate_rows < 0)[:, None], 0.0)
        return Guide(of_anchors, positives, keys, of_positives)

    def open(self, notify: Notify | None = None) -> None:
        """Read or compute the tables of all sources, so that a mistake is found before anything is written.

        Args:
            notify: Shows the user what takes a while.
        """
        for tower in self.sources:
            self._source(tower).open(notify)

    def vectors(self, tower: str) -> Tensor:
        """Return the vectors (n, G) of the whole dataset for a tower.

        Raises:
            ValueError: if the tower's source has none.
        """
        return self._source(tower).vectors()

    def after_step(self) -> None:
        """Mix the anchors of the last step into their samples' histories, after the optimiser's step."""
        for tower, rows, embeddings in self._anchors:
            source = self._source(tower)
            assert isinstance(source, HistoryGuide)
            source.update(rows, embeddings)
        self._anchors.clear()

    def _source(self, tower: str) -> GuideSource:
        return cast(GuideSource, self.sources[tower])


class MomentumKeyGuide(RunGuide):
    """The momentum network of a method with a queue, such as MoCo: its embeddings exist already, at no further cost.

    The guide vector of an anchor is its key, which is the momentum network's embedding of the other view. The guide
    vectors of the candidates are the keys in the queue. The positive's similarity is that of query and key. So a
    candidate counts as close if it is as similar to the key as the query is.
    """

    def __init__(self) -> None:
        super().__init__({})
        self.distinguishes_views = True

    @property
    def changes(self) -> bool:
        """Return True: the momentum network follows the trained one."""
        return True

    def for_pairs(self, pairs: Pairs, towers: tuple[str, str], learn: bool = False) -> Guide:
        """Return the keys as guide vectors.

        Raises:
            ValueError: if the pairs have no keys or no queue.
        """
        if pairs.teachers is None or pairs.candidates is None:
            raise ValueError("the momentum network guides pairs with keys and a queue: these have none")
        return Guide(pairs.teachers.detach(), pairs.positives.detach(), pairs.candidates.detach())

    def vectors(self, tower: str) -> Tensor:
        """Refuse: the momentum network has no vectors of the whole dataset."""
        raise ValueError("the momentum network guides pairs only and has no vectors of the whole dataset")
