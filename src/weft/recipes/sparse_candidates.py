"""Ways to train networks that may be sparse: the form of their layers, threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.planning.candidate import Candidate, applied
from weft.planning.task import ENDLESS, PlanTask, thread_counts
from weft.training.config import SparsityConfig

IDLE = (
    *("data", "walks", "length", "learning_rate", "schedule", "epochs", "checkpoint_every"),
    *("seed", "death", "rho"),
)
"""Settings that do not change how long a step takes, of all such networks."""


class SparseTask(PlanTask):
    """Training of a network that may be sparse.

    Attributes:
        rows: that are learned from.
        epoch_steps: steps of an epoch.
        epochs: of the run.
        linear: whether its layers have a sparse form.
    """

    config: SparsityConfig
    planned = ("form",)
    rows: int
    epoch_steps: int
    epochs: int
    linear = True

    @property
    def steps(self) -> int:
        """Of the run that is asked for, with the trainings that look for a lottery ticket."""
        rounds = 1 + self.config.rounds if self.config.sparsify == "lottery" else 1
        return rounds * self.run_steps

    @property
    def step_units(self) -> float:
        """Rows in a step, the mean."""
        return self.rows / self.epoch_steps

    def waves(self) -> list[list[Candidate]]:
        """Both forms with every number of threads."""
        forms = ["dense"]
        if self.config.may_be_sparse and self.linear:
            forms.append("sparse")
        elif self.config.sparsify != "none":
            sparse = Candidate({"form": "sparse", "threads": thread_counts()[0]})
            why = "needs all weights for a part of the training"
            if not self.linear:
                why = "a gcn has no layers of that form"
            self.note(sparse, f"not tried: {why}")
        return [
            [
                Candidate({"form": form, "threads": threads})
                for threads in thread_counts()
                for form in forms
            ]
        ]

    @property
    def run_steps(self) -> int:
        """Of one training."""
        return self.epochs * self.epoch_steps


def mask_interval(config: SparsityConfig, steps: int) -> int:
    """Steps between two changes of the masks in a run of so many."""
    return config.update_every or max(1, steps // 20)


def endless(config: Any, settings: Mapping[str, Any], update_every: int) -> Any:
    """The configuration with a candidate's settings, for a training that is ended from outside."""
    changes = {**settings, "epochs": ENDLESS, "update_every": update_every}
    return applied(config, changes)
