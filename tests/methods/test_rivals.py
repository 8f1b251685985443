"""BYOL, SimSiam, PCL, SwAV and i-Mix: each is the loss of its paper, in value and gradient; what else is its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from antipodes import InfoNCE
from antipodes.losses import Regression
from antipodes.methods import BYOL, PCL, IMix, Method, MoCo, SimSiam, SwAV
from antipodes.methods.pcl import PrototypeNCE, Prototypes, concentrations
from antipodes.methods.swav import SwappedCodes
from antipodes.methods.towers import PREDICTION, InPieces, PredictingTowers, Tower
from tests.cases import every
from tests.methods.tiny import BATCH, DIM, SIZE, N, Training, batch, build, one
from tests.reference import rivals

pytestmark = pytest.mark.filterwarnings("ignore:some anchors have no negatives")


def turned(method: Method) -> Method:
    """Give momentum networks weights of their own, and the queues embeddings of other samples."""
    random = torch.Generator().manual_seed(3)
    for name, parameter in method.named_parameters():
        if not name.startswith("network."):
            parameter.data += torch.randn(parameter.shape, generator=random)
    queues = [method.queue] if isinstance(method, MoCo) else list(getattr(method, "queues", []))
    for queue in queues:
        keys = F.normalize(torch.randn(len(queue.ids), DIM, generator=random, dtype=torch.float64), dim=1)
        queue.push(keys, torch.arange(len(queue.ids)) + 100, torch.full((len(queue.ids),), -1))
    return method


def tower(method: Method) -> Tower:
    return method.network["image"]


def expected_byol(method: BYOL, views: Sequence[Tensor], ids: Tensor) -> Tensor:
    assert isinstance(method.network, PredictingTowers)
    predictions = [method.network.predictor(tower(method)(view)) for view in views]
    return rivals.byol(predictions, [method.target(view) for view in views])


def expected_simsiam(method: SimSiam, views: Sequence[Tensor], ids: Tensor) -> Tensor:
    assert isinstance(method.network, PredictingTowers)
    embeddings = [tower(method)(view) for view in views]
    return rivals.simsiam([method.network.predictor(each) for each in embeddings], embeddings)


def expected_pcl(method: PCL, views: Sequence[Tensor], ids: Tensor) -> Tensor:
    queries = F.normalize(tower(method)(views[0]), dim=1)
    keys = F.normalize(method.key_network({"image": views[1]})["image"].detach(), dim=1)
    logits = torch.cat(((queries * keys).sum(1, keepdim=True), queries @ method.queue.keys.T), dim=1) / 0.2
    part = method.directions["prototypes"]
    assert isinstance(part, PrototypeNCE)
    part.count = 6  # all
    levels = [part.prototypes.level(number) for number in range(2)]
    prototypes = rivals.prototype_nce(
        queries,
        [labels[ids].tolist() for labels, _, _ in levels],
        [centroids for _, centroids, _ in levels],
        [phi.tolist() for _, _, phi in levels],
    )
    return F.cross_entropy(logits, torch.zeros(len(ids), dtype=torch.int64)) + prototypes


def expected_swav(method: SwAV, views: Sequence[Tensor], ids: Tensor) -> Tensor:
    weight = method.codebook.weight
    scores = [F.normalize(tower(method)(view), dim=1) @ weight.T for view in views]
    codes = []
    for each, queue in zip(scores, method.queues, strict=False):
        every = torch.cat((each, queue.keys @ weight.T)).detach()  # type: ignore[operator]
        codes.append(rivals.sinkhorn(every, 0.05, 3)[: len(ids)])
    return rivals.swav(scores, codes, 0.1)


def expected_imix(method: IMix, views: Sequence[Tensor], ids: Tensor) -> Tensor:
    partners, theta = method._draw(len(ids), views[0])
    rows = zip(views[0], partners, theta, strict=True)
    mixed = torch.stack([share * row + (1 - share) * views[0][partner] for row, partner, share in rows])
    keys = method.key_network({"image": views[1]})["image"].detach()
    return rivals.i_mix(tower(method)(mixed), keys, method.queue.keys, partners.tolist(), theta.tolist(), 0.2)


EXPECTED: dict[str, Callable[[Any, Sequence[Tensor], Tensor], Tensor]] = {
    "byol": expected_byol,
    "simsiam": expected_simsiam,
    "pcl": expected_pcl,
    "swav": expected_swav,
    "i-mix": expected_imix,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_is_the_loss_of_its_paper(name: str) -> None:
    method = turned(build(name).double())
    given = batch(0, method, dtype=torch.float64)
    expected = EXPECTED[name](method, [*given["image"].views, *given["image"].crops], given.ids)
    loss = method.loss(method.network, given, 0.5)
    torch.testing.assert_close(loss, expected)
    parameters = list(method.network.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("progress", "share"), [(0.0, 0.9), (0.5, 0.95), (1.0, 1.0)])
def test_byols_target_follows_by_a_momentum_that_rises_to_one(progress: float, share: float) -> None:
    method = turned(build("byol"))
    assert isinstance(method, BYOL)
    before = [each.clone() for each in method.target.parameters()]
    method.loss(method.network, batch(0, method), progress)
    method.after_step()
    for old, leader, target in zip(before, tower(method).parameters(), method.target.parameters(), strict=True):
        torch.testing.assert_close(target, share * old + (1 - share) * leader)
        assert not target.requires_grad


@pytest.mark.parametrize("name", ["byol", "simsiam", "swav"])
def test_the_predictor_is_trained_and_neither_evaluated_nor_exported(name: str) -> None:
    training = Training(name, "none")
    method = training.method
    assert isinstance(method.network, PredictingTowers)
    before = [each.clone() for each in method.network.predictor.parameters()]
    training.step(0)
    assert all(not torch.equal(a, b) for a, b in zip(before, method.network.predictor.parameters(), strict=True))
    assert method.backbone() is tower(method).encoder
    assert list(method.exports()) == ["encoder"]
    given = {"image": torch.rand(6, 3, SIZE, SIZE)}
    pieces = InPieces(method.network, 4)(given)
    for output, whole in method.network(given).items():
        torch.testing.assert_close(pieces[output], whole)
    assert set(pieces) == {"image", PREDICTION}


def test_collapse_is_seen_in_the_statistics() -> None:
    loss_fn = Regression()
    loss_fn(torch.randn(4, 3), torch.tensor([[1.0, 0.0, 0.0]]).repeat(4, 1))
    assert loss_fn.stats["target_similarity"] == pytest.approx(1.0)
    loss_fn(torch.randn(3, 3), torch.eye(3))
    assert loss_fn.stats["target_similarity"] == pytest.approx(0.0)


def test_concentrations_are_those_of_the_paper() -> None:
    random = torch.Generator().manual_seed(0)
    features = torch.randn(40, 6, generator=random, dtype=torch.float64)
    features[7] = 30 * torch.eye(6, dtype=torch.float64)[0] - 20  # far from the others: a cluster of its own
    policy = Prototypes(40, (12, 25)).double()
    policy.fit(features)
    for number in range(2):
        labels, centroids, phi = policy.level(number)
        expected = rivals.concentration(features, labels.tolist(), centroids, 0.2)
        assert phi.tolist() == pytest.approx(expected)
        assert phi.mean() == pytest.approx(0.2)


def test_clusters_without_members_are_in_no_sum() -> None:
    phi = concentrations(torch.tensor([1.0, 0.0, 2.0]), torch.tensor([2, 0, 3]), 0.2)
    assert phi[1] == 0
    part = PrototypeNCE(Prototypes(4, (3,)))
    part.prototypes.centroids, part.prototypes.concentration = torch.eye(3), torch.tensor([0.2, 0.0, 0.2])
    part.prototypes.labels[0] = torch.tensor([0, 0, 2, -1])
    part.prototypes.fitted_at.fill_(0.5)
    query = F.normalize(torch.tensor([[1.0, 5.0, 0.0]]), dim=1)
    expected = F.cross_entropy(query[:, [0, 2]] / 0.2, torch.tensor([0]))
    torch.testing.assert_close(part(query, torch.tensor([1])), expected)
    assert part(query, torch.tensor([3])) == 0  # a sample that came after the clustering


def test_pcl_is_moco_before_its_start_and_before_its_first_clustering() -> None:
    torch.manual_seed(0)
    network = one()
    moco = MoCo(network, InfoNCE(0.2), DIM, queue_size=20)
    method = PCL(network, InfoNCE(0.2), N, DIM, (3,), start=0.4, queue_size=20)
    given = batch(0, method)
    expected = moco.loss(network, given, 0.0)
    torch.testing.assert_close(method.loss(method.network, given, 0.5), expected)
    part = method.directions["prototypes"]
    assert isinstance(part, PrototypeNCE)
    part.prototypes.fit(torch.randn(N, DIM), 0.5)
    torch.testing.assert_close(method.loss(method.network, given, 0.3), expected)
    assert method.loss(method.network, given, 0.5) > expected
    assert method.clustered("image", "embeddings") is method.key_network["image"]  # type: ignore[index]


def test_codes_share_the_prototypes_evenly_and_sum_to_one() -> None:
    scores = torch.randn(64, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 3
    codes = SwappedCodes(iterations=200).codes(scores)
    torch.testing.assert_close(codes.sum(1), torch.ones(64, dtype=torch.float64))
    torch.testing.assert_close(codes.sum(0), torch.full((8,), 8.0, dtype=torch.float64), rtol=1e-2, atol=0)
    assert SwappedCodes(epsilon=1e-3).codes(scores.float()).isfinite().all()


def test_swavs_queue_counts_from_its_start_on_once_it_is_full() -> None:
    training = Training("swav", "none")
    method = training.method
    assert isinstance(method, SwAV)
    sizes = []
    for number in range(4):
        sizes.append(len(method._earlier_scores(0, 0.05 if number == 2 else 0.5)))
        training.step(number)
    assert sizes == [0, 0, 0, 16]  # two steps of 8 fill it; in the third it has not started
    torch.testing.assert_close(method.codebook.weight.norm(dim=1), torch.ones(4))


def test_imix_draws_each_step_anew_and_at_least_half_of_the_own_sample() -> None:
    method = build("i-mix")
    assert isinstance(method, IMix)
    first = method._draw(BATCH, torch.zeros(1))
    assert (first[1] >= 0.5).all()
    assert torch.equal(method._draw(BATCH, torch.zeros(1))[0], first[0])
    method.after_step()
    assert not torch.equal(method._draw(BATCH, torch.zeros(1))[1], first[1])


@every(
    ("make", "argument"),
    [
        (lambda: BYOL(one(), Regression(), DIM, momentum=1.5), "momentum"),
        (lambda: PCL(one(), InfoNCE(), N, DIM, (3,), start=2.0, queue_size=20), "start"),
        (lambda: PCL(one(), InfoNCE(), N, DIM, (N + 1,), queue_size=20), "clusters"),
        (lambda: PCL(one(), InfoNCE(), N, DIM, (3,), concentration=0.0, queue_size=20), "temperature"),
        (lambda: PCL(one(), InfoNCE(), N, DIM, (3,), prototypes=0, queue_size=20), "count"),
        (lambda: SwAV(one(), SwappedCodes(), DIM, prototypes=1), "prototypes"),
        (lambda: SwAV(one(), SwappedCodes(), DIM, queue_size=-1), "queue_size"),
        (lambda: SwAV(one(), SwappedCodes(), DIM, queue_start=-1.0), "queue_start"),
        (lambda: SwappedCodes(epsilon=0.0), "epsilon"),
        (lambda: SwappedCodes(iterations=0), "iterations"),
        (lambda: IMix(one(), InfoNCE(), DIM, alpha=0.0, queue_size=20), "alpha"),
        (lambda: Regression()(torch.zeros(2, 3), torch.zeros(3, 3)), "targets"),
    ],
)
def test_refuses_what_makes_no_sense(make: Callable[[], object], argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        make()
