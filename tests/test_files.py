"""Files are written whole, cleaned up after a kill, replaced only where they are ours, and checked by their digests."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from antipodes.files import append_digest, check_digest, refuse_foreign, remove_temporaries, replacing


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(IsADirectoryError), replacing(file) as temporary:
        (temporary.write_text("new"), tmp_path.write_text("fails"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert file.read_text() == "old"


def test_a_file_is_on_the_disk_before_it_has_its_name_and_then_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("old")
    flushed: list[tuple[int, str]] = []

    def record(handle: int) -> None:
        flushed.append((os.fstat(handle).st_ino, (tmp_path / "a.txt").read_text()))

    monkeypatch.setattr(os, "fsync", record)
    with replacing(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
    assert flushed == [((tmp_path / "a.txt").stat().st_ino, "old"), (tmp_path.stat().st_ino, "new")]


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a.txt") as temporary:
            temporary.write_text("new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_names_of_temporary_files_cannot_be_guessed(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        with replacing(tmp_path / "a.txt") as temporary:
            names.add(temporary.name)
    assert len(names) == 2
    assert not any(str(os.getpid()) in name.split(".") for name in names)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from antipodes.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    result = subprocess.run([sys.executable, "-c", program, str(tmp_path / "last.pt")])
    assert result.returncode == -signal.SIGKILL
    (tmp_path / ".mine.tmp").write_text("a user's own")
    assert len(list(tmp_path.iterdir())) == 2
    remove_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".mine.tmp"]


def test_a_file_of_the_user_is_refused_unless_forced(tmp_path: Path) -> None:
    file = tmp_path / "thesis.txt"
    refuse_foreign(file, "--out", lambda path: False)
    file.write_text("my thesis")
    with pytest.raises(ValueError, match=r"--out .*thesis\.txt"):
        refuse_foreign(file, "--out", lambda path: path.read_text() == "ours")
    with pytest.raises(ValueError, match="--out"):  # what cannot be read is not ours
        refuse_foreign(file, "--out", lambda path: bool(int(path.read_text())))
    refuse_foreign(file, "--out", lambda path: False, force=True)
    file.write_text("ours")
    refuse_foreign(file, "--out", lambda path: path.read_text() == "ours")
    with pytest.raises(ValueError, match="--out"):
        refuse_foreign(tmp_path, "--out", lambda path: True, force=True)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    for place in [0, 500, 999, 1010, 1071]:
        file = tmp_path / "a.bin"
        file.write_bytes(bytes(range(250)) * 4)
        append_digest(file)
        check_digest(file)
        content = bytearray(file.read_bytes())
        assert len(content) == 1072
        content[place] ^= 1
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.bin"):
            check_digest(file)


def test_a_file_without_a_digest_is_accepted_only_where_others_may_have_written_it(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    for content in (b"", b"short", b"x" * 200):
        file.write_bytes(content)
        check_digest(file, required=False)
        with pytest.raises(ValueError, match=r"a\.bin"):
            check_digest(file)
