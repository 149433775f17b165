"""Tables of programs: VarMisuse samples from folders of Python files, or from Python's own library.

A graph is one slot in one function or module body, see `weft.sources.python_code`. The default
corpus is the standard library of the running interpreter, which is on every machine.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import platform
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, GraphTable, table_from_graphs, write_table
from weft.sources.program_graph import (
    MISUSE_EDGE_NAMES,
    MISUSE_SCHEMA,
    PROGRAM_SCHEMA,
    program_metadata,
)
from weft.sources.progress_bar import progress_bar
from weft.sources.python_code import MAX_NODES, samples_of
from weft.sources.python_misuse import each_function
from weft.sources.python_units import EXTRACTION, Unusable, read_source

STANDARD_LIBRARY = "python"
"""Stands for the running interpreter's own library among paths."""
PARTS = ("train", "validation", "test")
_TEST_FOLDERS = {"test", "tests", "idle_test"}
_NOT_LIBRARY = {"site-packages", "dist-packages", "__pycache__"}
# Fewer files are read faster than processes start.
_FILES_A_WORKER = 16


_FileTable = tuple[GraphTable | None, dict[str, int]]


def standard_library() -> Path:
    """The folder of the running interpreter's own library."""
    return Path(sysconfig.get_path("stdlib"))


def python_files(
    paths: Path | str | Sequence[Path | str], *, tests: bool = True
) -> list[tuple[str, Path]]:
    """The .py files that `paths` name or hold, at any depth, with readable names, in order.

    Args:
        paths: files and folders; `python` for the standard library without its tests. A file of a
            folder is named by its path in the folder; with several paths, the folder's own name
            stands before that.
        tests: False leaves out the folders test, tests and idle_test.

    Raises:
        DataError: a path that is not there, or no .py file in any.
    """
    given = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
    found: list[tuple[str, Path]] = []
    for path in given:
        library = path == Path(STANDARD_LIBRARY) and not path.exists()
        path = standard_library() if library else path
        unwanted = _NOT_LIBRARY if tests and not library else _NOT_LIBRARY | _TEST_FOLDERS
        if path.is_dir():
            before = f"{path.resolve().name}/" if len(given) > 1 else ""
            for folder, below, names in os.walk(path):
                below[:] = [name for name in below if name not in unwanted]
                files = [Path(folder, name) for name in names if name.endswith(".py")]
                found += [
                    (before + file.relative_to(path).as_posix(), file)
                    for file in files
                    if file.is_file()
                ]
        elif path.is_file():
            found.append((path.name, path))
        else:
            raise DataError(f"{path} is neither a file nor a folder; name .py files or folders")
    if not found:
        raise DataError(f"no .py files in {', '.join(map(str, given))}; name another folder")
    return sorted(found)


def program_table(
    paths: Path | str | Sequence[Path | str] | None = None,
    *,
    path: Path | None = None,
    slots_per_unit: int | None = 3,
    misuses: int | None = None,
    blanks: int = 1,
    limit: int | None = None,
    max_nodes: int = MAX_NODES,
    tests: bool = False,
    workers: int | None = None,
    progress: bool = True,
    seed: int = 0,
) -> GraphTable:
    """Python files as a table of samples, nodes in reverse Cuthill-McKee order.

    The columns are PROGRAM_SCHEMA's. `metadata["files"]` names the files that the graphs' column
    `file` counts; `metadata["skipped"]` counts what was left out by reason: files that cannot be
    read, decoded or parsed, and functions with too many nodes. The table does not depend on
    `workers`.

    Args:
        paths: .py files or folders of them; None for the standard library.
        path: the folder the table is written to; None keeps it in memory.
        slots_per_unit: the most samples of one function; None for all.
        misuses: make graphs of whole functions instead, with MISUSE_SCHEMA: each function as it is,
            in so many versions with an injected misuse, and in `blanks` versions with uses blanked.
        blanks: see `misuses`.
        limit: the most graphs, from files chosen by `seed`.
        max_nodes: functions with more nodes are left out.
        tests: take the folders of tests with the standard library.
        workers: processes; by default one for each core. Processes other than this one start by
            importing the main module, so a script needs `if __name__ == "__main__":`.
        progress: show a progress bar.
        seed: of the choice of slots.

    Raises:
        DataError: no .py files, or none with a slot.
    """
    limits = {
        "slots_per_unit": slots_per_unit,
        "limit": limit,
        "workers": workers,
        "max_nodes": max_nodes,
    }
    for what, value in limits.items():
        if value is not None and value < 1:
            raise DataError(f"{what} is {value}; it must be at least 1")
    for what, value in {"misuses": misuses, "blanks": blanks}.items():
        if value is not None and value < 0:
            raise DataError(f"{what} is {value}; it must be at least 0")
    chosen = standard_library() if paths is None else paths
    files = python_files(chosen, tests=tests or paths is not None)
    schema = PROGRAM_SCHEMA if misuses is None else MISUSE_SCHEMA
    settings: dict[str, Any] = {"slots_per_unit": slots_per_unit}
    if misuses is not None:
        settings = {"misuses": misuses, "blanks": blanks, "edge_types": list(MISUSE_EDGE_NAMES)}
    if limit is not None:
        files.sort(key=lambda file: digest(file[0], seed))
    names: list[str] = []
    skipped: dict[str, int] = {}
    # `names` and `skipped` are filled while the graphs are made; metadata are written last.
    metadata = program_metadata(
        names,
        skipped=skipped,
        source="Python files" if paths is not None else "the standard library of Python",
        python=platform.python_version(),
        extraction=EXTRACTION,
        max_nodes=max_nodes,
        seed=seed,
        **settings,
    )
    table_of = partial(_file_table, slots=slots_per_unit, max_nodes=max_nodes, seed=seed)
    if misuses is not None:
        table_of = partial(
            _function_table, misuses=misuses, blanks=blanks, max_nodes=max_nodes, seed=seed
        )
    with progress_bar("Python files", len(files), show=progress, count=True) as move:

        def tables() -> Iterator[GraphTable]:
            count = 0
            with _results(table_of, files, workers) as results:
                for (name, _), (table, left_out) in zip(files, results, strict=False):
                    names.append(name)
                    for reason, times in left_out.items():
                        skipped[reason] = skipped.get(reason, 0) + times
                    move(len(names))
                    if table is None:
                        continue
                    if limit is not None and count + len(table) >= limit:
                        yield table.select(np.arange(limit - count))
                        return
                    count += len(table)
                    yield table
            if not count:
                raise DataError(
                    f"no variable in {len(files)} Python files has another in scope, so there is "
                    f"nothing to choose from (left out: {skipped or 'nothing'})"
                )

        if path is not None:
            return write_table(path, tables(), schema, metadata=metadata)
        graphs = [graph for table in tables() for graph in table]
        return table_from_graphs(graphs, schema, metadata=metadata)


