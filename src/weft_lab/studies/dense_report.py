"""The study of dense hardware as tables and sentences, plots and claims, beside the published."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from weft.graphs import GraphTable
from weft_lab.report import Panel, Section
from weft_lab.studies.dense_hardware import (
    DenseResults,
    Slice,
    about_programs,
    measure_dense_hardware,
    program_data,
)
from weft_lab.studies.dense_layouts import BINS, FormCell, banded_from
from weft_lab.study import Finding, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What `auto` may be slower than the better form, before it is told.
_BEHIND = 0.1

STEPS = (100_000, 200_000, 300_000)
"""Training steps at which validation accuracies are published.

On the C# programs of Allamanis et al. (2018), with hidden states of 128 and 8 rounds of messages.
"""


class PublishedSlice(NamedTuple):
    """A slice of the training data.

    Attributes:
        by: "all data", "bandwidth" or "order".
        below: the limit, itself left out; None for all data.
        share: of the training graphs.
        accuracies: on all validation graphs, percent, at STEPS; None where there is none.
        cost: of an iteration, in the paper's unit.
    """

    by: str
    below: int | None
    share: float
    accuracies: tuple[float | None, float | None, float | None]
    cost: float | None


SLICES = (
    PublishedSlice("all data", None, 1.0, (78.1, 78.5, 78.9), 18.6),
    PublishedSlice("bandwidth", 1024, 0.919, (77.9, 78.5, 78.9), 3.1),
    PublishedSlice("order", 3493, 0.919, (78.2, 78.3, 78.4), 3.5),
    PublishedSlice("bandwidth", 512, 0.835, (78.0, None, None), None),
)
"""Table 6."""

_BASELINES = (("random", "random candidate", ":"), ("recent", "most recent use", "--"))


def published_slice(by: str, share: float) -> PublishedSlice | None:
    """The published slice of the same kind with about this share of the data; None without one."""
    return next((s for s in SLICES if s.by == by and abs(s.share - share) < 0.03), None)


def dense_sections(results: DenseResults) -> list[Section]:
    """All tables of the study of dense hardware."""
    parts = (_orders, _histogram, _supergraphs, _slices, _costs, _forms, _crossovers)
    return [part(results) for part in parts]


def _orders(results: DenseResults) -> Section:
    measured = {f.order: f for f in results.orders if not f.skipped}
    says = [f"{f.order} was not measured: {f.skipped}." for f in results.orders if f.skipped]
    if {"text", "rcm"} <= set(measured):
        low, high = (measured[order].percentiles["50"] for order in ("rcm", "text"))
        hubs = measured["rcm"].at_least
        says.append(
            "text is the order in which a parser numbers the nodes: tokens, then the syntax tree, "
            "then candidates. Reverse Cuthill-McKee (rcm) divides its median bandwidth by "
            f"{high / max(low, 1):.1f}. Hubs keep every order above {hubs['50']:.0f} in the median "
            f"and {hubs['100']:.0f} at most."
        )
    if results.spy is not None:
        one = results.spy
        says.append(
            f"The graph of the spy plot ({one.where}, {one.nodes} nodes) has a bandwidth of "
            f"{one.bandwidth_before} before and {one.bandwidth_after} after; no order goes below "
            f"{one.least}."
        )
    return Section(
        title=f"Bandwidth of {results.data['graphs']:,} programs by order of nodes",
        headings=("order", "median", "83%", "92%", "99%", "largest", "profile", "fill", "s"),
        rows=[
            (
                figures.order,
                *(f"{value:.0f}" for value in figures.percentiles.values()),
                *(f"{figures.mean_profile:,.0f}", f"{figures.fill:.2%}", f"{figures.seconds:.2f}"),
            )
            for figures in measured.values()
        ],
        says=says,
    )


def _histogram(results: DenseResults) -> Section:
    orders = [figures for figures in results.orders if not figures.skipped]
    rows = []
    for number, low in enumerate(BINS):
        counts = [figures.histogram[number] for figures in orders]
        if any(counts):
            high = f"{BINS[number + 1] - 1}" if number + 1 < len(BINS) else ""
            shares = (f"{c / f.graphs:.1%}" for c, f in zip(counts, orders, strict=True))
            rows.append((f"{low} – {high}", *shares))
    return Section(
        title="Programs by bandwidth and order of nodes",
        headings=("bandwidth", *(figures.order for figures in orders)),
        rows=rows,
    )


def _supergraphs(results: DenseResults) -> Section:
    return Section.of(
        "Graphs in a supergraph of N nodes with blocks of S (as in Tables 1 and 4)",
        results.supergraphs or (),
        {
            "N": "{0.nodes:,}",
            "S": "{0.block}",
            "bandwidth <= S": "{0.share:.1%}",
            "graphs": "{0.graphs:.1f}",
            "node fill": "{0.node_fill:.1%}",
            "cell fill": "{0.cell_fill:.3%}",
            "MB of blocks": "{0.megabytes:.1f}",
            "M products a graph": "{0.products:.1f}",
        },
        says=[
            "Smaller blocks leave out wide graphs, which are the large ones, so more of the rest "
            "fit, and each costs less: blocks hold 3 S cells a node and type whatever is in them."
        ],
    )


def _slices(results: DenseResults) -> Section:
    rows: list[tuple[str, ...]] = []
    trained = [each for each in results.slices if each.curve]
    for each in trained:
        theirs = published_slice(each.by, each.share)
        accuracies = []
        for number in range(len(STEPS)):
            # When this part of the graphs was seen.
            part = each.curve[-1][0] * (number + 1) / len(STEPS) - 1e-9
            own = next(accuracy for seen, _, accuracy in each.curve if seen >= part)
            beside = theirs.accuracies[number] if theirs else None
            accuracies.append(f"{own:.1%}" + (f" ({beside})" if beside else ""))
        seen, steps, _ = each.curve[-1]
        rows.append((f"{each.share:.1%}", each.name, *accuracies, f"{seen:,}", f"{steps:,}"))
    says = []
    if trained:
        base = results.baselines
        for name, label, _ in _BASELINES:
            rows.append(("", label, "", "", f"{base[name]:.1%}", "", ""))
        says.append(_verdict(trained, int(base["graphs"])))
    return Section(
        title="Validation accuracy on slices of the training data (as in Table 6); in brackets "
        "what was published, on C#, after " + ", ".join(f"{steps:,}" for steps in STEPS) + " steps",
        headings=("data", "slice", "a third", "two thirds", "all graphs seen", "graphs", "steps"),
        rows=rows,
        says=says,
        narrow=("data", "slice", "a third", "two thirds", "all graphs seen"),
    )


def _verdict(trained: list[Slice], graphs: int) -> str:
    best = max(each.curve[-1][2] for each in trained)
    error = math.sqrt(max(best * (1 - best), 1e-9) / graphs)
    widest = best - min(each.curve[-1][2] for each in trained)
    account = (
        "All slices see as many graphs in about as many steps, and are evaluated on all "
        f"{graphs:,} validation graphs, whose accuracy has a standard error of {error:.1%}: "
        f"the slices are {widest:.1%} apart"
    )
    if widest < 2 * error:
        return f"{account}, less than two of these. One training each."
    return f"{account}. One training each: a seed more or less moves them too."


def _costs(results: DenseResults) -> Section:
    base = results.slices[0] if results.slices else None
    whole = SLICES[0].cost
    rows: list[tuple[str, ...]] = []
    says = []
    for each in results.slices:
        theirs = published_slice(each.by, each.share)
        cells = []
        for form in ("banded", "csr"):
            own = each.milliseconds_a_graph(form)
            first = base.milliseconds_a_graph(form) if base else None
            cells += ["" if own is None else f"{own:.3g}"]
            cells += ["" if own is None or first is None else f"{own / first:.2f}"]
        known = theirs.cost if theirs else None
        published = "" if known is None or whole is None else f"{known / whole:.2f} ({known})"
        if any(cells):
            rows.append((f"{each.share:.1%}", each.name, str(each.block), *cells, published))
        says += [f"{each.name}: {form} was not timed: {why}." for form, why in each.skipped.items()]
    says.append(
        "An iteration is a training step of one supergraph, forward and backward; blocks are the "
        "smallest that hold every edge of the slice. The published cost is of an iteration on a "
        "TPU, in the paper's unit, here also as a multiple of that of all data."
    )
    return Section(
        title=f"Cost of an iteration on slices, ms a graph (N about "
        f"{results.config.training_nodes:,}, H = {results.config.hidden}, "
        f"T = {results.config.steps})",
        headings=("data", "slice", "S", "banded", "of all", "csr", "of all ", "published of all"),
        rows=rows,
        says=says,
    )


def _forms(results: DenseResults) -> Section:
    measured = [cell for cell in results.cells if cell.measured]
    says = [
        "Synthetic graphs with edges |i - j| <= S only; a round of messages, forward and backward. "
        "The last column is how much longer the form that auto chose takes than the better of the "
        "two; where it chose that one, 0."
    ]
    if measured:
        late = [cell for cell in measured if cell.behind > _BEHIND]
        worst = max(cell.behind for cell in measured)
        says.append(
            f"auto is within {_BEHIND:.0%} of the better in {len(measured) - len(late)} of "
            f"{len(measured)} cases; at worst {worst:+.0%}."
        )
    skipped = [cell for cell in results.cells if cell.skipped]
    if skipped:
        named = ", ".join(f"P = {c.types}, S = {c.block}, {c.density:g}" for c in skipped)
        says.append(f"Not measured, with too many edges or too large blocks: {named}.")

    def milliseconds(form: str) -> Callable[[FormCell], str]:
        return lambda cell: f"{1e3 * cell.seconds(form):.3g}"

    def model(form: str) -> Callable[[FormCell], str]:
        return lambda cell: f"{1e3 * cell.estimated[form]:.3g}"

    return Section.of(
        f"Banded against csr, ms ({results.config.form_nodes:,} nodes, "
        f"H = {results.config.hidden})",
        measured,
        {
            "P": "{0.types}",
            "S": "{0.block}",
            "density": "{0.density:g}",
            "edges": "{0.edges:,}",
            "csr": milliseconds("csr"),
            "csr model": model("csr"),
            "banded": milliseconds("banded"),
            "banded model": model("banded"),
            "faster": lambda cell: min(("csr", "banded"), key=cell.seconds),
            "auto takes": "{0.chosen}",
            "auto": milliseconds("auto"),
            "behind": "{0.behind:+.0%}",
        },
        says=says,
        narrow=("P", "S", "density", "csr", "banded", "faster", "auto takes", "behind"),
    )


def _by_block(results: DenseResults) -> list[list[FormCell]]:
    """The cells that were measured, by number of types and block."""
    measured = [cell for cell in results.cells if cell.measured]
    return [list(group) for _, group in groupby(measured, lambda cell: (cell.types, cell.block))]


def _crossovers(results: DenseResults) -> Section:
    def density(cells: Sequence[FormCell], *, estimated: bool) -> str:
        found = banded_from(cells, estimated=estimated)
        return found if isinstance(found, str) else f"{found:.3f}"

    def looked_at(cells: Sequence[FormCell]) -> str:
        densities = [cell.density for cell in cells]
        return f"{min(densities):g} – {max(densities):g}"

    return Section.of(
        "From which density on banded is faster than csr",
        [cells for cells in _by_block(results) if len(cells) > 1],
        {
            "P": "{0[0].types}",
            "S": "{0[0].block}",
            "measured": partial(density, estimated=False),
            "by the cost model": partial(density, estimated=True),
            "densities looked at": looked_at,
        },
    )


def dense_figures(results: DenseResults) -> dict[str, list[Panel]]:
    """Bandwidths, supergraphs, accuracies, crossovers, and a PNG of one graph's edges."""
    counts, one = results.supergraphs or [], results.spy
    measured = [cell for cell in results.cells if cell.measured]
    trained = [each for each in results.slices if each.curve]
    figures: dict[str, list[Panel]] = {
        "bandwidth.svg": [("programs by bandwidth", _draw_bandwidths, results)],
        "supergraphs.svg": [
            (title, _draw_supergraphs, results, what)
            for title, what in (("graphs in a supergraph", "graphs"), ("graphs that fit", "share"))
            if counts
        ],
        "accuracy.svg": [("trained on slices", _draw_accuracies, results)] if trained else [],
        "crossover.svg": [
            (f"P = {types}", _draw_gains, list(group))
            for types, group in groupby(measured, lambda cell: cell.types)
        ],
    }
    if one is not None:
        figures["spy.png"] = [
            (f"before: bandwidth {one.bandwidth_before}", _draw_dots, one.before, one.nodes),
            (f"after: bandwidth {one.bandwidth_after}", _draw_dots, one.after, one.nodes),
        ]
    return figures


