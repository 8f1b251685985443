"""Soft cross entropies: by hand, against the dense float64 formula in value and gradient, and at their edges."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

from antipodes.losses import soft_cross_entropy as soft
from antipodes.losses.soft_cross_entropy import soft_cross_entropy
from tests.reference import soft as reference

Scene = dict[str, Tensor]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soft, "BLOCK", 7)


def scene(
    seed: int, rows: int = 5, keys: int = 30, width: int = 4, dtype: torch.dtype = torch.float64, students: int = 5
) -> Scene:
    """Some students with two of the teacher ``rows`` each, over a queue with empty slots."""
    generator = torch.Generator().manual_seed(seed)
    queries, teachers, table = (
        normalize(torch.randn(n, width, generator=generator, dtype=torch.float64), dim=1).to(dtype)
        for n in (students, rows, keys)
    )
    key_ids = torch.arange(keys)
    key_ids[torch.rand(keys, generator=generator) < 0.2] = -1
    own = torch.randint(keys, (rows,), generator=generator)
    key_ids[own] = own
    pairs = torch.randint(rows, (2, students), generator=generator)
    return {
        "students": queries,
        "teachers": teachers,
        "keys": table,
        "own_columns": own,
        "key_ids": key_ids,
        "rows": pairs,
    }


def dense(inputs: Scene, tau: float, teacher_tau: float) -> list[Tensor]:
    """The six results from the whole matrices, (2, A) each."""
    labels = reference.soft_labels(
        inputs["teachers"], inputs["keys"].detach(), inputs["own_columns"], teacher_tau, inputs["key_ids"]
    )
    entropies = [
        torch.stack(
            [
                reference.cross_entropy(inputs["students"], inputs["keys"], label[rows], tau, inputs["key_ids"])
                for rows in inputs["rows"]
            ]
        )
        for label in labels
    ]
    only_own = (inputs["key_ids"] != -1).sum() == 1
    maxima = [labels[1].max(1).values, labels[2].max(1).values * (not only_own)]
    of_own = (labels[0] * labels[1]).sum(1)
    return entropies + [of_row[inputs["rows"]] for of_row in (*maxima, of_own)]


def test_by_hand_on_a_circle() -> None:
    """Keys at 0 (own), 60 and 180 degrees, an empty slot; teacher at 60 degrees, student at 0."""
    angles = torch.tensor([0.0, 60.0, 180.0, 0.0], dtype=torch.float64).deg2rad()
    keys = torch.stack([angles.cos(), angles.sin()], dim=1)
    sums = soft_cross_entropy(
        keys[:1], keys[1:2], keys, torch.tensor([0]), temperature=0.5, teacher_temperature=0.25,
        key_ids=torch.tensor([4, 5, 6, -1]),
    )  # fmt: skip
    e = math.exp
    total = e(2) + e(1) + e(-2)  # cosines 1, 1/2, -1 over 0.5
    losses = [math.log(total) - logit for logit in (2, 1, -2)]
    teacher = [e(2), e(4), e(-2)]  # cosines 1/2, 1, -1/2 over 0.25
    p = [weight / sum(teacher) for weight in teacher]
    q = [0.0, *(weight / sum(teacher[1:]) for weight in teacher[1:])]
    assert sums.onehot.tolist() == pytest.approx([losses[0]])
    assert sums.p.tolist() == pytest.approx([sum(a * b for a, b in zip(p, losses, strict=True))])
    assert sums.q.tolist() == pytest.approx([sum(a * b for a, b in zip(q, losses, strict=True))])
    assert (sums.max_p.item(), sums.max_q.item()) == pytest.approx((p[1], q[1]))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 6),
    students=st.integers(1, 6),
    keys=st.integers(1, 30),
    tau=st.floats(0.05, 2),
    teacher_tau=st.floats(0.05, 2),
)
def test_values_and_gradients_equal_the_dense_formula(
    seed: int, rows: int, students: int, keys: int, tau: float, teacher_tau: float
) -> None:
    inputs = scene(seed, rows, keys, students=students)
    weights = torch.randn(3, 2, students, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gradients = []
    for formula in ("streamed", "dense"):
        queries, table = (inputs[name].clone().requires_grad_() for name in ("students", "keys"))
        these = {**inputs, "students": queries, "keys": table}
        if formula == "streamed":
            results = list(soft_cross_entropy(**these, temperature=tau, teacher_temperature=teacher_tau))
            streamed = results
        else:
            results = dense(these, tau, teacher_tau)
        sum((w * r).sum() for w, r in zip(weights, results, strict=False)).backward()
        gradients.append((queries.grad, table.grad))
    for one, other in zip(streamed, results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_gradcheck() -> None:
    inputs = scene(1)

    def losses(students: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        these = {**inputs, "students": students, "keys": keys}
        # the labels are constants, so only the students' side of the keys may move
        return soft_cross_entropy(**these, temperature=0.3, teacher_temperature=1e12)[:3]

    students, keys = inputs["students"].requires_grad_(), inputs["keys"].requires_grad_()
    assert torch.autograd.gradcheck(losses, (students, keys))
    fixed = inputs["keys"].detach()
    assert torch.autograd.gradcheck(
        lambda x: soft_cross_entropy(
            **{**inputs, "students": x, "keys": fixed}, temperature=0.3, teacher_temperature=0.2
        )[:3],
        (students,),
    )


def test_float32_is_exact_to_five_digits_on_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soft, "BLOCK", 512)
    inputs = scene(2, rows=32, keys=3000, width=64, dtype=torch.float32, students=32)
    students = inputs["students"].clone().requires_grad_()
    sums = soft_cross_entropy(**{**inputs, "students": students}, temperature=0.2, teacher_temperature=0.16)
    exact = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
    exact["students"].requires_grad_()
    expected = dense(exact, 0.2, 0.16)
    (sums.onehot + sums.p + sums.q).sum().backward()
    (expected[0] + expected[1] + expected[2]).sum().backward()
    for one, other in zip(sums, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=0)
    assert students.grad is not None
    error = (students.grad.double() - exact["students"].grad).norm() / exact["students"].grad.norm()
    assert error < 1e-5


def test_a_tiny_cross_entropy_keeps_its_digits_in_float32() -> None:
    """At tau = .02 an easy own key leaves a loss of about 1e-19, which log-sum less logit rounds to 0."""
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.28, 0.96]])
    args = (keys[:1], keys[:1], keys, torch.tensor([0]))
    sums = soft_cross_entropy(*args, temperature=0.02, teacher_temperature=0.02)
    exact = math.log1p(sum(math.exp((s - 1) / 0.02) for s in (0.0, -1.0, 0.28)))
    assert sums.onehot.item() == pytest.approx(exact, rel=1e-5, abs=0)
    assert exact > 0


def test_extreme_temperatures_stay_finite() -> None:
    inputs = scene(3, dtype=torch.float32)
    students = inputs["students"].requires_grad_()
    sums = soft_cross_entropy(**inputs, temperature=1e-3, teacher_temperature=1e-4)
    (sums.onehot + sums.p + sums.q).sum().backward()
    assert all(bool(result.isfinite().all()) for result in sums)
    assert students.grad is not None
    assert bool(students.grad.isfinite().all())


def test_two_rows_are_the_same_as_two_calls() -> None:
    inputs = scene(4)
    rows = torch.stack([torch.arange(5), inputs.pop("rows")[1]])
    students, keys = inputs["students"].requires_grad_(), inputs["keys"].requires_grad_()
    temperatures = {"temperature": 0.2, "teacher_temperature": 0.1}
    both = soft_cross_entropy(**inputs, rows=rows, **temperatures)
    own = soft_cross_entropy(**inputs, **temperatures)
    theirs = {**inputs, "teachers": inputs["teachers"][rows[1]], "own_columns": inputs["own_columns"][rows[1]]}
    other = soft_cross_entropy(**theirs, **temperatures)
    again = soft_cross_entropy(**inputs, rows=rows[1], **temperatures)
    torch.testing.assert_close(tuple(again), tuple(other))
    for pair, first, second in zip(both, own, other, strict=True):
        torch.testing.assert_close(pair, torch.stack([first, second]))
    batch_neighbours = torch.autograd.grad((both.p + 2 * both.q).sum(), (students, keys))
    apart = torch.autograd.grad((own.p + 2 * own.q + other.p + 2 * other.q).sum(), (students, keys))
    torch.testing.assert_close(batch_neighbours, apart)


class Largest(TorchDispatchMode):
    """Remember the number of entries of the largest tensor that any operation returned."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            self.entries = max(self.entries, tensor.numel() if isinstance(tensor, Tensor) else 0)
        return result


