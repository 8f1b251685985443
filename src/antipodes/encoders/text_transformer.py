"""CLIP's text transformer (Radford et al. 2021) with open_clip's parameter names.

Each token attends to those before it, and the features are those of the end token, which attends to all of them. The
state dict has the keys and shapes of open_clip's text tower except ``text_projection``, which is the head here, and has
the tokenizer in addition, as `vocabulary`.
"""

from collections.abc import Iterable
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from antipodes.encoders import byte_pairs as bpe
from antipodes.encoders.byte_pairs import TrainedTokenizer, train_bpe
from antipodes.encoders.text import TextEncoder, Tokenizer


class TextTransformer(TextEncoder):
    """A causal transformer: tokens (B, L) int64 to the normalised features (B, width) of the end token.

    Args:
        byte_pairs: "trained" learns byte pairs from the run's own texts (the package `tokenizers`); "clip" reads CLIP's
            own list from the installed package ``open_clip_torch``; the extras `text` and `open_clip` install them.
        vocabulary_size: number of tokens, start and end included; CLIP's list has 49408, which "clip" requires.
        width: length of a token's vector, and of the features.
        layers: number of blocks.
        heads: attention heads of every block; they share the width.
        max_length: texts are cut to so many tokens, start and end included.
        quick_gelu: use x sigmoid(1.702 x), with which OpenAI's weights were trained, instead of GELU.

    As in CLIP, the end token has the highest number, by which `forward` finds it.

    Raises:
        ValueError: a size is impossible, or CLIP's list is wanted and not installed.
    """

    def __init__(
        self,
        byte_pairs: Literal["trained", "clip"] = "trained",
        vocabulary_size: int | None = None,
        width: int = 256,
        layers: int = 4,
        heads: int = 4,
        max_length: int = 77,
        quick_gelu: bool = False,
    ) -> None:
        super().__init__()
        if byte_pairs not in ("trained", "clip"):
            raise ValueError(f"byte_pairs must be 'trained' or 'clip', got {byte_pairs!r}")
        size = vocabulary_size or (bpe.SIZE if byte_pairs == "clip" else 8192)
        if byte_pairs == "clip" and size != bpe.SIZE:
            raise ValueError(f"CLIP's vocabulary has {bpe.SIZE} tokens, not {size}: leave vocabulary_size out")
        if size < 258:
            raise ValueError(f"vocabulary_size must be at least 258, the bytes, start and end, got {size}")
        if min(width, layers, heads) < 1 or width % heads or max_length < 3:
            raise ValueError(
                f"width must be a multiple of heads, layers at least 1 and max_length at least 3, "
                f"got {width}, {heads}, {layers} and {max_length}"
            )
        self.byte_pairs, self.vocabulary_size, self.max_length = byte_pairs, size, max_length
        self.num_features = width
        self.token_embedding = nn.Embedding(size, width)
        self.positional_embedding = nn.Parameter(torch.empty(max_length, width))
        blocks = nn.ModuleList(TransformerBlock(width, heads, quick_gelu) for _ in range(layers))
        self.transformer = nn.ModuleDict({"resblocks": blocks})
        self.ln_final = nn.LayerNorm(width)
        self._initialise(width, layers)
        if byte_pairs == "clip" and (merges := bpe.find_merges()) is not None:
            self.set_vocabulary(merges)

    def _initialise(self, width: int, layers: int) -> None:
        """Set CLIP's initial scales."""
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.positional_embedding, std=0.01)
        for block in self.blocks():
            nn.init.normal_(block.attn.in_proj_weight, std=width**-0.5)
            nn.init.normal_(block.attn.out_proj.weight, std=width**-0.5 * (2 * layers) ** -0.5)
            nn.init.zeros_(block.attn.out_proj.bias)
            nn.init.normal_(cast(nn.Linear, block.mlp["c_fc"]).weight, std=(2 * width) ** -0.5)
            nn.init.normal_(cast(nn.Linear, block.mlp["c_proj"]).weight, std=width**-0.5 * (2 * layers) ** -0.5)

    def blocks(self) -> "list[TransformerBlock]":
        """Return the blocks in order."""
        return cast("list[TransformerBlock]", list(cast(nn.ModuleList, self.transformer["resblocks"])))

    def fit_tokenizer(self, texts: Iterable[str]) -> None:
        """Learn the byte pairs from texts; with CLIP's list, read it from the installed package.

        Raises:
            ValueError: there is no text, or CLIP's list is wanted and missing.
        """
        if self.byte_pairs == "trained":
            self.set_vocabulary(train_bpe(texts, self.vocabulary_size - 2))
        elif not len(self.vocabulary):
            self.set_vocabulary(bpe.read_merges())

    def build_tokenizer(self, vocabulary: bytes) -> Tokenizer:
        """Return the tokenizer for these byte pairs."""
        if self.byte_pairs == "clip":
            return bpe.ClipTokenizer(vocabulary, self.max_length)
        return TrainedTokenizer(vocabulary, self.vocabulary_size - 2, self.vocabulary_size - 1, self.max_length)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the features (B, width) of tokens (B, L)."""
        x = self.token_embedding(tokens) + self.positional_embedding[: tokens.shape[1]]
        for block in self.blocks():
            x = block(x)
        ends = x[torch.arange(len(tokens), device=tokens.device), tokens.argmax(dim=1)]
        return cast(Tensor, self.ln_final(ends))


class TransformerBlock(nn.Module):
    """Attention and a two-layer network, each normalised before and added: (B, L, width) -> (B, L, width)."""

    def __init__(self, width: int, heads: int, quick_gelu: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalAttention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})
        self.quick_gelu = quick_gelu

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        x = x + self.attn(self.ln_1(x))
        inner = self.mlp["c_fc"](self.ln_2(x))
        inner = inner * torch.sigmoid(1.702 * inner) if self.quick_gelu else F.gelu(inner)
        return x + cast(Tensor, self.mlp["c_proj"](inner))


class CausalAttention(nn.Module):
    """Attention of each token to itself and the tokens before it, with the parameters of `nn.MultiheadAttention`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: (B, L, width) -> (B, L, width)."""
        joined = F.linear(x, self.in_proj_weight, self.in_proj_bias)  # (B, L, 3 width)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in joined.chunk(3, dim=2))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # (B, heads, L, width / heads)
        return cast(Tensor, self.out_proj(seen.transpose(1, 2).flatten(2)))
