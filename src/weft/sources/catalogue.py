"""The data sets that weft knows by name, and how each becomes a table in the cache.

Importing this module is cheap: readers, and the libraries that they need, are imported when a data
set is built.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import sources
from weft.errors import DataError
from weft.files import read_object
from weft.sources.python_units import EXTRACTION
from weft.sources.table_cache import cached_table, data_folder

if TYPE_CHECKING:
    from weft.graphs import Graph, GraphTable
    from weft.sources.config import EdgeColumn


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

    def some_files(self) -> tuple[Path, ...]:
        """The files or folders that were given, at least one."""
        if not self.files:
            raise DataError(f"'{self.name}' needs the files to read: name them with --files")
        return self.files

    def target_options(self) -> dict[str, Any]:
        """Options of the readers of crystals: which targets, in which units."""
        units = CATALOGUE[self.name].units
        targets = self.targets or tuple(units)
        return {"targets": targets, "units": units, "progress": self.progress}


@dataclass(frozen=True, kw_only=True)
class Source:
    """One entry of the catalogue.

    Attributes:
        title: one line that describes it.
        kind: what its graphs are.
        build: writes the table to request.path, or returns the one graph that the table holds.
        origin: where the data comes from; the user's own files by default.
        licence: of the data.
        units: the targets that are kept unless the user names others, with their units.
        takes_files: it can read the user's files.
        takes_targets: its files hold values to choose from.
        table: name of its table in the cache, if that is not the data set's.
    """

    title: str
    kind: str
    build: Callable[[Request], GraphTable | Graph]
    origin: str = "--files"
    licence: str = "yours"
    units: Mapping[str, str] = field(default_factory=dict)
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
            than what is requested now.
    """
    if name not in CATALOGUE:
        raise DataError(f"there is no data set '{name}'; choose from {', '.join(CATALOGUE)}")
    source = CATALOGUE[name]
    if files and not source.takes_files:
        raise DataError(f"'{name}' does not read files: leave out --files")
    if targets and not source.takes_targets:
        raise DataError(f"'{name}' has no targets to choose: leave out --targets")
    if files and table is None and source.table is not None:
        raise DataError(
            f"a table of your own files would be mistaken for '{name}' later: name it with --table"
        )

    asked = {
        "data set": name,
        "choice of files": [_stamp(file) for file in files],
        "choice of targets": list(targets),
    }

    def build(path: Path) -> GraphTable:
        from weft.graphs import GraphTable, write_table

        request = Request(
            path=path,
            name=name,
            files=tuple(files),
            targets=tuple(targets),
            downloads=data_folder(data_dir) / "downloads",
            progress=progress,
        )
        built = source.build(request)
        if not isinstance(built, GraphTable):
            about = {"source": source.title, "licence": source.licence}
            built = write_table(path, [built], metadata=about)
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
    assert found.path is not None
    if not (found.path / _ASKED).exists():
        return found  # a table that was not built here
    built = read_object(found.path / _ASKED, dict.fromkeys(asked, object))
    for what, now in asked.items():
        # What is left out may differ.
        if now and now != built[what]:
            raise DataError(
                f"the table {found.path} was built with another {what}: leave it out to take the "
                f"table as it is, or build it again with `{command}` (--table NAME keeps both)"
            )
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
    """What identifies a file and its state; of a folder, those of the files directly in it."""

    def size_and_time(file: Path | os.DirEntry[str]) -> list[int]:
        about = file.stat()
        return [about.st_size, about.st_mtime_ns]

    stamp: list[Any] = [str(file.resolve())]
    if file.is_file():
        stamp += size_and_time(file)
    elif file.is_dir():
        with os.scandir(file) as entries:
            inside = sorted([e.name, *size_and_time(e)] for e in entries if e.is_file())
        stamp.append(hashlib.sha256(json.dumps(inside).encode()).hexdigest())
    return stamp


def _qm9_official(request: Request) -> GraphTable:
    from weft.sources import qm9

    show = request.progress
    listed: list[int] = []
    if request.files:
        archive = request.only_file()
    else:
        archive, without = (
            qm9.fetch_qm9(name, request.downloads, progress=show)
            for name in (qm9.QM9_ARCHIVE, qm9.UNCHARACTERIZED)
        )
        listed = qm9.uncharacterized(without)
    return qm9.qm9_from_archive(request.path, archive, leave_out=frozenset(listed), progress=show)


def _planetoid_folder(request: Request, name: str) -> Path:
    from weft.sources.citation_graphs import fetch_planetoid

    return fetch_planetoid(name, request.downloads / "planetoid", progress=request.progress)


def _planetoid(request: Request) -> Graph:
    name = request.name
    folder = request.only_file() if request.files else _planetoid_folder(request, name)
    return sources.planetoid(folder, name)