def test_nothing_is_larger_than_a_block_of_logits_or_the_keys() -> None:
    inputs = scene(7, rows=100, keys=700, students=100)
    inputs["students"].requires_grad_()
    inputs["keys"].requires_grad_()
    with Largest() as largest:
        sums = soft_cross_entropy(**inputs, temperature=0.2, teacher_temperature=0.1)
        torch.autograd.grad((sums.onehot + sums.p + sums.q).sum(), (inputs["students"], inputs["keys"]))
    assert largest.entries <= 700 * 4  # against 70,000 of all logits


def test_the_only_key_is_the_own_key() -> None:
    key = torch.tensor([[0.6, 0.8]])
    students = torch.tensor([[1.0, 0.0]], requires_grad=True)
    empty = torch.cat([key, torch.full((3, 2), math.nan)])
    sums = soft_cross_entropy(
        students, key, empty, torch.tensor([0]), temperature=0.1, teacher_temperature=0.1,
        key_ids=torch.tensor([3, -1, -1, -1]),
    )  # fmt: skip
    assert [result.item() for result in sums] == [0, 0, 0, 1, 0, 1]
    (sums.onehot + sums.p + sums.q).sum().backward()
    assert students.grad is not None
    assert students.grad.abs().max() < 1e-6


def test_no_rows_and_half_precision() -> None:
    inputs = scene(5, dtype=torch.float32)
    none = {"students": inputs["students"][:0], "rows": inputs["rows"][:, :0]}
    sums = soft_cross_entropy(**{**inputs, **none}, temperature=0.2, teacher_temperature=0.2)
    assert all(result.shape == (2, 0) for result in sums)
    half = {name: t.bfloat16() if t.is_floating_point() else t for name, t in inputs.items()}
    students = half["students"].requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sums = soft_cross_entropy(**half, temperature=0.2, teacher_temperature=0.2)
    assert sums.p.dtype == torch.float32
    sums.p.sum().backward()
    assert students.grad is not None
    assert students.grad.dtype == torch.bfloat16


