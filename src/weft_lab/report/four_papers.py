"""What the four papers claim, what they published, and what their studies measured here."""

from __future__ import annotations

import statistics
from itertools import groupby

from weft.sparsify import table_ii
from weft_lab.report.claims import Claim
from weft_lab.studies import (
    CommunicationResults,
    DenseResults,
    SparsificationResults,
    StudyResults,
    compare,
)
from weft_lab.studies.communication_report import largest_difference
from weft_lab.studies.dense_crossover import crossover
from weft_lab.studies.dense_published import SLICES
from weft_lab.studies.published import FILLS, MILLISECONDS, SHAPES
from weft_lab.studies.sparsification_published import COLUMNS, TABLE_II
from weft_lab.studies.sparsification_report import matching

_BALOG = "Balog et al. (2019), Fast Training of Sparse Graph Neural Networks on Dense Hardware"
_TRIPATHY = "Tripathy et al. (2020), Reducing Communication in Graph Neural Network Training"
_PENG = "Peng, Gurevin et al. (2022), Towards Sparsification of Graph Neural Networks"
_SPECKHARD = "Speckhard et al. (2025), Training speedups via batching for geometric learning"

# A test with a corrected p below this says that means differ.
_LEVEL = 0.05
# Points of accuracy or AUC within which two models are called as good as each other.
_POINTS = 1.5


class _Claims:
    """The claims of one paper, by the command that measured them."""

    def __init__(self, paper: str, command: str) -> None:
        self.paper, self.command = paper, command
        self.found: list[Claim] = []

    def add(self, words: str, published: str, measured: str, holds: bool | None) -> None:
        self.found.append(
            Claim(
                paper=self.paper,
                claim=words,
                published=published,
                measured=measured,
                command=self.command,
                holds=holds,
            )
        )


def dense_hardware_claims(results: DenseResults) -> list[Claim]:
    """Orders, slices and forms."""
    claims = _Claims(_BALOG, results.command)

    orders = {figures.order: figures for figures in results.orders if not figures.skipped}
    if {"text", "rcm"} <= set(orders):
        before, after = (orders[name].percentiles for name in ("text", "rcm"))
        claims.add(
            "Reverse Cuthill-McKee makes graphs of programs narrow",
            "bandwidth below 512 in 83.5% and below 1,024 in 91.9% of C# programs",
            f"Python programs: below {after['83'] + 1:.0f} in 83% and below "
            f"{after['92'] + 1:.0f} in 92%; in the parser's order {before['83'] + 1:.0f} and "
            f"{before['92'] + 1:.0f}",
            after["50"] < before["50"],
        )
    whole = next((each for each in results.slices if each.limit is None), None)
    narrow = next((each for each in results.slices if each.by == "bandwidth"), None)
    if whole is not None and narrow is not None:
        all_data, theirs = SLICES[0], SLICES[1]
        assert all_data.cost is not None
        assert theirs.cost is not None
        costs = [each.milliseconds_a_graph("banded") for each in (whole, narrow)]
        if costs[0] and costs[1]:
            claims.add(
                "Leaving out wide graphs makes a step several times cheaper",
                f"{theirs.cost / all_data.cost:.2f} of the cost with {theirs.share:.1%} of the "
                "data, TPU",
                f"{costs[1] / costs[0]:.2f} of the cost with {narrow.share:.1%} of the data",
                costs[1] < costs[0] / 2,
            )
        if whole.curve and narrow.curve:
            ours = [100 * each.curve[-1][2] for each in (whole, narrow)]
            graphs = results.baselines["graphs"]
            error = 100 * (0.5 / graphs**0.5)
            claims.add(
                "and costs no accuracy",
                f"{all_data.accuracies[2]}% with all data, {theirs.accuracies[2]}% without",
                f"{ours[0]:.1f}% with all data, {ours[1]:.1f}% without (standard error "
                f"{error:.1f}, one training each)",
                ours[1] > ours[0] - 2 * error,
            )
        sparse = whole.milliseconds_a_graph("csr")
        if sparse and costs[0] and costs[1]:
            claims.add(
                "Banded blocks are the faster way to train on these graphs",
                "13 minutes on a TPU pod instead of almost a day",
                f"{costs[1]:.3g} ms a graph in blocks of {narrow.block}, "
                f"{narrow.milliseconds_a_graph('csr') or sparse:.3g} ms sparse",
                costs[1] < (narrow.milliseconds_a_graph("csr") or sparse),
            )
    found = _crossovers(results)
    if found:
        claims.add(
            "Dense blocks win where bands are dense enough",
            "no crossover is published",
            f"from {found} of the band filled on",
            None,
        )
    return claims.found


