"""SimCLR with GloFND in a loop of one's own, on random pictures: `python examples/plain_loop.py`."""

import torch
from torch import nn

from antipodes import GloFND, InfoNCE


def main(n: int = 512, batch_size: int = 64, epochs: int = 3) -> float:
    """Train a small encoder and return its last loss."""
    torch.manual_seed(0)
    images = torch.randn(n, 3, 16, 16)
    encoder = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(64))
    encoder(images[:2])  # the lazy layer learns its width
    loss_fn = InfoNCE(temperature=0.1, negatives=GloFND(num_samples=n, alpha=0.02, start=0.3))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)
    total, done, loss = epochs * (n // batch_size), 0, torch.tensor(0.0)
    for epoch in range(epochs):
        for ids in torch.randperm(n).split(batch_size):  # positions in the dataset
            z1, z2 = (encoder(images[ids] + 0.1 * torch.randn_like(images[ids])) for _ in range(2))
            loss = loss_fn(z1, z2, ids, progress=done / total)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
        numbers = {name: round(value, 4) for name, value in loss_fn.stats.items()}
        print(f"epoch {epoch}: loss {loss.item():.3f}, {numbers}")
    torch.save({"encoder": encoder.state_dict(), "loss": loss_fn.state_dict()}, "plain_loop.pt")  # thresholds, too
    return loss.item()


if __name__ == "__main__":
    main()
