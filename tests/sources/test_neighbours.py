"""Neighbour graphs against a plain search over all pairs and images."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.sources.neighbours
from weft.errors import DataError
from weft.graphs import Array, Column, GraphTable, open_table, table_from_columns
from weft.sources import Cutoff, FullyConnected, Nearest, with_neighbours
from weft.sources.atoms import ATOMS_SCHEMA

Structure = tuple[Array, Array, Array]
"""pos [n, 3], cell [3, 3], pbc [3]."""


def open_table_of(*positions: Any) -> GraphTable:
    """Molecules at these positions, each a list of [x, y, z]."""
    parts = [np.asarray(p, dtype=np.float32).reshape(-1, 3) for p in positions]
    pos = np.concatenate([np.empty((0, 3), np.float32), *parts])
    return table_from_columns(
        {name: ATOMS_SCHEMA[name] for name in ("z", "pos")},
        num_nodes=np.array([len(p) for p in parts], dtype=np.int64),
        columns={"z": np.ones(len(pos), np.uint8), "pos": pos},
        metadata={"source": "test"},
    )


def table_of(*structures: Structure) -> GraphTable:
    pos = np.concatenate([s[0] for s in structures]).astype(np.float32)
    return table_from_columns(
        ATOMS_SCHEMA,
        num_nodes=np.array([len(s[0]) for s in structures], dtype=np.int64),
        columns={
            "z": np.ones(len(pos), np.uint8),
            "pos": pos,
            "cell": np.stack([s[1] for s in structures]).astype(np.float32),
            "pbc": np.stack([s[2] for s in structures]).astype(bool),
        },
    )


def random_structure(seed: int, size: int, pbc: tuple[bool, bool, bool]) -> Structure:
    """Atoms at least 0.5 Å apart, images among them, in a skewed cell; some outside of it."""
    rng = np.random.default_rng(seed)
    while True:
        cell = np.diag(rng.uniform(1.5, 5, 3)) + rng.normal(size=(3, 3)) * 0.4
        pos = (rng.uniform(-1, 2, (size, 3)) @ cell).astype(np.float32)
        flags = np.array(pbc)
        if not flags.all() and seed % 2:
            cell[~flags] = 0  # as files without a cell there have it
        found = every_pair((pos, cell.astype(np.float32), flags), 0.5)
        if not found:
            return pos, cell.astype(np.float32), flags


def every_pair(structure: Structure, radius: float) -> dict[tuple[int, int, Any], float]:
    """{(receiver, sender, image): distance} by trying all images."""
    pos, cell, pbc = (np.asarray(a, dtype=np.float64) for a in structure)
    flags = pbc.astype(bool)
    reach = [range(1)] * 3
    if flags.any():
        # Rows of the dual basis: 1 / distance between the planes that repeat.
        planes = np.zeros(3)
        planes[flags] = np.linalg.norm(np.linalg.pinv(cell[flags]), axis=0)
        most = np.ceil((radius + np.linalg.norm(np.ptp(pos, axis=0))) * planes).astype(int)
        reach = [range(-m, m + 1) for m in most.tolist()]
    images = np.array(np.meshgrid(*reach, indexing="ij")).reshape(3, -1).T
    steps = images @ cell
    found = {}
    for receiver in range(len(pos)):
        for sender in range(len(pos)):
            distances = np.linalg.norm(pos[sender] + steps - pos[receiver], axis=1)
            for i in np.flatnonzero(distances < radius):
                if sender != receiver or images[i].any():
                    found[receiver, sender, tuple(images[i].tolist())] = float(distances[i])
    return found


def edges_of(table: GraphTable, graph: int) -> set[Any]:
    """{(receiver, sender, shift rounded)}."""
    g = table[graph]
    shift = np.round(g.edges["shift"], 3) + 0.0
    ends = zip(g.receivers.tolist(), g.senders.tolist(), map(tuple, shift.tolist()), strict=True)
    edges = list(ends)
    assert len(set(edges)) == len(edges)
    return set(edges)


def expected_edges(pairs: Any, structure: Structure) -> set[Any]:
    cell = structure[1].astype(np.float64)
    return {
        (r, s, tuple((np.round((np.array(i) @ cell).astype(np.float32), 3) + 0.0).tolist()))
        for r, s, i in pairs
    }


def check_reverses(table: GraphTable) -> None:
    """Every edge's reverse stands where `out_order` says, with the negative shift to the bit."""
    for i in range(len(table)):
        edges = slice(*table.edge_offsets[i : i + 2].tolist())
        senders, receivers = table.columns["senders"][edges], table.columns["receivers"][edges]
        reverse = table.columns["out_order"][edges].copy()
        own = senders == receivers
        for k in np.flatnonzero(own):
            place = k - int(np.flatnonzero(own & (receivers == receivers[k]))[0])
            reverse[k] = k + 1 if place % 2 == 0 else k - 1
        np.testing.assert_array_equal(senders[reverse], receivers)
        np.testing.assert_array_equal(receivers[reverse], senders)
        assert (reverse != np.arange(len(reverse))).all()
        np.testing.assert_array_equal(reverse[reverse], np.arange(len(reverse)))
        if "shift" in table.schema:
            shift = table.columns["shift"][edges]
            np.testing.assert_array_equal(shift[reverse], -shift)


