"""The study of dense hardware as tables and sentences."""

from __future__ import annotations

import math
from itertools import groupby

from weft_lab.studies.dense_crossover import FormCell, crossover
from weft_lab.studies.dense_orders import BINS, OrderFigures
from weft_lab.studies.dense_published import SLICES, STEPS, published_slice
from weft_lab.studies.dense_results import DenseResults
from weft_lab.studies.dense_slices import Slice
from weft_lab.studies.sections import Section

# What `auto` may be slower than the better form, before it is told.
_BEHIND = 0.1


def dense_report(results: DenseResults) -> list[Section]:
    """All tables of the study of dense hardware, those that have rows."""
    sections = [
        _orders(results),
        _histogram(results),
        _supergraphs(results),
        _slices(results),
        _costs(results),
        _forms(results),
        _crossovers(results),
    ]
    return [section for section in sections if section.rows]


def _orders(results: DenseResults) -> Section:
    measured = {f.order: f for f in results.orders if not f.skipped}
    rows = [
        (
            figures.order,
            *(f"{value:.0f}" for value in figures.percentiles.values()),
            f"{figures.mean_profile:,.0f}",
            f"{figures.fill:.2%}",
            f"{figures.seconds:.2f}",
        )
        for figures in measured.values()
    ]
    says = [f"{f.order} was not measured: {f.skipped}." for f in results.orders if f.skipped]
    if {"text", "rcm"} <= set(measured):
        says += _reduction(measured["text"], measured["rcm"])
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
        rows=rows,
        says=says,
    )


def _reduction(before: OrderFigures, after: OrderFigures) -> list[str]:
    low, high = after.percentiles["50"], before.percentiles["50"]
    hubs = after.at_least
    return [
        "text is the order in which a parser numbers the nodes: tokens, then the syntax tree, then "
        f"candidates. Reverse Cuthill-McKee (rcm) divides its median bandwidth by "
        f"{high / max(low, 1):.1f}. Hubs keep every order above {hubs['50']:.0f} in the median and "
        f"{hubs['100']:.0f} at most."
    ]


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
    rows: list[tuple[str, ...]] = [
        (
            f"{count.nodes:,}",
            str(count.block),
            f"{count.share:.1%}",
            f"{count.graphs:.1f}",
            f"{count.node_fill:.1%}",
            f"{count.cell_fill:.3%}",
            f"{count.megabytes:.1f}",
            f"{count.products:.1f}",
        )
        for count in results.supergraphs or ()
    ]
    return Section(
        title="Graphs in a supergraph of N nodes with blocks of S (as in Tables 1 and 4)",
        headings=(
            "N",
            "S",
            "bandwidth <= S",
            "graphs",
            "node fill",
            "cell fill",
            "MB of blocks",
            "M products a graph",
        ),
        rows=rows,
        says=[
            "Smaller blocks leave out wide graphs, which are the large ones, so more of the rest "
            "fit, and each costs less: blocks hold 3 S cells a node and type whatever is in them."
        ],
    )


def _at(slice_: Slice, part: float) -> float | None:
    """Accuracy when this part of the graphs was seen."""
    if not slice_.curve:
        return None
    total = slice_.curve[-1][0]
    return next(a for seen, _, a in slice_.curve if seen >= part * total - 1e-9)


def _slices(results: DenseResults) -> Section:
    rows: list[tuple[str, ...]] = []
    trained = [each for each in results.slices if each.curve]
    for each in trained:
        theirs = published_slice(each.by, each.share)
        accuracies = []
        for number in range(len(STEPS)):
            own = _at(each, (number + 1) / len(STEPS))
            beside = theirs.accuracies[number] if theirs else None
            accuracies.append(f"{own:.1%}" + (f" ({beside})" if beside else ""))
        seen, steps, _ = each.curve[-1]
        rows.append((f"{each.share:.1%}", each.name, *accuracies, f"{seen:,}", f"{steps:,}"))
    says = []
    if trained:
        base = results.baselines
        for name, label in (("random", "random candidate"), ("recent", "most recent use")):
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
    rows: list[tuple[str, ...]] = []
    measured = [cell for cell in results.cells if cell.measured]
    for cell in measured:
        csr, banded, auto = (1e3 * cell.seconds(form) for form in ("csr", "banded", "auto"))
        rows.append(
            (
                str(cell.types),
                str(cell.block),
                f"{cell.density:g}",
                f"{cell.edges:,}",
                f"{csr:.3g}",
                f"{1e3 * cell.estimated['csr']:.3g}",
                f"{banded:.3g}",
                f"{1e3 * cell.estimated['banded']:.3g}",
                "banded" if banded < csr else "csr",
                cell.chosen,
                f"{auto:.3g}",
                f"{cell.behind:+.0%}",
            )
        )
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
    return Section(
        title=f"Banded against csr, ms ({results.config.form_nodes:,} nodes, "
        f"H = {results.config.hidden})",
        headings=(
            "P",
            "S",
            "density",
            "edges",
            "csr",
            "csr model",
            "banded",
            "banded model",
            "faster",
            "auto takes",
            "auto",
            "behind",
        ),
        rows=rows,
        says=says,
        narrow=("P", "S", "density", "csr", "banded", "faster", "auto takes", "behind"),
    )


def _crossovers(results: DenseResults) -> Section:
    rows: list[tuple[str, ...]] = []
    measured = [cell for cell in results.cells if cell.measured]
    for (types, block), group in groupby(measured, lambda cell: (cell.types, cell.block)):
        cells = list(group)
        low, high = cells[0].density, cells[-1].density
        if len(cells) < 2:
            continue
        rows.append(
            (
                str(types),
                str(block),
                _density(cells, estimated=False),
                _density(cells, estimated=True),
                f"{min(low, high):g} – {max(low, high):g}",
            )
        )
    return Section(
        title="From which density on banded is faster than csr",
        headings=("P", "S", "measured", "by the cost model", "densities looked at"),
        rows=rows,
    )


def _density(cells: list[FormCell], *, estimated: bool) -> str:
    found = crossover(cells, estimated=estimated)
    return found if isinstance(found, str) else f"{found:.3f}"
