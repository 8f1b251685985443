"""The guides of a run, by the names of the registry: a table, a frozen network, patches, the samples' history, the
momentum network; and how a method gets to look through one."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antipodes.data import Samples, subset
from antipodes.data.loader import batches
from antipodes.encoders.heads import embedding_length
from antipodes.encoders.loading import LoadedEncoder, load, normalised
from antipodes.encoders.patches import PatchEncoder, spread
from antipodes.guides import GuideSource, HistoryGuide, LaterGuide, MomentumKeys, RowGuides, RunGuide, TableGuide
from antipodes.losses import Loss
from antipodes.methods import Method
from antipodes.negatives import Guided, Policy, PositiveAware
from antipodes.pairs import normalise
from antipodes.runs.locked import kept_features

Say = Callable[[str], None] | None
BATCH = 256
_BLOCK = 2**16  # rows of a table that are checked at a time


def table_guide(
    data: Samples, method: Method, path: str, second: str | None = None, dim: int | None = None
) -> RowGuides:
    """Vectors of any model, by row of the dataset.

    Args:
        data: The training split.
        method: Whose towers look through it.
        path: A .npy, .npz or .safetensors file of (n, G) in the order of the rows, mapped into memory; an .npz that
            antipodes embed wrote is matched by its paths.
        second: The same rows in the candidates' modality, for methods of two inputs and a model that has both in one
            space; without it one vector stands for all inputs of a row.
        dim: Take the mean of all vectors away and keep this many directions, those in which they vary most: better
            eyes, and cheaper ones. By default they stay as they are.
    """
    towers = method.network.names()
    if second is not None and dim is not None:
        raise ValueError("guide.dim is for one table, as two would be turned apart: leave out one of dim and second")
    if second is not None and len(towers) != 2:
        raise ValueError(f"guide.second is for a method of two inputs, and this one has {len(towers)}: leave it out")
    first = LaterGuide(lambda say: _narrowed(_read_table(path, data), dim))
    other = first if second is None else LaterGuide(lambda say: _read_table(second, data))
    return RowGuides({tower: other if tower == towers[-1] and len(towers) > 1 else first for tower in towers})


def network_guide(
    data: Samples,
    method: Method,
    encoder: str = "efficientnet-lite0",
    input: str | None = None,
    size: int | None = None,
    dim: int | None = None,
) -> RowGuides:
    """A frozen network on the plain inputs, embedded once and looked up by row.

    Args:
        data: The training split.
        method: Whose towers look through it.
        encoder: What antipodes.load takes: efficientnet-lite0 for images, minilm for texts, a run folder, a
            .safetensors file, timm:<model> or hf:<text model>.
        input: Which input of the data it looks at; by default the first of its modality.
        size: Side in pixels to which images are scaled for it, by default its own; smaller is quicker, and sees less.
        dim: Take the mean of all vectors away and keep this many directions, those in which they vary most: better
            eyes, and cheaper ones. By default they stay as they are.
    """
    source = LaterGuide(lambda say: _narrowed(TableGuide(network_vectors(load(encoder), data, input, size, say)), dim))
    return RowGuides(dict.fromkeys(method.network.names(), source))


def patches_guide(
    data: Samples,
    method: Method,
    words: int = 400,
    patch: int = 8,
    size: int = 32,
    dim: int = 128,
    input: str | None = None,
) -> RowGuides:
    """The small patches that an image is made of: eyes without weights from elsewhere, labels or training.

    Args:
        data: The training split.
        method: Whose towers look through it.
        words: How many kinds of patches are told apart.
        patch: Side of a patch.
        size: Side in pixels to which images are scaled first.
        dim: Length of a vector.
        input: Which image of a row it looks at; by default the first.
    """
    eyes = PatchEncoder(words, patch, dim=dim, size=size)
    source = LaterGuide(lambda say: TableGuide(patch_vectors(eyes, data, input, say)))
    return RowGuides(dict.fromkeys(method.network.names(), source))


def history_guide(data: Samples, method: Method, momentum: float = 0.9) -> RowGuides:
    """The sample's own history: a running mean of its embeddings over visits, for every tower.

    Args:
        data: The training split.
        method: Whose towers make the embeddings.
        momentum: Share of the old mean that stays at a visit.
    """
    sources: dict[str, GuideSource] = {}
    for name in method.network.names():
        tower = method.network[name]
        features: int = tower.encoder.num_features  # type: ignore[assignment]
        sources[name] = HistoryGuide(len(data), embedding_length(tower.head, features), momentum)
    return RowGuides(sources)


def momentum_guide(method: Method) -> MomentumKeys:
    """The method's momentum network, for methods that have one.

    Args:
        method: The method.

    Raises:
        ValueError: if it has none.
    """
    if any(len(method.copies(tower)) < 2 for tower in method.network.names()):
        raise ValueError(
            f"--guide momentum needs a method with a momentum network, such as moco, and {type(method).__name__} has "
            "none: use --guide history"
        )
    return MomentumKeys()


def attach_guide(
    method: Method, guide: RunGuide | None, names: Mapping[str, str], batch_neighbours: bool = False
) -> None:
    """Let the losses of a method look through a guide; refuses policies without one, and one without policies.

    Args:
        method: The method.
        guide: None where the run names none.
        names: `guide` and `negatives` as the run names them.
        batch_neighbours: Whether batches are made by the guide, which then is a use of it.
    """
    looking = [loss_fn for loss_fn in method.pair_losses().values() if loss_fn.uses_guide]
    if guide is None:
        if looking:
            raise ValueError(
                f"{_who(looking[0], names)} looks through a guide and the run has none: add --guide table "
                "--guide.path vectors.npy, --guide network, patches, history or (with moco) momentum"
            )
        return
    if not looking and not batch_neighbours:
        raise ValueError(
            f"--guide {names['guide']} is given and nothing uses it: use --distill 1, --negatives guided, "
            "dataset-neighbours with --negatives.space guide, positive-aware with --negatives.guide true, "
            "--batch_neighbours 4, or leave it out"
        )
    for _, policy in method.policies():
        if policy.needs.fits and policy.needs.space == "guide" and not guide.has_table:
            raise ValueError(
                f"--negatives {names['negatives']} is fitted to a guide's vectors of the whole dataset, and the guide "
                f"{names['guide']} has none: use --guide history, patches, network or a table, or "
                "--negatives.space features"
            )
        if not guide.tells_views_apart and _flags_nothing(policy):
            raise ValueError(
                f"the guide {names['guide']} has one vector for all views of a sample, so that its positive has "
                "similarity 1 and a margin of 0 flags nothing: give --negatives.margin, such as 0.3, or, of guided, "
                "--negatives.alpha"
            )
    if isinstance(guide, MomentumKeys) and any(loss_fn.distill is not None for loss_fn in looking):
        raise ValueError(
            "the momentum network's keys are what moco compares with anyway: --distill needs another guide"
        )
    method.guide = guide
    for direction, loss_fn in method.pair_losses().items() if looking else ():
        towers = method.anchor_tower(direction), method.candidate_tower(direction)
        loss_fn.ask_guide = partial(guide.see, towers=towers)


def network_vectors(
    network: LoadedEncoder, data: Samples, input_name: str | None = None, size: int | None = None, say: Say = None
) -> Tensor:
    """What a frozen encoder makes of one plain input of every row, (n, F), kept in the user's cache folder.

    Args:
        network: The encoder with its preprocessing, of `antipodes.load`.
        data: The samples.
        input_name: Which input; by default the first of the encoder's modality. Several texts of a row are averaged.
        size: Side to which images are scaled; by default the encoder's own.
        say: Told when they have to be computed.

    Raises:
        ValueError: if the data has no such input.
    """
    name = _input_of(data, network.modality, input_name, f"the guide {network.name}")
    if size is not None and network.modality == "image":
        network.preprocessing = [replace(each, size=size) for each in network.preprocessing if each is not None]
    compute = partial(_embed_texts if network.modality == "text" else _embed_inputs, network, data, name)
    sentence = f"embedding {len(data):,} inputs once by the guide {network.name}"
    what = repr(("guide", data.fingerprint, name, network.preprocessing))
    return kept_features(network, what, compute, None if say is None else partial(say, sentence))


@torch.no_grad()
def patch_vectors(eyes: PatchEncoder, data: Samples, input_name: str | None = None, say: Say = None) -> Tensor:
    """What eyes for patches see in every row, (n, dim), kept in the user's cache folder.

    Args:
        eyes: Not fitted yet; they are fitted to some of the data.
        data: The samples.
        input_name: Which image of a row; by default the first.
        say: Told when they have to be computed.

    Raises:
        ValueError: if the data has no images.
    """
    name = _input_of(data, "image", input_name, "a guide of patches")

    def scaled(samples: Samples) -> Iterator[Tensor]:
        return (normalised(torch.as_tensor(raw[name]), eyes.preprocessing) for _, raw in batches(samples, BATCH))

    def compute() -> Tensor:
        eyes.fit(torch.cat(list(scaled(subset(data, torch.tensor(spread(len(data))))))))
        return torch.cat([eyes(images) for images in scaled(data)])

    sentence = f"finding the patches that {len(data):,} images are made of"
    what = repr(("patches", data.fingerprint, name))
    return kept_features(eyes, what, compute, None if say is None else partial(say, sentence))


def _input_of(data: Samples, modality: str, input_name: str | None, who: str) -> str:
    """The input that a guide looks at: the one that is named, or the first of its modality.

    Raises:
        ValueError: if there is none.
    """
    fitting = [name for name, kind in data.modalities.items() if kind == modality]
    name = input_name or next(iter(fitting), modality)
    if name not in fitting:
        kind = f"an {modality}" if modality == "image" else f"a {modality}"
        raise ValueError(
            f"{who} looks at {kind}, and the data has no input {name!r} of that kind: "
            f"there are {', '.join(f'{key} ({each})' for key, each in data.modalities.items())}"
        )
    return name


def _embed_inputs(network: LoadedEncoder, data: Samples, name: str) -> Tensor:
    """Images or vectors, a row at a time from the data's own order."""
    parts = [network.features(torch.as_tensor(raw[name])).float().cpu() for _, raw in batches(data, BATCH)]
    return torch.cat(parts)


