"""The batching study as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from weft.training.compilation import worth_compiling
from weft_lab.studies.cells import Timings
from weft_lab.studies.published import FILLS, SHAPES, SHAPES_STEPS, published_milliseconds
from weft_lab.studies.results import StudyResults
from weft_lab.studies.sections import Section
from weft_lab.studies.statistics import Comparison, compare, mean_interval

_LEVEL = 0.05
# Share of rounds that the faster of two must win for its lead to count.
_CLEAR = 0.8
_STATIC = ("static-64", "static-2^n", "static-constant")


def batching_report(results: StudyResults) -> list[Section]:
    """All tables of the batching study, those that have rows."""
    sections = [_shapes(results, data) for data in results.shapes]
    # Sorted by what groups them already: cells are measured in this order.
    for (data, model), cells in groupby(results.cells, lambda t: (t.cell.data, t.cell.model)):
        sections.append(_timings(f"{model} on {data}: a training step", list(cells)))
    sections += [_ratios(results), _compiling(results)]
    for data in results.errors:
        sections += _errors(results, data)
    return [section for section in sections if section.rows]


def _shapes(results: StudyResults, data: str) -> Section:
    rows: list[tuple[str, ...]] = []
    for count in results.shapes[data]:
        size, policy = count.batch_size, count.policy
        fill = FILLS.get(size) if data == "qm9" and policy == "dynamic" else None
        shapes = None
        if data == "qm9" and count.steps >= SHAPES_STEPS:
            shapes = SHAPES.get(policy, {}).get(size)
        rows.append(
            (
                str(size),
                policy,
                "own" if count.budget is None else f"{count.budget[0]}, {count.budget[1]}",
                *(
                    f"{getattr(count, name):.3f}"
                    + (f" ({getattr(fill, name):.3f})" if fill else "")
                    for name in ("graphs_per_batch", "node_fill", "edge_fill")
                ),
                f"{count.shapes:,}",
                f"{count.shapes_without_tails:,}" + (f" ({shapes})" if shapes else ""),
                f"{count.steps:,}",
            )
        )
    return Section(
        title=f"Shapes and fill of {data}, planned only; in brackets what was published",
        headings=(
            "B",
            "policy",
            "padded nodes, edges",
            "graphs a batch",
            "node fill",
            "edge fill",
            "shapes",
            "without tails",
            "steps",
        ),
        rows=rows,
        says=[
            "Every graph is in every epoch once, so each epoch ends with a batch of what is left "
            "over (its tail), which the authors never used: their shapes stand beside those "
            "without tails. Each distinct shape is one compilation with static shapes."
        ],
        narrow=("B", "policy", "graphs a batch", "node fill", "edge fill", "without tails"),
    )


def _timings(title: str, cells: list[Timings]) -> Section:
    rows: list[tuple[str, ...]] = []
    for timings in cells:
        cell, epoch = timings.cell, timings.epoch
        if not timings.graphs:
            continue
        found = timings.summary()
        compiled = timings.compilation
        rows.append(
            (
                str(cell.batch_size),
                cell.policy,
                cell.mode,
                *(
                    f"{found[f'{part}_{kind}_ms']:.3g}"
                    for part in ("batching", "update", "combined")
                    for kind in ("mean", "median")
                ),
                f"{found['graphs_per_second']:,.0f}",
                f"{epoch['graphs_per_batch']:.1f}",
                f"{epoch['node_fill']:.3f}",
                f"{epoch['edge_fill']:.3f}",
                f"{epoch['distinct_shapes']:,}",
                f"{compiled['compilations']} ({compiled['recompiles']})",
                f"{compiled['compile_seconds']:.1f}",
            )
        )
    headings = (
        "B",
        "policy",
        "compile",
        "batching mean",
        "median",
        "update mean",
        "median",
        "combined mean",
        "combined median",
        "graphs/s",
        "graphs a batch",
        "node fill",
        "edge fill",
        "shapes",
        "compilations (again)",
        "compile s",
    )
    return Section(
        title=f"{title}, times in ms",
        headings=headings,
        rows=rows,
        says=[*_fastest(cells), *_skipped(cells)],
        narrow=(
            "B",
            "policy",
            "compile",
            "batching mean",
            "combined mean",
            "combined median",
            "graphs/s",
        ),
    )


def _fastest(cells: list[Timings]) -> Iterable[str]:
    for (size, mode), group in groupby(
        sorted(
            (t for t in cells if t.graphs),
            key=lambda t: (t.cell.batch_size, t.cell.mode != "eager", t.cell.mode),
        ),
        lambda t: (t.cell.batch_size, t.cell.mode),
    ):
        ranked = sorted(group, key=lambda t: -t.graphs_per_second)
        first = ranked[0]
        where = f"{first.cell.model} on {first.cell.data}, B = {size}, {mode}"
        if len(ranked) == 1:
            continue
        second = ranked[1]
        ahead = first.graphs_per_second / second.graphs_per_second - 1
        won = _rounds_won(first, second)
        yield (
            f"{where}: {first.cell.policy} is fastest, {first.graphs_per_second:,.0f} graphs a "
            f"second, {ahead:.1%} ahead of {second.cell.policy} (in {won} of {first.rounds} rounds)"
            + ("." if won > _CLEAR * first.rounds else ": no clear difference between the two.")
        )


def _rounds_won(one: Timings, other: Timings) -> int:
    """Rounds in which `one` took less time a graph: both had their turns in the same rounds."""
    return sum(a < b for a, b in zip(one.by_round(), other.by_round(), strict=True))


def _skipped(cells: list[Timings]) -> Iterable[str]:
    for timings in cells:
        if timings.skipped:
            yield f"{timings.cell} was not measured: {timings.skipped}."


def _ratios(results: StudyResults) -> Section:
    rows: list[tuple[str, ...]] = []
    by_cell = {str(t.cell): t for t in results.cells if t.graphs}
    for timings in by_cell.values():
        cell = timings.cell
        base = by_cell.get(
            f"{cell.data}/{cell.model}/{cell.batch_size}/dynamic/{cell.mode}", timings
        )
        theirs, dynamic = (
            published_milliseconds(cell.data, cell.model, cell.batch_size, policy)
            for policy in (cell.policy, "dynamic")
        )
        if theirs is None or dynamic is None or cell.policy == "dynamic" or base is timings:
            continue
        own, own_base = (t.summary()["combined_mean_ms"] for t in (timings, base))
        rows.append(
            (
                cell.model,
                str(cell.batch_size),
                cell.policy,
                cell.mode,
                f"{own / own_base:.2f}",
                f"{theirs / dynamic:.2f}",
                f"{own:.3g} / {own_base:.3g}",
                f"{theirs:.2f} / {dynamic:.2f}",
            )
        )
    return Section(
        title="Mean step as a multiple of dynamic's, here and as published",
        headings=(
            "model",
            "B",
            "policy",
            "compile",
            "here",
            "published",
            "ms here",
            "ms published",
        ),
        rows=rows,
        says=[
            "The published times are of an A100, compiled, over two million steps (PaiNN with 256 "
            "features): compare the multiples, not the milliseconds. Static batches hold one graph "
            "less than the batch size, dynamic ones fewer still: graphs a second tell more."
        ],
    )


def _compiling(results: StudyResults) -> Section:
    rows: list[tuple[str, ...]] = []
    says = []
    by_cell = {str(t.cell): t for t in results.cells if t.graphs}
    steps = results.config.run_steps
    for timings in by_cell.values():
        cell = timings.cell
        eager = by_cell.get(f"{cell.data}/{cell.model}/{cell.batch_size}/{cell.policy}/eager")
        if cell.mode == "eager" or eager is None:
            continue
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
        rows.append(
            (
                f"{cell.data}/{cell.model}/{cell.batch_size}",
                cell.policy,
                cell.mode,
                str(compilations),
                f"{seconds:.1f}",
                f"{before * 1e3:.3g}",
                f"{after * 1e3:.3g}",
                ("yes" if clear else "unclear") if payoff.pays else "no",
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


def _errors(results: StudyResults, data: str) -> list[Section]:
    errors = {policy: values for policy, values in results.errors[data].items() if values}
    config, about = results.config, results.data[data]
    unit = f" [{about['unit']}]" if about["unit"] else ""
    rows: list[tuple[str, ...]] = []
    for policy, values in errors.items():
        interval = mean_interval(values)
        spread = f"{interval.low:.4g} – {interval.high:.4g}" if len(values) > 1 else ""
        rows.append((policy, str(len(values)), f"{interval.mean:.4g}", spread))
    comparisons = compare(errors)
    alike = [policy for policy in errors if policy in _STATIC]
    return [
        Section(
            title=f"Test RMSE of {about['target']}{unit} on {data}: {config.repeat_model}, "
            f"B = {config.repeat_batch_size}, {config.repeat_epochs} epochs",
            headings=("policy", "trainings", "mean", "95% interval"),
            rows=rows,
            says=[
                f"{', '.join(alike)} have the same batches and differ in their padding alone, "
                "which changes an error by no more than rounding."
            ]
            if len(alike) > 1
            else [],
        ),
        Section(
            title=f"Do the errors on {data} differ? Welch's t-tests, corrected by Holm",
            headings=("policies", "difference", "p", "corrected p"),
            rows=[
                (
                    f"{c.first} – {c.second}",
                    f"{c.difference:+.3g}",
                    f"{c.p:.3g}",
                    f"{c.corrected:.3g}",
                )
                for c in comparisons
            ],
            says=[_verdict(comparisons, min(map(len, errors.values()), default=0))],
        ),
    ]


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
