"""Chunked embedding equals the one large batch: in value, gradient, tables, on two ranks; and it saves memory."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from antipodes import FNC, GlobalContrastive, GloFND, InfoNCE, Ring, Sigmoid, Temperature, TwoWay, chunked
from tests.cases import every
from tests.ranks import Ranks

COUNT = 24


def network(seed: int = 0, dropout: float = 0.0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(128, 6)
        return nn.Sequential(*layers).double()


def images(seed: int, count: int = COUNT) -> Tensor:
    return torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LOSSES = {
    "infonce": lambda: InfoNCE(Temperature(0.2, learnable=True)),
    "glofnd": lambda: InfoNCE(0.2, GloFND(num_samples=COUNT, alpha=0.1, start=0.0)),
    "fnc": lambda: InfoNCE(0.2, FNC(alpha=0.1), "attract"),
    "ring": lambda: InfoNCE(0.2, Ring(outer=(1.0, 0.5), inner=0.1)),
    "global": lambda: GlobalContrastive(COUNT, 0.2),
    "sigmoid": lambda: Sigmoid(0.2),
    "clip": lambda: TwoWay(InfoNCE(Temperature(0.2, learnable=True), GloFND(COUNT, alpha=0.1, start=0.0))),
}


@every(("name", "micro_batch"), [*((name, 7) for name in LOSSES), ("infonce", 1), ("infonce", 100)])
def test_values_gradients_tables_and_temperature_are_those_of_the_batch(name: str, micro_batch: int) -> None:
    found = []
    for pieces in (False, True):
        first, second, loss_fn = network(0), network(1), LOSSES[name]()
        for step in range(2):
            x, y = images(2 * step), images(2 * step + 1)
            z1 = chunked(first, x, micro_batch=micro_batch) if pieces else first(x)
            z2 = chunked(second, y, micro_batch=micro_batch) if pieces else second(y)
            loss = loss_fn(z1, z2, torch.arange(COUNT), progress=0.5)
            loss.backward()
        parameters = [*first.parameters(), *second.parameters(), *loss_fn.parameters()]
        assert all(each.grad is not None for each in parameters)
        found.append((loss.detach(), [each.grad for each in parameters], loss_fn.state_dict()))
    (loss, gradients, state), (other_loss, other_gradients, other_state) = found
    torch.testing.assert_close(other_loss, loss, atol=1e-12, rtol=0)
    torch.testing.assert_close(other_gradients, gradients, atol=1e-12, rtol=0)
    torch.testing.assert_close(other_state, state, atol=1e-12, rtol=0)


def test_the_policy_judges_once() -> None:
    calls = []

    class Counting(FNC):
        def judge(self, *arguments: Any, **options: Any) -> Any:
            calls.append(arguments)
            return super().judge(*arguments, **options)

    encoder = network()
    InfoNCE(0.2, Counting(alpha=0.1))(chunked(encoder, images(0), 5), chunked(encoder, images(1), 5)).backward()
    assert len(calls) == 1


def test_dropout_is_replayed() -> None:
    """The gradient is that of the masks of the forward pass, and the generator ends where it would have ended."""
    x, found = images(0), []
    for pieces in (False, True):
        encoder = network(dropout=0.5).train()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            z = chunked(encoder, x, 7) if pieces else torch.cat([encoder(part) for part in x.split(7)])
            after = torch.get_rng_state()
            z.square().sum().backward()
            assert torch.equal(torch.get_rng_state(), after)
        found.append((z.detach(), [each.grad for each in encoder.parameters()], after))
    torch.testing.assert_close(found[1], found[0], atol=1e-12, rtol=0)


def test_autocast_is_replayed() -> None:
    x = images(0).float()
    found = []
    for pieces in (False, True):
        encoder = network().float()
        with torch.autocast("cpu", torch.bfloat16):
            z = chunked(encoder, x, 7) if pieces else torch.cat([encoder(part) for part in x.split(7)])
        assert z.dtype == torch.bfloat16
        z.float().square().sum().backward()
        found.append((z.detach(), [each.grad for each in encoder.parameters()]))
    torch.testing.assert_close(found[1], found[0], atol=0, rtol=0)


class Text(nn.Module):
    """Tokens and a mask to a mean of token vectors, as text encoders have it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 6)
        self.out = nn.Linear(6, 4)

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert type(inputs) is dict
        mask = inputs["mask"][..., None].float()
        mean = (self.tokens(inputs["ids"]) * mask).sum(1) / mask.sum(1)
        return {"embedding": self.out(mean), "mean": mean}