PERIODICITY = st.tuples(st.booleans(), st.booleans(), st.booleans())


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    pbc=st.lists(PERIODICITY, min_size=3, max_size=3),
    radius=st.floats(0.5, 6),
)
def test_cutoff_finds_every_pair_and_its_reverse(
    seed: int, sizes: list[int], pbc: list[tuple[bool, bool, bool]], radius: float
) -> None:
    structures = [random_structure(seed + i, n, pbc[i]) for i, n in enumerate(sizes)]
    table = with_neighbours(table_of(*structures), Cutoff(radius=radius), progress=False)
    assert table.metadata["symmetric"] is True
    assert ("shift" in table.schema) == any(s[2].any() for s in structures)
    check_reverses(table)
    for i, structure in enumerate(structures):
        pairs = every_pair(structure, radius)
        assert table.num_edges[i] == len(pairs)
        if "shift" in table.schema:
            assert edges_of(table, i) == expected_edges(pairs, structure)
            g = table[i]
            ends = g.nodes["pos"][g.senders] + g.edges["shift"]
            distance = np.linalg.norm(ends - g.nodes["pos"][g.receivers], axis=1)
            assert (distance < radius + 1e-4).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**20), size=st.integers(1, 6), pbc=PERIODICITY, k=st.integers(1, 12))
def test_nearest_are_the_nearest(
    seed: int, size: int, pbc: tuple[bool, bool, bool], k: int
) -> None:
    structure = random_structure(seed, size, pbc)
    # Another structure that repeats gives the table its shifts.
    other = random_structure(seed, 1, (True, True, True))
    table = with_neighbours(table_of(structure, other), Nearest(k=k), progress=False)
    assert table.metadata["symmetric"] is False
    expected = set()
    radius = {0: 1e3, 1: 45.0, 2: 14.0, 3: 10.0}[sum(pbc)]
    pairs = every_pair(structure, radius)
    for receiver in range(size):
        mine = [pair for pair in pairs if pair[0] == receiver]
        mine.sort(key=lambda pair: (round(pairs[pair] / 1e-5), pair[1], pair[2]))
        assert len(mine) >= (k if any(pbc) else size - 1)
        expected |= set(mine[:k])
    assert edges_of(table, 0) == expected_edges(expected, structure)
    assert table.num_edges[1] == k


def test_ties_go_to_the_lower_sender_and_image() -> None:
    square = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]
    table = with_neighbours(open_table_of(square), Nearest(k=1), progress=False)
    assert table[0].senders.tolist() == [1, 0, 1, 0]
    chain = (np.zeros((1, 3)), np.diag([2.0, 0, 0]), np.array([True, False, False]))
    table = with_neighbours(table_of(chain), Nearest(k=3), progress=False)
    assert sorted(table[0].edges["shift"][:, 0].tolist()) == [-4.0, -2.0, 2.0]


