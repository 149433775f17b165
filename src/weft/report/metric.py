"""What a run's metrics are called on a page, their units, and what is reached without training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from weft.recipes.recipe import RECIPES, Recipe, recipe_named
from weft.report.page import in_unit, number
from weft.report.record import RunRecord, mapping

PARTS = ("train", "validation", "test")

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
_SHARES = ("accuracy", "uses", "_found", "_repaired", "_chance", "_random", "_recent")
_LOW = ("loss", "mae", "rmse", "error", "false_alarms")


@dataclass(frozen=True)
class Metric:
    """A metric of a run, as people read it.

    Attributes:
        name: in metrics.jsonl and summary.json, such as `validation_force_mae`.
        energy_unit: of the run's target; empty if it has none or it is unknown.
    """

    name: str
    energy_unit: str = ""

    @cached_property
    def words(self) -> str:
        """Its name in words."""
        part, _, rest = self.name.partition("_")
        if part in PARTS and rest:
            return f"{part} {_WORDS.get(rest, rest.replace('_', ' '))}"
        return _WORDS.get(self.name, self.name.replace("_", " "))

    @cached_property
    def _unit_and_scale(self) -> tuple[str, float]:
        name, unit = self.name, self.energy_unit
        if name.endswith(_SHARES):
            return "%", 100.0
        if name.endswith("false_alarms"):
            return "per 1,000 lines", 1.0
        if not name.endswith(("mae", "rmse", "per_atom")):
            return "", 1.0
        # Training on forces or stress requires energies in eV.
        if "force" in name or "stress" in name:
            return "meV/Å" if "force" in name else "meV/Å³", 1e3
        if name.endswith("atom") and unit:
            return (f"m{unit}/atom", 1e3) if unit == "eV" else (f"{unit}/atom", 1.0)
        return unit, 1.0

    @property
    def unit(self) -> str:
        """The unit it is shown in; empty if it has none or it is unknown."""
        return self._unit_and_scale[0]

    @property
    def scale(self) -> float:
        """What a value in the run's files is multiplied with to be in that unit."""
        return self._unit_and_scale[1]

    @property
    def heading(self) -> str:
        """Of a column or an axis: words and unit."""
        return in_unit(self.words, self.unit)

    @property
    def better_when_low(self) -> bool:
        """Whether a lower value is better."""
        return any(word in self.name for word in _LOW)

    @property
    def kind(self) -> str:
        """What metrics that share a plot are called together."""
        for end, kind in (("accuracy", "accuracy"), ("auc", "AUC"), ("_ap", "average precision")):
            if self.name.endswith(end):
                return kind
        if self.unit == "%":
            return "share of functions"
        if self.name.endswith("false_alarms"):
            return "false alarms"
        if self.better_when_low:
            for word in ("force", "stress"):
                if word in self.name:
                    return f"{word} error"
            return "error per atom" if self.name.endswith("atom") else "error"
        return self.name.replace("_", " ")

    def text(self, value: float | None) -> str:
        """A value as text in a column with this heading; shares carry their sign."""
        if value is None:
            return "–"
        return f"{value:.1%}" if self.unit == "%" else number(self.scale * value)

    def with_unit(self, value: float) -> str:
        """A value that stands alone."""
        shown = self.text(value)
        return shown if self.unit in ("", "%") else f"{shown} {self.unit}"


def metric_of(run: RunRecord, name: str) -> Metric:
    """A metric of the run."""
    return Metric(name, run.unit)


def main_scores(scores: Mapping[str, float]) -> list[str]:
    """The names of the final scores that matter, the most important first: those of the test."""
    for part in ("test", "validation", "train"):
        own = [name for name in scores if name.startswith(f"{part}_")]
        if own:
            kept = [name for name in own if not name.endswith(("loss", "rmse", "per_atom"))]
            return kept or own
    return []


def best_so_far(run: RunRecord) -> tuple[str, float, int] | None:
    """The main validation metric of a run that is going on: name, best value, epoch."""
    for name in main_scores({name: 0.0 for name in run.names() if name.startswith("validation_")}):
        if points := run.series(name, by="epoch"):
            best = min if metric_of(run, name).better_when_low else max
            epoch, value = best(points, key=lambda point: point[1])
            return name, value, int(epoch)
    return None


def baseline(run: RunRecord, name: str) -> tuple[str, float] | None:
    """What does best without training, and its value of that score; None if it is not known."""
    part, _, metric = name.partition("_")
    trivial = mapping(mapping(run.summary.get("trivial")).get(part)).get(metric)
    if isinstance(trivial, int | float):
        return "trivial", float(trivial)
    found = []
    for kind, guess in mapping(mapping(run.summary.get("baselines")).get(part)).items():
        # Of programs, whose baselines are accuracies, a number stands alone.
        value = guess.get(metric) if isinstance(guess, Mapping) else guess
        if isinstance(value, int | float) and (isinstance(guess, Mapping) or metric == "accuracy"):
            found.append((str(kind), float(value)))
    for kind in ("random", "recent") if metric == "accuracy" else (f"{metric}_by_chance",):
        if (value := run.scores().get(f"{part}_{kind}")) is not None:
            found.append((kind.removeprefix(f"{metric}_").replace("_", " "), value))
    if not found:
        return None
    best = min if metric_of(run, name).better_when_low else max
    return best(found, key=lambda each: each[1])


def rate_unit(run: RunRecord) -> str:
    """What `graphs_per_second` counts, such as `graphs/s`."""
    # A step of an earlier run of citations was one graph; the model was a part of its config.
    if run.recipe == "citations" and run.config.get("model") != "gcn":
        return "epochs/s"
    return f"{recipe_of(run).counts}/s"


def recipe_of(run: RunRecord) -> Recipe | type[Recipe]:
    """The recipe; for a model of the user's own, what holds of any."""
    return recipe_named(run.recipe) if run.recipe in RECIPES else Recipe
