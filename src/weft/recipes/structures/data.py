"""Molecules and crystals made ready for training: their table, neighbours, split and labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Column, GraphTable
from weft.models.target_scale import TargetScale
from weft.recipes.structures.config import NeighbourConfig, StructuresConfig, check_split
from weft.sources import CATALOGUE, data_folder, load, with_neighbours

# In brackets, as no column of a table can be called: the user's own cannot be overwritten.
LABEL = "(label)"
"""Graph column with what the network is to give, see `labelled`."""
FORCES = "(forces)"
"""Node column with the forces to learn from."""
_KINDS = ("molecules", "crystals", "molecules or crystals")


def structure_table(
    data: str,
    targets: Sequence[str],
    *,
    files: Sequence[Path] = (),
    data_dir: Path | None = None,
    progress: bool = True,
) -> GraphTable:
    """The structures of a data set of the catalogue, or of a user's own file or folder.

    Args:
        data: a name of CATALOGUE, or a path: JSON lines of crystals, a CSV with CIF text, a folder
            of CIF files with their values in its id_prop.csv, or whatever ASE reads.
        targets: columns that are needed.
        files: files to build the data set of that name from.
        data_dir: the data folder.
        progress: show progress bars.

    Raises:
        DataError: there is no such data, or it has no such target.
    """
    path = own_path(data, _KINDS, "molecules or crystals", files, reader=reader_of)
    if path is not None:
        table = own_table(reader_of(path), [path], targets, data_dir, progress=progress)
    elif CATALOGUE[data].origin == "--files":
        table = own_table(data, files, targets, data_dir, progress=progress)
    else:
        table = load(data, files=files, data_dir=data_dir, progress=progress)
    for name in ("z", "pos", *targets):
        table.column(name)
    return table


def own_path(
    data: str,
    kinds: Sequence[str],
    wanted: str,
    files: Sequence[Path],
    *,
    reader: Callable[[Path], str] | None = None,
) -> Path | None:
    """The user's own file or folder that `data` names; None for a data set of one of these kinds.

    `wanted` are the kinds in words; `reader` gives the data set that reads the path with `files`.

    Raises:
        DataError: a data set of another kind; a path that is not there, or that has files beside.
    """
    listed = ", ".join(name for name, source in CATALOGUE.items() if source.kind in kinds)
    if data in CATALOGUE:
        if (kind := CATALOGUE[data].kind) in kinds:
            return None
        raise DataError(f"'{data}' is {kind}, not {wanted}; choose from {listed}, or give a path")
    path = Path(data)
    if not path.exists():
        raise DataError(f"'{data}' is neither a file or folder nor one of {listed}")
    if files:
        instead = f", or take --data {reader(path)} and name all files there" if reader else ""
        raise DataError(
            f"the data is {data}, so --files {' '.join(map(str, files))} would not be read; leave "
            f"it out{instead}"
        )
    return path


def read_structures(
    config: StructuresConfig,
    *,
    files: Sequence[Path] = (),
    data_dir: Path | None = None,
    progress: bool = True,
) -> GraphTable:
    """The structures that `config` names, or as many of them as it says, with their neighbours.

    Raises:
        DataError: there is no such data or target, or a structure cannot have such neighbours.
    """
    table = structure_table(
        config.data, config.targets, files=files, data_dir=data_dir, progress=progress
    )
    drawn = some_of(table, config.limit, config.split_seed)
    neighbours = config.settled().neighbours
    try:
        return neighbour_table(drawn, neighbours, data_dir=data_dir, progress=progress)
    except DataError as error:
        note = "" if drawn is table else f" (as numbered among the {len(drawn)} drawn)"
        raise DataError(f"{config.data}: {error}{note}") from None


def own_table(
    reader: str,
    files: Sequence[Path],
    targets: Sequence[str],
    data_dir: Path | None,
    *,
    progress: bool,
) -> GraphTable:
    """The user's own files as a table of the data folder, read again where they have changed."""
    table = None
    # Where a file is missing the reader says so.
    if files and all(file.exists() for file in files):
        # A name of its own for every choice of files, state of them, and choice of targets.
        inside = [sorted(file.iterdir()) if file.is_dir() else [file] for file in files]
        states = file_states(chain.from_iterable(inside))
        digest = hashlib.sha256(json.dumps([states, list(targets)]).encode())
        table = f"{file_name_of(files[0])}-{digest.hexdigest()[:12]}"
    return load(
        reader, files=files, targets=targets, table=table, data_dir=data_dir, progress=progress
    )


def file_states(files: Iterable[Path]) -> list[list[str | int]]:
    """What changes where a file does: of each its path, size and time."""
    return [[str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns] for p in files]


def reader_of(path: Path) -> str:
    """The name in CATALOGUE of what reads a user's file or folder."""
    name = path.name.removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        return "crystals"
    return "cif-csv" if name.endswith(".csv") else "atoms"


