"""The data sets that weft knows by name, and how each becomes a table in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import DataError
from weft.files import read_object
from weft.graphs import Graph, GraphTable, write_table
from weft.sources.aflow import AflowQuery, aflow_pages, aflow_table, fetch_aflow
from weft.sources.atoms import atoms_table
from weft.sources.cache import cached_table, data_folder
from weft.sources.cif_csv import cif_csv_table
from weft.sources.citations import (
    PLANETOID_NAMES,
    cora_from_package,
    fetch_planetoid,
    planetoid,
    shchur,
)
from weft.sources.config import EdgeColumn
from weft.sources.crystals import crystals_table
from weft.sources.download import fetch
from weft.sources.edge_lists import edge_list_graph, read_edge_list
from weft.sources.great_files import read_great
from weft.sources.labelled_graphs import labelled_graph, pubmed_temporal
from weft.sources.matrix_market import read_matrix_market
from weft.sources.programs import EXTRACTION, program_table
from weft.sources.qm9_csv import qm9_from_csv
from weft.sources.qm9_xyz import (
    fetch_qm9_archive,
    fetch_uncharacterized,
    qm9_from_archive,
    uncharacterized,
)
from weft.sources.synthetic import planted_partition, rmat
from weft.sources.varmisuse_files import read_varmisuse


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asked of a source.

    Attributes:
        path: the folder the table goes to.
        name: the data set's name in the catalogue.
        files: the user's own files or folders; empty to find or fetch the official ones.
        targets: names of the values to keep, for files that hold many.
        downloads: folder for what is fetched.
        progress: show progress bars.
    """

    path: Path
    name: str
    files: tuple[Path, ...]
    targets: tuple[str, ...]
    downloads: Path
    progress: bool

    def only_file(self) -> Path:
        """The one file or folder that was given."""
        if len(self.files) != 1:
            raise DataError(
                f"'{self.name}' reads one file or folder, {len(self.files)} given: name it with "
                f"--files"
            )
        return self.files[0]


@dataclass(frozen=True, kw_only=True)
class Source:
    """One entry of the catalogue.

    Attributes:
        title: what it is, for people.
        kind: what its graphs are.
        origin: where the data comes from.
        licence: of the data.
        build: writes the table to request.path.
        takes_files: it can read the user's files.
        takes_targets: its files hold values to choose from.
        table: name of its table in the cache, if that is not the data set's.
    """

    title: str
    kind: str
    origin: str
    licence: str
    build: Callable[[Request], GraphTable]
    takes_files: bool = True
    takes_targets: bool = False
    table: str | None = None


def load(
    name: str,
    *,
    files: Sequence[Path] = (),
    targets: Sequence[str] = (),
    table: str | None = None,
    data_dir: Path | None = None,
    rebuild: bool = False,
    progress: bool = True,
) -> GraphTable:
    """The data set `name` as a table: from the cache, or built and cached.

    Args:
        name: a name of CATALOGUE.
        files: files or folders to read instead of the official ones. A table built from them is
            cached under `table`.
        targets: values to keep from files that hold many.
        table: name in the cache; the data set's own by default.
        data_dir: the data folder, see `data_folder`.
        rebuild: build again even if it is cached.
        progress: show progress bars.

    Raises:
        DataError: an unknown name, files or targets for a data set that takes none, data that
            cannot be found or read, or a table in the cache that was built from something else
            than what is asked for now.
    """
    if name not in CATALOGUE:
        raise DataError(f"there is no data set '{name}'; choose from {', '.join(CATALOGUE)}")
    source = CATALOGUE[name]
    if files and not source.takes_files:
        raise DataError(f"'{name}' reads no files of yours: leave out --files")
    if targets and not source.takes_targets:
        raise DataError(f"'{name}' has no targets to choose: leave out --targets")
    if files and table is None and source.table is not None:
        raise DataError(
            f"a table of files of your own would pass for '{name}' ever after: name it with --table"
        )

    asked = {
        "data set": name,
        "choice of files": [_stamp(file) for file in files],
        "choice of targets": list(targets),
    }

    def build(path: Path) -> GraphTable:
        request = Request(
            path=path,
            name=name,
            files=tuple(files),
            targets=tuple(targets),
            downloads=data_folder(data_dir) / "downloads",
            progress=progress,
        )
        built = source.build(request)
        (path / _ASKED).write_text(json.dumps(asked), encoding="utf-8")
        return built

    command = _rebuild_command(name, files, targets, table, data_dir)
    found = cached_table(
        table or source.table or name,
        build,
        data_dir=data_dir,
        rebuild=rebuild,
        remedy=f"run `{command}`",
    )
    _check_asked(found, asked, command)
    return found


