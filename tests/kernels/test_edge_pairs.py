import pytest
import torch

from weft.kernels.edge_pairs import pair_products, pair_spmm, sorted_pairs


def topology(batch):
    views = (batch.receivers, batch.senders, batch.in_offsets, None)
    return (*views, batch.out_offsets, batch.out_order)


def plain_spmm(batch, x, weight):
    out = torch.zeros(batch.num_nodes, x.shape[1], dtype=x.dtype)
    messages = x[batch.senders.long()] * weight[batch.pairs["of_edge"].long()]
    return out.index_add(0, batch.receivers, messages)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padded", [False, True])
def test_pair_spmm_and_its_gradients(molecules, dtype, padded):
    batch = molecules(dtype, padded=padded)
    pairs = tuple(batch.pairs.values())
    x = torch.randn(batch.num_nodes, 19, dtype=dtype, requires_grad=True)
    weight = torch.randn(len(pairs[0]), 19, dtype=dtype, requires_grad=True)
    out = pair_spmm(x, weight, *topology(batch), *pairs)
    expected = plain_spmm(batch, x, weight)
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    for one, other in zip(
        torch.autograd.grad(out, (x, weight), grad),
        torch.autograd.grad(expected, (x, weight), grad),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_second_derivatives(molecules):
    batch = molecules(torch.float64, count=2)
    pairs = tuple(batch.pairs.values())
    x = torch.randn(batch.num_nodes, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(len(pairs[0]), 2, dtype=torch.float64, requires_grad=True)

    def spmm(x, weight):
        return pair_spmm(x, weight, *topology(batch), *pairs)

    def products(a, b):
        return pair_products(a, b, *topology(batch), *pairs)

    assert torch.autograd.gradcheck(spmm, (x, weight))
    assert torch.autograd.gradgradcheck(spmm, (x, weight))
    other = torch.randn_like(x, requires_grad=True)
    assert torch.autograd.gradcheck(products, (x, other))


def test_a_weight_row_must_belong_to_every_pair(molecules):
    batch = molecules(torch.float32)
    pairs = tuple(batch.pairs.values())
    x = torch.randn(batch.num_nodes, 4)
    with pytest.raises(ValueError, match="a pair needs a weight for each feature"):
        pair_spmm(x, torch.randn(len(pairs[0]) - 1, 4), *topology(batch), *pairs)


@pytest.mark.parametrize("shifted", [False, True])
def test_sorted_pairs_are_the_same_pairs_nearest_first(molecules, shifted):
    batch = molecules(torch.float64, padded=True)
    forward, backward, of_edge = batch.pairs.values()
    pos = batch.nodes["pos"] * 20
    shift = torch.randn(batch.num_edges, 3, dtype=torch.float64) if shifted else None
    edges = (batch.senders, batch.receivers)
    d, f, b, o = sorted_pairs(pos, shift, *edges, forward, backward, of_edge, 0.1)
    vectors = pos[batch.senders] - pos[batch.receivers] + (0 if shift is None else shift)
    torch.testing.assert_close(d, vectors[f].norm(dim=1).clamp(min=1e-6))
    pairs = dict(zip(forward.tolist(), backward.tolist(), strict=True))
    assert dict(zip(f.tolist(), b.tolist(), strict=True)) == pairs
    bins = (d / 0.1).clamp(max=255).int()
    assert (bins.diff() >= 0).all()
    numbers = torch.arange(len(f), dtype=o.dtype)
    assert torch.equal(o[f], numbers)
    assert torch.equal(o[b], numbers)
    half = sorted_pairs(pos.half(), None, *edges, forward, backward, of_edge, 0.1)
    assert sorted(half[1].tolist()) == sorted(forward.tolist())


@pytest.mark.parametrize("place", [float("nan"), float("inf"), 1e30, -1e30])
def test_places_that_are_nowhere_are_sorted_all_the_same(molecules, place):
    batch = molecules(torch.float32)
    pos = batch.nodes["pos"].clone()
    pos[0, 0] = place
    pairs = tuple(batch.pairs.values())
    d, f, _, _ = sorted_pairs(pos, None, batch.senders, batch.receivers, *pairs, 0.1)
    assert sorted(f.tolist()) == sorted(pairs[0].tolist())
    first = (batch.senders[f] == 0) | (batch.receivers[f] == 0)
    assert not torch.isfinite(d[first]).any() or (d[first] > 1e10).all()
    assert torch.isfinite(d[~first]).all()


def test_wrong_lengths_are_refused(molecules):
    batch = molecules(torch.float32)
    pairs = tuple(batch.pairs.values())
    x, weight = torch.randn(batch.num_nodes, 4), torch.randn(len(pairs[0]), 4)
    views = topology(batch)
    with pytest.raises(ValueError, match="every edge has a pair"):
        pair_spmm(x, weight, *views, pairs[0], pairs[1], pairs[2][:-1])
    with pytest.raises(ValueError, match="every pair two edges"):
        pair_products(x, x, *views, pairs[0], pairs[1][:-1], pairs[2])
    with pytest.raises(ValueError, match="one row per node"):
        pair_spmm(x[:-1], weight, *views, *pairs)
    with pytest.raises(ValueError, match="CSR offsets end"):
        pair_spmm(x, weight, views[0], views[1], views[2] + 1, None, *views[4:], *pairs)
    with pytest.raises(ValueError, match=r"positions must be \[N, 3\]"):
        sorted_pairs(x, None, batch.senders, batch.receivers, *pairs, 0.1)
