import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from graph_strategies import assert_same_array, assert_same_graph, data_sets, quick, sorted_edges
from hypothesis import given
from hypothesis import strategies as st

import weft.graphs.store
from weft.errors import DataError
from weft.graphs import (
    Column,
    Graph,
    GraphTable,
    assemble,
    open_table,
    table_from_graphs,
    write_table,
)
from weft.layout import band_statistics, block_fill, reorder
from weft.walks import uniform_walks


@pytest.fixture
def chunks_of_three(monkeypatch):
    monkeypatch.setattr(weft.graphs.store, "_CHUNK_GRAPHS", 3)


@quick
@given(data_sets(max_size=10))
def test_random_graphs_in_the_same_graphs_out(chunks_of_three, data):
    schema, graphs = data
    with tempfile.TemporaryDirectory() as folder:
        write_table(Path(folder) / "t", iter(graphs), schema, metadata={"source": "tést"})
        table = open_table(Path(folder) / "t")
        assert table.schema == schema
        assert table.metadata == {"source": "tést"}
        assert len(table) == len(graphs)
        for found, graph in zip(table, graphs, strict=True):
            assert_same_graph(found, sorted_edges(graph))


@quick
@given(data_sets(max_size=10))
def test_the_files_hold_what_one_table_in_memory_holds(chunks_of_three, data):
    schema, graphs = data
    expected = table_from_graphs(graphs, schema)
    with tempfile.TemporaryDirectory() as folder:
        table = write_table(Path(folder) / "t", graphs, schema)
        assert table.columns.keys() == expected.columns.keys()
        for name, values in expected.columns.items():
            assert_same_array(table.columns[name], values, name)
        assert_same_array(table.node_offsets, expected.node_offsets)
        assert_same_array(table.edge_offsets, expected.edge_offsets)
        for name, offsets in expected.ragged_offsets.items():
            assert_same_array(table.ragged_offsets[name], offsets, name)


@quick
@given(data_sets(max_size=9), st.data())
def test_tables_and_graphs_may_be_mixed_and_keep_their_order(chunks_of_three, data, pick):
    schema, graphs = data
    items, rest = [], list(graphs)
    while rest:
        count = pick.draw(st.integers(1, len(rest)))
        part, rest = rest[:count], rest[count:]
        items += [table_from_graphs(part, schema)] if pick.draw(st.booleans()) else part
    with tempfile.TemporaryDirectory() as folder:
        table = write_table(Path(folder) / "t", items, schema)
        for found, graph in zip(table, graphs, strict=True):
            assert_same_graph(found, sorted_edges(graph))


def molecule(i):
    n = i % 4 + 1
    return Graph(
        num_nodes=n,
        senders=np.arange(n),
        receivers=np.arange(n)[::-1].copy(),
        nodes={"pos": np.full((n, 3), i, np.float32)},
        edges={"d": np.full(n, i, np.float64)},
        graph={"y": np.float64(i)},
        ragged={"name": np.frombuffer(b"C" * i, np.uint8)},
    )


@pytest.fixture
def table_path(tmp_path):
    write_table(tmp_path / "molecules", map(molecule, range(8)), metadata={"source": "here"})
    return tmp_path / "molecules"


