"""A file is the old one or the new one, never half of either."""

from __future__ import annotations

import errno
import io
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from weft.errors import DataError
from weft.files import (
    bounded_lines,
    json_text,
    parse_json,
    read_json,
    read_object,
    write_atomically,
)


def test_json_has_no_nan() -> None:
    value = {"a": [math.nan, -math.inf, 0.1], "b": {"c": math.inf}, "d": "NaN"}
    assert json_text(value) == '{"a": [null, null, 0.1], "b": {"c": null}, "d": "NaN"}'


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_and_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for content in (b"one", b"two", b""):
        write_atomically(path, lambda file, content=content: file.write(content))
        assert path.read_bytes() == content
        assert names(tmp_path) == ["a.bin"]


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def write(file: BinaryIO) -> None:
        file.write(b"ne")
        file.flush()
        assert path.read_bytes() == b"old"
        file.write(b"w")

    write_atomically(path, write)
    assert path.read_bytes() == b"new"


def test_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    path.write_bytes(b"old")

    def full_disk(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DataError, match=r"cannot write .*last\.pt: No space left.*is kept"):
        write_atomically(path, full_disk)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["last.pt"]


def test_nothing_is_kept_where_nothing_was(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere/a\.bin: No such file or directory; make room"):
        write_atomically(tmp_path / "nowhere" / "a.bin", lambda file: file.write(b"x"))
    assert names(tmp_path) == []


def test_a_folder_in_the_files_place(tmp_path: Path) -> None:
    (tmp_path / "a.bin").mkdir()
    with pytest.raises(DataError, match=r"cannot write .*a\.bin"):
        write_atomically(tmp_path / "a.bin", lambda file: file.write(b"x"))
    assert names(tmp_path) == ["a.bin"]


def test_the_writers_own_error_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def broken(file: BinaryIO) -> None:
        file.write(b"half")
        raise RuntimeError("cannot be stored")

    with pytest.raises(RuntimeError, match="cannot be stored"):
        write_atomically(path, broken)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_what_a_killed_write_left_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from weft.files import write_atomically\n"
        "def write(file):\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_atomically(Path(sys.argv[1]), write)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(path)], timeout=600, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == [".a.bin.partial", "a.bin"]
    write_atomically(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a.bin"]


def test_lines_are_numbered_and_bounded(tmp_path):
    whole = io.BytesIO(b"ab\n\ncd")
    assert list(bounded_lines(tmp_path, whole, 3)) == [(1, b"ab\n"), (2, b"\n"), (3, b"cd")]
    lines = bounded_lines(Path("a.txt"), io.StringIO("ab\nabcdef\n"), 4)
    assert next(lines) == (1, "ab\n")
    with pytest.raises(DataError, match=r"a\.txt, line 2: longer than 4 characters"):
        next(lines)


BAD_JSON = {
    "cut": b'{"a": [1, 2',
    "empty": b"",
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "beyond float": b'{"a": 1e999}',
    "400 digits": b'{"a": 1' + b"0" * 400 + b"}",
    "5000 digits": b'{"a": 1' + b"0" * 5000 + b"}",
    "deep": b"[" * 200 + b"]" * 200,
    "deeper": b'{"a":' * 100_000,
}


@pytest.mark.parametrize("kind", BAD_JSON)
def test_bad_json_is_one_sentence_with_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(BAD_JSON[kind])
    for read in (read_json, read_object):
        with pytest.raises(DataError, match=r"a\.json is damaged \(not JSON: ") as caught:
            read(path, remedy="do it again")
        assert "\n" not in str(caught.value)
        assert str(caught.value).endswith("; do it again")
    with pytest.raises(DataError, match=r"^a\.jsonl, line 7 is not JSON \("):
        parse_json(BAD_JSON[kind], "a.jsonl, line 7")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "it holds a list, not an object"),
        ("null", "it holds null, not an object"),
        ("{}", "it has no field 'a'"),
        ('{"a": "1"}', "its field 'a' is text, not a whole number or null"),
    ],
)
def test_another_object_is_one_sentence_with_the_field(tmp_path, text, problem) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"a\.json is damaged \({problem}"):
        read_object(path, {"a": (int, type(None))})


def test_good_json_comes_back(tmp_path: Path) -> None:
    value = {"a": 2**64, "b": [1.5, -1e308, None, True, "é"], "c": {"d": {}}}
    path = tmp_path / "a.json"
    path.write_text(json_text(value), encoding="utf-8")
    assert read_object(path, {"a": int, "b": object}) == value
    with pytest.raises(DataError, match=r"none\.json cannot be read \(No such file"):
        read_json(tmp_path / "none.json")


def test_what_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(ValueError, match=r"a whole number of 46 digits, 1000000000\.\.\."):
        json_text({"seed": 10**45})
