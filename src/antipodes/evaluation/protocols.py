"""The registry of evaluation protocols: a name, and a function from features to scores in percent.

A new protocol is a function here (or in a file of its own) and its name in names.py.
"""

from collections.abc import Callable, Iterable

from torch import Tensor

from antipodes.evaluation.features import FeatureSet
from antipodes.evaluation.linear import STRENGTHS, LinearResult, linear_probe
from antipodes.evaluation.names import LABELS_ARE_NEEDED, RUN_PROTOCOL_NAMES, TRANSFER_NAMES, ProtocolOptions
from antipodes.evaluation.splits import class_balanced_subset
from antipodes.functional.checks import check_pair, number_classes
from antipodes.functional.knn import neighbours, vote

Protocol = Callable[[FeatureSet, FeatureSet, ProtocolOptions], dict[str, float]]


def evaluate(
    names: Iterable[str], train: FeatureSet, test: FeatureSet, options: ProtocolOptions | None = None
) -> dict[str, float]:
    """Run the named protocols and join their scores, in percent, into one row.

    Raises:
        ValueError: if a name is unknown, labels are missing, or a protocol refuses the features.
    """
    chosen = [protocol(name) for name in names]  # all names are known before anything runs
    row: dict[str, float] = {}
    for run in chosen:
        row |= run(train, test, options or ProtocolOptions())
    return row


def of_features(names: Iterable[str]) -> list[str]:
    """Those of the names that `evaluate` takes; the others look at more than the features of a run's own data.

    Raises:
        ValueError: if a name is unknown.
    """
    chosen = [name for name in names if name not in RUN_PROTOCOL_NAMES and name not in TRANSFER_NAMES]
    for name in chosen:
        protocol(name)
    return chosen


def protocol(name: str) -> Protocol:
    """The protocol of that name.

    Raises:
        ValueError: if there is none.
    """
    if name not in PROTOCOLS:
        names = ", ".join((*PROTOCOLS, *RUN_PROTOCOL_NAMES, *TRANSFER_NAMES))
        raise ValueError(f"there is no evaluation protocol {name!r}: choose from {names}")
    return PROTOCOLS[name]


def linear(train: FeatureSet, test: FeatureSet, options: ProtocolOptions) -> dict[str, float]:
    """Scores of `linear_probe`."""
    result = _probe("linear", train, test, options)
    scores = {"linear top-1": 100 * result.top1}
    if result.top5 is not None:
        scores["linear top-5"] = 100 * result.top5
    return scores | {"linear mean per class": 100 * result.mean_per_class, "linear strength": result.strength}


def transfer(name: str, train: FeatureSet, test: FeatureSet, options: ProtocolOptions) -> dict[str, float]:
    """Scores of `linear_probe` on the dataset of that name, which is not the one the encoder was trained on."""
    result = _probe("transfer", train, test, options)
    return {f"transfer {name} top-1": 100 * result.top1, f"transfer {name} mean per class": 100 * result.mean_per_class}


def semi(train: FeatureSet, test: FeatureSet, options: ProtocolOptions) -> dict[str, float]:
    """Mean top-1 of linear probes that see only a class-balanced share of the training labels."""
    labels, test_labels = _labels(train, "semi", "train"), _labels(test, "semi", "test")
    check_pair(train.features, labels, test.features, test_labels)
    scores = {}
    for fraction in options.fractions:
        accuracies = []
        for draw in range(options.draws):
            ids = class_balanced_subset(labels, fraction, options.seed + draw)
            single = bool((labels[ids].unique(return_counts=True)[1] == 1).all())  # nothing to hold out for a choice
            accuracies.append(
                linear_probe(
                    train.features[ids],
                    labels[ids],
                    test.features,
                    test_labels,
                    strengths=(0.1,) if single else STRENGTHS,
                    seed=options.seed,
                ).top1
            )
        scores[f"linear {100 * fraction:g} % labels"] = 100 * sum(accuracies) / len(accuracies)
    return scores


def knn(train: FeatureSet, test: FeatureSet, options: ProtocolOptions) -> dict[str, float]:
    """Scores of `knn.knn` and `knn.nearest_neighbour`, from one search for neighbours."""
    train_labels, test_labels = _labels(train, "knn", "train"), _labels(test, "knn", "test")
    check_pair(train.features, train_labels, test.features, test_labels)
    train_labels, test_labels, classes = number_classes(train_labels, test_labels)
    similarity, index = neighbours(train.features, test.features, options.k)
    labels = train_labels[index]
    return {
        "knn top-1": 100 * vote(similarity, labels, test_labels, classes, options.temperature),
        "1-nn top-1": 100 * vote(similarity[:, :1], labels[:, :1], test_labels, classes, options.temperature),
    }


def _probe(protocol_name: str, train: FeatureSet, test: FeatureSet, options: ProtocolOptions) -> LinearResult:
    labels, test_labels = _labels(train, protocol_name, "train"), _labels(test, protocol_name, "test")
    return linear_probe(train.features, labels, test.features, test_labels, seed=options.seed)


def _labels(feature_set: FeatureSet, protocol_name: str, part: str) -> Tensor:
    if feature_set.labels is None:
        raise ValueError(LABELS_ARE_NEEDED.format(protocol=protocol_name, part=part))
    return feature_set.labels


PROTOCOLS: dict[str, Protocol] = {"linear": linear, "semi": semi, "knn": knn}