def test_a_dict_of_tensors_goes_in_and_out() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = {"ids": torch.randint(50, (10, 5), generator=generator), "mask": torch.ones(10, 5, dtype=torch.bool)}
    encoder = Text()
    whole, parts = encoder(inputs), chunked(encoder, inputs, 3)
    assert set(parts) == {"embedding", "mean"}
    torch.testing.assert_close(parts, whole)
    for output in (whole, parts):
        output["embedding"].square().sum().backward(inputs=list(encoder.parameters()), retain_graph=True)
        output["mean"].sin().sum().backward()
    # every gradient came twice: once through the whole batch, once through the pieces
    once = copy.deepcopy(encoder)
    once.zero_grad()
    again = once(inputs)
    (again["embedding"].square().sum() + again["mean"].sin().sum()).backward()
    for both, single in zip(encoder.parameters(), once.parameters(), strict=True):
        torch.testing.assert_close(both.grad, 2 * single.grad)


def test_gradients_reach_the_input_and_higher_derivatives_exist() -> None:
    encoder, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double(), torch.ones(5, 3, dtype=torch.float64)
    found = []
    for embed in (encoder, functools.partial(chunked, encoder, micro_batch=2)):
        given = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(embed(given).square().sum(), given, create_graph=True)
        found.append((gradient.detach(), torch.autograd.grad(gradient.square().sum(), given)[0]))
    torch.testing.assert_close(found[1], found[0])


def test_without_gradient_there_is_nothing_to_compute_again() -> None:
    encoder = network()
    with torch.no_grad():
        z = chunked(encoder, images(0), 5)
    assert not z.requires_grad
    torch.testing.assert_close(z, encoder(images(0)).detach())
    assert len(chunked(encoder, images(0, 1), 5)) == 1


def with_norm(norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 8), norm)


def closing_over(encoder: nn.Module) -> Any:
    return lambda x: encoder(x)


def test_statistics_of_the_batch_are_refused_however_the_encoder_is_given() -> None:
    for norm in [nn.BatchNorm1d(8), nn.SyncBatchNorm(8), nn.BatchNorm1d(8, track_running_stats=False).eval()]:
        encoder = with_norm(norm)
        for given in (
            encoder,
            encoder.forward,
            closing_over(encoder),
            functools.partial(encoder),
            functools.partial(nn.functional.linear, weight=encoder),
            nn.ModuleDict({"image": encoder}),
        ):
            with pytest.raises(ValueError, match=r"group or layer normalisation .*SyncBatchNorm does not help"):
                chunked(given, images(0).float(), 5)  # type: ignore[arg-type]


def test_frozen_statistics_are_none_of_the_batch() -> None:
    encoder = with_norm(nn.BatchNorm1d(8)).eval()
    x = images(0).float()
    torch.testing.assert_close(chunked(encoder, x, 5), encoder(x))


