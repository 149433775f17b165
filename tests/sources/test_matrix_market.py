import gzip
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import mmread, mmwrite
from scipy.sparse import coo_array

from weft.errors import DataError
from weft.sources.matrix_market import read_matrix_market

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def write(path: Path, kind: str, *lines: str) -> Path:
    path.write_text("\n".join([f"%%MatrixMarket matrix {kind}", "% comment", *lines, ""]))
    return path


def weighted_edges(graph):
    return sorted(zip(graph.senders, graph.receivers, graph.edges["weight"], strict=True))


def test_all_real_matrices():
    folder = SHARED / "mtx_real"
    if not folder.exists():
        pytest.skip("mtx_real is not here")
    rectangular = []
    for path in sorted(folder.glob("*.mtx.gz")):
        matrix = mmread(path, spmatrix=False)
        rows, columns = matrix.shape
        if rows != columns:
            rectangular.append(path.name)
            with pytest.raises(DataError, match=rf"{path.name} .* {rows} x {columns}.*square"):
                read_matrix_market(path)
            continue
        graph = read_matrix_market(path)
        graph.validate(path.name)
        values = graph.edges.get("weight", np.ones(graph.num_edges))
        back = coo_array((values, (graph.senders, graph.receivers)), shape=matrix.shape)
        assert (graph.num_nodes, graph.num_edges) == (rows, matrix.nnz), path.name
        assert abs(back.tocsr() - matrix.tocsr()).max() == 0, path.name
        with gzip.open(path, "rt") as file:
            header = file.readline()
        assert ("pattern" in header) == ("weight" not in graph.edges), path.name
        assert graph.senders.dtype == np.int32
    assert rectangular == [
        "illc1850.mtx.gz",
        "tfdp_lp_ship04l.mtx.gz",
        "well1033.mtx.gz",
        "well1850.mtx.gz",
    ]


def test_entry_is_an_edge_from_row_to_column(tmp_path):
    path = write(
        tmp_path / "g.mtx", "coordinate real general", "3 3 3", "1 2 0.5", "3 3 -1", "3 1 0"
    )
    graph = read_matrix_market(path)
    assert graph.num_nodes == 3
    assert weighted_edges(graph) == [(0, 1, 0.5), (2, 0, 0.0), (2, 2, -1.0)]


def test_symmetric_integer_matrix_gives_both_directions(tmp_path):
    path = write(tmp_path / "s.mtx", "coordinate integer symmetric", "3 3 2", "1 1 7", "3 1 4")
    graph = read_matrix_market(path)
    assert weighted_edges(graph) == [(0, 0, 7.0), (0, 2, 4.0), (2, 0, 4.0)]
    assert graph.edges["weight"].dtype == np.float64


def test_pattern_has_no_weights(tmp_path):
    path = write(tmp_path / "p.mtx", "coordinate pattern general", "2 2 1", "2 1")
    graph = read_matrix_market(path)
    assert (graph.senders.tolist(), graph.receivers.tolist()) == ([1], [0])
    assert not graph.edges


def test_no_entries(tmp_path):
    path = write(tmp_path / "e.mtx", "coordinate real general", "4 4 0")
    graph = read_matrix_market(path)
    assert (graph.num_nodes, graph.num_edges) == (4, 0)


@pytest.mark.parametrize(
    ("kind", "lines", "message"),
    [
        ("coordinate real general", ["3 2 1", "1 1 1"], "3 x 2; a graph needs a square one"),
        ("array real general", ["1 1", "5"], "'array real'"),
        ("coordinate complex general", ["1 1 1", "1 1 5 5"], "'coordinate complex'"),
        ("coordinate real general", ["2 2 2", "1 1 1"], "not a complete Matrix Market file"),
        ("coordinate real general", ["2 2 1", "3 1 1"], "Line 4"),
        ("coordinate real general", ["2 2 1", "0 1 1"], "Line 4"),
        ("coordinate real general", ["2 2 1", "1 one 1"], "Line 4"),
        ("coordinate real general", ["2 2 2", "1 1 1", "1 2 x"], "Line 5"),
        ("coordinate real general", ["two 2 1"], "not a complete Matrix Market file"),
        ("coordinate colourful general", ["1 1 1", "1 1 1"], "not a complete Matrix Market file"),
        ("coordinate real general", ["2 2 99999999999999999", "1 1 1"], "not a complete"),
        ("coordinate real general", [], "not a complete Matrix Market file"),
    ],
)
def test_bad_matrices_are_named(tmp_path, kind, lines, message):
    path = write(tmp_path / "bad.mtx", kind, *lines)
    with pytest.raises(DataError, match=rf"bad\.mtx .*{message}"):
        read_matrix_market(path)


