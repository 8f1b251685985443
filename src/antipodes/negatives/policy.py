"""`Policy`: decides which candidates of an anchor count, by answering a step's pairs with a rule."""

from __future__ import annotations

import functools
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from antipodes.arguments import checked
from antipodes.functional.sums import Sums
from antipodes.negatives.flags import Flags, find_flags
from antipodes.pairs import Pairs, Rule

Space = Literal["features", "embeddings", "seen", "guide"]
Receives = Literal["loss", "score"]
if TYPE_CHECKING:
    Alpha = float | Tensor
else:
    Alpha = float  # the command line makes options of annotations, and a tensor is none
Numbers = dict[str, float | Tensor]
"""Numbers for a log by name; a tensor is read when somebody asks for it."""


def _several(judge: Callable[..., Any], learns: bool) -> Callable[..., Sequence[Rule]]:
    """Make a list of a single rule, and accept the argument `learn` in front of a policy that has nothing to learn."""

    @functools.wraps(judge)
    def judging(self: Policy, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        rules = judge(self, pairs, progress, learn=learn) if learns else judge(self, pairs, progress)
        if isinstance(rules, Rule):
            return [rules]
        if not isinstance(rules, Sequence) or not rules or not all(isinstance(rule, Rule) for rule in rules):
            what = "nothing" if rules is None else f"a {type(rules).__name__} of something else"
            raise TypeError(f"{type(self).__name__}.judge must return a Rule or a list of rules, got {what}")
        return rules

    return judging


class Policy(nn.Module, ABC):
    """What every policy does: look at the pairs of a step, return a few vectors that say which of them count.

    A policy owns its per-sample state (in `SampleTable` buffers, hence in the checkpoint), never the loss or the base
    it serves. It is not part of the module that data-parallel training wraps.
    """

    space: Space = "features"  # what `fit` takes: the encoder's features, its embeddings, nothing, a guide's vectors
    towers: str = "anchor"  # whose features `fit` takes: of the anchors' tower, or of those named, joined by +
    supports: int = 0  # further views of every anchor's sample that it wants to see in the pairs
    ranks: bool = False  # whether it goes by the order of similarities, which means nothing in a narrow cone
    reweighs: bool = False  # whether `reweigh` changes the sums
    weighs: bool = False  # whether it says how much single pairs are pulled, which eliminating them cannot follow
    receives: Receives | None = None  # what `hear` is told: every step's loss, or the validation scores between epochs
    fits: bool = False  # whether `fit` does anything
    by_row: bool = True  # whether it looks samples up by their rows, so that a loss needs ids
    uses_guide: bool = False  # whether it looks at `Pairs.guide`
    num_samples: int | None = None  # rows of its tables

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Let `judge` leave the argument `learn` out where a policy keeps no state, and return a single rule."""
        super().__init_subclass__(**arguments)
        if "__init__" in cls.__dict__:
            cls.__init__ = checked(cls.__init__)  # type: ignore[method-assign]
        judge = cls.__dict__.get("judge")
        if judge is not None and not getattr(judge, "__isabstractmethod__", False):
            cls.judge = _several(judge, "learn" in inspect.signature(judge).parameters)  # type: ignore[method-assign]

    @abstractmethod
    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Say which candidates count for every anchor.

        Args:
            pairs: This step's anchors and candidates; a policy looks at them without gradient.
            progress: Share of training done, in [0, 1].
            learn: Whether the policy may learn from these pairs. With False, and in `eval()`, no table moves; an
                loss also asks with False under `torch.no_grad()`.

        Returns:
            One rule, or a list of several whose losses are averaged (granularities of a clustering).
        """

    def flags(self, pairs: Pairs, progress: float = 1.0) -> Flags:
        """Whom every anchor flags as a false negative, one by one, without moving any state.

        Args:
            pairs: Anchors and candidates, normalised.
            progress: Share of training done.
        """
        return find_flags(pairs, self.judge(pairs.detached(), progress, learn=False))

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

    def hear(self, value: float, progress: float) -> None:
        """Take in a number that training came to, the same on every rank; which one is said by `hears`.

        Args:
            value: The loss of the step, averaged over ranks, or the validation score, where more is better.
            progress: Share of training done.
        """

    def statistics(self) -> Numbers:
        """Numbers about the policy's state for the log."""
        return {}

    def warn_once(self, sentence: str) -> None:
        """Warn with this sentence unless it was said before."""
        told: set[str] = self.__dict__.setdefault("_told", set())
        if sentence not in told:
            told.add(sentence)
            warnings.warn(sentence, stacklevel=2)

    def __and__(self, other: Policy) -> Both:
        return Both(self, other)


class Both(Policy):
    """Two policies at once: a candidate counts when both keep it."""

    def __init__(self, first: Policy, second: Policy) -> None:
        super().__init__()
        if first.reweighs and second.reweighs:
            raise ValueError("policies that reweigh the sum of negatives, such as debiased and hcl, cannot be joined")
        if first.receives and second.receives and first.receives != second.receives:
            raise ValueError("a policy that hears losses and one that hears scores cannot be joined")
        self.first = first
        self.second = second
        self.supports = max(first.supports, second.supports)
        self.ranks = first.ranks or second.ranks
        self.reweighs = first.reweighs or second.reweighs
        self.weighs = first.weighs or second.weighs
        self.receives = first.receives or second.receives
        self.fits = first.fits or second.fits
        self.by_row = first.by_row or second.by_row
        self.uses_guide = first.uses_guide or second.uses_guide
        self.num_samples = max(first.num_samples or 0, second.num_samples or 0) or None
        self.space = first.space if first.fits or not second.fits else second.space

    @property
    def uses_progress(self) -> bool:
        """Whether the answers of one of them depend on the share of training done."""
        return self.first.uses_progress or self.second.uses_progress

    def parts(self) -> list[Policy]:
        """The parts of both, one by one."""
        return [*self.first.parts(), *self.second.parts()]

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Every rule of the first policy with every rule of the second."""
        ours, theirs = self.first.judge(pairs, progress, learn), self.second.judge(pairs, progress, learn)
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
        spaces = {part.space for part in self.parts() if part.fits}
        if len(spaces) > 1:
            raise ValueError(f"the joined policies fit {' and '.join(sorted(spaces))}: fit each of parts() by itself")
        for part in self.parts():
            if part.fits:
                part.fit(features, progress)

    def hear(self, value: float, progress: float) -> None:
        """Tell the number to the parts that listen."""
        for part in self.parts():
            if part.receives is not None:
                part.hear(value, progress)

    def statistics(self) -> Numbers:
        """The numbers of both policies."""
        return self.first.statistics() | self.second.statistics()


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
