"""Methods as the command line builds them, on a few small images."""

from __future__ import annotations

from antipodes.cli.train import parse
from antipodes.methods import Method
from antipodes.runs.build import build_data, build_method

SHAPES = ["--encoder", "resnet8-slim", "--data.count", "16"]


def built(*options: object) -> Method:
    """The method that `antipodes train` would train with these options."""
    config, _ = parse([*SHAPES, *map(str, options)])
    return build_method(config, build_data(config["data"]))