def test_columns_are_mapped_not_read_and_cannot_be_changed(table_path):
    table = open_table(table_path)
    assert isinstance(table.columns["pos"].base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        table.columns["pos"][0] = 1


def test_an_empty_table_keeps_its_columns(tmp_path):
    schema = {
        "x": Column(level="node", dtype="float32", shape=(3,), unit="Å", doc="where"),
        "s": Column(level="ragged", dtype="uint8", missing=True),
    }
    write_table(tmp_path / "empty", [], schema)
    table = open_table(tmp_path / "empty")
    assert len(table) == 0
    assert table.schema == schema
    assert table.columns["x"].shape == (0, 3)


def test_no_graphs_and_no_schema_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no graphs to write and no schema"):
        write_table(tmp_path / "t", [])
    assert list(tmp_path.iterdir()) == []


def test_an_empty_schema_is_a_schema(tmp_path):
    table = write_table(tmp_path / "t", [Graph(num_nodes=2), Graph(num_nodes=1)], {})
    assert table.num_nodes.tolist() == [2, 1]
    with pytest.raises(DataError, match="graph 0: node column 'pos' is not in the table's schema"):
        write_table(tmp_path / "u", [molecule(0)], {})


# Damage


def edit(path, change):
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(bytes(content))


def rewrite_manifest(path, change):
    """Change the manifest and give it a checksum that is right again."""
    whole = json.loads((path / "table.json").read_text())
    manifest = {key: whole[key] for key in ("columns", "arrays", "metadata")}
    change(manifest)
    crc = zlib.crc32(json.dumps(manifest).encode())
    (path / "table.json").write_text(json.dumps({**whole, **manifest, "crc32": crc}))


ARRAYS = [
    *("pos", "d", "y", "name", "senders", "receivers", "out_order", "in_start", "out_start"),
    *("node_offsets", "edge_offsets", "name_offsets"),
]


def test_the_arrays_of_these_tests_are_all_there_are(table_path):
    assert {file.stem for file in table_path.glob("*.npy")} == set(ARRAYS)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_cut_file_is_named(table_path, name):
    file = table_path / f"{name}.npy"
    edit(file, lambda content: content.pop())
    with pytest.raises(DataError, match=rf"{name}\.npy has \d+ bytes, \d+ expected"):
        open_table(table_path)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_missing_file_is_named(table_path, name):
    (table_path / f"{name}.npy").unlink()
    with pytest.raises(DataError, match=rf"{name}\.npy is missing"):
        open_table(table_path)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_flipped_byte_of_data_is_found(table_path, name):
    def flip(content):
        content[-1] ^= 1

    edit(table_path / f"{name}.npy", flip)
    with pytest.raises(DataError, match=rf"{name}\.npy is damaged \(its checksum is wrong\)"):
        open_table(table_path)


@quick
@given(st.integers(0, 127), st.integers(0, 7))
def test_a_flipped_bit_in_a_header_never_changes_values(table_path, position, bit):
    expected = open_table(table_path).columns["pos"]

    def flip(content):
        content[position] ^= 1 << bit

    with tempfile.TemporaryDirectory() as folder:
        damaged = Path(folder) / "t"
        shutil.copytree(table_path, damaged)
        edit(damaged / "pos.npy", flip)
        try:
            found = open_table(damaged).columns["pos"]
        except DataError as error:
            message = str(error)
        else:
            # Some bits mean nothing, such as which white space pads the header.
            assert_same_array(found, expected)
            return
    assert str(damaged / "pos.npy") in message


def test_the_other_byte_order_is_not_read_as_ours(table_path):
    def swap(content):
        content[content.index(b"<f4")] = ord(">")

    edit(table_path / "pos.npy", swap)
    with pytest.raises(DataError, match=r"pos\.npy holds >f4.*float32.*expected"):
        open_table(table_path, check=False)


def test_a_large_table_is_checked_to_the_last_byte_only_on_request(table_path, monkeypatch):
    def flip(content):
        content[-1] ^= 1

    edit(table_path / "pos.npy", flip)
    monkeypatch.setattr(weft.graphs.store, "CHECK_BYTES", 0)
    assert len(open_table(table_path)) == 8
    with pytest.raises(DataError, match=r"pos\.npy is damaged"):
        open_table(table_path, check=True)


def test_another_format_or_version_is_named(table_path):
    manifest = table_path / "table.json"
    whole = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**whole, "version": 99}))
    with pytest.raises(DataError, match=r"table\.json has format version 99; this weft reads"):
        open_table(table_path)
    manifest.write_text(json.dumps({**whole, "format": "a parquet"}))
    with pytest.raises(DataError, match=r"table\.json says format 'a parquet'"):
        open_table(table_path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.99])
def test_a_half_written_manifest_is_named(table_path, share):
    manifest = table_path / "table.json"
    text = manifest.read_text()
    manifest.write_text(text[: int(len(text) * share)])
    with pytest.raises(DataError, match=r"table\.json is damaged \("):
        open_table(table_path)


