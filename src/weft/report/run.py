"""A run as a chapter: what was trained, how it went, and how to do it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from weft.report.communication import communication_part
from weft.report.figures import curves, spy_plots
from weft.report.numbers import number, percent, plain, seconds
from weft.report.page import Block, Chapter, Code, Facts, Figure, Part, Table, Words
from weft.report.plan import plan_parts
from weft.report.record import RunRecord, flat

_PARTS = ("train", "validation", "test")
_WORDS = {
    "mae": "MAE",
    "rmse": "RMSE",
    "force_mae": "force MAE",
    "force_rmse": "force RMSE",
    "auc": "AUC",
    "ap": "average precision",
    "lr": "learning rate",
}
_MODELS = {
    "schnet": "SchNet",
    "painn": "PaiNN",
    "mpeu": "MPEU",
    "gcn": "GCN",
    "sage": "GraphSAGE",
}
_NETWORKS = {
    "programs": "Gated graph network",
    "citations": "GCN",
    "links": "Predictor of links",
    "nodes": "Classifier of nodes",
}
_SHARES = ("accuracy",)


def run_chapter(run: RunRecord) -> Chapter:
    """Everything that the folder says."""
    parts = [
        _result(run),
        _curves(run),
        _work(run),
        _sparsity(run),
        communication_part(run.summary),
        _spy(run),
        *_planned(run),
        _again(run),
    ]
    return Chapter(
        kind=f"Run, {run.recipe}" if run.recipe else "Run",
        title=run.name,
        lead=_lead(run),
        parts=[part for part in parts if part is not None and part.blocks],
    )


def better_when_low(name: str) -> bool:
    """Whether less of the metric is better."""
    return any(word in name for word in ("loss", "mae", "rmse", "error"))


def score_text(name: str, value: float | None) -> str:
    """A final figure as text: shares in per cent."""
    return percent(value) if name.endswith(_SHARES) else number(value)


def spoken(name: str) -> str:
    """A metric's name as people say it."""
    part, _, rest = name.partition("_")
    if part in _PARTS and rest:
        return f"{part} {spoken(rest)}"
    return _WORDS.get(name, name.replace("_", " "))


def unit_of(run: RunRecord, name: str) -> str:
    """The unit of a metric; empty if it has none, or the data did not say."""
    if not name.endswith(("mae", "rmse")):
        return ""
    # Forces are trained on with energies in eV only.
    return "eV/Å" if "force" in name else str(run.summary.get("unit") or "")


def in_unit(words: str, units: Collection[str]) -> str:
    """A heading with its unit, where there is one and it is the same for all."""
    (unit,) = units if len(units) == 1 else ("",)
    return f"{words} [{unit}]" if unit else words


def per_second(run: RunRecord) -> str:
    """What `graphs_per_second` counts."""
    return {
        "molecules": "structures a second",
        "crystals": "structures a second",
        "programs": "samples a second",
        "full-graph": "epochs a second",
        "citations": "epochs a second",
        "links": "pairs a second",
        "nodes": "nodes a second",
    }.get(run.recipe, "graphs a second")


def _lead(run: RunRecord) -> str:
    config, summary = run.config, run.summary
    named = config.get("model")
    what = _MODELS.get(str(named)) or _NETWORKS.get(run.recipe) or "A network"
    words = f"{what} on {config['data']}" if "data" in config else what
    if "target" in config:
        unit = summary.get("unit")
        words += f", to predict {config['target']}" + (f" in {unit}" if unit else "")
    if run.summary:
        how = summary.get("stopped", "")
        words += (
            f": {how} after {number(summary.get('epochs'))} epochs and "
            f"{seconds(summary.get('seconds'))}."
        )
    else:
        last = run.rows[-1] if run.rows else {}
        at = f", so far to epoch {last.get('epoch')}, step {last.get('step')}" if last else ""
        words += f": not finished{at}."
    return words


def _result(run: RunRecord) -> Part:
    summary, scores = run.summary, run.scores()
    facts = []
    for name in _headlines(scores):
        remark = unit_of(run, name)
        if name in run.intervals():
            low, high = run.intervals()[name]
            remark = f"{score_text(name, low)} to {score_text(name, high)}, 95%"
        facts.append((spoken(name), score_text(name, scores[name]), remark))
    if "seconds" in summary:
        epochs = f"{number(summary.get('epochs'))} epochs"
        facts.append(("training time", seconds(summary["seconds"]), epochs))
    if (rate := summary.get("graphs_per_second")) is not None:
        facts.append(("mean throughput", number(rate, 3), per_second(run)))
    elif points := run.series("graphs_per_second"):
        facts.append(("throughput", number(points[-1][1], 3), per_second(run)))
    if summary.get("best_epoch"):
        facts.append(("best epoch", number(summary["best_epoch"]), "whose weights are kept"))
    blocks: list[Block] = []
    if run.warnings:
        blocks.append(Words(words=run.warnings))
    if facts:
        blocks.append(Facts(facts=facts))
    table = _score_table(run, scores)
    if table is not None:
        blocks.append(table)
    return Part(title="Result", blocks=blocks)