def _crossovers(results: DenseResults) -> str:
    measured = [cell for cell in results.cells if cell.measured]
    found = []
    for (types, block), group in groupby(measured, lambda cell: (cell.types, cell.block)):
        density = crossover(list(group))
        if isinstance(density, float):
            found.append(f"{density:.2f} (S = {block}, {types} types)")
    return ", ".join(found)


def communication_claims(results: CommunicationResults) -> list[Claim]:
    """Bytes, formulas and accuracy."""
    claims = _Claims(_TRIPATHY, results.command)

    shared = [cell for cell in results.cells if cell.ranks > 1]
    published = [cell for cell in shared if cell.method == "published"]
    most = max((c.ranks for c in published if c.grid.name == "2d"), default=0)
    at_most = {c.grid.name: c.mean for c in published if c.ranks == most}
    if {"1d", "2d"} <= set(at_most):
        ratio = at_most["1d"] / at_most["2d"]
        claims.add(
            "On many ranks 2D moves fewer words than 1D",
            "by their formulas 9.0 GB instead of 20.0 on 64 ranks, for 14 million nodes",
            f"{ratio:.2f} times fewer on {most} ranks",
            ratio > 1,
        )
    if shared:
        wrong = sum(len(cell.differing) for cell in shared)
        total = sum(len(cell.records) for cell in shared)
        claims.add(
            "Communication is what the formulas say",
            "formulas",
            f"bytes received equal the formulas on {total - wrong} of {total} ranks",
            wrong == 0,
        )
    if results.accuracies:
        serial = results.accuracies[0]
        worst = max(largest_difference(run, serial) for run in results.accuracies)
        claims.add(
            "Every grid learns what one process learns",
            "exact algorithms",
            f"losses of any epoch differ by at most {worst:.1e} in float64",
            worst < 1e-8,
        )
    top = max((cell.ranks for cell in shared), default=0)
    line = [c.mean for c in published if c.ranks == top and c.grid.name == "1d"]
    for method, words in (
        ("reductions", "Order of products, kept products and panels: the same with less"),
        ("sparsity-aware", "Only the rows that are needed travel"),
    ):
        own = [c.mean for c in shared if c.ranks == top and c.method == method and c.mean > 0]
        if line and own:
            claims.add(
                words,
                "not in the paper",
                f"{line[0] / min(own):.1f} times fewer bytes than 1D as published, on {top} ranks",
                None,
            )
    return claims.found


def sparsification_claims(results: SparsificationResults) -> list[Claim]:
    """FLOPs, accuracy and time."""
    claims = _Claims(_PENG, results.command)

    pairs = [
        (getattr(row, column), printed)
        for row in table_ii()
        for column, printed in zip(COLUMNS, TABLE_II[row.dataset], strict=True)
    ]
    equal = sum(f"{v:.{len(p.partition('.')[2])}f}" == p for v, p in pairs)
    claims.add(
        "Training FLOPs fall to a tenth and below (Table II)",
        "0.094 of dense with dense, 0.0067 with sparse embeddings",
        f"{equal} of {len(pairs)} entries equal to every printed digit",
        equal == len(pairs),
    )
    sparsity = results.config.curve_sparsity
    extreme = max((*results.config.sparsities, sparsity))
    for at, words, least in (
        (sparsity, "Sparse training is as accurate as SLR", -_POINTS),
        (extreme, "and much more accurate under extreme sparsity", _POINTS),
    ):
        gaps = _ahead(results, at)
        if gaps:
            claims.add(
                f"{words}, at {at:g}",
                "comparable accuracy" if least < 0 else "much higher, most of all for classes",
                "RigL against SLR: "
                + "; ".join(f"{name} {gap:+.2f} points" for name, gap in gaps.items()),
                all(gap > least for gap in gaps.values()),
            )
    for network in results.config.networks:
        cells = [c for c in results.cells if c.network == network and c.mode == "training"]
        if cells:
            cell = min(cells, key=lambda c: abs(c.sparsity - sparsity))
            claims.add(
                f"Sparse weights are faster too: a training step of {network}",
                "left open",
                f"{cell.speedup('accelerate'):.2f} times as fast as dense at {cell.sparsity:g}, "
                f"FLOPs {cell.flops:.1f} times fewer; masks on dense weights "
                f"{cell.speedup('masks'):.2f}",
                None,
            )
    return claims.found