def file_name_of(data: str | Path) -> str:
    """Part of a file name from the name of a data set, or of a file whatever it is called."""
    stem = Path(data).resolve().stem if Path(data).exists() else Path(data).stem
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in stem)
    return plain.strip("-")[:40] or "own"


def split_structures(
    table: GraphTable,
    targets: Sequence[str],
    *,
    parts: tuple[float, float, float],
    seed: int,
) -> dict[str, Array]:
    """A random split of the graphs that have all `targets`: their numbers, int64, by part.

    Args:
        table: the structures.
        targets: graph or node columns; see `usable_structures`.
        parts: fractions for training, validation and test; the first two get one graph at least.
        seed: of the permutation.

    Raises:
        DataError: fewer than two graphs have all targets.
    """
    check_split(parts)
    ids = np.flatnonzero(usable_structures(table, targets))
    if len(ids) < 2:
        raise DataError(
            f"{len(ids)} of {len(table)} structures have {' and '.join(targets)}; training and "
            "validation need at least one each"
        )
    order = np.random.default_rng(seed).permutation(ids)
    # Rounded, so that fractions that add up to 1 use every graph.
    ends = np.round(np.cumsum(parts) * len(order)).astype(np.int64)
    ends[0] = min(max(ends[0], 1), len(order) - 1)
    ends[1] = max(ends[1], ends[0] + 1)
    train, validation, test = np.split(order[: max(ends[1], ends[2])], ends[:2])
    return {"train": train, "validation": validation, "test": test}


def usable_structures(table: GraphTable, targets: Sequence[str]) -> Array:
    """bool [g]: which graphs have atoms and all `targets`, without a NaN in one."""
    usable: Array = table.num_nodes > 0
    for name in targets:
        values = np.asarray(table.column(name), dtype=np.float64)
        missing = np.isnan(values.reshape(len(values), -1).sum(axis=1))
        if table.schema[name].level == "node":
            missing = sums_by_graph(table, missing) > 0
        usable = usable & ~missing
    return usable


def sums_by_graph(table: GraphTable, values: Array) -> Array:
    """Sums of a node column over each graph, float64 [g]."""
    totals = np.concatenate([[0], np.cumsum(values, dtype=np.float64)])
    sums: Array = totals[table.node_offsets[1:]] - totals[table.node_offsets[:-1]]
    return sums


def some_of(table: GraphTable, limit: int | None, seed: int) -> GraphTable:
    """`limit` structures drawn at random, in memory; the table itself where it has no more."""
    if limit is None or limit >= len(table):
        return table
    return table.select(np.random.default_rng(seed).choice(len(table), limit, replace=False))


def neighbour_table(
    table: GraphTable,
    config: NeighbourConfig,
    *,
    data_dir: Path | None = None,
    progress: bool = True,
) -> GraphTable:
    """The structures with their neighbours; kept in the data folder if `table` is from there."""
    check_periodicity(table, config)
    path = None
    if table.path is not None:
        path = data_folder(data_dir) / f"{table.path.stem}-{config.name}.weft"
    return with_neighbours(table, config.rule(), path=path, progress=progress)


def check_periodicity(table: GraphTable, config: NeighbourConfig) -> None:
    """Raise DataError where every pair of a periodic structure's atoms is asked for."""
    periodic = np.asarray(table.column("pbc")).any(axis=1) if "pbc" in table.schema else np.zeros(0)
    if config.kind == "complete" and periodic.any():
        raise DataError(
            f"structure {int(np.argmax(periodic))} is periodic ({int(periodic.sum())} of "
            f"{len(table)} are), so its atoms have endless neighbours; neighbours of kind complete "
            "are for molecules: train with `weft train crystals`, or with --neighbours.kind cutoff "
            "or nearest"
        )


def check_energy(target: str, unit: str) -> None:
    """Raise DataError if forces, its gradient, would not be in eV/Å; no unit passes for eV."""
    if unit not in ("", "eV"):
        raise DataError(
            f"forces are the gradient of an energy in eV, and '{target}' is in {unit}; leave out "
            "--forces"
        )


def labelled(
    table: GraphTable, target: str, scale: TargetScale, *, forces: str | None = None
) -> GraphTable:
    """What training reads of `table`, and nothing else: assembling a batch copies every column.

    The target is there twice: as it is, and standardised as `label`.
    """
    keep = ["z", "pos", target] + (["shift"] if "shift" in table.schema else [])
    columns = {name: table.columns[name] for name in keep}
    schema = {name: table.schema[name] for name in keep}
    columns[LABEL] = scale.standardise(table, np.asarray(columns[target], dtype=np.float64))
    schema[LABEL] = Column(level="graph", dtype="float32", missing=True, doc="standardised target")
    if forces is not None:
        columns[FORCES], schema[FORCES] = table.columns[forces], table.schema[forces]
    return table.with_columns(schema, columns)
