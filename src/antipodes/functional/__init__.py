"""Pure tensor maths without state: the contrast kernel, rules, selections and the information bound."""

from antipodes.functional.contrast import contrast, contrast_both
from antipodes.functional.errors import NotFinite
from antipodes.functional.judge import Judged, flagged_block, judge_block
from antipodes.functional.mutual_information import Information, cnce, nce
from antipodes.functional.ranks import bounded
from antipodes.functional.refine import Refined, refine
from antipodes.functional.rule import Bounds, Group, Listed, Ranks, Rule
from antipodes.functional.same_sample import SameSample
from antipodes.functional.select import band_by_rank, top_pairs, top_share
from antipodes.functional.sigmoid import SigmoidSums, sigmoid_both, sigmoid_sums
from antipodes.functional.sums import Sums

__all__ = [
    "Bounds",
    "Group",
    "Information",
    "Judged",
    "Listed",
    "NotFinite",
    "Ranks",
    "Refined",
    "Rule",
    "SameSample",
    "SigmoidSums",
    "Sums",
    "band_by_rank",
    "bounded",
    "cnce",
    "contrast",
    "contrast_both",
    "flagged_block",
    "judge_block",
    "nce",
    "refine",
    "sigmoid_both",
    "sigmoid_sums",
    "top_pairs",
    "top_share",
]
