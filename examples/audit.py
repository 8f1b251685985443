"""Find what is the same, and keep a loss from pushing it apart: `python examples/audit.py`, in a folder of one's own.

`antipodes audit path/to/photos --out audit` does the first half for photos. This does it for any embeddings.
"""

import json
import subprocess
import sys

import numpy as np
import torch
from torch import nn

from antipodes import InfoNCE, Known


def main(n: int = 400, copies: int = 40, batch_size: int = 100) -> float:
    """Audit embeddings of which some are copies, train with the groups that were found, and return the last loss."""
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(n, 32)).astype(np.float32)
    vectors[-copies:] = vectors[:copies] + 0.02 * generator.normal(size=(copies, 32))  # the same, a little changed
    paths = np.array([f"photo-{number:03}.jpg" for number in range(n)])
    np.savez("photos.npz", embeddings=vectors, paths=paths)  # as antipodes embed writes them

    call = ["audit", "photos.npz", "--out", "audit", "--batch_size", str(batch_size), "--json"]
    answer = subprocess.run([sys.executable, "-m", "antipodes", *call], check=True, capture_output=True, text=True)
    print(json.dumps(json.loads(answer.stdout), indent=1)[:600])  # the page is audit/report.html

    known = Known.read("audit/groups.parquet", num_samples=n)
    print(f"{int((known.groups >= 0).sum())} of {n} samples are in groups")
    loss_fn = InfoNCE(temperature=0.1, negatives=known)
    torch.manual_seed(0)
    inputs, encoder = torch.from_numpy(vectors), nn.Linear(32, 16)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    loss = torch.tensor(0.0)
    for ids in torch.randperm(n).split(batch_size):
        first, second = (encoder(inputs[ids] + 0.1 * torch.randn(len(ids), 32)) for _ in range(2))
        loss = loss_fn(first, second, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{100 * loss_fn.stats['flagged_share']:.2f} % of the last batch's pairs were left alone")
    return loss.item()


if __name__ == "__main__":
    main()
