"""Names and options of the protocols, apart from their code so that listing them does not import torch."""

from dataclasses import dataclass

PROTOCOL_NAMES: dict[str, str] = {
    "linear": "logistic regression on frozen features, its strength chosen on a held-out part of train",
    "semi": "the linear probe on class-balanced 10 % and 1 % of the labels, the mean over three fixed draws",
    "knn": "weighted vote of the nearest training samples by cosine, and the single nearest one",
}

# Protocols that look at a run's policy and not only at its encoder's features.
RUN_PROTOCOL_NAMES: dict[str, str] = {
    "false-negatives": "what the policy flags with the encoder frozen, judged by labels, and its thresholds' errors",
}

# Protocols that take the encoder to other datasets.
TRANSFER_NAMES: dict[str, str] = {
    "transfer": "the linear probe on other datasets, their images resized to those of the run: name them by --transfer",
}

LABELS_ARE_NEEDED = (
    "the {protocol} protocol needs labels and the {part} data has none: "
    "put the images of each class into a folder of its own, the folder names become the labels"
)

# What a protocol reports besides scores in percent: in the JSON, not in the table.
SETTINGS = frozenset({"linear strength"})


@dataclass(frozen=True)
class ProtocolOptions:
    """Options of the protocols; each takes what concerns it.

    Args:
        seed: of every random draw.
        k: neighbours that vote in knn.
        temperature: of the votes in knn.
        fractions: shares of the labels in semi.
        draws: label subsets per share in semi.
    """

    seed: int = 0
    k: int = 50
    temperature: float = 0.05
    fractions: tuple[float, ...] = (0.1, 0.01)
    draws: int = 3