def test_refusals() -> None:
    inputs = scene(6)
    empty = inputs["key_ids"].clone()
    empty[inputs["own_columns"][2]] = -1
    refused = [
        ("do not match", {"teachers": inputs["teachers"][:, :2]}),
        ("do not match", {"keys": inputs["keys"][:, :2]}),
        (
            "own_columns must be int64 of shape \\(5,\\), one key per teacher",
            {"own_columns": inputs["own_columns"][:2]},
        ),
        ("own_columns must be int64 of shape", {"teachers": inputs["teachers"][:2]}),
        ("rows must be int64 of shape \\(5,\\) or \\(2, 5\\)", {"rows": inputs["rows"][:, :2]}),
        ("own_columns must be in 0..29", {"own_columns": inputs["own_columns"] + 30}),
        ("own_columns must be in 0..-1", {"keys": inputs["keys"][:0], "key_ids": None}),
        ("rows must be in 0..4", {"rows": inputs["rows"] - 9}),
        ("key_ids needs one id per key", {"key_ids": empty[:4]}),
        ("own_columns points at a key of a negative id", {"key_ids": empty}),
        ("students contain a value that is not finite", {"students": inputs["students"] * math.nan}),
        ("keys contain a value that is not finite", {"keys": inputs["keys"] * math.inf}),
        ("temperature must be positive", {"temperature": 0.0}),
        ("teacher_temperature must be positive", {"teacher_temperature": -1.0}),
    ]
    for message, changed in refused:
        with pytest.raises(ValueError, match=message):
            soft_cross_entropy(**{**inputs, "temperature": 0.2, "teacher_temperature": 0.2, **changed})