def _embed_texts(network: LoadedEncoder, data: Samples, name: str) -> Tensor:
    """The mean direction of every row's texts."""
    several: Callable[[int], list[str]] | None = getattr(data, "captions", None)
    parts = []
    for rows, raw in batches(data, BATCH):
        texts = [[text] for text in raw[name]] if several is None else [several(row) for row in rows.tolist()]
        vectors = normalise(network.embed([text for some in texts for text in some], BATCH))
        parts += [part.mean(0) for part in vectors.split([len(some) for some in texts])]
    return torch.stack(parts)


def _read_table(path: str, data: Samples) -> TableGuide:
    """A table from a file, with a finite vector for every row of the data."""
    file = Path(path).expanduser()
    guide = TableGuide(_by_path(file, data)) if file.suffix == ".npz" and file.is_file() else TableGuide(file)
    table = guide.vectors()
    if len(table) != len(data):
        raise ValueError(
            f"the guide's table {path} has {len(table):,} rows and the data {len(data):,}: "
            "it needs a vector for every row, in their order"
        )
    for start in range(0, len(table), _BLOCK):
        broken = (~table[start : start + _BLOCK].isfinite().all(1)).nonzero()
        if len(broken):
            raise ValueError(
                f"the guide's table {path} holds NaN or infinite numbers, first in row {start + int(broken[0])}: "
                "repair them or leave those samples out"
            )
    return guide


