"""One graph in a file: NumPy's, SciPy's, MATLAB's."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
import scipy.io
import scipy.sparse

import weft
from weft.errors import DataError
from weft.sources import read_graph

MATRIX = scipy.sparse.coo_matrix(
    (np.array([0.5, 2.0, 1.0]), (np.array([0, 2, 3]), np.array([1, 0, 3]))), shape=(4, 4)
)


def edges_of(graph):
    weight = graph.edges["weight"].tolist() if "weight" in graph.edges else None
    ends = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    pairs = list(ends)
    return sorted(pairs if weight is None else zip(pairs, weight, strict=True))


def test_numpy_arrays(tmp_path):
    np.savez(
        tmp_path / "g.npz",
        edge_index=np.array([[0, 1], [1, 2]]),
        x=np.eye(3),
        y=np.array([0, 1, -1]),
        edge_weight=np.array([1.0, 0.5]),
        train_mask=np.array([True, False, False]),
        names=np.array([{}], dtype=object),
    )
    graph = read_graph(tmp_path / "g.npz")
    assert edges_of(graph) == [((0, 1), 1.0), ((1, 2), 0.5)]
    assert sorted(graph.nodes) == ["train", "x", "y"]
    table = weft.open(tmp_path / "g.npz", data_dir=tmp_path / "data", progress=False)
    np.testing.assert_array_equal(table[0].nodes["x"], np.eye(3))


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("weighted", [True, False])
def test_scipy_matrices(tmp_path, form, weighted):
    matrix = MATRIX.copy().asformat(form)
    if not weighted:
        matrix.data[:] = 1
    scipy.sparse.save_npz(tmp_path / "g.npz", matrix)
    graph = read_graph(tmp_path / "g.npz")
    wanted = [((0, 1), 0.5), ((2, 0), 2.0), ((3, 3), 1.0)]
    assert edges_of(graph) == (wanted if weighted else [pair for pair, _ in wanted])
    assert graph.num_nodes == 4


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"indices": np.array([9, 0, 3])}, "no csr matrix"),
        ({"indptr": np.array([0, 3, 1, 2, 3])}, "no csr matrix"),
        ({"shape": np.array([4, 5])}, "matrix of 4 x 5; a graph needs a square one"),
        ({"format": np.array(b"dia")}, "format 'dia'; save it as csr"),
        ({"data": np.array([1j, 0, 0])}, "complex128; real numbers"),
    ],
)
def test_wrong_matrices(tmp_path, arrays, reason):
    csr = MATRIX.tocsr()
    whole = {
        "format": np.array(b"csr"),
        "shape": np.array([4, 4]),
        "data": csr.data,
        "indices": csr.indices,
        "indptr": csr.indptr,
    }
    np.savez(tmp_path / "g.npz", **(whole | arrays))
    with pytest.raises(DataError, match=rf"g\.npz.*{reason}"):
        read_graph(tmp_path / "g.npz")


def test_wrong_archives(tmp_path):
    np.savez(tmp_path / "g.npz", numbers=np.arange(3))
    with pytest.raises(DataError, match="holds the arrays numbers; a graph has 'edge_index'"):
        read_graph(tmp_path / "g.npz")
    (tmp_path / "g.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="not a complete npz file"):
        read_graph(tmp_path / "g.npz")
    with zipfile.ZipFile(tmp_path / "g.npz", "w") as archive:
        archive.writestr("edge_index.npy", b"\x93NUMPY cut")
    with pytest.raises(DataError, match=r"g\.npz cannot be read: edge_index\.npy"):
        read_graph(tmp_path / "g.npz")
    with pytest.raises(DataError, match="is missing"):
        read_graph(tmp_path / "no.npz")


def test_facebook100(tmp_path):
    info = np.array([[1, 2, 7, 0, 3, 2008, 9], [2, 0, 7, 0, 4, 2009, 9], [1, 1, 8, 0, 3, 0, 9]])
    one = scipy.sparse.csc_matrix(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=float))
    scipy.io.savemat(tmp_path / "Small1.mat", {"A": one, "local_info": info})
    graph = read_graph(tmp_path / "Small1.mat")
    assert edges_of(graph) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    # The gender is the class, 0 is unknown; all else is one-hot.
    assert graph.nodes["y"].tolist() == [1, -1, 0]
    assert graph.nodes["x"].tolist() == [
        [1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1],
        [0, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1],
        [1, 0, 0, 1, 1, 1, 0, 1, 0, 0, 1],
    ]


def test_matlab_matrices(tmp_path):
    path = tmp_path / "m.mat"
    scipy.io.savemat(path, {"A": MATRIX.tocsc()})
    assert edges_of(read_graph(path)) == [((0, 1), 0.5), ((2, 0), 2.0), ((3, 3), 1.0)]
    scipy.io.savemat(path, {"A": MATRIX.tocsc(), "local_info": np.zeros((4, 3))})
    with pytest.raises(DataError, match=r"'local_info' is float64\[4, 3\]; Facebook100's is"):
        read_graph(path)
    scipy.io.savemat(path, {"A": np.eye(3)})
    with pytest.raises(DataError, match="no sparse matrix 'A'"):
        read_graph(path)
    path.write_bytes(path.read_bytes()[:150])
    with pytest.raises(DataError, match=r"m\.mat"):
        read_graph(path)


def test_a_matlab_matrix_whose_indices_lie(tmp_path):
    matrix = MATRIX.copy().tocsc()
    matrix.indices[0], matrix.indptr[2] = 77, 3000
    scipy.io.savemat(tmp_path / "m.mat", {"A": matrix})
    with pytest.raises(DataError, match=r"m\.mat"):
        read_graph(tmp_path / "m.mat")


def test_text_and_matrix_market(tmp_path):
    (tmp_path / "e.csv").write_text("source,target,weight\nann,bob,2\nbob,eve,0.5\n")
    graph = read_graph(tmp_path / "e.csv", columns=("src", "dst", "weight"))
    assert edges_of(graph) == [((0, 1), 2.0), ((1, 2), 0.5)]
    assert bytes(graph.ragged["names"]) == b"ann\nbob\neve\n"
    scipy.io.mmwrite(tmp_path / "m.mtx", MATRIX)
    assert edges_of(read_graph(tmp_path / "m.mtx"))[1] == ((2, 0), 2.0)
