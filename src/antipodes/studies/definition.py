"""What a study is: a YAML file that names the training runs to compare.

A short one:

    common: {data: path/to/photos, epochs: 40}
    variants:
      simclr: {}
      guided: {preset: guided}
    seeds: [0, 1, 2]

Everything that a file may hold:

    title: one line              # optional: by default the name of the file
    question: what it asks, in a sentence or two    # optional
    common:                      # optional: options of every run, as antipodes train takes them in a configuration
      data: {name: cifar10, limit: 10000}
      epochs: 40
    variants:                    # name -> the options that differ
      plain: {}
      glofnd: {negatives: {name: glofnd, alpha: 0.1}}
      glofnd attract: {negatives: {name: glofnd, alpha: 0.1}, treatment: attract, seeds: [0]}   # fewer seeds
      guided: {preset: guided}   # the options of a preset; options given here or in `common` win
      many: {data: {classes: 300}, budgets: [paper]}    # only with these budgets
    seeds: [0, 1, 2]             # optional: these three by default
    baseline: plain              # optional: the variant that the others are compared with, unless they have
                                 # `against: OTHER`; by default the first
    protocols: [linear, knn]     # optional, these by default: of antipodes evaluate; protocols that judge a policy
                                 # skip variants without one
                                 # One with options is a mapping: [knn: {k: 20}, linear-sgd: {rates: [0.01, 0.1]}]
    test_limit: 4000             # optional: use only so many test images
    centre_crop: 0.875           # optional: cut images to this share around the centre, the papers' test view
    transfer: [fashion-mnist]    # optional: other datasets to score the encoders on, by name or path
    transfer_limit: 5000         # optional: use only so many training images of these
    transfer_normalise: own      # optional: normalise their images by their own statistics, not as the run's
    scores: [linear top-1]       # optional: what the tables show; by default every score
    records: [flagged_share]     # optional: numbers of the last epoch, from metrics.jsonl, as further scores
    curves: [knn, loss]          # optional: numbers of metrics.jsonl that are drawn over epochs
    paper:                       # optional: published figures
      - {source: "Table 1 of ...", measured: "ImageNet, ResNet-50", scores: {glofnd: {linear top-1: 77.1}}}
    appendix:                    # optional: a further section of the page by a class of yours, which is built with the
      by: my_module.Appendix     # other keys as arguments; its method `section(results)` gets variant -> seed -> score
      threshold: 0.5             # -> number, and returns Markdown
    budgets:                     # optional: what replaces the above for antipodes study FILE --budget quick
      quick: {seeds: [0], test_limit: 1000, common: {epochs: 3, data: {limit: 2000}}}
      paper: {common: {epochs: 200}, variants: {glofnd: {negatives: {alpha: 0.01}}}}   # variants: of single ones

What was found belongs into a note, not into the definition: notes/NAME.md next to the report is included where the grid
is the definition's own. What follows a line `<!-- more -->` of it is folded away.

Options of a component are merged with those of the same component in `common`; one of another name replaces it whole.

A study that is not a grid of training runs names its `runner`, the dotted path of a `studies.runner.Runner`, instead of
protocols, test_limit and records; common and variants then hold the runner's options.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from antipodes.files import replacing
from antipodes.registry import load_class
from antipodes.runs.yaml_files import read_options
from antipodes.studies.checks import (
    Options,
    Paper,
    check_keys,
    list_of_names,
    read_limit,
    read_mapping,
    read_name,
    read_options_of,
    read_papers,
    read_seeds,
    read_share,
)

__all__ = ["FULL", "Options", "Paper", "Study", "Trial", "flatten_options", "load_study", "merge"]

FULL = "full"
REQUIRED = ("variants",)
OPTIONAL = ("title", "question", "common", "seeds", "baseline", "scores", "paper", "appendix", "budgets")
SEEDS = (0, 1, 2)
PROTOCOLS = ("linear", "knn")
BUDGETED = ("common", "variants", "seeds", "scores", "appendix")
# where trials are training runs
TRAINED = ("protocols", "test_limit", "centre_crop", "transfer", "transfer_limit", "transfer_normalise")


@dataclass(frozen=True)
class Trial:
    """One run of a study: a variant with a seed.

    Args:
        variant: Its name.
        seed: The run's seed.
        options: What antipodes train is called with, without seed and out.
        folder: Of the run.
    """

    variant: str
    seed: int
    options: Options = field(compare=False)
    folder: Path

    def __str__(self) -> str:
        return f"{self.variant}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """The output of its processes."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def file(self) -> Path:
        """The options as antipodes train takes them, written before the run is started."""
        return self.folder.with_name(f"{self.folder.name}.yaml")

    @property
    def code_file(self) -> Path:
        """The digests of the code that the run was started with."""
        return self.folder.with_name(f"{self.folder.name}.code.json")

    def write(self, file: Path | None = None) -> Path:
        """Write the options to their file, or to another one, whole or not at all."""
        path = file or self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(yaml.safe_dump(self.options | {"seed": self.seed}, sort_keys=False))
        return path

    def arguments(self, file: Path | None = None) -> list[str]:
        """The call of antipodes train, which reads the options from their file."""
        return ["--config", str(file or self.file), "--out", str(self.folder)]