@pytest.mark.parametrize("text", ["[]", "{}", "null", '"weft graph table"', "\x00\x00"])
def test_a_manifest_that_is_something_else_is_named(table_path, text):
    (table_path / "table.json").write_text(text)
    with pytest.raises(DataError, match=r"table\.json is damaged \("):
        open_table(table_path)


def test_a_manifest_that_is_not_text_is_named(table_path):
    (table_path / "table.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"table\.json is damaged \("):
        open_table(table_path)


@pytest.mark.parametrize(("old", "new"), [('"here"', '"there"'), ("float32", "float64")])
def test_an_edited_manifest_is_found(table_path, old, new):
    manifest = table_path / "table.json"
    manifest.write_text(manifest.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=r"table\.json is damaged \(its checksum is wrong\)"):
        open_table(table_path)


def test_a_manifest_cannot_lead_out_of_its_folder(table_path):
    np.save(table_path.parent / "secret.npy", np.zeros((8, 3), np.float32))

    def lead_out(manifest):
        for part in ("columns", "arrays"):
            manifest[part]["../secret"] = manifest[part].pop("pos")

    rewrite_manifest(table_path, lead_out)
    with pytest.raises(DataError, match=r"table\.json is damaged \(column name '\.\./secret'"):
        open_table(table_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["columns"]["pos"].pop("shape"),
        lambda manifest: manifest["columns"]["pos"].update(colour="red"),
        lambda manifest: manifest["columns"]["pos"].update(level="atom"),
        lambda manifest: manifest.update(columns=None),
        lambda manifest: manifest.update(arrays=None),
        lambda manifest: manifest["arrays"]["pos"].pop("bytes"),
        lambda manifest: manifest["arrays"].update(pos=[]),
        lambda manifest: manifest["arrays"]["pos"].update(dtype="nonsense"),
        lambda manifest: manifest["columns"]["pos"].update(dtype="float64"),
        lambda manifest: manifest["columns"]["pos"].update(shape=[4]),
        lambda manifest: manifest["arrays"]["pos"].update(shape=[]),
        lambda manifest: manifest["arrays"]["pos"].update(shape=[-20, 3]),
        lambda manifest: manifest["arrays"]["senders"].update(dtype="float32"),
        lambda manifest: manifest["arrays"]["node_offsets"].update(shape=[0]),
    ],
)
def test_a_manifest_of_another_shape_is_named(table_path, change):
    rewrite_manifest(table_path, change)
    with pytest.raises(DataError, match=r"table\.json"):
        open_table(table_path)


def test_an_array_the_manifest_does_not_list_is_named(table_path):
    rewrite_manifest(table_path, lambda manifest: manifest["arrays"].pop("pos"))
    with pytest.raises(DataError, match=r"table\.json is damaged \(it lists no array 'pos'\)"):
        open_table(table_path)


@pytest.mark.parametrize(
    ("name", "offsets"),
    [
        ("node_offsets", [0, 1, 3, 2, 10, 11, 13, 16, 20]),
        ("node_offsets", [1, 1, 3, 6, 10, 11, 13, 16, 20]),
        ("node_offsets", [0, 1, 3, 6, 10, 11, 13, 16, 19]),
        ("edge_offsets", [0, 1, 3, 6, 10, 11, 13, 16, 21]),
        ("edge_offsets", [0, 20]),
        ("name_offsets", [0, 0, 1, 3, 6, 10, 15, 21, 27]),
    ],
)
def test_offsets_that_do_not_fit_are_found_without_checksums(table_path, name, offsets):
    np.save(table_path / f"{name}.npy", np.array(offsets, np.int64))
    size = (table_path / f"{name}.npy").stat().st_size
    rewrite_manifest(
        table_path,
        lambda manifest: manifest["arrays"][name].update(bytes=size, shape=[len(offsets)]),
    )
    with pytest.raises(DataError, match=rf"{table_path}/\w+\.npy has \d+ rows, which do not match"):
        open_table(table_path, check=False)


def test_a_folder_or_file_that_is_no_table_is_named(tmp_path):
    (tmp_path / "file").write_text("no table")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(DataError, match=rf"{path} is not a graph table: it has no table\.json"):
            open_table(path)


# Failing writers


def test_an_existing_path_is_refused_and_left_alone(table_path):
    before = sorted(table_path.iterdir())
    with pytest.raises(DataError, match=rf"{table_path} exists already"):
        write_table(table_path, [molecule(0)])
    assert sorted(table_path.iterdir()) == before
    assert len(open_table(table_path)) == 8


@pytest.mark.parametrize("good", [0, 2, 3, 10])
@pytest.mark.parametrize("error", [OSError("cable pulled"), KeyboardInterrupt()])
def test_a_source_that_fails_leaves_nothing_behind(tmp_path, chunks_of_three, good, error):
    def failing():
        yield from map(molecule, range(good))
        raise error

    with pytest.raises(type(error)) as caught:
        write_table(tmp_path / "t", failing())
    assert caught.value is error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Graph(num_nodes=1), "graph 7: no node column 'pos'"),
        (Graph(num_nodes=1, senders=np.array([1]), receivers=np.array([0])), "graph 7: "),
    ],
)
def test_a_bad_graph_in_a_late_chunk_has_its_own_number(tmp_path, chunks_of_three, bad, message):
    with pytest.raises(DataError, match=message):
        write_table(tmp_path / "t", [*map(molecule, range(7)), bad])
    assert list(tmp_path.iterdir()) == []


