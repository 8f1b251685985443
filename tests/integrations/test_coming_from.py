"""The snippets of docs/coming-from.md that need no trainer of another library run as they are."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
SECTIONS = {part.splitlines()[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}
B, D = 8, 64


def names() -> dict[str, Any]:
    """What a training has at hand."""
    vectors = torch.randn(4, B, D, generator=torch.Generator().manual_seed(0)).unbind()
    first, second, *_ = (torch.nn.functional.normalize(each, dim=1) for each in vectors)
    return {
        "rank": 0, "world_size": 1, "n": 100, "step": 5, "steps": 10, "ids": torch.arange(B), "log_q": -torch.rand(B),
        "model_out": {"image_features": first, "text_features": second, "logit_scale": torch.tensor(10.0)},
        "z0": first.requires_grad_(), "z1": second, "embeddings": first, "labels": torch.arange(B) // 2,
        "users": first, "items": second, "user_ids": torch.arange(B), "item_ids": torch.arange(B) // 2,
        "all_user_ids": torch.arange(B), "all_item_ids": torch.arange(B) % 3,
        "queries": first, "passages": second, "hard": torch.randn(B, 7, D),
        "query_texts": [f"question {i}" for i in range(B)], "passage_texts": [f"answer {i // 2}" for i in range(B)],
    }  # fmt: skip


@pytest.mark.parametrize("title", ["open_clip", "lightly", "pytorch-metric-learning", "TFRS", "FlagEmbedding"])
def test_a_snippet_runs(title: str) -> None:
    codes = re.findall(r"```python\n(.*?)```", SECTIONS[title], re.DOTALL)
    assert codes
    for code in codes:
        if "pytorch_metric_learning" in code and importlib.util.find_spec("pytorch_metric_learning") is None:
            pytest.skip("pytorch-metric-learning is in the extra bench")
        here = names()
        exec(code, here)
        found = here["losses"]["contrastive_loss"] if title == "open_clip" else here["loss"]
        assert math.isfinite(found.item())
