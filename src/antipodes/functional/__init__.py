"""Pure tensor maths without state: the contrast kernel, rules, selections, soft labels and the information bound."""

from antipodes.functional.bound import Information, cnce, nce
from antipodes.functional.colour import rgb_to_lab
from antipodes.functional.contrast import contrast
from antipodes.functional.draws import drawn_sums, expected_sums
from antipodes.functional.errors import NotFinite
from antipodes.functional.refine import Refined, refine
from antipodes.functional.rule import Group, Listed, Ranks, Rule
from antipodes.functional.select import band_by_rank, draw_from_band, kth_largest, ring, top_k, top_pairs, top_share
from antipodes.functional.soft import SoftCrossEntropy, soft_cross_entropy
from antipodes.functional.sums import Sums

__all__ = [
    "Group",
    "Information",
    "Listed",
    "NotFinite",
    "Ranks",
    "Refined",
    "Rule",
    "SoftCrossEntropy",
    "Sums",
    "band_by_rank",
    "cnce",
    "contrast",
    "draw_from_band",
    "drawn_sums",
    "expected_sums",
    "kth_largest",
    "nce",
    "refine",
    "rgb_to_lab",
    "ring",
    "soft_cross_entropy",
    "top_k",
    "top_pairs",
    "top_share",
]
