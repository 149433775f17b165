import hashlib
import io
import pickle
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from weft.errors import DataError
from weft.graphs import assemble, table_from_graphs
from weft.sources import citation_graphs
from weft.sources.citation_graphs import (
    PLANETOID_FILES,
    PLANETOID_NAMES,
    cora_from_package,
    fetch_planetoid,
    planetoid,
    random_split,
    row_normalise,
    shchur,
)

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def shared(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not here")
    return SHARED / name


def assert_undirected_and_simple(graph):
    graph.validate()
    pairs = set(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    assert len(pairs) == graph.num_edges
    assert all(a != b and (b, a) in pairs for a, b in pairs)


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "classes", "unknown"),
    [
        ("cora", 2708, 5278, 1433, 7, 0),
        ("citeseer", 3327, 4552, 3703, 6, 15),
        ("pubmed", 19717, 44324, 500, 3, 0),
    ],
)
def test_planetoid_counts(name, nodes, edges, features, classes, unknown):
    graph = planetoid(shared("planetoid"), name)
    assert_undirected_and_simple(graph)
    x, y = graph.nodes["x"], graph.nodes["y"]
    masks = {part: graph.nodes[part] for part in ("train", "validation", "test")}
    assert (graph.num_nodes, graph.num_edges) == (nodes, 2 * edges)
    assert x.shape == (nodes, features)
    assert x.dtype == np.float32
    assert sorted(set(y[y >= 0].tolist())) == list(range(classes))
    assert {part: int(mask.sum()) for part, mask in masks.items()} == {
        "train": 20 * classes,
        "validation": 500,
        "test": 1000,
    }
    assert np.sum([mask.astype(int) for mask in masks.values()], axis=0).max() == 1
    assert np.bincount(y[masks["train"]]).tolist() == [20] * classes
    missing = np.flatnonzero(y < 0)
    assert len(missing) == unknown
    # They are often called isolated, but each has an edge or two, and the edge count needs them.
    assert np.isin(missing, graph.senders).all()
    assert not x[missing].any()
    assert not any(mask[missing].any() for mask in masks.values())


def test_planetoid_files_are_the_published_ones():
    folder = shared("planetoid")
    assert len(PLANETOID_FILES) == 8 * len(PLANETOID_NAMES)
    for file, sha256 in PLANETOID_FILES.items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == sha256


def test_one_big_graph_fits_a_table_and_a_batch():
    graph = planetoid(shared("planetoid"), "cora")
    batch = assemble(table_from_graphs([graph]), [0])
    assert batch.nodes["train"].sum() == 140
    assert batch.num_edges == 10556


def write_planetoid(folder: Path, *, test=(503, 501, 504)) -> dict[str, object]:
    """Files of 501 known nodes, one of them to train on, and test nodes 501, 503 and 504."""
    one_hot = np.eye(2, dtype=np.int32)
    parts = {
        "allx": csr_matrix(np.arange(501 * 2, dtype=np.float32).reshape(501, 2)),
        "ally": one_hot[np.arange(501) % 2],
        "tx": csr_matrix(np.array([[30, 0], [10, 0], [40, 0]], dtype=np.float32)),
        "ty": one_hot[[1, 0, 1]],
        "x": csr_matrix(np.array([[0.0, 1.0]], dtype=np.float32)),
        "y": one_hot[[0]],
        # A repeat, a self-loop, and an edge given from one side only.
        "graph": defaultdict(list, {0: [1, 1, 0], 1: [0], 503: [0], 502: []}),
    }
    for part, value in parts.items():
        (folder / f"ind.cora.{part}").write_bytes(pickle.dumps(value, protocol=4))
    (folder / "ind.cora.test.index").write_text("".join(f"{i}\n" for i in test))
    return parts


