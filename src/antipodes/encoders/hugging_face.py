"""`HuggingFaceText`: text models of Hugging Face by name or folder; needs the package `transformers`."""

from collections.abc import Sequence
from typing import Any, Literal, cast

from torch import Tensor

from antipodes.encoders.text import TextEncoder, Tokenizer

IN_TRANSFORMERS = b"transformers"
"""The content of the vocabulary buffer: the tokenizer itself is loaded by `transformers`."""


class HuggingFaceText(TextEncoder):
    """A text model without its head: tokens (B, L) int64, 0 where padded, to features (B, hidden size).

    Args:
        model: the model's name on the hub, or a folder that `save_pretrained` wrote.
        pooling: "mean" over the tokens, or the "first" one, which BERT calls [CLS].
        max_length: the largest number of tokens, at most the model's number of positions; longer texts are cut.
        pretrained: load the weights; False reads the configuration only.

    `transformers` may download a model that is given by name. Its token numbers are shifted by one here, so that 0 is
    padding for every model.

    Raises:
        ValueError: transformers cannot be imported, or cannot load the model.
    """

    def __init__(
        self, model: str, pooling: Literal["mean", "first"] = "mean", max_length: int = 256, pretrained: bool = True
    ) -> None:
        super().__init__()
        if pooling not in ("mean", "first"):
            raise ValueError(f"pooling must be 'mean' or 'first', got {pooling!r}")
        try:
            import transformers
        except Exception as error:  # a torchvision built for another torch fails with RuntimeError, not ImportError
            raise ValueError(
                f"encoder 'hf:{model}' needs transformers, which cannot be imported here ({error}): "
                "pip install '.[text]', or choose one of the built-in encoders"
            ) from error
        try:
            config = transformers.AutoConfig.from_pretrained(model)
            self._shared: list[Any] = [transformers.AutoTokenizer.from_pretrained(model)]  # a list: not a submodule
            if pretrained:
                self.transformer: Any = transformers.AutoModel.from_pretrained(model)
            else:
                self.transformer = transformers.AutoModel.from_config(config)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(f"transformers could not load the text model 'hf:{model}': {first}") from error
        self.pooling = pooling
        self.max_length = min(max_length, getattr(config, "max_position_embeddings", None) or max_length)
        self.num_features = int(config.hidden_size)
        self.set_vocabulary(IN_TRANSFORMERS)

    def build_tokenizer(self, vocabulary: bytes) -> Tokenizer:
        """Return the model's own tokenizer, with shifted numbers."""
        return ShiftedTokens(self._shared[0], self.max_length)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the features (B, hidden size) of tokens (B, L)."""
        present = tokens != 0
        hidden = cast(Tensor, self.transformer(input_ids=(tokens - 1).clamp(min=0), attention_mask=present.long())[0])
        if self.pooling == "first":
            return hidden[:, 0]
        weight = present.unsqueeze(2).to(hidden.dtype)
        return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)


class ShiftedTokens:
    """A tokenizer of `transformers` whose numbers begin at 1."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self._tokenizer, self._max_length = tokenizer, max_length

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of every text, without padding."""
        found = self._tokenizer(list(texts), truncation=True, max_length=self._max_length, padding=False)["input_ids"]
        return [[number + 1 for number in row] for row in found]