def _narrowed(guide: TableGuide, dim: int | None) -> TableGuide:
    return guide if dim is None else guide.principal(dim)


def _by_path(file: Path, data: Samples) -> Tensor:
    """The vectors of an .npz that `antipodes embed` wrote, in the order of the data's rows where both have paths."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files if name in ("embeddings", "paths")}
            names = ", ".join(archive.files)
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"the guide's table {file} cannot be read as an .npz of numbers") from error
    if "embeddings" not in found:
        raise ValueError(f"the guide's table {file} holds {names or 'nothing'}, and no embeddings")
    vectors = torch.from_numpy(found["embeddings"])
    paths = found["paths"].tolist() if "paths" in found else None
    wanted: list[str] | None = getattr(data, "paths", None)
    if paths is None or wanted is None or list(map(str, wanted)) == paths:
        return vectors
    places = {Path(name).name: place for place, name in enumerate(paths)}
    rows = [Path(name).name for name in wanted]
    if len(places) < len(paths):  # names are not unique: only the whole path tells
        places, rows = {name: place for place, name in enumerate(paths)}, list(map(str, wanted))
    missing = next((name for name in rows if name not in places), None)
    if missing is not None:
        raise ValueError(f"the guide's table {file} has no vector of {missing}: embed the whole training data")
    return vectors[torch.tensor([places[name] for name in rows])]


def _flags_nothing(policy: Policy) -> bool:
    """Whether a policy flags only what is more similar than the positive, whose similarity is 1."""
    if isinstance(policy, Guided) and policy.alpha is not None:
        return False
    return isinstance(policy, (Guided, PositiveAware)) and policy.needs.guide and policy.margin <= 0


def _who(loss_fn: Loss, names: Mapping[str, str]) -> str:
    by_policy = any(policy.needs.guide for policy in loss_fn.policies())
    if by_policy:
        return f"--negatives {names['negatives']}"
    return "--refine_space guide" if loss_fn.distill is None else "--distill"
