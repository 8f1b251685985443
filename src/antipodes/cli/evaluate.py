"""`antipodes evaluate`: scores of a run's encoder, of a model of open_clip, or of features in files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Literal

from jsonargparse import DefaultHelpFormatter, Namespace
from rich.console import Console

from antipodes.evaluation.protocol import DEFAULT, DEFAULT_WITHOUT_LABELS, PROTOCOLS, find_protocol
from antipodes.evaluation.scores import results_dictionary, scores_table
from antipodes.evaluation.scoring import evaluate
from antipodes.parsing import ArgumentParser

USAGE = """antipodes evaluate RUN [--protocol NAMES] [options]
       antipodes evaluate FOLDER_OF_OPEN_CLIP [--data CAPTIONS] [--transfer DATA...]
       antipodes evaluate --images a.npy --texts b.npy [--owners owners.npy | --labels labels.npy]"""

DESCRIPTION = """Score what a run has learned on the test split of its dataset (or on a fifth of it, where there is
none). The scores are printed as a table, or as JSON, and added to those in RUN/evaluation.json; scores there of other
weights or settings are dropped.

protocols:
{listing}

Options of a protocol are shown when it is named: antipodes evaluate --protocol knn --help. Examples:
  antipodes evaluate runs/a                    {default}; without labels {without_labels}
  antipodes evaluate runs/a --protocol knn --knn.k 20 --json
  antipodes evaluate runs/a --transfer fashion-mnist path/to/photos --transfer_normalise own
  antipodes evaluate runs/clip --protocol zero-shot --transfer path/to/folder_of_classes
  antipodes evaluate open_clip_model --data path/to/flickr8k --transfer path/to/folder_of_classes
  antipodes evaluate --images images.npy --texts texts.npy --owners owners.npy
  antipodes evaluate --protocol zero-shot --images images.npy --texts class_vectors.npy --labels labels.npy"""


def main(arguments: list[str]) -> None:
    """Parse the call, evaluate, print the scores, add them to those of the run."""
    names = _chosen(arguments)
    call = _parser(names or ()).parse_args(arguments)
    scores = evaluate(
        call.run,
        names,
        options=_options(call, names or ()),
        data=call.data,
        checkpoint=call.checkpoint,
        test_limit=call.test_limit,
        seed=call.seed,
        device=call.device,
        workers=call.workers,
        transfer=call.transfer,
        transfer_limit=call.transfer_limit,
        transfer_normalise=call.transfer_normalise,
        centre_crop=call.centre_crop,
        images=call.images,
        texts=call.texts,
        owners=call.owners,
        labels=call.labels,
        progress=True,
    )
    if scores.note:
        print(scores.note, file=sys.stderr)
    if call.json:  # printed before they are kept: the disk may be full
        print(json.dumps(results_dictionary([scores.row])))
    else:
        Console().print(scores_table(scores.row, title=scores.measured_on))
    if dropped := scores.add_to_run():
        print(dropped, file=sys.stderr)


def _chosen(arguments: Sequence[str]) -> list[str] | None:
    """The protocols that a call names, None where it names none."""
    for place, argument in enumerate(arguments):
        option, _, value = argument.partition("=")
        if option == "--protocol":
            value = value or (arguments[place + 1] if place + 1 < len(arguments) else "")
            return list(dict.fromkeys(name.strip() for name in value.split(",")))
    return None


def _options(call: Namespace, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The options of protocols; `--transfer` is a list of datasets and holds none."""
    given = {name: call.get(_key(name)) for name in names}
    return {name: options.as_dict() for name, options in given.items() if isinstance(options, Namespace)}


def _key(name: str) -> str:
    """A protocol's name as it stands in front of its options."""
    return name.replace("-", "_")


def _parser(names: Sequence[str]) -> ArgumentParser:
    listing = "\n".join(f"  {name:<16} {find_protocol(name).summary}" for name in PROTOCOLS)
    description = DESCRIPTION.format(
        listing=listing, default=",".join(DEFAULT), without_labels=DEFAULT_WITHOUT_LABELS[0]
    )
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
    parser.add_argument(
        "--centre_crop",
        type=float,
        default=1.0,
        help="Share of height and width around the centre that images are cut to; the papers' test view has 0.875.",
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