def test_graphs_after_a_table_are_counted_on(tmp_path):
    table = table_from_graphs([molecule(i) for i in range(5)])
    with pytest.raises(DataError, match="graph 6: no node column 'pos'"):
        write_table(tmp_path / "t", [table, molecule(5), Graph(num_nodes=1)])


def test_tables_with_other_columns_are_refused(tmp_path):
    tables = [table_from_graphs([molecule(0)]), table_from_graphs([Graph(num_nodes=1)])]
    with pytest.raises(DataError, match="different columns"):
        write_table(tmp_path / "t", tables)
    assert list(tmp_path.iterdir()) == []


def test_metadata_that_is_not_json_is_refused_before_the_work(tmp_path):
    with pytest.raises(DataError, match=r"metadata must be JSON values: .*ndarray"):
        write_table(tmp_path / "t", [molecule(0)], metadata={"mean": np.zeros(2)})
    assert list(tmp_path.iterdir()) == []


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import numpy as np
import weft.graphs.store
from weft.graphs import Graph, write_table

weft.graphs.store._CHUNK_GRAPHS = 4
# A file that would outgrow the limit fails to be written, as on a full disk.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
graphs = (Graph(num_nodes=100, nodes={"x": np.zeros((100, 32))}) for _ in range(40))
try:
    write_table(Path(sys.argv[1]) / "t", graphs)
except OSError as error:
    sys.stdout.write(str(error))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no RLIMIT_FSIZE")