def _headlines(scores: Mapping[str, float]) -> list[str]:
    """At most two, of the test before others."""
    for part in ("test", "validation", "train"):
        own = [name for name in scores if name.startswith(f"{part}_")]
        if own:
            kept = [name for name in own if not name.endswith(("loss", "rmse"))]
            return (kept or own)[:2]
    return []


def _score_table(run: RunRecord, scores: Mapping[str, float]) -> Table | None:
    metrics = dict.fromkeys(name.partition("_")[2] for name in scores)
    if not metrics:
        return None
    counts = _mapping(run.summary.get("counts"))
    baselines = _mapping(run.summary.get("baselines"))
    kinds = dict.fromkeys(name for each in baselines.values() for name in _mapping(each))
    headings = [in_unit(spoken(metric), {unit_of(run, metric)}) for metric in metrics]
    rows = []
    for part in _PARTS:
        own = [scores.get(f"{part}_{metric}") for metric in metrics]
        if all(value is None for value in own):
            continue
        cells = [score_text(m, value) for m, value in zip(metrics, own, strict=True)]
        base = [percent(_mapping(baselines.get(part)).get(kind)) for kind in kinds]
        rows.append((part, number(counts.get(part)), *cells, *base))
    caption = "Scores of the kept weights"
    if kinds:
        caption += "; the last columns are what needs no training: " + ", ".join(kinds)
    return Table(caption=caption, headings=("part", "size", *headings, *kinds), rows=rows)


def _curves(run: RunRecord) -> Part:
    names = run.names()
    losses = [name for name in names if name == "loss" or name.endswith("_loss")]
    # What is drawn elsewhere, and what stopping early goes by.
    rates = ("lr", "graphs_per_second", "sparsity", "selection")
    costs = ("_seconds", "_bytes", "bytes_received")
    others = [n for n in names if n not in (*losses, *rates) and not n.endswith(costs)]
    figures = [
        curves(
            "Loss",
            {_series_name(name): run.series(name) for name in losses},
            x="step",
            y="loss",
            y_log=True,
        )
    ]
    # Each kind of metric has a scale of its own.
    kinds = dict.fromkeys(_kind(name) for name in others)
    for kind in kinds:
        alike = [name for name in others if _kind(name) == kind]
        own = {_series_name(name): run.series(name) for name in alike}
        y = in_unit(kind, {unit_of(run, name) for name in alike})
        low = kind.endswith("error")
        figures.append(curves(kind[0].upper() + kind[1:], own, x="step", y=y, y_log=low))
    figures.append(
        curves("Learning rate", {"learning rate": run.series("lr")}, x="step", y="learning rate")
    )
    rate = {"throughput": run.series("graphs_per_second", by="epoch")}
    figures.append(curves("Throughput", rate, x="epoch", y=per_second(run), from_zero=True))
    return Part(title="Training", blocks=_present(figures))


def _work(run: RunRecord) -> Part:
    """How well the hardware was fed."""
    summary = run.summary
    rows: list[tuple[str, str]] = []
    fill = _mapping(summary.get("fill"))
    for name in ("node", "edge"):
        if f"{name}_fill" in fill:
            rows.append((f"{name}s of a batch that are not padding", percent(fill[f"{name}_fill"])))
    if "distinct_shapes" in fill:
        rows.append(("shapes of batches", number(fill["distinct_shapes"])))
    if "graphs_per_batch" in fill:
        rows.append(("graphs in a batch, mean", number(fill["graphs_per_batch"])))
    if "batching_share" in summary:
        rows.append(("time spent waiting for batches", percent(summary["batching_share"])))
    if "outside_share" in summary:
        rows.append(("edges outside the blocks", percent(summary["outside_share"])))
    counts = _mapping(summary.get("counts"))
    for name, words in (
        ("dropped", "left out, no target"),
        ("skipped", "left out, larger than a batch"),
    ):
        if counts.get(name):
            rows.append((words, number(counts[name])))
    account = _mapping(summary.get("compilation"))
    if account.get("mode") == "eager":
        rows.append(("compiled", "no: eager"))
    elif account:
        rows.append(("compiled", str(account.get("mode"))))
        for name, words in (
            ("compilations", "compilations"),
            ("recompiles", "recompiles"),
            ("eager_calls", "calls uncompiled, beyond the limit"),
        ):
            rows.append((words, number(account.get(name))))
        rows.append(("time spent compiling", seconds(account.get("compile_seconds"))))
    blocks: list[Block] = []
    if rows:
        blocks.append(
            Table(caption="Batches and compilation", headings=("what", "value"), rows=rows)
        )
    causes = [str(cause) for cause in account.get("causes") or []]
    if causes:
        blocks.append(
            Table(
                caption="Why code was made, each time",
                headings=("number", "cause"),
                rows=[(str(i), cause) for i, cause in enumerate(causes, start=1)],
                folded=True,
            )
        )
    breaks = [str(each) for each in account.get("graph_breaks") or []]
    if breaks:
        blocks.append(Words(words=[f"Graph breaks: {'; '.join(breaks)}."]))
    return Part(title="Fill and compilation", blocks=blocks)


