from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from weft.errors import DataError
from weft.graphs import Graph, GraphTable, write_table
from weft.sources.table_cache import cached_table, data_folder


def build(path: Path, *, value: float = 1.0) -> GraphTable:
    graphs = [Graph(num_nodes=3, nodes={"x": np.full(3, value)}) for _ in range(4)]
    return write_table(path, graphs)


def refuse(path: Path) -> GraphTable:
    raise AssertionError(f"{path} should not be built")


def test_the_folder_given_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("WEFT_DATA_DIR", raising=False)
    assert data_folder(None) == tmp_path / "xdg" / "weft"
    monkeypatch.setenv("WEFT_DATA_DIR", str(tmp_path / "env"))
    assert data_folder(None) == tmp_path / "env"
    assert data_folder(tmp_path / "given" / "deep") == tmp_path / "given" / "deep"
    assert (tmp_path / "given" / "deep").is_dir()


def test_without_any_variable_the_folder_is_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_DATA_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder(None) == tmp_path / ".cache" / "weft"


def test_a_folder_that_cannot_be_made_names_itself_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/data.*--data-dir.*WEFT_DATA_DIR"):
        data_folder(tmp_path / "file" / "data")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_folder_that_cannot_be_written_names_itself_and_the_remedy() -> None:
    with pytest.raises(DataError, match=r"/proc/self.*cannot be written.*--data-dir"):
        cached_table("toy", refuse, data_dir=Path("/proc/self"))


def test_a_table_is_built_once(tmp_path: Path) -> None:
    first = cached_table("toy", build, data_dir=tmp_path)
    again = cached_table("toy", refuse, data_dir=tmp_path)
    assert len(first) == len(again) == 4
    assert again.path == tmp_path / "toy.weft"
    assert [p.name for p in tmp_path.iterdir()] == ["toy.weft"]


def test_rebuild_replaces_the_table(tmp_path: Path) -> None:
    old = cached_table("toy", build, data_dir=tmp_path)
    new = cached_table("toy", lambda p: build(p, value=2.0), data_dir=tmp_path, rebuild=True)
    assert new.column("x").tolist() == [2.0] * 12
    assert old.column("x").tolist() == [1.0] * 12
    assert [p.name for p in tmp_path.iterdir()] == ["toy.weft"]


def test_a_failed_rebuild_keeps_the_old_table(tmp_path: Path) -> None:
    def fail(path: Path) -> GraphTable:
        raise DataError("line 3 is odd")

    cached_table("toy", build, data_dir=tmp_path)
    with pytest.raises(DataError, match="line 3"):
        cached_table("toy", fail, data_dir=tmp_path, rebuild=True)
    assert len(cached_table("toy", refuse, data_dir=tmp_path)) == 4
    assert [p.name for p in tmp_path.iterdir()] == ["toy.weft"]


@pytest.mark.parametrize("rebuild", [False, True])
def test_whoever_loses_the_race_opens_the_winner(tmp_path: Path, rebuild: bool) -> None:
    both = threading.Barrier(2)
    opened: list[GraphTable] = []

    def slow(path: Path) -> GraphTable:
        both.wait(timeout=600)
        return build(path)

    def work() -> None:
        opened.append(cached_table("toy", slow, data_dir=tmp_path, rebuild=rebuild))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert [len(table) for table in opened] == [4, 4]
    assert [p.name for p in tmp_path.iterdir()] == ["toy.weft"]


