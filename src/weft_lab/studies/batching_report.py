"""The batching study as tables and sentences, plots and claims, beside what was published."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from weft.training.compilation import worth_compiling
from weft_lab.report import Panel, Section
from weft_lab.statistics import Comparison, compare, mean_interval
from weft_lab.studies.batch_shapes import ShapeCount
from weft_lab.studies.batching import (
    BatchingResults,
    StudyData,
    Timings,
    about_data,
    batching_data,
    measure_batching,
)
from weft_lab.study import Finding, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A test with a corrected p below this says that means differ.
_LEVEL = 0.05
# Share of rounds that the faster of two must win for its lead to count.
_CLEAR = 0.8
_STATIC = ("static-64", "static-2^n", "static-constant")
_PARTS = ("batching", "update", "combined")


FILLS = {
    16: {"graphs_per_batch": 14.669, "node_fill": 0.824, "edge_fill": 0.923},
    32: {"graphs_per_batch": 30.420, "node_fill": 0.950, "edge_fill": 0.957},
    64: {"graphs_per_batch": 62.003, "node_fill": 0.968, "edge_fill": 0.975},
    128: {"graphs_per_batch": 125.357, "node_fill": 0.978, "edge_fill": 0.986},
}
"""Batches of QM9 under `dynamic`, by batch size: mean graphs, and what is not padding."""

SHAPES = {
    "dynamic": {16: 1, 32: 1, 64: 1, 128: 1},
    "static-64": {16: 60, 32: 89, 64: 128, 128: 195},
    "static-2^n": {16: 3, 32: 4, 64: 1, 128: 1},
}
"""Distinct padded shapes of QM9 after SHAPES_STEPS steps, by policy and batch size."""
SHAPES_STEPS = 100_000

MILLISECONDS = {
    ("painn", 128): {"dynamic": 12.23, "static-2^n": 33.17, "static-64": 12.02},
    ("schnet", 32): {"dynamic": 2.42, "static-2^n": 2.33, "static-64": 2.29},
    ("schnet", 128): {"dynamic": 5.52, "static-2^n": 6.15, "static-64": 4.66},
    ("mpeu", 128): {"dynamic": 7.04, "static-2^n": 9.05, "static-64": 6.32},
}
"""Mean of a step on an A100 over two million steps of QM9, by model and batch size, then policy."""


def batching_sections(results: BatchingResults) -> list[Section]:
    """All tables of the batching study."""
    sections = [_shapes(results, data) for data in results.shapes]
    # Sorted by what groups them already: cells are measured in this order.
    for (data, model), cells in groupby(results.cells, lambda t: (t.cell.data, t.cell.model)):
        sections.append(_timings(f"{model} on {data}: a training step", list(cells)))
    sections += [_ratios(results), _compiling(results)]
    for data in results.errors:
        sections += _errors(results, data)
    return sections


def _shapes(results: BatchingResults, data: str) -> Section:
    def beside_fill(name: str) -> Callable[[ShapeCount], str]:
        def cell(count: ShapeCount) -> str:
            known = data == "qm9" and count.policy == "dynamic"
            published = FILLS.get(count.batch_size) if known else None
            theirs = f" ({published[name]:.3f})" if published else ""
            return f"{getattr(count, name):.3f}{theirs}"

        return cell

    def without_tails(count: ShapeCount) -> str:
        published = SHAPES.get(count.policy, {}).get(count.batch_size)
        known = published and data == "qm9" and count.steps >= SHAPES_STEPS
        return f"{count.shapes_without_tails:,}" + (f" ({published})" if known else "")

    return Section.of(
        f"Shapes and fill of {data}, planned only; in brackets what was published",
        results.shapes[data],
        {
            "B": "{0.batch_size}",
            "policy": "{0.policy}",
            "padded nodes, edges": lambda count: (
                "own" if count.budget is None else f"{count.budget[0]}, {count.budget[1]}"
            ),
            "graphs a batch": beside_fill("graphs_per_batch"),
            "node fill": beside_fill("node_fill"),
            "edge fill": beside_fill("edge_fill"),
            "shapes": "{0.shapes:,}",
            "without tails": without_tails,
            "steps": "{0.steps:,}",
        },
        says=[
            "Every graph is in every epoch once, so each epoch ends with a batch of what is left "
            "over (its tail), which the authors never used: their shapes stand beside those "
            "without tails. Each distinct shape is one compilation with static shapes."
        ],
        narrow=("B", "policy", "graphs a batch", "node fill", "edge fill", "without tails"),
    )


def _timings(title: str, cells: list[Timings]) -> Section:
    def milliseconds(name: str) -> Callable[[Timings], str]:
        return lambda timings: f"{timings.summary()[f'{name}_ms']:.3g}"

    kinds = [f"{part} {kind}" for part in _PARTS for kind in ("mean", "median")]
    return Section.of(
        f"{title}, times in ms",
        [timings for timings in cells if timings.graphs],
        {
            "B": "{0.cell.batch_size}",
            "policy": "{0.cell.policy}",
            "compile": "{0.cell.mode}",
            **{kind: milliseconds(kind.replace(" ", "_")) for kind in kinds},
            "graphs/s": "{0.graphs_per_second:,.0f}",
            "graphs a batch": "{0.epoch[graphs_per_batch]:.1f}",
            "node fill": "{0.epoch[node_fill]:.3f}",
            "edge fill": "{0.epoch[edge_fill]:.3f}",
            "shapes": "{0.epoch[distinct_shapes]:,}",
            "compilations (again)": ("{0.compilation[compilations]} ({0.compilation[recompiles]})"),
            "compile s": "{0.compilation[compile_seconds]:.1f}",
        },
        says=[
            *_fastest(cells),
            *(f"{t.cell} was not measured: {t.skipped}." for t in cells if t.skipped),
        ],
        narrow=(
            *("B", "policy", "compile", "batching mean"),
            *("combined mean", "combined median", "graphs/s"),
        ),
    )


def _fastest(cells: list[Timings]) -> Iterable[str]:
    groups: dict[tuple[int, bool, str], list[Timings]] = {}
    for t in cells:
        if t.graphs:
            key = t.cell.batch_size, t.cell.mode != "eager", t.cell.mode
            groups.setdefault(key, []).append(t)
    for (size, _, mode), group in sorted(groups.items()):
        if len(group) == 1:
            continue
        first, second, *_ = sorted(group, key=lambda t: -t.graphs_per_second)
        ahead = first.graphs_per_second / second.graphs_per_second - 1
        won = _rounds_won(first, second)
        yield (
            f"{first.cell.model} on {first.cell.data}, B = {size}, {mode}: {first.cell.policy} is "
            f"fastest, {first.graphs_per_second:,.0f} graphs a second, {ahead:.1%} ahead of "
            f"{second.cell.policy} (in {won} of {first.rounds} rounds)"
            + ("." if won > _CLEAR * first.rounds else ": no clear difference between the two.")
        )


def _rounds_won(one: Timings, other: Timings) -> int:
    """Rounds in which `one` took less time a graph: both had their turns in the same rounds."""
    return sum(a < b for a, b in zip(one.by_round(), other.by_round(), strict=True))


def _beside(results: BatchingResults, **changes: Any) -> Iterator[tuple[Timings, Timings]]:
    """Every cell that was timed beside the one that differs from it in `changes` alone."""
    by_cell = {t.cell: t for t in results.cells if t.graphs}
    for cell, timings in by_cell.items():
        other = replace(cell, **changes)
        if other != cell and other in by_cell:
            yield timings, by_cell[other]


def _ratios(results: BatchingResults) -> Section:
    rows: list[tuple[str, ...]] = []
    for timings, base in _beside(results, policy="dynamic"):
        cell = timings.cell
        published = MILLISECONDS.get((cell.model, cell.batch_size), {})
        if cell.data != "qm9" or cell.policy not in published:
            continue
        own, own_base = (t.summary()["combined_mean_ms"] for t in (timings, base))
        theirs, dynamic = published[cell.policy], published["dynamic"]
        rows.append(
            (
                *(cell.model, str(cell.batch_size), cell.policy, cell.mode),
                *(f"{own / own_base:.2f}", f"{theirs / dynamic:.2f}"),
                *(f"{own:.3g} / {own_base:.3g}", f"{theirs:.2f} / {dynamic:.2f}"),
            )
        )
    names = ("model", "B", "policy", "compile", "here", "published", "ms here", "ms published")
    return Section(
        title="Mean step as a multiple of dynamic's, here and as published",
        headings=names,
        rows=rows,
        says=[
            "The published times are of an A100, compiled, over two million steps (PaiNN with 256 "
            "features): compare the multiples, not the milliseconds. Static batches hold one graph "
            "less than the batch size, dynamic ones fewer still: graphs a second tell more."
        ],
    )


def _compiling(results: BatchingResults) -> Section:
    rows: list[tuple[str, ...]] = []
    says = []
    steps = results.config.run_steps
    for timings, eager in _beside(results, mode="eager"):
        cell = timings.cell
        before, after = (t.summary()["update_median_ms"] / 1e3 for t in (eager, timings))
        seconds = timings.compilation["compile_seconds"]
        compilations = timings.compilation["compilations"]
        shapes = timings.epoch["distinct_shapes"]
        if cell.mode == "static" and compilations and shapes > compilations:
            # The few timed steps did not meet every shape; a whole training does.
            seconds, compilations = seconds * shapes / compilations, shapes
        payoff = worth_compiling(
            steps, compile_seconds=seconds, eager_step=before, compiled_step=after
        )
        won = _rounds_won(timings, eager)
        clear = won > _CLEAR * timings.rounds
        verdict = ("yes" if clear else "unclear") if payoff.pays else "no"
        rows.append(
            (
                *(f"{cell.data}/{cell.model}/{cell.batch_size}", cell.policy, cell.mode),
                *(str(compilations), f"{seconds:.1f}"),
                *(f"{before * 1e3:.3g}", f"{after * 1e3:.3g}", verdict),
            )
        )
        says.append(
            f"{cell}: {payoff.words}; the compiled step was the faster one in {won} of "
            f"{timings.rounds} rounds{'' if clear or not payoff.pays else ', no clear difference'}."
        )
    return Section(
        title=f"Does compiling for all shapes of an epoch pay in {steps:,} steps? Updates in ms",
        headings=("what", "policy", "compile", "times", "s", "eager", "compiled", "pays"),
        rows=rows,
        says=says,
    )


def _errors(results: BatchingResults, data: str) -> list[Section]:
    errors = {policy: values for policy, values in results.errors[data].items() if values}
    config = results.config
    means = {policy: mean_interval(values) for policy, values in errors.items()}

    def interval(policy: str) -> str:
        found = means[policy]
        return f"{found.low:.4g} – {found.high:.4g}" if math.isfinite(found.high) else ""

    alike = [policy for policy in errors if policy in _STATIC]
    comparisons = compare(errors)
    return [
        Section.of(
            f"Test RMSE of {_target(results, data)} on {data}: {config.repeat_model}, "
            f"B = {config.repeat_batch_size}, {config.repeat_epochs} epochs",
            errors,
            {
                "policy": str,
                "trainings": lambda policy: str(len(errors[policy])),
                "mean": lambda policy: f"{means[policy].mean:.4g}",
                "95% interval": interval,
            },
            says=[
                f"{', '.join(alike)} have the same batches and differ in their padding alone, "
                "which changes an error by no more than rounding."
            ]
            if len(alike) > 1
            else [],
        ),
        Section.of(
            f"Do the errors on {data} differ? Welch's t-tests, corrected by Holm",
            comparisons,
            {
                "policies": "{0.first} – {0.second}",
                "difference": "{0.difference:+.3g}",
                "p": "{0.p:.3g}",
                "corrected p": "{0.corrected:.3g}",
            },
            says=[_verdict(comparisons, min(map(len, errors.values()), default=0))],
        ),
    ]


def _target(results: BatchingResults, data: str) -> str:
    about = results.data[data]
    return f"{about['target']} [{about['unit']}]" if about["unit"] else f"{about['target']}"


def _verdict(comparisons: Sequence[Comparison], repeats: int) -> str:
    beyond = [c for c in comparisons if c.corrected < _LEVEL]
    plain = sum(c.p < _LEVEL for c in comparisons)
    account = (
        f"Of {len(comparisons)} comparisons {plain} are below {_LEVEL} as they are and "
        f"{len(beyond)} after correction"
    )
    seeds = (
        "A seed chooses the weights and the batches; the split of the data is the same for all, so "
        "this is about these test structures"
    )
    if not beyond:
        return (
            f"{account}: with {repeats} trainings of each, no difference in test error between "
            f"policies can be told from chance, so choose by speed. {seeds}; differences smaller "
            "than the scatter between seeds stay unseen."
        )
    named = "; ".join(
        f"{c.first} has a {'larger' if c.difference > 0 else 'smaller'} error than {c.second}"
        for c in beyond
    )
    return (
        f"{account}: {named}. The chance that any of these is a false alarm is below {_LEVEL:.0%}. "
        f"{seeds}. In a short training a policy with more batches an epoch has taken more steps."
    )


def batching_figures(results: BatchingResults) -> dict[str, list[Panel]]:
    """Time by policy, fill, test error."""
    eager = [t for t in results.cells if t.graphs and t.cell.mode == "eager"]
    times: dict[str, list[tuple[str, int, float]]] = {}
    for t in eager:
        # A graph, not a step: padded batches hold fewer of them.
        bar = t.cell.policy, t.cell.batch_size, 1e3 / t.graphs_per_second
        times.setdefault(f"{t.cell.model} on {t.cell.data}", []).append(bar)
    fills = {
        data: [(each.policy, each.batch_size, each.edge_fill) for each in counts]
        for data, counts in results.shapes.items()
    }
    full = (0, 1.05)
    return {
        "time.svg": [
            (title, _draw_bars, bars, "batching and update, ms a graph")
            for title, bars in times.items()
        ],
        "fill.svg": [
            (data, _draw_bars, bars, "edges that are not padding", full)
            for data, bars in fills.items()
        ],
        "error.svg": [
            (f"{results.config.repeat_model} on {data}", _draw_errors, results, data)
            for data, errors in results.errors.items()
            if any(errors.values())
        ],
    }


def _draw_bars(
    ax: Axes,
    values: Iterable[tuple[str, int, float]],
    label: str,
    limits: tuple[float, float] | None = None,
) -> None:
    """Groups of bars: a group for each batch size, in it a bar for each policy."""
    by_policy: dict[str, dict[int, float]] = {}
    for policy, size, value in values:
        by_policy.setdefault(policy, {})[size] = value
    sizes = list(dict.fromkeys(size for by_size in by_policy.values() for size in by_size))
    width = 0.8 / max(1, len(by_policy))
    for number, (policy, by_size) in enumerate(by_policy.items()):
        places = [sizes.index(size) + (number + 0.5) * width - 0.4 for size in by_size]
        ax.bar(places, list(by_size.values()), width, label=policy)
    ax.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    ax.set(xlabel="batch size", ylabel=label, ylim=limits)


def _draw_errors(ax: Axes, results: BatchingResults, data: str) -> None:
    errors = {policy: values for policy, values in results.errors[data].items() if values}
    for number, values in enumerate(errors.values()):
        ax.plot([number] * len(values), values, ".", color="0.7")
        found = mean_interval(values)
        half = found.high - found.mean if len(values) > 1 else None
        ax.errorbar([number], [found.mean], yerr=half, fmt="o", capsize=4, color="C0")
    ax.set_xticks(range(len(errors)), list(errors), rotation=20, fontsize=8)
    ax.set_ylabel(f"test RMSE of {_target(results, data)}")


def batching_findings(results: BatchingResults) -> Iterator[Finding]:
    """Shapes, fill, time and error."""
    counts = {(c.policy, c.batch_size): c for c in results.shapes.get("qm9", ())}
    sizes = sorted({size for _, size in counts})
    if sizes and ("dynamic", sizes[-1]) in counts:
        size = sizes[-1]
        dynamic, rounded = counts["dynamic", size], counts.get(("static-64", size))
        if rounded is not None:
            yield (
                "Dynamic batches have one shape, static-64 many",
                f"1 and {SHAPES['static-64'].get(size, '?')} on QM9 at batch size {size}",
                f"{dynamic.shapes_without_tails} and {rounded.shapes_without_tails} in "
                f"{dynamic.steps:,} steps",
                dynamic.shapes_without_tails == 1 < rounded.shapes_without_tails,
            )
        theirs = FILLS.get(size)
        if theirs is not None:
            yield (
                "Dynamic batches are nearly full",
                "{node_fill:.3f} of the nodes, {edge_fill:.3f} of the edges".format(**theirs),
                f"{dynamic.node_fill:.3f} of the nodes, {dynamic.edge_fill:.3f} of the edges",
                abs(dynamic.node_fill - theirs["node_fill"]) < 0.01,
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
        yield (
            "The algorithm of batching decides the speed, up to",
            f"{step['static-2^n'] / step['dynamic']:.1f} times (PaiNN on QM9, 128 graphs, A100, "
            "compiled)",
            f"{ratio:.1f} times ({fast.cell.model} on {fast.cell.data}, {fast.cell.batch_size} "
            f"graphs: {fast.cell.policy} over {slow.cell.policy}, eager)",
            ratio > 1,
        )
        winners = {each[1].cell.policy for each in ratios}
        yield (
            "No algorithm is the fastest everywhere",
            "it depends on data, model, batch size, hardware and number of steps",
            f"fastest here: {', '.join(sorted(winners))}",
            len(winners) > 1,
        )
    pairs = [each for errors in results.errors.values() for each in compare(errors)]
    if pairs:
        apart = [each for each in pairs if each.corrected < _LEVEL]
        yield (
            "For some combinations it also changes the test error",
            "significant differences, not corrected for the number of tests",
            f"{len(apart)} of {len(pairs)} pairs of policies differ (Welch's t-test, Holm)",
            bool(apart),
        )


BATCHING: Study[Sequence[StudyData], BatchingResults] = Study(
    paper="Speckhard et al. (2025), Training speedups via batching for geometric learning",
    results=BatchingResults,
    load=batching_data,
    about=about_data,
    measure=measure_batching,
    sections=batching_sections,
    figures=batching_figures,
    findings=batching_findings,
)
"""What a way to batch costs."""
