"""lightly's NTXentLoss with FNC and a memory bank that is saved: `python examples/lightly_views.py`."""

import torch
from torch import nn

from antipodes import FNC
from antipodes.integrations.lightly import NTXentLoss


def main(n: int = 256, batch_size: int = 32, epochs: int = 3) -> float:
    """Train a small encoder, save it with its bank, and return the last loss."""
    torch.manual_seed(0)
    images = torch.randn(n, 3, 8, 8)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 32))
    steps = epochs * (n // batch_size)
    criterion = NTXentLoss(memory_bank_size=(128, 32), temperature=0.1, negatives=FNC(alpha=0.05), total_steps=steps)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.06)
    loss = torch.tensor(0.0)
    for epoch in range(epochs):
        for ids in torch.randperm(n).split(batch_size):
            x0, x1 = (images[ids] + 0.1 * torch.randn_like(images[ids]) for _ in range(2))
            loss = criterion(encoder(x0), encoder(x1), ids=ids)  # ids: stale keys of a sample are no negatives of it
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, {criterion.stats['kept_per_anchor']:.0f} keys an anchor")
    torch.save({"encoder": encoder.state_dict(), "criterion": criterion.state_dict()}, "lightly.pt")  # with the bank
    return loss.item()


if __name__ == "__main__":
    main()
