"""The data of recipes as their options name it: read once, for training and planning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.errors import DataError
from weft.graphs import Graph, GraphTable
from weft.recipes.structures.config import StructuresConfig
from weft.recipes.structures.data import neighbour_table, some_of, structure_table
from weft.sources import CATALOGUE, labelled_graph, load


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


def read_labelled_graph(
    data: str,
    *,
    labels: Path | None = None,
    files: Sequence[Path] = (),
    data_dir: Path | None = None,
    progress: bool = True,
) -> Graph:
    """The graph of a data set whose nodes have classes, or of an edge list with a file of labels.

    Raises:
        DataError: there is no such data, it is not one graph, or nothing tells the classes.
    """
    if data in CATALOGUE:
        if labels is not None:
            raise DataError(f"'{data}' has classes of its own: leave out --labels")
        table = load(data, files=files, data_dir=data_dir, progress=progress)
        if len(table) != 1:
            raise DataError(f"'{data}' holds {len(table):,} graphs; one is wanted")
        return table[0]
    if not Path(data).exists():
        raise DataError(
            f"{data!r} is neither a file nor a data set: give an edge list with the lines src "
            "dst time, or a name that `weft data list` shows"
        )
    if labels is None:
        raise DataError(f"{data} says nothing of classes: name a file of node label: --labels")
    return labelled_graph(data, labels)
