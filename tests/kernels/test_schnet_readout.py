"""The readout against itself layer by layer, in plain torch."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from weft.kernels.schnet_readout import readout

# The second graph and the last have no nodes, as those after a padding graph.
SIZES = (3, 0, 5, 1, 7, 0)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def offsets_of(sizes, dtype=torch.int32):
    return torch.tensor([0, *sizes]).cumsum(0).to(dtype)


def arguments(sizes=SIZES, *, biases=(True, True), width=6, hidden=4, dtype=torch.float64):
    random = torch.Generator().manual_seed(0)

    def of(*shape):
        return torch.randn(*shape, generator=random, dtype=dtype).requires_grad_()

    first = (of(hidden, width), of(hidden) if biases[0] else None)
    return of(sum(sizes), width), *first, of(1, hidden), of(1) if biases[1] else None


def plain(h, first, first_bias, second, second_bias, offsets, *, mean):
    inner = functional.softplus(functional.linear(h, first, first_bias)) - math.log(2)
    values = functional.linear(inner, second, second_bias)[:, 0]
    sizes = offsets.diff()
    index = torch.repeat_interleave(sizes.long())
    total = values.new_zeros(len(sizes)).index_add(0, index, values)
    return total / sizes.clamp(min=1) if mean else total


def assert_is_plain(given, offsets, mean):
    learned = [t for t in given if t is not None]
    found, expected = (f(*given, offsets, mean=mean) for f in (readout, plain))
    torch.testing.assert_close(found, expected)
    # As the gradient of a masked sum is, and one that is not contiguous.
    for grad in (torch.randn_like(found), torch.ones(1, dtype=found.dtype).expand(len(found))):
        for one, other in zip(
            torch.autograd.grad(found, learned, grad, retain_graph=True),
            torch.autograd.grad(expected, learned, grad, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("biases", [(False, False), (True, True), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_readout_is_its_layers(mean, biases, dtype):
    assert_is_plain(arguments(biases=biases), offsets_of(SIZES, dtype), mean)


@pytest.mark.parametrize("sizes", [(), (0,), (0, 0), (1,), (1500,), (9,) * 200])
def test_sizes(sizes):
    # Over 16 · 64 nodes a chunk is several blocks.
    assert_is_plain(arguments(sizes), offsets_of(sizes), True)


def test_a_graph_without_nodes_has_the_value_0():
    out = readout(*arguments(), offsets_of(SIZES), mean=True)
    assert ((out == 0) == torch.tensor([size == 0 for size in SIZES])).all()


def test_padding_graphs_change_no_gradient_of_others():
    given, offsets = arguments(), offsets_of(SIZES)
    real = torch.tensor([1.0, 1, 1, 1, 0, 0], dtype=torch.float64)
    (found,) = torch.autograd.grad(readout(*given, offsets, mean=True), given[0], real)
    assert (found[9:] == 0).all()
    few = (given[0][:9].detach().requires_grad_(), *given[1:])
    (expected,) = torch.autograd.grad(readout(*few, offsets[:5], mean=True), few[0], real[:4])
    torch.testing.assert_close(found[:9], expected)


def test_views_that_are_not_contiguous():
    turned = [
        t if t.ndim == 1 else t.detach().t().contiguous().t().requires_grad_() for t in arguments()
    ]
    assert not turned[0].is_contiguous()
    assert_is_plain(turned, offsets_of(SIZES), True)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_second_derivatives(mean, bias):
    sizes = (2, 0, 1)
    given = arguments(sizes, biases=(bias, bias), width=3, hidden=2)
    places = [k for k, t in enumerate(given) if t is not None]

    def of_learned(*learned):
        filled = dict(zip(places, learned, strict=True))
        return readout(*(filled.get(k) for k in range(5)), offsets_of(sizes), mean=mean)

    learned = [given[k] for k in places]
    assert torch.autograd.gradcheck(of_learned, learned)
    assert torch.autograd.gradgradcheck(of_learned, learned)


def test_threads_change_nothing():
    sizes, found = (19,) * 150, []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        given = arguments(sizes, width=32, hidden=24, dtype=torch.float32)
        out = readout(*given, offsets_of(sizes), mean=True)
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        found.append([out, *torch.autograd.grad(out, given, grad)])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_wrong_shapes_are_refused():
    given, offsets = list(arguments()), offsets_of(SIZES)
    for place, message in enumerate(["CSR offsets", "needed", "biases", "needed", "biases"]):
        wrong = list(given)
        wrong[place] = given[place][:-1]
        with pytest.raises(ValueError, match=message):
            readout(*wrong, offsets, mean=True)
    with pytest.raises(ValueError, match="CSR offsets end at 9 but there are 16 rows"):
        readout(*given, offsets[:5], mean=True)
