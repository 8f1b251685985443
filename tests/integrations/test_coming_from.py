"""The snippets of docs/coming-from.md and of the skill that need no trainer of another library run as they are."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import antipodes

ROOT = Path(__file__).parents[2]
PAGES = [(ROOT / name).read_text() for name in ("docs/coming-from.md", "skills/antipodes/SKILL.md")]
SECTIONS = {part.splitlines()[0]: part for page in PAGES for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]}
OF_TRAINERS = (
    "sentence-transformers",
    "Recipe: pairs in the trainer of sentence-transformers",
    "Lightning and Hugging",
)
TITLES = [title for title, part in SECTIONS.items() if "```python" in part and not title.startswith(OF_TRAINERS)]
B, D = 8, 64


def names() -> dict[str, Any]:
    """What a training has at hand."""
    vectors = torch.randn(4, B, D, generator=torch.Generator().manual_seed(0)).unbind()
    first, second, *_ = (torch.nn.functional.normalize(each, dim=1) for each in vectors)
    return {
        "rank": 0, "world_size": 1, "n": 100, "step": 5, "steps": 10, "ids": torch.arange(B), "log_q": -torch.rand(B),
        "model_out": {"image_features": first, "text_features": second, "logit_scale": torch.tensor(10.0)},
        "z0": first.requires_grad_(), "z1": second, "embeddings": first, "labels": torch.arange(B) // 2,
        "images": first, "captions": second, "image_ids": torch.arange(B) // 2,
        "users": first, "items": second, "user_ids": torch.arange(B), "item_ids": torch.arange(B) // 2,
        "all_user_ids": torch.arange(B), "all_item_ids": torch.arange(B) % 3,
        "queries": first, "passages": second, "hard": torch.randn(B, 7, D),
        "query_texts": [f"question {i}" for i in range(B)], "passage_texts": [f"answer {i // 2}" for i in range(B)],
    }  # fmt: skip


def test_every_library_and_recipe_has_a_snippet() -> None:
    assert TITLES[:5] == ["open_clip", "lightly", "pytorch-metric-learning", "TFRS", "FlagEmbedding"]
    assert len(TITLES) == 9


@pytest.mark.parametrize("title", TITLES)
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


THEIRS = {  # TFRS 0.7.7: the loss, the norms of the gradients of q and c, and the first number of each
    "Retrieval()(q, c)": (22.17144, 5.86148, 5.31922, -1.63175, -0.03223),
    "Retrieval(temperature=0.2)(q, c)": (68.04955, 34.72566, 31.98453, -9.69403, 1.75946),
    "Retrieval(remove_accidental_hits=True)(q, c, candidate_ids=item_ids)": (
        21.568707, 5.99949, 5.1257, -1.68056, 0.12219
    ),
    "Retrieval()(q, c, candidate_sampling_probability=p)": (23.89892, 5.83766, 5.65584, -1.50146, -0.14619),
    "Retrieval(num_hard_negatives=3)(q, c)": (20.685741, 6.5251, 5.64967, -1.81706, -0.03683),
}  # fmt: skip


@pytest.mark.parametrize("line", THEIRS)
def test_a_line_for_tfrs_gives_its_numbers(line: str) -> None:
    ours = dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", SECTIONS["TFRS"], flags=re.MULTILINE))
    count = torch.arange(5 * B).double()
    q, c = (each.float().reshape(B, 5).requires_grad_() for each in (count.sin(), (1.7 * count).cos()))
    ids = {"user_ids": torch.arange(B), "item_ids": antipodes.content_ids(list("abacdecf"))}
    here = {name: getattr(antipodes, name) for name in ("Hardest", "InfoNCE", "OneWay")}
    value = B * eval(ours[line], here | ids | {"q": q, "c": c, "p": torch.arange(1, B + 1) / 40})
    value.backward()
    assert q.grad is not None
    assert c.grad is not None
    found = (value, q.grad.norm(), c.grad.norm(), q.grad[0, 0], c.grad[0, 0])
    assert [each.item() for each in found] == pytest.approx(THEIRS[line], abs=1e-5, rel=1e-5)
