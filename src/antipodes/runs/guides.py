"""The guides that `antipodes train --guide NAME` builds, the vectors they need, and how losses get a guide.

A guide gives every sample a vector in another space, by which policies and losses judge which samples are alike:
`table` (a file), `network` (a frozen network), `patches` (small image patches), `history` (the mean of the sample's own
earlier embeddings) and `momentum` (MoCo's momentum network).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antipodes.data import Samples, subset
from antipodes.data.loader import batches
from antipodes.encoders.heads import embedding_length
from antipodes.encoders.loading import LoadedEncoder, load, normalise_images
from antipodes.encoders.patches import PatchEncoder, rows_to_fit
from antipodes.guides import GuideSource, HistoryGuide, MomentumKeyGuide, RunGuide, TableGuide
from antipodes.guides.guide import Notify
from antipodes.losses import Loss
from antipodes.methods import Method
from antipodes.negatives import Guided, Policy, PositiveAware
from antipodes.pairs import normalise
from antipodes.runs.embedding import cached_features

BATCH = 256
_BLOCK = 2**16  # rows of a table that are checked at a time


def table_guide(
    data: Samples, method: Method, path: str, second: str | None = None, dim: int | None = None
) -> RunGuide:
    """Build a guide from a file of vectors of any model, one for each row of the dataset.

    Args:
        data: The training split.
        method: The method that the guide is for.
        path: A .npy, .npz or .safetensors file with (n, G) vectors in the order of the rows. The rows of an .npz that
            antipodes embed wrote are matched by their paths.
        second: A file with vectors of the second input, for methods with two inputs and a model with one space for
            both. By default one vector stands for all inputs of a row.
        dim: Subtract the mean of all vectors and keep this many principal components, which finds more false negatives
            and costs less. By default the vectors stay as they are.
    """
    towers = method.network.names()
    if second is not None and dim is not None:
        raise ValueError("guide.dim cannot be combined with guide.second: leave one out")
    if second is not None and len(towers) != 2:
        raise ValueError(f"guide.second needs a method with two inputs, and this one has {len(towers)}: leave it out")
    first = TableGuide.deferred(lambda _: _with_dim(_read_table(path, data), dim))
    other = first if second is None else TableGuide.deferred(lambda _: _read_table(second, data))
    return RunGuide({tower: other if tower == towers[-1] and len(towers) > 1 else first for tower in towers})


def network_guide(
    data: Samples,
    method: Method,
    encoder: str = "efficientnet-lite0",
    input: str | None = None,
    size: int | None = None,
    dim: int | None = None,
) -> RunGuide:
    """Build a guide that embeds every row's input once with a frozen network and looks the vectors up by row.

    Args:
        data: The training split.
        method: The method that the guide is for.
        encoder: A network that antipodes.load accepts: hf:<text model>, timm:<image model>, a folder that holds one,
            a run folder, a .safetensors file, or with weights in a package efficientnet-lite0 (images) and minilm.
        input: The input of the data that it embeds. By default the first of its modality; of pairs of one modality,
            such as queries and documents, every tower has the vectors of its own input.
        size: Side in pixels to which images are scaled, by default the network's own; smaller is faster and less exact.
        dim: Subtract the mean of all vectors and keep this many principal components, which finds more false negatives
            and costs less. By default the vectors stay as they are.
    """

    def source(name: str | None) -> GuideSource:
        return TableGuide.deferred(
            lambda notify: _with_dim(TableGuide(network_vectors(load(encoder), data, name, size, notify)), dim)
        )

    plans = {name: plan for name, plan in method.network.plans.items() if plan.input}
    inputs = {plan.input for plan in plans.values()}
    if input is None and dim is None and len(inputs) > 1 and len({plan.modality for plan in plans.values()}) == 1:
        return RunGuide({name: source(plan.input) for name, plan in plans.items()})
    return RunGuide(dict.fromkeys(method.network.names(), source(input)))


def patches_guide(
    data: Samples,
    method: Method,
    words: int = 400,
    patch: int = 8,
    size: int = 32,
    dim: int = 128,
    input: str | None = None,
) -> RunGuide:
    """Build a guide that compares images by their small patches, without pretrained weights, labels or training.

    Args:
        data: The training split.
        method: The method that the guide is for.
        words: Number of clusters of patches.
        patch: Side of a patch in pixels.
        size: Side in pixels to which images are scaled first.
        dim: Length of a vector.
        input: The input with the images; by default the first one.
    """
    encoder = PatchEncoder(words, patch, dim=dim, size=size)
    source = TableGuide.deferred(lambda notify: TableGuide(patch_vectors(encoder, data, input, notify)))
    return RunGuide(dict.fromkeys(method.network.names(), source))


def history_guide(data: Samples, method: Method, momentum: float = 0.9) -> RunGuide:
    """Build a guide from the running mean of each sample's own embeddings, one table for every tower.

    Args:
        data: The training split.
        method: The method whose towers make the embeddings.
        momentum: Share of the stored mean that an update keeps.
    """
    sources: dict[str, GuideSource] = {}
    for name in method.network.names():
        tower = method.network[name]
        features: int = tower.encoder.num_features  # type: ignore[assignment]
        sources[name] = HistoryGuide(len(data), embedding_length(tower.head, features), momentum)
    return RunGuide(sources)


def momentum_guide(method: Method) -> MomentumKeyGuide:
    """Build a guide from the method's momentum network.

    Args:
        method: A method with a momentum network, such as MoCo.

    Raises:
        ValueError: if the method has none.
    """
    if any(len(method.copies(tower)) < 2 for tower in method.network.names()):
        raise ValueError(
            f"--guide momentum needs a method with a momentum network, such as moco, and {type(method).__name__} has "
            "none: use --guide history"
        )
    return MomentumKeyGuide()


def attach_guide(
    method: Method, guide: RunGuide | None, names: Mapping[str, str], batch_neighbours: bool = False
) -> None:
    """Give a guide to the losses of a method that use one.

    Args:
        method: The method.
        guide: The guide, or None if the run has none.
        names: The names of the run's `guide` and `negatives`, for error messages.
        batch_neighbours: True if the guide also decides which samples share a batch.

    Raises:
        ValueError: if a loss needs a guide and the run has none, nothing uses the guide, or the two do not fit.
    """
    users = [loss_fn for loss_fn in method.pair_losses().values() if loss_fn.uses_guide]
    if guide is None:
        if users:
            raise ValueError(
                f"{_guide_option(users[0], names)} needs a guide and the run has none: add --guide table "
                "--guide.path vectors.npy, --guide network, patches, history or (with moco) momentum"
            )
        return
    if not users and not batch_neighbours:
        raise ValueError(
            f"--guide {names['guide']} is given and nothing uses it: add --distill 1, --negatives guided, "
            "dataset-neighbours with --negatives.space guide, positive-aware with --negatives.guide true, "
            "--batch_neighbours 4, or leave it out"
        )
    for _, policy in method.policies():
        if policy.needs.fits and policy.needs.space == "guide" and not guide.has_table:
            raise ValueError(
                f"--negatives {names['negatives']} needs a guide's vectors of the whole dataset, and the guide "
                f"{names['guide']} has none: use --guide history, patches, network or a table, or "
                "--negatives.space features"
            )
        if not guide.distinguishes_views and _flags_above_positive(policy):
            raise ValueError(
                f"the guide {names['guide']} has one vector for all views, so the positive's similarity is 1 "
                "and a margin of 0 flags nothing: give --negatives.margin, such as 0.3, or --negatives.alpha of guided"
            )
    if isinstance(guide, MomentumKeyGuide) and any(loss_fn.distill is not None for loss_fn in users):
        raise ValueError(
            "moco already compares queries with the momentum network's keys: --distill needs another guide"
        )
    method.use_guide(guide, guide.for_pairs)


def network_vectors(
    network: LoadedEncoder,
    data: Samples,
    input_name: str | None = None,
    size: int | None = None,
    notify: Notify | None = None,
) -> Tensor:
    """Embed one input of every row with a frozen encoder: (n, F), kept in the user's cache folder.

    Images are not augmented. The vectors of several texts of a row are normalised and averaged.

    Args:
        network: The encoder with its preprocessing, from `antipodes.load`.
        data: The samples.
        input_name: The name of the input; by default the first of the encoder's modality.
        size: Side in pixels to which images are scaled; by default the encoder's own.
        notify: Shows the user a line if the vectors must be computed.

    Raises:
        ValueError: if the data has no such input.
    """
    name = _input_of(data, network.modality, input_name, f"the guide {network.name}")
    if size is not None and network.modality == "image":
        network.preprocessing = [replace(each, size=size) for each in network.preprocessing if each is not None]
    compute = partial(_embed_texts if network.modality == "text" else _embed_inputs, network, data, name)
    sentence = f"embedding {len(data):,} inputs once with the guide {network.name}"
    what = repr(("guide", data.fingerprint, name, network.preprocessing))
    return cached_features(network, what, compute, None if notify is None else partial(notify, sentence))


@torch.no_grad()
def patch_vectors(
    encoder: PatchEncoder, data: Samples, input_name: str | None = None, notify: Notify | None = None
) -> Tensor:
    """Fit a patch encoder to some of the images and embed every row: (n, dim), kept in the user's cache folder.

    Args:
        encoder: A patch encoder that is not fitted yet.
        data: The samples.
        input_name: The name of the input with the images; by default the first one.
        notify: Shows the user a line if the vectors must be computed.

    Raises:
        ValueError: if the data has no images.
    """
    name = _input_of(data, "image", input_name, "a guide of patches")

    def scaled(samples: Samples) -> Iterator[Tensor]:
        return (
            normalise_images(torch.as_tensor(raw[name]), encoder.preprocessing) for _, raw in batches(samples, BATCH)
        )

    def compute() -> Tensor:
        encoder.fit(torch.cat(list(scaled(subset(data, torch.tensor(rows_to_fit(len(data))))))))
        return torch.cat([encoder(images) for images in scaled(data)])

    sentence = f"clustering the patches of {len(data):,} images"
    what = repr(("patches", data.fingerprint, name))
    return cached_features(encoder, what, compute, None if notify is None else partial(notify, sentence))


def _input_of(data: Samples, modality: str, input_name: str | None, user: str) -> str:
    """Return the name of the input that a guide embeds: the given one, or the first of its modality.

    Raises:
        ValueError: if there is none.
    """
    fitting = [name for name, kind in data.modalities.items() if kind == modality]
    name = input_name or next(iter(fitting), modality)
    if name not in fitting:
        kind = f"an {modality}" if modality == "image" else f"a {modality}"
        raise ValueError(
            f"{user} embeds {kind}, and the data has no input {name!r} of that kind: "
            f"there are {', '.join(f'{key} ({each})' for key, each in data.modalities.items())}"
        )
    return name


def _embed_inputs(network: LoadedEncoder, data: Samples, name: str) -> Tensor:
    """Embed images or vectors in the order of the rows: (n, F)."""
    parts = [network.features(torch.as_tensor(raw[name])).float().cpu() for _, raw in batches(data, BATCH)]
    return torch.cat(parts)


def _embed_texts(network: LoadedEncoder, data: Samples, name: str) -> Tensor:
    """Embed texts: (n, F), the mean of the unit vectors of every row's texts."""
    parts = []
    for rows, raw in batches(data, BATCH):
        texts = [data.captions(row) or [text] for row, text in zip(rows.tolist(), raw[name], strict=True)]
        vectors = normalise(network.embed([text for some in texts for text in some], BATCH))
        parts += [part.mean(0) for part in vectors.split([len(some) for some in texts])]
    return torch.stack(parts)


