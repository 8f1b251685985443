"""A small model of transformers, for every test that needs one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integrations.peers import WORDS


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random transformer with a vocabulary of whole words, in transformers' format."""
    transformers = pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("model")
    vocabulary = {word: number for number, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS))}
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=5 + len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(place)
    tokenizer = transformers.BertTokenizer(vocab=vocabulary)
    assert tokenizer.tokenize("red king") == ["red", "king"]
    tokenizer.save_pretrained(place)
    return place
