"""Wrong calls of every command: one sentence on one line, exit code 1 or 2, no traceback, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import antipodes
from antipodes.cli.errors import exit_code
from tests.cli.command import here

TINY = "--data photos --encoder resnet8-slim --head.hidden 8 --head.dim 8 --batch_size 8 --epochs 1 --data.size 32"
TRAIN = f"train {TINY} --out new"
SHAPES = (
    "train --data shapes --data.count 16 --encoder resnet8-slim --head.hidden 8 --batch_size 8 --epochs 1 --out new"
)
RING = Path(__file__).parents[2] / "research" / "studies" / "ring.yaml"
HUGE = str(2**70)

CALLS = [
    # train: what to train on
    "train",
    "train --out new",
    "train --data",
    "train --data '' --out new",
    "train --help al",
    "train --data nowhere --out new",
    "train --data empty --out new",
    "train --data one --data.size 32 --batch_size 2 --out new",
    "train --data notes.txt --out new",
    "train --data broken.npz --out new",
    "train --data broken.zip --out new",
    "train --data /dev/null --out new",
    "train --data shapes --data.count 0 --out new",
    "train --data shapes --data.count -3 --out new",
    "train --data shapes --data.sizes 3 --out new",
    "train --data os.path --out new",
    "train --data cifar11 --out new",
    f"{TRAIN} --data.size 0",
    f"{TRAIN} --data.size -1",
    f"{TRAIN} --data.labels perhaps",
    # train: components
    f"{SHAPES} --method simclear",
    f"{SHAPES} --method 3",
    f"{SHAPES} --method os.system",
    f"{SHAPES} --encoder resnet19",
    f"{SHAPES} --encoder nothing.Here",
    f"{SHAPES} --negatives glow",
    f"{SHAPES} --negatives ring+",
    f"{SHAPES} --negatives glofnd+glofnd",
    f"{SHAPES} --negatives known --negatives.groups pairs.parquet",
    f"{TRAIN} --negatives known --negatives.groups elsewhere.csv",
    f"{SHAPES} --negatives glofnd --negatives.alpha 2",
    f"{SHAPES} --negatives glofnd --negatives.alpha nan",
    f"{SHAPES} --negatives hcl+debiased",
    f"{SHAPES} --guide",
    f"{SHAPES} --guide mirror",
    f"{SHAPES} --guide history",
    f"{SHAPES} --negatives guided",
    f"{SHAPES} --negatives guided --guide table",
    f"{SHAPES} --negatives guided --negatives.alpha 0.1 --guide nowhere.npy",
    f"{SHAPES} --negatives guided --negatives.alpha 0.1 --guide broken.npz",
    f"{SHAPES} --negatives guided --negatives.alpha 0.1 --guide momentum",
    f"{SHAPES} --negatives guided --negatives.alpha 0.1 --guide network --guide.encoder resnet18",
    f"{SHAPES} --augmentation none",
    f"{SHAPES} --loss hinge",
    f"{SHAPES} --loss.temperature 0",
    f"{SHAPES} --loss.temperature -1",
    f"{SHAPES} --loss.temperature cold",
    f"{SHAPES} --method moco --method.queue_size 0",
    f"{SHAPES} --method moco --method.momentum 2",
    f"{SHAPES} --method clip",
    f"{SHAPES} --encoders.text minilm --encoders.text",
    f"{SHAPES} --head.dim 0",
    f"{SHAPES} --head.kind square",
    f"{SHAPES} --treatment ignore",
    f"{SHAPES} --refine_mu 0.5",
    f"{SHAPES} --freeze ear",
    f"{SHAPES} --init nowhere",
    f"{SHAPES} --init notes.txt",
    f"{SHAPES} --init broken.pt",
    f"{SHAPES} --init empty",
    # train: settings
    f"{SHAPES} --out ''",
    f"{SHAPES} --out run",
    f"{SHAPES} --out notes.txt",
    f"{SHAPES} --out notes.txt/a",
    f"{SHAPES} --epochs -1",
    f"{SHAPES} --distill 1",
    f"{SHAPES} --distill -1 --guide patches",
    f"{SHAPES} --distill_temperature 0.2",
    f"{SHAPES} --distill 1 --guide patches --guide.dim 4 --guide.words 4",
    f"{SHAPES} --method hnssl --distill 1 --guide patches",
    f"{SHAPES} --encoder patches --encoder.words 0",
    f"{SHAPES} --encoder patches",
    f"{SHAPES} --epochs many",
    f"{SHAPES} --epochs 1.5",
    f"{SHAPES} --epochs",
    f"{SHAPES} --epoch 3",
    f"{SHAPES} --batch_size 0",
    f"{SHAPES} --batch_size 1",
    f"{SHAPES} --batch_size 17",
    f"{SHAPES} --seed {HUGE}",
    f"{SHAPES} --head.dim {HUGE}",
    f"{SHAPES} --encoder.width {HUGE}",
    f"{SHAPES} --seed -1",
    f"{SHAPES} --learning_rate -1",
    f"{SHAPES} --learning_rate nan",
    f"{SHAPES} --learning_rate 1e30",
    f"{SHAPES} --learning_rate fast",
    f"{SHAPES} --weight_decay -1",
    f"{SHAPES} --optimizer adam",
    f"{SHAPES} --schedule linear",
    f"{SHAPES} --warmup 1",
    f"{SHAPES} --schedule step --milestones [2]",
    f"{SHAPES} --clip_gradient 0",
    f"{SHAPES} --accumulate 2",
    f"{SHAPES} --precision 16-mixed",
    f"{SHAPES} --precision 8",
    f"{SHAPES} --accelerator cuda",
    f"{SHAPES} --devices 99",
    f"{SHAPES} --layer_decay 0",
    f"{SHAPES} --layer_decay 1.5",
    f"{SHAPES} --devices 0",
    f"{SHAPES} --workers -1",
    f"{SHAPES} --threads 0",
    f"{SHAPES} --threads 1000000",
    f"{SHAPES} --knn_every -1",
    f"{SHAPES} --log_every 0",
    f"{SHAPES} --checkpoint_steps -1",
    f"{SHAPES} extra",
    f"{SHAPES} --strict true",
    # train: configurations
    "train --config nowhere.yaml --out new",
    "train --config photos --out new",
    "train --config list.yaml --out new",
    "train --config broken.yaml --out new",
    "train --config three.yaml --out new",
    "train --config bomb.yaml --out new",
    "train --config endless.yaml --out new",
    "train --config deep.yaml --out new",
    "train --config binary.yaml --out new",
    "train --config dates.yaml --out new",
    "train --config tower.yaml --out new",
    "train --config unknown.yaml --out new",
    # train: resuming
    "train --resume",
    "train --resume nowhere",
    "train --resume photos",
    "train --resume run --epochs 0",
    "train --resume run --seed 4",
    "train --resume run --method moco",
    "train --resume run --data one",
    "train --resume run --data cifar10",
    "train --resume damaged",
    "train --resume unreadable",
    # evaluate
    "evaluate",
    "evaluate nowhere",
    "evaluate photos",
    "evaluate run --protocol lineal",
    "evaluate run --protocol ,",
    "evaluate run --protocol knn --knn.k 0",
    "evaluate run --protocol knn --knn.k many",
    "evaluate run --checkpoint worst",
    "evaluate run --test_limit 0",
    "evaluate run --data nowhere",
    "evaluate run --data ''",
    f"evaluate run --seed {HUGE}",
    "evaluate ''",
    "evaluate run --data shapes",
    "evaluate run --device tpu",
    "evaluate run --workers -1",
    "evaluate run --transfer nowhere",
    "evaluate damaged",
    "evaluate unreadable",
    "evaluate run --images vectors.npy",
    "evaluate --images nowhere.npy --texts nowhere.npy",
    "evaluate --images notes.txt --texts notes.txt",
    # embed, neighbours
    "embed",
    "embed run photos",
    "embed run photos --out vectors.txt",
    "embed run photos --out nowhere/vectors.npz",
    "embed run nowhere --out new.npz",
    "embed run empty --out new.npz",
    "embed run '' --out new.npz",
    "embed '' photos --out new.npz",
    "embed run photos --out ''",
    "embed nowhere photos --out new.npz",
    "embed notes.txt photos --out new.npz",
    "embed damaged --out new.npz",
    "embed run photos --out new.npz --batch_size 0",
    "embed run photos --out new.npz --workers 0",
    f"embed run photos --out new.npz --workers {HUGE}",
    f"embed run photos --out new.npz --limit {HUGE}",
    "embed run photos --out new.npz --limit -1",
    "neighbours",
    "neighbours nowhere.npz",
    "neighbours notes.txt",
    "neighbours ''",
    "neighbours run",
    "neighbours photos",
    "neighbours pairs.parquet",
    "neighbours broken.npz",
    "neighbours vectors.npz --k 0",
    "neighbours vectors.npz --k many",
    "neighbours vectors.npz --out new.txt",
    "neighbours vectors.npz --out nowhere/new.csv",
    # audit, baseline
    "audit",
    "audit nowhere --out new",
    "audit empty --out new",
    "audit '' --out new",
    "audit pairs.parquet --out new",
    "audit one --out new",
    "audit broken.npz --out new",
    "audit photos --out ''",
    "audit photos --out notes.txt",
    "audit photos --out new --batch_size 1",
    "audit photos --out new --encoder nowhere",
    "audit photos --out new --workers 0",
    "audit photos --out new --shown -1",
    "baseline photos --epochs 0 --workers -1",
    "baseline",
    "baseline nowhere",
    "baseline empty",
    "baseline ''",
    f"baseline photos --epochs 0 --seed {HUGE}",
    "baseline photos --epochs 0 --seed -1",
    "baseline photos --limit 1",
    "baseline photos --epochs -1",
    "baseline photos --encoder nobody --simclr run",
    "baseline photos --simclr run",
    "baseline photos --runs nowhere",
    "baseline photos --out new.txt",
    # report, compare, pictures, export
    "report",
    "report nowhere --out new.html",
    "report run --out new.txt",
    "report run --out ''",
    "report '' --out new.html",
    "report run --out nowhere/new.html",
    "report run --samples 1 --out new.html",
    "report run run --out new.html",
    "report unreadable --out new.html",
    "compare",
    "compare nowhere",
    "compare ''",
    "compare run",
    "compare scored",
    "compare scored run --baseline nowhere",
    "compare unreadable",
    "pictures",
    "pictures nowhere",
    "pictures run --format gif",
    "pictures run --out notes.txt",
    "pictures run --out ''",
    f"pictures run --seed {HUGE}",
    f"pictures run --out {'a' * 300}",
    "pictures run --data nowhere",
    "pictures damaged --out new",
    "pictures unreadable --out new",
    "export",
    "export run",
    "export nowhere --safetensors new.safetensors",
    "export run --safetensors photos",
    "export run --safetensors nowhere/new.safetensors",
    "export run --safetensors new.safetensors --tower ear",
    "export run --open_clip new",
    "export damaged --checkpoint last --safetensors new.safetensors",
    # study, demo, and no command at all
    "study",
    "study nowhere",
    "study ''",
    "study false-negatives --out ''",
    f"study false-negatives --seeds {HUGE} --out new",
    "study notes.txt",
    "study broken.yaml",
    "study bomb.yaml",
    "study list.yaml",
    "study false-negatives --budget lavish --out new",
    "study false-negatives --parallel 0 --out new",
    "study false-negatives --data_size 3 --out new",
    "study false-negatives --data nowhere --out new",
    "study false-negatives --seeds many --out new",
    "demo --epochs 0 --out new",
    "demo --epochs many --out new",
    "demo --data shapes --limit 0 --out new",
    "demo --data nowhere --out new",
    "demo --data shapes --encoder resnet19 --out new",
    "evalute run",
    "--verbose",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and with everything that can be wrong."""
    place = tmp_path_factory.mktemp("calls")
    for name, count in (("photos", 16), ("one", 1), ("empty", 0)):
        (place / name).mkdir()
        for number in range(count):
            pixels = np.random.default_rng(number).integers(0, 256, (36, 36, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / name / f"{number}.png")
    for name in ("broken.npz", "broken.zip", "broken.pt", "notes.txt"):
        (place / name).write_text("not what its name says")
    vectors = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    np.save(place / "vectors.npy", vectors)
    np.savez(place / "vectors.npz", embeddings=vectors, paths=np.array([f"{number}.png" for number in range(6)]))
    bomb = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    bomb += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    configurations = {
        "list": "- a",
        "broken": "a: [",
        "three": "data: shapes\nmethod: {name: 3}",
        "bomb": "\n".join(bomb),
        "endless": "data: shapes\nmilestones: &a [*a]",
        "deep": "a: " + "[" * 5000,
        "dates": "data: shapes\nout: 2024-01-01",
        "tower": "data: shapes\nencoders: {image: {width: 3}}",
        "unknown": "data: shapes\ncolour: red",
    }
    for name, text in configurations.items():
        (place / f"{name}.yaml").write_text(text)
    (place / "elsewhere.csv").write_text("row,path,group\n0,/holiday/0.png,1\n1,/holiday/1.png,1\n")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pyarrow.table({"path_a": ["0.png"], "path_b": ["1.png"], "similarity": [0.9]}), place / "pairs.parquet"
    )
    (place / "binary.yaml").write_bytes(b"\xff\xfe\x00data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        code, _, errors = here("train", *TINY.split(), "--out", "run")
    assert code == 0, errors
    for name in ("damaged", "scored", "unreadable"):
        shutil.copytree(place / "run", place / name)
    for file in (place / "damaged").glob("*.safetensors"):
        file.write_bytes(b"half")
    (place / "damaged" / "checkpoints" / "last.pt").write_bytes(b"half")
    (place / "scored" / "evaluation.json").write_text('{"scored": {')
    (place / "unreadable" / "config.yaml").write_text("method: [simclr")
    return place


def everything(place: Path) -> dict[str, int]:
    """Every file and folder below, hidden ones too, with its size; the lock of a run is no leftover."""
    found = (path for path in place.rglob("*") if path.name != ".lock")
    return {str(path): path.stat().st_size for path in found if path.is_file() or not any(path.iterdir())}


@pytest.mark.parametrize("command", sorted({call.split()[0] for call in CALLS}))
def test_wrong_calls_get_one_sentence(command: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    before = everything(place)
    wrong = {}
    for call in CALLS:
        if call.split()[0] == command:
            code, _, errors = here(*("" if word == "''" else word for word in call.split()))
            if problem := what_is_wrong(call, code, errors) or ("left behind" if everything(place) != before else ""):
                wrong[call] = (problem, code, errors)
    assert not wrong


def what_is_wrong(call: str, code: int, errors: str) -> str:
    """What a refusal lacks; empty if it is as it should be: one sentence, the last line, of bearable length."""
    lines = errors.splitlines()
    said = [line for line in lines if line.startswith("antipodes: ")]
    if code not in (1, 2) or "Traceback" in errors:
        return "no refusal"
    if len(said) != 1 or lines[-1] != said[0]:
        return "not one sentence at the end"
    says_data_first = call.startswith(("demo", "train", "evaluate"))
    if code == 2 and not says_data_first and any(not line.startswith("warning: ") for line in lines[:-1]):
        return "more than one sentence"
    if "''" in call.split() and "is empty" not in said[0]:
        return "does not say that it is empty"
    return "too long" if len(said[0]) >= 1500 else ""


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("train --data shapes --negatives glofnd+glofnd --out new", "names glofnd twice"),
        ("train --help al", "--help all shows every option"),
        ("train --data shapes --threads 1000000 --out new", "threads must be from 1 to 1024"),
        ("neighbours run", "run is a folder: embed its images first"),
        ("neighbours pairs.parquet", "it holds path_a, path_b, similarity"),
        (f"{TRAIN} --negatives known --negatives.groups pairs.parquet", "got path_a, path_b, similarity"),
        (f"{TRAIN} --negatives known --negatives.groups elsewhere.csv", "describes other samples"),
        (f"study {RING} --seeds {HUGE} --out new", "--seeds must be a whole number below 2**63"),
    ],
)
def test_the_sentence_says_what_to_do(call: str, sentence: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    code, _, errors = here(*call.split())
    assert code == 2
    assert sentence in errors.splitlines()[-1]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error"
        ),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4096 bytes. GPU 0 has a total capacity of"),
    ],
)
def test_too_little_memory_is_a_sentence(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def command(_: list[str]) -> None:
        raise error

    assert exit_code(command, []) == 1
    said = capsys.readouterr().err
    assert said.startswith("antipodes: there is not enough memory for this, 4096 bytes at once: ")
    assert len(said.splitlines()) == 1


def test_a_layer_that_no_memory_holds_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(lambda _: print(torch.nn.Linear(9 * 10**15, 512)), []) == 1
    assert capsys.readouterr().err.startswith("antipodes: there is not enough memory for this: ")


@pytest.mark.parametrize(("given", "sentence"), [("", "is empty"), (None, "must be a path or a name, got None")])
def test_nothing_cannot_be_loaded(given: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"what to load {sentence}"):
        antipodes.load(given)


def test_no_command_shows_them_all() -> None:
    code, text, _ = here()
    assert code == 2
    assert "antipodes demo" in text


def test_a_broken_file_of_scores_is_replaced(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "scored", tmp_path / "scored")
    code, _, errors = here("evaluate", run, "--protocol", "label-free")
    assert code == 0, errors
    assert set(json.loads((run / "evaluation.json").read_text())) == {"scored", "measured with"}


@pytest.mark.parametrize("given", ["--options {}", "--options={}"])
def test_a_named_pipe_is_no_file_of_options(tmp_path: Path, given: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:  # so that a command which reads the pipe comes to an end, and fails the test
        with suppress(BrokenPipeError):
            pipe.write_text("k: 3")

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    code, _, errors = here("audit", str(tmp_path), *given.format(pipe).split(), "--out", str(tmp_path / "new"))
    os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
    writer.join(10)
    assert code != 0
    assert "named pipe" in errors
    assert not (tmp_path / "new").exists()