def _draw_bandwidths(ax: Axes, results: DenseResults) -> None:
    for figures in results.orders:
        if not figures.skipped:
            shares = [100 * count / figures.graphs for count in figures.histogram]
            ax.step(range(len(BINS)), shares, where="mid", label=figures.order)
    ax.set_xticks(range(len(BINS)), [str(low) for low in BINS], fontsize=8)
    ax.set(xlabel="bandwidth, from", ylabel="% of the programs")


def _draw_supergraphs(ax: Axes, results: DenseResults, what: str) -> None:
    counts = results.supergraphs or []
    for asked in results.config.nodes:
        # N is rounded up to a multiple of each block.
        own = [count for count in counts if 0 <= count.nodes - asked < count.block]
        values = [getattr(count, what) for count in own]
        ax.plot([count.block for count in own], values, "o-", label=f"N = {asked:,}")
    blocks = sorted({count.block for count in counts})
    ax.set_xscale("log", base=2)
    ax.set_xticks(blocks, [str(block) for block in blocks])
    ax.set(xlabel="block", ylim=(0, None))


def _draw_accuracies(ax: Axes, results: DenseResults) -> None:
    for each in results.slices:
        if each.curve:
            seen, _, accuracies = zip(*each.curve, strict=True)
            label = f"{each.name} ({each.share:.0%})"
            ax.plot(seen, [100 * a for a in accuracies], "o-", markersize=3, label=label)
    for name, label, style in _BASELINES:
        ax.axhline(100 * results.baselines[name], color="0.4", linestyle=style, label=label)
    ax.set(xlabel="graphs seen", ylabel="validation accuracy, %", ylim=(0, None))


