import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import DataError
from weft.graphs import table_from_graphs
from weft.sources import edge_lists
from weft.sources.edge_lists import EdgeList, both_directions, edge_list_graph, read_edge_list

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def shared(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not here")
    return SHARED / name


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


@pytest.fixture(autouse=True)
def small_blocks(request, monkeypatch):
    """Blocks of 64 bytes, so that every test also tests what happens at their seams."""
    if "whole_blocks" not in request.fixturenames:
        monkeypatch.setattr(edge_lists, "_BLOCK_BYTES", 64)


@pytest.fixture
def whole_blocks():
    """Keeps the real block size."""


def edges_of(edges: EdgeList) -> list[tuple[object, object]]:
    ids = edges.ids.tolist()
    return [(ids[a], ids[b]) for a, b in zip(edges.senders, edges.receivers, strict=True)]


@pytest.mark.parametrize(
    ("file", "nodes", "edges"),
    [
        ("CollegeMsg", 1899, 59835),
        ("email-Eu-core-temporal", 986, 332334),
        ("email-Eu-core-temporal-Dept3", 89, 12216),
        ("sx-mathoverflow", 24818, 506550),
        ("sx-mathoverflow-a2q", 21688, 107581),
    ],
)
@pytest.mark.usefixtures("whole_blocks")
def test_snap_counts(file, nodes, edges):
    found = read_edge_list(shared("snap_temporal") / f"{file}.txt.gz")
    assert (found.num_nodes, found.num_edges, found.skipped) == (nodes, edges, 0)
    assert found.senders.dtype == np.int32
    assert found.time is not None
    assert found.time.min() >= 0
    edge_list_graph(found).validate()


@pytest.mark.usefixtures("whole_blocks")
def test_college_messages_first_and_last_lines():
    found = read_edge_list(shared("snap_temporal") / "CollegeMsg.txt.gz")
    assert edges_of(found)[:3] == [(1, 2), (3, 4), (5, 2)]
    assert found.time is not None
    assert found.time[:3].tolist() == [1082040961, 1082155839, 1082414391]


@pytest.mark.usefixtures("whole_blocks")
def test_static_graph_with_header_and_carriage_returns():
    path = shared("static_large") / "soc-Epinions1.edgelist.gz"
    found = read_edge_list(path, columns=("src", "dst"))
    assert (found.num_nodes, found.num_edges) == (75879, 508837)
    assert found.time is None


@pytest.mark.usefixtures("whole_blocks")
def test_names_and_malformed_lines_of_biogrid():
    path = shared("static_large") / "biogrid_extracted_net.txt.gz"
    found = read_edge_list(path, columns=("src", "dst"), skip_malformed=True)
    assert (found.num_nodes, found.num_edges, found.skipped) == (68554, 1565345, 10)
    assert edges_of(found)[:2] == [("ETG84665", "ETG88"), ("ETG90", "ETG2339")]
    senders, _ = both_directions(found.senders, found.receivers, found.num_nodes)
    loops = np.unique(found.senders[found.senders == found.receivers])
    assert len(senders) // 2 + len(loops) == 1209381
    with pytest.raises(DataError, match=r"biogrid.*line 167776: 2 tokens.*more found.*MTBP @ LOVD"):
        read_edge_list(path, columns=("src", "dst"))


@pytest.mark.usefixtures("whole_blocks")
def test_times_of_seventeen_digits_are_read_to_the_last_bit():
    path = shared("tgc_patent") / "patent.txt.gz"
    found = read_edge_list(path)
    with gzip.open(path, "rt") as lines:
        expected = [float(line.split()[2]) for line in lines]
    assert (found.num_nodes, found.num_edges) == (12214, 41916)
    assert found.time is not None
    assert found.time.tolist() == expected


@pytest.mark.parametrize("separator", [" ", "\t", ",", " , ", "   \t"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_separators_comments_and_endings(tmp_path, separator, ending, packed):
    lines = ["# a comment, 1 2 3", "%another", "", "7 9 0", "9 -4 1.5", " # more", "7 7 2e2"]
    text = ending.join(line if "#" in line else separator.join(line.split(" ")) for line in lines)
    path = tmp_path / "edges.txt"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    found = read_edge_list(path)
    assert edges_of(found) == [(7, 9), (9, -4), (7, 7)]
    assert found.ids.tolist() == [-4, 7, 9]
    assert found.time is not None
    assert found.time.tolist() == [0, 1.5, 200]


def test_columns_in_any_order_and_byte_order_mark(tmp_path):
    path = write(tmp_path / "ratings.csv", "\ufeff6,2,-4,1289241911\n2,6,5e-1,1289241942")
    found = read_edge_list(path, columns=("src", "dst", "weight", "time"))
    assert edges_of(found) == [(6, 2), (2, 6)]
    assert found.weight is not None
    assert found.weight.tolist() == [-4, 0.5]
    graph = edge_list_graph(found)
    assert graph.edges["time"].tolist() == [1289241911, 1289241942]
    assert table_from_graphs([graph]).column("weight").tolist() == [-4, 0.5]


def test_names_in_unicode(tmp_path):
    path = write(tmp_path / "names.txt", "bob alice 1\nalice Ålesund 2\n7 bob 3\n")
    found = read_edge_list(path)
    assert found.ids.tolist() == ["7", "alice", "bob", "Ålesund"]
    assert edges_of(found) == [("bob", "alice"), ("alice", "Ålesund"), ("7", "bob")]


def test_numbers_taken_as_names(tmp_path):
    path = write(tmp_path / "zip_codes.txt", "00501 501\n")
    found = read_edge_list(path, columns=("src", "dst"), ids="text")
    assert found.ids.tolist() == ["00501", "501"]


@pytest.mark.parametrize("before", ["", "# a comment\n\n"])
def test_a_header_is_not_taken_for_an_edge(tmp_path, before):
    path = write(tmp_path / "edges.csv", before + "rabbit,fox\n1,2\n2,3\n")
    line = 1 + before.count("\n")
    with pytest.raises(DataError, match=rf"edges\.csv: line {line} looks like a header; put #"):
        read_edge_list(path, columns=("src", "dst"))
    found = read_edge_list(path, columns=("src", "dst"), ids="text")
    assert found.ids.tolist() == ["1", "2", "3", "fox", "rabbit"]
    path = write(tmp_path / "edges.csv", before + "#rabbit,fox\n1,2\n2,3\n")
    assert read_edge_list(path, columns=("src", "dst")).ids.tolist() == [1, 2, 3]


@pytest.mark.parametrize("before", ["", "# a comment\n\n"])
@pytest.mark.parametrize("columns", [("src", "dst"), ("src", "dst", "weight")])
def test_a_header_above_numbers_is_passed_over(tmp_path, before, columns):
    names = {"src": "Source", "dst": "Target", "weight": "Weight"}
    rows = ["1, 2, 0.5", "2, 3, 1e3"] if len(columns) > 2 else ["1,2", "2,3"]
    header = ",".join(names[name] for name in columns)
    path = write(tmp_path / "edges.csv", before + "\n".join([header, *rows, ""]))
    found = read_edge_list(path, columns=columns, ids="integer")
    assert found.ids.tolist() == [1, 2, 3]
    assert found.weight is None or found.weight.tolist() == [0.5, 1000]
    # Lines are still counted from the first.
    write(path, path.read_text() + "x,4,5\n")
    with pytest.raises(DataError, match=rf"line {4 + before.count(chr(10))}: "):
        read_edge_list(path, columns=columns, ids="integer")


def test_the_graph_keeps_what_the_nodes_are_called(tmp_path):
    graph = edge_list_graph(read_edge_list(write(tmp_path / "n.txt", "70 -9 1\n")))
    assert graph.nodes["id"].tolist() == [-9, 70]
    assert not graph.ragged
    named = read_edge_list(write(tmp_path / "n.txt", "bob Åse 1\nÅse 7 2\n"))
    (graph,) = table_from_graphs([edge_list_graph(named)])
    assert "id" not in graph.nodes
    assert bytes(graph.ragged["names"]).decode() == "7\nbob\nÅse\n"


def test_names_that_are_not_utf8(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("Åse Bo 1\n".encode("latin1"))
    with pytest.raises(DataError, match=r"latin\.txt.*xc5se.*not UTF-8"):
        read_edge_list(path)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "\n\n  \n", "#x\n" * 200])
def test_no_edges(tmp_path, text):
    found = read_edge_list(write(tmp_path / "none.txt", text))
    assert (found.num_nodes, found.num_edges) == (0, 0)
    assert edge_list_graph(found).edges["time"].shape == (0,)


def test_ids_spread_over_all_of_int64(tmp_path):
    top = 2**63 - 1
    path = write(tmp_path / "wide.txt", f"{top} -{top} 0\n0 {top} 1\n{top - 1} 5 2\n")
    found = read_edge_list(path)
    assert found.ids.tolist() == [-top, 0, 5, top - 1, top]
    assert edges_of(found) == [(top, -top), (0, top), (top - 1, 5)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("5 6", r"3 tokens \(src, dst, time\) expected, fewer found"),
        ("5", "fewer found"),
        ("5 6 7 8", "more found"),
        ("5 6 7,", "more found"),
        ("5,,7", "one is empty"),
        ("5,6,", "one is empty"),
        (",5,6", "one is empty"),
        ("alice 6 7", "not a whole number.*pass ids='text'"),
        ("5 6.0 7", "not a whole number"),
        ("5 - 7", "not a whole number"),
        ("9223372036854775808 6 7", "does not fit 64 bits"),
        ("99999999999999999999999 6 7", "does not fit 64 bits"),
        ("5 6 nan", "not a finite decimal number"),
        ("5 6 inf", "not a finite decimal number"),
        ("5 6 1e", "not a finite decimal number"),
        ("5 6 1e+", "not a finite decimal number"),
        ("5 6 .", "not a finite decimal number"),
        ("5 6 1.2.3", "not a finite decimal number"),
        ("5 6 0x1F", "not a finite decimal number"),
        ("5 6 1_000", "not a finite decimal number"),
        ("5 6 2004-04-15", "not a finite decimal number"),
        ("5 6 1e999", "beyond 1e308"),
        ("5 6 -7", "the time is negative"),
        ("5 6 -0.12345678901234567890123", "the time is negative"),
        ("5 6\x007 8", "not a whole number"),
    ],
)
def test_malformed_line_is_named_and_may_be_skipped(tmp_path, line, reason):
    text = "# header\n" + "1 2 3\n" * 20 + line + "\n" + "3 4 5\n" * 20
    path = write(tmp_path / "edges.txt", text)
    with pytest.raises(DataError, match=rf"edges\.txt, line 22: .*{reason}") as raised:
        read_edge_list(path)
    assert str(raised.value).endswith(repr(line))
    found = read_edge_list(path, skip_malformed=True)
    assert (found.num_edges, found.skipped) == (40, 1)
    assert found.ids.tolist() == [1, 2, 3, 4]
    assert found.time is not None
    assert found.time.tolist() == [3.0] * 20 + [5.0] * 20


@pytest.mark.usefixtures("whole_blocks")
def test_malformed_line_in_a_million(tmp_path):
    path = tmp_path / "million.txt"
    path.write_text("12 34 56\n" * 900_000 + "12 34 fifty\n" + "12 34 56\n" * 99_999)
    with pytest.raises(DataError, match=r"million\.txt, line 900001: .*'12 34 fifty'"):
        read_edge_list(path)


def test_memory_is_that_of_the_result_and_the_ids(tmp_path, monkeypatch):
    monkeypatch.setattr(edge_lists, "_BLOCK_BYTES", 2**16)
    path, lines = tmp_path / "edges.txt", 100_000
    # Wide lines: a file read whole would be four times the limit below.
    path.write_text("".join(f"{i % 999}{' ' * 200}{i % 7} {i}\n" for i in range(lines)))
    read_edge_list(write(tmp_path / "first.txt", "1 2 3\n"))
    tracemalloc.start()
    found = read_edge_list(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.num_edges == lines
    # Two ids and a time of 8 bytes for each line as it was read, then the result beside them.
    assert peak < lines * (24 + 16) + 2**20


def test_long_malformed_line_is_shown_in_part(tmp_path):
    path = write(tmp_path / "edges.txt", "1 2 " + "x" * 90 + "\n")
    with pytest.raises(DataError, match=r"line 1: .*'1 2 x{76}\.\.\.'$"):
        read_edge_list(path)


@pytest.mark.usefixtures("whole_blocks")
def test_file_without_line_ends_is_no_edge_list(tmp_path):
    with pytest.raises(DataError, match=r"blob\.bin has a line of more than 1048576 bytes"):
        read_edge_list(write(tmp_path / "blob.bin", "x" * (2**20 + 1)))


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt is missing"):
        read_edge_list(tmp_path / "none.txt")
    with pytest.raises(DataError, match="cannot be read"):
        read_edge_list(tmp_path)
    whole = gzip.compress(b"1 2 3\n" * 1000 + bytes(range(256)))
    for name, data in (("cut.gz", whole[:-20]), ("broken.gz", whole[:30] + b"\0\xff" * 40)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=f"{name} cannot be read"):
            read_edge_list(tmp_path / name, skip_malformed=True)


@pytest.mark.parametrize("columns", [("src",), ("src", "dst", "dst"), ("src", "dst", "colour")])
def test_wrong_columns_list_the_right_ones(columns):
    with pytest.raises(ValueError, match=r"columns is .*\['src', 'dst', 'time', 'weight'\]"):
        read_edge_list("any.txt", columns=columns)


def test_wrong_ids_list_the_right_ones():
    with pytest.raises(
        ValueError, match=r"ids is 'hex'; choose from \['auto', 'integer', 'text'\]"
    ):
        read_edge_list("any.txt", ids="hex")


def test_integer_ids_are_not_guessed_when_said(tmp_path):
    path = write(tmp_path / "edges.txt", "alice bob 1\n")
    with pytest.raises(DataError, match="line 1: a node id is not a whole number; if the line"):
        read_edge_list(path, ids="integer")


NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e307, max_value=1e307)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1).filter(
    lambda name: name[0] not in "#%" and "," not in name
)


