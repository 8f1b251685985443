"""How good features are without training on them: accuracy of nearest neighbours, and retrieval between two sets."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from antipodes.functional.neighbours import nearest_of
from antipodes.functional.normalise import normalise


def check_features(features: Tensor, labels: Tensor, part: str) -> None:
    """Refuse features (n, F) and labels (n,) that no protocol can use; ``part`` names them in the message.

    Raises:
        ValueError: if a shape is wrong, the lengths differ, there is no sample or a feature is not finite.
    """
    if features.ndim != 2 or labels.ndim != 1 or len(features) != len(labels):
        raise ValueError(
            f"{part} features must be (n, F) with labels (n,), "
            f"got features {tuple(features.shape)} and labels {tuple(labels.shape)}"
        )
    if features.numel() == 0:
        raise ValueError(f"{part} features are empty, got shape {tuple(features.shape)}: give at least one sample")
    if not features.is_floating_point() or labels.is_floating_point():
        raise ValueError(
            f"{part} features must be floats and labels integers, got {features.dtype} and {labels.dtype}: convert them"
        )
    finite = features.isfinite().all(dim=1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise ValueError(
            f"{int((~finite).sum())} of {len(features)} {part} features are NaN or infinite (first in row {row}): "
            "the encoder's weights or its input are broken"
        )


def check_pair(train_features: Tensor, train_labels: Tensor, test_features: Tensor, test_labels: Tensor) -> None:
    """Refuse a train and a test part that are broken (see `check_features`) or differ in the number of features."""
    check_features(train_features, train_labels, "train")
    check_features(test_features, test_labels, "test")
    if train_features.shape[1] != test_features.shape[1]:
        raise ValueError(
            f"train and test must have the same number of features, got {train_features.shape[1]} and "
            f"{test_features.shape[1]}: embed both with the same encoder"
        )


def number_classes(train_labels: Tensor, test_labels: Tensor) -> tuple[Tensor, Tensor, int]:
    """Number the classes of train 0..K-1 without gaps, and test alike; returns both labels and K.

    Raises:
        ValueError: if test has a class that train lacks, since no classifier could ever answer it.

    Example:
        >>> number_classes(torch.tensor([7, 3, 7]), torch.tensor([3]))
        (tensor([1, 0, 1]), tensor([0]), 2)
    """
    classes, train = torch.unique(train_labels, return_inverse=True)
    missing = sorted(set(test_labels.tolist()) - set(classes.tolist()))
    if missing:
        raise ValueError(
            f"test has classes that train lacks ({', '.join(map(str, missing[:10]))}): "
            "train needs at least one labelled sample of every class"
        )
    return train, torch.searchsorted(classes, test_labels.contiguous()), len(classes)


def knn(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    k: int = 50,
    temperature: float = 0.05,
    *,
    leave_one_out: bool = False,
) -> float:
    """Top-1 accuracy on test, in [0, 1], of a vote among the k nearest training samples (Wu et al. 2018).

    1. Features are normalised; the k training samples with the highest cosine s to a query are its neighbours.
    2. A neighbour votes for its class with weight exp(s / temperature); the class with the most weight is the answer.

    Args:
        train_features: (n, F) float; need not be normalised.
        train_labels: (n,) int.
        test_features: (m, F) float.
        test_labels: (m,) int, of classes that train has.
        k: number of neighbours; all of train when it has fewer.
        temperature: above 0; the lower, the more the nearest ones decide.
        leave_one_out: test is train itself, and a sample is not its own neighbour.

    Raises:
        ValueError: if shapes do not fit, a feature is not finite, test has a class that train lacks, k or the
            temperature is out of range, or leave_one_out is asked for with fewer than two or other samples.

    Example:
        >>> train, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
        >>> knn(train, labels, torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.tensor([0, 0]), k=2)
        0.5
    """
    check_pair(train_features, train_labels, test_features, test_labels)
    train_labels, test_labels, classes = number_classes(train_labels, test_labels)
    similarity, index = neighbours(train_features, test_features, k, leave_one_out=leave_one_out)
    return vote(similarity, train_labels[index], test_labels, classes, temperature)


def neighbours(
    train_features: Tensor, test_features: Tensor, k: int, *, leave_one_out: bool = False
) -> tuple[Tensor, Tensor]:
    """Cosines (m, k) and train indices (m, k) of the k nearest training samples of every query, nearest first.

    Memory is O(m k) and one block of similarities, never (m, n).
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}: it is the number of neighbours that vote")
    if leave_one_out and (len(train_features) != len(test_features) or len(train_features) < 2):
        raise ValueError(
            f"leave_one_out needs test to be train itself, with at least two samples, "
            f"got {len(train_features)} and {len(test_features)}"
        )
    own = torch.arange(len(test_features), device=test_features.device) if leave_one_out else None
    found = nearest_of(test_features, train_features, k, own)
    return found.similarities, found.rows


