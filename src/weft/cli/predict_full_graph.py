"""`weft predict RUN` of a run on one big graph: a class for every node, as CSV."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from weft.errors import DataError
from weft.recipes.full_graph.prediction import predict_nodes
from weft.training import prepare_process

_SHOWN = 10


def predict_full_graph(
    run: Path,
    file: Path | None,
    console: Console,
    *,
    out: Path | None,
    features: Path | None,
    ranks: int,
    data_dir: Path | None,
) -> int:
    """Classify every node of the run's graph, or of the one in `file`, and show the first."""
    out = out or Path(f"{(file or run).resolve().stem}-predicted.csv")
    if out.suffix != ".csv":
        raise DataError(f"{out} is no file for classes of nodes; name one that ends with .csv")
    if not out.parent.is_dir():
        raise DataError(f"{out} cannot be written: there is no folder {out.parent}")
    if features is not None and file is None:
        raise DataError(f"--features {features} goes with an edge list: weft predict {run} FILE")
    if ranks < 1:
        raise DataError(f"--ranks is {ranks}; it must be at least 1")
    prepare_process()
    found = predict_nodes(
        run,
        out,
        data=None if file is None else str(file),
        features=None if features is None else str(features),
        ranks=ranks,
        data_dir=data_dir,
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("node", "class", "probability"):
        table.add_column(heading, justify="right")
    for node, kind, chance in found[:_SHOWN].tolist():
        table.add_row(str(node), str(kind), f"{chance:.4f}")
    console.print(table)
    more = len(found) - _SHOWN
    console.print(
        f"{f'... and {more:,} more. ' if more > 0 else ''}Written to {out}.", soft_wrap=True
    )
    return 0
