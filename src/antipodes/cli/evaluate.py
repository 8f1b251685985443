"""`antipodes evaluate`: scores of a run's encoder, of a model of open_clip, or of features in files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import DefaultHelpFormatter, Namespace
from rich.console import Console
from rich.progress import Progress as Bar

from antipodes.cli.parser import ArgumentParser
from antipodes.data import Samples
from antipodes.encoders.open_clip import is_open_clip
from antipodes.evaluation.feature_files import read_classified, read_pairs
from antipodes.evaluation.names import DEFAULT, DEFAULT_WITHOUT_LABELS, PROTOCOLS
from antipodes.evaluation.protocol import Protocol, evaluate, find_protocol, make_protocols
from antipodes.evaluation.protocols.transfer import open_at_size, open_others
from antipodes.evaluation.report import Row, results_dictionary, scores_table
from antipodes.evaluation.scores import keep_scores
from antipodes.evaluation.subject import Subject
from antipodes.methods import Method
from antipodes.runs.fingerprint import fingerprint
from antipodes.runs.folder import CHECKPOINT_KEYS, Run, load_checkpoint
from antipodes.runs.open_clip import open_clip_method
from antipodes.runs.opening import open_method
from antipodes.runs.towers import Progress
from antipodes.runs.views import build_augmentation
from antipodes.seeding import check_seed
from antipodes.training.calendar import Calendar

USAGE = """antipodes evaluate RUN [--protocol NAMES] [options]
       antipodes evaluate FOLDER_OF_OPEN_CLIP [--data CAPTIONS] [--transfer DATA...]
       antipodes evaluate --images a.npy --texts b.npy [--owners owners.npy | --labels labels.npy]"""


def main(arguments: list[str]) -> None:
    """Parse, evaluate, report."""
    names = _chosen(arguments)
    call = _parser(names or ()).parse_args(arguments)
    if (call.images is None) != (call.texts is None) or (call.images is None and (call.owners or call.labels)):
        raise ValueError(
            "features of pairs need both files: --images a.npy --texts b.npy, and --owners or --labels with these"
        )
    if call.images is not None:
        if call.run is not None:
            raise ValueError("give a run or the files of features, not both")
        _of_files(call, names or ("zero-shot" if call.labels else "retrieval",))
        return
    if call.run is None:
        raise ValueError("which run? antipodes evaluate RUN, the folder that antipodes train wrote")
    _refuse(call)
    for name in names or ():
        find_protocol(name)  # a wrong name is refused before anything is opened
    if is_open_clip(call.run) and not Run(Path(call.run)).config_file.is_file():
        _of_open_clip(call, names)
    else:
        _of_run(call, names)


def _refuse(call: Namespace) -> None:
    """Refuse numbers and devices that cannot be, before anything is opened."""
    for name, least in (("test_limit", 1), ("transfer_limit", 1), ("workers", 0)):
        if call[name] is not None and call[name] < least:
            raise ValueError(f"{name} must be at least {least}, got {call[name]}")
    check_seed(call.seed)
    try:
        torch.empty(1, device=call.device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {call.device} cannot be used here: {str(error).splitlines()[0]}") from error


def _of_run(call: Namespace, names: Sequence[str] | None) -> None:
    run = Run.open(call.run, call.data)
    needs = {need for name in names or () for need in find_protocol(name).needs}  # refuses a wrong name at once
    method, data = open_method(run, call.checkpoint, judged="policy" in needs)
    if names is None and data.labels is None:
        names = ("retrieval",) if Subject(method, data).pairs_texts else DEFAULT_WITHOUT_LABELS
        print("the data has no labels: what can be measured without them", file=sys.stderr)
    protocols = _protocols(call, names or DEFAULT)
    config = run.config()
    others = open_others(call.transfer, data.image_size, call.transfer_limit)
    with progress_bar("features") as progress:
        recipe = None  # texts and vectors have no augmentation
        if data.image_size:
            recipe = build_augmentation(config["augmentation"], data.image_size, method.normalised)
        options = {"others": others, "batch_size": config["batch_size"], "recipe": recipe, "progress": progress}
        subject = _subject(call, method, data, **options)
        scores = evaluate(protocols, subject)
    row: Row = {"encoder": run.folder.resolve().name, **scores}
    _print(row, call.json, f"{config_name(run)}, {data.name}")  # first: the disk may be full
    measured = _measured_on(run, call.checkpoint, subject)
    measured |= {"test_limit": call.test_limit, "seed": call.seed, **_settings(protocols)}
    if others:
        measured |= {"transfer_limit": call.transfer_limit, "transfer_normalise": call.transfer_normalise}
    if dropped := keep_scores(run.folder, row, measured):
        print(dropped, file=sys.stderr)


def _subject(call: Namespace, method: Method, data: Samples | None, **options: Any) -> Subject:
    """What is evaluated, with the options of the call that all protocols share."""
    return Subject(
        method,
        data,
        other_statistics=call.transfer_normalise,
        test_limit=call.test_limit,
        seed=call.seed,
        device=call.device,
        workers=call.workers,
        **options,
    )


def _of_open_clip(call: Namespace, names: Sequence[str] | None) -> None:
    """Score a model with open_clip's names; nothing is written, since its folder is no run."""
    if call.checkpoint != "last":
        raise ValueError(f"{call.run} is a model of open_clip and has no checkpoints: leave --checkpoint out")
    if call.data is None and not call.transfer:
        raise ValueError(f"what is {call.run} to be measured on? Give --data CAPTIONS, or --transfer FOLDER_OF_CLASSES")
    if names is None:
        names = [*(["retrieval"] if call.data else []), *(["zero-shot"] if call.transfer else [])]
    protocols = _protocols(call, names)
    method, preprocessing = open_clip_method(call.run)
    size = preprocessing.size
    data = None if call.data is None else open_at_size(call.data, size)
    others = open_others(call.transfer, size, call.transfer_limit)
    with progress_bar("features") as progress:
        subject = _subject(call, method, data, others=others, size=size, progress=progress)
        scores = evaluate(protocols, subject)
    shown = ", ".join(each.name for each in (*([] if data is None else [data]), *others))
    _print({"encoder": Path(call.run).resolve().name, **scores}, call.json, f"{call.run}, {shown}")


