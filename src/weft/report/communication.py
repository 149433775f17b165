"""What an epoch sends between ranks: bytes as they were recorded, and by the formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.report.figures import grouped_bars
from weft.report.numbers import memory, percent, seconds
from weft.report.page import Block, Part, Table


def communication_part(summary: Mapping[str, Any]) -> Part | None:
    """A figure by collective and the rest as a table; None of a run without ranks."""
    found = summary.get("communication")
    if not isinstance(found, Mapping):
        return None
    recorded = _numbers(found.get("bytes"))
    predicted = _numbers(found.get("predicted_bytes"))
    blocks: list[Block] = []
    kinds = sorted(recorded | predicted)
    if kinds:
        series = {"recorded": [recorded.get(kind, 0.0) / 1e3 for kind in kinds]}
        note = "Received in an epoch, on the rank that it costs most."
        if predicted:
            series["predicted"] = [predicted.get(kind, 0.0) / 1e3 for kind in kinds]
            same = all(abs(recorded.get(k, 0) - predicted.get(k, 0)) < 1 for k in kinds)
            note += (
                " What the formulas predict is what was recorded, to the byte."
                if same
                else " Predicted by the formulas from the rank's own edges."
            )
        names = [kind.replace("_", "-") for kind in kinds]
        blocks.append(
            grouped_bars("Bytes by collective", names, series, y="kB an epoch", note=note)
        )
    spent = _numbers(found.get("seconds"))
    rows = [(f"{name} in an epoch", seconds(value)) for name, value in spent.items()]
    if sum(spent.values()):
        share = spent.get("communication", 0.0) / sum(spent.values())
        rows.append(("communication, of the time of an epoch", percent(share)))
    if "peak" in found:
        rows.append(("memory of a rank for the graph, recorded", memory(found["peak"])))
    if "predicted" in found:
        rows.append(("memory of a rank for the graph, predicted", memory(found["predicted"])))
    grid = f"{summary.get('grid', '–')} on {summary.get('ranks', '–')} ranks"
    rows.insert(0, ("grid", grid))
    partition = summary.get("partition")
    if isinstance(partition, Mapping) and "cut_edges" in partition:
        how = f"{partition.get('how')}, {partition['cut_edges']:,} edges cut"
        rows.append(("partition", how))
    caption = "An epoch on the rank that it costs most"
    blocks.append(Table(caption=caption, headings=("what", "value"), rows=rows))
    return Part(title="Communication", blocks=blocks)


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        return {}
    return {k: float(v) for k, v in value.items() if isinstance(v, int | float)}
