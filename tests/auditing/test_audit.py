"""`antipodes.audit` of texts, pairs and labels: what is found, what is kept, what a person decides."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import antipodes
from antipodes import Known
from antipodes.auditing.audit import Audit
from antipodes.auditing.decisions import DIFFERENT, SAME, Decision
from antipodes.auditing.text_overlap import WordOverlap, gram_hashes, normalise, propose_texts
from antipodes.auditing.text_vectors import Ngrams
from tests.auditing.scenes import scene
from tests.cases import every
from tests.cli.command import here, refused

FILLER = [
    f"{verb} the {adjective} {noun} {place}"
    for verb, adjective, noun, place in zip(
        ["paint", "sell", "wash", "repair", "borrow", "hide", "carry", "draw", "count", "melt"] * 4,
        ["green", "wooden", "tiny", "broken", "golden", "heavy", "silent", "old"] * 5,
        ["bicycle", "kettle", "mountain", "violin", "ladder", "ocean", "pencil", "rocket", "castle", "window", "jacket"]
        * 4,
        ["in spring", "near Lisbon", "after lunch", "behind schools", "with friends", "for nothing", "at midnight"] * 6,
        strict=False,
    )
]
TEXTS = [
    *FILLER,
    "How do I track my parcel on its way?",  # 40
    "  how do i TRACK my parcel on its way?",  # 41: equal but for case and white space
    "How do I track my parcle on it's way ?",  # 42: typing errors
    "Where can I find out when the package comes?",  # 43: another wording
    "I want to book a flight from Berlin to Paris",  # 44
    "I want to book a flight from Berlin to Rome",  # 45: not the same
    "My card 1234 was declined in the shop",  # 46
    "My card 4321 was declined in the shop",  # 47: another number
]


def kinds_of(found: Audit) -> dict[tuple[int, int], str]:
    table = zip(found.pairs["row"].tolist(), found.pairs["other"].tolist(), found.pairs["kind"].tolist(), strict=True)
    return {(a, b): kind for a, b, kind in table}


def test_texts_are_equal_nearly_equal_or_alike() -> None:
    def embed(texts: list[str]) -> np.ndarray:
        vectors = Ngrams()(texts)
        vectors[43] = vectors[40] + 0.5 * vectors[43]  # an encoder that knows what a package is
        return vectors

    found = antipodes.audit(TEXTS, encoder=embed)
    kinds = kinds_of(found)
    assert kinds[40, 41] == "exact duplicate"
    assert kinds[40, 42] == kinds[41, 42] == "near duplicate"
    assert kinds[40, 43] == "false negative"
    assert {kinds.get((44, 45)), kinds.get((46, 47))} <= {None, "false negative"}
    assert not any("duplicate" in kind for pair, kind in kinds.items() if min(pair) < 40)
    text = found.pairs["text_b"].tolist()[list(kinds).index((40, 41))]
    assert text == TEXTS[41]  # as it was given, next to what it equals
    assert found.groups["group"][40:43].tolist() == [0, 0, 0]


@every(
    ("one", "other", "same"),
    [
        ("Stra\u00dfe  \u200bCaf\u00e9", "STRASSE Cafe\u0301", True),
        ("where is my card", "where's my card", False),
        ("\u4f60\u597d\u4e16\u754c", "\u4f60\u597d\u4e16\u754d", False),
        ("", "", False),
        ("I do like it a lot here", "I do not like it a lot here", False),
        ("e-mail me the invoice", "email me the invoice", True),
        ("Hello there, where is my card?", "where is my card, please", True),
        ("thanks", "hello there", False),
        ("is the shop on the corner open", "the shop on the corner is open", True),
        ("fly from rome to paris", "fly from paris to rome", False),
        ("i want tea not coffee", "i want not tea coffee", False),
        ("divide 80 by the 4", "divide by the 80 4", False),
    ],
)
def test_word_overlap_of_two_texts(one: str, other: str, same: bool) -> None:
    assert (WordOverlap([one, other, *FILLER])(0, 1) >= 0.85) is same


def test_minhash_proposes_what_shares_most_ngrams() -> None:
    rng = np.random.default_rng(0)
    words = [f"w{number:x}" for number in rng.integers(0, 5000, 4000)]
    texts = [" ".join(words[start : start + 20]) for start in range(0, 4000, 20)]
    changed = [" ".join(["zz", *text.split()[1:]]) for text in texts[:50]]  # one word of twenty
    every = [normalise(text) for text in [*texts, *changed]]

    def jaccard(a: int, b: int) -> float:
        one, other = gram_hashes(every[a]), gram_hashes(every[b])
        both = len(np.intersect1d(one, other))
        return both / (len(one) + len(other) - both)

    proposed = {tuple(pair) for pair in propose_texts(every).tolist()}
    assert {(row, 200 + row) for row in range(50)} <= proposed
    assert all(jaccard(row, 200 + row) > 0.7 for row in range(50))
    assert len(proposed) < 500  # of 31,125 pairs


def test_ngram_vectors_estimate_the_weighted_share_of_ngrams() -> None:
    encode = Ngrams()
    vectors = encode(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    similarity = vectors @ vectors.T
    assert similarity[40, 41] == pytest.approx(1, abs=1e-5)
    assert similarity[40, 42] > 0.5 > np.abs(similarity[:40, 40]).max()
    np.testing.assert_array_equal(encode(TEXTS[3:5]), vectors[3:5])  # fitted once


PAIRS = {
    "query": [
        "how tall is it",
        "how high is it",
        "who wrote it",
        "who wrote it",
        "when",
        "where",
        "what colour",
        "why",
    ],
    "document": ["a b c", "a b c", "d e f", "g h i", "j k l", "m n o", "p q r", "s t u"],
}


def pair_vectors() -> tuple[np.ndarray, np.ndarray]:
    """Queries and documents in one space: 0 and 1 share a document, 2 and 3 a query, 5's document suits 4 as well."""
    queries = np.eye(8, 16, dtype=np.float32)
    documents = queries + 0.05 * np.random.default_rng(0).normal(size=queries.shape).astype(np.float32)
    documents[1] = documents[0] = queries[0] + queries[1]
    documents[2:4] += queries[3:1:-1]
    documents[5] = queries[4] + 0.6 * queries[5]
    documents[7] = -queries[7]
    return queries, documents


