import os
import pickle
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from weft.errors import DataError
from weft.sources.pickles import load_pickle


class RunsACommand:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def write(path: Path, value: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_arrays_scalars_and_matrices_come_back(tmp_path, protocol):
    value = {"a": np.arange(6.0).reshape(2, 3), "b": np.float32(1.5), "c": [1, "two", None]}
    back = load_pickle(write(tmp_path / "a.pkl", value, protocol))
    assert np.array_equal(back["a"], value["a"])
    assert back["b"] == np.float32(1.5)
    assert back["c"] == value["c"]
    matrix = csr_matrix(np.array([[0, 2, 0], [1, 0, 0]]))
    back = load_pickle(write(tmp_path / "m.pkl", matrix, protocol))
    assert isinstance(back, csr_matrix)
    assert np.array_equal(back.toarray(), matrix.toarray())


def test_defaultdict_of_lists_comes_back(tmp_path):
    back = load_pickle(write(tmp_path / "d.pkl", defaultdict(list, {1: [2, 3]})))
    assert back == {1: [2, 3]}
    assert back[7] == []


def test_python_2_pickle_with_old_module_names(tmp_path):
    # What Python 2 wrote for csr_matrix([[0, 7.]]) as float32, with strings as raw bytes.
    def array(code: bytes, count: int, raw: bytes) -> bytes:
        return (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
            b"(K\x01K" + bytes([count]) + b"\x85cnumpy\ndtype\n(U\x02" + code + b"K\x00K\x01tR"
            b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U"
            + bytes([len(raw)])
            + raw
            + b"tb"
        )

    def name(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    state = (
        b"}("
        + (name(b"_shape") + b"K\x01K\x02\x86")
        + (name(b"data") + array(b"f4", 1, np.array([7], "<f4").tobytes()))
        + (name(b"indices") + array(b"i4", 1, np.array([1], "<i4").tobytes()))
        + (name(b"indptr") + array(b"i4", 2, np.array([0, 1], "<i4").tobytes()))
        + b"u"
    )
    path = tmp_path / "old.pkl"
    path.write_bytes(b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81" + state + b"b.")
    back = load_pickle(path)
    assert back.dtype == np.float32
    assert back.toarray().tolist() == [[0.0, 7.0]]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickle_that_runs_code_does_not_run(tmp_path, protocol):
    proof = tmp_path / "it_ran"
    path = write(tmp_path / "evil.pkl", RunsACommand(f"touch {proof}"), protocol)
    with pytest.raises(DataError, match=r"evil\.pkl.*'(posix|nt)\.system'"):
        load_pickle(path)
    assert not proof.exists()
    # The same bytes do run where nobody guards, so the test tests something.
    pickle.loads(path.read_bytes())
    assert proof.exists()


@pytest.mark.parametrize("asked", ["builtins eval", "numpy.core.multiarray fromfile", "a b.c"])
def test_other_globals_are_refused_by_name(tmp_path, asked):
    module, name = asked.split()
    path = tmp_path / "asks.pkl"
    path.write_bytes(f"c{module}\n{name}\n.".encode())
    with pytest.raises(DataError, match=f"asks.pkl.*'{module}.{name}'"):
        load_pickle(path)


def test_pickle_cannot_change_scipy(tmp_path):
    # BUILD with (None, {"toarray": 1}) on the class itself.
    path = tmp_path / "poison.pkl"
    path.write_bytes(
        b"\x80\x02cscipy.sparse.csr\ncsr_matrix\nN}X\x07\x00\x00\x00toarrayK\x01s\x86b."
    )
    load_pickle(path)
    assert csr_matrix(np.eye(2)).toarray().tolist() == [[1, 0], [0, 1]]


def test_matrix_with_indices_outside_is_refused(tmp_path):
    matrix = csr_matrix(np.eye(3))
    matrix.indices[1] = 1000
    with pytest.raises(DataError, match=r"outside\.pkl.*1000|outside\.pkl.*ind"):
        load_pickle(write(tmp_path / "outside.pkl", matrix))


@pytest.mark.parametrize("keep", [0, 1, 20, 100, -1])
def test_cut_pickle_names_the_file(tmp_path, keep):
    path = write(tmp_path / "cut.pkl", np.arange(100))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"cut\.pkl is not a whole pickle"):
        load_pickle(path)


def test_missing_pickle_names_the_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.pkl is missing"):
        load_pickle(tmp_path / "none.pkl")