def _ahead(results: SparsificationResults, sparsity: float) -> dict[str, float]:
    """Points by which RigL is more accurate than SLR on dense inputs, by task."""
    names = {"links": "AUC of links", "nodes": "accuracy, FNN", "gcn": "accuracy, GCN"}
    gaps = {}
    for task in results.config.tasks:
        scores = [
            [run.score for run in matching(results.of(task), way, "dense", sparsity)]
            for way in ("rigl", "slr")
        ]
        if all(scores):
            rigl, slr = map(statistics.fmean, scores)
            gaps[names[task]] = 100 * (rigl - slr)
    return gaps


def batching_claims(results: StudyResults) -> list[Claim]:
    """Shapes, fill, time and error."""
    claims = _Claims(_SPECKHARD, results.command)

    counts = {(c.policy, c.batch_size): c for c in results.shapes.get("qm9", ())}
    sizes = sorted({size for _, size in counts})
    if sizes and ("dynamic", sizes[-1]) in counts:
        size = sizes[-1]
        dynamic, rounded = counts["dynamic", size], counts.get(("static-64", size))
        if rounded is not None:
            claims.add(
                "Dynamic batches have one shape, static-64 many",
                f"1 and {SHAPES['static-64'].get(size, '?')} on QM9 at batch size {size}",
                f"{dynamic.shapes_without_tails} and {rounded.shapes_without_tails} in "
                f"{dynamic.steps:,} steps",
                dynamic.shapes_without_tails == 1 < rounded.shapes_without_tails,
            )
        theirs = FILLS.get(size)
        if theirs is not None:
            claims.add(
                "Dynamic batches are nearly full",
                f"{theirs.node_fill:.3f} of the nodes, {theirs.edge_fill:.3f} of the edges",
                f"{dynamic.node_fill:.3f} of the nodes, {dynamic.edge_fill:.3f} of the edges",
                abs(dynamic.node_fill - theirs.node_fill) < 0.01,
            )
    timed = [t for t in results.cells if t.graphs and t.cell.mode == "eager"]
    ratios = []
    for _, group in groupby(timed, lambda t: (t.cell.data, t.cell.model, t.cell.batch_size)):
        cells = list(group)
        fast = max(cells, key=lambda t: t.graphs_per_second)
        slow = min(cells, key=lambda t: t.graphs_per_second)
        ratios.append((fast.graphs_per_second / slow.graphs_per_second, fast, slow))
    if ratios:
        ratio, fast, slow = max(ratios, key=lambda each: each[0])
        step = MILLISECONDS["painn", 128]
        claims.add(
            "The algorithm of batching decides the speed, up to",
            f"{step['static-2^n'] / step['dynamic']:.1f} times (PaiNN on QM9, 128 graphs, A100, "
            "compiled)",
            f"{ratio:.1f} times ({fast.cell.model} on {fast.cell.data}, {fast.cell.batch_size} "
            f"graphs: {fast.cell.policy} over {slow.cell.policy}, eager)",
            ratio > 1,
        )
        winners = {each[1].cell.policy for each in ratios}
        claims.add(
            "No algorithm is the fastest everywhere",
            "it depends on data, model, batch size, hardware and number of steps",
            f"fastest here: {', '.join(sorted(winners))}",
            len(winners) > 1,
        )
    pairs = [each for errors in results.errors.values() for each in compare(errors)]
    if pairs:
        apart = [each for each in pairs if each.corrected < _LEVEL]
        claims.add(
            "For some combinations it also changes the test error",
            "significant differences, not corrected for the number of tests",
            f"{len(apart)} of {len(pairs)} pairs of policies differ (Welch's t-test, Holm)",
            bool(apart),
        )
    return claims.found