def test_two_processes_build_the_same_table(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        import numpy as np
        from weft.graphs import Graph, write_table
        from weft.sources.table_cache import cached_table

        folder = Path(sys.argv[1])

        def build(path):
            (folder / f"ready-{sys.argv[2]}").touch()
            while len(list(folder.glob("ready-*"))) < 2:
                time.sleep(0.01)
            return write_table(path, [Graph(num_nodes=2, nodes={"x": np.ones(2)})] * 500)

        assert len(cached_table("toy", build, data_dir=folder / "data")) == 500
        """
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    runs = [subprocess.Popen([*command, str(i)], stderr=subprocess.PIPE) for i in range(2)]
    for run in runs:
        _, errors = run.communicate(timeout=600)
        assert run.returncode == 0, errors.decode()
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["toy.weft"]
    assert len(list(tmp_path.glob("ready-*"))) == 2


def test_a_damaged_table_names_the_remedy(tmp_path: Path) -> None:
    cached_table("toy", build, data_dir=tmp_path)
    column = tmp_path / "toy.weft" / "x.npy"
    column.write_bytes(column.read_bytes()[:-8])
    with pytest.raises(DataError, match=r"x\.npy has .*: pass rebuild=True$"):
        cached_table("toy", build, data_dir=tmp_path)
    with pytest.raises(DataError, match=r"x\.npy has .*: run it again$"):
        cached_table("toy", build, data_dir=tmp_path, remedy="run it again")
    assert len(cached_table("toy", build, data_dir=tmp_path, rebuild=True)) == 4


def test_something_else_in_the_tables_place_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "toy.weft").write_text("not a folder")
    with pytest.raises(DataError, match="pass rebuild=True"):
        cached_table("toy", build, data_dir=tmp_path)
    assert len(cached_table("toy", build, data_dir=tmp_path, rebuild=True)) == 4


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from weft.graphs import Graph, write_table
from weft.sources.table_cache import cached_table

folder, moment = Path(sys.argv[1]), sys.argv[2]
rename = Path.rename

def build(path):
    table = write_table(path, [Graph(num_nodes=2, nodes={"x": np.zeros(2)})])
    if moment == "building":
        os.kill(os.getpid(), signal.SIGKILL)
    return table

def rename_and_die(self, target):
    rename(self, target)
    if moment == "renaming" and Path(target).name == "old":
        os.kill(os.getpid(), signal.SIGKILL)

Path.rename = rename_and_die
cached_table("toy", build, data_dir=folder, rebuild=True)
"""


def kill_while(moment: str, folder: Path) -> None:
    run = subprocess.run([sys.executable, "-c", KILLED, str(folder), moment], timeout=600)
    assert run.returncode == -9


def test_what_a_killed_build_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    kill_while("building", tmp_path)
    assert [p.suffix for p in tmp_path.iterdir()] == [".building"]
    # Another table's build is none of its business.
    cached_table("toy2", build, data_dir=tmp_path)
    assert len(list(tmp_path.glob(".toy.*.building"))) == 1
    cached_table("toy", build, data_dir=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["toy.weft", "toy2.weft"]


def test_a_rebuild_killed_between_the_tables_gives_the_old_one_back(tmp_path: Path) -> None:
    cached_table("toy", build, data_dir=tmp_path)
    kill_while("renaming", tmp_path)
    assert not (tmp_path / "toy.weft").exists()
    assert cached_table("toy", refuse, data_dir=tmp_path).column("x").tolist() == [1.0] * 12
    assert [p.name for p in tmp_path.iterdir()] == ["toy.weft"]


def test_a_build_at_work_is_left_alone(tmp_path: Path) -> None:
    def with_another_inside(path: Path) -> GraphTable:
        cached_table("toy", build, data_dir=tmp_path)
        assert path.parent.is_dir()
        return build(path, value=3.0)

    table = cached_table("toy", with_another_inside, data_dir=tmp_path, rebuild=True)
    assert table.column("x").tolist() == [3.0] * 12
    assert [p.name for p in tmp_path.iterdir()] == ["toy.weft"]


def test_a_rebuild_that_cannot_be_put_in_place_keeps_the_old_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_table("toy", build, data_dir=tmp_path)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.parent.suffix == ".building" and self.name == "toy.weft":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="Input/output"):
        cached_table("toy", lambda p: build(p, value=2.0), data_dir=tmp_path, rebuild=True)
    monkeypatch.undo()
    assert cached_table("toy", refuse, data_dir=tmp_path).column("x").tolist() == [1.0] * 12
    assert [p.name for p in tmp_path.iterdir()] == ["toy.weft"]


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    # A limit on the size of files makes the operating system itself refuse the write.
    script = textwrap.dedent(
        """
        import resource, signal, sys
        from pathlib import Path
        import numpy as np
        from weft.errors import DataError
        from weft.graphs import Graph, write_table
        from weft.sources.table_cache import cached_table

        def build(path):
            return write_table(path, [Graph(num_nodes=100_000, nodes={"x": np.ones(100_000)})])

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        folder = Path(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        try:
            cached_table("toy", build, data_dir=folder)
        except DataError as error:
            assert str(folder) in str(error) and "no room" in str(error), error
        else:
            raise AssertionError("written in spite of the limit")
        assert list(folder.iterdir()) == []
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        assert len(cached_table("toy", build, data_dir=folder)) == 1
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["toy.weft"]
