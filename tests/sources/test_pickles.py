import os
import pickle
import tracemalloc
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
def test_arrays_matrices_and_plain_values_come_back(tmp_path, protocol):
    values = (
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
        np.zeros((0, 3), dtype=np.uint8),
        np.array(True),
    )
    for value in values:
        back = load_pickle(write(tmp_path / "a.pkl", value, protocol))
        assert back.dtype == value.dtype
        assert np.array_equal(back, value)
        assert back.flags.owndata
    plain = {"c": [1, "two", None], 3: (1.5, {})}
    assert load_pickle(write(tmp_path / "p.pkl", plain, protocol)) == plain
    matrix = csr_matrix(np.array([[0, 2, 0], [1, 0, 0]]))
    back = load_pickle(write(tmp_path / "m.pkl", matrix, protocol))
    assert isinstance(back, csr_matrix)
    assert np.array_equal(back.toarray(), matrix.toarray())


def test_defaultdict_of_lists_comes_back(tmp_path):
    back = load_pickle(write(tmp_path / "d.pkl", defaultdict(list, {1: [2, 3]})))
    assert back == {1: [2, 3]}
    assert back[7] == []


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x04Nr\xff\xff\xff\x07.",
        b"Np268435455\n.",
        b"\x80\x04\x95\xff\xff\xff\xff\x01\x00\x00\x00N.",
        b"\x80\x05\x96\xff\xff\xff\x7f\x00\x00\x00\x00.",
        b"\x80\x04\x8e\xff\xff\xff\x7f\x00\x00\x00\x00.",
        b"\x80\x04B\xff\xff\xff\x7f.",
        b"\x80\x04\x8b\xff\xff\xff\x7f.",
        b"L" + b"9" * 5000 + b"L\n.",
        # Copies of a list of a thousand, again and again.
        b"cbuiltins\nlist\nq\0](" + b"N" * 1000 + b"eq\1" + b"h\0h\1\x85R" * 200 + b".",
    ],
)
def test_a_small_pickle_takes_little_memory(tmp_path, bomb):
    path = tmp_path / "bomb.pkl"
    path.write_bytes(bomb)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"bomb\.pkl is not a complete pickle"):
            load_pickle(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


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


def test_python_2_wrote_bytes_as_text(tmp_path):
    path = tmp_path / "old.pkl"
    path.write_bytes(b"(lp0\nS'\x80\xff'\np1\na.")
    assert load_pickle(path) == ["\x80\xff"]


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


@pytest.mark.parametrize(
    "name",
    [
        "scipy.sparse.csr csr_matrix",
        "numpy dtype",
        "numpy ndarray",
        "numpy.core.multiarray _reconstruct",
        "numpy.core.numeric _frombuffer",
        "collections defaultdict",
    ],
)
def test_pickle_cannot_change_a_class(tmp_path, name):
    # BUILD with (None, {"toarray": 1}) on the class itself.
    path = tmp_path / "poison.pkl"
    asked = "c" + name.replace(" ", "\n") + "\n"
    path.write_bytes(b"\x80\x02" + asked.encode() + b"N}X\x07\x00\x00\x00toarrayK\x01s\x86b.")
    with pytest.raises(DataError, match=r"poison\.pkl is not a complete pickle"):
        load_pickle(path)
    assert csr_matrix(np.eye(2)).toarray().tolist() == [[1, 0], [0, 1]]


class Calls:
    """Pickles as the call of `function` with these arguments, followed by this state."""

    def __init__(self, function: object, arguments: tuple, state: object) -> None:
        self.reduced = (function, arguments, state)

    def __reduce__(self):
        return self.reduced


def test_pickle_cannot_make_an_array_of_pointers(tmp_path):
    # The dtype's state says that its items are no objects, so numpy would take bytes as pointers.
    dtype = Calls(np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 0))
    make = np.empty(0).__reduce__()[0]
    array = Calls(make, (np.ndarray, (0,), b"b"), (1, (1,), dtype, False, b"AAAAAAAA"))
    with pytest.raises(DataError, match=r"evil\.pkl.*something other than numbers"):
        load_pickle(write(tmp_path / "evil.pkl", array, 3))
    (inside,) = load_pickle(write(tmp_path / "inside.pkl", [array], 3))
    assert not isinstance(inside, np.ndarray)


@pytest.mark.parametrize(
    ("shape", "raw"), [((2,), bytes(8)), ((-1,), bytes(8)), ((1,), bytes(7)), ((1,), [1.0])]
)
def test_array_whose_bytes_do_not_fit_its_shape(tmp_path, shape, raw):
    make = np.empty(0).__reduce__()[0]
    state = (1, shape, np.dtype("f8"), False, raw)
    path = write(tmp_path / "odd.pkl", Calls(make, (np.ndarray, (0,), b"b"), state), 3)
    with pytest.raises(DataError, match=r"odd\.pkl is not a complete pickle"):
        load_pickle(path)


@pytest.mark.parametrize("value", [np.array([{}, 1]), np.array(["text"]), np.zeros(2, "f4,i4")])
def test_array_of_something_else_than_numbers(tmp_path, value):
    with pytest.raises(DataError, match=r"other\.pkl.*something other than numbers"):
        load_pickle(write(tmp_path / "other.pkl", value))


def test_matrix_with_indices_outside_is_refused(tmp_path):
    matrix = csr_matrix(np.eye(3))
    matrix.indices[1] = 1000
    with pytest.raises(DataError, match=r"outside\.pkl.*1000|outside\.pkl.*ind"):
        load_pickle(write(tmp_path / "outside.pkl", matrix))


@pytest.mark.parametrize("keep", [0, 1, 20, 100, -1])
def test_cut_pickle_names_the_file(tmp_path, keep):
    path = write(tmp_path / "cut.pkl", np.arange(100))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"cut\.pkl is not a complete pickle"):
        load_pickle(path)


def test_missing_pickle_names_the_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.pkl is missing"):
        load_pickle(tmp_path / "none.pkl")
