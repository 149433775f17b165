"""Graphs whose nodes have classes."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from weft.errors import DataError
from weft.sources import labelled_graph, load, pubmed_temporal, read_node_labels

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def shared(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not here")
    return SHARED / name


def labels(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_labels_are_numbered_in_their_order(tmp_path: Path) -> None:
    ids = np.array([3, 5, 10, 11])
    file = labels(tmp_path / "labels.txt", "# node label\n10 12\n\n3,2\n11\t12\n77 2\n")
    found = read_node_labels(file, ids)
    assert found.y.tolist() == [0, -1, 1, 1]
    assert found.classes == ("2", "12")
    assert found.unknown == 1
    packed = tmp_path / "labels.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read_node_labels(packed, ids).y.tolist() == [0, -1, 1, 1]


def test_numbers_written_in_two_ways_have_an_order(tmp_path: Path) -> None:
    ids = np.arange(8)
    ways = ["1", "01", "001", "0001", "+1", "00001", "2", "02"]
    text = "".join(f"{node} {way}\n" for node, way in enumerate(ways))
    found = read_node_labels(labels(tmp_path / "labels.txt", text), ids)
    assert found.classes == (*sorted(ways[:6]), "02", "2")


def test_names_of_nodes_and_classes(tmp_path: Path) -> None:
    edges = labels(tmp_path / "edges.txt", "alice bob 1\nbob Åse 2\n")
    graph = labelled_graph(edges, labels(tmp_path / "y.txt", "Åse chess\nalice go\n"))
    # alice, bob, Åse; chess, go.
    assert graph.nodes["y"].tolist() == [1, -1, 0]
    assert graph.edges["time"].tolist() == [1, 2]


def test_labels_of_nobody_are_counted(tmp_path: Path) -> None:
    edges = labels(tmp_path / "edges.txt", "1 2 1\n")
    with pytest.warns(UserWarning, match=r"labels 2 nodes that have no edge in .*edges\.txt"):
        graph = labelled_graph(edges, labels(tmp_path / "y.txt", "1 0\n2 1\n3 0\n4 0\n"))
    assert graph.nodes["y"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 a\n2\n", r"y\.txt, line 2: 2 tokens \(node, label\) expected; the line is '2'"),
        ("1 a b\n", "line 1: 2 tokens"),
        ("1 a\n# x\n1 b\n", "line 3: node 1 has the label a already"),
        ("9 a\n", "labels none of the graph's 2 nodes"),
        ("", "labels none"),
    ],
)
def test_bad_labels(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_node_labels(labels(tmp_path / "y.txt", text), np.array([1, 2]))


def test_unreadable_labels(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt is missing"):
        read_node_labels(tmp_path / "none.txt", np.array([1]))
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"1 2\n")[:-9])
    with pytest.raises(DataError, match=r"broken\.gz cannot be read"):
        read_node_labels(broken, np.array([1]))


def test_patents(tmp_path: Path) -> None:
    table = load("patent", files=[shared("tgc_patent")], data_dir=tmp_path, progress=False)
    assert (table.total_nodes, table.total_edges) == (12214, 41916)
    assert np.bincount(table.column("y")).tolist() == [3347, 2634, 3796, 933, 769, 735]
    with pytest.raises(DataError, match="'labelled-edge-list' reads an edge list and labels"):
        load("labelled-edge-list", data_dir=tmp_path, progress=False)


def test_pubmed_with_years(tmp_path: Path) -> None:
    papers, years = shared("planetoid"), shared("pubmed_temporal")
    graph = pubmed_temporal(papers, years)
    assert (graph.num_nodes, graph.num_edges) == (19717, 44335)
    # A citation is as old as the paper that cites.
    node_time = np.load(years / "node_time.npy")
    assert np.array_equal(graph.edges["time"], node_time[graph.senders])
    assert graph.nodes["train"].sum() == 60
    with pytest.raises(DataError, match=r"edge_time\.npy is missing"):
        pubmed_temporal(papers, tmp_path)
    for name in ("edge_time", "edge_directed"):
        np.save(tmp_path / f"{name}.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"edge_time has shape \[3\].*88648 directed edges"):
        pubmed_temporal(papers, tmp_path)
    with pytest.raises(DataError, match=r"'pubmed-temporal' reads the folder with edge_time\.npy"):
        load("pubmed-temporal", data_dir=tmp_path, progress=False)


def test_an_endless_line_is_refused_before_it_fills_the_memory(tmp_path):
    path = tmp_path / "bomb.txt.gz"
    path.write_bytes(gzip.compress(b"1 a\n" + b"2" * 2**25, 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"bomb\.txt\.gz, line 2: longer than 1,048,576"):
            read_node_labels(path, np.array([1, 2]))
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
