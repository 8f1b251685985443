"""`antipodes.evaluate`: the scores of a run, of a model of open_clip, or of features in files.

1. What is evaluated becomes a `Subject`: a run's network with its data, two towers of open_clip, or features.
2. The protocols that are asked for run on it; nothing runs before all of them have what they need.
3. The answer is `Scores`. For a run they can be added to its evaluation.json.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from antipodes.data import Samples
from antipodes.encoders.loading import is_open_clip
from antipodes.evaluation.features import read_classified, read_pairs
from antipodes.evaluation.protocol import (
    DEFAULT,
    DEFAULT_WITHOUT_LABELS,
    Protocol,
    find_protocol,
    make_protocols,
    run_protocols,
)
from antipodes.evaluation.protocols.transfer import open_at_size, open_others
from antipodes.evaluation.scores import keep_scores, results_dictionary
from antipodes.evaluation.subject import Subject
from antipodes.files import replacing
from antipodes.methods import Method
from antipodes.progress import progress_bar
from antipodes.runs.folder import CHECKPOINT_KEYS, Run, fingerprint, load_checkpoint
from antipodes.runs.opening import open_clip_method, open_method
from antipodes.runs.settings import Calendar
from antipodes.runs.views import build_augmentation
from antipodes.seeding import check_seed
from antipodes.threads import check_workers

Checkpoint = Literal["last", "best"]


@dataclass(frozen=True)
class Scores:
    """The scores of one encoder, in percent unless a name says otherwise.

    Args:
        scores: name -> score, such as `knn top-1`; settings that a protocol chose are among them.
        encoder: what was evaluated, in a word.
        measured_on: what was evaluated and on which data, in a few words.
        run: the run, None for a model of open_clip or for files.
        measured: what the scores were measured with, by which kept scores are told apart.
        note: a sentence about the choice of protocols, empty if there is none.
    """

    scores: dict[str, float]
    encoder: str
    measured_on: str = ""
    run: Run | None = field(default=None, repr=False)
    measured: dict[str, Any] = field(default_factory=dict, repr=False)
    note: str = ""

    def __getitem__(self, name: str) -> float:
        return self.scores[name]

    @property
    def row(self) -> dict[str, str | float]:
        """Return the scores as a line of a table, with the name of the encoder."""
        return {"encoder": self.encoder, **self.scores}

    def save(self, path: str | Path) -> None:
        """Write the scores to a JSON file: encoder -> name -> score."""
        with replacing(Path(path)) as temporary:
            temporary.write_text(json.dumps(results_dictionary([self.row]), indent=2) + "\n")

    def add_to_run(self) -> str | None:
        """Add the scores to evaluation.json of the run, where `compare` and `report` find them.

        Returns:
            A sentence if scores there were dropped, because they are of other weights or settings; else None.
        """
        return None if self.run is None else keep_scores(self.run.folder, self.row, self.measured)


def evaluate(
    run: str | Path | None = None,
    protocol: str | Sequence[str] | None = "linear,knn",
    *,
    save: bool = False,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    data: str | Path | None = None,
    checkpoint: Checkpoint = "last",
    test_limit: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    workers: int = 0,
    transfer: Sequence[str] = (),
    transfer_limit: int | None = None,
    transfer_normalise: Literal["run", "own"] = "run",
    centre_crop: float = 1.0,
    images: str | Path | None = None,
    texts: str | Path | None = None,
    owners: str | Path | None = None,
    labels: str | Path | None = None,
    progress: bool = False,
) -> Scores:
    """Score what a run has learned, on the test split of its data or on other data.

    Args:
        run: folder of a run, or of a model with open_clip's names; None with `images` and `texts`.
        protocol: names of protocols, separated by commas or as a list; None for those that suit the data.
        save: add the scores to RUN/evaluation.json, as the command does.
        options: options of protocols: `{"knn": {"k": 20}}`.
        data: where the run's data is now, if it has moved; for a model of open_clip, what it is measured on.
        checkpoint: which weights of the run: `last` or `best`.
        test_limit: use only so many test images.
        seed: of every random draw.
        device: where networks run: cpu, cuda, cuda:1, mps.
        workers: processes that decode images of folders.
        transfer: also score the encoder on these datasets.
        transfer_limit: use only so many training images of each of these.
        transfer_normalise: normalise their images as those of the run, or by their own mean and deviation.
        centre_crop: share of height and width around the centre that images are cut to; 0.875 with photos decoded to
            256 pixels and a network of 224 is the papers' test view.
        images: file (.npy) of features (n, D) of images, instead of a run.
        texts: file of features (m, D) of captions or of classes.
        owners: file of the image (m,) that every text belongs to.
        labels: file of the class (n,) that every image belongs to.
        progress: show on standard error how far the work is.

    Raises:
        ValueError: if there is no such run, protocol or data, or a protocol lacks what it needs.
    """
    names = _names_of(protocol)
    _check_numbers(centre_crop, test_limit=test_limit, transfer_limit=transfer_limit)
    if (images is None) != (texts is None) or (images is None and (owners or labels)):
        raise ValueError(
            "features of pairs need both files: --images a.npy --texts b.npy, and --owners or --labels with these"
        )
    if images is not None and texts is not None:
        if run is not None:
            raise ValueError("give a run or the files of features, not both")
        protocols = make_protocols(names or ("zero-shot" if labels else "retrieval",), options)
        return _of_files(protocols, Path(images), Path(texts), owners, labels, seed)
    if run is None:
        raise ValueError("which run? antipodes evaluate RUN, the folder that antipodes train wrote")
    check_seed(seed)
    _check_machine(workers, device)
    for name in names or ():
        find_protocol(name)  # a wrong name is refused before anything is opened
    shared: dict[str, Any] = {"test_limit": test_limit, "seed": seed, "device": device, "workers": workers}
    shared |= {"other_statistics": transfer_normalise, "centre_crop": centre_crop}
    asked = _Asked(names, options or {}, shared, tuple(transfer), transfer_limit, progress)
    if is_open_clip(run) and not Run(Path(run)).config_file.is_file():
        if checkpoint != "last":
            raise ValueError(f"{run} is a model of open_clip and has no checkpoints: leave --checkpoint out")
        return _of_open_clip(str(run), data, asked)
    scores = _of_run(Run.open(run, None if data is None else str(data)), checkpoint, asked)
    if save and (dropped := scores.add_to_run()):
        warnings.warn(dropped, stacklevel=2)
    return scores


@dataclass(frozen=True)
class _Asked:
    """The arguments of a call, whatever is evaluated.

    Args:
        names: of protocols; None for those that suit the data.
        options: of protocols.
        shared: the arguments of `Subject` that all protocols share.
        transfer: datasets to transfer to.
        transfer_limit: training images of each of them.
        progress: whether to show it.
    """

    names: Sequence[str] | None
    options: Mapping[str, Mapping[str, Any]]
    shared: Mapping[str, Any]
    transfer: tuple[str, ...]
    transfer_limit: int | None
    progress: bool

    def protocols(self, names: Sequence[str]) -> list[Protocol]:
        """Return the protocols of these names; datasets to transfer to imply the protocol `transfer`."""
        implied = self.transfer and not any(find_protocol(name).takes_others for name in names)
        return make_protocols([*names, *(["transfer"] if implied else [])], self.options)

    def subject(self, method: Method, data: Samples | None, **arguments: Any) -> Subject:
        """Return what the protocols evaluate."""
        return Subject(method, data, **self.shared, **arguments)


def _names_of(protocol: str | Sequence[str] | None) -> list[str] | None:
    if protocol is None:
        return None
    names = protocol.split(",") if isinstance(protocol, str) else protocol
    return list(dict.fromkeys(name.strip() for name in names))


def _check_numbers(centre_crop: float, **limits: int | None) -> None:
    """Refuse numbers that are out of their range, by name."""
    for name, value in limits.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not 0 < centre_crop <= 1:
        raise ValueError(f"centre_crop must be in (0, 1], got {centre_crop}: it is a share of height and width")


def _check_machine(workers: int, device: str) -> None:
    """Refuse numbers and devices that cannot be, before anything is opened."""
    check_workers(workers, least=0)
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {device} cannot be used here: {str(error).splitlines()[0]}") from error


def _of_run(run: Run, checkpoint: Checkpoint, asked: _Asked) -> Scores:
    """Score a run."""
    names, note = asked.names, ""
    needs = {need for name in names or () for need in find_protocol(name).needs}
    method, data = open_method(run, checkpoint, judged="policy" in needs)
    if names is None and data.labels is None:
        names = ("retrieval",) if Subject(method, data).pairs_texts else DEFAULT_WITHOUT_LABELS
        note = "the data has no labels: what can be measured without them"
    protocols = asked.protocols(names or DEFAULT)
    config = run.config
    others = open_others(asked.transfer, data.image_size, asked.transfer_limit)
    with progress_bar("features", shown=asked.progress) as on_progress:
        recipe = None  # texts and vectors have no augmentation
        if data.image_size:
            recipe = build_augmentation(config["augmentation"], data.image_size, method.normalised)
        subject = asked.subject(
            method, data, others=others, batch_size=config["batch_size"], recipe=recipe, progress=on_progress
        )
        scores = run_protocols(protocols, subject)
    measured = _measured_on(run, checkpoint, subject)
    measured |= {name: asked.shared[name] for name in ("test_limit", "seed", "centre_crop")}
    measured |= {f"{one.name}.{option}": value for one in protocols for option, value in one.options().items()}
    if others:
        measured |= {
            "transfer_limit": asked.transfer_limit,
            "transfer_normalise": asked.shared["other_statistics"],
        }
    title = f"{run.title()}, {data.name}"
    return Scores(scores, run.folder.resolve().name, title, run, measured, note)


def _of_open_clip(folder: str, data: str | Path | None, asked: _Asked) -> Scores:
    """Score a model with open_clip's names."""
    if data is None and not asked.transfer:
        raise ValueError(f"what is {folder} to be measured on? Give --data CAPTIONS, or --transfer FOLDER_OF_CLASSES")
    names = asked.names
    if names is None:
        names = [*(["retrieval"] if data else []), *(["zero-shot"] if asked.transfer else [])]
    protocols = asked.protocols(names)
    method, preprocessing = open_clip_method(folder)
    size = preprocessing.size
    captions = None if data is None else open_at_size(str(data), size)
    others = open_others(asked.transfer, size, asked.transfer_limit)
    with progress_bar("features", shown=asked.progress) as on_progress:
        subject = asked.subject(method, captions, others=others, size=size, progress=on_progress)
        scores = run_protocols(protocols, subject)
    shown = ", ".join(each.name for each in (*([] if captions is None else [captions]), *others))
    return Scores(scores, Path(folder).resolve().name, f"{folder}, {shown}")


