"""The chapter of a run: what was trained, how it went, and how to repeat it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from weft.planning.explain import memory_words, seconds_words
from weft.recipes.recipe import RECIPES, Recipe, recipe_named
from weft.report.figures import bars, curves, spy_plots
from weft.report.page import (
    Block,
    Chapter,
    Code,
    Facts,
    Part,
    Table,
    Words,
    number,
    percent,
    plain,
    present,
    value_table,
)
from weft.report.plan_report import plan_parts
from weft.report.record import RunRecord, flat, mapping

_PARTS = ("train", "validation", "test")
_WORDS = {
    "mae": "MAE",
    "rmse": "RMSE",
    "force_mae": "force MAE",
    "force_rmse": "force RMSE",
    "stress_mae": "stress MAE",
    "stress_rmse": "stress RMSE",
    "mae_per_atom": "MAE per atom",
    "rmse_per_atom": "RMSE per atom",
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
_SHARES = ("accuracy",)


def run_chapter(run: RunRecord) -> Chapter:
    """The chapter of a run, with everything that its folder holds."""
    parts = [
        _result(run),
        _curves(run),
        _work(run),
        _sparsity(run),
        _communication(run.summary),
        _spy(run),
        *(plan_parts(run.plan, within="Plan: ") if run.plan else []),
        _again(run),
    ]
    return Chapter(
        kind=f"Run, {run.recipe}" if run.recipe else "Run",
        title=run.name,
        lead=_lead(run),
        parts=[part for part in parts if part is not None and part.blocks],
    )


def better_when_low(name: str) -> bool:
    """Whether a lower value of the metric is better."""
    return any(word in name for word in ("loss", "mae", "rmse", "error"))


def score_text(name: str, value: float | None) -> str:
    """A final score as text: shares in per cent."""
    return percent(value) if name.endswith(_SHARES) else number(value)


def spoken(name: str) -> str:
    """The name of a metric in words."""
    part, _, rest = name.partition("_")
    if part in _PARTS and rest:
        return f"{part} {spoken(rest)}"
    return _WORDS.get(name, name.replace("_", " "))


def unit_of(run: RunRecord, name: str) -> str:
    """The unit of a metric; empty if it has none or it is unknown."""
    if not name.endswith(("mae", "rmse", "per_atom")):
        return ""
    # Training on forces or stress requires energies in eV.
    if "force" in name or "stress" in name:
        return "eV/Å" if "force" in name else "eV/Å³"
    unit = str(run.summary.get("unit") or "")
    return f"{unit}/atom" if unit and name.endswith("atom") else unit


def in_unit(words: str, units: Collection[str]) -> str:
    """A heading with the unit, where all have the same one."""
    (unit,) = units if len(units) == 1 else ("",)
    return f"{words} [{unit}]" if unit else words


def per_second(run: RunRecord) -> str:
    """What `graphs_per_second` counts."""
    # A step of an earlier run of citations was one graph; the model was a part of its config.
    if run.recipe == "citations" and run.config.get("model") != "gcn":
        return "epochs a second"
    return f"{_recipe(run).counts} a second"


def _recipe(run: RunRecord) -> Recipe | type[Recipe]:
    """The recipe; for a model of the user's own, what holds of any."""
    return recipe_named(run.recipe) if run.recipe in RECIPES else Recipe


def _lead(run: RunRecord) -> str:
    config, summary = run.config, run.summary
    named = config.get("model")
    what = _MODELS.get(str(named)) or _recipe(run).trains
    data = config.get("data")
    named = ", ".join(map(str, data)) if isinstance(data, list) else data
    words = f"{what} on {named}" if "data" in config else what
    if "target" in config:
        unit = summary.get("unit")
        words += f", to predict {config['target']}" + (f" in {unit}" if unit else "")
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
        facts.append(("training time", seconds_words(summary["seconds"]), epochs))
    if (rate := summary.get("graphs_per_second")) is not None:
        facts.append(("mean throughput", number(rate, 3), per_second(run)))
    elif points := run.series("graphs_per_second"):
        facts.append(("throughput", number(points[-1][1], 3), per_second(run)))
    if summary.get("best_epoch"):
        facts.append(("best epoch", number(summary["best_epoch"]), "whose weights are kept"))
    warnings = Words(words=run.warnings) if run.warnings else None
    shown = Facts(facts=facts) if facts else None
    tables = (_score_table(run, scores), _element_table(run))
    return Part(title="Result", blocks=present(warnings, shown, *tables))