def _sparsity(run: RunRecord) -> Part | None:
    counts, costs = _mapping(run.summary.get("counts")), _mapping(run.summary.get("step_costs"))
    figure = curves(
        "Sparsity",
        {"inactive weights": [(x, 100 * y) for x, y in run.series("sparsity", by="epoch")]},
        x="epoch",
        y="inactive weights, %",
        from_zero=True,
    )
    rows = []
    # Older runs counted what is not 0, also among active weights.
    for key, words in (("active", "of them active"), ("nonzero", "of them not 0")):
        if key in counts and "weights" in counts:
            rows.append(("weights", number(counts["weights"])))
            rows.append((words, number(counts[key])))
    if "flops" in costs:
        rows.append(("FLOPs of a step, of the dense one's", percent(costs["flops"])))
    if {"seconds", "dense_seconds"} <= set(costs):
        rows.append(("time of a step", seconds(costs["seconds"])))
        rows.append(("time of the same step dense", seconds(costs["dense_seconds"])))
    ratios = [ratio for ratio in costs.get("ratios") or [] if isinstance(ratio, int | float)]
    if ratios:
        between = f"{percent(min(ratios))} to {percent(max(ratios))}"
        rows.append(("the one over the other, by round", between))
    if figure is None and run.config.get("sparsify") in (None, "none"):
        return None
    blocks = _present([figure])
    if rows:
        caption = "Weights and what a step costs; FLOPs saved and time saved are different things"
        blocks.append(Table(caption=caption, headings=("what", "value"), rows=rows))
    return Part(title="Sparsity", blocks=blocks)


def _spy(run: RunRecord) -> Part | None:
    spy = run.spy
    try:
        pictures = {
            f"{each['order']}: bandwidth {each['bandwidth']:,}": np.array(each["counts"], dtype=int)
            for each in spy["orders"]
        }
        if not pictures or any(c.ndim != 2 for c in pictures.values()):
            return None
        rows = [
            (name, *(percent(each["near"][i]) for each in spy["orders"]))
            for i, name in enumerate(spy["distances"])
        ]
        table = Table(
            caption="Edges no further from the diagonal than so many nodes",
            headings=("nodes", *(each["order"] for each in spy["orders"])),
            rows=[(number(float(name)), *rest) for name, *rest in rows],
        )
        note = (
            f"{spy['graphs']:,} graphs, {spy['nodes']:,} nodes, "
            f"{spy['edges']:,} edges, in {len(next(iter(pictures.values())))} by "
            f"{len(next(iter(pictures.values())))} cells; darker ones hold more edges."
        )
    except (KeyError, TypeError, ValueError, IndexError):
        return None
    figure = spy_plots("The first supergraph", pictures, table, note)
    return Part(title="Edges before and after reordering", blocks=[figure])


def _planned(run: RunRecord) -> list[Part]:
    return plan_parts(run.plan, within="Plan: ") if run.plan else []


def _again(run: RunRecord) -> Part:
    rows = []
    for session in run.sessions:
        versions = ", ".join(f"{k} {v}" for k, v in _mapping(session.get("versions")).items())
        machine = _mapping(session.get("machine"))
        hardware = ", ".join(
            f"{machine[key]}{unit}"
            for key, unit in (("cpu", ""), ("cores", " cores"), ("memory_gib", " GiB"))
            if key in machine
        )
        rows.append((str(session.get("started", "–")), versions or "–", hardware or "–"))
    settings = [(name, plain(value)) for name, value in flat(run.config).items()]
    return Part(
        title="To do it again",
        blocks=[
            Code(caption="Commands, as they were given", text="\n".join(run.commands)),
            Table(caption="Sessions", headings=("started", "versions", "machine"), rows=rows),
            Table(
                caption=f"All {len(settings)} settings",
                headings=("setting", "value"),
                rows=settings,
                folded=True,
            ),
        ],
    )


def _kind(name: str) -> str:
    for end, kind in (("accuracy", "accuracy"), ("auc", "AUC"), ("_ap", "average precision")):
        if name.endswith(end):
            return kind
    if better_when_low(name):
        return "force error" if "force" in name else "error"
    return name


def _series_name(name: str) -> str:
    # What is logged without a part is of the batches as they are trained on.
    if name in ("loss", "accuracy"):
        return "batches of training"
    return spoken(name.removesuffix("_loss"))


def _present(figures: list[Figure | None]) -> list[Block]:
    return [figure for figure in figures if figure is not None]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