@pytest.mark.parametrize("kind", ["integer", "text"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back(tmp_path_factory, kind, data):
    ids = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(0, 9) if kind == "integer" else NAMES
    rows = data.draw(st.lists(st.tuples(ids, ids, NUMBERS.map(abs), NUMBERS), max_size=30))
    separator = data.draw(st.sampled_from([" ", "\t", ", "]))
    path = tmp_path_factory.mktemp("edges") / "edges.txt"
    write(path, "".join(separator.join(map(str, row)) + "\n" for row in rows))
    found = read_edge_list(path, columns=("src", "dst", "time", "weight"), ids=kind)
    assert edges_of(found) == [row[:2] for row in rows]
    assert found.ids.tolist() == sorted({end for row in rows for end in row[:2]})
    assert found.time is not None
    assert found.weight is not None
    assert found.time.tolist() == [row[2] for row in rows]
    assert found.weight.tolist() == [row[3] for row in rows]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40))
def test_both_directions_is_the_undirected_simple_graph(edges):
    ends = np.array(edges, dtype=np.int32).reshape(-1, 2)
    senders, receivers = both_directions(ends[:, 0], ends[:, 1], 7)
    expected = {(a, b) for a, b in edges if a != b} | {(b, a) for a, b in edges if a != b}
    found = list(zip(receivers.tolist(), senders.tolist(), strict=True))
    assert found == sorted(expected)
