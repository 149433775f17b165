"""Products with blocks of zeros and ones, in plain torch and as Triton kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weft.kernels.backends import use_backend
from weft.kernels.block_products import block_products

SIZES = [(3, 4, 2, 11), (1, 5, 3, 5), (2, 6, 1, 12), (4, 3, 2, 10)]


def blocks(count: int, size: int, types: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    shapes = ((n, size, types, size) for n in (count, count - 1, count - 1))
    return [torch.randint(0, 2, shape, generator=generator, dtype=torch.int8) for shape in shapes]


def whole(C: torch.Tensor, U: torch.Tensor, L: torch.Tensor, nodes: int) -> torch.Tensor:
    """A [N P, N] with every cell."""
    count, size, types, _ = C.shape
    cells = torch.zeros(count, size, types, count, size, dtype=torch.float64)
    for k in range(count):
        cells[k, :, :, k] = C[k]
        if k + 1 < count:
            cells[k, :, :, k + 1], cells[k + 1, :, :, k] = U[k], L[k]
    return cells.reshape(count * size, types, -1)[:nodes, :, :nodes].flatten(0, 1)


@pytest.mark.parametrize("backend", ["plain", "triton"])
@pytest.mark.parametrize(("count", "size", "types", "nodes"), SIZES)
def test_the_product_its_transpose_and_their_gradients(count, size, types, nodes, backend):
    C, U, L = blocks(count, size, types)
    for beside in ((U, L), (None, None)):
        cells = whole(C, *(torch.zeros_like(U) if t is None else t for t in beside), nodes)
        for transposed in (False, True):
            matrix = cells.T if transposed else cells
            x = torch.randn(matrix.shape[1], 3, dtype=torch.float64, requires_grad=True)
            grad = torch.randn(matrix.shape[0], 3, dtype=torch.float64)
            with use_backend(backend):
                found = block_products(x, C, *beside, transposed)
                (found_grad,) = torch.autograd.grad(found, x, grad)
            torch.testing.assert_close(found, matrix @ x)
            torch.testing.assert_close(found_grad, matrix.T @ grad)


def test_float32_keeps_its_bits_on_the_matrix_unit():
    C, U, L = blocks(2, 40, 1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 16, generator=generator) * torch.logspace(-6, 6, 80)[:, None]
    cells = whole(C, U, L, 80)
    with use_backend("triton"):
        found = block_products(x, C, U, L, False)
    error = (found - cells @ x.double()).abs() / (cells @ x.double().abs()).clamp(min=1e-30)
    assert error.max() < 2**-22


def test_what_is_not_finite_stays_so():
    C = torch.ones(1, 2, 1, 2, dtype=torch.int8)
    x = torch.tensor([[torch.inf, torch.nan, -torch.inf, 1.0], [1.0, 1.0, 1.0, 1.0]])
    # numpy, which computes for the interpreter, tells of what has no value.
    with use_backend("triton"), np.errstate(invalid="ignore"):
        found = block_products(x, C, None, None, False)
    torch.testing.assert_close(found[0], x.sum(0), equal_nan=True)


def test_the_operator_passes_torchs_checks():
    C, U, L = blocks(3, 4, 2)
    tests = ("test_schema", "test_faketensor")
    for x, transposed in ((torch.randn(11, 3), False), (torch.randn(22, 3), True)):
        for beside in ((U, L), (None, None)):
            torch.library.opcheck(block_products.op, (x, C, *beside, transposed), test_utils=tests)


def test_shapes_that_do_not_fit_are_refused():
    C, U, L = blocks(3, 4, 2)
    x = torch.randn(12, 3)
    for wrong in ((C.float(), U, L), (C, U[:1], L), (C, U, None), (C[:, :3], U, L)):
        with pytest.raises(ValueError, match=r"int8 blocks C \[K, S, P, S\]"):
            block_products(x, *wrong, False)
    for wrong_x, transposed in ((torch.randn(13, 3), False), (torch.randn(11, 3), True)):
        with pytest.raises(ValueError, match="one row per node"):
            block_products(wrong_x, C, U, L, transposed)


def test_a_block_of_too_many_cells_is_refused():
    # No memory is taken: all nodes are one.
    C = torch.zeros(1, 1, 1, 1, dtype=torch.int8).expand(1, 50_000, 1, 50_000)
    with use_backend("triton"), pytest.raises(ValueError, match="take smaller blocks"):
        block_products(torch.ones(3, 2), C, None, None, False)
