"""Molecules and crystals made ready for training: their table, neighbours, split and labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Column, GraphTable, write_table
from weft.models.target_scale import TargetScale
from weft.recipes.structures.config import NeighbourConfig, StructuresConfig, check_split
from weft.sources import CATALOGUE, cached_table, data_folder, load, with_neighbours
from weft.sources.atoms import ISOLATED

# In brackets, as no column of a table can be called: the user's own cannot be overwritten.
LABEL = "(label)"
"""Graph column with what the network is to give, see `labelled`."""
FORCES = "(forces)"
"""Node column with the forces to learn from."""
STRESS = "(stress)"
"""Graph column with the stress to learn from."""
_PARTS = "parts"
# Å³. A cell with less is none.
_LEAST_VOLUME = 1e-6
_KINDS = ("molecules", "crystals", "molecules or crystals")


def structure_table(
    data: str | Sequence[str],
    targets: Sequence[str],
    *,
    files: Sequence[Path] = (),
    validation_files: Sequence[str] = (),
    test_files: Sequence[str] = (),
    data_dir: Path | None = None,
    progress: bool = True,
) -> GraphTable:
    """The structures of a data set of the catalogue, or of a user's own files or folders.

    Args:
        data: a name of CATALOGUE, or paths: JSON lines of crystals, a CSV with CIF text, a folder
            of CIF files with their values in its id_prop.csv, or whatever ASE reads.
        targets: columns that are needed.
        files: files to build the data set of that name from.
        validation_files: paths of structures for validation, see `parts_of`.
        test_files: paths of structures for the test.
        data_dir: the data folder.
        progress: show progress bars.

    Raises:
        DataError: there is no such data, or it has no such target.
    """
    read = partial(_tables, targets=targets, data_dir=data_dir, progress=progress)
    parts = [read([data] if isinstance(data, str) else data, files)]
    for option, given in (("--validation-file", validation_files), ("--test-file", test_files)):
        if given and any(name in CATALOGUE for name in given):
            raise DataError(f"{option} {' '.join(given)}: name files or folders of your own")
        parts.append(read(given, ()))
    tables = list(chain.from_iterable(parts))
    if len(tables) == 1:
        (table,) = tables
    else:
        table = _joined(tables, [sum(map(len, part)) for part in parts], data_dir)
    for name in ("z", "pos", *targets):
        table.column(name)
    return table


def _tables(
    names: Sequence[str],
    files: Sequence[Path],
    *,
    targets: Sequence[str],
    data_dir: Path | None,
    progress: bool,
) -> list[GraphTable]:
    """The tables of a data set, or of a user's own files: those that are read alike together."""
    own: dict[str, list[Path]] = {}
    read = partial(own_table, data_dir=data_dir, progress=progress)
    for name in names:
        path = own_path(name, _KINDS, "molecules or crystals", files, reader=reader_of)
        if path is None:
            if len(names) > 1:
                raise DataError(f"'{name}' is a data set; several at once can only be files")
            if CATALOGUE[name].origin == "--files":
                return [read(name, files, _with_isolated(name, targets))]
            return [load(name, files=files, data_dir=data_dir, progress=progress)]
        reader = reader_of(path)
        # Crystals are read one file at a time.
        own.setdefault(reader if reader != "crystals" else f"crystals {path}", []).append(path)
    return [
        read(kind.split()[0], paths, _with_isolated(kind, targets)) for kind, paths in own.items()
    ]


def _with_isolated(reader: str, targets: Sequence[str]) -> list[str]:
    return [*targets, *([ISOLATED] if reader == "atoms" and ISOLATED not in targets else [])]


def _joined(
    tables: Sequence[GraphTable], counts: Sequence[int], data_dir: Path | None
) -> GraphTable:
    """Tables of files one after another as one of the data folder, with the `counts` by part."""
    schema = tables[0].schema
    for table in tables[1:]:
        names = [*schema, *(name for name in table.schema if name not in schema)]
        for name in names:
            first, other = schema.get(name), table.schema.get(name)
            if first != other:
                told = [
                    f"{', '.join(t.metadata['files'])}: "
                    + (f"{c.level} column of shape {list(c.shape)}" if c else "no such column")
                    for t, c in ((tables[0], first), (table, other))
                ]
                raise DataError(f"'{name}' differs between the files ({'; '.join(told)})")
    paths = [str(table.path) for table in tables]
    digest = hashlib.sha256(json.dumps([paths, list(counts)]).encode()).hexdigest()[:12]
    about = {
        "source": "structures of several files",
        "files": [name for table in tables for name in table.metadata["files"]],
        _PARTS: list(counts),
    }
    assert tables[0].path is not None
    return cached_table(
        f"{tables[0].path.stem.rpartition('-')[0]}-joined-{digest}",
        lambda path: write_table(path, tables, schema, metadata=about),
        data_dir=data_dir,
        remedy="remove it",
    )


