"""Rows of nodes: features, classes and masks as .npy, text and Parquet."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from weft.errors import DataError
from weft.sources.node_files import read_features, read_labels, read_mask, read_numbers

NAMES = {"ann": 0, "bob": 1, "eve, the third": 2}


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.csv", "id,age,size\nann,1,2\nbob,3,4e0\n"),
        ("x.csv", 'ann,1,2\n# a comment\n\n"bob", 3,4\n'),
        ("x.tsv", "who\tage\tsize\nann\t1\t2\nbob\t3\t4\n"),
        ("x.txt.gz", "ann 1 2\nbob 3 4\n"),
    ],
)
def test_features_of_a_table(tmp_path, name, text):
    x, names = read_features(write(tmp_path / name, text))
    assert x.dtype == np.float64
    assert x.tolist() == [[1, 2], [3, 4]]
    assert names == ["ann", "bob"]


def test_features_of_npy(tmp_path):
    np.save(tmp_path / "x.npy", np.eye(3, dtype=np.float32))
    x, names = read_features(tmp_path / "x.npy")
    assert names is None
    assert x.dtype == np.float32
    np.save(tmp_path / "x.npy", np.ones(3))
    with pytest.raises(DataError, match=r"x\.npy has shape \[3\]; one row for each node"):
        read_features(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(b"text")
    with pytest.raises(DataError, match=r"not a \.npy file of numbers"):
        read_features(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object))
    with pytest.raises(DataError, match=r"not a \.npy file of numbers"):
        read_features(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ann,1,2\nbob,3\n", "line 2: 2 columns; a node and 2 more"),
        ("ann,1,2\nbob,3,\n", "line 2: column 2 is empty"),
        ("ann,1\nbob,x\n", "line 2: 'x' is not a finite number"),
        ("ann,1\nbob,nan\n", "line 2: 'nan' is not a finite number"),
        ("ann,1\nann,2\n", "line 2: node 'ann' is in line 1 already"),
        ("# nothing\n", "names no node"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, text, reason):
    with pytest.raises(DataError, match=rf"x\.csv.*{reason}"):
        read_features(write(tmp_path / "x.csv", text))


def test_features_of_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    writer = pytest.importorskip("pyarrow.parquet")

    def read(**columns):
        writer.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
        return read_features(tmp_path / "x.parquet")

    x, names = read(node=["a", "b"], age=[1, 2], vector=[[0.5, 1.5], [2.5, 3.5]])
    assert x.tolist() == [[1, 0.5, 1.5], [2, 2.5, 3.5]]
    assert names == ["a", "b"]
    for columns, reason in (
        ({"node": ["a", None], "age": [1, 2]}, "'node' is null in row 1"),
        ({"node": ["a", "b"], "age": [None, 2]}, "'age' is null in row 0"),
        ({"node": ["a", "b"], "v": [[1.0], [None]]}, "'v' has a null in the list of row 1"),
        ({"node": ["a", "b"], "v": [[1.0], [1.0, 2.0]]}, "'v' has 2 numbers in row 1, and 1 in"),
        ({"node": ["a", "b"], "v": [1.0, float("nan")]}, "'v' is not finite in row 1"),
        ({"node": ["a", "b"], "v": ["1", "2"]}, "'v' holds string; numbers are needed"),
        ({"node": ["a", "a"], "v": [1, 2]}, "row 1: node 'a' is in row 0 already"),
        ({"node": ["a", "b\nc"], "v": [1, 2]}, "'node' has a line feed in row 1"),
    ):
        with pytest.raises(DataError, match=rf"x\.parquet.*{reason}"):
            read(**columns)
    writer.write_table(pyarrow.table({"n": [2, 0], "c": ["red", "blue"]}), tmp_path / "y.parquet")
    y, classes = read_labels(tmp_path / "y.parquet", 3, None)
    assert (y.tolist(), classes) == ([0, -1, 1], ["blue", "red"])


def test_classes(tmp_path):
    table = write(tmp_path / "y.csv", 'node,label\n"eve, the third",red\nann,blue\n')
    y, classes = read_labels(table, 3, NAMES)
    assert (y.tolist(), classes) == ([0, -1, 1], ["blue", "red"])
    y, classes = read_labels(write(tmp_path / "y.csv", "0,4\n2,-1\n"), 3, None)
    assert (y.tolist(), classes) == ([4, -1, -1], [])
    np.save(tmp_path / "y.npy", np.array([[1.0], [np.nan], [0.0]]))
    np.testing.assert_array_equal(
        read_labels(tmp_path / "y.npy", 3, None)[0], [[1.0], [np.nan], [0.0]]
    )
    np.save(tmp_path / "y.npy", np.zeros(2, dtype=int))
    with pytest.raises(DataError, match=r"y\.npy has shape \[2\]; there are 3 nodes, so \[3\]"):
        read_labels(tmp_path / "y.npy", 3, None)
    numbers, classes = read_labels(write(tmp_path / "y.csv", "id,a,b\n2,0.5,nan\n0,1,2\n"), 3, None)
    np.testing.assert_array_equal(numbers, [[1, 2], [np.nan, np.nan], [0.5, np.nan]])
    assert classes == []
    for text, places, reason in (
        ("carl,1\n", NAMES, "line 1: no node is called 'carl'"),
        ("0,1\n3,1\n", None, "line 2: no node is called '3'; nodes are 0 to 2"),
        ("0,1\n-1,1\n", None, "line 2: no node is called '-1'"),
    ):
        with pytest.raises(DataError, match=rf"y\.csv, {reason}"):
            read_labels(write(tmp_path / "y.csv", text), 3, places)


def test_masks(tmp_path):
    for array in (
        np.array([True, False, True]),
        np.array([1, 0, 1], dtype=np.uint8),
        np.array([2, 0]),
        np.array([[2], [0]], dtype=np.int32),
    ):
        np.save(tmp_path / "m.npy", array)
        assert read_mask(tmp_path / "m.npy", 3, None).tolist() == [True, False, True]
    listed = read_mask(write(tmp_path / "m.csv.gz", "2\n0\n"), 3, None)
    assert listed.tolist() == [True, False, True]
    named = read_mask(write(tmp_path / "m.txt", "node\nbob\n"), 3, NAMES)
    assert named.tolist() == [False, True, False]
    for array, reason in (
        (np.array([0, 3]), "names node 3 in row 1; the nodes are 0 to 2"),
        (np.array([1, 0, 1]), "repeats 1 numbers of nodes; if it is a mask, save it as bool"),
        (np.array([True, False]), r"is bool\[2\]; a mask, bool \[3\]"),
        (np.array([0.5, 1]), r"is float64\[2\]; a mask"),
    ):
        np.save(tmp_path / "m.npy", array)
        with pytest.raises(DataError, match=rf"m\.npy {reason}"):
            read_mask(tmp_path / "m.npy", 3, None)


def test_numbers_without_a_header(tmp_path):
    path = write(tmp_path / "n.csv.gz", "1,2\n3,4\n")
    assert read_numbers(path, np.float32).tolist() == [[1, 2], [3, 4]]
    for text, reason in (
        ("1,2\n3,x\n", r"n\.csv\.gz, line 2: could not convert string 'x'"),
        ("1,2\n3\n", r"n\.csv\.gz, line 2: the number of columns changed"),
    ):
        with pytest.raises(DataError, match=reason):
            read_numbers(write(path, text), np.float32)
    path.write_bytes(gzip.compress(b"1,2\n")[:-5])
    with pytest.raises(DataError, match="cannot be read"):
        read_numbers(path, np.float32)
