"""The contract with users: the names, signatures and calls of `antipodes` that scripts outside the repository use.

A name is one line of `NAMES`, a call is one line of `CALLS`. A line changes only when the public face does.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import antipodes
from antipodes import (
    FNC,
    HCL,
    IFND,
    Cave,
    DatasetNeighbours,
    Debiased,
    GlobalContrastive,
    GloFND,
    Guided,
    Hardest,
    InfoNCE,
    Known,
    Oracle,
    PositiveAware,
    Ring,
    Sigmoid,
    Temperature,
    TwoWay,
)
from tests.auditing.scenes import scene
from tests.cases import every

PAIR = "z1 z2 ids *rows *candidates *candidate_ids *candidate_rows *guide *candidate_guide *weights *progress"

# name -> parameters, in the order that positional calls rely on; * stands before those that are given by keyword
NAMES: dict[str, str] = {
    "BCL": "tau_plus alpha",
    "Cave": "num_samples clusters *every *space *seed",
    "Chance": "alpha start",
    "DatasetNeighbours": "num_samples k",
    "Debiased": "tau_plus",
    "Distillation": "weight temperature",
    "FNC": "alpha start",
    "GloFND": "num_samples alpha start",
    "GlobalContrastive": "num_samples temperature gamma *negatives *treatment",
    "Guided": "margin relative",
    "HCL": "tau_plus beta",
    "HardPairs": "top_k quantile threshold",
    "Hardest": "k",
    "HistoryGuide": "num_samples dim momentum",
    "IFND": "num_samples clusters",
    "InfoNCE": "temperature negatives treatment *reduction",
    "Known": "groups *num_samples",
    "LocalAggregation": "close temperature",
    "MomentumGuide": "network momentum",
    "NetworkGuide": "network",
    "Oracle": "labels",
    "Policy": "",
    "PositiveAware": "margin relative",
    "Refine": "*mu *tau_prime",
    "Ring": "outer inner until",
    "Sigmoid": "temperature bias",
    "TableGuide": "table",
    "Temperature": "value *learnable *floor *schedule *per_sample",
    "TwoWay": "loss_fn",
    "audit": "data *encoder *out",
    "chunked": "encoder",
    "content_ids": "texts",
    "mine": "queries corpus positives *encoder *k *margin *relative *ranks *rescore",
    "Known.from_pairs": "queries documents *closure",
    "compare": "runs *baseline *scores",
    "embed": "encoder data *tower *out",
    "estimate_alpha": "embeddings",
    "evaluate": "run protocol *save",
    "export": "run *onnx *safetensors",
    "load": "path tower preprocessing *embeddings",
    "neighbours": "vectors *k *queries",
    "report": "runs *out",
    "study": "path",
    "train": "*data *out *options",
    "InfoNCE.forward": PAIR,
    "GlobalContrastive.forward": PAIR,
    "Sigmoid.forward": PAIR,
    "TwoWay.forward": "first second ids *rows *guide *weights *progress",
    "Known.read": "path num_samples",
    "IFND.fit": "features progress",
}


def parameters(name: str) -> list[inspect.Parameter]:
    """The parameters of a function, of a method, or of a class's constructor, without self."""
    target: Any = antipodes
    for part in name.split("."):
        target = getattr(target, part)
    found = list(inspect.signature(target.__init__ if inspect.isclass(target) else target).parameters.values())
    return [parameter for parameter in found if parameter.name != "self"]


@every("name", NAMES)
def test_parameters_have_the_names_and_the_order_that_callers_use(name: str) -> None:
    promised = NAMES[name].split()
    positional = [each for each in promised if not each.startswith("*")]
    keywords = {each[1:] for each in promised if each.startswith("*")}
    found = parameters(name)
    can_be_positional = [one.name for one in found if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert can_be_positional[: len(positional)] == positional
    assert keywords <= {one.name for one in found}


def test_every_public_name_is_listed_and_can_be_imported() -> None:
    assert {name for name in NAMES if "." not in name} <= set(antipodes.__all__)
    for name in antipodes.__all__:
        assert getattr(antipodes, name) is not None


def test_dir_shows_the_public_names() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "import antipodes; print(*(n for n in dir(antipodes) if n[0] != '_'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split() == sorted(antipodes.__all__)


def test_a_name_of_an_earlier_version_is_refused_with_the_new_one() -> None:
    with pytest.raises(AttributeError, match=r"DCL.*Debiased"):
        antipodes.DCL  # noqa: B018
    with pytest.raises(AttributeError, match="nothing_like_this"):
        antipodes.nothing_like_this  # noqa: B018


B, D, N = 8, 16, 20


def directions(count: int, seed: int) -> Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed), requires_grad=True)


Z1, Z2, BANK = directions(B, 1), directions(B, 2), directions(N, 3)
IDS, BANK_IDS = torch.arange(B), torch.arange(N)
GUIDE = (directions(B, 4).detach(), directions(B, 5).detach())
LABELS = torch.arange(N) % 4

