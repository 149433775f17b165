"""Steps of supergraphs: shared whole by any number of ranks, found again after a stop."""

from __future__ import annotations

import threading
from functools import partial
from itertools import islice

import pytest
from small_programs import config, small_programs

from weft.layout import TypedEdges
from weft.parallel.grid import Grid
from weft.parallel.world import alone
from weft.recipes.programs.supergraphs import StepLoader
from weft.recipes.programs.training import prepare_programs


@pytest.fixture(scope="module")
def prepared():
    return prepare_programs(small_programs(120), config())


def loader(prepared, *, per_step=3, rank=0, size=1):
    form = partial(TypedEdges.of_batch, num_types=20)
    world = alone(Grid(rows=size), rank)
    return StepLoader(prepared.table, prepared.sampler, form, per_step=per_step, world=world)


def taken(steps):
    """Graphs of the whole step and, of this rank's supergraphs, number, graphs and a checksum."""

    def told(s):
        return s.number, s.batch.num_real_graphs, int(s.batch.nodes["subtokens"].sum())

    return [(step.num_graphs, [told(s) for s in step.supergraphs]) for step in steps]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_share_each_step_whole(prepared, size):
    whole = taken(loader(prepared))
    assert len(whole) == len(loader(prepared)) > 2
    assert sum(graphs for graphs, _ in whole) == len(prepared.split["train"])
    shares = [taken(loader(prepared, rank=rank, size=size)) for rank in range(size)]
    for step, (graphs, supergraphs) in enumerate(whole):
        assert sum(count for _, count, _ in supergraphs) == graphs
        assert {share[step][0] for share in shares} == {graphs}
        assert sorted(s for share in shares for s in share[step][1]) == supergraphs


def test_all_supergraphs_have_one_shape(prepared):
    shapes = {
        (s.batch.num_nodes, s.batch.num_edges, s.batch.num_graphs, s.adjacency.num_nodes)
        for step in loader(prepared)
        for s in step.supergraphs
    }
    budget = prepared.sampler.budget
    assert shapes == {(budget.nodes, budget.edges, budget.graphs, budget.nodes)}


def test_what_a_step_leaves_is_not_the_next_ones(prepared):
    whole = taken(loader(prepared))
    steps = iter(loader(prepared))
    next(steps)
    first = next(next(steps).supergraphs)
    assert first.number == 3
    assert taken(steps) == whole[2:]


def test_goes_on_in_the_middle_of_an_epoch(prepared):
    begun = loader(prepared)
    begun.set_epoch(4)
    whole = taken(begun)
    steps = iter(begun)
    assert taken(islice(steps, 2)) == whole[:2]
    state = begun.state_dict()
    steps.close()
    again = loader(prepared)
    again.load_state_dict(state)
    assert taken(again) == whole[2:]
    assert taken(again) == whole
    again.set_epoch(5)
    assert taken(again) != whole


def test_the_thread_ends_with_the_epoch_or_the_iterator(prepared):
    # Another test's may still wait to be collected.
    others = set(threading.enumerate())
    steps = iter(loader(prepared))
    next(next(steps).supergraphs)
    (own,) = set(threading.enumerate()) - others
    assert own.name.startswith("weft-loader")
    steps.close()
    assert not own.is_alive()


def test_options_that_cannot_be(prepared):
    with pytest.raises(ValueError, match="per_step is 0"):
        loader(prepared, per_step=0)