def test_planetoid_rows_go_to_their_nodes(tmp_path):
    write_planetoid(tmp_path)
    graph = planetoid(tmp_path, "cora")
    assert graph.num_nodes == 505
    assert graph.nodes["x"][499:].tolist() == [
        [998, 999],
        [1000, 1001],
        [10, 0],
        [0, 0],
        [30, 0],
        [40, 0],
    ]
    assert graph.nodes["y"][499:].tolist() == [1, 0, 0, -1, 1, 1]
    assert np.flatnonzero(graph.nodes["train"]).tolist() == [0]
    assert np.flatnonzero(graph.nodes["validation"]).tolist() == list(range(1, 501))
    assert np.flatnonzero(graph.nodes["test"]).tolist() == [501, 503, 504]
    edges = sorted(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    assert edges == [(0, 1), (0, 503), (1, 0), (503, 0)]


@pytest.mark.parametrize("part", ["y", "tx", "ty", "allx", "ally", "graph", "test.index"])
def test_missing_planetoid_file_is_named(tmp_path, part):
    write_planetoid(tmp_path)
    (tmp_path / f"ind.cora.{part}").unlink()
    with pytest.raises(DataError, match=rf"ind\.cora\.{part} is missing"):
        planetoid(tmp_path, "cora")


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("tx", csr_matrix(np.ones((2, 2))), r"test\.index must name 2 different nodes from 501"),
        ("tx", csr_matrix(np.ones((3, 5))), r"allx has 501 rows of 2 features.* of 5"),
        ("allx", {"not": "a matrix"}, "allx holds a dict; a csr_matrix is needed"),
        ("ally", np.zeros((7, 2)), r"ally has shape \[7, 2\], not 501"),
        ("graph", {0: [505]}, "graph names node 505, out of range for 505 nodes"),
        ("graph", {0: ["a"]}, "graph must hold a list of node numbers"),
        ("graph", {0: [1.7]}, r"graph must hold a list of node numbers.*: 1\.7 is not a whole"),
        ("graph", {0.5: [1]}, r"graph must hold a list of node numbers.*: 0\.5 is not a whole"),
        ("graph", {0: [2**70]}, "graph must hold a list of node numbers"),
        ("ty", np.array([[0, 1], [0, 0], [1, 0]]), r"ty: row 1 is \[0, 0\], which is not one-hot"),
        ("ty", np.array([[0, 1], [1, 0], [1, 1]]), r"ty: row 2 is \[1, 1\], which is not one-hot"),
        ("ty", np.array([[0, 2], [1, 0], [1, 0]]), r"ty: row 0 is \[0, 2\], which is not one-hot"),
        ("y", np.array(3), r"cora\.y has shape \[\], not one-hot rows"),
    ],
)
def test_planetoid_files_that_do_not_fit(tmp_path, part, value, message):
    write_planetoid(tmp_path)
    (tmp_path / f"ind.cora.{part}").write_bytes(pickle.dumps(value, protocol=4))
    with pytest.raises(DataError, match=message):
        planetoid(tmp_path, "cora")


def test_test_index_that_is_no_number(tmp_path):
    write_planetoid(tmp_path, test=(503, "x", 504))
    with pytest.raises(DataError, match=r"test\.index.*'x'"):
        planetoid(tmp_path, "cora")


def test_test_index_far_beyond_the_other_files(tmp_path):
    write_planetoid(tmp_path, test=(503, 99999999999999, 504))
    with pytest.raises(DataError, match=r"test\.index names node 99999999999999, but .* 504 nodes"):
        planetoid(tmp_path, "cora")
    write_planetoid(tmp_path, test=(503, 2**80, 504))
    with pytest.raises(DataError, match=r"test\.index must have a node number on each line"):
        planetoid(tmp_path, "cora")


def test_empty_test_index(tmp_path):
    write_planetoid(tmp_path, test=())
    with pytest.raises(DataError, match=r"test\.index must name 3 different nodes"):
        planetoid(tmp_path, "cora")


def test_unknown_name_lists_the_known():
    for function in (lambda: planetoid(".", "coral"), lambda: fetch_planetoid("coral", ".")):
        with pytest.raises(DataError, match="'coral'; choose from cora, citeseer, pubmed"):
            function()


def test_fetch_takes_what_is_there():
    folder = shared("planetoid")
    assert fetch_planetoid("citeseer", folder) == folder


