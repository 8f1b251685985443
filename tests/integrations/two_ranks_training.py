"""A training by sentence-transformers' trainer, in as many processes as torchrun starts.

`python -m torch.distributed.run --nproc_per_node 2 -m tests.integrations.two_ranks_training MODEL OUT PAIRS`
"""

from __future__ import annotations

import json
import os
import sys

from antipodes import GloFND

BATCH = 8  # of all processes


def main(model: str, out: str, pairs: str) -> None:
    """Train for two epochs and write checkpoints, which hold the weights, the tables and the log."""
    # here, because other tests look into this file where these are not installed
    import datasets
    import sentence_transformers

    from antipodes.integrations.sentence_transformers import MultipleNegativesRankingLoss, attach

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    with open(pairs) as file:
        data = datasets.Dataset.from_dict(json.load(file))
    encoder = sentence_transformers.SentenceTransformer(model, device="cpu")
    policy = GloFND(num_samples=len(data), alpha=0.2, start=0.1)
    loss = MultipleNegativesRankingLoss(encoder, gather_across_devices=True, negatives=policy)
    trainer = sentence_transformers.SentenceTransformerTrainer(
        model=encoder,
        args=sentence_transformers.SentenceTransformerTrainingArguments(
            output_dir=out, per_device_train_batch_size=BATCH // ranks, num_train_epochs=2, optim="sgd",
            learning_rate=0.05, logging_steps=1, save_strategy="epoch", seed=0,
            report_to="none", use_cpu=True, disable_tqdm=True, ddp_backend="gloo" if ranks > 1 else None,
        ),
        train_dataset=data,
        loss=loss,
    )  # fmt: skip
    attach(trainer)
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