def test_a_needle_of_a_cell() -> None:
    # So long and thin that vesin, asked directly, would end the process.
    pos = np.array([[0, 0, 0], [0, 0, 9e5], [0, 0, 1.0]])
    for pbc in ([True, True, False], [True, True, True]):
        cell = np.diag([3.0, 3.0, 9.5e5])
        table = with_neighbours(
            table_of((pos, cell, np.array(pbc))), Cutoff(radius=5.0), progress=False
        )
        # Eight of each atom's own images, and nine of the one 1 Å away.
        assert np.bincount(table.columns["receivers"]).tolist() == [17, 8, 17]


def test_simple_cubic_has_six_neighbours() -> None:
    cubic = (np.zeros((1, 3)), np.eye(3) * 3, np.ones(3, bool))
    six = with_neighbours(table_of(cubic), Cutoff(radius=3.1), progress=False)
    assert six.total_edges == 6
    distance = np.linalg.norm(six.column("shift"), axis=1)
    np.testing.assert_array_equal(distance, np.full(6, 3, np.float32))
    np.testing.assert_array_equal(six.column("shift")[::2], -six.column("shift")[1::2])
    assert six.schema["shift"].unit == "Å"


def test_fully_connected() -> None:
    rng = np.random.default_rng(0)
    table = open_table_of(*(rng.normal(size=(n, 3)) * 5 for n in (1, 2, 5, 0, 3)))
    full = with_neighbours(table, FullyConnected(), progress=False)
    assert full.num_edges.tolist() == [0, 2, 20, 0, 6]
    assert "shift" not in full.schema
    assert full.metadata == {
        "source": "test",
        "neighbours": {"kind": "FullyConnected"},
        "symmetric": True,
    }
    check_reverses(full)
    g = full[2]
    assert g.receivers.tolist() == [r for r in range(5) for _ in range(4)]
    assert g.senders.tolist() == [s for r in range(5) for s in range(5) if s != r]
    for name in table.schema:
        np.testing.assert_array_equal(full.column(name), table.column(name))


def test_few_atoms_have_all_the_others() -> None:
    table = open_table_of([[0, 0, 0]], [[0, 0, 0], [1, 0, 0], [0, 3, 0]])
    near = with_neighbours(table, Nearest(k=5), progress=False)
    assert near.num_edges.tolist() == [0, 6]
    alone = with_neighbours(open_table_of([[0, 0, 0]]), Cutoff(radius=5), progress=False)
    assert alone.num_edges.tolist() == [0]
    assert alone.columns["in_start"].tolist() == [0]


@pytest.mark.parametrize("neighbours", [FullyConnected(), Cutoff(radius=3.0), Nearest(k=2)])
def test_an_empty_table(neighbours: Any, tmp_path: Path) -> None:
    for path in (None, tmp_path / "t"):
        table = with_neighbours(open_table_of(), neighbours, path=path, progress=False)
        assert len(table) == 0
        assert table.total_edges == 0


