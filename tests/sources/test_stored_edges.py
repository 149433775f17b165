"""Edges of Parquet and .npy files."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from weft.errors import DataError
from weft.sources import read_edge_list

ENDS = ("src", "dst")


@pytest.fixture
def parquet():
    """Writes columns to a Parquet file."""
    pyarrow = pytest.importorskip("pyarrow")
    writer = pytest.importorskip("pyarrow.parquet")

    def write(path, **columns):
        writer.write_table(pyarrow.table(columns), path)
        return path

    return write


def test_columns_are_found_by_their_usual_names(parquet, tmp_path):
    path = parquet(
        tmp_path / "e.parquet", note=["a", "b"], Target=[7, 9], weight=[0.5, 2.0], source=[9, 3]
    )
    found = read_edge_list(path, columns=("src", "dst", "weight"))
    assert found.ids.tolist() == [3, 7, 9]
    assert found.ids[found.senders].tolist() == [9, 3]
    assert found.ids[found.receivers].tolist() == [7, 9]
    assert found.weight.tolist() == [0.5, 2.0]


def test_columns_of_other_names_are_taken_in_order(parquet, tmp_path):
    found = read_edge_list(
        parquet(tmp_path / "e.parquet", a=["x", "y"], b=["y", "z"]), columns=ENDS
    )
    assert found.ids.tolist() == ["x", "y", "z"]
    assert found.senders.tolist() == [0, 1]
    with pytest.raises(DataError, match="columns a, b; which are src dst weight is not clear"):
        read_edge_list(tmp_path / "e.parquet", columns=(*ENDS, "weight"))


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"src": [1, None], "dst": [2, 3]}, "column 'src' is null in row 1; fill it or leave"),
        ({"src": [1, 1], "dst": [2, 3], "weight": [1.0, None]}, "'weight' is null in row 1"),
        ({"src": [1, 1], "dst": [2, 3], "weight": [1.0, np.inf]}, "the weight is inf in row 1"),
        ({"src": [1.5], "dst": [2.0]}, "holds double; text or whole numbers"),
        (
            {"src": np.array([2**63], dtype=np.uint64), "dst": [0]},
            "9223372036854775808 in row 0, which does not fit int64",
        ),
    ],
)
def test_a_wrong_value_is_named(parquet, tmp_path, columns, reason):
    path = parquet(tmp_path / "e.parquet", **columns)
    with pytest.raises(DataError, match=rf"e\.parquet: .*{reason}"):
        read_edge_list(path, columns=tuple(columns))


def test_a_damaged_file_and_a_missing_package(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    path = tmp_path / "e.parquet"
    with pytest.raises(DataError, match=r"e\.parquet is missing"):
        read_edge_list(path, columns=ENDS)
    path.write_bytes(b"PAR1 cut")
    with pytest.raises(DataError, match="not a complete Parquet file"):
        read_edge_list(path, columns=ENDS)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"pip install 'weft\[parquet\]'"):
        read_edge_list(path, columns=ENDS)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64])
def test_npy_rows_or_columns(tmp_path, dtype):
    edges = np.array([[4, 0], [0, 2], [2, 2]], dtype=dtype)
    for name, array in (("rows.npy", edges), ("columns.npy", edges.T)):
        np.save(tmp_path / name, array)
        found = read_edge_list(tmp_path / name, columns=ENDS)
        assert found.ids.tolist() == [0, 2, 4]
        assert np.stack([found.ids[found.senders], found.ids[found.receivers]], 1).tolist() == [
            [4, 0],
            [0, 2],
            [2, 2],
        ]


@pytest.mark.parametrize(
    ("array", "columns", "reason"),
    [
        (np.zeros((2, 3)), ENDS, r"float64\[2, 3\]; whole numbers"),
        (np.zeros((3, 4), dtype=int), ENDS, r"\[3, 4\]; whole numbers"),
        (np.zeros((2, 3), dtype=int), (*ENDS, "weight"), "edges alone, but src dst weight"),
        (np.full((2, 3), 2**63, dtype=np.uint64), ENDS, "9223372036854775808 in row 0"),
    ],
)
def test_a_wrong_npy(tmp_path, array, columns, reason):
    np.save(tmp_path / "e.npy", array)
    with pytest.raises(DataError, match=rf"e\.npy.*{reason}"):
        read_edge_list(tmp_path / "e.npy", columns=columns)