_ASKED = "asked.json"


def _rebuild_command(
    name: str,
    files: Sequence[Path],
    targets: Sequence[str],
    table: str | None,
    data_dir: Path | None,
) -> str:
    options: dict[str, Sequence[object]] = {
        "--files": files,
        "--targets": targets,
        "--table": [table] if table else [],
        "--data-dir": [data_dir] if data_dir else [],
    }
    words: list[object] = ["weft", "data", "get", name]
    for option, values in options.items():
        words += [option, *values] if values else []
    return shlex.join(map(str, [*words, "--rebuild"]))


def _stamp(file: Path) -> list[Any]:
    """What tells a file from another or an older one; of a folder, the files directly in it."""
    stamp: list[Any] = [str(file.resolve())]
    if file.is_file():
        stamp += _size_and_time(file)
    elif file.is_dir():
        with os.scandir(file) as entries:
            inside = sorted([e.name, *_size_and_time(e)] for e in entries if e.is_file())
        stamp.append(hashlib.sha256(json.dumps(inside).encode()).hexdigest())
    return stamp


def _size_and_time(file: Path | os.DirEntry[str]) -> list[int]:
    about = file.stat()
    return [about.st_size, about.st_mtime_ns]


def _check_asked(found: GraphTable, asked: dict[str, Any], command: str) -> None:
    """A cached table must not pass for another one; what is not given now may be anything."""
    assert found.path is not None
    if not (found.path / _ASKED).exists():
        return  # a table that somebody put there
    built = read_object(found.path / _ASKED, dict.fromkeys(asked, object))
    for what, now in asked.items():
        if now and now != built[what]:
            raise DataError(
                f"the table {found.path} was built with another {what}: leave it out to take the "
                f"table as it is, or build it again with `{command}` (--table NAME keeps both)"
            )


def _one_graph(request: Request, graph: Graph, **metadata: Any) -> GraphTable:
    source = CATALOGUE[request.name]
    return write_table(
        request.path,
        [graph],
        metadata={"source": source.title, "licence": source.licence, **metadata},
    )


def _qm9(request: Request) -> GraphTable:
    folder = request.only_file() if request.files else None
    return qm9_from_csv(request.path, folder=folder, progress=request.progress)


def _qm9_official(request: Request) -> GraphTable:
    listed: list[int] = []
    if request.files:
        archive = request.only_file()
    else:
        archive = fetch_qm9_archive(request.downloads, progress=request.progress)
        listed = uncharacterized(
            fetch_uncharacterized(request.downloads, progress=request.progress)
        )
    return qm9_from_archive(
        request.path, archive, leave_out=frozenset(listed), progress=request.progress
    )


def _planetoid(request: Request) -> GraphTable:
    folder = (
        request.only_file()
        if request.files
        else fetch_planetoid(
            request.name, request.downloads / "planetoid", progress=request.progress
        )
    )
    return _one_graph(request, planetoid(folder, request.name))


def _shchur(request: Request) -> GraphTable:
    return _one_graph(request, shchur(request.only_file()))


