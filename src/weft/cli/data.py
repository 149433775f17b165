"""`weft data list | get | info`."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Column, Table

from weft.errors import DataError

if TYPE_CHECKING:
    from weft.graphs import GraphTable

# How training names the tables that it makes of others.
_WITH_NEIGHBOURS = re.compile(r"-(complete|cutoff-[\d.e+-]+|nearest-\d+)$")
# Longer lists of metadata, such as file names, are cut.
_LISTED = 20


@dataclass(frozen=True, kw_only=True)
class DataList:
    """List the data sets that weft knows, and the tables in the cache.

    Attributes:
        data_dir: The data folder; by default $WEFT_DATA_DIR or the user's cache folder.
    """

    data_dir: Path | None = None

    def __call__(self, console: Console) -> int:
        """Print the catalogue, and what else is in the cache."""
        from weft.sources.catalogue import CATALOGUE
        from weft.sources.table_cache import data_folder

        folder = data_folder(self.data_dir)
        cached = {path.stem for path in folder.glob("*.weft")}
        name_column = Column("name", no_wrap=True)
        table = Table(name_column, "what", "from", "cached", box=None, padding=(0, 2, 0, 0))
        for name, source in CATALOGUE.items():
            there = (source.table or name) in cached
            table.add_row(name, source.title, source.origin, "yes" if there else "")
        console.print(table)
        made = {name for name in cached if _WITH_NEIGHBOURS.search(name)}
        own = cached - made - {source.table or name for name, source in CATALOGUE.items()}
        for what, names in (("Your own tables", own), ("With neighbours, for training", made)):
            if names:
                console.print(f"{what}: {', '.join(sorted(names))}", soft_wrap=True)
        console.print(f"Data folder: {folder}", soft_wrap=True)
        return 0


@dataclass(frozen=True, kw_only=True)
class DataGet:
    """Build the table of a data set: parse, check, store; later runs open it in a moment.

    Attributes:
        name: The data set, see `weft data list`.
        files: Files or folders to read instead of the official ones.
        targets: Values to keep from files that hold many, such as energy.
        table: Name of the table in the cache; by default the data set's own.
        data_dir: The data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        rebuild: Build it again even if it is cached.
    """

    name: Annotated[str, tyro.conf.Positional]
    files: tuple[Path, ...] = ()
    targets: tuple[str, ...] = ()
    table: str | None = None
    data_dir: Path | None = None
    rebuild: bool = False

    def __call__(self, console: Console) -> int:
        """Build or open the table and describe it."""
        from weft.sources import load

        start = time.perf_counter()
        table = load(
            self.name,
            files=self.files,
            targets=self.targets,
            table=self.table,
            data_dir=self.data_dir,
            rebuild=self.rebuild,
        )
        seconds = time.perf_counter() - start
        describe(table, console)
        console.print(f"ready in {seconds:.2f} s")
        return 0


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    """Describe a table: sizes, columns with units, where it came from.

    Attributes:
        name: A cached table's name, or the folder of any table.
        check: Compare every byte with its checksum (always done up to 128 MiB).
        data_dir: The data folder; by default $WEFT_DATA_DIR or the user's cache folder.
    """

    name: Annotated[str, tyro.conf.Positional]
    check: bool = False
    data_dir: Path | None = None

    def __call__(self, console: Console) -> int:
        """Open the table and describe it."""
        from weft.graphs import open_table
        from weft.sources.catalogue import CATALOGUE
        from weft.sources.table_cache import data_folder

        known = CATALOGUE.get(self.name)
        table = (known.table if known is not None else None) or self.name
        cached = data_folder(self.data_dir) / f"{table}.weft"
        path = cached if cached.exists() else Path(self.name)
        if not path.exists():
            raise DataError(
                f"there is no table '{self.name}' in {cached.parent} and no such folder; "
                f"`weft data get {self.name}` builds the data sets that `weft data list` shows"
            )
        describe(open_table(path, check=True if self.check else None), console)
        return 0


def describe(table: GraphTable, console: Console) -> None:
    """Print what a table holds."""
    nodes, edges = table.num_nodes, table.num_edges
    console.print(
        f"{table.path}\n{len(table):,} graphs, {table.total_nodes:,} nodes, "
        f"{table.total_edges:,} edges, {table.num_bytes / 2**20:,.1f} MiB",
        soft_wrap=True,
    )
    if len(table) > 1:
        console.print(
            f"nodes a graph: {nodes.min()} to {nodes.max()}, mean {nodes.mean():.2f}; "
            f"edges a graph: {edges.min()} to {edges.max()}, mean {edges.mean():.2f}"
        )
    shown = Table("column", "level", "type", "unit", "what")
    for name, column in table.schema.items():
        kind = column.dtype + (str(list(column.shape)) if column.shape else "")
        shown.add_row(name, column.level, kind, column.unit, column.doc)
    console.print(shown)
    for key, value in table.metadata.items():
        console.print(f"{key}: {_short(value)}", soft_wrap=True, highlight=False)


def _short(value: Any) -> str:
    """A value of the metadata; of a long list its length, and where it begins."""
    if isinstance(value, list) and len(value) > _LISTED:
        return f"{len(value):,}: {', '.join(map(str, value[:3]))}, ..."
    return str(value)


COMMANDS = {"list": DataList, "get": DataGet, "info": DataInfo}
