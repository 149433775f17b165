"""What an epoch computes and moves, beside counts by hand and torch's own counter."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from weft.graphs import assemble, gcn_weights, table_from_graphs
from weft.kernels.hidden_layer import WORTH_BLOCKS
from weft.models import GCN, GCNConfig, with_first_product
from weft.sources import planted_partition
from weft_lab.bench.epoch_cost import gcn_epoch


def test_by_hand() -> None:
    # 10 nodes, 30 entries, 6 of the nodes train; widths 4-3-2, A x kept.
    cost = gcn_epoch(10, 30, 6, (4, 3, 2), kept=True)
    products = [(each.what, each.flops) for each in cost.passes if each.flops]
    first, second, sparse = 2 * 10 * 4 * 3, 2 * 10 * 3 * 2, 2 * 30 * 2
    assert products == [
        ("product", first),
        ("gradient of the weights", first),
        ("product", second),
        ("gradient of the weights", second),
        ("gradient of the inputs", second),
        ("sparse product", sparse),
        ("sparse product", sparse),
    ]
    moved = {
        "dense": 4 * 10 * (2 * (4 + 3) + 3 * (3 + 2)),
        # Of an entry its column, its weight, and a row; of a row its offset and the sums.
        "sparse": 2 * (30 * (4 + 4 + 2 * 4) + 10 * (8 + 2 * 4)),
        "activation": 5 * 4 * 10 * 3,
        "biases": 4 * 10 * (3 + 3 * 2),
        "loss": 6 * (4 * 2 + 8) + 4 * 10 * 2,
        "Adam": 7 * 4 * (4 * 3 + 3 + 3 * 2 + 2),
    }
    assert cost.bytes == sum(moved.values())


def test_a_hidden_layer_in_blocks() -> None:
    nodes = WORTH_BLOCKS // 8
    blocks = gcn_epoch(nodes, nodes, 1, (4, 8, 2), kept=True)
    plain = gcn_epoch(nodes - 1, nodes - 1, 1, (4, 8, 2), kept=True)
    assert blocks.passes[0].what == "hidden layer"
    assert blocks.flops / nodes == plain.flops / (nodes - 1)
    # Read and written are x, the activations and the result, forward and backward; saved are the
    # activations before ReLU and their gradient, the bias's, and what products read again.
    assert sum(each.bytes for each in blocks.passes[:2]) == 2 * 4 * nodes * (4 + 8 + 2)
    assert blocks.bytes < 0.7 * plain.bytes


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("widths", [(6, 5, 3), (3, 4, 9), (4, 8)])
def test_dense_products_are_what_torch_counts(widths: tuple[int, ...], kept: bool) -> None:
    graph = gcn_weights(planted_partition(60, 3, 4.0, 0.7, num_features=widths[0]))
    batch = assemble(table_from_graphs([graph]), [0])
    model = GCN(widths[0], widths[-1], GCNConfig(hidden=widths[1:-1], input_dropout=0.0))
    batch = with_first_product(batch) if kept else batch
    with FlopCounterMode(display=False) as counter:
        functional.cross_entropy(model(batch), torch.zeros(60).long()).backward()  # type: ignore[no-untyped-call]
    cost = gcn_epoch(60, graph.num_edges, 60, widths, kept=kept)
    assert counter.get_total_flops() == sum(each.flops for each in cost.passes if each.dense)


def test_each_pass_is_bound_by_products_or_by_memory() -> None:
    cost = gcn_epoch(10, 30, 6, (4, 3, 2), kept=False)
    dense = sum(each.flops for each in cost.passes if each.dense)
    assert cost.limit_seconds(1.0, float("inf")) == dense < cost.flops
    assert cost.limit_seconds(float("inf"), 1.0) == cost.bytes
    figures = cost.figures(2.0, 10.0, 100.0)
    assert figures["gemm_share"] == cost.flops / 20
    assert figures["bandwidth_share"] == cost.bytes / 200
    assert figures["limit_share"] == figures["limit_seconds"] / 2