def test_pairs_share_documents_and_queries_or_have_false_negatives() -> None:
    found = antipodes.audit(PAIRS, encoder=pair_vectors())
    kinds = kinds_of(found)
    assert kinds[0, 1] == "same document"
    assert kinds[2, 3] == "same query"
    queries, documents = (torch.nn.functional.normalize(torch.from_numpy(each)) for each in pair_vectors())
    similarity = queries @ documents.T
    own = similarity.diagonal()
    expected = {
        (i, j)
        for i in range(8)
        for j in range(8)
        if similarity[i, j] > own[i] - 0.05 * own[i].abs() and {i, j} not in ({0, 1}, {2, 3}) and i != j
    }
    suspected = {pair for pair, kind in kinds.items() if kind == "false negative"}
    assert (4, 5) not in expected  # 0.86 is less than 0.95 of the own document's 1
    assert suspected <= expected
    notices = {(row, kind) for row, kind in zip(found.samples["row"], found.samples["kind"], strict=True)}
    assert (5, "nearer to another query") in notices
    assert (7, "unlike pair") in notices
    assert found.groups["group"].tolist() == [0, 0, 1, 1, -1, -1, -1, -1]
    assert Known(found.groups).groups.tolist() == [0, 0, 1, 1, -1, -1, -1, -1]


def test_a_margin_decides_which_documents_are_suspected() -> None:
    queries, documents = pair_vectors()
    for margin, is_suspected in ((0.05, False), (0.3, True)):
        found = antipodes.audit(PAIRS, encoder=(queries, documents), options={"margin": margin, "k": 7})
        assert (kinds_of(found).get((4, 5)) == "false negative") is is_suspected