def _read_table(path: str, data: Samples) -> TableGuide:
    """Read a table from a file and check that it has a finite vector for every row of the data."""
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
                "repair these rows or leave the samples out"
            )
    return guide


def _with_dim(guide: TableGuide, dim: int | None) -> TableGuide:
    return guide if dim is None else guide.principal(dim)


def _by_path(file: Path, data: Samples) -> Tensor:
    """Read the vectors of an .npz from `antipodes embed`; where both have paths, in the order of the data's rows."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files if name in ("embeddings", "paths")}
            names = ", ".join(archive.files)
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"the guide's table {file} cannot be read as an .npz of numbers") from error
    if "embeddings" not in found:
        raise ValueError(f"the guide's table {file} holds {names or 'nothing'}, not embeddings")
    vectors = torch.from_numpy(found["embeddings"])
    paths = found["paths"].tolist() if "paths" in found else None
    wanted: list[str] | None = getattr(data, "paths", None)
    if paths is None or wanted is None or list(map(str, wanted)) == paths:
        return vectors
    places = {Path(name).name: place for place, name in enumerate(paths)}
    rows = [Path(name).name for name in wanted]
    if len(places) < len(paths):  # file names are not unique: match whole paths
        places, rows = {name: place for place, name in enumerate(paths)}, list(map(str, wanted))
    missing = next((name for name in rows if name not in places), None)
    if missing is not None:
        raise ValueError(f"the guide's table {file} has no vector of {missing}: embed the whole training data")
    return vectors[torch.tensor([places[name] for name in rows])]


def _flags_above_positive(policy: Policy) -> bool:
    """Return True if a policy flags only candidates more similar than the positive, whose similarity is 1."""
    if isinstance(policy, Guided) and policy.alpha is not None:
        return False
    return isinstance(policy, (Guided, PositiveAware)) and policy.needs.guide and policy.margin <= 0


def _guide_option(loss_fn: Loss, names: Mapping[str, str]) -> str:
    """Return the command-line option by which a loss uses a guide."""
    by_policy = any(policy.needs.guide for policy in loss_fn.policies())
    if by_policy:
        return f"--negatives {names['negatives']}"
    return "--refine_space guide" if loss_fn.distill is None else "--distill"