def _headlines(scores: Mapping[str, float]) -> list[str]:
    """The names of at most two scores, those of the test first."""
    for part in ("test", "validation", "train"):
        own = [name for name in scores if name.startswith(f"{part}_")]
        if own:
            kept = [name for name in own if not name.endswith(("loss", "rmse", "per_atom"))]
            return (kept or own)[:2]
    return []


def _score_table(run: RunRecord, scores: Mapping[str, float]) -> Table | None:
    metrics = dict.fromkeys(name.partition("_")[2] for name in scores)
    if not metrics:
        return None
    counts = mapping(run.summary.get("counts"))
    baselines = mapping(run.summary.get("baselines"))
    shares = {part: _real_values(each) for part, each in baselines.items()}
    kinds = dict.fromkeys(name for each in shares.values() for name in each)
    headings = [in_unit(spoken(metric), {unit_of(run, metric)}) for metric in metrics]
    rows = []
    for part in _PARTS:
        own = [scores.get(f"{part}_{metric}") for metric in metrics]
        if all(value is None for value in own):
            continue
        cells = [score_text(m, value) for m, value in zip(metrics, own, strict=True)]
        base = [percent(shares.get(part, {}).get(kind)) for kind in kinds]
        rows.append((part, number(counts.get(part)), *cells, *base))
        for name, guess in mapping(baselines.get(part)).items():
            if isinstance(guess, Mapping):
                cells = [score_text(m, guess.get(m)) for m in metrics]
                rows.append((f"{part}, {name}", "", *cells, *["" for _ in kinds]))
        if trivial := mapping(mapping(run.summary.get("trivial")).get(part)):
            cells = [score_text(m, trivial.get(m)) for m in metrics]
            rows.append((f"{part}, trivial", "", *cells, *base))
    caption = "Scores of the kept weights"
    if kinds:
        caption += "; the last columns are what needs no training: " + ", ".join(kinds)
    elif baselines:
        caption += "; below them what needs no training reaches on the same pairs"
    if run.summary.get("trivial"):
        caption += "; trivial: the atoms' own values or the mean alone, no forces, no stress"
    return Table(caption=caption, headings=("part", "size", *headings, *kinds), rows=rows)


def _real_values(value: Any) -> dict[str, Any]:
    return {name: each for name, each in mapping(value).items() if not isinstance(each, Mapping)}


def _element_table(run: RunRecord) -> Table | None:
    """Errors of the forces by element, on the last part that has them."""
    parts = mapping(run.summary.get("force_mae_by_element"))
    part = next((name for name in ("test", "validation") if mapping(parts.get(name))), None)
    if part is None:
        return None
    rows = [
        (str(symbol), number(mapping(errors).get("mae")), number(mapping(errors).get("trivial")))
        for symbol, errors in mapping(parts[part]).items()
    ]
    headings = ("element", "force MAE [eV/Å]", "no forces [eV/Å]")
    return Table(caption=f"Forces of the {part} part by element", headings=headings, rows=rows)


def _curves(run: RunRecord) -> Part:
    names = run.names()
    losses = [name for name in names if name == "loss" or name.endswith("_loss")]
    # These have plots of their own, or only decide about early stopping.
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
        low = "error" in kind
        figures.append(curves(kind[0].upper() + kind[1:], own, x="step", y=y, y_log=low))
    figures.append(
        curves("Learning rate", {"learning rate": run.series("lr")}, x="step", y="learning rate")
    )
    rate = {"throughput": run.series("graphs_per_second", by="epoch")}
    figures.append(curves("Throughput", rate, x="epoch", y=per_second(run), from_zero=True))
    return Part(title="Training", blocks=present(*figures))


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


def _work(run: RunRecord) -> Part:
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
        blocks.append(value_table("Batches and compilation", rows))
    causes = [(str(i), str(cause)) for i, cause in enumerate(account.get("causes") or [], start=1)]
    if causes:
        why = "Why code was made, each time"
        headings = ("number", "cause")
        blocks.append(Table(caption=why, headings=headings, rows=causes, folded=True))
    breaks = [str(each) for each in account.get("graph_breaks") or []]
    if breaks:
        blocks.append(Words(words=[f"Graph breaks: {'; '.join(breaks)}."]))
    return Part(title="Fill and compilation", blocks=blocks)


