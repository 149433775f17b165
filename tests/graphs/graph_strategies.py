"""Random graphs for hypothesis, and what it means for two graphs to be the same."""

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from weft.graphs import Column, Graph

# Compiling a numba loop the first time takes seconds; fixtures here hold no state of an example.
quick = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "float32", "float64")
ROWS = ((), (1,), (3,), (2, 2), (0,))
FIELDS = {"node": "nodes", "edge": "edges", "graph": "graph", "ragged": "ragged"}


def values(dtype, shape):
    dtype = np.dtype(dtype)
    elements = (
        hnp.from_dtype(dtype, allow_nan=False, allow_infinity=False) if dtype.kind == "f" else None
    )
    return hnp.arrays(dtype, shape, elements=elements, fill=elements)


@st.composite
def schemas(draw, levels=("node", "edge", "graph", "ragged"), max_columns=4):
    columns = st.builds(
        Column,
        level=st.sampled_from(levels),
        dtype=st.sampled_from(DTYPES),
        shape=st.sampled_from(ROWS),
    )
    chosen = draw(st.lists(columns, max_size=max_columns))
    return {f"{column.level}_{i}": column for i, column in enumerate(chosen)}


@st.composite
def graphs_of(draw, schema, max_nodes=6, max_edges=10):
    """A graph with these columns: often empty, with isolated nodes, self-loops and duplicates."""
    n = draw(st.integers(0, max_nodes))
    e = draw(st.integers(0, max_edges)) if n else 0
    index = draw(st.sampled_from(["int32", "int64"]))
    ends = [draw(hnp.arrays(index, e, elements=st.integers(0, max(n - 1, 0)))) for _ in range(2)]
    fields = {field: {} for field in FIELDS.values()}
    for name, column in schema.items():
        rows = {"node": (n,), "edge": (e,), "graph": ()}.get(column.level)
        if rows is None:
            rows = (draw(st.integers(0, 3)),)
        fields[FIELDS[column.level]][name] = draw(values(column.dtype, (*rows, *column.shape)))
    return Graph(num_nodes=n, senders=ends[0], receivers=ends[1], **fields)


@st.composite
def data_sets(draw, min_size=0, max_size=8, **options):
    """(schema, graphs) for a table."""
    schema = draw(schemas(**options))
    return schema, draw(st.lists(graphs_of(schema), min_size=min_size, max_size=max_size))


def sorted_edges(graph):
    """The graph with its edges in a table's order: by receiver, then sender, stably."""
    order = np.lexsort((graph.senders, graph.receivers))
    return replace(
        graph,
        senders=graph.senders[order],
        receivers=graph.receivers[order],
        edges={name: column[order] for name, column in graph.edges.items()},
    )


def assert_same_array(actual, expected, what=""):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    # Bytes, so that -0.0 is not 0.0 and NaN is NaN.
    assert actual.tobytes() == expected.tobytes(), what


def assert_same_graph(actual, expected, *, levels=("node", "edge", "graph", "ragged")):
    assert actual.num_nodes == expected.num_nodes
    assert actual.senders.tolist() == expected.senders.tolist()
    assert actual.receivers.tolist() == expected.receivers.tolist()
    for level in levels:
        found, wanted = getattr(actual, FIELDS[level]), getattr(expected, FIELDS[level])
        assert set(found) == set(wanted)
        for name in wanted:
            assert_same_array(found[name], wanted[name], name)