@dataclass(frozen=True)
class Study:
    """A study with a budget applied; the module's docstring explains the fields.

    `path` is the YAML file. `is_own` says that the grid is the definition's: no other budget, seeds or data.
    """

    name: str
    path: Path
    budget: str
    title: str
    question: str
    variants: dict[str, Options]
    seeds: dict[str, list[int]]
    baseline: str
    against: dict[str, str]
    protocols: list[str]
    protocol_options: dict[str, Options]
    centre_crop: float
    test_limit: int | None
    transfer: list[str]
    transfer_limit: int | None
    transfer_normalise: str
    scores: list[str] | None
    records: list[str]
    curves: list[str]
    paper: list[Paper]
    appendix: Options
    runner: str | None
    is_own: bool

    @property
    def label(self) -> str:
        """The name of its folder and files: a budget other than the full one is part of it."""
        return self.name if self.budget == FULL else f"{self.name}-{self.budget}"

    def appended(self, results: Mapping[str, Mapping[int, Mapping[str, float]]]) -> str:
        """Return the further section of the page, from the results of all variants; empty if there is none."""
        return write_appendix(self.appendix, {**{variant: {} for variant in self.against}, **results})

    def trials(self, out: Path) -> list[Trial]:
        """Every run, seed by seed, so that a study which is stopped early has compared all variants."""
        every = sorted({seed for seeds in self.seeds.values() for seed in seeds})
        return [
            Trial(variant, seed, options, out / _folder_name(variant) / f"seed-{seed}")
            for seed in every
            for variant, options in self.variants.items()
            if seed in self.seeds[variant]
        ]


def load_study(
    path: str | Path, budget: str = FULL, seeds: list[int] | None = None, data: Options | None = None
) -> Study:
    """Read a study.

    Args:
        path: Of its YAML file.
        budget: Which of its budgets; `full` is the study as it stands.
        seeds: Instead of its own.
        data: Instead of its own: a name or path with options, for all variants. Options of the study's data stay, as
            far as the new data takes them, and those of a variant's own win.

    Raises:
        ValueError: if there is no such file or budget, or the file is not a study.
    """
    path = Path(path)
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"a study is a YAML file, got {str(path)!r}: give the path of a file that ends in .yaml")
    content = read_options(path)
    try:
        return _study(path, content, budget, seeds, data)
    except ValueError as error:
        raise ValueError(f"study {path}: {error}") from error