def _value_rows(
    summary: Mapping[str, Any], table: Mapping[str, tuple[str, Callable[[Any], str]]]
) -> list[tuple[str, str]]:
    """Those rows of a table of dotted names that a flat summary has values for."""
    return [(words, show(summary[key])) for key, (words, show) in table.items() if key in summary]


def _sparsity(run: RunRecord) -> Part | None:
    figure = curves(
        "Sparsity",
        {"inactive weights": [(x, 100 * y) for x, y in run.series("sparsity", by="epoch")]},
        x="epoch",
        y="inactive weights, %",
        from_zero=True,
    )
    if figure is None and run.config.get("sparsify") in (None, "none"):
        return None
    summary = flat(run.summary)
    rows = _value_rows(summary, _WEIGHTS)
    ratios = [ratio for ratio in summary.get("step_costs.ratios") or [] if ratio is not None]
    if ratios:
        between = f"{percent(min(ratios))} to {percent(max(ratios))}"
        rows.append(("the one over the other, by round", between))
    caption = "Weights and what a step costs; FLOPs saved and time saved are different things"
    table = value_table(caption, rows) if rows else None
    return Part(title="Sparsity", blocks=present(figure, table))


def _communication(summary: Mapping[str, Any]) -> Part | None:
    """A figure by collective and the rest as a table; None of a run without ranks."""
    found = summary.get("communication")
    if not isinstance(found, Mapping):
        return None
    recorded = _numbers(found.get("bytes"))
    predicted = _numbers(found.get("predicted_bytes"))
    blocks: list[Block] = []
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
        blocks.append(
            bars(
                "Bytes by collective",
                sizes,
                x="kB an epoch",
                of="collective",
                marked=marked,
                note=note,
            )
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
    blocks.append(value_table("An epoch on the rank that it costs most", rows))
    return Part(title="Communication", blocks=blocks)


def _numbers(value: Any) -> dict[str, float]:
    return {k: float(v) for k, v in mapping(value).items() if isinstance(v, int | float)}


def _spy(run: RunRecord) -> Part | None:
    spy = run.spy
    try:
        pictures = {
            f"{each['order']}: bandwidth {each['bandwidth']:,}": np.array(each["counts"], dtype=int)
            for each in spy["orders"]
        }
        if not pictures or any(c.ndim != 2 for c in pictures.values()):
            return None
        table = Table(
            caption="Edges no further from the diagonal than so many nodes",
            headings=("nodes", *(each["order"] for each in spy["orders"])),
            rows=[
                (number(float(nodes)), *(percent(each["near"][i]) for each in spy["orders"]))
                for i, nodes in enumerate(spy["distances"])
            ],
        )
        cells = len(next(iter(pictures.values())))
        note = (
            f"{spy['graphs']:,} graphs, {spy['nodes']:,} nodes, "
            f"{spy['edges']:,} edges, in {cells} by {cells} cells; darker ones hold more edges."
        )
    except (KeyError, TypeError, ValueError, IndexError):
        return None
    figure = spy_plots("The first supergraph", pictures, table, note)
    return Part(title="Edges before and after reordering", blocks=[figure])


def _again(run: RunRecord) -> Part:
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
    return Part(
        title="To do it again",
        blocks=[
            Code(caption="Commands, as they were given", text="\n".join(run.commands)),
            Table(caption="Sessions", headings=("started", "versions", "machine"), rows=rows),
            value_table(f"All {len(settings)} settings", settings, "setting", folded=True),
        ],
    )


def _kind(name: str) -> str:
    for end, kind in (("accuracy", "accuracy"), ("auc", "AUC"), ("_ap", "average precision")):
        if name.endswith(end):
            return kind
    if better_when_low(name):
        for word in ("force", "stress"):
            if word in name:
                return f"{word} error"
        return "error per atom" if name.endswith("atom") else "error"
    return name


def _series_name(name: str) -> str:
    # Metrics without a part in their name are of training batches.
    if name in ("loss", "accuracy"):
        return "batches of training"
    return spoken(name.removesuffix("_loss"))
