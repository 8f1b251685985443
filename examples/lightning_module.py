"""GloFND in a LightningModule, on random pictures: `pip install lightning`, `python examples/lightning_module.py`."""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from antipodes import GloFND, InfoNCE
from antipodes.integrations.lightning import LossCallback


class TwoViews(Dataset[tuple[int, Tensor, Tensor]]):
    """Every picture twice, a little changed, with its position in the dataset."""

    def __init__(self, n: int) -> None:
        self.images = torch.randn(n, 3, 16, 16)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[int, Tensor, Tensor]:
        first, second = (self.images[i] + 0.1 * torch.randn(3, 16, 16) for _ in range(2))
        return i, first, second


class Contrastive(lightning.LightningModule):
    """An encoder and its loss, whose thresholds are in the checkpoint because it is an attribute."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(784, 64))
        self.loss_fn = InfoNCE(temperature=0.1, negatives=GloFND(num_samples=n, alpha=0.02, start=0.3))

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], _: int) -> Tensor:
        """The loss of one batch; the callback tells it how much of the training is done, and logs its statistics."""
        ids, first, second = batch
        loss: Tensor = self.loss_fn(self.encoder(first), self.encoder(second), ids)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.encoder.parameters(), lr=0.05, momentum=0.9)


def main(n: int = 256, batch_size: int = 64, epochs: int = 3) -> float:
    """Train a small encoder and return its last loss. On several GPUs use DDPStrategy(broadcast_buffers=False)."""
    lightning.seed_everything(0)
    options = {"accelerator": "cpu", "logger": False, "log_every_n_steps": 1}
    trainer = lightning.Trainer(max_epochs=epochs, callbacks=[LossCallback()], **options)
    trainer.fit(Contrastive(n), DataLoader(TwoViews(n), batch_size, shuffle=True))
    return float(trainer.callback_metrics["loss"])


if __name__ == "__main__":
    print(main())