CALLS: dict[str, Callable[[], Tensor]] = {
    "two views": lambda: InfoNCE(0.5)(Z1, Z2),
    "two views with identities": lambda: InfoNCE(0.5)(Z1, Z2, IDS),
    "progress": lambda: InfoNCE(
        temperature=0.1, negatives=GloFND(num_samples=N, alpha=0.01, start=0.3), treatment="eliminate"
    )(Z1, Z2, IDS, progress=0.5),
    "attract": lambda: InfoNCE(negatives=Oracle(LABELS), treatment="attract")(Z1, Z2, IDS),
    "refine": lambda: InfoNCE(negatives=FNC(alpha=0.1), treatment="refine")(Z1, Z2, IDS),
    "queue or bank": lambda: InfoNCE(0.07, GloFND(N, alpha=0.1))(
        Z1, Z2, IDS, candidates=BANK, candidate_ids=BANK_IDS, progress=0.5
    ),
    "text pairs, one direction": lambda: InfoNCE(0.05)(Z1, Z2, IDS, candidates=Z2, candidate_ids=IDS),
    "a guide's vectors": lambda: InfoNCE(negatives=Guided(margin=0.1))(Z1, Z2, IDS, guide=GUIDE),
    "both directions": lambda: TwoWay(
        InfoNCE(temperature=Temperature(0.07, learnable=True, floor=0.01), negatives=GloFND(N, alpha=0.02))
    )(Z1, Z2, IDS, progress=0.5),
    "joined policies": lambda: InfoNCE(negatives=Ring(outer=(1.0, 0.1), inner=0.1) & GloFND(num_samples=N, alpha=0.1))(
        Z1, Z2, IDS, progress=0.5
    ),
    "oracle": lambda: InfoNCE(0.1, Oracle(LABELS), "attract")(Z1, Z2, IDS),
    "known": lambda: InfoNCE(0.1, Known(LABELS))(Z1, Z2, IDS),
    "positive-aware": lambda: InfoNCE(0.1, PositiveAware(margin=0.05, relative=True))(Z1, Z2, IDS),
    "hardest": lambda: InfoNCE(0.1, Hardest())(Z1, Z2, IDS),
    "debiased": lambda: InfoNCE(0.1, Debiased())(Z1, Z2, IDS),
    "hcl": lambda: InfoNCE(0.1, HCL())(Z1, Z2, IDS),
    "cave": lambda: InfoNCE(0.1, fitted(Cave(num_samples=N, clusters=(3,))))(Z1, Z2, IDS),
    "dataset neighbours": lambda: InfoNCE(0.1, fitted(DatasetNeighbours(N, k=2)))(Z1, Z2, IDS),
    "ifnd": lambda: InfoNCE(0.1, fitted(IFND(num_samples=N, clusters=(3, 4, 5))))(Z1, Z2, IDS, progress=0.5),
    "SogCLR": lambda: GlobalContrastive(N, 0.1, gamma=0.9)(Z1, Z2, IDS),
    "SigLIP, both ways": lambda: TwoWay(Sigmoid(0.1, bias=-10.0))(Z1, Z2, IDS),
}


def fitted(policy: Any) -> Any:
    policy.fit(BANK.detach(), progress=0.4)
    return policy


@every("call", CALLS)
def test_calls_give_a_loss_with_a_gradient(call: str) -> None:
    loss = CALLS[call]()
    gradient = torch.autograd.grad(loss, Z1)[0]
    assert loss.dim() == 0
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().sum() > 0


def test_statistics_and_thresholds_can_be_read() -> None:
    loss_fn = InfoNCE(negatives=GloFND(num_samples=N, alpha=0.1))
    loss_fn(Z1, Z2, IDS, progress=0.5)
    assert {"flagged_share", "kept_per_anchor"} <= set(loss_fn.stats)
    assert all(isinstance(value, float) for value in loss_fn.stats.values())
    assert loss_fn.negatives is not None
    assert loss_fn.negatives.threshold.shape == (N,)
    both = TwoWay(InfoNCE(negatives=GloFND(num_samples=N, alpha=0.1)))
    both(Z1, Z2, IDS, progress=0.5)
    assert any(name.startswith("first_to_second") for name in both.stats)


def test_no_table_moves_in_evaluation_or_without_gradients() -> None:
    loss_fn = InfoNCE(negatives=GloFND(num_samples=N, alpha=0.1))
    loss_fn(Z1, Z2, IDS, progress=0.5)
    before = {name: value.clone() for name, value in loss_fn.state_dict().items()}
    with torch.no_grad():
        loss_fn(Z1, Z2, IDS, progress=0.5)
    loss_fn.eval()
    loss_fn(Z1, Z2, IDS, progress=0.5)
    assert all(torch.equal(value, before[name]) for name, value in loss_fn.state_dict().items())


def test_known_groups_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "groups.csv"
    file.write_text("row,group\n0,0\n1,0\n2,1\n")
    assert Known.read(file).groups.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "command", ["train", "evaluate", "embed", "neighbours", "audit", "report", "export", "compare", "mine"]
)
def test_every_command_has_a_parser_of_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"antipodes.cli.{command}").main(["--help"])
    assert ended.value.code == 0
    assert f"antipodes {command}" in capsys.readouterr().out


MOST_MODULES = 70
COUNTED = """
import sys
from antipodes.__main__ import main
code = main(["audit", "photos", "--out", "audit", "--encoder", "patches", "--json"])
print(code, *sorted(name for name in sys.modules if name.startswith("antipodes.")), file=sys.stderr)
"""


def test_an_audit_of_a_folder_imports_little_of_the_package(tmp_path: Path) -> None:
    """It needs no method, loss, policy, run, protocol or study, so it starts fast."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("jinja2")
    (tmp_path / "photos").mkdir()
    for number in range(4):
        scene(number).save(tmp_path / "photos" / f"{number}.png")
    done = subprocess.run([sys.executable, "-c", COUNTED], cwd=tmp_path, capture_output=True, text=True, check=True)
    code, *modules = done.stderr.strip().splitlines()[-1].split()
    assert code == "0"
    rooms = {module.split(".")[1] for module in modules}
    assert not rooms & {"methods", "losses", "negatives", "guides", "candidates", "runs", "training", "evaluation"}
    assert not rooms & {"studies", "reporting"}
    assert len(modules) <= MOST_MODULES, modules