def _snap(request: Request) -> GraphTable:
    if request.files:
        file = request.only_file()
    else:
        _, sha256 = _SNAP[request.name]
        address = f"https://snap.stanford.edu/data/{request.name}.txt.gz"
        file = fetch(address, sha256, folder=request.downloads, progress=request.progress)
    return _edges(request, file, ("src", "dst", "time"))


def _edges(request: Request, file: Path, columns: Sequence[EdgeColumn]) -> GraphTable:
    edges = read_edge_list(file, columns=columns)
    if edges.num_edges == 0:
        raise DataError(f"{file} holds no edges")
    return _one_graph(request, edge_list_graph(edges))


def _labelled(request: Request) -> GraphTable:
    if request.name == "patent" and len(request.files) == 1:
        edges, labels = (request.files[0] / name for name in _PATENT_FILES)
    elif len(request.files) == 2:
        edges, labels = request.files
    else:
        raise DataError(f"'{request.name}' reads an edge list and labels: name both with --files")
    return _one_graph(request, labelled_graph(edges, labels))


def _pubmed_temporal(request: Request) -> GraphTable:
    if len(request.files) not in (1, 2):
        raise DataError(f"'{request.name}' reads the folder with edge_time.npy: name it in --files")
    papers = (
        request.files[1]
        if len(request.files) == 2
        else fetch_planetoid("pubmed", request.downloads / "planetoid", progress=request.progress)
    )
    return _one_graph(request, pubmed_temporal(papers, request.files[0]))


def _atoms(request: Request) -> GraphTable:
    if not request.files:
        raise DataError("'atoms' needs the files to read: name them with --files")
    return atoms_table(
        request.path,
        request.files,
        targets=request.targets,
        missing="nan",
        progress=request.progress,
    )


def _crystals(request: Request) -> GraphTable:
    return crystals_table(
        request.path, request.only_file(), targets=request.targets, progress=request.progress
    )


def _mp_matminer(request: Request) -> GraphTable:
    return crystals_table(
        request.path,
        request.only_file(),
        targets=request.targets or tuple(_MP_MATMINER),
        units=_MP_MATMINER,
        progress=request.progress,
    )


def _cif_csv(request: Request) -> GraphTable:
    if not request.files:
        raise DataError(f"'{request.name}' needs the files to read: name them with --files")
    known = _CDVAE.get(request.name, ("", {}))[1]
    return cif_csv_table(
        request.path,
        request.files,
        targets=request.targets or tuple(known),
        units=known,
        progress=request.progress,
    )


def _aflow(request: Request) -> GraphTable:
    query = AflowQuery(targets=request.targets) if request.targets else AflowQuery()
    if request.files:
        pages = aflow_pages(request.files)
    else:
        pages = fetch_aflow(request.downloads / "aflow", query, progress=request.progress)
    return aflow_table(request.path, pages, targets=query.targets, progress=request.progress)


def _python(request: Request) -> GraphTable:
    return program_table(request.files or None, path=request.path, progress=request.progress)


def _edge_list(request: Request) -> GraphTable:
    return _edges(request, request.only_file(), ("src", "dst"))


def _temporal_edge_list(request: Request) -> GraphTable:
    return _edges(request, request.only_file(), ("src", "dst", "time"))


def _matrix_market(request: Request) -> GraphTable:
    return _one_graph(request, read_matrix_market(request.only_file()))


def _samples(request: Request, read: Callable[..., GraphTable]) -> GraphTable:
    if not request.files:
        raise DataError(f"'{request.name}' needs the files to read: name them with --files")
    table = read(request.files, progress=request.progress)
    return write_table(request.path, [table], table.schema, metadata=table.metadata)


def _own(
    title: str, kind: str, build: Callable[[Request], GraphTable], *, takes_targets: bool = False
) -> Source:
    return Source(
        title=title,
        kind=kind,
        origin="--files",
        licence="yours",
        build=build,
        takes_targets=takes_targets,
    )