def _draw_gains(ax: Axes, cells: list[FormCell]) -> None:
    for number, (block, group) in enumerate(groupby(cells, lambda cell: cell.block)):
        own = list(group)
        densities = [cell.density for cell in own]
        gains = [cell.seconds("csr") / cell.seconds("banded") for cell in own]
        ax.plot(densities, gains, "o-", color=f"C{number}", label=f"S = {block}")
        expected = [cell.estimated["csr"] / cell.estimated["banded"] for cell in own]
        ax.plot(densities, expected, ":", color=f"C{number}")
    ax.axhline(1, color="0.4", linewidth=0.8)
    ax.set(xscale="log", yscale="log", xlabel="density (dotted: cost model)")
    ax.set_ylabel("time of csr / time of banded")


def _draw_dots(ax: Axes, pairs: list[list[int]], nodes: int) -> None:
    receivers, senders = pairs
    ax.plot(senders, receivers, ".", markersize=1.5, color="C0")
    ax.set(xlim=(-0.5, nodes - 0.5), ylim=(nodes - 0.5, -0.5), aspect="equal")
    ax.set(xlabel="sender", ylabel="receiver")


def dense_findings(results: DenseResults) -> Iterator[Finding]:
    """Orders, slices and forms."""
    orders = {figures.order: figures for figures in results.orders if not figures.skipped}
    if {"text", "rcm"} <= set(orders):
        before, after = (orders[name].percentiles for name in ("text", "rcm"))
        yield (
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
            yield (
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
            yield (
                "and costs no accuracy",
                f"{all_data.accuracies[2]}% with all data, {theirs.accuracies[2]}% without",
                f"{ours[0]:.1f}% with all data, {ours[1]:.1f}% without (standard error "
                f"{error:.1f}, one training each)",
                ours[1] > ours[0] - 2 * error,
            )
        sparse = whole.milliseconds_a_graph("csr")
        if sparse and costs[0] and costs[1]:
            yield (
                "Banded blocks are the faster way to train on these graphs",
                "13 minutes on a TPU pod instead of almost a day",
                f"{costs[1]:.3g} ms a graph in blocks of {narrow.block}, "
                f"{narrow.milliseconds_a_graph('csr') or sparse:.3g} ms sparse",
                costs[1] < (narrow.milliseconds_a_graph("csr") or sparse),
            )
    found = []
    for cells in _by_block(results):
        density = banded_from(cells)
        if isinstance(density, float):
            found.append(f"{density:.2f} (S = {cells[0].block}, {cells[0].types} types)")
    if found:
        yield (
            "Dense blocks win where bands are dense enough",
            "no crossover is published",
            f"from {', '.join(found)} of the band filled on",
            None,
        )


DENSE_HARDWARE: Study[GraphTable, DenseResults] = Study(
    paper="Balog et al. (2019), Fast Training of Sparse Graph Neural Networks on Dense Hardware",
    results=DenseResults,
    load=program_data,
    about=about_programs,
    measure=measure_dense_hardware,
    sections=dense_sections,
    figures=dense_figures,
    findings=dense_findings,
)
"""Sparse graphs of programs on dense hardware."""
