"""The complete options of every trial, as `antipodes train` or the study's runner has them, and facts about them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antipodes.studies.definition import FULL, Options, Study, Trial

if TYPE_CHECKING:
    from antipodes.data import Samples


def complete(trial: Trial, runner: str | None = None) -> Options:
    """The whole configuration of a trial: as antipodes train would write it down, or of the study's own runner.

    Raises:
        ValueError: if an option is unknown, of the wrong type or out of range.
    """
    if runner is not None:
        from antipodes.studies.runner import build
        from antipodes.studies.runner import configuration as of_runner

        try:
            return of_runner(build(runner, trial.options))
        except ValueError as error:
            raise ValueError(f"variant {trial.variant} cannot be run: {error}") from error
    from antipodes.runs.configuration import resolve

    try:
        configuration = resolve(trial.options | {"seed": trial.seed, "out": str(trial.folder)})
    except ValueError as error:
        raise ValueError(f"variant {trial.variant} cannot be trained: {error}") from error
    plain: Options = json.loads(json.dumps(dict(configuration), default=str))
    return plain


def check_protocols(study: Study) -> None:
    """Refuse protocols that do not exist, and options that they do not take.

    Raises:
        ValueError: for the first of them.
    """
    from antipodes.evaluation.protocol import find_protocol, make_protocols

    for name in study.protocols:
        find_protocol(name)
    try:
        make_protocols(study.protocols, study.protocol_options)
    except TypeError as error:
        raise ValueError(f"options of protocols cannot be used: {error}") from error


def training_facts(
    study: Study, configurations: Mapping[Trial, Options], parallel: int, data: str | None
) -> dict[str, str]:
    """What the numbers are measured with, by name.

    It opens the data, so that what is missing is refused before the first run.
    """
    from antipodes.evaluation.protocols.transfer import open_others
    from antipodes.runs.build import build_data

    specs = _different(configuration["data"] for configuration in configurations.values())
    trained = [build_data(spec) for spec in specs]
    others = open_others(study.transfer, trained[0].image_size, study.transfer_limit)
    every = list(configurations.values())
    return {
        "data": "; ".join(_size(data, study.test_limit) for data in trained),
        **({"transfer": "; ".join(_size(data, study.test_limit) for data in others)} if others else {}),
        "encoder": _all(every, "encoder", "name"),
        "method": _all(every, "method", "name"),
        "epochs": _all(every, "epochs"),
        "batch": _all(every, "batch_size"),
        "protocols": ", ".join(study.protocols),
        "threads": f"1 a run, {parallel} runs side by side, on a machine with {os.cpu_count()}",
        **_made_by(study, data),
    }


def runner_facts(study: Study, configurations: Mapping[Trial, Options], data: str | None) -> dict[str, str]:
    """What a study with a runner of its own is measured with; where variants differ, every value."""
    from antipodes.studies.runner import build

    facts = [build(str(study.runner), options).facts() for options in _different(configurations.values())]
    joined = {name: "; ".join(_different(some[name] for some in facts)) for name in facts[0]}
    return {**joined, "threads": "1", **_made_by(study, data)}


def described(configuration: Options) -> Options:
    """What a report says of a trial: not its seed and folder, and of data and files on disk only their names."""
    kept = {key: _placeless(value) for key, value in configuration.items() if key not in ("seed", "out")}
    if isinstance(data := kept.get("data"), dict) and "name" in data:
        kept["data"] = data | {"name": Path(str(data["name"])).name}
    return kept


def _made_by(study: Study, data: str | None) -> dict[str, str]:
    seeds = _different(tuple(seeds) for seeds in study.seeds.values())
    budget = "" if study.budget == FULL else f" --budget {study.budget}"
    return {
        "seeds": "; ".join(", ".join(map(str, some)) for some in seeds),
        "versions": f"antipodes {version('antipodes')}, torch {version('torch')}, Python {sys.version.split()[0]}",
        "made by": f"`antipodes study {_shown(study)}{budget}{'' if data is None else f' --data {Path(data).name}'}`",
    }


def _shown(study: Study) -> str:
    """A study's file as a call from the current folder names it; of a file elsewhere its name alone."""
    file, here = study.path.absolute(), Path.cwd()
    return file.relative_to(here).as_posix() if file.is_relative_to(here) else file.name


def _size(data: Samples, test_limit: int | None) -> str:
    test = data.held_out(test_limit)
    tested = "tested on a fifth of them" if test is None else f"{len(test):,} test images"
    return f"{data.name}, {len(data):,} training images, {tested}"


def _all(configurations: Sequence[Options], *keys: str) -> str:
    """The values of an option, joined when variants differ in it."""
    values: list[Any] = list(configurations)
    for key in keys:
        values = [value[key] for value in values]
    return ", ".join(map(str, _different(values)))


def _different(values: Iterable[Any]) -> list[Any]:
    different: list[Any] = []
    for value in values:
        if value not in different:
            different.append(value)
    return different


def _placeless(value: Any) -> Any:
    """The same options with the last part of every absolute path in its place."""
    if isinstance(value, dict):
        return {key: _placeless(each) for key, each in value.items()}
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
