from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import DataError
from weft.sources.archive import members

FILES = {"a.txt": b"alpha", "sub/b.bin": bytes(range(256)) * 300, "empty": b""}
KINDS = ["w", "w:gz", "w:bz2", "w:xz"]


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("sub")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sub/", b"")
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def read(path: Path) -> dict[str, bytes]:
    return {name: file.read() for name, file in members(path)}


@pytest.mark.parametrize("mode", KINDS)
def test_members_of_a_tar(tmp_path: Path, mode: str) -> None:
    assert read(write_tar(tmp_path / "archive", FILES, mode)) == FILES


def test_members_of_a_zip(tmp_path: Path) -> None:
    assert read(write_zip(tmp_path / "archive", FILES)) == FILES


@pytest.mark.parametrize(
    "name", ["../out", "a/../../out", "/etc/passwd", "..", r"..\out", r"C:\out", "a/.."]
)
def test_a_member_that_leads_outside_is_refused(tmp_path: Path, name: str) -> None:
    for path in (
        write_tar(tmp_path / "t.tar", {"fine": b"1", name: b"2"}),
        write_zip(tmp_path / "z.zip", {"fine": b"1", name: b"2"}),
    ):
        with pytest.raises(DataError, match="points outside") as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_a_link_or_device_in_a_tar_is_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        member = tarfile.TarInfo("sly")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(DataError, match=r"t\.tar: member 'sly' is a link or a device"):
        read(tmp_path / "t.tar")


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        member = zipfile.ZipInfo("sly")
        member.external_attr = 0o120777 << 16
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(DataError, match=r"z\.zip: member 'sly' is a link or a device"):
        read(tmp_path / "z.zip")


def test_a_huge_member_is_refused(tmp_path: Path) -> None:
    for path in (
        write_tar(tmp_path / "t.tar.gz", {"big": bytes(10_001)}, "w:gz"),
        write_zip(tmp_path / "z.zip", {"big": bytes(10_001)}),
    ):
        with pytest.raises(DataError, match="member 'big' has 10,001 bytes; the limit is 10,000"):
            list(members(path, limit=10_000))
        assert [name for name, _ in members(path, limit=10_001)] == ["big"]


@pytest.mark.parametrize("mode", [*KINDS, "zip"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_cut_archive_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, mode: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    noise = np.random.default_rng(0).bytes(3000)
    files = {f"f{i}": noise[: 500 * i] for i in range(6)}
    path = folder / "archive"
    write_zip(path, files) if mode == "zip" else write_tar(path, files, mode)
    content = path.read_bytes()
    # A plain tar is whole with 7 headers, 15 blocks of content and the first block of its end.
    last = (7 + 15 + 1) * 512 - 1 if mode == "w" else len(content) - 20
    path.write_bytes(content[: data.draw(st.integers(0, last))])
    with pytest.raises(DataError, match=str(path)):
        read(path)


def test_a_plain_tar_cut_between_two_members_is_an_error(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", {"a": b"1", "b": b"2"})
    # Folder header, header and block of a: 3 blocks.
    path.write_bytes(path.read_bytes()[: 3 * 512])
    with pytest.raises(DataError, match="cut"):
        read(path)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_damaged_header_is_not_the_end(tmp_path: Path, mode: str) -> None:
    content = bytearray(write_tar(tmp_path / "t.tar", FILES).read_bytes())
    content[content.index(b"sub/b.bin")] = ord("x")
    path = tmp_path / "damaged"
    if mode == "w":
        path.write_bytes(content)
    else:
        path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match="damaged"):
        read(path)


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz", "zip"])
def test_a_flipped_byte_is_an_error(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "archive"
    files = {"noise": np.random.default_rng(0).bytes(20_000)}
    write_zip(path, files) if mode == "zip" else write_tar(path, files, mode)
    content = bytearray(path.read_bytes())
    content[10_000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match=str(path)):
        read(path)


def test_no_archive_at_all(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "nothing").write_bytes(b"")
    for name in ("text", "nothing"):
        with pytest.raises(DataError, match=rf"{name} is cut, damaged or not an archive"):
            read(tmp_path / name)
    with pytest.raises(DataError, match="absent is not there"):
        read(tmp_path / "absent")


def test_a_zip_that_lies_about_its_size_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "lies.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("big", bytes(2**26))
    # Both headers say that there are 1000 bytes.
    content = path.read_bytes().replace((2**26).to_bytes(4, "little"), (1000).to_bytes(4, "little"))
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"lies\.zip is cut, damaged or not an archive"):
            list(members(path))
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_cannot_be_unpacked_in_steps_is_refused(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("big", b"1")
    with pytest.raises(DataError, match=rf"'big' is compressed with method {kind}.*deflate"):
        list(members(path))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_whose_headers_are_huge_is_refused(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "headers.tar.gz"
    header = tarfile.TarInfo("a")
    header.type, header.size = kind, 2**26
    path.write_bytes(gzip.compress(header.tobuf() + bytes(2**26 + 1024), 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"headers\.tar\.gz .*a header of 67,108,864 bytes"):
            list(members(path))
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_a_member_without_a_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nameless.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", b"1")
    content = path.read_bytes()
    for mark, place in ((b"PK\3\4", 26), (b"PK\1\2", 28)):
        start = content.index(mark)
        length = 30 if place == 26 else 46
        content = (
            content[: start + place]
            + b"\0\0"
            + content[start + place + 2 : start + length]
            + content[start + length + 1 :]
        )
    end = content.index(b"PK\5\6")
    begin = content.index(b"PK\1\2")
    sizes = (end - begin).to_bytes(4, "little") + begin.to_bytes(4, "little")
    path.write_bytes(content[: end + 12] + sizes + content[end + 20 :])
    with pytest.raises(DataError, match=r"nameless\.npz: a member has no name"):
        list(members(path))