def test_other_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.mtx is missing"):
        read_matrix_market(tmp_path / "none.mtx")
    text = "%%MatrixMarket matrix coordinate real general\n900 900 900\n"
    text += "".join(f"{i} {i} {i / 7}\n" for i in range(1, 901))
    packed = gzip.compress(text.encode())
    for name, data in (
        ("empty.mtx", b""),
        ("words.mtx", b"hello\n"),
        ("cut.mtx.gz", packed[: len(packed) // 2]),
        ("head.mtx.gz", packed[:12]),
        ("unpacked.mtx.gz", text.encode()),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=f"{name} is not a complete Matrix Market file"):
            read_matrix_market(tmp_path / name)


BANNER = b"%%MatrixMarket matrix coordinate real general\n"


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("value", b"3 3 2\n1 2 0\x005\n2 1 1\n", r"line 3: a NUL byte"),
        ("end", b"3 3 1\n1 2 1\0\n", r"line 3: a NUL byte"),
        ("comment", b"%\0\n3 3 1\n1 2 1\n", r"line 2: a NUL byte"),
        ("size", b"3 3\x001\n1 2 1\n", r"line 2: a NUL byte"),
        ("late", b"3 3 40000\n" + b"1 2 1\n" * 39_999 + b"1 2 1\0", r"line 40002: a NUL byte"),
        ("long", b"3 3 1\n1 2 " + b"1" * (2**20 + 5) + b"\n", r"line 3: longer than 1,048,576"),
        ("endless", b"3 3 1\n" + b" " * 2**22, r"line 3: longer than 1,048,576"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_would_crash_or_fill_the_parser_is_refused(tmp_path, name, body, message, packed):
    content = BANNER + body
    path = tmp_path / (f"{name}.mtx.gz" if packed else f"{name}.mtx")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataError, match=rf"{path.name}, {message}"):
        read_matrix_market(path)


def test_damaged_files_never_end_the_process(tmp_path):
    whole = BANNER + b"% c\n5 5 5\n1 2 0.5\n2 3 1.5e3\n3 1 -2\n4 4 0\n5 1 7\n"
    path, rng, read = tmp_path / "damaged.mtx", random.Random(0), 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(BANNER) - 1, len(damaged))
            match rng.randrange(4):
                case 0:
                    damaged[place] = rng.randrange(256)
                case 1:
                    del damaged[place:]
                    damaged += b"!"
                case 2:
                    damaged[place:place] = rng.choice([b"-", b"9" * 25, b"e", b"nan", b"\r"])
                case _:
                    damaged[place:place] = damaged[place : place + 9]
        path.write_bytes(damaged)
        try:
            graph = read_matrix_market(path)
        except DataError:
            continue
        graph.validate(path.name)
        read += 1
    assert read > 10


def test_a_last_line_may_lack_its_line_feed(tmp_path):
    path = tmp_path / "a.mtx"
    path.write_bytes(BANNER + b"2 2 2\n1 2 3\n2 1 4.5")
    assert weighted_edges(read_matrix_market(path)) == [(0, 1, 3.0), (1, 0, 4.5)]


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
    density=st.floats(0, 1),
)
def test_what_scipy_writes_is_read_back(tmp_path_factory, size, seed, density):
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((size, size)) * (rng.random((size, size)) < density)
    path = tmp_path_factory.mktemp("matrix") / "a.mtx"
    mmwrite(path, coo_array(dense), precision=17)
    graph = read_matrix_market(path)
    back = np.zeros((size, size))
    back[graph.senders, graph.receivers] = graph.edges["weight"]
    assert np.array_equal(back, dense)