@pytest.mark.parametrize("progress", [False, True])
def test_fetch_asks_for_every_file_with_its_checksum(tmp_path, monkeypatch, progress):
    asked = []
    monkeypatch.setattr(
        citation_graphs,
        "fetch",
        lambda url, sha256, **options: asked.append((url, sha256, options)),
    )
    assert fetch_planetoid("pubmed", tmp_path, progress=progress) == tmp_path
    assert len(asked) == 8
    for url, sha256, options in asked:
        assert url.startswith("https://github.com/tkipf/gcn/raw/39a4089f")
        assert PLANETOID_FILES[url.rsplit("/", 1)[1]] == sha256
        assert options == {"folder": tmp_path, "progress": progress}


def test_row_normalise():
    x = np.array([[1, 3], [0, 0], [2, 0]], dtype=np.float32)
    assert row_normalise(x).tolist() == [[0.25, 0.75], [0, 0], [1, 0]]
    assert row_normalise(x).dtype == np.float32
    assert x[0].tolist() == [1, 3]


def test_random_split_sizes_and_seed():
    y = np.repeat([0, 1, 2, -1], [50, 60, 70, 30])
    split = random_split(y, per_class=10, validation=40, test=80, seed=3)
    assert {part: int(mask.sum()) for part, mask in split.items()} == {
        "train": 30,
        "validation": 40,
        "test": 80,
    }
    assert np.bincount(y[split["train"]]).tolist() == [10, 10, 10]
    assert np.sum([mask.astype(int) for mask in split.values()], axis=0)[y >= 0].max() == 1
    assert not any(mask[y < 0].any() for mask in split.values())
    again = random_split(y, per_class=10, validation=40, test=80, seed=3)
    other = random_split(y, per_class=10, validation=40, test=80, seed=4)
    assert all(np.array_equal(split[part], again[part]) for part in split)
    assert not np.array_equal(split["train"], other["train"])


def test_random_split_of_too_few_nodes():
    y = np.repeat([0, 1], [5, 50])
    with pytest.raises(DataError, match="class 0 has 5 nodes, too few for 20"):
        random_split(y)
    with pytest.raises(DataError, match=r"45 nodes are left after the 10 training nodes.* 500"):
        random_split(y, per_class=5)


def test_cora_from_package_is_cora():
    pytest.importorskip("pyarrow")
    if citation_graphs.find_spec("graphdatascience") is None:
        pytest.skip("graphdatascience is not installed")
    graph = cora_from_package()
    assert "graphdatascience" not in sys.modules
    assert_undirected_and_simple(graph)
    assert (graph.num_nodes, graph.num_edges) == (2708, 2 * 5278)
    assert graph.nodes["x"].shape == (2708, 1433)
    assert [int(graph.nodes[part].sum()) for part in ("train", "validation", "test")] == [
        140,
        500,
        1000,
    ]
    y = graph.nodes["y"]
    assert np.mean(y[graph.senders] == y[graph.receivers]) == pytest.approx(0.81, abs=0.005)
    # Planetoid's Cora is the same graph with its nodes in another order.
    public = planetoid(shared("planetoid"), "cora")
    for count in (np.bincount(public.senders), public.nodes["x"].sum(axis=1)):
        ours = np.bincount(graph.senders) if count.dtype.kind == "i" else graph.nodes["x"].sum(1)
        assert np.array_equal(np.sort(count), np.sort(ours))
    assert sorted(np.bincount(y)) == sorted(np.bincount(public.nodes["y"]))


def test_missing_package_says_how_to_install(monkeypatch):
    monkeypatch.setattr(citation_graphs, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'weft\[data\]'"):
        cora_from_package()


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "classes"),
    [
        ("amazon-photo", 7650, 119081, 745, 8),
        ("amazon-computers", 13752, 245861, 767, 10),
        ("coauthor-cs", 18333, 81894, 6805, 15),
    ],
)
def test_shchur_counts(name, nodes, edges, features, classes):
    graph = shchur(shared("amazon_coauthor") / f"{name}.zip")
    graph.validate()
    assert (graph.num_nodes, graph.num_edges) == (nodes, 2 * edges)
    assert graph.nodes["x"].shape == (nodes, features)
    assert graph.nodes["x"].dtype == np.float32
    assert len(np.unique(graph.nodes["y"])) == classes


