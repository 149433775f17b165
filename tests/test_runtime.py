"""The cache of machine code: where it is, and that it never outlives the source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from weft import runtime
from weft.kernels import edge_pairs, schnet_readout

SOURCE = Path(weft.__file__).parents[1]


def run(script: str, path: Path = SOURCE, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(path), **environment},
    )
    return result.stdout.strip()


def test_works_where_no_cache_can_be_written() -> None:
    # Root may write anywhere, so the runtime is told that it knows no place for its cache.
    script = (
        "import weft.runtime as r\n"
        "r._Implementation._locator_classes = []\n"
        "import numpy as np\n"
        "from weft.counting_sort import group_starts\n"
        "print(group_starts(np.array([0, 2, 2]), 3).tolist())\n"
    )
    assert run(script) == "[0, 1, 1, 3]"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package whose loop calls a helper and reads a constant of two other modules."""
    folder = tmp_path / "made_up"
    (folder / "inner").mkdir(parents=True)
    texts = {
        "__init__": "",
        "inner/__init__": "",
        "inner/constants": "STEP = 1\nOTHER = 5\n",
        "helper": (
            "from weft.runtime import kernel\n"
            "from made_up.inner.constants import (\n    OTHER,\n    STEP,\n)\n\n"
            "@kernel\ndef more(x):\n    return x + STEP\n"
        ),
        "loops": (
            "from weft.runtime import kernel, shared_rows\n"
            "from made_up import helper\n"
            "from made_up.helper import more\n\n"
            "@shared_rows\n@kernel\n"
            "def fill(out, first, stop):\n"
            "    for row in range(first, stop):\n"
            "        out[row] = more(row)\n"
        ),
    }
    # The user's cache has the machine code of every run of these tests before.
    new = f"# {uuid.uuid4()}\n"
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(new + text)
    return tmp_path


SCRIPT = (
    "import numpy as np\n"
    "from weft.runtime import compilations\n"
    "names, out = [], np.zeros(3)\n"
    "with compilations(lambda name, seconds: names.append(name) if seconds > 0 else None):\n"
    "    from made_up.loops import fill\n"
    "    fill.share((out,), 3, 1)\n"
    "print(out.tolist(), sum(fill.run.stats.cache_hits.values()))\n"
    "print(*names)\n"
    "print(fill.stats.cache_path)\n"
)


def beside_weft(package: Path) -> Path:
    return Path(os.pathsep.join([str(package), str(SOURCE)]))


def test_an_edited_source_is_never_run_as_it_was(package: Path) -> None:
    def results() -> tuple[str, str]:
        out, names, _ = run(SCRIPT, beside_weft(package)).split("\n")
        return out, names

    def edit(name: str, old: str, new: str) -> None:
        file = package / "made_up" / f"{name}.py"
        file.write_text(file.read_text().replace(old, new))

    out, names = results()
    assert out == "[1.0, 2.0, 3.0] 0"
    assert {"made_up.loops.fill", "made_up.loops.fill_shared"} <= set(names.split())
    assert results() == ("[1.0, 2.0, 3.0] 1", "")
    edit("helper", "x + STEP", "x * 10 + STEP")
    assert results()[0] == "[1.0, 11.0, 21.0] 0"
    edit("inner/constants", "STEP = 1", "STEP = 7")
    assert results()[0] == "[7.0, 17.0, 27.0] 0"
    edit("loops", "more(row)", "more(row) * 2")
    assert results()[0] == "[14.0, 34.0, 54.0] 0"


def test_the_stamp_is_of_what_a_module_imports_and_of_nothing_else() -> None:
    readout = runtime._sources(schnet_readout.__name__)
    assert {"weft.runtime", "weft.kernels.vector_math", "weft.kernels.edge_pairs"} <= set(readout)
    pairs = runtime._sources(edge_pairs.__name__)
    assert "weft.kernels.plain_torch" in pairs
    assert not {"weft.kernels", "weft.kernels.vector_math"} & set(pairs)


def test_copies_of_a_package_share_the_code_in_the_users_folder(package: Path) -> None:
    copy, user = package / "copy", package / "user"
    shutil.copytree(package / "made_up", copy / "made_up")
    out, _, kept = run(SCRIPT, beside_weft(package), XDG_CACHE_HOME=str(user)).split("\n")
    assert out == "[1.0, 2.0, 3.0] 0"
    assert Path(kept) == user / "weft" / "compiled" / "made_up"
    assert list(user.rglob("*fill*.nbc"))
    assert not list(package.joinpath("made_up").rglob("*.nbc"))
    assert run(SCRIPT, beside_weft(copy), XDG_CACHE_HOME=str(user)).split("\n")[0].endswith(" 1")


def test_the_users_choice_of_a_folder_comes_first(package: Path) -> None:
    run(SCRIPT, beside_weft(package), NUMBA_CACHE_DIR=str(package / "chosen"))
    assert list((package / "chosen").rglob("*fill*.nbc"))
    assert not list((package / "made_up").rglob("*.nbc"))


class Stopped(BaseException):
    """As if the process had been killed."""


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str], runtime._CodeFiles]:
    return lambda stamp: runtime._CodeFiles(tmp_path, "loops.fill-3.py311", stamp)


def test_signatures_have_files_of_their_own(files: Callable[[str], runtime._CodeFiles]) -> None:
    # Two processes that compile at once write nothing that the other reads under another key.
    first, second = files("a" * 64), files("a" * 64)
    first.save("int64", 1)
    second.save("float64", 2)
    assert (second.load("int64"), first.load("float64"), first.load("int32")) == (1, 2, None)


def test_code_of_other_sources_is_not_loaded_and_goes_in_time(
    tmp_path: Path, files: Callable[[str], runtime._CodeFiles]
) -> None:
    versions = "abcdefgh"
    for number, version in enumerate(versions):
        assert files(version * 64).load("int64") is None
        files(version * 64).save("int64", number)
        for file in tmp_path.glob(f"*.{version * 16}.*"):
            os.utime(file, (number, number))
    kept = [files(version * 64).load("int64") for version in versions]
    assert kept == [None, None, 2, 3, 4, 5, 6, 7]
    assert len(list(tmp_path.iterdir())) == runtime._VERSIONS_KEPT


def test_a_process_that_is_killed_while_it_saves_leaves_nothing_wrong(
    files: Callable[[str], runtime._CodeFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(Stopped):
            files("a" * 64).save("int64", 1)
    assert files("a" * 64).load("int64") is None


def test_damaged_code_is_compiled_again(
    tmp_path: Path, files: Callable[[str], runtime._CodeFiles]
) -> None:
    kept = files("a" * 64)
    kept.save("int64", [1, 2, 3])
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1] + b"x"):
        file.write_bytes(damaged)
        assert kept.load("int64") is None
    file.write_bytes(whole)
    assert kept.load("int64") == [1, 2, 3]


def test_a_full_disk_is_no_error(small_disk: Callable[[int], Path]) -> None:
    kept = runtime._CodeFiles(small_disk(16), "loops.fill-3.py311", "a" * 64)
    kept.save("int64", b"0" * 100_000)
    assert kept.load("int64") is None