def _file_table(
    file: tuple[int, tuple[str, Path]], *, slots: int | None, max_nodes: int, seed: int
) -> _FileTable:
    """The samples of a file (None without any), and what was left out."""
    number, (name, path) = file
    try:
        source = read_source(path)
    except Unusable as reason:
        return None, {str(reason): 1}
    found = samples_of(source, name, slots=slots, seed=seed, max_nodes=max_nodes, file=number)
    graphs = [sample.graph for sample in found.samples]
    return table_from_graphs(graphs, PROGRAM_SCHEMA) if graphs else None, found.skipped


def _function_table(
    file: tuple[int, tuple[str, Path]], *, misuses: int, blanks: int, max_nodes: int, seed: int
) -> _FileTable:
    """The functions of a file in their versions (None without any), and what was left out."""
    number, (name, path) = file
    skipped: Counter[str] = Counter()
    try:
        source = read_source(path)
    except Unusable as reason:
        return None, {str(reason): 1}
    found = each_function(
        source,
        name,
        skipped,
        misuses=misuses,
        blanks=blanks,
        seed=seed,
        max_nodes=max_nodes,
        file=number,
    )
    graphs = [function.graph for function in found]
    return table_from_graphs(graphs, MISUSE_SCHEMA) if graphs else None, dict(skipped)


@contextmanager
def _results(
    table_of: Callable[[tuple[int, tuple[str, Path]]], _FileTable],
    files: list[tuple[str, Path]],
    workers: int | None,
) -> Iterator[Iterator[_FileTable]]:
    """The table of every file, in order."""
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        workers = min(cores or 1, 1 + len(files) // _FILES_A_WORKER)
    if workers == 1:
        yield map(table_of, enumerate(files))
        return
    # A fork of a process with threads, such as torch's, may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context)
    try:
        yield pool.map(table_of, enumerate(files), chunksize=4)
    except BrokenProcessPool:
        raise DataError(
            "a process that reads Python files ended early: out of memory, or the main script "
            'lacks `if __name__ == "__main__":`; workers=1 reads them in this process'
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def split_by_file(
    table: GraphTable, parts: tuple[float, float, float] = (0.8, 0.1, 0.1), seed: int = 0
) -> dict[str, Array]:
    """Graph numbers for training, validation and test, each file whole in one of them.

    Files are put in an order that their names and `seed` decide and cut where the shares of graphs
    are nearest to `parts`.

    Args:
        table: a table of programs.
        parts: shares of the graphs; they add up to 1.
        seed: another seed makes another split.

    Returns:
        int64 arrays in ascending order for "train", "validation" and "test".
    """
    if len(parts) != len(PARTS) or min(parts) < 0 or abs(sum(parts) - 1) > 1e-6:
        raise DataError(f"parts are {parts}; they must be three shares that add up to 1")
    files = table.metadata.get("files")
    if files is None or "file" not in table.schema:
        raise DataError("the table has no column 'file': it is not a table of programs")
    file = np.asarray(table.column("file"))
    graphs = np.bincount(file, minlength=len(files))
    order = sorted(range(len(files)), key=lambda i: (digest(files[i], seed), i))
    # A file goes where its middle falls.
    middle = np.cumsum(graphs[order]) - graphs[order] / 2
    bounds = np.cumsum(parts[:-1]) * max(len(table), 1)
    part = np.empty(len(files), dtype=np.int64)
    part[order] = np.searchsorted(bounds, middle, side="right")
    return {name: np.flatnonzero(part[file] == i) for i, name in enumerate(PARTS)}


def digest(name: str, seed: int) -> bytes:
    """What puts names into an order that looks random."""
    return hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).digest()
