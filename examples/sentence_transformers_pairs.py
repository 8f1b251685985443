"""Pairs with repeated texts in the trainer of sentence-transformers: `python examples/sentence_transformers_pairs.py`.

Several questions have the same answer, and some come twice. With ids="content", the default, no question is pushed away
from its own answer because another pair of the batch has that answer, too.
"""

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments

from antipodes import PositiveAware
from antipodes.integrations.sentence_transformers import MultipleNegativesRankingLoss, attach

ANSWERS = {
    "You can reset it in the settings, under security.": ["I forgot my password", "How do I change my password?"],
    "Cards arrive within five working days.": ["Where is my new card?", "How long does a card take?"],
    "A transfer abroad takes up to two days.": ["My transfer has not arrived", "How long does a transfer take?"],
    "We charge nothing for cash in your own country.": ["Is there a fee for cash?", "What does a withdrawal cost?"],
}


def main(encoder: str = "sentence-transformers/all-MiniLM-L6-v2", epochs: int = 2) -> float:
    """Train on the pairs and return how many candidates an anchor has as negatives, on average."""
    pairs = [(question, answer) for answer, questions in ANSWERS.items() for question in questions * 2]
    data = Dataset.from_dict({"anchor": [each[0] for each in pairs], "positive": [each[1] for each in pairs]})
    model = SentenceTransformer(encoder, device="cpu")
    # a document that is nearer to the question than its answer by more than 0.1 is taken for a right answer as well
    loss = MultipleNegativesRankingLoss(model, negatives=PositiveAware(-0.1, relative=False))
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir="run",
            num_train_epochs=epochs,
            per_device_train_batch_size=8,
            logging_steps=1,
            save_strategy="epoch",
            use_cpu=True,
            report_to="none",
        ),
        train_dataset=data,
        loss=loss,
    )
    attach(trainer)  # hashes the texts, logs our numbers, keeps the loss's tables in the checkpoints
    trainer.train()
    kept = [log["antipodes/kept_per_anchor"] for log in trainer.state.log_history if "loss" in log]
    print(f"{sum(kept) / len(kept):.2f} of the 7 other answers in a batch count as negatives")
    return sum(kept) / len(kept)


if __name__ == "__main__":
    main()
