"""`Policy`: decides which candidates of an anchor count, by answering a step's pairs with a rule."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import Tensor, nn

from antipodes.arguments import checked
from antipodes.functional.contrast import Sums
from antipodes.negatives.flags import Flags, find_flags
from antipodes.pairs import Block, Pairs, Rule
from antipodes.state import check_ids, check_span

Space = Literal["features", "embeddings", "seen", "guide"]
Receives = Literal["loss", "score"]
if TYPE_CHECKING:
    Alpha = float | Tensor
else:
    Alpha = float  # the command line makes options of annotations, and a tensor is none
Numbers = dict[str, float | Tensor]
"""Numbers for a log by name; of a tensor the mean is read when the number is asked for."""


@dataclass(frozen=True)
class Needs:
    """What a policy needs from the loss and the training loop, and what it does beyond judging pairs.

    Attributes:
        rows: It looks samples up by their table row, so that a loss needs ids.
        identities: It looks queries and documents up by their identities, `Pairs.identities`.
        guide: It compares in the space of a guide, `Pairs.guide`.
        positive: It compares with the anchor's own positive, which pairs of one view do not have.
        cosine: Its thresholds lie in [-1, 1], so that it cannot judge dot products.
        order: It goes by the order of similarities, which means nothing while all embeddings point one way.
        learn: `judge` takes the argument `learn`, because judging moves tables.
        reweighs: `reweigh` changes the sums.
        weighs: It says how much single pairs are pulled, which eliminating them cannot follow.
        supports: How many further views of every anchor's sample it compares with, `Pairs.supports`.
        fits: `fit` does something.
        space: What `fit` takes: the encoder's features, its embeddings, nothing, or a guide's vectors.
        towers: Whose features `fit` takes: of the anchors' tower, or of the towers named, joined by +.
        receives: What training passes to it: every step's loss (`on_loss`) or the validation scores (`on_score`).
    """

    rows: bool = True
    identities: bool = False
    guide: bool = False
    positive: bool = False
    cosine: bool = False
    order: bool = False
    learn: bool = False
    reweighs: bool = False
    weighs: bool = False
    supports: int = 0
    fits: bool = False
    space: Space = "features"
    towers: str = "anchor"
    receives: Receives | None = None

    def __or__(self, other: Needs) -> Needs:
        """What two policies need at once; the one place where needs are joined.

        Raises:
            ValueError: if one loss cannot serve both.
        """
        if self.reweighs and other.reweighs:
            raise ValueError("policies that reweigh the sum of negatives, such as debiased and hcl, cannot be joined")
        if self.receives and other.receives and self.receives != other.receives:
            raise ValueError("a policy that receives losses and one that receives scores cannot be joined")
        fitted = self if self.fits or not other.fits else other
        flags = (each.name for each in fields(self) if each.type == "bool")
        return Needs(
            **{name: getattr(self, name) or getattr(other, name) for name in flags},
            supports=max(self.supports, other.supports),
            space=fitted.space,
            towers=fitted.towers,
            receives=self.receives or other.receives,
        )


_NOW_IN_NEEDS = {
    "by_row": "rows", "uses_guide": "guide", "ranks": "order", "reweighs": "reweighs", "weighs": "weighs",
    "supports": "supports", "fits": "fits", "space": "space", "towers": "towers", "receives": "receives",
}  # fmt: skip


class Policy(nn.Module, ABC):
    """What every policy does: look at the pairs of a step, return a few vectors that say which of them count.

    A policy owns its per-sample state (in `SampleTable` buffers, hence in the checkpoint), never the loss or the base
    it serves. It is not part of the module that data-parallel training wraps.
    """

    needs: Needs = Needs()
    num_samples: int | None = None  # rows of its tables

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Check the arguments of every constructor, and refuse flags that `Needs` holds now."""
        super().__init_subclass__(**arguments)
        for old, new in _NOW_IN_NEEDS.items():
            if old in cls.__dict__:
                raise TypeError(f"{cls.__name__}.{old} is now a field of its needs: write needs = Needs({new}=...)")
        if "hear" in cls.__dict__:
            raise TypeError(f"{cls.__name__}.hear is now called on_loss, or on_score for validation scores")
        if "__init__" in cls.__dict__:
            cls.__init__ = checked(cls.__init__)  # type: ignore[method-assign]

    @abstractmethod
    def judge(self, pairs: Pairs, progress: float) -> Rule | Sequence[Rule]:
        """Say which candidates count for every anchor.

        A policy whose tables move here takes a third argument, `learn: bool = True`, and says so in its needs.

        Args:
            pairs: This step's anchors and candidates; a policy looks at them without gradient.
            progress: Share of training done, in [0, 1].
            learn: Whether the policy may learn from these pairs. With False, and in `eval()`, no table moves; a loss
                also asks with False under `torch.no_grad()`.

        Returns:
            One rule, or a list of several whose losses are averaged (granularities of a clustering).
        """

    def rules(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """What `judge` answers, as a list; `learn` is passed on to policies that need it."""
        rules = self.judge(pairs, progress, **({"learn": learn} if self.needs.learn else {}))
        if isinstance(rules, Rule):
            return [rules]
        if not isinstance(rules, Sequence) or not rules or not all(isinstance(rule, Rule) for rule in rules):
            what = "nothing" if rules is None else f"a {type(rules).__name__} of something else"
            raise TypeError(f"{type(self).__name__}.judge must return a Rule or a list of rules, got {what}")
        return rules

    def flags(self, pairs: Pairs, progress: float = 1.0) -> Flags:
        """Which candidates every anchor flags as false negatives, one by one, without moving any state.

        Args:
            pairs: Anchors and candidates, normalised.
            progress: Share of training done.
        """
        return find_flags(pairs, self.rules(pairs.detached(), progress, learn=False))

    @property
    def uses_progress(self) -> bool:
        """Whether its answers depend on the share of training done."""
        return False

    def parts(self) -> list[Policy]:
        """The policies of which this one is joined; itself, if it is not."""
        return [self]

    def reweigh(self, pairs: Pairs, rules: Sequence[Rule], sums: Sums, temperature: float | Tensor) -> Sums:
        """Correct what the kernel summed, for policies that answer with weights instead of a rule.

        Args:
            pairs: As in `judge`, with gradient.
            rules: What was applied to them.
            sums: The kernel's, one row per rule.
            temperature: By which similarities were divided.
        """
        return sums

    def check_visits(self, epochs: int) -> None:
        """Warn where a run of so many epochs shows every sample too few times for this policy."""

    def due(self, epoch: int) -> bool:
        """Whether it wants `fit` before this epoch, counted from 0."""
        return False

    def fit(self, features: Tensor | None, progress: float) -> None:
        """Take in features of the whole training set, (n, F) in the order of rows, or of this rank's share of it.

        With `space` "seen" there are none to take in: the policy goes by what it has seen in `judge`.
        """

    def on_loss(self, loss: float, progress: float) -> None:
        """Receive the loss of a step, averaged over ranks, if the policy needs it (`Needs.receives`)."""

    def on_score(self, score: float, progress: float) -> None:
        """Receive a validation score, the same on every rank, where more is better, if the policy needs it."""

    def statistics(self) -> Numbers:
        """Numbers about the policy's state for the log; of a tensor its mean is logged."""
        return {}

    def warn_once(self, sentence: str) -> None:
        """Warn with this sentence unless it was said before."""
        told: set[str] = self.__dict__.setdefault("_told", set())
        if sentence not in told:
            told.add(sentence)
            warnings.warn(sentence, stacklevel=2)

    def on(self, *blocks: Block) -> OnBlocks:
        """Limit the policy to some blocks of `OneWay`: in the others every candidate counts.

        Args:
            blocks: `query_to_document`, or one of those that `OneWay(also=...)` adds.

        Example:
            >>> from antipodes import PositiveAware
            >>> PositiveAware(-0.1, relative=False).on("query_to_document", "query_to_query").blocks
            ('query_to_document', 'query_to_query')
        """
        return OnBlocks(self, blocks)

    def __and__(self, other: Policy) -> Both:
        return Both(self, other)


class Both(Policy):
    """Two policies at once: a candidate counts when both keep it."""

    def __init__(self, first: Policy, second: Policy) -> None:
        super().__init__()
        self.first = first
        self.second = second
        self.needs = first.needs | second.needs
        self.num_samples = max(first.num_samples or 0, second.num_samples or 0) or None

    @property
    def uses_progress(self) -> bool:
        """Whether the answers of one of them depend on the share of training done."""
        return self.first.uses_progress or self.second.uses_progress

    def parts(self) -> list[Policy]:
        """The parts of both, one by one."""
        return [*self.first.parts(), *self.second.parts()]

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Every rule of the first policy with every rule of the second."""
        ours, theirs = self.first.rules(pairs, progress, learn), self.second.rules(pairs, progress, learn)
        return [a & b for a in ours for b in theirs]

    def reweigh(self, pairs: Pairs, rules: Sequence[Rule], sums: Sums, temperature: float | Tensor) -> Sums:
        """Correct the sums by the policy of the two that reweighs."""
        return self.second.reweigh(pairs, rules, self.first.reweigh(pairs, rules, sums, temperature), temperature)

    def due(self, epoch: int) -> bool:
        """Whether one of them wants `fit`."""
        return any([self.first.due(epoch), self.second.due(epoch)])

    def fit(self, features: Tensor | None, progress: float) -> None:
        """Hand the features to both.

        Raises:
            ValueError: if they take features of different spaces; fit their `parts` one by one then.
        """
        spaces = {part.needs.space for part in self.parts() if part.needs.fits}
        if len(spaces) > 1:
            raise ValueError(f"the joined policies fit {' and '.join(sorted(spaces))}: fit each of parts() by itself")
        for part in self.parts():
            if part.needs.fits:
                part.fit(features, progress)

    def on_loss(self, loss: float, progress: float) -> None:
        """Pass the loss on to the parts that receive it."""
        for part in self.parts():
            if part.needs.receives == "loss":
                part.on_loss(loss, progress)

    def on_score(self, score: float, progress: float) -> None:
        """Pass the score on to the parts that receive it."""
        for part in self.parts():
            if part.needs.receives == "score":
                part.on_score(score, progress)

    def statistics(self) -> Numbers:
        """The numbers of both policies."""
        return self.first.statistics() | self.second.statistics()


class OnBlocks(Policy):
    """A policy that judges some blocks of pairs of a query and a document, and keeps every candidate of the others.

    Args:
        policy: The policy.
        blocks: The blocks that it judges.
    """

    def __init__(self, policy: Policy, blocks: Sequence[Block]) -> None:
        super().__init__()
        if not blocks or not set(blocks) <= set(get_args(Block)):
            raise ValueError(f"blocks must be some of {', '.join(get_args(Block))}, got {tuple(blocks)}")
        if policy.needs.reweighs:
            raise ValueError(f"{type(policy).__name__} reweighs the sum over all blocks: it cannot be limited to some")
        self.policy, self.blocks = policy, tuple(blocks)
        self.needs, self.num_samples = policy.needs, policy.num_samples

    @property
    def uses_progress(self) -> bool:
        """Whether the policy's answers depend on the share of training done."""
        return self.policy.uses_progress

    def parts(self) -> list[Policy]:
        """The parts of the policy, one by one."""
        return self.policy.parts()

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """What the policy answers, in its blocks.

        Raises:
            ValueError: for pairs that are no block of `OneWay` or `TwoWay`.
        """
        if pairs.block is None:
            raise ValueError("a policy limited by on() needs the blocks of OneWay or TwoWay: these pairs are two views")
        return self.policy.rules(pairs, progress, learn) if pairs.block in self.blocks else [Rule()]

    def due(self, epoch: int) -> bool:
        """Whether the policy wants `fit` before this epoch."""
        return self.policy.due(epoch)

    def fit(self, features: Tensor | None, progress: float) -> None:
        """Hand the features to the policy."""
        self.policy.fit(features, progress)

    def on_loss(self, loss: float, progress: float) -> None:
        """Hand the loss to the policy."""
        self.policy.on_loss(loss, progress)

    def on_score(self, score: float, progress: float) -> None:
        """Hand the score to the policy."""
        self.policy.on_score(score, progress)

    def statistics(self) -> Numbers:
        """The numbers of the policy."""
        return self.policy.statistics()


def check_rows(pairs: Pairs, num_samples: int) -> None:
    """Refuse anchor rows outside of a table, and candidate rows beyond it; a negative candidate row is an empty slot.

    The loss has read the span of its batch's rows, so that a device is waited for only where candidates have others.
    """
    check_span(*pairs.row_span, num_samples)
    anchor_rows, candidate_rows = pairs.rows()
    if candidate_rows is not anchor_rows:
        check_ids(candidate_rows.clamp(min=0), num_samples)


def check_shares(alpha: Alpha, start: float) -> None:
    """Refuse a share of false negatives, of all samples or of each, or of training before the first flag."""
    if isinstance(alpha, Tensor):
        if alpha.dim() != 1 or not alpha.is_floating_point() or not bool(((alpha >= 0) & (alpha <= 1)).all()):
            what = f"{alpha.dtype} {tuple(alpha.shape)}"
            raise ValueError(f"alpha by sample must be (n,) floats in [0, 1], a share for every row, got {what}")
    elif not 0 < alpha < 1:
        raise ValueError(f"alpha must be in (0, 1), got {alpha}: it is the share of negatives treated as false")
    if not 0 <= start <= 1:
        raise ValueError(f"start must be in [0, 1], got {start}: it is the share of training before the first flag")