def test_a_full_disk_names_the_file_and_leaves_nothing_behind(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "File too large" in done.stdout
    assert "x.npy" in done.stdout
    assert list(tmp_path.iterdir()) == []


# Memory


def test_building_needs_a_few_chunks_of_memory_not_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(weft.graphs.store, "_CHUNK_BYTES", 8 * 2**20)

    def wide_graphs():
        for i in range(200):
            yield Graph(num_nodes=1000, nodes={"x": np.full((1000, 250), i, np.float32)})

    write_table(tmp_path / "first", [molecule(1)])  # compiles the loops, which takes memory too
    tracemalloc.start()
    try:
        table = write_table(tmp_path / "wide", wide_graphs())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert table.num_bytes > 200e6
    assert peak < 50e6
    assert table[150].nodes["x"][7, 7] == 150


def test_damage_in_a_table_too_large_to_check_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    graph = Graph(num_nodes=3, senders=np.array([0, 1, 2]), receivers=np.array([1, 2, 0]))
    write_table(path, [graph] * 4)
    for name in ("senders", "receivers", "out_order", "in_start", "out_start"):
        file = path / f"{name}.npy"
        whole = file.read_bytes()
        file.write_bytes(whole[:-4] + np.int32(2**30).tobytes())
        table = open_table(path, check=False)
        with pytest.raises(DataError, match=f"{name}.npy is damaged"):
            assemble(table, range(4))
        file.write_bytes(whole)


def uneven(i):
    """Graphs with nodes that have no edges, with parallel edges, and with nothing at all."""
    rng = np.random.default_rng(i)
    nodes = (0, 5, 1, 4, 3)[i % 5]
    edges = (0, 7, 0, 3, 6)[i % 5]
    senders, receivers = rng.integers(0, max(nodes - i % 2, 1), (2, edges))
    return Graph(
        num_nodes=nodes,
        senders=senders,
        receivers=receivers,
        nodes={"x": rng.normal(size=nodes).astype(np.float32)},
        ragged={"name": np.frombuffer(b"C" * i, np.uint8)},
    )


@pytest.mark.parametrize(
    "name",
    [
        "senders", "receivers", "out_order", "in_start", "out_start", "node_offsets",
        "edge_offsets", "name_offsets",
    ],
)  # fmt: skip
def test_one_changed_number_in_a_large_table_is_always_refused(tmp_path, monkeypatch, name):
    path = tmp_path / "t"
    write_table(path, map(uneven, range(9)))
    monkeypatch.setattr(weft.graphs.store, "CHECK_BYTES", 0)
    file = path / f"{name}.npy"
    right = np.load(file)
    size = np.dtype(right.dtype).itemsize
    whole = file.read_bytes()
    start = len(whole) - right.nbytes
    accepted, unnamed = [], []
    for place, value in enumerate(right.tolist()):
        for change in (value - 1, value + 1, 0, 2, -1, 10**9):
            if change == value:
                continue
            damaged = bytearray(whole)
            damaged[start + place * size : start + (place + 1) * size] = change.to_bytes(
                size, sys.byteorder, signed=True
            )
            file.write_bytes(damaged)
            try:
                table = open_table(path)
                assemble(table, range(len(table)))
                accepted.append((place, value, change))
            except DataError as error:
                if str(file) not in str(error):
                    unnamed.append((place, value, change, str(error)))
    file.write_bytes(whole)
    assert (accepted, unnamed) == ([], [])
    table = open_table(path)
    assert not table.checked
    assert_same_array(table.columns["x"], assemble(table, range(9)).nodes["x"].numpy())


def test_a_large_table_is_checked_wherever_its_edges_are_read(tmp_path, monkeypatch):
    path = tmp_path / "t"
    write_table(path, map(uneven, range(9)))
    monkeypatch.setattr(weft.graphs.store, "CHECK_BYTES", 0)
    starts = np.load(path / "out_start.npy", mmap_mode="r+")
    starts[1] += 1
    starts.flush()
    table = open_table(path)
    for read in (
        lambda: table.select([1]),
        lambda: table[1],
        lambda: list(table),
        lambda: write_table(tmp_path / "copy", [table]),
        lambda: band_statistics(table),
        lambda: block_fill(table, 4),
        lambda: reorder(table),
        lambda: uniform_walks(table),
    ):
        with pytest.raises(DataError, match=r"out_start\.npy is damaged"):
            read()
    # What does not read the damaged graph is not held up by it.
    assert len(assemble(table, [3, 4]).senders) == 9


def test_a_table_that_is_put_together_by_hand_is_checked_too():
    table = table_from_graphs([uneven(1), uneven(4)])
    fields = {f.name: getattr(table, f.name) for f in dataclasses.fields(table) if f.init}
    assert torch.equal(
        assemble(GraphTable(**fields), [0, 1]).senders, assemble(table, [0, 1]).senders
    )
    for name, value in (("senders", 10**6), ("out_order", -1), ("in_start", 3)):
        wrong = table.columns[name].copy()
        wrong[2] = value
        columns = {**table.columns, name: wrong}
        with pytest.raises(DataError, match=f"{name}"):
            assemble(GraphTable(**fields | {"columns": columns}), [0, 1])
    for name in ("node_offsets", "edge_offsets"):
        wrong = getattr(table, name).copy()
        wrong[-1] = 10**6
        with pytest.raises(DataError, match="do not match the offsets"):
            assemble(GraphTable(**fields | {name: wrong}), [0, 1])