def test_leaks_between_two_files_and_one_text_with_two_labels(tmp_path: Path) -> None:
    rows = {"train": [*FILLER[:20], TEXTS[40]], "test": [*FILLER[20:], TEXTS[41], TEXTS[42]]}
    for name, texts in rows.items():
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(
                [("words", "intent"), *((text, f"{name}{row % 2}") for row, text in enumerate(texts))]
            )
    call = [
        "audit",
        tmp_path / "train.csv",
        "--against",
        tmp_path / "test.csv",
        "--columns",
        "words",
        "--label",
        "intent",
    ]
    code, text, errors = here(*call, "--encoder", "ngrams", "--out", tmp_path / "audit", "--json")
    assert code == 0, errors
    summary = json.loads(text)
    assert summary["duplicates across train.csv and test.csv"] == 2
    assert summary["duplicates with two labels"] == 3  # one pair is within test
    content = json.loads((tmp_path / "audit" / "summary.json").read_text())
    counted = [name for name in content["units"] if isinstance(content[name], int)]
    assert len(counted) > 8
    assert all(content["lists"][name].split(":")[0] in content["lists"][name] for name in counted)
    kept = list(csv.DictReader((tmp_path / "audit" / "keep.csv").open()))
    assert [row["path"] for row in kept if row["action"] == "leave out"] == [f"{tmp_path / 'train.csv'}/20"]
    assert summary["could be left out"] == 1
    assert (tmp_path / "audit" / "skipped.csv").read_text().splitlines() == ["file,reason"]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `photos`, their `audit`, and the `cleaned` copy that the same command made."""
    root = tmp_path_factory.mktemp("audited")
    folder = root / "photos"
    for number in range(12):
        (folder / "abc"[number % 3]).mkdir(parents=True, exist_ok=True)
        scene(number).save(folder / "abc"[number % 3] / f"{number}.png")
    scene(1).resize((320, 256)).save(folder / "c" / "large.png")  # the same, larger, in another class
    scene(2).save(folder / "a" / "=cmd|x.png")  # equal content in another class; a name that is a formula
    (folder / "a" / "broken.png").write_bytes(b"no image")
    call = ["audit", folder, "--encoder", "patches", "--out", root / "audit", "--copy", root / "cleaned"]
    code, _, errors = here(*call)
    assert code == 0, errors
    return root


def test_what_is_kept_is_linked_into_a_new_folder_and_nothing_is_deleted(audited: Path, tmp_path: Path) -> None:
    photos = audited / "photos"
    raw = (audited / "audit" / "keep.csv").read_text()
    table = {Path(row["path"]).name: row for row in csv.DictReader(raw.splitlines())}
    assert table["large.png"]["why"] == "represents 2"  # the larger of the two
    assert table["1.png"]["action"] == "leave out"
    assert table["1.png"]["represented_by"].endswith("large.png")
    assert table["=cmd|x.png"]["action"] == "keep"
    assert table["2.png"]["why"].startswith("equal to")
    assert json.loads((audited / "audit" / "summary.json").read_text())["skipped files"] == 1
    assert "broken.png" in (audited / "audit" / "skipped.csv").read_text()
    copied = sorted(str(path.relative_to(audited / "cleaned")) for path in (audited / "cleaned").rglob("*.png"))
    kept = [str(Path(row["path"]).relative_to(photos)) for row in table.values() if row["action"] == "keep"]
    assert copied == sorted(kept)
    assert (audited / "cleaned" / "c" / "large.png").samefile(photos / "c" / "large.png")
    assert len(list(photos.rglob("*.png"))) == 15
    call = ["audit", photos, "--out", tmp_path / "audit", "--copy"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert "--copy" in refused(*call, tmp_path / "other")
    assert "--copy" in refused(*call, photos / "c")


def test_two_folders_are_copied_to_a_third_beside_them(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    for number in range(3):
        scene(number).save(tmp_path / "ab"[number % 2] / f"{number}.png")
    scene(1).save(tmp_path / "a" / "leak.bmp")
    found = antipodes.audit(tmp_path / "a", against=tmp_path / "b", encoder="patches")
    assert found.copy(tmp_path / "kept") == 3
    kept = sorted(str(path.relative_to(tmp_path / "kept")) for path in (tmp_path / "kept").rglob("*.png"))
    assert kept == ["a/0.png", "a/2.png", "b/1.png"]
    with pytest.raises(ValueError, match="in one another"):
        found.copy(tmp_path / "b" / "kept")


def test_kept_texts_become_one_file(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("\n".join(TEXTS))
    found = antipodes.audit(tmp_path / "x.txt", encoder="ngrams")
    assert found.copy(tmp_path / "cleaned") == len(TEXTS) - 2
    kept = [json.loads(line)["text"] for line in (tmp_path / "cleaned" / "kept.jsonl").read_text().splitlines()]
    assert [text for text in kept if "parc" in text] == [TEXTS[40]]


def test_pairs_and_groups_go_into_known_and_mining_as_they_are(audited: Path, tmp_path: Path) -> None:
    def colours(images: list[Image.Image]) -> np.ndarray:
        return np.stack([np.asarray(each.resize((4, 4)), dtype=np.float32).ravel() for each in images])

    photos = audited / "photos"
    found = antipodes.audit(photos, encoder=colours, out=tmp_path / "audit")
    assert found.copy(tmp_path / "cleaned") == found.copy(tmp_path / "cleaned") == 12  # our own may be filled again
    expected = {(a, b) for (a, b), kind in kinds_of(found).items() if "duplicate" in kind}
    assert len(expected) == 2
    for known in (Known(found.pairs), Known.read(tmp_path / "audit" / "pairs.parquet")):
        listed = {
            (row, int(other))
            for row in range(known.num_samples)
            for other in known.partners[known.firsts[row] : known.firsts[row + 1]]
            if row < other
        }
        assert listed == expected
    likely = Known.read(tmp_path / "audit" / "pairs.parquet", kinds=["false negative"])
    assert len(likely.partners) == 2 * int((found.pairs["kind"] == "false negative").sum())
    with pytest.raises(ValueError, match="kinds"):
        Known({"row": [0], "other": [1]}, kinds=["x"])
    vectors = antipodes.embed(colours, photos)
    mined = antipodes.mine(vectors, vectors, tmp_path / "audit" / "pairs.parquet", k=1, margin=-2.0, relative=False)
    assert sorted(set(mined.positives.flatten().tolist())) == sorted({row for pair in expected for row in pair})


@pytest.mark.parametrize("table", ["pairs", "groups"])
def test_train_takes_the_tables_of_an_audit_by_path(audited: Path, tmp_path: Path, table: str) -> None:
    photos = tmp_path / "photos"
    shutil.copytree(audited / "photos", photos)
    (photos / "a" / "0.png").unlink()  # rows move, paths do not
    run = antipodes.train(
        data=photos, out=tmp_path / "run", negatives="known", encoder="resnet8-slim", batch_size=13, epochs=1,
        **{"negatives.groups": str(audited / "audit" / f"{table}.parquet")},
    )  # fmt: skip
    flagged = 2 * 2 * 4 / (26 * 24)  # two pairs, in both directions, of two views each, among 13 photos
    assert run.metrics["flagged_share"].tolist() == pytest.approx([flagged])


def test_decisions_are_applied_and_kept(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("\n".join(TEXTS))
    first = antipodes.audit(tmp_path / "x.txt", encoder="ngrams", out=tmp_path / "audit")
    assert kinds_of(first)[40, 42] == "near duplicate"
    key = first.data.key
    decided = [
        {"a": key(41), "b": key(42), "decision": "different"},
        {"a": key(42), "b": key(40), "decision": "different"},
        {"a": key(44), "b": key(45), "decision": "same"},
        {"a": key(46), "b": key(47), "decision": "skip"},
    ]
    (tmp_path / "decisions.json").write_text(json.dumps({"decisions": decided}))
    again = antipodes.audit(
        tmp_path / "x.txt", encoder="ngrams", out=tmp_path / "audit", decisions=tmp_path / "decisions.json"
    )
    kinds = kinds_of(again)
    assert (kinds[40, 41], kinds[40, 42], kinds[41, 42], kinds[44, 45]) == (
        "exact duplicate",
        DIFFERENT,
        DIFFERENT,
        SAME,
    )
    assert again.summary["decided: different"] == 2
    assert again.groups["group"][40:46].tolist() == [0, 0, -1, -1, 1, 1]
    (tmp_path / "x.txt").write_text("\n".join(["a new first line", *TEXTS]))  # texts are known by their content
    third = antipodes.audit(tmp_path / "x.txt", encoder="ngrams", out=tmp_path / "audit")
    assert third.groups["group"][41:47].tolist() == [0, 0, -1, -1, 1, 1]
    assert kinds_of(third)[41, 43] == DIFFERENT
    assert (Known(third.pairs).partners < 49).all()
    with pytest.warns(UserWarning, match="samples that are not here"):
        antipodes.audit(FILLER, encoder="ngrams", decisions=[Decision("gone", "too", "same")])


@pytest.mark.parametrize("content", ["", "[]", '{"decisions": 3}', '{"decisions": [{"a": 1}]}', "[" * 10_000])
def test_files_that_hold_no_decisions(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.txt").write_text("\n".join(TEXTS))
    (tmp_path / "d.json").write_text(content)
    assert "--decisions" in refused(
        "audit", tmp_path / "x.txt", "--decisions", tmp_path / "d.json", "--out", tmp_path / "a"
    )
    assert not (tmp_path / "a").exists()


def test_a_bound_is_calibrated_by_decided_pairs() -> None:
    rng = np.random.default_rng(0)
    angles = np.arccos(np.linspace(0.6, 0.98, 120))
    vectors = np.zeros((240, 240), dtype=np.float32)
    for number, angle in enumerate(angles):  # pairs of every similarity, and nothing else alike
        vectors[2 * number, 2 * number] = 1
        vectors[2 * number + 1, 2 * number] = np.cos(angle)
        vectors[2 * number + 1, 2 * number + 1] = np.sin(angle)
    options = {"duplicate": 1.0, "group_false_negatives": True}
    found = antipodes.audit(vectors, options=options)
    assert found.summary["false negative pairs"] == 120
    chance = lambda similarity: 1 / (1 + np.exp(-40 * (similarity - 0.85)))  # noqa: E731
    decisions = [
        Decision(f"row {pair.a}", f"row {pair.b}", "same" if rng.random() < chance(pair.similarity) else "different")
        for pair in found.findings.pairs[::2]
    ]
    calibrated = antipodes.audit(vectors, options=options, decisions=decisions, calibrate=0.9)
    assert calibrated.calibration is not None
    bound, precision, low, high, _, reviewed = calibrated.calibration
    above = np.cos(angles)[np.cos(angles) >= bound]
    assert 0.8 < bound < 0.92
    assert low <= precision <= high
    assert precision >= 0.9
    assert chance(above).mean() == pytest.approx(precision, abs=0.08)  # what the decisions were drawn from
    assert reviewed == len(decisions)
    assert all(pair.similarity >= bound for pair in calibrated.findings.pairs if pair.kind == "false negative")
    kept = [pair for pair in calibrated.findings.pairs if pair.kind in ("false negative", SAME)]
    assert (calibrated.groups["group"] >= 0).sum() == 2 * len(kept)  # what was cut joins no group
    alike = [replace(each, decision="same") for each in decisions]
    for given, target, message in (
        (decisions[:20], 0.9, "at least 30"),
        (decisions, 1.5, "calibrate must be in"),
        (decisions, 0.9999, "no bound is expected to reach it; the best is"),
        (alike, 0.9, "all 60 decided pairs are same.* at least 0.95"),
    ):
        with pytest.raises(ValueError, match=message):
            antipodes.audit(vectors, options=options, decisions=given, calibrate=target)


def test_captions_and_images_are_pairs_of_a_run_with_two_towers(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    with (data / "captions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("image", "caption"))
        for number in range(10):
            scene(number).save(data / f"{number}.png")
            writer.writerows([(f"{number}.png", FILLER[2 * number]), (f"{number}.png", FILLER[2 * number + 1])])
        Image.open(data / "3.png").save(data / "copy.png")
        writer.writerow(("copy.png", FILLER[6].upper()))
    (data / "copy.png").write_bytes((data / "3.png").read_bytes())
    train = [
        "train",
        "--method",
        "clip",
        "--data",
        data,
        "--encoder",
        "resnet8-slim",
        "--encoders.text",
        "bag-of-words",
    ]
    assert here(*train, "--batch_size", 8, "--epochs", 1, "--out", run)[0] == 0
    found = antipodes.audit(data, encoder=run)
    kinds = {(min(a, b), max(a, b)): kind for (a, b), kind in kinds_of(found).items()}
    assert found.data.unit == "pair"
    assert kinds[6, 20] == "exact duplicate"
    assert kinds[7, 20] == "same document"
    assert (6, 7) not in kinds  # two captions of one image are one sample by design
    assert found.groups["group"][[6, 7, 20]].tolist() == [found.groups["group"][6]] * 3
    assert antipodes.audit(data, encoder="patches").data.unit == "photo"
    assert antipodes.audit(data, kind="texts", encoder="ngrams").data.unit == "text"
    with pytest.raises(ValueError, match="encoder"):
        antipodes.audit(data, kind="pairs", encoder="ngrams")
