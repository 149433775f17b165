"""Reading tar and zip archives member by member; nothing is ever extracted to disk."""

from __future__ import annotations

import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from weft.errors import DataError

if TYPE_CHECKING:
    from typing_extensions import Self

MEMBER_LIMIT = 2**28
"""Bytes that one member may have unless the caller says otherwise: 256 MiB."""

# What the standard library raises for files that are cut or damaged.
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    ValueError,
    NotImplementedError,
)
_BLOCK = 512
# zipfile unpacks no more of these than is requested, and without any bound of the others.
_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_LONGEST_NAME = 2**20
_NAMES = frozenset(
    {
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    }
)


class _Header(tarfile.TarInfo):
    """A member's header; tarfile reads those that only hold names and the like whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _NAMES and header.size > _LONGEST_NAME:
            raise ValueError(f"a header of {header.size:,} bytes; the limit is {_LONGEST_NAME:,}")
        return header


def members(
    path: Path, *, inside: io.BytesIO | None = None, limit: int = MEMBER_LIMIT
) -> Iterator[tuple[str, io.BytesIO]]:
    """Name and content of every file in a tar (plain, .gz, .bz2, .xz) or zip archive, in order.

    Folders are passed over. Each member is read whole, so that damage is met here and not in the
    reader's code.

    Args:
        path: the archive.
        inside: a member of `path` that is a zip itself, to read that one.
        limit: largest size of a member in bytes; a small archive can unpack to a huge file.

    Raises:
        DataError: the archive is cut or damaged, or a member is a link or a device, has a path
            that points outside the archive's folder, or is larger than `limit`.
    """
    try:
        if inside is not None or zipfile.is_zipfile(path):
            yield from _zip(path, inside or path, limit)
        else:
            yield from _tar(path, limit)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path} is not there") from None
    except (*_DAMAGE, OSError) as error:
        raise DataError(
            f"{path} is cut, damaged or not an archive ({str(error) or type(error).__name__}); "
            "get it again"
        ) from None


def _tar(path: Path, limit: int) -> Iterator[tuple[str, io.BytesIO]]:
    with tarfile.open(path, "r:*", tarinfo=_Header) as archive:
        for member in archive:
            plain = member.isreg() or member.isdir()
            _check(path, member.name, member.size if member.isreg() else 0, limit, plain=plain)
            if member.isdir():
                continue
            file = archive.extractfile(member)
            assert file is not None
            yield member.name, io.BytesIO(file.read())
        # tarfile takes a damaged header, or no more data, for the end: only zeros may follow it.
        stream = archive.fileobj
        assert stream is not None
        while rest := stream.read(2**20):
            if any(rest):
                raise DataError(f"{path} is damaged after byte {archive.offset} of its content")
        if stream.tell() < archive.offset + _BLOCK:
            raise DataError(f"{path} is cut: it has no end mark; get it again")


def _zip(path: Path, content: Path | io.BytesIO, limit: int) -> Iterator[tuple[str, io.BytesIO]]:
    with zipfile.ZipFile(content) as archive:
        for member in archive.infolist():
            name = member.filename
            if not name:
                raise DataError(f"{path}: a member has no name; get the archive again")
            kind = stat.S_IFMT(member.external_attr >> 16)
            plain = member.is_dir() or kind in (0, stat.S_IFREG)
            _check(path, name, 0 if member.is_dir() else member.file_size, limit, plain=plain)
            if member.is_dir():
                continue
            if member.flag_bits & 1:
                raise DataError(f"{path}: member {name!r} is encrypted")
            if member.compress_type not in _BOUNDED:
                raise DataError(
                    f"{path}: member {name!r} is compressed with method {member.compress_type}; "
                    "pack it again with deflate, which every tool has"
                )
            with archive.open(member) as file:
                # Step by step: a member may unpack to more than its header says.
                content = io.BytesIO()
                while block := file.read(2**20):
                    content.write(block)
            content.seek(0)
            yield name, content


def _check(path: Path, name: str, size: int, limit: int, *, plain: bool) -> None:
    """Refuse a member that leads outside, is no `plain` file or folder, or is too large."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    outside = posix.is_absolute() or windows.anchor or ".." in windows.parts
    if outside or "\0" in name:
        raise DataError(f"{path}: member {name!r} points outside the archive's folder")
    if not plain:
        raise DataError(f"{path}: member {name!r} is a link or a device, not a plain file")
    if size > limit:
        raise DataError(f"{path}: member {name!r} has {size:,} bytes; the limit is {limit:,}")
