"""What is remembered of indices, and when it is forgotten; what the checks refuse."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from stand_in_device import DEVICE, Elsewhere
from weft import checked_indices, kernels
from weft.checked_indices import check_pairs, check_range, check_segments, check_transposes
from weft.graphs import Budget, Graph, assemble, table_from_graphs
from weft.layout import TypedEdges
from weft.models import SchNet, SchNetConfig


@pytest.fixture
def looks(monkeypatch):
    """Counts the tensors that a check looks at number by number."""
    seen = []
    monkeypatch.setattr(
        checked_indices,
        "require_integers",
        lambda *tensors, check=checked_indices.require_integers: (seen.append(1), check(*tensors)),
    )
    return seen


def batch_of(seed=0, **changes):
    rng = np.random.default_rng(seed)
    graphs = []
    for n in rng.integers(2, 6, 4):
        receivers, senders = np.nonzero(~np.eye(n, dtype=bool))
        places = rng.normal(size=(n, 3)).astype(np.float32)
        nodes = {"pos": places, "z": rng.integers(1, 9, n)}
        graphs.append(Graph(num_nodes=n, senders=senders, receivers=receivers, nodes=nodes))
    table = table_from_graphs(graphs, metadata={"symmetric": True})
    return assemble(table, range(4), Budget(nodes=32, edges=80, graphs=6)).replace(**changes)


def test_the_crashes_of_old_are_errors():
    offsets = torch.tensor([0, 10**9, 5])
    for reduce in (kernels.segment_sum, kernels.segment_mean, kernels.segment_max):
        with pytest.raises(ValueError, match=r"fall from 1000000000 to 5 at position 2.*0 to 5"):
            reduce(torch.ones(5, 4), offsets)
    batch = batch_of()
    for wrong in (10**9, -1, batch.num_nodes, 7):
        senders = batch.senders.clone()
        senders[3] = wrong
        replaced = batch.replace(senders=senders)
        x, values = torch.ones(batch.num_nodes, 2), torch.ones(batch.num_edges, 2)
        for call in (
            lambda: kernels.spmm(replaced, x),  # noqa: B023
            lambda: kernels.gather_senders(replaced, x),  # noqa: B023
            lambda: kernels.sum_to_senders(replaced, values),  # noqa: B023
        ):
            with pytest.raises(ValueError, match=rf"index\[3\] is {wrong}, but.*assemble"):
                call()


def test_a_batch_of_ours_is_never_looked_at(looks):
    batch = batch_of()
    model = SchNet(SchNetConfig(hidden=8, filters=8, layers=2, elements=tuple(range(1, 9))))
    for _ in range(2):
        model(batch).sum().backward()
    moved = batch.to("cpu")
    kernels.spmm(moved, torch.ones(batch.num_nodes, 2, requires_grad=True)).sum().backward()
    assert looks == []


def test_a_batch_of_ours_is_never_looked_at_in_inference_mode(looks):
    model = SchNet(SchNetConfig(hidden=8, filters=8, layers=2, elements=tuple(range(1, 9))))
    with torch.inference_mode():
        batch = batch_of()
        for each in (batch, batch.to("cpu")):
            model(each)
            kernels.gather_senders(each, torch.ones(batch.num_nodes, 2))
    assert looks == []


def test_edges_that_are_pairs_alone_are_never_looked_at(looks):
    model = SchNet(SchNetConfig(hidden=8, filters=8, layers=2, elements=tuple(range(1, 9))))
    batch = batch_of(pairs={})
    for _ in range(2):
        model(batch).sum().backward()
    assert looks == []


def test_typed_edges_of_ours_are_never_looked_at(looks):
    rng = np.random.default_rng(0)
    edges = TypedEdges.of(rng.integers(0, 9, 40), rng.integers(0, 9, 40), np.arange(40) % 3, 9, 3)
    h = torch.randn(9, 4, requires_grad=True)
    for each in (edges, edges.to("cpu")):
        each.propagate(h, torch.randn(3, 4, 4)).sum().backward()
    assert looks == []


def test_what_a_user_replaces_is_looked_at_once(looks):
    batch = batch_of()
    replaced = batch.replace(senders=batch.senders.clone())
    x = torch.ones(batch.num_nodes, 2, requires_grad=True)
    for _ in range(3):
        kernels.spmm(replaced, x).sum().backward()
        kernels.gather_senders(replaced, x).sum().backward()
    assert len(looks) == 1


def test_a_change_in_place_is_noticed():
    batch = batch_of()
    x = torch.ones(batch.num_nodes, 2)
    kernels.gather_senders(batch, x)
    batch.senders[0] = 10**6
    with pytest.raises(ValueError, match=r"index\[0\] is 1000000"):
        kernels.gather_senders(batch, x)
    offsets = torch.tensor([0, 2, 5])
    kernels.segment_sum(torch.ones(5, 1), offsets)
    offsets.data = torch.tensor([0, 9, 5])
    with pytest.raises(ValueError, match="fall from 9 to 5"):
        kernels.segment_sum(torch.ones(5, 1), offsets)
    with torch.inference_mode():
        unversioned = torch.tensor([0, 2, 5])
        kernels.segment_sum(torch.ones(5, 1), unversioned)
        unversioned[1] = 10**6
        with pytest.raises(ValueError, match="fall from 1000000 to 5"):
            kernels.segment_sum(torch.ones(5, 1), unversioned)


def test_nothing_is_remembered_of_tensors_that_are_gone():
    gc.collect()
    before = len(checked_indices._known)
    for _ in range(50):
        # The next one often gets the number, and the memory, of the one before.
        check_segments(5, torch.tensor([0, 2, 5]), None, None)
        with pytest.raises(ValueError, match="fall from 7 to 5"):
            check_segments(5, torch.tensor([0, 7, 5]), None, None)
    batch = batch_of()
    assert len(checked_indices._known) > before
    del batch
    gc.collect()
    assert len(checked_indices._known) == before


def test_threads_check_side_by_side():
    failures = []

    def work():
        try:
            for seed in range(20):
                batch = batch_of(seed)
                replaced = batch.replace(senders=batch.senders.clone())
                kernels.gather_senders(replaced, torch.ones(batch.num_nodes, 1))
        except Exception as error:  # whatever it is, the test shall say it
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_compiled_model_is_checked_without_breaking_its_graph():
    batch = batch_of()
    wrong = batch.senders.clone()
    wrong[0] = 10**6

    def step(x, senders):
        return kernels.gather_senders(batch.replace(senders=senders), x).sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    x = torch.ones(batch.num_nodes, 2, requires_grad=True)
    torch.testing.assert_close(compiled(x, batch.senders), step(x, batch.senders))
    with pytest.raises(ValueError, match=r"index\[0\] is 1000000"):
        compiled(x, wrong)


def whole(*values):
    return torch.tensor(values, dtype=torch.int32)


FAULTS = [
    (check_segments, (3, whole(0, 1, 2), None, None), "end at 2 but there are 3 rows"),
    (check_segments, (3, whole(1, 2, 3), None, None), "begin at 1"),
    (check_segments, (3, whole(0, 4, 3), None, None), "fall from 4 to 3 at position 2"),
    (check_segments, (3, whole(0, 1, 3), whole(0, 1, 3), None), r"order\[2\] is 3, outside of 0"),
    (check_segments, (3, whole(0, 1, 3), whole(0, 1, 1), None), "row 1 twice"),
    (check_segments, (3, whole(0, 1, 3), whole(0, 1), None), "has 2 numbers"),
    (check_segments, (3, whole(0, 1, 3), None, whole(0, 1, 0)), r"index\[2\] is 0, but.*segment 1"),
    (check_segments, (3, whole(0, 1, 3), whole(2, 0, 1), whole(0, 1, 1)), r"index\[2\] is 1, but"),
    (
        check_segments,
        (3, whole(0, 1, 3).float(), None, None),
        r"int32 or int64, got torch\.float32",
    ),
    (check_segments, (3, whole(0, 1, 3)[None], None, None), r"vectors.*\[1, 3\]"),
    (check_range, (whole(0, 4, 2), 4), "position 1 is 4; there are 4 rows"),
    (check_range, (whole(0, -1, 2), 4), "position 1 is -1"),
    (check_pairs, (4, whole(0, 1), whole(2, 3), whole(0, 1, 1, 0)), "pair 0.*edges 0 and 2"),
    (check_pairs, (4, whole(0, 1), whole(2, 1), whole(0, 1, 0, 1)), "every edge must be in one"),
    (check_pairs, (4, whole(0, 4), whole(2, 3), whole(0, 1, 0, 1)), "position 1 is 4"),
    (
        check_pairs,
        (4, whole(0, 1), whole(2, 3), whole(0, 1, 0)),
        "of_edge has 3 entries for 4 edges",
    ),
    (check_transposes, (whole(0, 1, 2), whole(0, 1), whole(0, 1, 2), whole(1, 0)), "entry 0"),
    (check_transposes, (whole(0, 1, 2), whole(0, 2), whole(0, 1, 2), whole(0, 1)), "is 2; there"),
]


@pytest.mark.parametrize(("check", "arguments", "message"), FAULTS)
def test_each_fault_is_named(check, arguments, message):
    with pytest.raises(ValueError, match=message):
        check(*arguments)


def there(arguments):
    """The same arguments on the device of the block."""
    return [t.to(DEVICE) if isinstance(t, torch.Tensor) else t for t in arguments]


@pytest.mark.parametrize(("check", "arguments", "message"), FAULTS)
def test_each_fault_is_named_off_the_cpu(check, arguments, message):
    with Elsewhere(), pytest.raises(ValueError, match=message):
        check(*there(arguments))


RIGHT = [
    (check_segments, (3, whole(0, 1, 3), whole(2, 0, 1), whole(1, 1, 0))),
    (check_segments, (0, whole(0), None, whole())),
    (check_range, (whole(), 0)),
    (check_pairs, (3, whole(0, 1), whole(2, 1), whole(0, 1, 0))),
    (check_transposes, (whole(0, 2, 3), whole(0, 1, 1), whole(0, 1, 3), whole(0, 0, 1))),
]


@pytest.mark.parametrize(("check", "arguments"), RIGHT)
def test_what_is_right_passes(check, arguments):
    check(*arguments)
    with Elsewhere():
        check(*there(arguments))