def _pubmed_temporal(request: Request) -> Graph:
    if len(request.files) not in (1, 2):
        raise DataError(f"'{request.name}' reads the folder with edge_time.npy: name it in --files")
    folder, *papers = request.files
    return sources.pubmed_temporal(
        papers[0] if papers else _planetoid_folder(request, "pubmed"), folder
    )


def _snap(request: Request) -> Graph:
    if request.files:
        file = request.only_file()
    else:
        address = f"https://snap.stanford.edu/data/{request.name}.txt.gz"
        sha256 = _SNAP_SHA256[request.name]
        file = sources.fetch(address, sha256, folder=request.downloads, progress=request.progress)
    return _edges(file, "src", "dst", "time")


def _edges(file: Path, *columns: EdgeColumn) -> Graph:
    edges = sources.read_edge_list(file, columns=columns)
    if edges.num_edges == 0:
        raise DataError(f"{file} holds no edges")
    return sources.edge_list_graph(edges)


def _labelled(request: Request) -> Graph:
    if request.name == "patent" and len(request.files) == 1:
        edges, labels = (request.files[0] / name for name in _PATENT_FILES)
    elif len(request.files) == 2:
        edges, labels = request.files
    else:
        raise DataError(f"'{request.name}' reads an edge list and labels: name both with --files")
    return sources.labelled_graph(edges, labels)


def _crystals(request: Request) -> GraphTable:
    return sources.crystals_table(request.path, request.only_file(), **request.target_options())


def _cif_csv(request: Request) -> GraphTable:
    return sources.cif_csv_table(request.path, request.some_files(), **request.target_options())


def _aflow(request: Request) -> GraphTable:
    from weft.sources.atoms import files_of

    query = sources.AflowQuery(targets=request.targets) if request.targets else sources.AflowQuery()
    if request.files:
        pages = files_of(request.files, "*.json")
    else:
        pages = sources.fetch_aflow(request.downloads / "aflow", query, progress=request.progress)
    return sources.aflow_table(
        request.path, pages, targets=query.targets, progress=request.progress
    )


def _samples(request: Request) -> GraphTable:
    from weft.graphs import write_table

    read = sources.read_great if request.name == "great" else sources.read_varmisuse
    table = read(request.some_files(), progress=request.progress)
    return write_table(request.path, [table], table.schema, metadata=table.metadata)


def _family(titles: Mapping[str, str], **shared: Any) -> dict[str, Source]:
    """Data sets that differ in nothing but their names and titles."""
    return {name: Source(title=title, **shared) for name, title in titles.items()}


_PATENT_FILES = ("patent.txt.gz", "node2label.txt.gz")
_SNAP_SHA256 = {
    "CollegeMsg": "50ae2d98ed3bad9ddb18dbd495a89e5e10cfb8f7e86932827db29fc41b41f9fa",
    "email-Eu-core-temporal": "f6cc93249978e59d1aba111b55ea10ec553917419a3be1210012b5db3580efa6",
    "email-Eu-core-temporal-Dept3": (
        "b1f92288e855044bbc74bacac39d42b12e59ec2a0130ad8df419786eb46a7bff"
    ),
    "sx-mathoverflow": "cdc635fda76dab06ab02ca242563fa333bb83d096571342ef0326d85ff0c04da",
    "sx-mathoverflow-a2q": "1e160dcd3e685f7467f4869451899bae0299016080ae994895a900b57812ca78",
}
_CDVAE: dict[str, Any] = {
    "kind": "crystals",
    "origin": "CSV files of CDVAE: --files FILE ...",
    "licence": "MIT",
    "build": _cif_csv,
    "takes_targets": True,
}
_GENERATED: dict[str, Any] = {
    "kind": "one graph",
    "origin": "made here, always the same",
    "licence": "none needed",
    "takes_files": False,
}