def _measured_on(run: Run, which: Literal["last", "best"], subject: Subject) -> dict[str, Any]:
    """What scores are of: weights by their digest and epochs, data by its path, the number of its rows and a digest."""
    state = load_checkpoint(run.last if which == "last" else run.best, CHECKPOINT_KEYS)
    parts = {"training": subject.data, "test": subject.held_out}
    measured = {
        "checkpoint": which,
        "weights": fingerprint(state["model"]),
        "data": ", ".join(
            f"{len(part)} {name} rows {part.fingerprint}" for name, part in parts.items() if part is not None
        ),
        "data_path": run.config()["data"]["name"],
    }
    if "calendar" in state:
        measured["epochs"] = Calendar(**state["calendar"]).epoch(state["step"])
    return measured


def _of_files(call: Namespace, names: Sequence[str]) -> None:
    if call.owners is not None and call.labels is not None:
        raise ValueError("texts are captions, with --owners, or descriptions of classes, with --labels: give one")
    if call.labels is None and "zero-shot" in names:
        raise ValueError("zero-shot needs the class of every image: add --labels labels.npy")
    if call.labels is None:
        subject = Subject(paired=read_pairs(call.images, call.texts, call.owners), seed=call.seed)
    else:
        subject = Subject(classified=read_classified(call.images, call.texts, call.labels), seed=call.seed)
    scores = evaluate(make_protocols(names, _options(call, names)), subject)
    _print({"encoder": Path(call.images).stem, **scores}, call.json, f"{call.images}, {call.texts}")


def _print(row: Row, as_json: bool, title: str) -> None:
    if as_json:
        print(json.dumps(results_dictionary([row])))
    else:
        Console().print(scores_table(row, title=title))


def _chosen(arguments: Sequence[str]) -> list[str] | None:
    """The protocols that a call names, None where it names none."""
    for place, argument in enumerate(arguments):
        option, _, value = argument.partition("=")
        if option == "--protocol":
            value = value or (arguments[place + 1] if place + 1 < len(arguments) else "")
            return list(dict.fromkeys(name.strip() for name in value.split(",")))
    return None


def _protocols(call: Namespace, names: Sequence[str]) -> list[Protocol]:
    """The protocols of these names with their options; datasets to transfer to are reason enough for `transfer`."""
    implied = call.transfer and not any(find_protocol(name).takes_others for name in names)
    return make_protocols([*names, *(["transfer"] if implied else [])], _options(call, names))


