import gzip
import io
import os
import stat
import tarfile
import zipfile

import pytest

from antipodes.data import archives
from antipodes.data.archives import is_archive, safe_name, unpacked


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def tarred(path, members):
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("make", [zipped, tarred])
def test_files_land_in_the_cache_once(tmp_path, cache, make):
    archive = make(tmp_path / ("a.zip" if make is zipped else "a.tar.gz"), {"top/x/1.txt": b"one", "top/2.txt": b"two"})
    assert is_archive(archive)
    folder = unpacked(archive)
    assert folder.is_relative_to(cache)
    assert folder.name == "top"
    assert (folder / "x" / "1.txt").read_bytes() == b"one"
    (folder / "2.txt").write_bytes(b"changed here")
    assert unpacked(archive) == folder
    assert (folder / "2.txt").read_bytes() == b"changed here"
    make(archive, {"top/x/1.txt": b"another", "top/2.txt": b"two"})
    os.utime(archive, ns=(1, 1))
    assert (unpacked(archive) / "x" / "1.txt").read_bytes() == b"another"


def test_members_that_lead_outside_are_refused(tmp_path, cache):
    for name in ["../out.txt", "a/../../out.txt", "/out.txt", "a\\..\\b.txt", "C:/x.txt"]:
        for make in [zipped, tarred]:
            archive = make(tmp_path / ("a.zip" if make is zipped else "a.tgz"), {"good.txt": b"1", name: b"2"})
            with pytest.raises(ValueError, match="outside its folder"):
                unpacked(archive)
            assert list((cache / "unpacked").iterdir()) == []
            assert not (tmp_path / "out.txt").exists()


def test_safe_names():
    assert safe_name("a/b.txt").parts == ("a", "b.txt")
    assert safe_name("") is None
    assert safe_name("a/\0") is None


def test_links_in_archives_are_passed_over(tmp_path, cache):
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
        plain = tarfile.TarInfo("plain.txt")
        plain.size = 1
        file.addfile(plain, io.BytesIO(b"1"))
    assert [path.name for path in unpacked(tmp_path / "a.tar").iterdir()] == ["plain.txt"]
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(info, "/etc/passwd")
        file.writestr("plain.txt", "1")
    assert not any(path.is_symlink() for path in unpacked(tmp_path / "a.zip").iterdir())


def test_a_tar_that_is_cut_where_tarfile_ends_quietly_is_refused(tmp_path, cache):
    for beyond in [0, 100, 512]:
        for suffix in [".tar", ".tar.gz"]:
            packed = tarred(tmp_path / "whole.tar.gz", {"1.txt": b"one", "2.txt": b"two"})
            with tarfile.open(packed) as file:
                cut = file.getmember("2.txt").offset + beyond
            content = gzip.decompress(packed.read_bytes())[:cut]
            archive = tmp_path / f"a{suffix}"
            archive.write_bytes(content if suffix == ".tar" else gzip.compress(content))
            with pytest.raises(ValueError, match=r"cannot be unpacked \(.*(cut off|end of data)\): get it again"):
                unpacked(archive)
            assert list((cache / "unpacked").iterdir()) == []


def test_bombs_and_damage_are_refused(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(archives, "_MAX_BYTES", 1000)
    with pytest.raises(ValueError, match=r"would unpack to 1 files of 5,000 bytes"):
        unpacked(zipped(tmp_path / "bomb.zip", {"zeros": bytes(5000)}))
    (tmp_path / "broken.zip").write_bytes(b"PK but no zip")
    (tmp_path / "broken.tar.gz").write_bytes(b"\x1f\x8b but no tar")
    for name in ("broken.zip", "broken.tar.gz"):
        with pytest.raises(ValueError, match="cannot be unpacked"):
            unpacked(tmp_path / name)
    with pytest.raises(ValueError, match="cannot be read"):
        unpacked(tmp_path / "gone.zip")
    assert list((cache / "unpacked").iterdir()) == []


def test_what_systems_leave_behind_is_passed_over(tmp_path, cache):
    folder = unpacked(zipped(tmp_path / "a.zip", {"a/1.txt": "1", "__MACOSX/a/._1.txt": "x", "a/._1.txt": "x"}))
    assert [path.name for path in folder.iterdir()] == ["1.txt"]
