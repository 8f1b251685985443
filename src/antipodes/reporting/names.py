"""The titles of a report's drawings: what to call the numbers that training records."""

from __future__ import annotations

TITLES = {
    "loss": "loss",
    "knn": "kNN accuracy while training, %",
    "flagged_share": "share of candidates flagged",
    "precision": "precision of the flags",
    "recall": "recall of the flags",
    "f1": "F1 of the flags",
    "threshold": "mean threshold",
    "loss_above_chance": "loss above that of chance",
    "positive_similarity": "similarity of positives",
    "negative_similarity": "mean similarity of candidates",
    "kept_per_anchor": "negatives kept per anchor",
    "pulled_per_anchor": "candidates pulled per anchor",
    "without_negatives": "share of anchors without negatives",
    "mtpr": "mean true positive rate of the flags",
    "mtnr": "mean true negative rate of the flags",
    "anchor_precision": "precision of the flags, mean over anchors",
    "anchor_recall": "recall of the flags, mean over anchors",
    "anchor_f1": "F1 of the flags, mean over anchors",
    "hard_same_label": "share of hard negatives with the anchor's label",
    "refined_mass": "label mass off the positive",
    "refined_mass_same_class": "share of that mass on the anchor's class",
    "refined_p": "weight of the soft labels p",
    "refined_q": "weight of the soft labels q",
    "temperature": "temperature",
    "at_floor": "share of anchors at the floor of the corrected sum",
    "ring_outer": "share of candidates in the outer ball",
    "positive_term": "loss of positives",
    "negative_term": "loss of negatives",
    "negative_distance": "mean distance of negatives",
    "lr": "learning rate",
    "learning_rate": "learning rate",
    "images_per_second": "images per second",
}
"""The numbers that training records, in the order of the page's drawings, with their titles."""


def title_of(number: str) -> str:
    """What to call a number of training; a number without a title is called by its own name.

    Example:
        >>> title_of("image_to_text/coarse_f1"), title_of("my_score")
        ('F1 of the flags, by coarse labels, image to text', 'my score')
    """
    direction, _, name = number.rpartition("/")
    plain = name.removeprefix("coarse_")
    title = TITLES.get(plain, plain.replace("_", " "))
    title += ", by coarse labels" if plain != name else ""
    return title + (f", {direction.replace('_', ' ')}" if direction else "")