def _options(call: Namespace, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    given = {name: call.get(_key(name)) for name in names}  # --transfer is a list of datasets and no options
    return {name: options.as_dict() for name, options in given.items() if isinstance(options, Namespace)}


def _settings(protocols: Sequence[Protocol]) -> dict[str, Any]:
    """The options of protocols under dotted names, by which kept scores are told apart."""
    return {f"{one.name}.{option}": value for one in protocols for option, value in one.options().items()}


def _key(name: str) -> str:
    """A protocol's name as it stands in front of its options."""
    return name.replace("-", "_")


def _parser(names: Sequence[str]) -> ArgumentParser:
    listing = "\n".join(f"  {name:<16} {find_protocol(name).summary}" for name in PROTOCOLS)
    description = f"""Score what a run has learned on the test split of its dataset (or on a fifth of it, where there is
none). The scores are printed as a table, or as JSON, and added to those in RUN/evaluation.json; scores there of other
weights or settings are dropped.

protocols:
{listing}

Options of a protocol are shown when it is named: antipodes evaluate --protocol knn --help. Examples:
  antipodes evaluate runs/a                    {",".join(DEFAULT)}; without labels {DEFAULT_WITHOUT_LABELS[0]}
  antipodes evaluate runs/a --protocol knn --knn.k 20 --json
  antipodes evaluate runs/a --transfer fashion-mnist path/to/photos --transfer_normalise own
  antipodes evaluate runs/clip --protocol zero-shot --transfer path/to/folder_of_classes
  antipodes evaluate open_clip_model --data path/to/flickr8k --transfer path/to/folder_of_classes
  antipodes evaluate --images images.npy --texts texts.npy --owners owners.npy
  antipodes evaluate --protocol zero-shot --images images.npy --texts class_vectors.npy --labels labels.npy"""
    parser = ArgumentParser(
        prog="antipodes evaluate", usage=USAGE, description=description, allow_abbrev=False, formatter_class=_Plain
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        type=str | None,
        default=None,
        help="Folder of a run, or of a model with open_clip's names.",
    )
    parser.add_argument(
        "--data",
        type=str | None,
        default=None,
        metavar="PATH",
        help="Where the run's data is now, if it has moved; of a model of open_clip, what it is measured on.",
    )
    parser.add_argument("--protocol", type=str | None, default=None, help="Names from above, separated by commas.")
    parser.add_argument("--checkpoint", type=Literal["last", "best"], default="last", help="Which weights.")
    parser.add_argument("--test_limit", type=int | None, default=None, help="Use only so many test images.")
    parser.add_argument("--seed", type=int, default=0, help="Of every random draw.")
    parser.add_argument("--device", type=str, default="cpu", help="Where networks run: cpu, cuda, cuda:1, mps.")
    parser.add_argument("--workers", type=int, default=0, help="Processes that decode images of folders.")
    parser.add_argument(
        "--transfer",
        type=str,
        nargs="+",
        default=[],
        metavar="DATA",
        help="Also score the encoder on these datasets: names, folders of images (train and test inside are the "
        "splits), .npz files.",
    )
    parser.add_argument(
        "--transfer_limit", type=int | None, default=None, help="Use only so many training images of each of these."
    )
    parser.add_argument(
        "--transfer_normalise",
        type=Literal["run", "own"],
        default="run",
        help="Normalise their images as those of the run, or by their own mean and deviation.",
    )
    parser.add_argument("--images", type=str | None, default=None, metavar="NPY", help="Features (n, D) of images.")
    parser.add_argument(
        "--texts", type=str | None, default=None, metavar="NPY", help="Features (m, D) of captions or of classes."
    )
    parser.add_argument(
        "--owners", type=str | None, default=None, metavar="NPY", help="The image (m,) that every text belongs to."
    )
    parser.add_argument(
        "--labels", type=str | None, default=None, metavar="NPY", help="The class (n,) that every image belongs to."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    for name in names:
        if name in PROTOCOLS:
            found = find_protocol(name)
            if found.__dataclass_fields__:  # type: ignore[attr-defined]
                parser.add_class_arguments(found, _key(name), as_group=True)
                (parser.groups or {})[_key(name)].title = f"protocol {name}"
    return parser


class _Plain(DefaultHelpFormatter):
    """Help whose description keeps its lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in text.splitlines())


def config_name(run: Run) -> str:
    """What a run trained, in a few words: its method, and its policy when it has one."""
    config = run.config()
    policy = config["negatives"]["name"]
    return str(config["method"]["name"]) + ("" if policy == "none" else f" + {policy} ({config['treatment']})")


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A bar on a terminal's standard error that goes away when the work is done."""
    with Bar(console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