def _of_files(
    protocols: Sequence[Protocol],
    images: Path,
    texts: Path,
    owners: str | Path | None,
    labels: str | Path | None,
    seed: int,
) -> Scores:
    """Score features of images and texts in files."""
    if owners is not None and labels is not None:
        raise ValueError("texts are captions, with --owners, or descriptions of classes, with --labels: give one")
    if labels is None and any(one.name == "zero-shot" for one in protocols):
        raise ValueError("zero-shot needs the class of every image: add --labels labels.npy")
    if labels is None:
        subject = Subject(
            paired=read_pairs(str(images), str(texts), None if owners is None else str(owners)), seed=seed
        )
    else:
        subject = Subject(classified=read_classified(str(images), str(texts), str(labels)), seed=seed)
    return Scores(run_protocols(protocols, subject), images.stem, f"{images}, {texts}")


def _measured_on(run: Run, which: Checkpoint, subject: Subject) -> dict[str, Any]:
    """What scores are of: weights by their digest and epochs, data by its path, the number of its rows and a digest."""
    state = load_checkpoint(run.last if which == "last" else run.best, CHECKPOINT_KEYS)
    parts = {"training": subject.data, "test": subject.held_out}
    measured = {
        "checkpoint": which,
        "weights": fingerprint(state["model"]),
        "data": ", ".join(
            f"{len(part)} {name} rows {part.fingerprint}" for name, part in parts.items() if part is not None
        ),
        "data_path": run.config["data"]["name"],
    }
    if "calendar" in state:
        measured["epochs"] = Calendar(**state["calendar"]).epoch(state["step"])
    return measured