@pytest.mark.parametrize("neighbours", [Cutoff(radius=4.0), Nearest(k=7)])
def test_chunks_and_folders_change_nothing(
    neighbours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [(True, True, True), (False, False, False), (True, False, True)]
    table = table_of(*(random_structure(i, 1 + i % 5, kinds[i % 3]) for i in range(12)))
    whole = with_neighbours(table, neighbours, progress=False)
    monkeypatch.setattr(weft.sources.neighbours, "_CHUNK_EDGES", 50)
    chunks = with_neighbours(table, neighbours, progress=False)
    stored = with_neighbours(table, neighbours, path=tmp_path / "t", progress=False)
    for other in (chunks, stored):
        assert other.columns.keys() == whole.columns.keys()
        for name, values in whole.columns.items():
            np.testing.assert_array_equal(other.columns[name], values)
            assert other.columns[name].dtype == values.dtype
        np.testing.assert_array_equal(other.edge_offsets, whole.edge_offsets)
        assert other.metadata["neighbours"] == whole.metadata["neighbours"]


def test_a_folder_is_made_once_and_only_for_the_same_question(tmp_path: Path) -> None:
    table = open_table_of([[0, 0, 0], [1, 0, 0], [0, 3, 0]])
    path = tmp_path / "neighbours"
    made = with_neighbours(table, Cutoff(radius=2), path=path, progress=False)
    assert made.metadata["neighbours"] == {"kind": "Cutoff", "radius": 2}
    before = (path / "table.json").stat().st_mtime_ns
    again = with_neighbours(table, Cutoff(radius=2.0), path=path, progress=False)
    assert again.path == path
    assert (path / "table.json").stat().st_mtime_ns == before
    with pytest.raises(DataError, match=r"not with \{'kind': 'Cutoff', 'radius': 3.0\}; remove it"):
        with_neighbours(table, Cutoff(radius=3.0), path=path, progress=False)
    other = open_table_of([[0, 0, 0], [1, 0, 0], [0, 3, 0.5]])
    with pytest.raises(DataError, match="was made from another table"):
        with_neighbours(other, Cutoff(radius=2.0), path=path, progress=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["neighbours"]
    # A table on disk is known by its manifest.
    onto = with_neighbours(
        open_table(with_neighbours(open_table_of(), FullyConnected(), path=tmp_path / "e").path),
        Cutoff(radius=1.0),
        path=tmp_path / "f",
        progress=False,
    )
    assert len(onto) == 0


CUBE = (np.zeros((1, 3)), np.eye(3) * 3, np.ones(3, bool))


def changed(pos: Any = None, cell: Any = None, pbc: Any = None) -> GraphTable:
    """A good structure, then one with these changes."""
    given = [CUBE[i] if x is None else np.asarray(x) for i, x in enumerate((pos, cell, pbc))]
    return table_of(CUBE, (given[0], given[1], given[2]))


@pytest.mark.parametrize("neighbours", [Cutoff(radius=4.0), Nearest(k=2)])
@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (changed(pos=[[0, 0, 0], [1, 1, 1], [1, 1, 1.0001]]), "graph 1: atoms 1 and 2 are in one"),
        (changed(pos=[[0, 0, 0], [3, 3, 0.0005]]), "graph 1: atoms 0 and 1 are in one place"),
        (changed(cell=np.diag([3, 3, 0])), "graph 1: it repeats along 3 cell vectors, but its"),
        (changed(cell=[[3, 0, 0], [3, 0, 0], [0, 0, 3]]), "has no volume there; correct cell"),
        (changed(cell=np.diag([3, 3, 1e-4])), "graph 1: atom 0 and its own periodic image are in"),
    ],
)
def test_bad_structures(table: GraphTable, problem: str, neighbours: Any) -> None:
    with pytest.raises(DataError, match=problem):
        with_neighbours(table, neighbours, progress=False)


@pytest.mark.parametrize("neighbours", [FullyConnected(), Cutoff(radius=4.0), Nearest(k=1)])
def test_two_atoms_in_one_place_of_a_molecule(neighbours: Any) -> None:
    table = open_table_of([[0, 0, 0]], [[0, 0, 0], [5, 0, 0], [0, 1, 0], [5, 0, 1e-4]])
    with pytest.raises(DataError, match=r"graph 1: atoms 1 and 3 are in one place \(less than"):
        with_neighbours(table, neighbours, progress=False)


def test_positions_that_are_not_finite() -> None:
    pos = np.array([[0, 0, 0], [1, 0, 0], [2, np.nan, 0]], np.float32)
    column = Column(level="node", dtype="float32", shape=(3,), missing=True)
    table = table_from_columns({"pos": column}, num_nodes=np.array([1, 2]), columns={"pos": pos})
    with pytest.raises(DataError, match=r"graph 1: atom 1 is at \[2.0, nan, 0.0\], which is not"):
        with_neighbours(table, FullyConnected(), progress=False)


