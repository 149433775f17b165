"""Every operator against a plain dense reference in float64, and torch's own operator checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weft.graphs import Graph, GraphBatch, assemble, table_from_graphs
from weft.kernels import message_passing as F
from weft.kernels import plain_torch as plain
from weft.kernels import segment_ops


def batch_of(num_nodes: int, num_edges: int, seed: int = 0) -> GraphBatch:
    rng = np.random.default_rng(seed)
    num_edges = num_edges if num_nodes else 0
    ends = rng.integers(0, max(num_nodes, 1), (2, num_edges))
    return assemble(
        table_from_graphs([Graph(num_nodes=num_nodes, senders=ends[0], receivers=ends[1])]), [0]
    )


def topology(batch: GraphBatch, index: torch.dtype = torch.int32) -> list[Tensor | None]:
    tensors = [
        batch.receivers,
        batch.senders,
        batch.in_offsets,
        None,
        batch.out_offsets,
        batch.out_order,
    ]
    return [t if t is None else t.to(index) for t in tensors]


def randn(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype, requires_grad=grad)


def dense(batch: GraphBatch, weight: Tensor) -> Tensor:
    """The matrix [N, N] of scalar weights, one entry at a time."""
    matrix = torch.zeros(batch.num_nodes, batch.num_nodes, dtype=weight.dtype)
    for sender, receiver, w in zip(
        batch.senders.tolist(), batch.receivers.tolist(), weight, strict=True
    ):
        matrix[receiver, sender] += w
    return matrix


graphs = st.builds(batch_of, st.integers(0, 12), st.integers(0, 40), st.integers(0, 2**16))


@settings(deadline=None, max_examples=40)
@given(batch=graphs, width=st.sampled_from([1, 3, 8, 17]))
def test_spmm_equals_dense_matrix(batch: GraphBatch, width: int) -> None:
    x, w = randn(batch.num_nodes, width), randn(batch.num_edges)
    by_feature = randn(batch.num_edges, width, grad=False)
    torch.testing.assert_close(F.spmm(batch, x, w), dense(batch, w) @ x)
    ones = torch.ones(batch.num_edges, dtype=torch.float64)
    torch.testing.assert_close(F.spmm(batch, x), dense(batch, ones) @ x)
    columns = [dense(batch, by_feature[:, f]) @ x[:, f] for f in range(width)]
    torch.testing.assert_close(F.spmm(batch, x, by_feature), torch.stack(columns, dim=1))


@settings(deadline=None, max_examples=40)
@given(batch=graphs)
def test_gathers_and_sums_are_adjoint(batch: GraphBatch) -> None:
    x, values = randn(batch.num_nodes, 2, 3), randn(batch.num_edges, 2, 3)
    torch.testing.assert_close(F.gather_senders(batch, x), x[batch.senders.long()])
    torch.testing.assert_close(F.gather_receivers(batch, x), x[batch.receivers.long()])
    for gather, scatter in (
        (F.gather_senders, F.sum_to_senders),
        (F.gather_receivers, F.sum_to_receivers),
    ):
        left = (gather(batch, x) * values).sum()
        torch.testing.assert_close(left, (x * scatter(batch, values)).sum())


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(0, 6), max_size=8), seed=st.integers(0, 99))
def test_segment_reductions_equal_a_loop(sizes: list[int], seed: int) -> None:
    offsets = torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int64)
    values = torch.from_numpy(np.random.default_rng(seed).integers(-3, 3, (sum(sizes), 2)) * 1.0)
    parts = torch.split(values, sizes) if sizes else []
    for function, reduce in (
        (F.segment_sum, lambda p: p.sum(0)),
        (F.segment_mean, lambda p: p.mean(0)),
        (F.segment_max, lambda p: p.max(0).values),
    ):
        expected = [reduce(p) if len(p) else torch.zeros(2, dtype=values.dtype) for p in parts]
        got = function(values, offsets)
        assert got.shape == (len(sizes), 2)
        for row, want in zip(got, expected, strict=True):
            torch.testing.assert_close(row, want)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_loops_equal_plain_torch(index: torch.dtype, dtype: torch.dtype) -> None:
    # Large enough that the work is shared between threads.
    batch = batch_of(500, 20_000)
    x, w = randn(500, 33, grad=False, dtype=dtype), randn(20_000, grad=False, dtype=dtype)
    wf = randn(20_000, 33, grad=False, dtype=dtype)
    edges = topology(batch, index)
    rows, columns, offsets, _, offsets_t, order_t = edges
    back = [columns, rows, offsets_t, order_t, offsets, None]
    for weight in (None, w, wf):
        torch.testing.assert_close(
            segment_ops.spmm(x, weight, *edges), plain.spmm(x, weight, columns, offsets, None)
        )
        torch.testing.assert_close(
            segment_ops.spmm(x, weight, *back), plain.spmm(x, weight, rows, offsets_t, order_t)
        )
    for mean in (False, True):
        reduce = "mean" if mean else "sum"
        for starts, order in ((offsets, None), (offsets_t, order_t)):
            torch.testing.assert_close(
                segment_ops.segment_sum(wf, starts, order, None, mean),
                plain.segment_reduce(wf, starts, order, reduce),
            )
    for starts, order in ((offsets, None), (offsets_t, order_t)):
        for got, want in zip(
            segment_ops.segment_max(wf.round(), starts, order),
            plain.segment_max(wf.round(), starts, order),
            strict=True,
        ):
            torch.testing.assert_close(got, want)
    torch.testing.assert_close(segment_ops.gather(x, rows, offsets, None), x.index_select(0, rows))
    for by_feature in (False, True):
        torch.testing.assert_close(
            segment_ops.edge_products(x, x, *edges, by_feature),
            plain.edge_products(x, x, rows, columns, by_feature),
        )


def cases() -> list[tuple[str, object, tuple[object, ...]]]:
    batch = batch_of(5, 9, seed=3)
    edges = topology(batch)
    rows, columns, offsets, _, offsets_t, order_t = edges
    e, n = batch.num_edges, batch.num_nodes
    return [
        ("spmm", segment_ops.spmm, (randn(n, 3), None, *edges)),
        ("spmm scalar", segment_ops.spmm, (randn(n, 3), randn(e), *edges)),
        ("spmm by feature", segment_ops.spmm, (randn(n, 3), randn(e, 3), *edges)),
        ("sum", segment_ops.segment_sum, (randn(e, 3), offsets, None, rows, False)),
        ("sum by order", segment_ops.segment_sum, (randn(e, 3), offsets_t, order_t, None, False)),
        ("mean", segment_ops.segment_sum, (randn(e, 3), offsets, None, None, True)),
        ("max", segment_ops.segment_max, (randn(e, 3), offsets_t, order_t)),
        ("gather", segment_ops.gather, (randn(n, 3), columns, offsets_t, order_t)),
        ("dots", segment_ops.edge_products, (randn(n, 3), randn(n, 3), *edges, False)),
        ("products", segment_ops.edge_products, (randn(n, 3), randn(n, 3), *edges, True)),
    ]


@pytest.mark.parametrize(("name", "operator", "arguments"), cases(), ids=lambda v: str(v)[:20])
def test_opcheck_and_gradcheck(name: str, operator: object, arguments: tuple[object, ...]) -> None:
    torch.library.opcheck(operator.op, arguments)
    learned = [i for i, a in enumerate(arguments) if isinstance(a, Tensor) and a.requires_grad]

    def function(*inputs: Tensor) -> Tensor:
        filled = list(arguments)
        for place, value in zip(learned, inputs, strict=True):
            filled[place] = value
        out = operator(*filled)  # type: ignore[operator]
        return out[0] if isinstance(out, tuple) else out

    inputs = tuple(arguments[i] for i in learned)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    batch = batch_of(3000, 60_000)
    x, w = randn(3000, 19, grad=False, dtype=torch.float32), randn(60_000, grad=False).float()
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            x.requires_grad_(True)
            out = F.spmm(batch, x, w)
            (grad,) = torch.autograd.grad((out * out).sum(), x)
            results.append((out.detach(), grad))
    finally:
        torch.set_num_threads(before)
    for out, grad in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(grad, results[0][1])


def test_compiles_without_graph_breaks() -> None:
    batch = batch_of(20, 60)

    def layer(x: Tensor, w: Tensor) -> Tensor:
        messages = F.gather_senders(batch, x) * F.gather_receivers(batch, x)
        pooled = F.segment_max(F.sum_to_receivers(batch, messages), batch.node_offsets)
        return F.spmm(batch, x, w).sum() + pooled.sum()

    x, w = randn(20, 4, dtype=torch.float32), randn(60, dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w), layer(x, w))
    got = torch.autograd.grad(compiled(x, w), [x, w])
    want = torch.autograd.grad(layer(x, w), [x, w])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_dtypes_without_a_loop_use_plain_torch() -> None:
    batch = batch_of(6, 15)
    x = randn(6, 4, grad=False).bfloat16()
    assert F.spmm(batch, x).dtype == torch.bfloat16
    torch.testing.assert_close(
        F.spmm(batch, x), F.spmm(batch, x.float()).bfloat16(), atol=0.1, rtol=0.05
    )


def test_no_edges_and_no_nodes() -> None:
    for nodes in (0, 4):
        batch = batch_of(nodes, 0)
        x = randn(nodes, 3)
        out = F.spmm(batch, x, randn(0))
        assert out.shape == (nodes, 3)
        assert not out.any()
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert not grad.any()


def test_wrong_shapes_are_refused_before_any_loop_runs() -> None:
    batch = batch_of(50, 200)
    x = torch.ones(50, 2)
    for call in (
        lambda: F.spmm(batch, torch.ones(3, 8)),
        lambda: F.spmm(batch, x, torch.ones(3)),
        lambda: F.spmm(batch, x, torch.ones(200, 3)),
        lambda: F.spmm(batch, torch.ones(50, 4, 2), torch.ones(200, 4)),
        lambda: F.gather_senders(batch, torch.ones(3, 2)),
        lambda: F.sum_to_receivers(batch, torch.ones(3, 2)),
        lambda: F.sum_to_senders(batch, torch.ones(201, 2)),
        lambda: F.segment_sum(torch.ones(4, 2), torch.tensor([0, 2, 1000])),
        lambda: F.segment_max(torch.ones(4, 2), torch.tensor([0, 2])),
        lambda: segment_ops.edge_products(x, torch.ones(50, 3), *topology(batch), False),
    ):
        with pytest.raises(ValueError, match="shape"):
            call()


def test_one_column_of_weights_is_one_weight_an_edge() -> None:
    batch = batch_of(9, 30)
    x, w = randn(9, 2), randn(30)
    torch.testing.assert_close(F.spmm(batch, x, w[:, None]), F.spmm(batch, x, w))


def test_mixed_precision_keeps_the_dtype_of_x() -> None:
    batch = batch_of(12, 40)
    x, w = randn(12, 4, dtype=torch.float32), randn(40, dtype=torch.float32)
    half = x.detach().bfloat16().requires_grad_()
    torch.library.opcheck(segment_ops.spmm.op, (half, w, *topology(batch)))
    out = F.spmm(batch, half, w)
    assert out.dtype == torch.bfloat16
    grad_x, grad_w = torch.autograd.grad(out.float().sum(), [half, w])
    assert (grad_x.dtype, grad_w.dtype) == (torch.bfloat16, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        compiled = torch.compile(lambda x: F.spmm(batch, x @ torch.eye(4), w), backend="aot_eager")
        torch.testing.assert_close(
            compiled(x).float(), F.spmm(batch, x, w).float(), atol=0.2, rtol=0.1
        )


def test_integers_can_be_summed_and_compared() -> None:
    batch = batch_of(7, 25)
    ones = torch.ones(25, 1, dtype=torch.int64)
    assert torch.equal(F.sum_to_receivers(batch, ones)[:, 0], batch.in_offsets.diff().long())
    values = torch.arange(25)[:, None]
    best = F.segment_max(values, batch.in_offsets)
    expected = [
        int(part.max()) if len(part) else 0
        for part in values.split(batch.in_offsets.diff().tolist())
    ]
    assert best[:, 0].tolist() == expected
    with pytest.raises(ValueError, match="convert them to floats"):
        F.segment_mean(values, batch.in_offsets)


def test_strided_tensors_and_several_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    batch = batch_of(2000, 40_000)
    x = randn(32, 2000, grad=False, dtype=torch.float32).t()
    expected = F.spmm(batch, x.contiguous())
    with ThreadPoolExecutor(4) as pool:
        for out in pool.map(lambda _: F.spmm(batch, x), range(16)):
            assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_are_added_in_place(dtype):
    torch.manual_seed(0)
    dense = (torch.randn(7, 9) * (torch.rand(7, 9) < 0.3)).to(dtype)
    dense[2] = 0
    rows, columns = dense.nonzero(as_tuple=True)
    offsets = torch.cat([torch.zeros(1), (dense != 0).sum(1).cumsum(0)]).long()
    x, out = torch.randn(9, 5).to(dtype), torch.randn(7, 5).to(dtype)
    expected = out + dense @ x
    parts = (dense[rows, columns], columns.int(), offsets)
    assert segment_ops.add_product(out, *parts, x) is out
    torch.testing.assert_close(out, expected)
    with pytest.raises(ValueError, match="contiguous"):
        segment_ops.add_product(out.T.contiguous().T, *parts, x)
    with pytest.raises(ValueError, match="weight and a column"):
        segment_ops.add_product(out, parts[0][1:], *parts[1:], x)


def test_products_read_bfloat16_and_sum_in_float32():
    torch.manual_seed(0)
    columns = torch.randint(0, 9, (50,), dtype=torch.int32)
    offsets, weight = torch.tensor([0, 0, 20, 20, 50]), torch.randn(50)
    for width in (1, 33):
        x = torch.randn(9, width).bfloat16()
        x[0, 0] = torch.inf
        out = torch.ones(4, width)
        found = segment_ops.add_product(out.clone(), weight, columns, offsets, x)
        expected = segment_ops.add_product(out, weight, columns, offsets, x.float())
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("learned", [False, True])
def test_sorted_columns_and_weights_follow_their_tensors(
    monkeypatch: pytest.MonkeyPatch, learned: bool
) -> None:
    monkeypatch.setattr(segment_ops, "_WORTH_SORTING", 1)
    batch = batch_of(9, 30)
    x, weight = randn(9, 4), randn(30, grad=learned)
    for _ in range(2):
        (grad,) = torch.autograd.grad(F.spmm(batch, x, weight).square().sum(), x)
        expected = dense(batch, weight.detach())
        torch.testing.assert_close(grad, 2 * expected.T @ expected @ x)
        with torch.no_grad():
            weight.mul_(-3).add_(1)
    held = len(segment_ops._sorted)
    del weight
    assert len(segment_ops._sorted) == held - (not learned)
