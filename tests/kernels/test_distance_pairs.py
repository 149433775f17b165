"""Pairs of edges that were given in any order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.checked_indices import right_pairs, right_segments
from weft.kernels.distance_pairs import PairedEdges


@settings(max_examples=60)
@given(st.data())
def test_pairs_are_edges_and_their_reverse_of_one_length(data):
    nodes = data.draw(st.integers(1, 5))
    node = st.integers(0, nodes - 1)
    ends = data.draw(st.lists(st.tuples(node, node), min_size=1, max_size=12))
    if data.draw(st.booleans()):
        ends = data.draw(st.permutations([*ends, *((b, a) for a, b in ends)]))
    senders, receivers = torch.tensor(ends).t().contiguous()
    lengths = torch.tensor(
        data.draw(
            st.lists(
                st.sampled_from([0.0, 0.5, 3.0, float("inf"), float("nan")]),
                min_size=len(ends),
                max_size=len(ends),
            )
        )
    )
    if data.draw(st.booleans()):
        lengths = (senders * receivers).float()
    edges = PairedEdges.of(senders, receivers, nodes)
    first, pairs = edges.pairs(lengths, 1.0, 4)
    rows, columns, offsets, _, offsets_t, order_t, forward, backward, of_edge = pairs.tensors
    right_segments(offsets, None, rows, len(ends))
    right_segments(offsets_t, order_t, columns, len(ends))
    right_pairs(forward, backward, of_edge, len(ends))
    order = edges.order
    assert torch.equal(receivers[order], rows.long())
    assert torch.equal(senders[order], columns.long())
    assert torch.equal(first, order[forward])
    other = order[backward]
    alone = first == other
    assert torch.equal(senders[other][~alone], receivers[first][~alone])
    assert torch.equal(receivers[other][~alone], senders[first][~alone])
    assert torch.equal(lengths[other][~alone], lengths[first][~alone])
    steps = lengths[first].nan_to_num(0).clamp(0, 3).floor()
    assert torch.equal(steps, steps.sort().values)


def test_symmetric_edges_are_all_paired():
    ends = torch.tensor([[0, 1], [1, 0], [2, 0], [1, 2], [0, 2], [2, 1]]).t()
    _, pairs = PairedEdges.of(*ends.contiguous(), 3).pairs(torch.ones(6), 1.0, 2)
    assert pairs.count == 3


def test_edges_out_of_range_and_no_steps_are_refused():
    ends = torch.tensor([0, 3])
    with pytest.raises(ValueError, match="there are 3 rows"):
        PairedEdges.of(ends, ends.flip(0), 3)
    with pytest.raises(ValueError, match="no order"):
        PairedEdges.of(ends, ends.flip(0), 4).pairs(torch.ones(2), 0.0, 2)
