"""What every policy owes its users, on random sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from size_lists import ALL, PADDED, quick, sizes
from torch.utils.data import DataLoader

from weft.batching import BatchingConfig, GraphSampler, evaluation_sampler
from weft.errors import DataError
from weft.graphs import Budget

Sizes = tuple[np.ndarray, np.ndarray]
policies = st.sampled_from(ALL)


def config(policy: Any, batch_size: int = 5, **options: Any) -> BatchingConfig:
    return BatchingConfig(policy=policy, batch_size=batch_size, **options)


def some_sizes(count: int = 200, seed: int = 0) -> Sizes:
    nodes = np.random.default_rng(seed).integers(3, 30, count)
    return nodes, nodes * (nodes - 1)


def lists(sampler: GraphSampler) -> list[list[int]]:
    return list(sampler)


@given(sizes(), policies, st.integers(2, 9), st.booleans(), st.integers(0, 3))
@quick
def test_every_graph_once_and_no_limit_exceeded(
    both: Sizes, policy: Any, batch_size: int, shuffle: bool, epoch: int
) -> None:
    sampler = GraphSampler(*both, config(policy, batch_size, shuffle=shuffle))
    sampler.set_epoch(epoch)
    batches, plan = lists(sampler), sampler.plan()
    assert len(sampler) == len(batches) == len(plan)
    assert sorted(g for batch in batches for g in batch) == list(range(len(both[0])))
    for batch, planned in zip(batches, plan, strict=True):
        assert batch == planned.graphs.tolist()
        nodes, edges = both[0][batch].sum(), both[1][batch].sum()
        if policy == "unpadded":
            assert planned.budget is None
            assert 1 <= len(batch) <= batch_size
        else:
            assert planned.budget is not None
            assert nodes <= planned.budget.nodes - 1
            assert edges <= planned.budget.edges
            assert 1 <= len(batch) <= planned.budget.graphs - 1
            assert planned.budget.graphs == batch_size


@given(sizes(min_size=8), policies, st.integers(3, 9), st.integers(2, 4))
@quick
def test_ranks_share_the_graphs_in_equal_steps(
    both: Sizes, policy: Any, batch_size: int, ranks: int
) -> None:
    try:
        samplers = [
            GraphSampler(*both, config(policy, batch_size), rank=rank, ranks=ranks)
            for rank in range(ranks)
        ]
        shares = [lists(sampler) for sampler in samplers]
    except ValueError as error:
        # Packed batches of the largest graphs may hold one each, in a number that does not divide.
        if "of one graph each" not in str(error):
            raise
        reject()
    assert len({len(share) for share in shares}) == 1
    assert sorted(g for share in shares for batch in share for g in batch) == list(
        range(len(both[0]))
    )
    assert samplers[0].statistics() == samplers[1].statistics()
    for sampler in samplers:
        for planned in sampler.plan():
            assert planned.budget is None or (
                both[0][planned.graphs].sum() < planned.budget.nodes
                and both[1][planned.graphs].sum() <= planned.budget.edges
            )


@given(sizes(), policies, st.integers(0, 60), st.integers(0, 5))
@quick
def test_resuming_in_the_middle_of_an_epoch(
    both: Sizes, policy: Any, stop: int, epoch: int
) -> None:
    whole = GraphSampler(*both, config(policy))
    whole.set_epoch(epoch)
    expected = lists(whole)
    first = GraphSampler(*both, config(policy))
    first.set_epoch(epoch)
    stop = min(stop, len(expected))
    iterator = iter(first)
    begun = [next(iterator) for _ in range(stop)]
    second = GraphSampler(*both, config(policy))
    second.load_state_dict(first.state_dict())
    assert second.epoch == epoch
    assert begun + lists(second) == expected
    # Only the next iteration goes on; the one after it is a whole epoch again.
    assert lists(second) == expected


@pytest.mark.parametrize("policy", ALL)
def test_shuffles_differ_by_epoch_and_seed_and_are_repeatable(policy: Any) -> None:
    both = some_sizes()

    def epoch(number: int, seed: int = 0) -> list[list[int]]:
        sampler = GraphSampler(*both, config(policy, 16, seed=seed))
        sampler.set_epoch(number)
        return lists(sampler)

    def sets(batches: list[list[int]]) -> set[frozenset[int]]:
        return {frozenset(batch) for batch in batches}

    assert epoch(3) == epoch(3)
    assert not sets(epoch(0)) & sets(epoch(1))
    assert not sets(epoch(0)) & sets(epoch(0, seed=1))


@pytest.mark.parametrize("policy", ALL)
def test_without_a_shuffle_every_epoch_is_the_same(policy: Any) -> None:
    sampler = GraphSampler(*some_sizes(), config(policy, shuffle=False))
    first = lists(sampler)
    sampler.set_epoch(1)
    assert lists(sampler) == first
    if policy != "packed":
        assert [g for batch in first for g in batch] == list(range(200))


def test_packing_sorted_graphs_without_a_shuffle_fills_the_batches() -> None:
    nodes = np.sort(some_sizes(5000)[0])
    sampler = GraphSampler(nodes, nodes * (nodes - 1), config("packed", 32, shuffle=False))
    found = sampler.statistics()
    assert found.node_fill > 0.97
    assert found.edge_fill > 0.97


def test_shuffles_are_the_same_for_all_ranks() -> None:
    both = some_sizes()
    plans = []
    for ranks in (1, 2):
        shares = [
            lists(GraphSampler(*both, config("dynamic"), rank=rank, ranks=ranks))
            for rank in range(ranks)
        ]
        plans.append([batch for share in shares for batch in share])
    shared = {tuple(batch) for batch in plans[0]} & {tuple(batch) for batch in plans[1]}
    assert len(shared) >= len(plans[0]) - 1


def test_ranks_have_steps_of_like_cost() -> None:
    both = some_sizes(1000)
    shares = [
        GraphSampler(*both, config("unpadded", 8), rank=rank, ranks=4).plan() for rank in range(4)
    ]
    costs = np.array([[both[1][planned.graphs].sum() for planned in share] for share in shares])
    apart = (costs.max(axis=0) - costs.min(axis=0)) / costs.mean(axis=0)
    assert np.median(apart) < 0.05
    # In any order of their own they would differ by more than half a batch.
    assert costs.max() - costs.min() > 0.5 * costs.mean()


def test_dynamic_takes_graphs_in_order_until_one_does_not_fit() -> None:
    budget = Budget(nodes=11, edges=20, graphs=4)
    sampler = GraphSampler(
        [5, 5, 1, 3, 3, 3, 1, 1], [1, 1, 1, 9, 9, 9, 0, 0],
        config("dynamic", budget=budget, shuffle=False),
    )  # fmt: skip
    assert lists(sampler) == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert {planned.budget for planned in sampler.plan()} == {budget}


@pytest.mark.parametrize(
    ("policy", "shapes"),
    [
        ("static-64", [(64, 128, 4), (128, 192, 4), (64, 0, 4)]),
        ("static-2^n", [(64, 128, 4), (128, 256, 4), (2, 1, 4)]),
        ("static-constant", [(128, 320, 4)] * 3),
    ],
)
def test_static_policies(policy: Any, shapes: list[tuple[int, int, int]]) -> None:
    # 63 nodes and the padding's one are exactly 64, 64 of them are not; the tail has one graph.
    sampler = GraphSampler(
        [21, 21, 21, 22, 21, 21, 1], [64, 64, 0, 64, 65, 0, 0], config(policy, 4, shuffle=False)
    )
    assert lists(sampler) == [[0, 1, 2], [3, 4, 5], [6]]
    assert [tuple(shape) for shape in sampler.plan().shapes.tolist()] == shapes
    assert sampler.statistics().distinct_shapes == len(set(shapes))


def test_unpadded_batches_are_whole() -> None:
    sampler = GraphSampler([3] * 7, [2] * 7, config("unpadded", 3, shuffle=False))
    assert lists(sampler) == [[0, 1, 2], [3, 4, 5], [6]]
    found = sampler.statistics()
    assert (found.node_fill, found.edge_fill, found.graph_fill) == (1.0, 1.0, 1.0)
    assert sampler.budget is None


def test_statistics() -> None:
    sampler = GraphSampler(
        [3] * 6, [2] * 6, config("dynamic", budget=Budget(nodes=10, edges=8, graphs=4))
    )
    found = sampler.statistics()
    assert (found.batches, found.graphs, found.graphs_per_batch) == (2, 6, 3.0)
    assert (found.node_fill, found.edge_fill, found.graph_fill) == (0.9, 0.75, 0.75)
    assert (found.distinct_shapes, found.skipped, found.alone) == (1, 0, 0)


SMALL = Budget(nodes=16, edges=32, graphs=4)
limited = pytest.mark.parametrize("policy", ["dynamic", "packed"])


def oversized(policy: Any, oversize: Any, **options: Any) -> GraphSampler:
    """Graphs 1, 3 and 5 are larger than the budget."""
    made = config(policy, budget=SMALL, oversize=oversize, shuffle=False)
    return GraphSampler([4, 90, 4, 4, 4, 64], [6, 6, 6, 500, 6, 64], made, **options)


@limited
def test_an_oversize_graph_is_named_with_both_sizes(policy: Any) -> None:
    with pytest.raises(DataError, match=r"graph 1 has 90 nodes and 6 edges.* 15 and 32.*3 of"):
        oversized(policy, "raise")


@limited
def test_skipped_graphs_are_counted(policy: Any) -> None:
    with pytest.warns(UserWarning, match="3 of 6 graphs are skipped"):
        sampler = oversized(policy, "skip")
    assert [sorted(batch) for batch in sampler] == [[0, 2, 4]]
    assert sampler.statistics().skipped == 3


@limited
def test_a_graph_alone_has_its_own_shape(policy: Any) -> None:
    sampler = oversized(policy, "alone")
    found = {tuple(sorted(p.graphs.tolist())): p.budget for p in sampler.plan()}
    assert found == {
        (0, 2, 4): SMALL,
        (1,): Budget(nodes=128, edges=64, graphs=2),
        (3,): Budget(nodes=64, edges=512, graphs=2),
        # An exact multiple of 64 needs room for the padding's node.
        (5,): Budget(nodes=128, edges=128, graphs=2),
    }
    assert sampler.statistics().alone == 3


@limited
def test_graphs_alone_on_two_ranks(policy: Any) -> None:
    shares = [lists(oversized(policy, "alone", rank=rank, ranks=2)) for rank in range(2)]
    assert [len(share) for share in shares] == [2, 2]
    assert sorted(g for share in shares for batch in share for g in batch) == list(range(6))


def test_only_oversize_graphs() -> None:
    made = config("packed", budget=Budget(nodes=4, edges=4, graphs=4), oversize="alone")
    assert sorted(lists(GraphSampler([9, 9], [1, 1], made))) == [[0], [1]]
    with (
        pytest.warns(UserWarning, match="2 of 2 graphs are skipped"),
        pytest.raises(ValueError, match="0 graphs cannot be shared"),
    ):
        GraphSampler(
            [9, 9],
            [1, 1],
            config("dynamic", budget=Budget(nodes=4, edges=4, graphs=4), oversize="skip"),
        )


def test_paper_budgets_come_from_the_first_thousand_graphs() -> None:
    nodes = np.array([10] * 1000 + [12] * 1000)
    sampler = GraphSampler(nodes, nodes, config("dynamic", 16, paper=True))
    assert sampler.budget == Budget(nodes=192, edges=192, graphs=16)
    with pytest.raises(DataError, match="graph 1000 has 400 nodes"):
        GraphSampler(np.append(nodes[:1000], 400), nodes[:1001], config("dynamic", 16, paper=True))


def test_a_part_of_the_graphs() -> None:
    both = some_sizes(50)
    part = [40, 3, 17, 22, 8]
    sampler = GraphSampler(*both, config("static-64", 3, shuffle=False), graphs=part)
    assert lists(sampler) == [[40, 3], [17, 22], [8]]


def test_evaluation_keeps_the_order_and_the_shape() -> None:
    nodes, edges = some_sizes(100)
    nodes[7] = 500
    train = GraphSampler(nodes, edges, config("packed", 8), graphs=np.arange(50, 100))
    found = evaluation_sampler(
        nodes, edges, train.config, graphs=np.arange(50), budget=train.budget
    )
    batches = lists(found)
    assert [7] in batches
    batches.remove([7])
    assert [g for batch in batches for g in batch] == [g for g in range(50) if g != 7]
    assert {p.budget for p in found.plan() if len(p.graphs) > 1} == {train.budget}
    largest = GraphSampler(nodes, edges, config("static-constant", 8), graphs=np.arange(50, 100))
    found = evaluation_sampler(nodes, edges, largest.config, budget=largest.budget)
    assert {p.budget for p in found.plan() if 7 not in p.graphs} == {largest.budget}
    for policy in ALL:
        plain = evaluation_sampler(nodes, edges, config(policy, 8))
        assert [g for batch in plain for g in batch] == list(range(100))
        plain.set_epoch(1)
        assert [g for batch in plain for g in batch] == list(range(100))


def test_a_graph_evaluated_alone_comes_after_the_batch_it_would_interrupt() -> None:
    room = Budget(nodes=9, edges=64, graphs=4)
    found = evaluation_sampler([2, 2, 20, 2, 2, 2], [0] * 6, config("dynamic", 4), budget=room)
    assert lists(found) == [[0, 1, 3], [2], [4, 5]]


def test_as_a_batch_sampler_of_torch() -> None:
    nodes, edges = some_sizes(30)
    sampler = GraphSampler(nodes, edges, config("dynamic", 6))
    loader = DataLoader(list(range(30)), batch_sampler=sampler)
    batches = [batch.tolist() for batch in loader]
    assert len(loader) == len(sampler) == len(batches)
    assert batches == lists(sampler)


def test_peeking_loses_nothing() -> None:
    sampler = GraphSampler(*some_sizes(30), config("dynamic", 6))
    peeked = next(iter(sampler))
    assert lists(sampler)[0] == peeked


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1, 2], [1]), {}, "2 graphs and num_edges 1"),
        (([1, -2], [1, 1]), {}, "num_nodes of graph 1 is -2"),
        (([1.5], [1]), {}, "num_nodes must be a whole number"),
        (([[1]], [[1]]), {}, "num_nodes must be a whole number"),
        (([], []), {}, "no graphs"),
        (([1], [1]), {"graphs": [1]}, "graph 1 is out of range: there are sizes of 1"),
        (([1, 1], [1, 1]), {"graphs": [1, 1]}, "graph 1 is among the graphs twice"),
        (([1, 1], [1, 1]), {"graphs": [True, False]}, "np.flatnonzero"),
        (([1, 1], [1, 1]), {"rank": 2, "ranks": 2}, "rank is 2 of 2"),
        (([1, 1], [1, 1]), {"ranks": 3}, "2 graphs cannot be shared by 3 ranks"),
    ],
)
def test_impossible_arguments(arguments: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GraphSampler(*arguments, config("dynamic"), **options)


def test_batches_of_one_graph_that_ranks_cannot_share() -> None:
    sampler = GraphSampler([3] * 5, [2] * 5, config("unpadded", 1), ranks=3)
    with pytest.raises(ValueError, match="5 batches of one graph each"):
        len(sampler)


@pytest.mark.parametrize(
    "other",
    [
        lambda: GraphSampler(*some_sizes(seed=1), config("dynamic")),
        lambda: GraphSampler(*some_sizes(), config("dynamic", seed=1)),
        lambda: GraphSampler(*some_sizes(), config("dynamic"), ranks=2),
        lambda: GraphSampler(*some_sizes(), config("dynamic"), graphs=range(199)),
    ],
)
def test_the_state_of_something_else_is_refused(other: Any) -> None:
    state = other().state_dict()
    with pytest.raises(DataError, match="resume with the same"):
        GraphSampler(*some_sizes(), config("dynamic")).load_state_dict(state)


def test_epochs_are_counted_from_zero() -> None:
    with pytest.raises(ValueError, match="epoch is -1"):
        GraphSampler(*some_sizes(), config("dynamic")).set_epoch(-1)


@pytest.mark.parametrize("policy", PADDED)
def test_plans_can_be_indexed(policy: Any) -> None:
    plan = GraphSampler(*some_sizes(), config(policy)).plan()
    assert plan[-1].graphs.tolist() == list(plan)[-1].graphs.tolist()
    assert [p.graphs.tolist() for p in plan[2:5]] == [p.graphs.tolist() for p in list(plan)[2:5]]
    with pytest.raises(IndexError):
        plan[len(plan)]
