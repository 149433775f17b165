"""AFLOW's pages: fetched from a server that the test runs, and read."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

import weft.sources.aflow
from weft.errors import DataError
from weft.sources import AflowQuery, aflow_table, fetch_aflow, load


def entry(number: int, **changes: Any) -> dict[str, Any]:
    made = {
        "auid": f"aflow:{number:016x}",
        "aurl": "aflowlib.example:AFLOWDATA/ICSD_WEB/FCC/Cl1Na1",
        "species": ["Cl", "Na"],
        "composition": [1, 2],
        "geometry": [4.0, 4.0, 5.0, 90.0, 90.0, 120.0],
        "positions_fractional": [[0, 0, 0], [0.5, 0.5, 0.5], [0.25, 0.25, 0.75]],
        "enthalpy_formation_atom": -0.1 * number,
    }
    return {**made, **changes}


def as_text(number: int) -> dict[str, Any]:
    """The same entry as older versions of the interface write it."""
    return entry(
        number,
        species="Cl,Na",
        composition="1,2",
        geometry="4.0,4.0,5.0,90.0,90.0,120.0",
        positions_fractional="0,0,0;0.5,0.5,0.5;0.25,0.25,0.75",
        enthalpy_formation_atom=str(-0.1 * number),
    )


PAGES: dict[str, list[tuple[int, bytes]]] = {}
"""What the server answers for a page, in turn; the last answer stays."""
REQUESTS: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        query = unquote(self.path)
        REQUESTS.append(query)
        page = query.split("$paging(")[1].split(",")[0]
        answers = PAGES.get(page, [(200, b"[]")])
        status, body = answers.pop(0) if len(answers) > 1 else answers[0]
        if status == -1:  # cut in the middle
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + 10))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Iterator[AflowQuery]:
    REQUESTS.clear()
    PAGES.clear()
    monkeypatch.setattr(weft.sources.aflow, "_WAITS", (0.0, 0.0))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        server = f"http://127.0.0.1:{running.server_address[1]}/API/aflux/v1.0/"
        yield AflowQuery(page_size=2, server=server)
        running.shutdown()
        thread.join()


def body(*entries: dict[str, Any]) -> bytes:
    return json.dumps(list(entries)).encode()


def saved(folder: Path, *pages: Any) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for i, page in enumerate(pages):
        paths.append(folder / f"{i}.json")
        paths[-1].write_text(page if isinstance(page, str) else json.dumps(page))
    return paths


def test_the_address_asks_for_structures_and_targets() -> None:
    query = AflowQuery(filters=("catalog(ICSD)", "nspecies(2)"), targets=("Egap",), page_size=50)
    assert query.url(3) == (
        "https://aflow.org/API/aflux/v1.0/?auid,catalog(ICSD),nspecies(2),Egap(*),species,"
        "composition,geometry,positions_fractional,$paging(3,50)"
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"page_size": 0}, "page_size is 0"),
        ({"most_pages": 0}, "most_pages 0"),
        ({"server": "ftp://x"}, "server is 'ftp://x'"),
        ({"filters": ("a&b",)}, "'a&b' cannot stand in a query"),
        ({"targets": ("",)}, "'' cannot stand in a query"),
    ],
)
def test_a_bad_query(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        AflowQuery(**options)


def test_pages_are_fetched_once_and_named_by_their_checksum(
    query: AflowQuery, tmp_path: Path
) -> None:
    bodies = [body(entry(1), entry(2)), body(entry(3), entry(4)), body(entry(5))]
    PAGES.update({str(i): [(200, b)] for i, b in enumerate(bodies, start=1)})
    pages = fetch_aflow(tmp_path, query, progress=False)
    assert [page.read_bytes() for page in pages] == bodies
    sums = [hashlib.sha256(b).hexdigest() for b in bodies]
    assert [p.name for p in pages] == [f"page-{i:05d}-{s}.json" for i, s in enumerate(sums, 1)]
    assert len(REQUESTS) == 3
    assert fetch_aflow(tmp_path, query, sha256=sums, progress=False) == pages
    assert len(REQUESTS) == 3
    # A page that was damaged on the disk is fetched again, and nothing else.
    pages[1].write_bytes(b"[]")
    assert fetch_aflow(tmp_path, query, progress=False) == pages
    assert pages[1].read_bytes() == bodies[1]
    assert len(REQUESTS) == 4
    # Another question goes to another folder.
    PAGES.update({"1": [(200, b"[]")]})
    other = AflowQuery(page_size=2, server=query.server, filters=("nspecies(1)",))
    (empty,) = fetch_aflow(tmp_path, other, progress=False)
    assert empty.parent != pages[0].parent
    table = aflow_table(tmp_path / "t", pages, progress=False)
    assert len(table) == 5
    assert table.metadata["sha256"] == sums


def test_other_pages_than_expected_are_refused(query: AflowQuery, tmp_path: Path) -> None:
    PAGES["1"] = [(200, body(entry(1)))]
    with pytest.raises(DataError, match=f"page 1 from AFLUX has SHA-256 .*, {'0' * 64} expected"):
        fetch_aflow(tmp_path, query, sha256=["0" * 64], progress=False)
    assert not list(tmp_path.rglob("*.json"))
    right = hashlib.sha256(body(entry(1))).hexdigest()
    with pytest.raises(DataError, match="AFLUX gave 1 pages, 2 expected"):
        fetch_aflow(tmp_path, query, sha256=[right, right], progress=False)
    with pytest.raises(DataError, match="no such page expected"):
        fetch_aflow(tmp_path, query, sha256=[], progress=False)


def test_a_busy_server_is_asked_again(query: AflowQuery, tmp_path: Path) -> None:
    good = body(entry(1))
    PAGES["1"] = [(503, b"busy"), (-1, good), (200, good)]
    (page,) = fetch_aflow(tmp_path, query, progress=False)
    assert page.read_bytes() == good
    assert len(REQUESTS) == 3


@pytest.mark.parametrize(
    ("status", "answer", "requests", "problem"),
    [
        (404, b"", 1, "HTTPError: 404"),
        (500, b"", 3, "HTTPError: 500"),
        (200, b"<html>", 3, "the answer is not JSON"),
        (200, b'"DB Fail!"', 3, "is not a list of entries"),
        (200, b"[1]", 3, "is not a list of entries"),
    ],
)
def test_a_server_that_fails(
    status: int, answer: bytes, requests: int, problem: str, query: AflowQuery, tmp_path: Path
) -> None:
    PAGES["1"] = [(200, body(entry(1), entry(2)))]
    PAGES["2"] = [(status, answer)]
    with pytest.raises(DataError, match=problem) as caught:
        fetch_aflow(tmp_path, query, progress=False)
    assert "save the pages elsewhere and read them with --files FOLDER" in str(caught.value)
    assert len(REQUESTS) == 1 + requests
    assert len(list(tmp_path.rglob("page-*.json"))) == 1
    # It goes on where it stopped.
    PAGES["2"] = [(200, b"[]")]
    REQUESTS.clear()
    assert len(fetch_aflow(tmp_path, query, progress=False)) == 2
    assert len(REQUESTS) == 1


def test_a_server_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weft.sources.aflow, "_WAITS", (0.0,))
    query = AflowQuery(server="http://127.0.0.1:1/")
    with pytest.raises(DataError, match=r"127.0.0.1:1/.* cannot be downloaded \(ConnectionError"):
        fetch_aflow(tmp_path, query, progress=False)


def test_a_page_that_never_ends(
    query: AflowQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PAGES["1"] = [(200, body(entry(1)))]
    monkeypatch.setattr(weft.sources.aflow, "_PAGE_BYTES", 100)
    with pytest.raises(DataError, match="choose a smaller page_size"):
        fetch_aflow(tmp_path, query, progress=False)
    assert len(REQUESTS) == 1


def test_most_pages(query: AflowQuery, tmp_path: Path) -> None:
    PAGES["1"] = [(200, body(entry(1), entry(2)))]
    one = AflowQuery(page_size=2, most_pages=1, server=query.server)
    assert len(fetch_aflow(tmp_path, one, progress=False)) == 1


def test_columns(tmp_path: Path) -> None:
    old = {"1 of 2": as_text(1), "2 of 2": entry(2, enthalpy_formation_atom=None)}
    pages = saved(tmp_path / "p", [entry(7)], old)
    table = aflow_table(tmp_path / "t", pages, progress=False)
    assert table.num_nodes.tolist() == [3, 3, 3]
    assert table.column("z").tolist() == [17, 11, 11] * 3
    np.testing.assert_allclose(table.column("enthalpy_formation_atom"), [-0.7, -0.1, np.nan])
    assert table.schema["enthalpy_formation_atom"].unit == "eV/atom"
    assert table.column("pbc").all()
    cell = np.array([[4, 0, 0], [-2, np.sqrt(12), 0], [0, 0, 5]])
    np.testing.assert_allclose(table.column("cell")[0], cell, atol=1e-6)
    np.testing.assert_array_equal(table.column("cell")[0], table.column("cell")[1])
    np.testing.assert_allclose(table.column("pos")[1], cell.sum(axis=0) / 2, atol=1e-6)
    assert bytes(table[1].ragged["id"]).decode() == "aflow:0000000000000001"
    assert table.metadata["left_out"] == {}
    assert table.metadata["files"] == ["0.json", "1.json"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"auid": ""}, "no auid"),
        ({"auid": "aflow:0000000000000001"}, "a second entry of the same auid"),
        ({"geometry": None}, "no geometry"),
        ({"positions_fractional": []}, "no positions_fractional"),
        ({"composition": [1, 1]}, "species, composition and positions_fractional disagree"),
        ({"composition": [1.5, 1.5]}, "species, composition and positions_fractional disagree"),
        ({"composition": {"a": 1}}, "species, composition and positions_fractional disagree"),
        ({"species": 3}, "species, composition and positions_fractional disagree"),
        ({"positions_fractional": "0,0;1"}, "species, composition and positions_fractional disag"),
        ({"geometry": [1, 2, 3]}, "geometry is not six numbers"),
        ({"geometry": [1, 2, 3, 90, 90, "x"]}, "geometry is not six numbers"),
        ({"geometry": [4, 4, 4, 10, 10, 170]}, "cell or positions of no crystal"),
        ({"geometry": [4, 4, -4, 90, 90, 90]}, "cell or positions of no crystal"),
        ({"species": ["Cl", "Xx"]}, "species that are no elements"),
    ],
)
def test_entries_that_cannot_be_used_are_counted(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    pages = saved(tmp_path / "p", [entry(1), entry(2, **changes), entry(3)])
    table = aflow_table(tmp_path / "t", pages, progress=False)
    assert len(table) == 2
    ((found, count),) = table.metadata["left_out"].items()
    assert found.startswith(reason)
    assert count == 1


def test_pages_without_crystals(tmp_path: Path) -> None:
    for i, (page, problem) in enumerate(
        [
            ([], "no entry of 1 AFLUX pages can be used .the pages are empty"),
            ([entry(1, geometry="")], r"entry 1 \(aflow:0000000000000001\): no geometry"),
            ([entry(1, enthalpy_formation_atom="x")], "has a number for 'enthalpy_formation_atom'"),
            ("{", "not JSON"),
        ]
    ):
        with pytest.raises(DataError, match=problem):
            aflow_table(tmp_path / "t", saved(tmp_path / f"p{i}", page), progress=False)
        assert not (tmp_path / "t").exists()


def test_by_name(query: AflowQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "pages", [entry(1, Egap=1.5), entry(2, Egap="0.25")])
    table = load(
        "aflow",
        files=[tmp_path / "pages"],
        targets=["Egap"],
        table="mine",
        data_dir=tmp_path / "data",
        progress=False,
    )
    assert table.column("Egap").tolist() == [1.5, 0.25]
    assert table.schema["Egap"].unit == "eV"
    with pytest.raises(DataError, match="is not there"):
        load("aflow", files=[tmp_path / "no"], table="x", data_dir=tmp_path / "d", progress=False)
    PAGES["1"] = [(200, body(entry(1)))]

    def at_home(**options: Any) -> AflowQuery:
        return AflowQuery(server=query.server, **options)

    monkeypatch.setattr(weft.sources, "AflowQuery", at_home)
    fetched = load("aflow", data_dir=tmp_path / "data", progress=False)
    assert len(fetched) == 1
    assert "catalog(ICSD),enthalpy_formation_atom(*)" in REQUESTS[0]
