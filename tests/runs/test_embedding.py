"""Features of a whole dataset: every row in its place, whatever the input, the batch size and the mode it came in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from antipodes.data import Raw
from antipodes.runs.embedding import embed_dataset, embed_distinct
from tests.training.paired import FEATURES, Paired


def scaled(images: Raw) -> Tensor:
    assert isinstance(images, Tensor)
    return images.float() / 255


def same(vectors: Raw) -> Tensor:
    assert isinstance(vectors, Tensor)
    return vectors


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_rows_are_in_their_places(batch_size: int) -> None:
    data, encoder = Paired(20), nn.Flatten()
    features = embed_dataset(encoder, data, preprocess=scaled, batch_size=batch_size)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, (data.images.float() / 255).flatten(1))


def test_an_input_is_asked_for_by_name() -> None:
    data, encoder = Paired(20), nn.Linear(FEATURES, 3)
    features = embed_dataset(encoder, data, preprocess=same, input_name="vector")
    torch.testing.assert_close(features, encoder(data.vectors).detach())
    assert not features.requires_grad
    assert not features.is_inference()  # it may meet autograd later


def test_texts_are_given_as_they_are() -> None:
    class Texts(Paired):
        modalities = {"text": "text"}

        def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> dict[str, Raw]:
            return {"text": ["a" * row for row in rows.tolist()]}

    features = embed_dataset(
        nn.Identity(), Texts(5), preprocess=lambda texts: torch.tensor([[float(len(t))] for t in texts])
    )
    assert features[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_an_input_that_rows_share_is_embedded_once() -> None:
    class Shared(Paired):
        def repeated(self, name: str) -> tuple[Tensor, Tensor] | None:
            return (torch.tensor([0, 4]), torch.tensor([0, 0, 0, 0, 1, 1])) if name == "image" else None

        def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> dict[str, Raw]:
            return super().inputs(torch.tensor([0, 0, 0, 0, 4, 4])[rows], draw)

    seen: list[int] = []

    class Counted(nn.Flatten):
        def forward(self, inputs: Tensor) -> Tensor:
            seen.append(len(inputs))
            return super().forward(inputs)

    options = {"preprocess": scaled, "input_name": "image"}
    once = embed_distinct(Counted(), Shared(6), **options)
    assert sum(seen) == 2
    torch.testing.assert_close(once, embed_dataset(Counted(), Shared(6), **options))
    assert embed_distinct(Counted(), Paired(6), **options).shape == once.shape
    assert sum(seen) == 2 + 6 + 6


def test_every_part_is_back_in_its_mode() -> None:
    encoder = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Dropout(0.5)).train()
    encoder[1].eval()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    first, again = (embed_dataset(encoder, Paired(8), preprocess=scaled) for _ in range(2))
    assert torch.equal(first, again)  # no dropout
    assert [module.training for module in encoder] == [True, False, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


def test_progress_counts_rows() -> None:
    seen: list[tuple[int, int]] = []
    embed_dataset(nn.Flatten(), Paired(20), preprocess=scaled, batch_size=8, progress=lambda *now: seen.append(now))
    assert seen == [(8, 20), (16, 20), (20, 20)]


def test_what_is_not_features_is_refused() -> None:
    with pytest.raises(ValueError, match=r"into features \(20, F\), got \(20, 3, 8, 8\): pool and flatten its output"):
        embed_dataset(nn.Identity(), Paired(20), preprocess=scaled)
    with pytest.raises(ValueError, match="the dataset is empty"):
        embed_dataset(nn.Flatten(), Paired(0), preprocess=scaled)