def _study(path: Path, content: Any, budget: str, chosen: list[int] | None, data: Options | None) -> Study:
    if isinstance(content, dict) and "runner" in content:
        check_keys("it", content, (*REQUIRED, "runner"), OPTIONAL)
    else:
        check_keys("it", content, REQUIRED, (*OPTIONAL, *TRAINED, "records", "curves"))
    budgets = {FULL: {}, **read_mapping(content.get("budgets", {}), "budgets")}
    if budget not in budgets:
        raise ValueError(f"there is no budget {budget!r}: choose one of {', '.join(budgets)}")
    check_keys(
        f"budget {budget}",
        budgets[budget],
        (),
        BUDGETED if "runner" in content else (*BUDGETED, *TRAINED),
    )
    cut = read_options_of(budgets[budget].get("common", {}), f"budget {budget}")
    single = read_mapping(budgets[budget].get("variants", {}), f"variants of budget {budget}")
    if unknown := set(single) - set(read_mapping(content["variants"], "variants")):
        raise ValueError(f"budget {budget} has options of {unknown.pop()!r}, which is not a variant")
    content = content | {key: value for key, value in budgets[budget].items() if key not in ("common", "variants")}
    common = read_options_of(content.get("common", {}), "common")
    variants = read_mapping(content["variants"], "variants")
    if not variants:
        raise ValueError("variants names no run: give each a name and the options in which it differs")
    baseline = read_name(content.get("baseline", next(iter(variants))), "baseline")
    if baseline not in variants:
        raise ValueError(f"the baseline {baseline!r} is not a variant: there are {', '.join(variants)}")
    if len({_folder_name(variant) for variant in variants}) < len(variants):
        raise ValueError(f"variants need names that differ in letters and digits, got {', '.join(variants)}")
    options: dict[str, Options] = {}
    seeds: dict[str, list[int]] = {}
    against: dict[str, str] = {}
    for variant, given in variants.items():
        its_options = read_options_of({} if given is None else given, f"variant {variant}")
        every = read_seeds(content.get("seeds", list(SEEDS)) if chosen is None else chosen, "seeds")
        few = read_seeds(its_options.pop("seeds", every), f"seeds of variant {variant}")
        only = list_of_names(its_options.pop("budgets", [budget]), f"budgets of variant {variant}")
        if unknown := set(only) - set(budgets):
            raise ValueError(f"variant {variant} names the budget {unknown.pop()!r}: there are {', '.join(budgets)}")
        seeds[variant] = [seed for seed in every if seed in few and budget in only]
        against[variant] = read_name(its_options.pop("against", baseline), f"against of variant {variant}")
        if against[variant] not in variants:
            raise ValueError(f"{variant} is to be compared with {against[variant]!r}, which is not a variant")
        further = read_options_of(single.get(variant, {}), variant)
        options[variant] = merge(merge(merge(common, its_options), cut), further)
        if data is not None:
            own = {*_component(its_options.get("data")), *_component(further.get("data"))}
            options[variant] = options[variant] | {"data": _on(data, options[variant].get("data"), own)}
    if not seeds[baseline]:
        raise ValueError(f"the baseline {baseline!r} runs with none of the seeds")
    transfer = list_of_names(content.get("transfer", []), "transfer")
    scored_by = {} if "runner" in content else _read_protocols(content.get("protocols", list(PROTOCOLS)))
    protocols = list(scored_by)
    if not transfer and (named := [name for name in protocols if name.startswith("transfer")]):
        raise ValueError(f"protocol {named[0]} needs datasets: name them in a list under the key transfer")
    return Study(
        name=path.stem,
        path=path,
        budget=budget,
        title=str(content.get("title", path.stem)),
        question=" ".join(str(content.get("question", "")).split()),
        variants={variant: options[variant] for variant in variants if seeds[variant]},
        seeds={variant: seeds[variant] for variant in variants if seeds[variant]},
        baseline=baseline,
        against=against,
        protocols=protocols,
        protocol_options={name: given for name, given in scored_by.items() if given},
        centre_crop=read_share(content.get("centre_crop", 1.0), "centre_crop"),
        test_limit=read_limit(content.get("test_limit"), "test_limit"),
        transfer=transfer,
        transfer_limit=read_limit(content.get("transfer_limit"), "transfer_limit"),
        transfer_normalise=str(content.get("transfer_normalise", "run")),
        scores=list_of_names(content["scores"], "scores") if "scores" in content else None,
        records=list_of_names(content.get("records", []), "records"),
        curves=list_of_names(content.get("curves", []), "curves"),
        paper=read_papers(content.get("paper", []), variants),
        appendix=_appendix(content.get("appendix"), variants),
        runner=read_name(content["runner"], "runner") if "runner" in content else None,
        is_own=budget == FULL and chosen is None and data is None,
    )


