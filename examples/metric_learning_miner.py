"""A policy as a miner of pytorch-metric-learning: `pip install pytorch-metric-learning`, then run this file."""

import torch
from pytorch_metric_learning.losses import NTXentLoss
from torch import nn

from antipodes import PositiveAware
from antipodes.integrations.metric_learning import PolicyMiner


def main(classes: int = 20, each: int = 10, batch_size: int = 50, epochs: int = 5) -> float:
    """Train a small encoder on classes of which two and two are one, and return the last loss."""
    torch.manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(each)
    centres = torch.randn(classes // 2, 32)[labels // 2]  # labels 0 and 1 name the same thing
    encoder = nn.Linear(32, 16)
    # a sample of another label that is nearer than the own label's, less 5 %, is taken for the same thing
    miner, loss_fn = PolicyMiner(PositiveAware(margin=0.05)), NTXentLoss(temperature=0.1)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-2)
    loss = torch.tensor(0.0)
    for epoch in range(epochs):
        same = listed = 0
        for batch in torch.randperm(len(labels)).split(batch_size):
            embeddings = encoder(centres[batch] + 0.3 * torch.randn(len(batch), 32))
            pairs = miner(embeddings, labels[batch])
            loss = loss_fn(embeddings, labels[batch], pairs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            names = labels[batch] // 2
            same, listed = same + int((names[pairs[2]] == names[pairs[3]]).sum()), listed + len(pairs[2])
        print(f"epoch {epoch}: loss {loss.item():.3f}, {same / max(listed, 1):.1%} of the negatives are the same thing")
    return loss.item()


if __name__ == "__main__":
    main()