def shchur_arrays() -> dict[str, np.ndarray]:
    adjacency = csr_matrix(np.array([[1, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=np.float32))
    arrays = {"labels": np.array([0, 1, 1])}
    for name, matrix in (("adj", adjacency), ("attr", csr_matrix(np.eye(3)))):
        arrays |= {
            f"{name}_data": matrix.data,
            f"{name}_indices": matrix.indices,
            f"{name}_indptr": matrix.indptr,
            f"{name}_shape": np.array(matrix.shape),
        }
    return arrays


def test_shchur_npz_with_sparse_or_dense_features(tmp_path):
    arrays = shchur_arrays()
    np.savez(tmp_path / "sparse.npz", **arrays)
    dense = {k: v for k, v in arrays.items() if not k.startswith("attr")}
    np.savez(tmp_path / "dense.npz", attr_matrix=np.eye(3), **dense)
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        archive.write(tmp_path / "sparse.npz", "inside.npz")
    for name in ("sparse.npz", "dense.npz", "one.zip"):
        graph = shchur(tmp_path / name)
        edges = sorted(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
        assert edges == [(0, 1), (1, 0), (1, 2), (2, 1)]
        assert graph.nodes["x"].tolist() == np.eye(3).tolist()
        assert graph.nodes["y"].tolist() == [0, 1, 1]


def test_shchur_bad_files(tmp_path):
    def expect(message: str, **changes: object) -> None:
        arrays = {k: v for k, v in (shchur_arrays() | changes).items() if v is not None}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        (tmp_path / "bad.npz").write_bytes(buffer.getvalue())
        with pytest.raises(DataError, match=message):
            shchur(tmp_path / "bad.npz")

    expect(r"bad\.npz has no array .*labels", labels=None)
    expect(r"bad\.npz: .*3 x 3, but there are 3 rows of features and 2 labels", labels=np.ones(2))
    expect(r"bad\.npz cannot be read", adj_indices=np.array([0, 1, 99], dtype=np.int32))
    expect(r"bad\.npz cannot be read.*pickle", labels=np.array([{}, 1, 2], dtype=object))
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataError, match=r"bad\.npz is cut, damaged or not an archive"):
        shchur(tmp_path / "bad.npz")
    with pytest.raises(DataError, match=r"none\.npz is not there"):
        shchur(tmp_path / "none.npz")


def test_shchur_archives_are_checked_inside_and_out(tmp_path, monkeypatch):
    np.savez(tmp_path / "g.npz", **shchur_arrays())

    def pack(*names: str) -> Path:
        with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
            for name in names:
                archive.write(tmp_path / "g.npz", name)
        return tmp_path / "bad.zip"

    with pytest.raises(DataError, match=r"bad\.zip: member '\.\./g\.npz' points outside"):
        shchur(pack("../g.npz"))
    with pytest.raises(DataError, match=r"bad\.zip holds labels\.npy twice"):
        shchur(pack("a.npz", "b.npz"))
    size = (tmp_path / "g.npz").stat().st_size
    monkeypatch.setattr(citation_graphs, "_ARRAY_LIMIT", size - 1)
    with pytest.raises(DataError, match=r"bad\.zip: member 'g\.npz' has .* bytes; the limit"):
        shchur(pack("g.npz"))
    # Small when packed, large inside.
    np.savez_compressed(tmp_path / "g.npz", **(shchur_arrays() | {"labels": np.zeros(10**5)}))
    monkeypatch.setattr(citation_graphs, "_ARRAY_LIMIT", 10**5)
    with pytest.raises(DataError, match=r"bad\.zip: member 'labels\.npy' has .* bytes; the limit"):
        shchur(pack("g.npz"))
