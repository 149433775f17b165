import numpy as np
import pytest

from weft.errors import DataError
from weft.graphs import Column, Graph, infer_schema
from weft.graphs.graph import check_schema


def test_infer_schema_reads_level_dtype_and_row_shape():
    graph = Graph(
        num_nodes=2,
        nodes={"pos": np.zeros((2, 3), np.float32)},
        edges={"kind": np.zeros(0, bool)},
        graph={"cell": np.zeros((3, 3)), "y": np.float32(1)},
        ragged={"name": np.zeros(7, np.uint8)},
    )
    assert infer_schema(graph) == {
        "pos": Column(level="node", dtype="float32", shape=(3,)),
        "kind": Column(level="edge", dtype="bool"),
        "cell": Column(level="graph", dtype="float64", shape=(3, 3)),
        "y": Column(level="graph", dtype="float32"),
        "name": Column(level="ragged", dtype="uint8"),
    }


def test_a_name_on_two_levels_is_refused():
    graph = Graph(num_nodes=1, nodes={"q": np.zeros(1)}, graph={"q": np.zeros(())})
    with pytest.raises(DataError, match=r"two columns are called 'q'.*node and graph"):
        infer_schema(graph)


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "", ".hidden", "a.b", "senders", "out_order", "y_offsets", "x\n", "-x"]
)
def test_names_that_are_no_file_names_are_refused(name):
    with pytest.raises(DataError, match=r"column name .* is not usable"):
        check_schema({name: Column(level="node", dtype="float32")})


@pytest.mark.parametrize("name", ["node", "edge"])
def test_a_ragged_column_cannot_take_the_tables_own_offsets(name):
    with pytest.raises(DataError, match=f"ragged column cannot be called '{name}'"):
        check_schema({name: Column(level="ragged", dtype="float32")})
    check_schema({name: Column(level="node", dtype="float32")})


@pytest.mark.parametrize(
    "dtype", ["object", "U5", "complex64", "longdouble", "datetime64[s]", "nonsense"]
)
def test_dtypes_without_numbers_are_refused(dtype):
    with pytest.raises(DataError, match=r"column 'x' has dtype"):
        check_schema({"x": Column(level="node", dtype=dtype)})


def test_an_unknown_level_is_refused_with_the_legal_ones():
    with pytest.raises(DataError, match=r"column 'x' has level 'atom'; choose from.*'ragged'"):
        check_schema({"x": Column(level="atom", dtype="float32")})


def test_columns_are_one_whatever_the_spelling() -> None:
    plain = Column(level="node", dtype="float32", shape=(3,))
    assert Column(level="node", dtype=np.float32, shape=[3]) == plain  # type: ignore[arg-type]
    assert Column(level="node", dtype="<f4", shape=(3,)) == plain
    assert Column(level="node", dtype=">f4", shape=(3,)) == plain
