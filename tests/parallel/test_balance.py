"""Even ranks, against counts in plain Python, on graphs with hubs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.graphs import Graph
from weft.parallel.balance import imbalance, least_imbalance, panel_nonzeros
from weft.parallel.grid import grid_of, grids_for
from weft.parallel.partition import partition_nodes
from weft.parallel.prepare import prepare
from weft.parallel.traffic_formulas import count_graph
from weft.sources import read_edge_list, rmat, shchur

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
SHAPES = ("2x2", "45x45", "64x32", "2x2x2", "16x8x16")


def with_loops(graph):
    """As the matrix of a GCN has them."""
    own = np.arange(graph.num_nodes)
    return Graph(
        num_nodes=graph.num_nodes,
        senders=np.concatenate([graph.senders, own]),
        receivers=np.concatenate([graph.receivers, own]),
    )


def blocks_of(parts):
    blocks = np.empty(len(parts.order), dtype=np.int64)
    blocks[parts.order] = np.repeat(np.arange(len(parts.offsets) - 1), np.diff(parts.offsets))
    return blocks


def imbalances(graph, grid, how):
    blocks = blocks_of(partition_nodes(graph, grid.blocks, how, grid=grid))
    ends = graph.senders, graph.receivers
    return [imbalance(panel_nonzeros(grid, blocks, *ways)) for ways in (ends, ends[::-1])]


@pytest.mark.parametrize("grid", [*grids_for(8), grid_of("3x2x2", 12)], ids=str)
def test_panels_are_what_ranks_count(grid):
    rng = np.random.default_rng(0)
    graph = Graph(
        num_nodes=40, senders=rng.integers(40, size=200), receivers=rng.integers(40, size=200)
    )
    parts = partition_nodes(graph, grid.blocks, "balanced", grid=grid)
    blocks = blocks_of(parts)
    place = np.argsort(parts.order)
    ends = place[graph.senders], place[graph.receivers]
    sizes = count_graph(grid, parts.offsets, *ends, np.ones(40, dtype=bool))
    found = panel_nonzeros(grid, blocks, graph.senders, graph.receivers)
    back = panel_nonzeros(grid, blocks, graph.receivers, graph.senders)
    for own in sizes:
        at = own.place.row, own.place.layer
        assert found[at] == own.forward.nonzeros.sum()
        assert back[at] == own.backward.nonzeros.sum()
    assert found.sum() == back.sum() == 200


@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_of_a_graph_with_hubs_are_even(shape):
    grid = grid_of(shape, int(np.prod([int(side) for side in shape.split("x")])))
    graph = with_loops(rmat(8192, 300_000, seed=1))
    least = least_imbalance(grid, graph)
    found = imbalances(graph, grid, "balanced")
    # On 45 and 64 rows one node has more edges than the mean rank.
    assert (least > 1.2) == (shape in ("45x45", "64x32"))
    assert least <= max(found) < 1.01 * least
    if grid.ranks > 64:
        assert max(imbalances(graph, grid, "random")) > 1.1


def test_a_hub_is_as_even_as_it_can_be():
    # All edges enter one node: on 4 ranks in 1D one has them all, on 2 x 2 panels two have half.
    star = Graph(num_nodes=9, senders=np.arange(1, 9), receivers=np.zeros(8, dtype=np.int64))
    for grid, bound in ((grid_of("1d", 4), 4.0), (grid_of("2x1x2", 4), 2.0)):
        assert least_imbalance(grid, star) == bound
        assert max(imbalances(star, grid, "balanced")) == bound


def test_what_a_prepared_graph_says_of_its_grid():
    graph = rmat(512, 4000, seed=2)
    labels = np.arange(512) % 3
    masks = {part: labels == number for number, part in enumerate(("train", "validation", "test"))}
    nodes = {"x": np.ones((512, 2), dtype=np.float32), "y": labels, **masks}
    graph = Graph(num_nodes=512, senders=graph.senders, receivers=graph.receivers, nodes=nodes)
    grid = grid_of("3d", 8)
    table = prepare(graph, blocks=4, partition="balanced", grid=grid)
    about = table.metadata["partition"]
    assert about["imbalance_nodes"] == 1
    own = table[0]
    block = np.repeat(np.arange(4), 128)
    counts = np.zeros((2, 2))
    np.add.at(counts, (block[own.receivers] // 2, block[own.senders] % 2), 1)
    assert about["imbalance_edges"] == counts.max() / counts.mean() < 1.01
    with pytest.raises(ValueError, match="blocks is 3; the grid 2x2x2 has 4"):
        prepare(graph, blocks=3, partition="balanced", grid=grid)


@pytest.mark.parametrize("name", ["coauthor-physics.zip", "soc-Epinions1.edgelist.gz"])
def test_real_graphs(name):
    path = next((folder / name for folder in DATA.glob("*") if (folder / name).exists()), None)
    if path is None:
        pytest.skip("shared data set not here")
    if path.suffix == ".zip":
        graph = shchur(path)
    else:
        listed = read_edge_list(path, columns=("src", "dst"))
        graph = Graph(
            num_nodes=listed.num_nodes, senders=listed.senders, receivers=listed.receivers
        )
    for shape, ranks in (("45x45", 2025), ("16x8x16", 2048)):
        assert max(imbalances(with_loops(graph), grid_of(shape, ranks), "balanced")) < 1.01
