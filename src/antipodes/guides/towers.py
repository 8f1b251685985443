"""What a training run looks through: sources of guide vectors by tower and row, and the momentum network's keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from antipodes.guides.guide import GuideSource
from antipodes.guides.history import HistoryGuide
from antipodes.pairs import Guide, Pairs


class RunGuide(nn.Module):
    """What every guide of a run does: it sees the pairs of a direction, whatever method they come from.

    Attributes:
        moves: Whether the same pairs look different later in training.
        has_table: Whether it has vectors of the whole dataset, for policies that are fitted in its space.
        tells_views_apart: Whether a sample's positive is another vector than the sample itself; otherwise the guide's
            similarity of every anchor to its positive is 1.
    """

    moves: ClassVar[bool] = False
    has_table: bool = False
    tells_views_apart: bool = False

    def see(self, pairs: Pairs, towers: tuple[str, str], learn: bool = False) -> Guide:
        """The pairs in the guide's space.

        Args:
            pairs: Of one direction.
            towers: The names of the towers that make its anchors and its candidates.
            learn: Whether the guide may learn from these anchors; it does so after the step (`RunGuide.after_step`).
        """
        raise NotImplementedError

    def open(self, say: Callable[[str], None] | None = None) -> None:
        """Find and check what the guide needs, so that a run is refused before anything is written.

        Args:
            say: Told what takes a while.
        """

    def vectors(self, tower: str) -> Tensor:
        """The vectors (n, G) of the whole dataset, for policies that are fitted in the guide's space.

        Raises:
            ValueError: if the guide does not know samples by their row.
        """
        raise ValueError(f"{type(self).__name__} sees pairs alone and has no vectors of the whole dataset")

    def after_step(self) -> None:
        """Take in what was seen with `learn` since the last call, once the optimiser has stepped."""


class RowGuides(RunGuide):
    """A source of vectors by row for every tower; towers may share one, and all are in one space.

    By row a sample has one vector, whichever view is an anchor: with a source that the towers share, the similarity to
    the positive is 1, and a margin below it is all that a policy needs to say. Candidates are known by their rows, so
    those of a queue or bank are looked up like those of the batch. What has no row, and a sample without a history, is
    the zero vector, similar to nothing; the positive of such an anchor has similarity 1, so that nothing is as close.

    Args:
        sources: Name of a tower -> its source.
    """

    def __init__(self, sources: Mapping[str, GuideSource]) -> None:
        super().__init__()
        self.sources = nn.ModuleDict(dict(sources))
        self.has_table = all(source.has_table for source in sources.values())
        self.tells_views_apart = len({id(source) for source in sources.values()}) > 1
        self._seen: list[tuple[str, Tensor, Tensor]] = []

    @property
    def moves(self) -> bool:  # type: ignore[override]
        """Whether one of the sources learns."""
        return any(isinstance(source, HistoryGuide) for source in self.sources.values())

    @torch.no_grad()
    def see(self, pairs: Pairs, towers: tuple[str, str], learn: bool = False) -> Guide:
        """Look the rows of anchors and candidates up, and remember the anchors for sources that learn."""
        anchors, candidates = (self.sources[tower] for tower in towers)
        anchor_rows, candidate_rows = pairs.rows()
        if learn and isinstance(anchors, HistoryGuide):
            self._seen.append((towers[0], anchor_rows, pairs.anchors.detach()))
        of_anchors: Tensor = anchors(anchor_rows)
        of_positives: Tensor = of_anchors if candidates is anchors else candidates(anchor_rows)
        known = of_anchors.any(1) & of_positives.any(1)
        positives = torch.where(known, (of_anchors * of_positives).sum(1), 1.0)
        keys = None if pairs.candidates is None else _known(candidates, candidate_rows)
        return Guide(of_anchors, positives, keys, of_positives)

    def open(self, say: Callable[[str], None] | None = None) -> None:
        """Open the sources that come from files or networks."""
        for source in self.sources.values():
            if isinstance(source, LaterGuide):
                source.open(say)

    def vectors(self, tower: str) -> Tensor:
        """The table of a tower's source.

        Raises:
            ValueError: if that source has none.
        """
        source = self.sources[tower]
        assert isinstance(source, GuideSource)
        return source.vectors()

    def after_step(self) -> None:
        """Mix the anchors that were seen into their samples' histories; both views of a sample are one visit."""
        for tower, rows, embeddings in self._seen:
            source = self.sources[tower]
            assert isinstance(source, HistoryGuide)
            source.update(rows, embeddings)
        self._seen.clear()


class MomentumKeys(RunGuide):
    """The momentum network of a method with a queue, which has embedded everything already: no pass more.

    The guide's vector of an anchor is its key, the momentum network's embedding of the other view, and those of the
    candidates are the queue's keys. The positive's similarity is that of query and key, so a candidate is as close as
    the positive if the momentum network finds it as close to the key as the query is.
    """

    moves: ClassVar[bool] = True
    tells_views_apart = True

    def see(self, pairs: Pairs, towers: tuple[str, str], learn: bool = False) -> Guide:
        """Keys in the place of anchors.

        Raises:
            ValueError: if the pairs do not know their keys.
        """
        if pairs.teachers is None or pairs.candidates is None:
            raise ValueError("the momentum network guides pairs with keys and a queue: these have none")
        return Guide(pairs.teachers.detach(), pairs.positives.detach(), pairs.candidates.detach())


class LaterGuide(GuideSource):
    """A source that is found when it is first needed: a run that is only evaluated may never ask for it.

    Args:
        find: Finds it; it is given what to tell people with, or None.
    """

    def __init__(self, find: Callable[[Callable[[str], None] | None], GuideSource]) -> None:
        super().__init__()
        self._find = find
        self._found: tuple[GuideSource, ...] = ()  # in a tuple: what is on disk is no part of a checkpoint

    def open(self, say: Callable[[str], None] | None = None) -> GuideSource:
        """The source itself."""
        if not self._found:
            self._found = (self._find(say),)
        return self._found[0]

    def forward(self, rows: Tensor, inputs: object = None) -> Tensor:
        """The vectors (B, G) of these rows."""
        vectors: Tensor = self.open()(rows, inputs)
        return vectors

    def vectors(self) -> Tensor:
        """The whole table (n, G)."""
        return self.open().vectors()


def _known(source: nn.Module, rows: Tensor) -> Tensor:
    """Vectors of rows, the zero vector where a row is negative."""
    vectors: Tensor = source(rows.clamp(min=0))
    return vectors.masked_fill((rows < 0)[:, None], 0.0)
