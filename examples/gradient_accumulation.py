"""A batch that does not fit: embed in parts, compare as a whole: `python examples/gradient_accumulation.py`."""

import torch
from torch import nn

from antipodes import FNC, InfoNCE


def main(n: int = 512, batch_size: int = 128, part: int = 32, steps: int = 6) -> float:
    """Train a small encoder and return its last loss."""
    torch.manual_seed(0)
    images = torch.randn(n, 3, 16, 16)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(768, 128), nn.ReLU(), nn.Linear(128, 64))
    loss_fn = InfoNCE(temperature=0.1, negatives=FNC(alpha=0.02))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    loss = torch.tensor(0.0)
    for step in range(steps):
        ids = torch.randperm(n)[:batch_size]
        views = torch.cat([images[ids] + 0.1 * torch.randn_like(images[ids]) for _ in range(2)])
        with torch.no_grad():  # first pass: all embeddings, no graph
            embeddings = torch.cat([encoder(some) for some in views.split(part)])
        embeddings.requires_grad_()
        loss = loss_fn(*embeddings.chunk(2), ids)
        loss.backward()  # what every embedding wants, seen the whole batch
        assert embeddings.grad is not None
        optimizer.zero_grad()
        for some, gradient in zip(views.split(part), embeddings.grad.split(part), strict=True):
            encoder(some).backward(gradient)  # second pass: a part at a time
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")
    return loss.item()


if __name__ == "__main__":
    main()
