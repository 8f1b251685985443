"""Archives as data: a zip or tar file is unpacked once into the user's cache folder, and read from there.

An archive may come from a stranger, so nothing of it is trusted: only plain files are taken, their names must stay
inside the folder, and the whole is bounded in bytes and files before and while it is written.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from antipodes.data.download import cache_root, check, make_folder, progress
from antipodes.files import DataError, private_file, private_folder

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
"""How the names of archives end."""

_MAX_BYTES = 200_000_000_000
_MAX_FILES = 20_000_000
_MAX_RATIO = 200  # times the archive's own size; photos hardly shrink, bombs grow a thousandfold
_CHUNK = 1 << 20


class _Member(NamedTuple):
    name: str
    size: int
    open: "zipfile.ZipInfo | tarfile.TarInfo"


def is_archive(path: Path) -> bool:
    """Whether a path is named like an archive."""
    return path.name.lower().endswith(SUFFIXES)


def unpacked(archive: Path, checksum: str | None = None, descend: bool = True) -> Path:
    """Return the folder with the files of an archive, unpacked into the cache folder unless that was done before.

    A changed archive (another size or time of change) is unpacked again.

    Args:
        archive: the zip or tar file.
        checksum: what its digest has to be before it is unpacked, "md5:..." or "sha256:..."; None asks for none.
        descend: whether to return the one folder in which everything lies, when there is such a one.

    Raises:
        DataError: if it cannot be read, is larger than any dataset, has another checksum, or holds a file that would
            land elsewhere.
    """
    try:
        stat = archive.stat()
    except OSError as error:
        raise DataError(f"{archive} cannot be read ({error}): give the path of a zip or tar file") from error
    key = f"{archive.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode(errors="surrogateescape")
    stem = archive.name.split(".")[0]
    target = cache_root() / "unpacked" / f"{stem}-{hashlib.blake2b(key, digest_size=6).hexdigest()}"
    if not target.is_dir():
        if checksum is not None:
            check(archive, checksum, str(archive))
        with suppress(OSError):  # what is wrong with it is said below
            private_folder(target.parent)
        make_folder(target.parent)
        partial = Path(tempfile.mkdtemp(prefix=f".{stem}-", dir=target.parent))
        try:
            _unpack(archive, partial, stat.st_size)
            try:
                partial.rename(target)
            except OSError:  # another process was faster
                if not target.is_dir():
                    raise
        except OSError as error:
            raise DataError(f"{archive} cannot be unpacked into {target.parent} ({error}): make room there") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return _only_folder(target) if descend else target


def safe_name(name: str) -> PurePosixPath | None:
    """Return the name of an archive's member as a path inside a folder, None when it would lead out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name or "\0" in name or ":" in name[:2]:
        return None
    return path


def unmarked_end(tar: tarfile.TarFile) -> str | None:
    """Say what is wrong with the end of a tar file whose members have all been read; None for nothing.

    A file that was cut off between two members, or inside a header, looks as if it ended there, and `tarfile` does not
    mind. A whole one has a block of zeros after its last member.
    """
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)  # where the next header would begin
    block = tar.fileobj.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        return "the file ends without its end mark: it is cut off"
    return "the rest of the file is unreadable (a header is damaged)" if any(block) else None


def _unpack(archive: Path, folder: Path, packed: int) -> None:
    with _opened(archive) as opened:
        members = list(_members(opened, archive))
        total = sum(member.size for member in members)
        bound = min(_MAX_BYTES, max(_MAX_RATIO * packed, 1_000_000_000))
        if total > bound or len(members) > _MAX_FILES:
            raise DataError(
                f"{archive} would unpack to {len(members):,} files of {total:,} bytes, more than the {bound:,} bytes "
                f"or {_MAX_FILES:,} files that are taken from an archive: unpack it by hand"
            )
        if total > (free := shutil.disk_usage(folder).free):
            raise DataError(f"{archive} unpacks to {total:,} bytes and {folder.parent} has {free:,} left: make room")
        with progress() as bar:
            task = bar.add_task(f"unpacking {archive.name}", total=total)
            for member in members:
                bar.advance(task, _write(opened, archive, member, folder))


def _write(opened: "zipfile.ZipFile | tarfile.TarFile", archive: Path, member: _Member, folder: Path) -> int:
    relative = safe_name(member.name)
    if relative is None:
        raise DataError(f"{archive} holds {member.name!r}, which would land outside its folder: do not trust it")
    target = folder / relative
    private_folder(target.parent)
    written = 0
    with _stream(opened, member) as source, open(target, "wb", opener=private_file) as file:
        while chunk := source.read(_CHUNK):
            written += len(chunk)
            if written > member.size:
                raise DataError(f"{member.name} in {archive} is longer than the archive says: do not trust it")
            file.write(chunk)
    return written


@contextmanager
def _opened(archive: Path) -> Iterator["zipfile.ZipFile | tarfile.TarFile"]:
    try:
        if archive.name.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as file:
                yield file
        else:
            with tarfile.open(archive) as tar:
                yield tar
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}): get it again") from error


def _members(opened: "zipfile.ZipFile | tarfile.TarFile", archive: Path) -> Iterator[_Member]:
    """Yield the plain files that are data; what an operating system has left next to them is passed over."""
    entries: list[_Member]
    if isinstance(opened, zipfile.ZipFile):
        entries = [_Member(each.filename, each.file_size, each) for each in opened.infolist() if not each.is_dir()]
    else:
        entries = [_Member(each.name, each.size, each) for each in opened if each.isreg()]
        if problem := unmarked_end(opened):
            raise DataError(f"{archive} cannot be unpacked ({problem}): get it again")
    for entry in entries:
        parts = PurePosixPath(entry.name).parts
        if safe_name(entry.name) is None:
            raise DataError(f"{archive} holds {entry.name!r}, which would land outside its folder: do not trust it")
        if "__MACOSX" not in parts and not parts[-1].startswith("._"):
            yield entry


def _stream(opened: "zipfile.ZipFile | tarfile.TarFile", member: _Member) -> IO[bytes]:
    if isinstance(opened, zipfile.ZipFile) and isinstance(member.open, zipfile.ZipInfo):
        return opened.open(member.open)
    assert isinstance(opened, tarfile.TarFile)
    assert isinstance(member.open, tarfile.TarInfo)
    stream = opened.extractfile(member.open)
    assert stream is not None  # only plain files get here
    return stream


def _only_folder(folder: Path) -> Path:
    """Go down while a folder holds nothing but one folder."""
    while len(entries := os.listdir(folder)) == 1 and (folder / entries[0]).is_dir():
        folder = folder / entries[0]
    return folder