_SHCHUR = {
    "amazon-photo": "Amazon Photo: co-purchases",
    "amazon-computers": "Amazon Computers: co-purchases",
    "coauthor-cs": "Coauthor CS",
    "coauthor-physics": "Coauthor Physics",
}
_PATENT_FILES = ("patent.txt.gz", "node2label.txt.gz")
_SNAP = {
    "CollegeMsg": (
        "CollegeMsg: private messages",
        "50ae2d98ed3bad9ddb18dbd495a89e5e10cfb8f7e86932827db29fc41b41f9fa",
    ),
    "email-Eu-core-temporal": (
        "e-mail of a European institution",
        "f6cc93249978e59d1aba111b55ea10ec553917419a3be1210012b5db3580efa6",
    ),
    "email-Eu-core-temporal-Dept3": (
        "e-mail of one department of it",
        "b1f92288e855044bbc74bacac39d42b12e59ec2a0130ad8df419786eb46a7bff",
    ),
    "sx-mathoverflow": (
        "Math Overflow: answers and comments",
        "cdc635fda76dab06ab02ca242563fa333bb83d096571342ef0326d85ff0c04da",
    ),
    "sx-mathoverflow-a2q": (
        "Math Overflow: answers to questions",
        "1e160dcd3e685f7467f4869451899bae0299016080ae994895a900b57812ca78",
    ),
}

# Targets and their units, of crystals that have them.
_MP_MATMINER = {
    "formation_energy_per_atom": "eV/atom",
    "e_above_hull": "eV/atom",
    "band_gap": "eV",
    "n": "",
    "poly_electronic": "",
    "poly_total": "",
    "K_VRH": "GPa",
    "G_VRH": "GPa",
    "elastic_anisotropy": "",
    "poisson_ratio": "",
    "eij_max": "C/m²",
    "volume": "Å³",
    "space_group": "",
}
_CDVAE = {
    "perov-5": (
        "Perov-5: perovskites of 5 atoms",
        {"heat_all": "eV", "heat_ref": "eV", "dir_gap": "eV", "ind_gap": "eV"},
    ),
    "carbon-24": ("Carbon-24: carbon cells of 6 to 24 atoms", {"energy_per_atom": "eV/atom"}),
}

