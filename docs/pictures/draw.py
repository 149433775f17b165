"""Draws the pictures of the techniques from real data: `python docs/pictures/draw.py [NAME ...]`.

Each becomes NAME-light.svg and NAME-dark.svg beside this file. The data come with Python and with
the extra `data`; nothing is downloaded.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from canvas import PALETTES, Canvas

import weft
from weft.batching import BatchingConfig, GraphSampler, graph_sizes
from weft.graphs import Array, Graph, table_from_graphs
from weft.layout import band_statistics, block_fill, reorder
from weft.models import FNN, GCN, GCNConfig
from weft.parallel import (
    PUBLISHED,
    GraphShard,
    Grid,
    GridNetwork,
    Method,
    alone,
    grid_of,
    partition_nodes,
    prepare,
)
from weft.sources.program_graph import text_order
from weft.sources.python_code import samples_of
from weft.sparsify import DropAndGrow

HERE = Path(__file__).parent


def band() -> Callable[[str], Canvas]:
    """A program's graph before and after reordering, with the blocks of the banded form."""
    source = Path(textwrap.__file__).read_text(encoding="utf-8")
    graphs = [sample.graph for sample in samples_of(source, "textwrap.py").samples]
    parsed = table_from_graphs([min(graphs, key=lambda graph: abs(graph.num_nodes - 400))])
    nodes, block = parsed.total_nodes, 64
    # Graphs of programs are made in the other order, and the order of the text is found again.
    place = np.empty(nodes, dtype=np.int64)
    place[text_order(parsed)] = np.arange(nodes)
    senders, receivers = (place[parsed.columns[name]] for name in ("senders", "receivers"))
    text = table_from_graphs([Graph(num_nodes=nodes, senders=senders, receivers=receivers)])
    shown = {"order of the text": text, "reverse Cuthill-McKee": reorder(text, "rcm")}

    def draw(theme: str) -> Canvas:
        canvas = Canvas(theme, 372, "Edges of a program's graph before and after reordering")
        side, top = 250, 62
        for left, (name, table) in zip((0, 270), shown.items(), strict=True):
            scale = side / nodes
            canvas.text(left, 22, name, weight="bold")
            width = int(band_statistics(table).bandwidth[0])
            canvas.text(left, 46, f"bandwidth {width}", color="soft")
            canvas.rect(left, top, side, side, fill="pale")
            edges = range(0, nodes, block)
            for i, row in enumerate(edges):
                for column in list(edges)[max(i - 1, 0) : i + 2]:
                    high, wide = min(block, nodes - row), min(block, nodes - column)
                    canvas.rect(
                        left + column * scale,
                        top + row * scale,
                        wide * scale,
                        high * scale,
                        fill="tint",
                    )
            i, j = table.columns["receivers"], table.columns["senders"]
            inside = abs(i // block - j // block) <= 1
            for of, color in ((inside, "blue"), (~inside, "red")):
                entries = sorted(set(zip(i[of].tolist(), j[of].tolist(), strict=True)))
                places = [(left + c * scale - 0.6, top + r * scale - 0.6) for r, c in entries]
                canvas.cells(places, 1.7, 1.7, color)
            fill = block_fill(table, block)
            share = fill.inside[0] / (fill.inside[0] + fill.outside[0])
            canvas.text(left, 336, f"{share:.1%} of the edges lie in blocks")
        words = f"textwrap.py of Python, a graph of {nodes} nodes; blocks of {block} × {block}"
        canvas.text(0, 364, words, color="soft", size=14)
        return canvas

    return draw


def batches() -> Callable[[str], Canvas]:
    """The nodes of some batches of QM9 under three policies."""
    table = weft.load("qm9")
    nodes, _ = graph_sizes(table)
    # As in the tables of docs/batching.md: every atom sees every other, and the published budget.
    sizes = nodes, nodes * (nodes - 1)
    samplers = {
        policy: GraphSampler(*sizes, BatchingConfig(policy=policy, batch_size=16, paper=paper))
        for policy, paper in (("static-constant", False), ("dynamic", "qm9"), ("packed", False))
    }
    says = {
        "static-constant": "static: room for 16 of the largest",
        "dynamic": "dynamic: room for 16 of average size",
        "packed": "packed: chosen to fill the room",
    }
    found = {
        name: ([nodes[batch.graphs] for batch in sampler.plan()[:4]], sampler.budget.nodes)
        for name, sampler in samplers.items()
    }
    widest = max(room for _, room in found.values())

    def draw(theme: str) -> Canvas:
        canvas = Canvas(theme, 424, "Nodes of batches of QM9 under three policies of batching")
        colors, y = ("blue", "red", "green", "gold", "violet"), 20
        for name, (rows, room) in found.items():
            fill = samplers[name].statistics().node_fill
            canvas.text(0, y, says[name], weight="bold")
            canvas.text(520, y, f"{fill:.0%} real", anchor="end")
            y += 10
            for batch in rows:
                canvas.rect(0, y, room / widest * 520, 16, fill="pale")
                start = 0
                for number, size in enumerate(batch.tolist()):
                    canvas.rect(
                        start / widest * 520,
                        y,
                        size / widest * 520 - 1,
                        16,
                        fill=colors[number % len(colors)],
                    )
                    start += size
                y += 21
            y += 36
        canvas.text(
            0,
            y - 14,
            "Each bar is a batch, each colour a molecule of QM9, grey is padding.",
            color="soft",
            size=14,
        )
        return canvas

    return draw


def grid() -> Callable[[str], Canvas]:
    """What one rank of a 2D grid holds of Cora, and asks of others."""
    graph = weft.load("cora-package")[0]
    side, ranks = 3, grid_of("2d", 9)
    cut = partition_nodes(graph, side, "metis")
    place = np.empty(graph.num_nodes, dtype=np.int64)
    place[cut.order] = np.arange(graph.num_nodes)
    rows, columns = place[graph.receivers], place[graph.senders]
    mine = 1
    low, high = cut.offsets[mine], cut.offsets[mine + 1]
    own = (rows >= low) & (rows < high)
    outside = own & ((columns < low) | (columns >= high))
    wanted = np.unique(columns[outside])
    received = {
        name: _received(graph, ranks, side, method)
        for name, method in (("as published", PUBLISHED), ("weft", Method()))
    }

    def draw(theme: str) -> Canvas:
        canvas = Canvas(theme, 486, "What one of nine ranks holds of a graph, and what it asks for")
        scale, top = 250 / graph.num_nodes, 58
        canvas.text(0, 20, "adjacency of Cora", weight="bold")
        canvas.text(0, 42, "edges of the rank's row", color="blue")
        canvas.rect(0, top, 250, 250, fill="pale")
        canvas.rect(0, top + low * scale, 250, (high - low) * scale, fill="tint")
        for of, color in ((~own, "soft"), (own, "blue")):
            cells = {
                (int(c * scale / 2) * 2, int(r * scale / 2) * 2)
                for r, c in zip(rows[of].tolist(), columns[of].tolist(), strict=True)
            }
            canvas.cells([(x, top + y) for x, y in sorted(cells)], 1.6, 1.6, color)

        left = 300
        canvas.text(left, 20, "features, 3 × 3 blocks", weight="bold")
        canvas.text(left, 42, "its own", color="blue")
        canvas.text(left + 64, 42, "rows it asks for", color="red")
        for column in range(3):
            for row in range(3):
                a, b = cut.offsets[row], cut.offsets[row + 1]
                here = (row, column) == (mine, mine)
                canvas.rect(
                    left + column * 74,
                    top + a * scale,
                    70,
                    (b - a) * scale - 2,
                    fill="blue" if here else "pale",
                )
        lines = {int(node * scale * 2) / 2 for node in wanted}
        canvas.cells([(left + 74 * mine, top + y) for y in sorted(lines)], 70, 0.7, "red")
        for edge in cut.offsets[1:-1]:
            canvas.rect(0, top + edge * scale - 0.6, 250, 1.2, fill="line")
            canvas.rect(edge * scale - 0.6, top, 1.2, 250, fill="line")
        others = graph.num_nodes - (high - low)
        canvas.text(0, 336, f"It needs {len(wanted):,} of the {others:,} rows of the others.")

        canvas.text(0, 376, "kB that it receives in an epoch", weight="bold")
        most = max(received.values())
        for y, (name, count) in zip((390, 424), received.items(), strict=True):
            length = max(300 * count / most, 2)
            canvas.text(0, y + 17, name)
            canvas.rect(108, y, length, 24, fill="green" if name == "weft" else "line")
            canvas.text(116 + length, y + 17, f"{count / 1000:,.0f}")
        canvas.text(0, 476, "A GCN of widths 1433-16-7; partition by METIS", color="soft", size=14)
        return canvas

    return draw


def _received(graph: Graph, ranks: Grid, blocks: int, method: Method) -> int:
    """Bytes that the rank in the middle receives in an epoch after the first."""
    table = prepare(graph, None, blocks=blocks, partition="metis")
    shard = GraphShard.open(table, alone(ranks, rank=4), method)
    config = GCNConfig(hidden=(16,), input_dropout=0.0)
    network = GridNetwork(GCN(shard.features, shard.classes, config), shard)
    shard.world.recorder.clear()
    network.step(seed=0)
    return sum(total.bytes for total in shard.world.recorder.totals().values())


def masks() -> Callable[[str], Canvas]:
    """Which weights of a layer are active while RigL trains; twelve of 48 inputs matter."""
    torch.manual_seed(0)
    matter = 12
    truth = torch.randn(matter, 4)
    model = FNN((48, 32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps = 600
    method = DropAndGrow(
        model, optimizer, total_steps=steps, sparsity=0.9, every=20, death=0.3, quiet=True
    )
    first: list[Array] = []
    for step in range(steps + 1):
        if step in (0, 60, 200, steps):
            first.append(method.masks["layers.0.weight"].numpy().copy())
        x = torch.randn(4000, 48)
        y = (x[:, :matter].relu() @ truth).argmax(1)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    times = (0, 60, 200, steps)

    def draw(theme: str) -> Canvas:
        canvas = Canvas(theme, 492, "Active weights of a layer at four steps of training")
        cell, across = 5, (0, 276)
        canvas.text(0, 20, "Active weights; their share on the first 12 inputs", weight="bold")
        for number, (step, mask) in enumerate(zip(times, first, strict=True)):
            left, top = across[number % 2], 60 + number // 2 * 212
            share = mask[:, :matter].sum() / mask.sum()
            words = "at the start" if step == 0 else f"after {step} steps"
            canvas.text(left, top - 10, f"{words}, {share:.0%}")
            canvas.rect(left, top, 48 * cell, 32 * cell, fill="pale")
            canvas.rect(left, top, matter * cell, 32 * cell, fill="tint")
            for inputs, color in ((range(matter), "blue"), (range(matter, 48), "red")):
                active = [
                    (left + j * cell, top + i * cell)
                    for i, j in np.argwhere(mask).tolist()
                    if j in inputs
                ]
                canvas.cells(active, cell - 0.8, cell - 0.8, color)
        canvas.text(0, 460, "A row is a hidden unit, a column an input. Only the first twelve")
        count = int(first[0].sum())
        canvas.text(0, 480, f"inputs tell the classes apart. There are always {count} weights.")
        return canvas

    return draw


PICTURES = {"band": band, "batches": batches, "grid": grid, "masks": masks}
"""What there is to draw: each reads or trains once and is drawn in every theme."""


def main(names: list[str]) -> None:
    """Draw these pictures, or all."""
    for name in names or PICTURES:
        draw = PICTURES[name]()
        for theme in PALETTES:
            draw(theme).save(HERE, name)


if __name__ == "__main__":
    main(sys.argv[1:])
