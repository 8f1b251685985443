"""Question and answer pairs with a guide that knows near duplicates: `python examples/text_pairs.py`."""

import torch
from torch import nn

from antipodes import Guided, InfoNCE, TableGuide


def main(n: int = 400, batch_size: int = 50, steps: int = 24) -> float:
    """Train two small towers and return the last loss."""
    torch.manual_seed(0)
    topics = torch.randn(n // 4, 32).repeat(4, 1)  # every topic has four questions: false negatives of each other
    questions, answers = (topics + 0.5 * torch.randn(n, 32) for _ in range(2))
    guide = TableGuide(topics + 0.1 * torch.randn(n, 32))  # vectors of a better model, by row; or a .npy file of them
    ask, answer = nn.Linear(32, 16), nn.Linear(32, 16)
    loss_fn = InfoNCE(temperature=0.05, negatives=Guided(margin=0.1))
    optimizer = torch.optim.Adam([*ask.parameters(), *answer.parameters()], lr=1e-2)
    loss = torch.tensor(0.0)
    for step in range(steps):
        ids = torch.randperm(n)[:batch_size]
        queries, documents, seen = ask(questions[ids]), answer(answers[ids]), guide(ids)
        loss = loss_fn(
            queries,
            documents,
            ids,
            candidates=documents,  # one direction: every other answer of the batch
            candidate_ids=ids,
            guide=(seen, seen),
            candidate_guide=seen,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 7:
            print(f"step {step}: loss {loss.item():.3f}, flagged {loss_fn.stats['flagged_share']:.1%} of the answers")
    return loss.item()


if __name__ == "__main__":
    main()