CATALOGUE: dict[str, Source] = {
    "qm9": Source(
        title="QM9: 130,831 molecules, geometries and 15 properties",
        kind="molecules",
        origin="Python package qm9pack, or --files FOLDER with its CSV files",
        licence="CC0",
        build=_qm9,
    ),
    "qm9-official": Source(
        title="QM9 from the authors' archive dsgdb9nsd.xyz.tar.bz2",
        kind="molecules",
        origin="figshare: download or --files ARCHIVE",
        licence="CC0",
        build=_qm9_official,
    ),
    "cora-package": Source(
        title="Cora as LINQS published it, with a random split like the public one",
        kind="one graph",
        origin="Python package graphdatascience",
        licence="Apache-2.0 (package)",
        build=lambda request: _one_graph(request, cora_from_package()),
        takes_files=False,
    ),
    **{
        name: Source(
            title=f"{name}: citations, bags of words, public split (Yang et al. 2016)",
            kind="one graph",
            origin="Planetoid files ind.*: download or --files FOLDER",
            licence="not stated",
            build=_planetoid,
        )
        for name in PLANETOID_NAMES
    },
    **{
        name: Source(
            title=f"{title} (Shchur et al. 2018)",
            kind="one graph",
            origin="npz or zip of gnn-benchmark: --files FILE",
            licence="MIT",
            build=_shchur,
        )
        for name, title in _SHCHUR.items()
    },
    **{
        name: Source(
            title=f"{title}, edges with times (SNAP)",
            kind="temporal graph",
            origin="SNAP: download or --files FILE",
            licence="not stated",
            build=_snap,
        )
        for name, (title, _) in _SNAP.items()
    },
    "patent": Source(
        title="patent: citations with times, 6 classes (Liu et al. 2024)",
        kind="temporal graph",
        origin="data/patent of Deep-Temporal-Graph-Clustering: --files FOLDER",
        licence="not stated",
        build=_labelled,
    ),
    "pubmed-temporal": Source(
        title="pubmed with the year of each citation (Passos et al. 2024)",
        kind="temporal graph",
        origin="pubmed-temporal's .npy files: --files FOLDER [PLANETOID FOLDER]",
        licence="MIT",
        build=_pubmed_temporal,
    ),
    "mp-matminer": Source(
        title="7,116 crystals of the Materials Project with formation energies, gaps, moduli",
        kind="crystals",
        origin="sets of matminer 0.4.2 as JSON lines: --files FILE",
        licence="BSD (matminer)",
        build=_mp_matminer,
        takes_targets=True,
    ),
    **{
        name: Source(
            title=f"{title} (Xie et al. 2022)",
            kind="crystals",
            origin="CSV files of CDVAE: --files FILE ...",
            licence="MIT",
            build=_cif_csv,
            takes_targets=True,
        )
        for name, (title, _) in _CDVAE.items()
    },
    "aflow": Source(
        title="AFLOW: crystals of the ICSD catalogue with formation enthalpies",
        kind="crystals",
        origin="AFLUX: download or --files FOLDER with its JSON pages",
        licence="not stated",
        build=_aflow,
        takes_targets=True,
    ),
    "great": Source(
        title="GREAT: variable misuse in Python functions (Hellendoorn et al. 2020)",
        kind="programs",
        origin="shards of google-research-datasets/great: --files FILE ...",
        licence="Apache-2.0, each sample also its origin's",
        build=lambda request: _samples(request, read_great),
    ),
    "varmisuse": Source(
        title="VarMisuse: variable misuse in programs (format of Allamanis et al. 2018)",
        kind="programs",
        origin=".jsonl.gz, or .gz with a list: --files FILE ...",
        licence="of its origin",
        build=lambda request: _samples(request, read_varmisuse),
    ),
    "python": Source(
        title="Variables to choose in the standard library of this Python (VarMisuse)",
        kind="programs",
        origin="the running interpreter, or --files FOLDER with .py files",
        licence="PSF (the standard library)",
        build=_python,
        table=f"python-{re.sub('[^A-Za-z0-9.]', '-', platform.python_version())}-{EXTRACTION}",
    ),
    "planted-partition": Source(
        title="10,000 nodes in 8 classes, generated",
        kind="one graph",
        origin="made here, always the same",
        licence="none needed",
        build=lambda request: _one_graph(
            request, planted_partition(10_000, 8, mean_degree=10, homophily=0.8, num_features=32)
        ),
        takes_files=False,
    ),
    "rmat": Source(
        title="R-MAT, 100,000 nodes and 1,000,000 edges, generated",
        kind="one graph",
        origin="made here, always the same",
        licence="none needed",
        build=lambda request: _one_graph(
            request, rmat(num_nodes=100_000, num_edges=1_000_000, seed=0)
        ),
        takes_files=False,
    ),
    "atoms": _own(
        "your extxyz, CIF, ASE database, ...", "molecules or crystals", _atoms, takes_targets=True
    ),
    "crystals": _own("your crystals as JSON lines", "crystals", _crystals, takes_targets=True),
    "cif-csv": _own(
        "your CSV with CIF text in the column cif", "crystals", _cif_csv, takes_targets=True
    ),
    "edge-list": _own("your edge list: src dst", "one graph", _edge_list),
    "temporal-edge-list": _own(
        "your edge list: src dst time", "temporal graph", _temporal_edge_list
    ),
    "labelled-edge-list": _own(
        "your edge list: src dst time, and labels: node label", "temporal graph", _labelled
    ),
    "matrix-market": _own("your MatrixMarket file", "one graph", _matrix_market),
}
