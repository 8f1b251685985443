"""The registry of evaluation protocols, apart from their code so that listing them does not import torch.

A new protocol is a file in `protocols/` and a line here.
"""

from __future__ import annotations

_HOME = "antipodes.evaluation.protocols"

PROTOCOLS: dict[str, str] = {
    "linear": f"{_HOME}.linear.Linear",
    "semi": f"{_HOME}.semi.Semi",
    "knn": f"{_HOME}.knn.KNN",
    "false-negatives": f"{_HOME}.false_negatives.FalseNegatives",
    "transfer": f"{_HOME}.transfer.Transfer",
    "fine-tune": f"{_HOME}.fine_tune.FineTune",
    "transfer-fine-tune": f"{_HOME}.transfer_fine_tune.TransferFineTune",
    "linear-sgd": f"{_HOME}.linear_sgd.LinearSGD",
    "transfer-linear-sgd": f"{_HOME}.transfer_linear_sgd.TransferLinearSGD",
    "label-free": f"{_HOME}.label_free.LabelFree",
    "retrieval": f"{_HOME}.retrieval.Retrieval",
    "zero-shot": f"{_HOME}.zero_shot.ZeroShot",
}

DEFAULT = ("linear", "knn")
"""The default protocols, and those for data without labels:"""
DEFAULT_WITHOUT_LABELS = ("label-free",)

LABELS_ARE_NEEDED = (
    "the {protocol} protocol needs labels and the {part} data has none: "
    "put the images of each class into a folder of its own, the folder names become the labels"
)

SETTINGS = ("linear strength", "linear-sgd rate", "fine-tune rate")
"""Prefixes of settings that a protocol reports besides scores: they are in the JSON, not in the table."""


def is_setting(score: str) -> bool:
    """Return True if a reported number is a setting that a protocol chose, not a score.

    Example:
        >>> is_setting("linear strength"), is_setting("linear top-1")
        (True, False)
    """
    return score.startswith(SETTINGS)