def test_too_many_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weft.sources.neighbours, "_MOST_EDGES", 10_000_000)
    with pytest.raises(DataError, match=r"graph 0: Cutoff\(radius=500.0\) .* about 19,392,547 e"):
        with_neighbours(table_of(CUBE), Cutoff(radius=500.0), progress=False)
    with pytest.raises(DataError, match="a graph has at most 10,000,000; choose fewer"):
        with_neighbours(table_of(CUBE), Nearest(k=10**8), progress=False)
    monkeypatch.setattr(weft.sources.neighbours, "_MOST_EDGES", 10)
    table = open_table_of([[0, 0, 0], [1, 0, 0]], [[i, 0, 0] for i in range(4)])
    with pytest.raises(DataError, match=r"graph 1: FullyConnected\(\) .* 4 atoms about 12 edges"):
        with_neighbours(table, FullyConnected(), progress=False)
    assert with_neighbours(table, Cutoff(radius=1.5), progress=False).num_edges.tolist() == [2, 6]
    monkeypatch.setattr(weft.sources.neighbours, "_MOST_EDGES_IN_MEMORY", 7)
    with pytest.raises(DataError, match="8 edges, a table in memory at most 7; pass a path"):
        with_neighbours(table, Cutoff(radius=1.5), progress=False)


@pytest.mark.parametrize("radius", [0.0, -1.0, float("nan"), float("inf")])
def test_a_cutoff_that_is_none(radius: float) -> None:
    with pytest.raises(ValueError, match=f"radius is {radius} Å; a cutoff is above 0"):
        Cutoff(radius=radius)


def test_no_neighbours() -> None:
    with pytest.raises(ValueError, match="k is 0; an atom needs at least 1"):
        Nearest(k=0)


def test_tables_that_are_no_structures() -> None:
    with pytest.raises(DataError, match=r"graph 0 is periodic: .*take Cutoff"):
        with_neighbours(table_of(CUBE), FullyConnected(), progress=False)
    full = with_neighbours(open_table_of(np.eye(3)), FullyConnected(), progress=False)
    with pytest.raises(DataError, match="the table has 6 edges already"):
        with_neighbours(full, FullyConnected(), progress=False)

    def of(**columns: Array) -> GraphTable:
        levels: dict[str, Any] = {"pos": "node", "cell": "graph", "pbc": "graph", "z": "node"}
        schema = {
            name: Column(level=levels[name], dtype=values.dtype.name, shape=values.shape[1:])
            for name, values in columns.items()
        }
        return table_from_columns(schema, num_nodes=np.array([1]), columns=columns)

    pos, pbc = np.zeros((1, 3)), np.ones((1, 3), bool)
    for table, problem in [
        (of(z=np.ones(1)), "no column 'pos' in the table; it has z"),
        (of(pos=np.zeros((1, 2))), r"rows of shape \[2\]; neighbours need a node column"),
        (of(pos=pos, cell=np.ones((1, 3, 3))), "has a column 'cell' but no 'pbc'"),
        (of(pos=pos, pbc=pbc), "no column 'cell' in the table"),
        (of(pos=pos, pbc=np.ones(1, bool)), "column 'pbc' is a graph column with rows of shape"),
    ]:
        with pytest.raises(DataError, match=problem):
            with_neighbours(table, Cutoff(radius=2.0), progress=False)


def test_only_periodic_structures_need_vesin(monkeypatch: pytest.MonkeyPatch) -> None:
    really = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "vesin":
            raise ImportError(name)
        return really(name, *args, **options)

    monkeypatch.delitem(sys.modules, "vesin", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    water = open_table_of([[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    assert with_neighbours(water, Cutoff(radius=1.1), progress=False).total_edges == 4
    with pytest.raises(DataError, match=r"pip install 'weft\[chem\]'"):
        with_neighbours(table_of(CUBE), Cutoff(radius=1.1), progress=False)


def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        with_neighbours(
            open_table_of(np.eye(3)),
            FullyConnected(),
            path=tmp_path / "file" / "t",
            progress=False,
        )
