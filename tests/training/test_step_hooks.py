"""The pace of a training: told of every step, and of nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from small_fits import adam, data, fixed_model, quiet, squared_error

from weft.graphs import GraphTable
from weft.parallel.grid import Grid
from weft.parallel.prepare import prepare
from weft.recipes.full_graph.training import FullGraphConfig, train_full_graph
from weft.sources import planted_partition
from weft.training import Compilation, Run, fit, read_metrics
from weft.training.step_hooks import current_pace, noted_compilations, paced


@dataclass
class Noted:
    """A pace that only listens: what came in which order, and the graphs of each step."""

    events: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    compiled: list[int] = field(default_factory=list)

    def before_step(self) -> None:
        self.events.append("before")

    def after_step(self, graphs: int) -> None:
        self.events.append("after")
        self.steps.append(graphs)
        self.compiled.append(sum(each.compilations for each in noted_compilations()))


def batches(sizes=(5, 4, 3)):
    x, y = data()
    return [(a, b) for a, b in zip(x.split(sizes), y.split(sizes), strict=True)]


def test_a_fit_tells_of_every_step_and_not_of_evaluation():
    pace = Noted()

    def evaluate(model):
        pace.events.append("evaluation")
        return {"score": 1.0}

    model = fixed_model()
    with paced(pace):
        assert current_pace() is pace
        result = fit(
            model, adam(model), batches(), squared_error, config=quiet(epochs=2), evaluate=evaluate
        )
    assert current_pace() is None
    assert result.steps == 6
    assert pace.steps == [5, 4, 3] * 2
    assert pace.events.count("evaluation") == 2
    # What lies between the last `before` and an `after` is timed: the step alone.
    assert all(first == "before" for first, then in pairwise(pace.events) if then == "after"), (
        pace.events
    )


def test_the_same_weights_come_out():
    plain, under = fixed_model(), fixed_model()
    fit(plain, adam(plain), batches(), squared_error, config=quiet())
    with paced(Noted()):
        fit(under, adam(under), batches(), squared_error, config=quiet())
    for a, b in zip(plain.parameters(), under.parameters(), strict=True):
        assert torch.equal(a, b)


def test_no_checkpoint_is_written(tmp_path):
    model = fixed_model()
    with Run.create(tmp_path / "run", quiet()) as run, paced(Noted()):
        fit(model, adam(model), batches(), squared_error, config=quiet(checkpoint_every=1), run=run)
        assert not run.checkpoint.exists()
    assert len(read_metrics(tmp_path / "run")) > 0


def test_compilations_are_noted_while_there_is_a_pace():
    Compilation("eager")
    assert noted_compilations() == ()
    pace = Noted()
    with paced(pace):
        account = Compilation("static", backend="eager")
        assert noted_compilations() == (account,)
        model = account.wrap(fixed_model())
        fit(model, adam(model), batches((6, 6)), squared_error, config=quiet(epochs=2))
        with paced(Noted()):
            assert noted_compilations() == ()
        assert noted_compilations() == (account,)
    assert noted_compilations() == ()
    assert pace.compiled == [1, 1, 1, 1]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> GraphTable:
    graph = planted_partition(40, 3, mean_degree=5, homophily=0.9, num_features=7, seed=2)
    folder = tmp_path_factory.mktemp("pace")
    return prepare(graph, folder / "graph.weft", blocks=1, partition="random")


def test_full_graph_training_tells_of_every_epoch(table, tmp_path):
    pace = Noted()
    config = FullGraphConfig(data="made", epochs=4, hidden=(6,), ranks=1, feature_scale="none")
    with paced(pace):
        train_full_graph(table, config, Grid(rows=1), folder=tmp_path / "run", quiet=True)
    assert pace.steps == [1] * 4
    assert len(read_metrics(tmp_path / "run")) == 4
    assert not list((tmp_path / "run").glob("checkpoints/*"))
