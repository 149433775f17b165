"""The chapter of a run: what was trained, how it went, and how to repeat it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.planning.explain import memory_words, seconds_words
from weft.report.figures import bars, curves, spy_plot
from weft.report.metric import (
    PARTS,
    Metric,
    baseline,
    best_so_far,
    main_scores,
    metric_of,
    rate_unit,
    recipe_of,
)
from weft.report.page import (
    Block,
    Chapter,
    Code,
    Facts,
    Figure,
    Part,
    Table,
    Words,
    in_unit,
    number,
    percent,
    plain,
    present,
    value_table,
)
from weft.report.plan_report import PlanBlocks, plan_blocks
from weft.report.record import RunRecord, flat, mapping

_MODELS = {
    "schnet": "SchNet",
    "painn": "PaiNN",
    "mpeu": "MPEU",
    "gcn": "GCN",
    "sage": "GraphSAGE",
}


def run_chapter(run: RunRecord) -> Chapter:
    """The chapter of a run, with everything that its folder holds."""
    plan = plan_blocks(run.plan) if run.plan else PlanBlocks()
    collectives, communication = _communication(run.summary)
    pictures = present(*_curves(run), _sparsity_curve(run), collectives)
    parts = [
        _scores(run),
        Part(title="Batches and compilation", blocks=_work(run)),
        Part(title="Sparsity", blocks=_weights(run)),
        Part(title="Communication", blocks=communication),
        Part(title="Plan", blocks=plan.tables),
    ]
    return Chapter(
        kind=f"Run, {run.recipe}" if run.recipe else "Run",
        title=run.name,
        lead=_lead(run),
        headline=_headline(run),
        pictures=[*pictures, *_spy(run), *plan.pictures],
        parts=[part for part in parts if part.blocks],
        again=_again(run),
    )


def _lead(run: RunRecord) -> str:
    config, summary = run.config, run.summary
    named = config.get("model")
    what = _MODELS.get(str(named)) or recipe_of(run).trains
    data = config.get("data")
    named = ", ".join(map(str, data)) if isinstance(data, list) else data
    words = f"{what} on {named}" if "data" in config else what
    if "target" in config:
        words += f", to predict {config['target']}" + (f" in {run.unit}" if run.unit else "")
    if run.summary:
        how = summary.get("stopped", "")
        words += (
            f": {how} after {number(summary.get('epochs'))} epochs and "
            f"{seconds_words(summary.get('seconds'))}."
        )
    else:
        last = run.rows[-1] if run.rows else {}
        at = f", so far to epoch {last.get('epoch')}, step {last.get('step')}" if last else ""
        words += f": not finished{at}."
    return words


def _headline(run: RunRecord) -> list[Block]:
    """What came out, beside what needs no training, and what it took."""
    summary, scores = run.summary, run.scores()
    facts = [_score_fact(run, name, scores[name]) for name in main_scores(scores)[:2]]
    if not scores and (best := best_so_far(run)) is not None:
        name, value, epoch = best
        fact = _score_fact(run, name, value)
        facts.append((f"best {fact[0]} so far", fact[1], f"epoch {epoch}"))
    if "seconds" in summary:
        epochs = f"{number(summary.get('epochs'))} epochs"
        if summary.get("best_epoch"):
            epochs += f"; the weights are those of epoch {number(summary['best_epoch'])}"
        facts.append(("training time", seconds_words(summary["seconds"]), epochs))
    if (throughput := _throughput(run)) is not None:
        facts.append(throughput)
    warnings = Words(words=run.warnings) if run.warnings else None
    return present(warnings, Facts(facts=facts) if facts else None)


def _score_fact(run: RunRecord, name: str, value: float) -> tuple[str, str, str]:
    metric = metric_of(run, name)
    remarks = []
    if name in run.intervals():
        low, high = run.intervals()[name]
        remarks.append(f"{metric.text(low)} to {metric.text(high)}, 95%")
    if (guess := baseline(run, name)) is not None:
        remarks.append(f"without training ({guess[0]}): {metric.with_unit(guess[1])}")
    return metric.words, metric.with_unit(value), "; ".join(remarks)


def _throughput(run: RunRecord) -> tuple[str, str, str] | None:
    """That of the last steps, which neither start nor compiling slow, beside the mean."""
    unit = rate_unit(run)
    recent = [rate for _, rate in run.series("graphs_per_second")]
    mean = run.summary.get("graphs_per_second")
    if recent:
        now = f"{number(recent[-1], 3)} {unit}"
        if mean is None:
            # The whole run's mean is only known at its end.
            so_far = f"mean of the epochs so far: {number(float(np.mean(recent)), 3)} {unit}"
            return "recent throughput", now, so_far
        of_all = f"mean with start and compiling: {number(mean, 3)} {unit}"
        return "throughput at the end", now, of_all
    return None if mean is None else ("mean throughput", f"{number(mean, 3)} {unit}", "")


def _scores(run: RunRecord) -> Part:
    tables = (_score_table(run, run.scores()), _element_table(run))
    return Part(title="Scores", blocks=present(*tables))


def _score_table(run: RunRecord, scores: Mapping[str, float]) -> Table | None:
    names = dict.fromkeys(name.partition("_")[2] for name in scores)
    if not names:
        return None
    metrics = {name: metric_of(run, name) for name in names}
    counts = mapping(run.summary.get("counts"))
    baselines = mapping(run.summary.get("baselines"))
    shares = {part: _real_values(each) for part, each in baselines.items()}
    kinds = dict.fromkeys(name for each in shares.values() for name in each)
    rows = []
    for part in PARTS:
        own = [scores.get(f"{part}_{name}") for name in names]
        if all(value is None for value in own):
            continue
        base = [percent(shares.get(part, {}).get(kind)) for kind in kinds]
        cells = [metric.text(v) for metric, v in zip(metrics.values(), own, strict=True)]
        rows.append((part, number(counts.get(part)), *cells, *base))
        guesses = {
            f"{part}, {kind}": guess
            for kind, guess in mapping(baselines.get(part)).items()
            if isinstance(guess, Mapping)
        }
        if trivial := mapping(mapping(run.summary.get("trivial")).get(part)):
            guesses[f"{part}, trivial"] = trivial
        for label, guess in guesses.items():
            cells = [metric.text(guess.get(name)) for name, metric in metrics.items()]
            rows.append((label, "", *cells, *["" for _ in kinds]))
    caption = "Scores of the kept weights"
    if kinds:
        caption += "; the last columns are what needs no training: " + ", ".join(kinds)
    elif baselines:
        caption += "; below them what is reached without training on the same part"
    if run.summary.get("trivial"):
        caption += "; trivial: the atoms' own values or the mean alone, no forces, no stress"
    headings = ("part", "size", *(m.heading for m in metrics.values()), *kinds)
    table = Table(caption=caption, headings=headings, rows=rows)
    # Many scores of few parts read better downwards.
    return table.turned("score") if len(headings) > len(rows) + 6 else table


def _real_values(value: Any) -> dict[str, Any]:
    return {name: each for name, each in mapping(value).items() if not isinstance(each, Mapping)}


def _element_table(run: RunRecord) -> Table | None:
    """Errors of the forces by element, on the last part that has them."""
    parts = mapping(run.summary.get("force_mae_by_element"))
    part = next((name for name in ("test", "validation") if mapping(parts.get(name))), None)
    if part is None:
        return None
    metric = metric_of(run, "force_mae")
    rows = [
        (str(symbol), *(metric.text(mapping(errors).get(kind)) for kind in ("mae", "trivial")))
        for symbol, errors in mapping(parts[part]).items()
    ]
    headings = ("element", metric.heading, in_unit("no forces", metric.unit))
    return Table(caption=f"Forces of the {part} part by element", headings=headings, rows=rows)


def _curves(run: RunRecord) -> list[Figure | None]:
    names = run.names()
    losses = [name for name in names if name == "loss" or name.endswith("_loss")]
    # These have plots of their own, or only decide about early stopping.
    rates = ("lr", "graphs_per_second", "sparsity", "selection")
    costs = ("_seconds", "_bytes", "bytes_received", "_threshold")
    others = [n for n in names if n not in (*losses, *rates) and not n.endswith(costs)]
    figures = [
        curves(
            "Loss",
            {_series_name(run, name): run.series(name) for name in losses},
            x="step",
            y="loss",
            y_log=True,
        )
    ]
    # Each kind of metric, and each unit, has a scale of its own.
    groups: dict[tuple[str, str], list[Metric]] = {}
    for metric in (metric_of(run, name) for name in others):
        groups.setdefault((metric.kind, metric.unit), []).append(metric)
    for (kind, unit), metrics in groups.items():
        own = {_series_name(run, m.name): run.series(m.name, scale=m.scale) for m in metrics}
        title = kind[0].upper() + kind[1:]
        low = "error" in kind
        figures.append(curves(title, own, x="step", y=in_unit(kind, unit), y_log=low))
    lr = {"learning rate": run.series("lr")}
    figures.append(curves("Learning rate", lr, x="step", y="learning rate", from_zero=True))
    rate = {"throughput": run.series("graphs_per_second", by="epoch")}
    y = in_unit("throughput", rate_unit(run))
    return [*figures, curves("Throughput", rate, x="epoch", y=y, from_zero=True)]


_WORK: dict[str, tuple[str, Callable[[Any], str]]] = {
    "fill.node_fill": ("nodes of a batch that are not padding", percent),
    "fill.edge_fill": ("edges of a batch that are not padding", percent),
    "fill.distinct_shapes": ("shapes of batches", number),
    "fill.graphs_per_batch": ("graphs in a batch, mean", number),
    "batching_share": ("time spent waiting for batches", percent),
    "outside_share": ("edges outside the blocks", percent),
    "counts.dropped": ("left out, no target", number),
    "counts.skipped": ("left out, larger than a batch", number),
    "compilation.mode": ("compiled", str),
    "compilation.compilations": ("compilations", number),
    "compilation.recompiles": ("recompiles", number),
    "compilation.eager_calls": ("calls uncompiled, beyond the limit", number),
    "compilation.compile_seconds": ("time spent compiling", seconds_words),
}
"""What a summary says of batches and compilation, by dotted name: in words, and how to show it."""
_WEIGHTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "counts.weights": ("weights", number),
    "counts.active": ("of them active", number),
    # Older runs counted weights that are not 0, active or not.
    "counts.nonzero": ("of them not 0", number),
    "step_costs.flops": ("FLOPs of a step, of the dense one's", percent),
    "step_costs.seconds": ("time of a step", seconds_words),
    "step_costs.dense_seconds": ("time of the same step dense", seconds_words),
}
"""The same of weights and what a step with them costs."""


def _work(run: RunRecord) -> list[Block]:
    """How full batches were, and what compiling took."""
    summary = flat(run.summary)
    for name in ("counts.dropped", "counts.skipped"):
        if not summary.get(name):
            summary.pop(name, None)
    account = mapping(run.summary.get("compilation"))
    if account.get("mode") == "eager":
        summary = {k: v for k, v in summary.items() if not k.startswith("compilation.")}
        summary["compilation.mode"] = "no: eager"
    rows = _value_rows(summary, _WORK)
    blocks: list[Block] = []
    if rows:
        blocks.append(value_table("How full batches were, and what compiling took", rows))
    causes = [(str(i), str(cause)) for i, cause in enumerate(account.get("causes") or [], start=1)]
    if causes:
        why = "Why code was made, each time"
        headings = ("number", "cause")
        blocks.append(Table(caption=why, headings=headings, rows=causes, folded=True))
    breaks = [str(each) for each in account.get("graph_breaks") or []]
    if breaks:
        blocks.append(Words(words=[f"Graph breaks: {'; '.join(breaks)}."]))
    return blocks


def _value_rows(
    summary: Mapping[str, Any], table: Mapping[str, tuple[str, Callable[[Any], str]]]
) -> list[tuple[str, str]]:
    """Those rows of a table of dotted names that a flat summary has values for."""
    return [(words, show(summary[key])) for key, (words, show) in table.items() if key in summary]


def _sparsity_curve(run: RunRecord) -> Figure | None:
    points = run.series("sparsity", by="epoch", scale=100)
    y = "inactive weights [%]"
    return curves("Sparsity", {"inactive weights": points}, x="epoch", y=y, from_zero=True)


def _weights(run: RunRecord) -> list[Block]:
    """How many weights are active, and what a step with them costs; nothing of a dense run."""
    if run.config.get("sparsify") in (None, "none") and not run.series("sparsity"):
        return []
    summary = flat(run.summary)
    rows = _value_rows(summary, _WEIGHTS)
    ratios = [ratio for ratio in summary.get("step_costs.ratios") or [] if ratio is not None]
    if ratios:
        between = f"{percent(min(ratios))} to {percent(max(ratios))}"
        rows.append(("the one over the other, by round", between))
    caption = "Weights and what a step costs; FLOPs saved and time saved are different things"
    return [value_table(caption, rows)] if rows else []


def _communication(summary: Mapping[str, Any]) -> tuple[Figure | None, list[Block]]:
    """A figure by collective and the rest as a table; nothing of a run without ranks."""
    found = summary.get("communication")
    if not isinstance(found, Mapping):
        return None, []
    recorded = _numbers(found.get("bytes"))
    predicted = _numbers(found.get("predicted_bytes"))
    figure: Figure | None = None
    kinds = sorted(recorded | predicted)
    if kinds:
        note = "Received in an epoch, on the rank that it costs most."
        if predicted:
            same = all(abs(recorded.get(k, 0) - predicted.get(k, 0)) < 1 for k in kinds)
            note += (
                " What the formulas predict is what was recorded, to the byte."
                if same
                else " Predicted by the formulas from the rank's own edges."
            )
        sources = {"recorded": recorded} | ({"predicted": predicted} if predicted else {})
        sizes = [
            (f"{kind.replace('_', '-')}, {name}", size, size, size)
            for kind in kinds
            for name, by_kind in sources.items()
            for size in [by_kind.get(kind, 0.0) / 1e3]
        ]
        marked = range(0, len(sizes), len(sources))
        figure = bars(
            "Received by collective",
            sizes,
            x="received in an epoch [kB]",
            of="collective",
            marked=marked,
            note=note,
        )
    spent = _numbers(found.get("seconds"))
    rows = [("grid", f"{summary.get('grid', '–')} on {summary.get('ranks', '–')} ranks")]
    rows += [(f"{name} in an epoch", seconds_words(value)) for name, value in spent.items()]
    if sum(spent.values()):
        share = spent.get("communication", 0.0) / sum(spent.values())
        rows.append(("communication, of the time of an epoch", percent(share)))
    for name, words in (("peak", "recorded"), ("predicted", "predicted")):
        if name in found:
            rows.append((f"memory of a rank for the graph, {words}", memory_words(found[name])))
    partition = mapping(summary.get("partition"))
    if "cut_edges" in partition:
        how = f"{partition.get('how')}, {partition['cut_edges']:,} edges cut"
        rows.append(("partition", how))
    return figure, [value_table("An epoch on the rank that it costs most", rows)]


def _numbers(value: Any) -> dict[str, float]:
    return {k: float(v) for k, v in mapping(value).items() if isinstance(v, int | float)}


def _spy(run: RunRecord) -> list[Figure]:
    """Where the edges of the first supergraph are, in each order of its nodes."""
    spy = run.spy
    figures = []
    try:
        cells = len(spy["orders"][0]["counts"])
        note = (
            f"The first supergraph: {spy['graphs']:,} graphs, {spy['nodes']:,} nodes, "
            f"{spy['edges']:,} edges, in {cells} by {cells} cells; darker ones hold more edges."
        )
        for each in spy["orders"]:
            counts = np.array(each["counts"], dtype=int)
            if counts.ndim != 2:
                return []
            near = zip(spy["distances"], each["near"], strict=False)
            table = Table(
                caption="Edges within a distance of the diagonal",
                headings=("distance [nodes]", "edges [%]"),
                rows=[(number(float(nodes)), percent(share)) for nodes, share in near],
            )
            title = f"{each['order']}: bandwidth {each['bandwidth']:,}"
            figures.append(spy_plot(f"Edges, {title}", counts, table, note))
    except (KeyError, TypeError, ValueError, IndexError):
        return []
    return figures


def _again(run: RunRecord) -> list[Block]:
    rows = []
    for session in run.sessions:
        versions = ", ".join(f"{k} {v}" for k, v in mapping(session.get("versions")).items())
        machine = mapping(session.get("machine"))
        hardware = ", ".join(
            f"{machine[key]}{unit}"
            for key, unit in (("cpu", ""), ("cores", " cores"), ("memory_gib", " GiB"))
            if key in machine
        )
        rows.append((str(session.get("started", "–")), versions or "–", hardware or "–"))
    settings = [(name, plain(value)) for name, value in flat(run.config).items()]
    return [
        Code(caption="Commands, as they were given", text="\n".join(run.commands)),
        Table(caption="Sessions", headings=("started", "versions", "machine"), rows=rows),
        value_table(f"All {len(settings)} settings", settings, "setting", folded=True),
    ]


def _series_name(run: RunRecord, name: str) -> str:
    # Metrics without a part in their name are of single batches.
    if name in ("loss", "accuracy"):
        return "training batches"
    if name == "train_loss":
        return "mean of an epoch"
    return metric_of(run, name.removesuffix("_loss")).words