def vote(similarity: Tensor, neighbour_labels: Tensor, labels: Tensor, classes: int, temperature: float) -> float:
    """Accuracy in [0, 1] on labels (m,) of votes exp(similarity / temperature) (m, k) for neighbour_labels (m, k)."""
    return float((votes(similarity, neighbour_labels, classes, temperature).argmax(1) == labels).double().mean())


def votes(similarity: Tensor, neighbour_labels: Tensor, classes: int, temperature: float) -> Tensor:
    """The weight (m, classes) that neighbours with these similarities (m, k) and labels (m, k) give to every class."""
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    # Relative to the nearest neighbour, so that no temperature overflows.
    weights = ((similarity - similarity[:, :1]) / temperature).exp()
    return weights.new_zeros(len(weights), classes).scatter_add_(1, neighbour_labels, weights)


BLOCK_ELEMENTS = 2**22


def first_ranks(queries: Tensor, keys: Tensor, query_groups: Tensor, key_groups: Tensor) -> Tensor:
    """The rank of every query's most similar right key, (n,) int64: 0 if nothing else is more similar.

    A key is right if it is of the query's group, so with several captions an image any of them counts. A wrong key that
    ties with the best right one comes before it: what cannot be told apart is no find.

    Args:
        queries: (n, D); need not be normalised.
        keys: (m, D).
        query_groups: (n,) int64.
        key_groups: (m,) int64; every query's group has a key.

    Raises:
        ValueError: if a query has no right key at all.
    """
    _refuse_alone(~torch.isin(query_groups, key_groups))
    queries, keys = normalise(queries), normalise(keys)
    ranks = []
    rows = max(1, BLOCK_ELEMENTS // len(keys))
    for start in range(0, len(queries), rows):
        part = slice(start, start + rows)
        similarity = queries[part] @ keys.T
        right = query_groups[part, None] == key_groups
        best = similarity.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
        ranks.append(((similarity >= best) & ~right).sum(1))
    return torch.cat(ranks)


def ranked_measures(
    queries: Tensor, keys: Tensor, relevant: Tensor, gains: Tensor, cutoffs: Sequence[int] = (1, 5, 10)
) -> dict[str, float]:
    """Measures of a search for queries among keys, as trec_eval defines them: means over queries, in [0, 1].

    1. Every query ranks all keys by cosine similarity; of equal similarities the earlier key comes first.
    2. nDCG@10 is the discounted gain of the first ten, sum of gain / log2(1 + rank), over that of the best order.
    3. MRR@10 is 1 / rank of the first relevant key among the first ten, else 0.
    4. MAP@R is the mean, over the first R ranks, of the precision at each rank that holds a relevant key; R is the
       number of the query's relevant keys.
    5. recall@k is the share of the relevant keys among the first k.

    Args:
        queries: (n, D); need not be normalised.
        keys: (m, D).
        relevant: (p, 2) int64, the numbers of a query and of a key that is relevant for it; every query is in a pair.
        gains: (p,) how relevant, above 0; only nDCG uses the number.
        cutoffs: The ranks k of recall.

    Raises:
        ValueError: if a query has no relevant key.

    Example:
        >>> measures = ranked_measures(torch.eye(2), torch.eye(2), torch.tensor([[0, 0], [1, 0]]), torch.ones(2), (1,))
        >>> measures["MAP@R"], measures["MRR@10"], measures["recall@1"]
        (0.5, 0.75, 0.5)
    """
    counts = torch.bincount(relevant[:, 0], minlength=len(queries))
    _refuse_alone(counts == 0)
    order = relevant[:, 0].argsort(stable=True)
    query, key, gains = relevant[order, 0].contiguous(), relevant[order, 1], gains[order].double()
    queries, keys = normalise(queries), normalise(keys)
    depth = min(len(keys), max(10, *cutoffs, int(counts.max())))
    rows = max(1, BLOCK_ELEMENTS // len(keys))
    parts: dict[str, list[Tensor]] = {}
    for start in range(0, len(queries), rows):
        part = slice(start, min(start + rows, len(queries)))
        low, high = torch.searchsorted(query, torch.tensor([part.start, part.stop])).tolist()
        gain = torch.zeros(part.stop - part.start, len(keys), dtype=torch.float64)
        gain[query[low:high] - start, key[low:high]] = gains[low:high]
        ranked = (queries[part] @ keys.T).sort(dim=1, descending=True, stable=True).indices[:, :depth]
        best = gain.sort(dim=1, descending=True).values[:, :depth]
        for name, values in _measures_by_query(gain.gather(1, ranked), best, counts[part], cutoffs).items():
            parts.setdefault(name, []).append(values)
    return {name: float(torch.cat(values).mean()) for name, values in parts.items()}


def _measures_by_query(found: Tensor, best: Tensor, counts: Tensor, cutoffs: Sequence[int]) -> dict[str, Tensor]:
    """Measures (b,) by name, given gains (b, depth) in the order found and in the best one, and counts (b,)."""
    rank = torch.arange(1, found.shape[1] + 1, dtype=torch.float64)
    hit = (found > 0).double()
    discount = torch.log2(1 + rank[:10])
    precision = hit.cumsum(1) / rank
    inside = (rank <= counts[:, None]).double()
    measures = {
        "nDCG@10": (found[:, :10] / discount).sum(1) / (best[:, :10] / discount).sum(1),
        "MRR@10": (hit[:, :10] / rank[:10]).amax(1),
        "MAP@R": (precision * hit * inside).sum(1) / counts,
    }
    return measures | {f"recall@{cutoff}": hit[:, :cutoff].sum(1) / counts for cutoff in cutoffs}


def _refuse_alone(alone: Tensor) -> None:
    """Refuse queries without a right key, (n,) bool."""
    if bool(alone.any()):
        raise ValueError(
            f"{int(alone.sum())} of {len(alone)} queries have nothing to find, first number {int(alone.nonzero()[0])}"
        )


def recalls(ranks: Tensor, cutoffs: Sequence[int] = (1, 5, 10)) -> dict[int, float]:
    """The share of ranks (n,) below each cutoff, in [0, 1].

    Example:
        >>> recalls(torch.tensor([0, 3, 20, 0]), (1, 5))
        {1: 0.5, 5: 0.75}
    """
    return {cutoff: float((ranks < cutoff).double().mean()) for cutoff in cutoffs}


def recall_both_ways(
    images: Tensor, texts: Tensor, owners: Tensor, cutoffs: Sequence[int] = (1, 5, 10)
) -> tuple[dict[int, float], dict[int, float], float]:
    """Recall of texts by images and of images by texts, by cutoff, and the mean of all of them, in percent.

    Args:
        images: (n, D); those without a text are left out as queries.
        texts: (m, D).
        owners: (m,) int64, the image of every text; of several texts any counts as found.
        cutoffs: The ranks.

    Example:
        >>> recall_both_ways(torch.eye(2), torch.eye(2), torch.tensor([0, 1]), (1,))
        ({1: 100.0}, {1: 100.0}, 100.0)
    """
    numbers = torch.arange(len(images))
    described = torch.isin(numbers, owners)
    ways = (
        recalls(first_ranks(images[described], texts, numbers[described], owners), cutoffs),
        recalls(first_ranks(texts, images, owners, numbers), cutoffs),
    )
    to_texts, to_images = ({cutoff: 100 * share for cutoff, share in way.items()} for way in ways)
    return to_texts, to_images, fmean([*to_texts.values(), *to_images.values()])