CATALOGUE: dict[str, Source] = {
    "qm9": Source(
        title="QM9: 130,831 molecules, geometries and 15 properties",
        kind="molecules",
        origin="Python package qm9pack, or --files FOLDER with its CSV files",
        licence="CC0",
        build=lambda request: sources.qm9_from_csv(
            request.path,
            folder=request.only_file() if request.files else None,
            progress=request.progress,
        ),
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
        build=lambda request: sources.cora_from_package(),
        takes_files=False,
    ),
    **_family(
        {
            name: f"{name}: citations, bags of words, public split (Yang et al. 2016)"
            for name in ("cora", "citeseer", "pubmed")
        },
        kind="one graph",
        origin="Planetoid files ind.*: download or --files FOLDER",
        licence="not stated",
        build=_planetoid,
    ),
    **_family(
        {
            "amazon-photo": "Amazon Photo: co-purchases (Shchur et al. 2018)",
            "amazon-computers": "Amazon Computers: co-purchases (Shchur et al. 2018)",
            "coauthor-cs": "Coauthor CS (Shchur et al. 2018)",
            "coauthor-physics": "Coauthor Physics (Shchur et al. 2018)",
        },
        kind="one graph",
        origin="npz or zip of gnn-benchmark: --files FILE",
        licence="MIT",
        build=lambda request: sources.shchur(request.only_file()),
    ),
    **_family(
        {
            "CollegeMsg": "CollegeMsg: private messages, edges with times (SNAP)",
            "email-Eu-core-temporal": "e-mail of a European institution, edges with times (SNAP)",
            "email-Eu-core-temporal-Dept3": "e-mail of its department 3, edges with times (SNAP)",
            "sx-mathoverflow": "Math Overflow: answers and comments, edges with times (SNAP)",
            "sx-mathoverflow-a2q": "Math Overflow: answers to questions, edges with times (SNAP)",
        },
        kind="temporal graph",
        origin="SNAP: download or --files FILE",
        licence="not stated",
        build=_snap,
    ),
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
        build=_crystals,
        takes_targets=True,
        units={
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
        },
    ),
    "perov-5": Source(
        title="Perov-5: perovskites of 5 atoms (Xie et al. 2022)",
        units=dict.fromkeys(("heat_all", "heat_ref", "dir_gap", "ind_gap"), "eV"),
        **_CDVAE,
    ),
    "carbon-24": Source(
        title="Carbon-24: carbon cells of 6 to 24 atoms (Xie et al. 2022)",
        units={"energy_per_atom": "eV/atom"},
        **_CDVAE,
    ),
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
        build=_samples,
    ),
    "varmisuse": Source(
        title="VarMisuse: variable misuse in programs (format of Allamanis et al. 2018)",
        kind="programs",
        origin=".jsonl.gz, or .gz with a list: --files FILE ...",
        licence="of its origin",
        build=_samples,
    ),
    "python": Source(
        title="Variables to choose in the standard library of this Python (VarMisuse)",
        kind="programs",
        origin="the running interpreter, or --files FOLDER with .py files",
        licence="PSF (the standard library)",
        build=lambda request: sources.program_table(
            request.files or None, path=request.path, progress=request.progress
        ),
        table=f"python-{re.sub('[^A-Za-z0-9.]', '-', platform.python_version())}-{EXTRACTION}",
    ),
    "python-misuse": Source(
        title="Functions of the standard library of this Python, right and with a wrong variable",
        kind="programs",
        origin="the running interpreter, or --files FOLDER with .py files",
        licence="PSF (the standard library)",
        build=lambda request: sources.program_table(
            request.files or None, path=request.path, misuses=1, progress=request.progress
        ),
        table=f"misuse-{re.sub('[^A-Za-z0-9.]', '-', platform.python_version())}-{EXTRACTION}",
    ),
    "planted-partition": Source(
        title="10,000 nodes in 8 classes, generated",
        build=lambda request: sources.planted_partition(
            10_000, 8, mean_degree=10, homophily=0.8, num_features=32
        ),
        **_GENERATED,
    ),
    "rmat": Source(
        title="R-MAT, 100,000 nodes and 1,000,000 edges, generated",
        build=lambda request: sources.rmat(num_nodes=100_000, num_edges=1_000_000, seed=0),
        **_GENERATED,
    ),
    "atoms": Source(
        title="your extxyz, CIF, ASE database, ...",
        kind="molecules or crystals",
        build=lambda request: sources.atoms_table(
            request.path,
            request.some_files(),
            targets=request.targets,
            missing="nan",
            progress=request.progress,
        ),
        takes_targets=True,
    ),
    "crystals": Source(
        title="your crystals as JSON lines", kind="crystals", build=_crystals, takes_targets=True
    ),
    "cif-csv": Source(
        title="your CSV with CIF text in the column cif",
        kind="crystals",
        build=_cif_csv,
        takes_targets=True,
    ),
    "edge-list": Source(
        title="your edge list: src dst",
        kind="one graph",
        build=lambda request: _edges(request.only_file(), "src", "dst"),
    ),
    "temporal-edge-list": Source(
        title="your edge list: src dst time",
        kind="temporal graph",
        build=lambda request: _edges(request.only_file(), "src", "dst", "time"),
    ),
    "labelled-edge-list": Source(
        title="your edge list: src dst time, and labels: node label",
        kind="temporal graph",
        build=_labelled,
    ),
    "graph": Source(
        title="your graph: OGB's folder, .npz, .pt of torch_geometric, .mat, .mtx, .parquet",
        kind="one graph",
        build=lambda request: sources.read_graph(request.only_file()),
    ),
    "matrix-market": Source(
        title="your MatrixMarket file",
        kind="one graph",
        build=lambda request: sources.read_matrix_market(request.only_file()),
    ),
}
