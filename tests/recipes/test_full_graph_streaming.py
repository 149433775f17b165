"""Preparing an edge list within a limit of memory: the same table, and the limit is kept."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import DataError
from weft.graphs import GraphTable
from weft.graphs.store import MANIFEST
from weft.parallel import external_sort, stored_graph, streaming
from weft.parallel.external_sort import Budget, sorted_by
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import full_graph_table
from weft.recipes.full_graph.streaming import size_in_bytes
from weft.sources import rmat

AMPLE = 10**12


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks and many buckets of a small graph, some with a single node."""
    for module in (external_sort, stored_graph, streaming):
        monkeypatch.setattr(module, "CHUNK", 37)
    monkeypatch.setattr(Budget, "room", lambda self, num_nodes: 3000)


def files(folder: Path, suffix: str, *, weighted: bool = False, ints: bool = False) -> Any:
    """Options for the files of a graph with hubs, repeated edges and loops."""
    rng = np.random.default_rng(3)
    graph = rmat(90, 700, seed=1)
    ends = np.stack([graph.senders, graph.receivers])
    edges = folder / f"edges{suffix}"
    if suffix == ".npy":
        np.save(edges, ends)
    elif suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"src": ends[0], "dst": ends[1]}), edges)
    else:
        # A pair has one weight, whatever its direction.
        weight = (ends.min(0) * 90 + ends.max(0)) % 17 + 0.5
        rows = [*ends, weight] if weighted else [*ends]
        np.savetxt(edges, np.stack(rows).T, "%d %d %g" if weighted else "%d %d")
    x = rng.integers(0, 5, (90, 6)) if ints else rng.standard_normal((90, 6)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", rng.integers(0, 3, 90))
    return {
        "data": str(edges),
        "features": str(folder / "x.npy"),
        "labels": str(folder / "y.npy"),
        "split": (0.5, 0.2, 0.3),
    }


def both(folder: Path, **options: Any) -> tuple[GraphTable, GraphTable]:
    config = FullGraphConfig(**options)
    plain, _ = full_graph_table(config, data_dir=folder / "plain", progress=False)
    streamed, _ = full_graph_table(
        config, data_dir=folder / "streamed", progress=False, memory=AMPLE
    )
    return plain, streamed


def assert_same(plain: GraphTable, streamed: GraphTable) -> None:
    assert plain.path is not None
    assert streamed.path is not None
    assert plain.path.name == streamed.path.name  # the cache has one entry for both
    for name, values in plain.arrays.items():
        np.testing.assert_array_equal(streamed.arrays[name], values, err_msg=name)
    assert (plain.path / MANIFEST).read_text() == (streamed.path / MANIFEST).read_text()
    assert [each.name for each in streamed.path.parent.iterdir()] == [streamed.path.name]


@pytest.mark.parametrize("suffix", [".txt", ".npy", ".parquet"])
@pytest.mark.parametrize("partition", ["contiguous", "random", "balanced"])
@pytest.mark.usefixtures("small_chunks")
def test_same_table(tmp_path: Path, suffix: str, partition: str) -> None:
    named = files(tmp_path, suffix)
    assert_same(*both(tmp_path, **named, partition=partition, ranks=4, grid="2d"))


@pytest.mark.parametrize(
    "options",
    [
        {"directed": True},
        {"directed": True, "weighted": True, "partition": "balanced", "dtype": "float64"},
        {"weighted": True, "normalisation": "row", "partition": "random"},
        {"weighted": True, "partition": "balanced", "ints": True},
        {"normalisation": "none", "ints": True, "feature_scale": "none", "partition": "random"},
    ],
    ids=str,
)
@pytest.mark.usefixtures("small_chunks")
def test_same_table_of_other_matrices(tmp_path: Path, options: dict[str, Any]) -> None:
    kinds = {name: options.pop(name) for name in ("weighted", "ints") if name in options}
    named = files(tmp_path, ".txt", **kinds)
    if kinds.get("weighted"):
        named["columns"] = ("src", "dst", "weight")
    assert_same(*both(tmp_path, **named, ranks=3, grid="1d", **options))


@pytest.mark.parametrize("partition", ["metis", "rcm"])
def test_whole_graph_partitions_run_where_they_fit(tmp_path: Path, partition: str) -> None:
    if partition == "metis":
        pytest.importorskip("pymetis")
    named = files(tmp_path, ".npy")
    assert_same(*both(tmp_path, **named, partition=partition, ranks=4, grid="1d"))


def test_metis_is_refused_where_it_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "room", lambda self, num_nodes: 3000)
    config = FullGraphConfig(**files(tmp_path, ".npy"), partition="metis", ranks=4, grid="1d")
    with pytest.raises(DataError, match=r"reads all .* at least --memory .* --partition balanced"):
        full_graph_table(config, data_dir=tmp_path / "data", progress=False, memory=AMPLE)


