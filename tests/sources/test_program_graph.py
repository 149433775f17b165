"""Labels and the finished graph of a sample."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from weft.graphs import Array, table_from_graphs
from weft.layout import ORDERS
from weft.sources.program_graph import (
    CANDIDATE,
    EDGE_NAMES,
    EDGE_TYPES,
    NUM_TYPES,
    PROGRAM_SCHEMA,
    SLOT,
    SLOT_LABEL,
    SUBTOKENS,
    VOCABULARY,
    EdgeType,
    label_array,
    label_buckets,
    program_graph,
    subtokens_of,
)


def test_types_have_names_and_reverses() -> None:
    assert len(EDGE_TYPES) == 10
    assert len(EDGE_NAMES) == NUM_TYPES == 20
    assert EDGE_TYPES[EdgeType.CHILD] == "Child"
    assert EDGE_TYPES[EdgeType.LAST_LEXICAL_USE] == "LastLexicalUse"
    assert EDGE_TYPES[EdgeType.GUARDED_BY_NEGATION] == "GuardedByNegation"


@pytest.mark.parametrize(
    ("label", "parts"),
    [
        ("num_nodes", ("num", "nodes")),
        ("camelCaseName", ("camel", "case", "name")),
        ("HTTPServer2", ("http", "server", "2")),
        ("_", ("_",)),
        ("__init__", ("init",)),
        ("+=", ("+=",)),
        ("<", ("<",)),
        ("<FunctionDef>", ("<FunctionDef>",)),
        (SLOT_LABEL, (SLOT_LABEL,)),
        ("return", ("return",)),
        ("größe", ("größe",)),
        ("a_b_c_d_e_f_g_h", ("a", "b", "c", "d", "e", "f")),
        ("'a text'", ("a", "text")),
        ("", ()),
    ],
)
def test_subtokens(label: str, parts: tuple[str, ...]) -> None:
    assert subtokens_of(label) == parts


def test_buckets_are_in_range_and_padded() -> None:
    for label in ("x", "num_nodes", "", "+", "\ud800", "y" * 10**6):
        buckets = label_buckets(label)
        assert len(buckets) == SUBTOKENS
        used = len(subtokens_of(label))
        assert all(1 <= bucket < VOCABULARY for bucket in buckets[:used])
        assert not any(buckets[used:])


def test_buckets_are_the_same_in_every_process() -> None:
    code = "from weft.sources.program_graph import label_buckets as b; print(b('num_nodes'))"
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(label_buckets("num_nodes"))
    assert label_buckets("num_nodes")[:2] == (4547, 4076)


def chain(n: int) -> tuple[Array, Array]:
    edges = [(EdgeType.NEXT_TOKEN, i, i + 1) for i in range(n - 1)]
    return label_array([f"n{i}" for i in range(n)]), np.array(2 * edges)


def test_a_graph_has_the_columns_and_every_reverse_once() -> None:
    labels, edges = chain(5)
    graph, places = program_graph(
        labels,
        np.concatenate([edges, [[EdgeType.LAST_USE, 3, 0]] * 2]),
        slot=1,
        candidates=[3, 4],
        correct=4,
        recent=3,
        file=7,
        line=12,
        column=3,
    )
    assert graph.num_edges == 2 * (4 + 1)
    rows = set(
        zip(
            graph.edges["type"].tolist(),
            graph.senders.tolist(),
            graph.receivers.tolist(),
            strict=True,
        )
    )
    assert len(rows) == graph.num_edges
    assert {(t, s, r) for t, s, r in rows if t < 10} == {
        (t - 10, r, s) for t, s, r in rows if t >= 10
    }
    assert graph.nodes["role"][places].tolist() == [CANDIDATE, CANDIDATE]
    assert (graph.nodes["role"] == SLOT).sum() == 1
    assert graph.nodes["correct"].nonzero()[0].tolist() == [places[1]]
    assert graph.nodes["recent"].nonzero()[0].tolist() == [places[0]]
    assert graph.nodes["subtokens"][places[0]].tolist() == list(label_buckets("n3"))
    assert [int(graph.graph[name]) for name in ("file", "line", "column")] == [7, 12, 3]
    assert dict(table_from_graphs([graph], PROGRAM_SCHEMA).schema) == PROGRAM_SCHEMA


def test_nodes_are_in_the_order_that_layout_gives() -> None:
    rng = np.random.default_rng(0)
    labels = label_array([f"n{i}" for i in range(40)])
    kinds = np.full(39, EdgeType.CHILD)
    edges = np.column_stack([kinds, rng.permutation(40)[:-1], rng.permutation(40)[:-1]])
    graph, _ = program_graph(labels, edges, slot=0, candidates=[1, 2], correct=1, recent=1)
    order = ORDERS["rcm"](40, edges[:, 1], edges[:, 2])
    assert np.array_equal(graph.nodes["subtokens"], labels[order])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"candidates": []}, "two or more"),
        ({"candidates": [3]}, "two or more"),
        ({"candidates": [3, 3]}, "two or more"),
        ({"candidates": [3, 9]}, "beyond the 5 nodes"),
        ({"slot": 5}, "beyond the 5 nodes"),
        ({"slot": 3}, "slot and two or more"),
        ({"correct": 0}, "0 or 3 is none of"),
        ({"recent": 0}, "3 or 0 is none of"),
        ({"edges": np.array([[0, 1, 5]])}, "edges beyond"),
        ({"edges": np.array([[0, -1, 4]])}, "edges beyond"),
        ({"edges": np.array([[10, 1, 4]])}, "edges beyond"),
        ({"edges": np.array([[1, 4]])}, "shape"),
    ],
)
def test_what_is_no_sample_is_refused(change: dict[str, object], says: str) -> None:
    labels, edges = chain(5)
    given = {
        "edges": edges,
        "slot": 1,
        "candidates": [3, 4],
        "correct": 3,
        "recent": 3,
        **change,
    }
    with pytest.raises(AssertionError, match=says):
        program_graph(labels, **given)  # type: ignore[arg-type]
