import pytest
import torch
from torch import nn

from antipodes.data.dataset import TensorImages
from antipodes.evaluation.features import FeatureSet, split_features
from antipodes.runs.embedding import embed_dataset


def images(count: int = 7) -> TensorImages:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 4, 4), generator=generator, dtype=torch.uint8)
    return TensorImages(pixels, torch.arange(count) % 2)


def scale(batch: torch.Tensor) -> torch.Tensor:
    return batch.float() / 255


class Lazy(TensorImages):
    """Pretends to decode, so that worker processes fetch the images."""

    in_memory = False


class Pool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.frozen = nn.BatchNorm2d(3).eval()
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.seen.append((self.training, batch.is_contiguous(memory_format=torch.channels_last)))
        outputs: torch.Tensor = self.frozen(self.norm(batch))
        return outputs.mean((2, 3))


def test_rows_follow_the_ids_and_include_the_last_short_batch() -> None:
    dataset = images(7)
    progress: list[tuple[int, int]] = []
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    features = embed_dataset(
        encoder, dataset, preprocess=scale, batch_size=3, progress=lambda done, total: progress.append((done, total))
    )
    expected = encoder(scale(dataset.images))
    assert features.shape == (7, 5)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, expected)
    assert progress == [(3, 7), (6, 7), (7, 7)]


def test_worker_processes_give_the_same_rows() -> None:
    dataset = images(7)
    lazy = Lazy(dataset.images, dataset.labels)
    encoder = nn.Flatten()
    whole = embed_dataset(encoder, dataset, preprocess=scale)
    assert torch.equal(embed_dataset(encoder, lazy, preprocess=scale, batch_size=2, workers=1), whole)


def test_encoder_runs_in_evaluation_mode_and_every_part_gets_its_mode_back() -> None:
    encoder = Pool().train()
    encoder.frozen.eval()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    embed_dataset(encoder, images(), preprocess=scale, batch_size=4)
    assert encoder.seen == [(False, True), (False, True)]  # evaluation mode, channels last
    assert encoder.training
    assert encoder.norm.training
    assert not encoder.frozen.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_mode_is_restored_when_the_encoder_fails() -> None:
    encoder = nn.Sequential(nn.Conv2d(4, 2, 1))
    with pytest.raises(RuntimeError):
        embed_dataset(encoder, images(), preprocess=scale)
    assert encoder.training


def test_features_may_meet_autograd() -> None:
    features = embed_dataset(nn.Flatten(), images(), preprocess=scale)
    weight = torch.ones(48, requires_grad=True)
    (gradient,) = torch.autograd.grad((features @ weight).sum(), weight)
    torch.testing.assert_close(gradient, features.sum(0))


def test_half_precision_output_becomes_float32() -> None:
    assert embed_dataset(nn.Flatten(), images(), preprocess=lambda batch: scale(batch).half()).dtype == torch.float32


def test_refuses_an_encoder_without_pooling_and_an_empty_dataset() -> None:
    with pytest.raises(ValueError, match="pool and flatten"):
        embed_dataset(nn.Identity(), images(), preprocess=scale)
    with pytest.raises(ValueError, match="empty"):
        embed_dataset(nn.Flatten(), images(0), preprocess=scale)


def test_split_features_is_stratified_and_keeps_rows_together() -> None:
    labels = torch.tensor([0] * 10 + [1] * 20)
    whole = FeatureSet(torch.arange(30.0)[:, None], labels, labels + 5)
    train, test = split_features(whole, fraction=0.2, seed=3)
    for part, counts in ((train, [8, 16]), (test, [2, 4])):
        assert part.labels is not None
        assert part.coarse_labels is not None
        rows = part.features[:, 0].long()
        assert part.labels.bincount().tolist() == counts
        assert torch.equal(part.labels, labels[rows])
        assert torch.equal(part.coarse_labels, labels[rows] + 5)
    assert sorted(torch.cat([train.features, test.features])[:, 0].tolist()) == list(range(30))


def test_split_features_without_labels_is_plain() -> None:
    train, test = split_features(FeatureSet(torch.zeros(10, 2)))
    assert (len(train.features), len(test.features)) == (8, 2)
    assert train.labels is None
