"""GloFND in a Trainer of Hugging Face, on random vectors: `pip install transformers accelerate`, then run this file."""

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from antipodes import GloFND, InfoNCE
from antipodes.integrations.hugging_face import attach


class Contrastive(nn.Module):
    """An encoder and its loss, whose thresholds are in the checkpoints because it is an attribute."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
        self.loss_fn = InfoNCE(temperature=0.1, negatives=GloFND(num_samples=n, alpha=0.02, start=0.3))

    def forward(self, inputs: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """The loss of two noisy views; `attach` tells it how much of the training is done."""
        first, second = (self.encoder(inputs + 0.1 * torch.randn_like(inputs)) for _ in range(2))
        return {"loss": self.loss_fn(first, second, ids)}


def main(n: int = 256, batch_size: int = 64, epochs: int = 3) -> float:
    """Train a small encoder and return the last loss of the log."""
    torch.manual_seed(0)
    vectors = torch.randn(n, 32)
    arguments = TrainingArguments(
        "run",
        num_train_epochs=epochs,
        per_device_train_batch_size=batch_size,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
    )
    data = [{"inputs": vector, "ids": row} for row, vector in enumerate(vectors)]
    trainer = Trainer(Contrastive(n), arguments, train_dataset=data)
    attach(trainer)  # progress, the loss's statistics in the log, and its state in every checkpoint
    trainer.train()
    steps = [log for log in trainer.state.log_history if "loss" in log]
    print(f"loss {steps[-1]['loss']:.3f}, {steps[-1]['loss/flagged_share']:.1%} of the pairs flagged")
    return float(steps[-1]["loss"])


if __name__ == "__main__":
    main()