def parts_of(table: GraphTable) -> Array:
    """int64 [g]: 1 for structures of a file for validation, 2 for the test's, 0 for all others."""
    counts = table.metadata.get(_PARTS, [len(table)])
    return np.repeat(np.arange(len(counts)), counts)


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
    config = config.settled()
    if not config.target:
        # Where there is no such data, that is the error.
        for name in config.sources:
            own_path(name, _KINDS, "molecules or crystals", files, reader=reader_of)
        raise DataError(f"name the value of {config.sources[0]} to learn with --target")
    table = structure_table(
        config.data,
        config.targets,
        files=files,
        validation_files=config.validation_file,
        test_files=config.test_file,
        data_dir=data_dir,
        progress=progress,
    )
    drawn = some_of(table, config.limit, config.split_seed)
    try:
        return neighbour_table(drawn, config.neighbours, data_dir=data_dir, progress=progress)
    except DataError as error:
        note = "" if drawn is table else f" (as numbered among the {len(drawn)} drawn)"
        raise DataError(f"{', '.join(config.sources)}: {error}{note}") from None


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
        inside = [sorted(file.rglob("*")) if file.is_dir() else [file] for file in files]
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
    leave_out: Array | None = None,
) -> dict[str, Array]:
    """A random split of the graphs that have all `targets`: their numbers, int64, by part.

    Where a file holds the structures for validation or test, these are that part, and its fraction
    of the others is trained on.

    Args:
        table: the structures.
        targets: graph or node columns; see `usable_structures`.
        parts: fractions for training, validation and test; the first two get one graph at least.
        seed: of the permutation.
        leave_out: bool [g], graphs that are in no part.

    Raises:
        DataError: fewer than two graphs have all targets, or none of a part's own file.
    """
    check_split(parts)
    usable = usable_structures(table, targets)
    usable = usable if leave_out is None else usable & ~leave_out
    named = " and ".join(targets)
    if usable.sum() < 2:
        raise DataError(
            f"{usable.sum()} of {len(table)} structures have {named}; training and validation "
            "need at least one each"
        )
    part = parts_of(table)
    fractions = list(parts)
    given = {}
    for number, name in ((1, "validation"), (2, "test")):
        if not (part == number).any():
            continue
        given[name] = np.flatnonzero(usable & (part == number))
        if not len(given[name]):
            raise DataError(f"no structure of --{name}-file has {named}")
        fractions[0], fractions[number] = fractions[0] + fractions[number], 0.0
    order = np.random.default_rng(seed).permutation(np.flatnonzero(usable & (part == 0)))
    drawn = int("validation" not in given)
    if len(order) <= drawn:
        raise DataError(f"{len(order)} structures with {named} are left to train on; add some")
    # Rounded, so that fractions that add up to 1 use every graph.
    ends = np.round(np.cumsum(fractions) * len(order)).astype(np.int64)
    ends[0] = min(max(ends[0], 1), len(order) - drawn)
    ends[1] = max(ends[1], ends[0] + drawn)
    train, validation, test = np.split(order[: max(ends[1], ends[2])], ends[:2])
    return {"train": train, "validation": validation, "test": test} | given


def shared_structures(table: GraphTable, split: Mapping[str, Array]) -> dict[tuple[str, str], int]:
    """How many structures of the second part are also in the first, atom by atom the same."""
    columns = [np.asarray(table.column(name)) for name in ("z", "pos")]
    cells = np.asarray(table.column("cell")) if "cell" in table.schema else None

    def content(graph: int) -> bytes:
        rows = slice(*table.node_offsets[graph : graph + 2].tolist())
        parts = [column[rows].tobytes() for column in columns]
        digest = hashlib.sha256(
            b"".join(parts + ([] if cells is None else [cells[graph].tobytes()]))
        )
        return digest.digest()

    contents = {name: [content(graph) for graph in ids.tolist()] for name, ids in split.items()}
    found = {}
    for first, second in (("train", "validation"), ("train", "test"), ("validation", "test")):
        known = set(contents[first])
        if count := sum(each in known for each in contents[second]):
            found[first, second] = count
    return found