def _read_protocols(value: Any) -> dict[str, Options]:
    """Read names of protocols, each alone or as a mapping with its options."""
    if not isinstance(value, list):
        raise ValueError(f"protocols should be a list of names, got {value!r:.100}")
    found: dict[str, Options] = {}
    for entry in value:
        named = {entry: {}} if isinstance(entry, str) else read_mapping(entry, "an entry of protocols")
        for name, options in named.items():
            found[name] = read_mapping(options, f"options of protocol {name}")
    return found


def write_appendix(appendix: Options, results: Mapping[str, Mapping[int, Mapping[str, float]]]) -> str:
    """Return the further section of a study's page, Markdown; empty if the study names no class that writes one.

    Raises:
        ValueError: if the class cannot be imported, or refuses its arguments.
    """
    if not appendix:
        return ""
    arguments = {name: value for name, value in appendix.items() if name != "by"}
    try:
        return str(load_class(appendix["by"], "appendix")(**arguments).section(results))
    except TypeError as error:
        raise ValueError(f"appendix {appendix['by']} cannot write a section: {error}") from error


def _appendix(value: Any, variants: Mapping[str, Any]) -> Options:
    """Read the appendix, and refuse what its class refuses before anything is run."""
    if value is None:
        return {}
    appendix = read_mapping(value, "appendix")
    if not isinstance(appendix.get("by"), str):
        raise ValueError("appendix lacks 'by', the dotted path of a class")
    write_appendix(appendix, {variant: {} for variant in variants})
    return appendix


def merge(below: Options, above: Options) -> Options:
    """Options with others on top: a component of the same (or no) name is merged, one of another name replaced.

    Example:
        >>> merge({"epochs": 9, "data": {"name": "cifar10", "limit": 100}}, {"data": {"limit": 50}})
        {'epochs': 9, 'data': {'name': 'cifar10', 'limit': 50}}
        >>> merge({"method": {"name": "moco", "queue_size": 9}}, {"method": "simclr"})
        {'method': {'name': 'simclr'}}
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) or isinstance(value, dict):
            old, value = _component(old), _component(value)
            same = value.get("name", old.get("name")) == old.get("name")
            value = old | value if same else value
        merged[key] = value
    return merged


def flatten_options(config: Options, prefix: str = "") -> dict[str, Any]:
    """Nested options by their dotted names.

    Example:
        >>> flatten_options({"epochs": 3, "data": {"name": "shapes"}})
        {'epochs': 3, 'data.name': 'shapes'}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten_options(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _on(data: Options, studied: Any, own: set[str]) -> Options:
    """Other data with those options of the study's data (decode, limit, ...) that it takes, too.

    Those that a variant names itself (`own`), such as another size, are what sets it apart, and win.
    """
    from antipodes.registry import find

    component = find("data", data["name"])
    takes = set(inspect.signature(component.target).parameters) - set(component.preset) - {"name"}
    kept = {key: value for key, value in _component(studied).items() if key in takes}
    return {**kept, **data, **{key: value for key, value in kept.items() if key in own}}


def _component(value: Any) -> Options:
    if isinstance(value, dict):
        return value
    return {} if value is None else {"name": value}


def _folder_name(variant: str) -> str:
    return re.sub(r"\W+", "-", variant).strip("-").lower()
