"""MoCo with a ring of hard negatives from its queue: `python examples/momentum_queue.py`."""

import copy

import torch
from torch import nn

from antipodes import InfoNCE, Ring
from antipodes.candidates import Queue


def main(n: int = 512, batch_size: int = 64, steps: int = 24) -> float:
    """Train a small encoder and return its last loss."""
    torch.manual_seed(0)
    images = torch.randn(n, 3, 16, 16)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(768, 128), nn.ReLU(), nn.Linear(128, 64))
    key_encoder = copy.deepcopy(encoder).requires_grad_(False)
    queue = Queue(size=256, dim=64)
    loss_fn = InfoNCE(temperature=0.07, negatives=Ring(outer=(1.0, 0.1), inner=0.1), total_steps=steps)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        ids = torch.randperm(n)[:batch_size]
        first, second = (images[ids] + 0.1 * torch.randn_like(images[ids]) for _ in range(2))
        with torch.no_grad():
            keys = nn.functional.normalize(key_encoder(second), dim=1)
        loss = loss_fn(encoder(first), keys, ids, candidates=queue.keys, candidate_ids=queue.ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue.push(keys, ids)  # after the loss: a key is never its own query's negative
        with torch.no_grad():
            for slow, fast in zip(key_encoder.parameters(), encoder.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        if step % 8 == 7:
            print(f"step {step}: loss {loss.item():.3f}, kept {loss_fn.stats['kept_per_anchor']:.0f} of the queue")
    return loss.item()


if __name__ == "__main__":
    main()
