"""The errors of a trained network as a table, beside those of what needs no training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from weft.recipes.table_training import Trained

GPA = 160.21766208
"""GPa in an eV/Å³."""
_BY_ELEMENT = "force_mae_by_element"


def mean_errors(members: Sequence[Trained]) -> Trained:
    """The mean errors of networks that were trained alike."""
    scores = {
        name: float(np.mean([each.scores[name] for each in members])) for name in members[-1].scores
    }
    by_element = {
        part: {
            symbol: {
                kind: float(np.mean([_of(each)[part][symbol][kind] for each in members]))
                for kind in errors
            }
            for symbol, errors in elements.items()
        }
        for part, elements in _of(members[-1]).items()
    }
    details = {**members[-1].details, _BY_ELEMENT: by_element}
    return replace(members[-1], scores=scores, details=details)


def _of(trained: Trained) -> Mapping[str, Any]:
    found: Mapping[str, Any] = trained.details.get(_BY_ELEMENT, {})
    return found


def score_table(trained: Trained, unit: str) -> tuple[list[str], list[list[str]]]:
    """Headings, the parts of the data, and rows, the kinds of errors.

    The last column has the errors, on the last part, of the mean or the atoms' energies alone, and
    of no forces and no stress.

    Args:
        trained: what came out of a training.
        unit: of the target; empty where it is not known.
    """
    parts = [part for part in ("validation", "test") if f"{part}_mae" in trained.scores]
    trivial = trained.details.get("trivial", {}).get(parts[-1], {}) if parts else {}
    rows = [["structures", *(f"{trained.counts[part]:,}" for part in parts), ""]]

    def add(label: str, metric: str, factor: float = 1.0) -> None:
        found = [trained.scores.get(f"{part}_{metric}") for part in parts]
        if any(value is not None for value in found):
            values = [*found, trivial.get(metric)]
            shown = ["–" if value is None else f"{factor * value:.4g}" for value in values]
            rows.append([label, *shown])

    def both(what: str, name: str, units: str, factor: float = 1.0) -> None:
        for kind in ("MAE", "RMSE"):
            heading = f"{what}{kind}" + (f" [{units}]" if units else "")
            add(heading, name.format(kind.lower()), factor)

    milli, factor = ("m", 1e3) if unit == "eV" else ("", 1.0)
    both("", "{}", unit)
    both("", "{}_per_atom", f"{milli}{unit}/atom" if unit else "per atom", factor)
    both("force ", "force_{}", "meV/Å", 1e3)
    by_element = _of(trained)
    for symbol in sorted({name for part in by_element.values() for name in part}):
        own = [by_element.get(part, {}).get(symbol, {}) for part in parts]
        values = [*(each.get("mae") for each in own), own[-1].get("trivial")]
        shown = ["–" if value is None else f"{1e3 * value:.4g}" for value in values]
        rows.append([f"  {symbol}: force MAE [meV/Å]", *shown])
    both("stress ", "stress_{}", "meV/Å³", 1e3)
    both("stress ", "stress_{}", "GPa", GPA)
    return ["", *parts, "trivial"], rows
