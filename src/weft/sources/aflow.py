"""Crystals of AFLOW through AFLUX, its search interface over HTTP.

A query is a list of names after the address's question mark: a name asks for a property, a name
with brackets also filters (`enthalpy_formation_atom(*)`: it must be there), `$paging(n,k)` chooses
page n of k entries. The answer is JSON: a list of entries, or in older versions an object of them;
an entry's lists come as lists or as text with commas and semicolons.

The database grows, so no checksum can be known before a download. What takes its place: pages are
read as JSON and every value is checked, each page is stored under its own SHA-256 and compared
with it when it is read again, and the table's metadata lists them. With such a list, `sha256`,
only these very pages are accepted.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.files import parse_json, write_atomically
from weft.graphs import Array, Graph, GraphTable, write_table
from weft.sources.atoms import ATOMIC_NUMBERS
from weft.sources.crystals import crystal_graph, crystal_schema, lattice_vectors
from weft.sources.download import _reason
from weft.sources.progress_bar import progress_bar

AFLOW_UNITS = {
    "enthalpy_formation_atom": "eV/atom",
    "enthalpy_atom": "eV/atom",
    "energy_atom": "eV/atom",
    "Egap": "eV",
    "density": "g/cm³",
    "volume_cell": "Å³",
}
"""Units of the properties that are requested most."""

_STRUCTURE = ("species", "composition", "geometry", "positions_fractional")
# Seconds to connect, to wait for the next bytes, and for a whole page.
_TIMEOUT = (10.0, 120.0)
_PAGE_SECONDS = 900.0
_PAGE_BYTES = 2**28
# Seconds to wait before each further attempt.
_WAITS = (1.0, 4.0, 15.0)
_BLOCK_BYTES = 2**16
_NO_CRYSTAL = "cell or positions of no crystal"


@dataclass(frozen=True, kw_only=True)
class AflowQuery:
    """Which entries of AFLOW.

    Attributes:
        filters: AFLUX filters, such as `catalog(ICSD)`, `species(Al,O)` or `nspecies(2)`, all of
            which must hold.
        targets: properties that an entry must have.
        page_size: entries in an answer.
        most_pages: stop after this number of pages.
        server: address of the interface.
    """

    filters: tuple[str, ...] = ("catalog(ICSD)",)
    targets: tuple[str, ...] = ("enthalpy_formation_atom",)
    page_size: int = 1000
    most_pages: int = 10_000
    server: str = "https://aflow.org/API/aflux/v1.0/"

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.most_pages < 1:
            raise ValueError(
                f"page_size is {self.page_size} and most_pages {self.most_pages}; both are at "
                "least 1"
            )
        if not self.server.startswith(("https://", "http://")):
            raise ValueError(f"server is {self.server!r}; it is an address with https://")
        for word in (*self.filters, *self.targets):
            if not word or not word.isascii() or set(word) & set(" &#?%$"):
                raise ValueError(f"{word!r} cannot stand in a query to AFLUX")

    def url(self, page: int) -> str:
        """The address of a page, counted from 1."""
        # Results come in order of the first word: by the entry's name, pages do not overlap.
        words = [
            "auid",
            *self.filters,
            *(f"{target}(*)" for target in self.targets),
            *_STRUCTURE,
            f"$paging({page},{self.page_size})",
        ]
        return f"{self.server}?{','.join(words)}"


def fetch_aflow(
    folder: Path,
    query: AflowQuery,
    *,
    sha256: Sequence[str] | None = None,
    progress: bool = True,
) -> list[Path]:
    """The pages that answer `query`, kept in `folder`; pages that are there are not fetched again.

    Args:
        folder: where the pages go, as `page-00001-SHA256.json`; one folder for each query.
        query: which entries.
        sha256: the pages that are expected, in order; any other is refused. Without it
            every answer of the server is accepted.
        progress: show a progress bar.

    Raises:
        DataError: the server cannot be reached or answers something that is not a page (after
            several attempts), or with another page than expected.
    """
    # A folder for each query: halves of two answers would not be a data set.
    folder = folder / hashlib.sha256(query.url(1).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    pages: list[Path] = []
    with progress_bar("pages", None, show=progress, count=True) as move:
        for number in range(1, query.most_pages + 1):
            path, body = _stored(folder, number), b""
            if path is None:
                body = _downloaded(query.url(number), folder)
                digest = hashlib.sha256(body).hexdigest()
                path = folder / f"page-{number:05d}-{digest}.json"
            if sha256 is not None:
                found = path.stem.rsplit("-", 1)[1]
                wanted = sha256[number - 1] if number <= len(sha256) else "no such page"
                if found != wanted:
                    raise DataError(
                        f"page {number} from AFLUX has SHA-256 {found}, {wanted} expected: the "
                        "database has changed since; leave the list of checksums out to take it "
                        "as it is now"
                    )
            if body:
                write_atomically(path, methodcaller("write", body))
            pages.append(path)
            move(number)
            if len(_entries(path.read_bytes(), str(path))) < query.page_size:
                break
    if sha256 is not None and len(pages) < len(sha256):
        raise DataError(f"AFLUX gave {len(pages)} pages, {len(sha256)} expected")
    return pages


def _stored(folder: Path, number: int) -> Path | None:
    """The page in the folder, if it is whole."""
    for path in sorted(folder.glob(f"page-{number:05d}-*.json")):
        if hashlib.sha256(path.read_bytes()).hexdigest() == path.stem.rsplit("-", 1)[1]:
            return path
    return None


def _downloaded(url: str, folder: Path) -> bytes:
    """The page at `url`, after a few attempts if need be; it is valid JSON."""
    from requests.exceptions import RequestException

    reason = ""
    for wait in (*_WAITS, None):
        try:
            body = _body(url)
        except RequestException as error:
            reason = _reason(error)
            response = error.response
            # The request itself is wrong, and would fail again.
            final = response is not None and 400 <= response.status_code < 429
        else:
            try:
                _entries(body, "the answer")
                return body
            except DataError as error:
                reason, final = str(error), False
        if final or wait is None:
            break
        time.sleep(wait)
    raise DataError(
        f"{url} cannot be downloaded ({reason}); try again later (the pages in {folder} are kept), "
        "or save the pages elsewhere and read them with --files FOLDER"
    )


def _body(url: str) -> bytes:
    import requests

    end = time.monotonic() + _PAGE_SECONDS
    parts: list[bytes] = []
    size = 0
    with requests.get(url, timeout=_TIMEOUT, stream=True) as response:
        response.raise_for_status()
        for part in response.iter_content(_BLOCK_BYTES):
            parts.append(part)
            size += len(part)
            if size > _PAGE_BYTES or time.monotonic() > end:
                raise DataError(
                    f"{url}: the page has more than {_PAGE_BYTES >> 20} MiB or takes more than "
                    f"{_PAGE_SECONDS:.0f} s; choose a smaller page_size"
                )
    return b"".join(parts)


def _entries(body: bytes, where: str) -> list[dict[str, Any]]:
    """The entries of a page, in either form that AFLUX has used."""
    try:
        answer = parse_json(body, where)
    except DataError as error:
        raise DataError(f"{error}: {body[:60]!r}") from None
    entries = list(answer.values()) if isinstance(answer, dict) else answer
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f"{where}: {body[:60]!r} is not a list of entries")
    return entries


def aflow_table(
    path: Path,
    pages: Sequence[Path],
    *,
    targets: Sequence[str] = ("enthalpy_formation_atom",),
    progress: bool = True,
) -> GraphTable:
    """Write the crystals of AFLUX pages to the table in the folder `path`, streaming.

    Columns are those of `crystals_table`; `id` is the entry's `auid`. Entries that cannot be used
    (no positions, numbers of atoms that disagree, a second one of the same name, ...) are left
    out: `metadata["left_out"]` counts them by reason, `metadata["sha256"]` has each page's
    checksum.

    Args:
        path: the table's folder; it must not exist yet.
        pages: JSON files as AFLUX sends them.
        targets: properties to keep, NaN where an entry has none.
        progress: show a progress bar.

    Raises:
        DataError: a page is not JSON, no entry can be used, or none has a target.
    """
    left_out: dict[str, int] = {}
    metadata = {
        "source": "AFLOW through AFLUX",
        "files": [page.name for page in pages],
        "sha256": [hashlib.sha256(page.read_bytes()).hexdigest() for page in pages],
        # Filled while the crystals are written; metadata goes to the disk after them.
        "left_out": left_out,
    }
    schema = crystal_schema(targets, AFLOW_UNITS)
    graphs = _graphs(pages, targets, left_out, progress=progress)
    return write_table(path, graphs, schema, metadata=metadata)


def _graphs(
    pages: Sequence[Path], targets: Sequence[str], left_out: dict[str, int], *, progress: bool
) -> Iterator[Graph]:
    seen: set[str] = set()
    met: set[str] = set()
    first_problem = "the pages are empty"
    with progress_bar("pages", len(pages), show=progress, count=True) as move:
        for done, page in enumerate(pages, start=1):
            for number, entry in enumerate(_entries(page.read_bytes(), str(page)), start=1):
                name = str(entry.get("auid", ""))
                where = f"{page}, entry {number} ({name})"
                try:
                    if not name or name in seen:
                        raise _Unusable("a second entry of the same auid" if name else "no auid")
                    graph = _graph(where, name, entry, targets)
                except (_Unusable, DataError) as problem:
                    reason = str(problem) if isinstance(problem, _Unusable) else _NO_CRYSTAL
                    left_out[reason] = left_out.get(reason, 0) + 1
                    if sum(left_out.values()) == 1:
                        detail = f"{where}: " if isinstance(problem, _Unusable) else ""
                        first_problem = f"{detail}{problem}"
                    continue
                seen.add(name)
                met.update(t for t in targets if not math.isnan(graph.graph[t]))
                yield graph
            move(done)
    if not seen:
        raise DataError(f"no entry of {len(pages)} AFLUX pages can be used ({first_problem})")
    for target in targets:
        if target not in met:
            raise DataError(f"no entry of the AFLUX pages has a number for '{target}'")


class _Unusable(Exception):
    """Why an entry is left out, in the same words for all such entries."""


def _graph(where: str, name: str, entry: Mapping[str, Any], targets: Sequence[str]) -> Graph:
    for field in _STRUCTURE:
        if entry.get(field) in (None, "", []):
            raise _Unusable(f"no {field}")
    counts, geometry = _numbers(entry["composition"]), _numbers(entry["geometry"])
    species = entry["species"]
    symbols = species.split(",") if isinstance(species, str) else species
    frac = _positions(entry["positions_fractional"])
    if (
        not isinstance(symbols, list)
        or len(symbols) != len(counts)
        or not ((counts > 0) & (counts % 1 == 0)).all()
        or len(frac) != counts.sum()
        or np.isnan(frac).any()
    ):
        raise _Unusable("species, composition and positions_fractional disagree")
    if len(geometry) != 6 or np.isnan(geometry).any():
        raise _Unusable("geometry is not six numbers")
    numbers = [ATOMIC_NUMBERS.get(str(symbol).strip(), 0) for symbol in symbols]
    if 0 in numbers:
        raise _Unusable("species that are no elements")
    return crystal_graph(
        where,
        z=np.repeat(np.array(numbers), counts.astype(np.int64)),
        frac=frac,
        lattice=lattice_vectors(where, geometry.tolist()),
        values={target: np.array(_number(entry.get(target))) for target in targets},
        name=name.encode(errors="replace").decode(),
        dataset="aflow",
    )


def _number(value: Any) -> float:
    """The finite number that `value` is or spells, else NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _numbers(value: Any) -> Array:
    """`[1, 2]` or `"1,2"` as float64 [n]; NaN is what is no number."""
    items = value.split(",") if isinstance(value, str) else value
    return np.array([_number(item) for item in (items if isinstance(items, list) else [None])])


def _positions(value: Any) -> Array:
    """`[[x, y, z], ...]` or `"x,y,z;..."` as float64 [n, 3]; NaN is what is no number."""
    rows = value.split(";") if isinstance(value, str) else value
    found = [_numbers(row) for row in rows] if isinstance(rows, list) else []
    if not found or any(len(row) != 3 for row in found):
        return np.full((1, 3), math.nan)
    return np.array(found)