def usable_structures(table: GraphTable, targets: Sequence[str]) -> Array:
    """bool [g]: which graphs have atoms and all `targets`, without a NaN or infinity in one."""
    usable: Array = table.num_nodes > 0
    for name in targets:
        values = np.asarray(table.column(name), dtype=np.float64)
        missing = ~np.isfinite(values.reshape(len(values), -1).sum(axis=1))
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
    """`limit` structures drawn at random, in memory; the table itself where it has no more.

    Those of files for validation and test all stay.
    """
    given = np.flatnonzero(parts_of(table))
    free = len(table) - len(given)
    if limit is None or limit >= free:
        return table
    drawn = np.random.default_rng(seed).choice(free, limit, replace=False)
    if ISOLATED in table.schema:
        # Their energies are wanted whatever is drawn.
        single = np.flatnonzero(np.asarray(table.column(ISOLATED))[:free] == 1)
        drawn = np.concatenate([drawn, np.setdiff1d(single, drawn)])
    if not len(given):
        return table.select(drawn)
    counts = [len(drawn), *table.metadata[_PARTS][1:]]
    some = table.select(np.concatenate([drawn, given]))
    return replace(some, metadata={**some.metadata, _PARTS: counts}).known_right()


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
    """Raise DataError where every pair of a periodic structure's atoms is requested."""
    periodic = np.asarray(table.column("pbc")).any(axis=1) if "pbc" in table.schema else np.zeros(0)
    if config.kind == "complete" and periodic.any():
        raise DataError(
            f"structure {int(np.argmax(periodic))} is periodic ({int(periodic.sum())} of "
            f"{len(table)} are), so its atoms have infinitely many neighbours; neighbours of kind "
            f"complete "
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
    table: GraphTable,
    target: str,
    scale: TargetScale,
    *,
    forces: str | None = None,
    stress: str | None = None,
) -> GraphTable:
    """What training reads of `table`, and nothing else: assembling a batch copies every column.

    The target is there twice: as it is, and standardised as `label`.
    """
    keep = ["z", "pos", target] + (["shift"] if "shift" in table.schema else [])
    keep += [] if stress is None else ["cell"]
    columns = {name: table.columns[name] for name in keep}
    schema = {name: table.schema[name] for name in keep}
    columns[LABEL] = scale.standardise(table, np.asarray(columns[target], dtype=np.float64))
    schema[LABEL] = Column(
        level="graph",
        dtype="float32",
        shape=schema[target].shape,
        missing=True,
        doc="standardised target",
    )
    if forces is not None:
        columns[FORCES], schema[FORCES] = table.columns[forces], table.schema[forces]
    if stress is not None:
        columns[STRESS] = stress_matrices(table, stress).astype(np.float32)
        schema[STRESS] = Column(level="graph", dtype="float32", shape=(3, 3), missing=True)
    return table.with_columns(schema, columns)


def check_volumes(table: GraphTable, stressed: Array, what: str) -> Array:
    """The volumes [g] of the cells, Å³; `stressed` says which structures need one.

    Raises:
        DataError: one of these has none; `what` begins the message.
    """
    volume: Array = np.zeros(len(table))
    if "cell" in table.schema:
        volume = np.abs(np.linalg.det(np.asarray(table.column("cell"), dtype=np.float64)))
    flat = np.flatnonzero((volume < _LEAST_VOLUME) & stressed)
    if len(flat):
        raise DataError(
            f"{what}: structure {flat[0]} has no cell with a volume ({len(flat)} of {len(table)} "
            "with a stress have none), and a stress is a derivative in the cell; remove these "
            "structures, or leave out --stress"
        )
    return volume


def stress_matrices(table: GraphTable, column: str) -> Array:
    """Stresses [g, 3, 3], eV/Å³, of a column with 6 or 9 numbers for each structure.

    The 6 are in Voigt order: xx, yy, zz, yz, xz, xy. A column with `virial` in its name holds
    minus the stress times the volume, eV.

    Raises:
        DataError: the column has another shape, or a structure has a stress and no volume.
    """
    values = np.asarray(table.column(column), dtype=np.float64)
    schema = table.schema[column]
    if schema.level != "graph" or schema.shape not in ((6,), (9,), (3, 3)):
        raise DataError(
            f"'{column}' is a {schema.level} column of shape {list(schema.shape)}; a stress is 6 "
            "(in Voigt order) or 9 numbers a structure"
        )
    if schema.shape == (6,):
        values = values[:, [0, 5, 4, 5, 1, 3, 4, 3, 2]]
    matrices: Array = values.reshape(-1, 3, 3)
    known = np.isfinite(values.reshape(len(table), 9)).all(axis=1)
    if ISOLATED in table.schema:
        # Isolated atoms are not trained on, and often have a stress of 0 and no cell.
        known = known & (np.asarray(table.column(ISOLATED)) != 1)
    volume = check_volumes(table, np.asarray(known), f"'{column}'")
    if "virial" in column.lower():
        matrices = -matrices / np.maximum(volume, _LEAST_VOLUME)[:, None, None]
    return matrices