def test_refusals() -> None:
    for x, micro_batch, sentence in [
        (torch.zeros(4, 3), 0, "micro_batch must be a whole number of at least 1"),
        (torch.zeros(4, 3), 2.5, "micro_batch must be a whole number"),
        (torch.zeros(0, 3), 2, "x must be a tensor .* of at least one row"),
        (torch.tensor(3.0), 2, "x must be a tensor"),
        ([torch.zeros(4, 3)], 2, "x must be a tensor .* or a dict of such tensors, got a list"),
        ({}, 2, "x must be a tensor .* or a dict"),
        ({"ids": torch.zeros(4, 3), "length": 4}, 2, "x must hold tensors .* for 'length'"),
        ({"a": torch.zeros(4, 3), "b": torch.zeros(3, 3)}, 2, "same number of rows, at least one, got a: 4, b: 3"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            chunked(nn.Linear(3, 2), x, micro_batch)


def test_an_encoder_that_loses_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="one embedding for each of the 2 rows of a piece, got a Tensor"):
        chunked(lambda x: x.mean(0), torch.zeros(4, 3), 2)
    with pytest.raises(ValueError, match="one embedding for each of the 2 rows"):
        chunked(lambda x: None, torch.zeros(4, 3), 2)


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = network(0), network(1)

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        (name,) = inputs
        out: Tensor = (self.image if name == "image" else self.text)(inputs[name])
        return out


def distributed(rank: int, world_size: int, how: str, micro_batch: int | None) -> tuple[list[Tensor], list[int]]:
    """Three steps of SGD, the second of which accumulates two batches under no_sync; the weights, and reductions."""
    towers = TwoTowers()
    wrapped = DistributedDataParallel(towers, bucket_cap_mb=1) if dist.is_initialized() else towers
    reductions: list[int] = []
    if isinstance(wrapped, DistributedDataParallel):

        def count(state, bucket):  # type: ignore[no-untyped-def]  # torch does not understand annotations as text
            reductions.append(bucket.index())
            future = dist.all_reduce(bucket.buffer().div_(world_size), async_op=True).get_future()
            return future.then(lambda done: done.value()[0])

        wrapped.register_comm_hook(None, count)
    loss_fn = TwoWay(InfoNCE(Temperature(0.2), GloFND(COUNT, alpha=0.1, start=0.0)))
    optimizer = torch.optim.SGD(towers.parameters(), lr=0.1)
    part = slice(COUNT * rank // world_size, COUNT * (rank + 1) // world_size)

    def embed(name: str, x: Tensor) -> Tensor:
        if micro_batch is None:
            return wrapped({name: x})
        if how == "function":
            return chunked(lambda piece: wrapped({name: piece}), x, micro_batch)
        return chunked(wrapped, {name: x}, micro_batch)

    def backward(seed: int) -> None:
        first, second = embed("image", images(seed)[part]), embed("text", images(seed + 100)[part])
        loss_fn(first, second, torch.arange(COUNT)[part], progress=0.5).backward()

    for step in range(3):
        if step == 1:
            before = len(reductions)
            with wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) else nullcontext():
                backward(10)
            assert len(reductions) == before
        backward(step)
        optimizer.step()
        optimizer.zero_grad()
    return [each.detach().clone() for each in towers.parameters()], reductions


@pytest.mark.parametrize("how", ["module", "function"])
def test_two_ranks_reduce_once_and_equal_one(two_ranks: Ranks, how: str) -> None:
    expected, _ = distributed(0, 1, how, None)
    for weights, reductions in two_ranks(distributed, how, 5):
        torch.testing.assert_close(weights, expected, atol=1e-12, rtol=0)
        assert reductions == [0, 0, 0]  # one bucket, once for each of three steps


def peak(pieces: bool) -> int:
    """The peak memory of one step in a process of its own, in bytes, above what it has before the step."""
    script = f"""
import resource, torch
from torch import nn
from antipodes import InfoNCE, chunked
torch.set_num_threads(1)
encoder = nn.Sequential(*(part for _ in range(12) for part in (nn.Linear(384, 384), nn.LayerNorm(384), nn.GELU())))
x = torch.randn(2, 2048, 384)
chunked(encoder, x[0, :64], 32).sum().backward()
def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = memory()
z1, z2 = (chunked(encoder, each, 64) if {pieces} else encoder(each) for each in x)
InfoNCE(0.1)(z1, z2).backward()
print(1024 * (memory() - before))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_2048_pairs_take_a_third_of_the_memory() -> None:
    assert peak(pieces=True) <= peak(pieces=False) / 3
