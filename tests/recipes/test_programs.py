"""The recipe for programs: a rule is learned, losses are by graph, mistakes are named."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from small_programs import config, small_program, small_programs, table_of

from weft.errors import DataError
from weft.graphs import Graph, table_from_graphs
from weft.layout.config import LayoutConfig
from weft.models.ggnn import candidate_loss
from weft.parallel.grid import Grid
from weft.parallel.world import alone, single
from weft.recipes.programs import training as programs
from weft.recipes.programs.data import baselines, check_programs, split_programs, step_budget
from weft.recipes.programs.supergraphs import StepLoader
from weft.recipes.programs.training import (
    prepare_programs,
    train_prepared_programs,
    train_programs,
)
from weft.sources.program_graph import PROGRAM_SCHEMA
from weft.training import Compilation, ScheduleConfig

BANDED = LayoutConfig(form="banded", block=16)


@pytest.fixture(scope="module")
def table():
    return small_programs(120)


def losses_of(table, monkeypatch, **options):
    """The losses of all steps."""
    losses, take = [], programs.ProgramsStep.take

    def recorded(self, model, batch):
        found = take(self, model, batch)
        losses.append(found.loss)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(programs.ProgramsStep, "take", recorded)
        trained = train_programs(table, config(**options), quiet=True)
    return losses, trained


def test_learns_a_rule_that_the_baselines_do_not_know(table):
    prepared = prepare_programs(table, config(epochs=8, nodes=128, learning_rate=5e-2))
    trained = train_prepared_programs(prepared, quiet=True)
    for part in ("train", "validation", "test"):
        base = prepared.baselines[part]
        assert trained.scores[f"{part}_accuracy"] > 0.9 > 0.6 > max(base.random, base.recent)
    assert trained.counts == {"train": 84, "validation": 24, "test": 12, "skipped": 0}
    assert trained.result.best_metrics["train_accuracy"] > 0.5


def test_forms_of_the_layout_give_the_same_losses(table, monkeypatch):
    expected, _ = losses_of(table, monkeypatch, max_steps=4)
    for layout in (BANDED, LayoutConfig(form="dense"), LayoutConfig(form="auto")):
        found, _ = losses_of(table, monkeypatch, max_steps=4, layout=layout)
        assert found == pytest.approx(expected, rel=1e-4), layout
        assert prepare_programs(table, config(layout=layout)).config.layout.form != "auto"
    narrow = LayoutConfig(form="banded", block=4, outside="spill")
    found, trained = losses_of(table, monkeypatch, max_steps=4, layout=narrow)
    assert found == pytest.approx(expected, rel=1e-4)
    assert 0 < trained.outside_share < 1
    found, trained = losses_of(
        table, monkeypatch, max_steps=4, layout=replace(narrow, outside="drop")
    )
    assert trained.outside_share > 0
    assert found != pytest.approx(expected, rel=1e-4)


def test_bf16_is_near(table, monkeypatch):
    expected, _ = losses_of(table, monkeypatch, max_steps=4, layout=BANDED)
    found, trained = losses_of(table, monkeypatch, max_steps=4, layout=BANDED, precision="bf16")
    assert found != expected
    assert found == pytest.approx(expected, rel=0.02)
    assert {p.dtype for p in trained.model.parameters()} == {torch.float32}


def test_the_loss_is_a_mean_over_graphs_not_supergraphs(table):
    """Supergraphs hold more or fewer graphs; a mean of means would count those of few more."""
    asked = config(supergraphs_per_step=100, learning_rate=0.0, policy="dynamic")
    prepared = prepare_programs(table, asked)
    assert len({len(planned.graphs) for planned in prepared.sampler.plan()}) > 1
    trained = train_programs(table, asked, quiet=True)
    assert trained.result.steps == 1
    loader = StepLoader(
        prepared.table,
        prepared.sampler,
        partial(programs.TypedEdges.of_batch, num_types=20),
        per_step=3,
    )
    total = count = 0.0
    for step in loader:
        for each in step.supergraphs:
            with torch.no_grad():
                scores = trained.model(each.batch, each.adjacency)
            loss, graphs = candidate_loss(each.batch, scores)
            total, count = total + float(loss), count + graphs
    assert count == 84
    assert trained.result.metrics["train_loss"] == pytest.approx(total / count, rel=1e-5)


def test_gradients_do_not_depend_on_how_graphs_are_packed(table):
    def gradients(nodes: int) -> list[torch.Tensor]:
        asked = config(nodes=nodes, supergraphs_per_step=100, clip_norm=None)
        prepared = prepare_programs(table, asked)
        torch.manual_seed(1)
        model = programs.make_ggnn(asked, num_types=20, vocabulary=8192)
        loader = StepLoader(
            prepared.table, prepared.sampler, programs._Former(prepared), per_step=100
        )
        step = programs.ProgramsStep(model, asked, single())
        for batch in loader:
            step.take(model, batch)
        return [p.grad for p in model.parameters() if p.grad is not None]

    for one, other in zip(gradients(64), gradients(1024), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_dropout_is_that_of_the_place_not_of_the_past(table, monkeypatch):
    first, _ = losses_of(table, monkeypatch, dropout=0.5, max_steps=3)
    again, _ = losses_of(table, monkeypatch, dropout=0.5, max_steps=3)
    other, _ = losses_of(table, monkeypatch, dropout=0.5, max_steps=3, seed=1)
    assert first == again != other


def test_recompute_changes_nothing(table, monkeypatch):
    plain, _ = losses_of(table, monkeypatch, max_steps=3, dropout=0.2)
    found, _ = losses_of(table, monkeypatch, max_steps=3, dropout=0.2, recompute=True)
    assert found == pytest.approx(plain, rel=1e-6)


def test_one_compilation_for_an_epoch_of_supergraphs(table, monkeypatch):
    monkeypatch.setattr(programs, "Compilation", partial(Compilation, backend="aot_eager"))
    expected, _ = losses_of(table, monkeypatch, layout=BANDED)
    found, trained = losses_of(table, monkeypatch, layout=BANDED, compile="static")
    assert trained.result.steps == len(found) > 5
    assert trained.compilation.compilations == 1
    assert trained.compilation.eager_calls == 0
    assert trained.compilation.report()["graph_breaks"] == []
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_rate_grows_with_the_supergraphs_of_a_step(table):
    schedule = ScheduleConfig(shape="constant", warmup=1000)
    asked = config(supergraphs_per_step=4, schedule=schedule)
    found = programs._schedule(asked, 50)
    assert (found.scale, found.warmup, found.shape) == (4.0, 10, "constant")
    assert programs._schedule(asked, 10_000).warmup == 1000


def test_a_large_graph_is_left_out_of_training_only(table):
    rng = np.random.default_rng(5)
    graphs = [table[i] for i in range(80)]
    large = [small_program(rng, number, nodes=6) for number in range(80, 120)]
    chains = [_longer(graph, 200) for graph in large]
    trained = train_programs(table_of(graphs + chains), config(split_seed=1), quiet=True)
    assert trained.counts["skipped"] > 0
    assert sum(trained.counts[part] for part in ("train", "validation", "test")) == 120
    assert 0 <= trained.scores["validation_accuracy"] <= 1


def _longer(graph: Graph, more: int) -> Graph:
    """The same with a tail of nodes."""
    nodes = {
        name: np.concatenate([values, np.zeros((more, *values.shape[1:]), values.dtype)])
        for name, values in graph.nodes.items()
    }
    return replace(graph, num_nodes=graph.num_nodes + more, nodes=nodes)


def test_baselines_of_few_graphs():
    rng = np.random.default_rng(0)
    table = table_of([small_program(rng, number) for number in range(12)])
    chances, hits = [], []
    for graph in (table[i] for i in range(4)):
        chances.append(1 / (graph.nodes["role"] == 2).sum())
        hits.append((graph.nodes["recent"] * graph.nodes["correct"]).sum())
    found = baselines(table, np.arange(4))
    assert found.random == pytest.approx(np.mean(chances))
    assert found.recent == pytest.approx(np.mean(hits))


def test_no_file_is_in_two_parts(table):
    split = split_programs(table, parts=(0.6, 0.2, 0.2), seed=3)
    files = [set(np.asarray(table.column("file"))[ids].tolist()) for ids in split.values()]
    assert sum(map(len, split.values())) == len(table)
    assert not files[0] & files[1] | files[0] & files[2] | files[1] & files[2]
    again = split_programs(table, parts=(0.6, 0.2, 0.2), seed=4)
    assert split["train"].tolist() != again["train"].tolist()


def test_the_budget_has_room_for_what_fits(table):
    budget = step_budget(table.num_nodes, table.num_edges, 64)
    assert budget.nodes == 64
    assert budget.edges >= table.num_edges.max()
    assert budget.edges % 64 == 0
    assert budget.graphs >= 64 // table.num_nodes.min()
    with pytest.raises(
        DataError, match=r"nodes, and a supergraph of 4 has room for 3; raise nodes"
    ):
        step_budget(table.num_nodes, table.num_edges, 4)


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("role", {2: 0}, r"graph 1 \(file0\.py, line 2\) has 0 candidates"),
        ("role", {1: 0}, r"graph 1 .* has 0 slots; a graph has one"),
        ("correct", {1: 0}, r"graph 1 .* has 0 right candidates; exactly one is right"),
        ("correct", {0: 1}, r"graph 1 .* has [2-9] right candidates"),
    ],
)
def test_graphs_without_a_choice(column, value, named):
    rng = np.random.default_rng(2)
    graphs = [small_program(rng, number) for number in range(8)]
    (old, new), *_ = value.items()
    values = np.where(graphs[1].nodes[column] == old, np.int8(new), graphs[1].nodes[column])
    graphs[1] = replace(graphs[1], nodes={**graphs[1].nodes, column: values})
    with pytest.raises(DataError, match=named):
        prepare_programs(table_of(graphs), config())


def test_tables_that_cannot_be_used(table):
    with pytest.raises(DataError, match="no graphs"):
        check_programs(table_from_graphs([], PROGRAM_SCHEMA))
    other = table_from_graphs(
        [Graph(num_nodes=1, senders=np.zeros(0, np.int32), receivers=np.zeros(0, np.int32))]
    )
    with pytest.raises(DataError, match="not one of programs: it has no node column 'role'"):
        prepare_programs(other, config())
    with pytest.raises(DataError, match="of 1 files none is for"):
        prepare_programs(table.select([0, 1, 2, 3]), config())
    with pytest.raises(ValueError, match="there are 3 ranks; each needs one at least"):
        prepare_programs(table, config(), world=alone(Grid(rows=3), 0))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"layout": LayoutConfig(form="banded", block=24)}, "64, not a multiple of the block 24"),
        ({"compile": "static"}, "only the banded form with a block"),
        ({"compile": "static", "layout": replace(BANDED, outside="spill")}, "outside raise or"),
        ({"compile": "dynamic"}, "take static"),
        ({"precision": "bf16"}, "the layout is csr"),
        ({"policy": "unpadded"}, "packed, dynamic"),
        ({"split": (0.5, 0.2, 0.2)}, "must add up to 1"),
        ({"split": (0.0, 0.5, 0.5)}, "above 0"),
        ({"start": "letters"}, "start is 'letters'"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"smoothing": -0.1}, "smoothing is -0.1"),
        ({"nodes": 1}, "nodes is 1"),
        ({"steps": 0}, "steps is 0"),
        ({"supergraphs_per_step": 0}, "supergraphs_per_step is 0"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
    ],
)
def test_configurations_that_cannot_be(options, named):
    with pytest.raises(ValueError, match=named):
        config(**options)
