"""Recommend items to users: `python examples/two_tower.py table.csv` (also tsv, jsonl, parquet; columns user, item)."""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from antipodes import InfoNCE, Known, OneWay
from antipodes.tables import read_table, records


def main(path: str | None = None, epochs: int = 30, batch_size: int = 512) -> float:
    """Train two towers, print recall@20 and nDCG@20 next to those of popularity, and return the recall."""
    torch.manual_seed(0)
    made_up = [{"user": u, "item": u % 8 * 25 + u * i % 25} for u in range(200) for i in range(15)]
    rows = records(read_table(Path(path))) if path else made_up
    users, items = (number([row[name] for row in rows]) for name in ("user", "item"))
    split = torch.tensor([row.get("split", "train") != "train" for row in rows])
    test = split if split.any() else torch.rand(len(rows)) < 0.2
    seen, bought = users[~test], items[~test]
    counts = torch.bincount(bought, minlength=int(items.max()) + 1).float()
    wanted = torch.zeros(int(users.max()) + 1, len(counts)).index_put_((users[test], items[test]), torch.ones(()))
    log_q = (counts / counts.sum()).log()  # how often an item is in a batch: popular ones are negatives too often

    user_tower, item_tower = nn.Embedding(int(users.max()) + 1, 64), nn.Embedding(len(counts), 64)
    history = Known.from_pairs(seen, bought)  # what a user has bought is no negative of this user
    loss_fn = OneWay(InfoNCE(0.1, history))
    optimizer = torch.optim.Adam([user_tower.weight, item_tower.weight], lr=0.01)
    for batch in (part for _ in range(epochs) for part in torch.randperm(len(seen)).split(batch_size)):
        u, i = seen[batch], bought[batch]
        loss = loss_fn(user_tower(u), item_tower(i), (u, i), log_q=log_q[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    u, i = (nn.functional.normalize(tower.weight.detach(), dim=1) for tower in (user_tower, item_tower))
    for name, scores in (("popularity", counts.expand(len(u), -1).clone()), ("two towers", u @ i.T)):
        scores[seen, bought] = -torch.inf
        recall, ndcg = rank(scores.topk(20).indices, wanted)
        print(f"{name}: recall@20 {recall:.3f}, nDCG@20 {ndcg:.3f}")
    return recall


def rank(top: Tensor, wanted: Tensor) -> tuple[float, float]:
    """Recall and nDCG of recommendations (U, k), means over the users with wanted items, ones in (U, I)."""
    hits, count, discounts = wanted.gather(1, top), wanted.sum(1), 1 / torch.arange(2, top.shape[1] + 2).log2()
    best = torch.cat((torch.zeros(1), discounts.cumsum(0)))[count.long().clamp(max=len(discounts))]
    return (hits.sum(1) / count)[count > 0].mean().item(), (hits @ discounts / best)[count > 0].mean().item()


def number(names: list[object]) -> Tensor:
    """The names of a column as whole numbers from 0."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([places[name] for name in names])


if __name__ == "__main__":
    main(*sys.argv[1:2])
