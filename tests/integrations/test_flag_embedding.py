"""FlagEmbedding's own loss and its own reader of training data, next to our line and to what `mine` writes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from antipodes import InfoNCE, OneWay, mine
from tests.integrations import peers

B, K, D, TAU = 6, 3, 5, 0.02


@pytest.mark.parametrize("in_batch", [True, False])
def test_the_loss_of_a_group_of_passages(in_batch: bool) -> None:
    theirs = peers.flag_embedding("AbsModeling").AbsEmbedderModel

    class Model(theirs):  # type: ignore[misc, valid-type]
        """The scores and the loss of its encoder-only embedder."""

        def encode(self, features: torch.Tensor) -> torch.Tensor:
            return F.normalize(features, dim=-1)

        def compute_score(self, q_reps: torch.Tensor, p_reps: torch.Tensor) -> torch.Tensor:
            return q_reps @ p_reps.T / self.temperature

        def compute_loss(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(scores, target)

        def save(self, output_dir: str) -> None: ...

    draw = torch.Generator().manual_seed(0)
    queries = torch.randn(B, D, generator=draw, dtype=torch.float64, requires_grad=True)
    groups = torch.randn(B, 1 + K, D, generator=draw, dtype=torch.float64, requires_grad=True)
    model = Model(None, temperature=TAU)
    expected = model(queries, groups.flatten(0, 1), no_in_batch_neg_flag=not in_batch).loss
    found = OneWay(InfoNCE(TAU), in_batch=in_batch)(queries, groups[:, 0], hard_negatives=groups[:, 1:])
    torch.testing.assert_close(found, expected)
    inputs = (queries, groups)
    torch.testing.assert_close(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs))


def test_mined_lists_are_read_by_their_dataset(tmp_path: Path) -> None:
    reader = peers.flag_embedding("AbsDataset").AbsEmbedderTrainDataset
    texts = [f"text {number}" for number in range(12)]
    vectors = dict(zip(texts, np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32), strict=True))
    mined = mine(
        texts[:3], texts[3:], [0, [1, 2], 3], encoder=lambda some: np.stack([vectors[each] for each in some]), k=2,
        margin=-2.0, relative=False, out=tmp_path / "negatives.jsonl", format="list",
    )  # fmt: skip
    arguments = SimpleNamespace(
        train_data=[str(tmp_path / "negatives.jsonl")], cache_path=str(tmp_path / "cache"), shuffle_ratio=0.0,
        max_example_num_per_dataset=100, knowledge_distillation=False, train_group_size=3,
        query_instruction_for_retrieval=None, passage_instruction_for_retrieval=None,
    )  # fmt: skip
    dataset = reader(arguments, tokenizer=None)
    assert len(dataset) == 3
    for row, positives in enumerate(([0], [1, 2], [3])):
        query, passages, _ = dataset[row]
        assert query == texts[row]
        assert passages[0] in [texts[3 + each] for each in positives]
        assert sorted(passages[1:]) == sorted(texts[3 + each] for each in mined.indices[row])
    assert json.loads((tmp_path / "negatives.jsonl").read_text().splitlines()[1])["pos"] == texts[4:6]