def test_too_little_memory_names_the_least_that_does(tmp_path: Path) -> None:
    config = FullGraphConfig(**files(tmp_path, ".npy"))
    with pytest.raises(DataError, match=r"too little .* at least --memory (\d+)MB") as error:
        full_graph_table(config, data_dir=tmp_path, progress=False, memory=10**8)
    least = re.search(r"at least --memory (\w+)", str(error.value))
    assert least is not None
    full_graph_table(
        config, data_dir=tmp_path, progress=False, memory=size_in_bytes(least[1]) + 5 * 10**7
    )


def test_unusable_input(tmp_path: Path) -> None:
    named = files(tmp_path, ".txt", weighted=True)
    told = {"data_dir": tmp_path / "data", "progress": False, "memory": AMPLE}
    with pytest.raises(DataError, match="--memory is for a list of edges"):
        full_graph_table(FullGraphConfig(data="cora"), **told)
    np.savetxt(tmp_path / "edges.txt", [[0, 1], [2, 90]], "%d")
    with pytest.raises(DataError, match=r"names node 90; .* has 90 rows"):
        full_graph_table(FullGraphConfig(**named), **told)
    np.savetxt(tmp_path / "edges.txt", [[0, 1, 2], [1, 0, 3]], "%d")
    with pytest.raises(DataError, match="gives nodes 0 and 1 the weights 2 and 3"):
        full_graph_table(FullGraphConfig(**named, columns=("src", "dst", "weight")), **told)
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no RLIMIT_FSIZE")
def test_a_full_disk_is_named_and_nothing_stays(tmp_path: Path) -> None:
    import resource

    config = FullGraphConfig(**files(tmp_path, ".npy"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(DataError, match=r"no room left to write in .*; make room"):
            full_graph_table(config, data_dir=tmp_path / "data", progress=False, memory=AMPLE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((tmp_path / "data").iterdir())


def test_sizes() -> None:
    sizes = {"2GB": 2 * 10**9, "1.5 gb": 15 * 10**8, "500M": 5 * 10**8, "2GiB": 2**31}
    assert {text: size_in_bytes(text) for text in sizes} == sizes
    for text in ("2", "GB", "-1GB", "lots"):
        with pytest.raises(DataError, match="such as 2GB"):
            size_in_bytes(text)


def test_sort_of_one_key_with_more_than_a_bucket(tmp_path: Path) -> None:
    keys = np.array([1, 0, 1, 1, 2, 1], dtype=np.int32)
    starts = np.array([0, 1, 5, 6])
    chunks = [(keys[:3], np.arange(3)), (keys[3:], np.arange(3, 6))]
    found = list(sorted_by(chunks, 0, starts, tmp_path / "new", room=40))
    np.testing.assert_array_equal(np.concatenate([each[1] for each in found]), [1, 0, 2, 3, 5, 4])
    assert not (tmp_path / "new").exists()


_PEAK = """
import sys
from pathlib import Path

from weft.cli.main import main

code = main(sys.argv[1:])
status = Path("/proc/self/status").read_text()
print("peak", next(int(l.split()[1]) for l in status.splitlines() if l.startswith("VmHWM")))
sys.exit(code)
"""


def peak(folder: Path, nodes: int, edges: int, *more: str) -> tuple[float, str]:
    """Peak of a process that prepares a graph, bytes, and the manifest of its table."""
    folder.mkdir()
    graph = rmat(nodes, edges, seed=2)
    np.save(folder / "edges.npy", np.stack([graph.senders, graph.receivers]))
    np.save(folder / "x.npy", np.ones((nodes, 4), dtype=np.float32))
    np.save(folder / "y.npy", np.arange(nodes) % 4)
    command = ["train", "full-graph", "--data", str(folder / "edges.npy"), "--ranks", "4"]
    command += ["--features", str(folder / "x.npy"), "--labels", str(folder / "y.npy")]
    command += ["--grid", "2d", "--partition", "balanced", "--prepare-only", "--quiet"]
    command += ["--data-dir", str(folder / "data"), *more]
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    table = next((folder / "data").glob("*.weft"))
    return 1024.0 * int(done.stdout.split("peak")[1]), (table / MANIFEST).read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_the_limit_is_kept(tmp_path: Path) -> None:
    # Code is compiled here, if it has to be: the compiler takes memory of its own.
    peak(tmp_path / "warm", 1000, 5000, "--memory", "720MB")
    streamed, manifest = peak(tmp_path / "streamed", 20_000, 6_000_000, "--memory", "720MB")
    plain, expected = peak(tmp_path / "plain", 20_000, 6_000_000)
    assert streamed <= 720e6 < plain
    assert manifest == expected
