"""What the kernels do to a step: numbers read back from tensors, graph breaks, autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from antipodes.functional import masks, plan, tensors
from antipodes.functional.contrast import contrast, contrast_both, sigmoid_sums
from antipodes.functional.rule import Rule

READS = ("item", "tolist", "nonzero", "__bool__", "__int__", "__float__", "__index__")


class Counted:
    """Counts what is read back from tensors to Python, each of which stalls a GPU.

    Tensors are taken for a GPU's, unless `host` says that they are where they are.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host: bool = False) -> None:
        self.reads: list[str] = []
        for module in () if host else (tensors, masks, plan):
            monkeypatch.setattr(module, "on_host", lambda tensor: False)
        for name in READS:
            monkeypatch.setattr(Tensor, name, self._counting(name, getattr(Tensor, name)))

    def _counting(self, name: str, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.reads.append(name)
            return original(*args, **kwargs)

        return call


def views(pairs: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return normalize(torch.randn(2 * pairs, 16, generator=generator), dim=1).requires_grad_()


@pytest.mark.parametrize("pairs", [16, 400])
@pytest.mark.parametrize("ceiling", [False, True])
def test_a_call_with_its_backward_reads_one_number(pairs: int, ceiling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    anchors, ids = views(pairs), torch.arange(pairs).repeat(2)
    rules = Rule(ceiling=torch.full((2 * pairs,), 0.5)) if ceiling else Rule()
    counted = Counted(monkeypatch)
    softplus(contrast(anchors, anchor_ids=ids, temperature=0.1, rules=rules).log_sum).mean().backward()
    assert len(counted.reads) <= 1
    counted.reads.clear()
    first, second = anchors.chunk(2)
    halves = {"first_ids": ids[:pairs], "second_ids": ids[:pairs], "temperature": torch.tensor(0.1, requires_grad=True)}
    one, other = contrast_both(first, second, **halves)
    (one.log_sum.mean() + other.log_sum.mean()).backward()
    assert len(counted.reads) <= 1
    counted.reads.clear()
    sigmoid_sums(anchors, anchor_ids=ids, temperature=0.1, bias=-1.0, rules=rules).loss_sum.mean().backward()
    assert len(counted.reads) <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(dtype: torch.dtype) -> None:
    anchors, ids = views(16), torch.arange(16).repeat(2)
    for block in (8, None):
        plain = contrast(anchors, anchor_ids=ids, temperature=0.05, block=block)
        with torch.autocast("cpu", dtype=dtype):
            cast = contrast(anchors, anchor_ids=ids, temperature=0.05, block=block)
        assert torch.equal(plain.log_sum, cast.log_sum)


def test_a_compiled_step_breaks_once_and_does_not_compile_again() -> None:
    layer, ids = nn.Linear(8, 8), torch.arange(6)

    def step(inputs: Tensor) -> Tensor:
        embeddings = normalize(layer(inputs), dim=1)
        sums = contrast(embeddings, anchor_ids=ids, temperature=0.1)
        return softplus(sums.log_sum - 1.0).mean()

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(step, backend="eager")
    for seed in range(3):
        inputs = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(compiled(inputs), step(inputs))
    compiled(inputs).backward()
    # one graph before the kernel and one after it, whatever the inputs
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    torch._dynamo.reset()
