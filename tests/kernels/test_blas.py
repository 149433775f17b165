import numpy as np
import pytest
import torch
from numba import njit
from numba.core.errors import TypingError

from weft.runtime import gemm, gemm_address


@njit
def product(address, transpose_a, transpose_b, m, n, k, a, b, c, add):
    gemm(address, transpose_a, transpose_b, m, n, k, a, b, c, add)


def address_of(dtype):
    address = gemm_address(dtype)
    if not address:
        pytest.skip("torch's library has no BLAS to call")
    return address


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_products_of_parts_of_larger_arrays(dtype, transpose_a, transpose_b, add):
    address, (m, n, k) = address_of(dtype), (5, 7, 3)
    number = np.float32 if dtype == torch.float32 else np.float64
    rng = np.random.default_rng(0)

    def part(rows, columns):
        return rng.normal(size=(rows + 2, columns + 4)).astype(number)[1 : rows + 1, 3:-1]

    a, b, c = (
        part(*((k, m) if transpose_a else (m, k))),
        part(*((n, k) if transpose_b else (k, n))),
        part(m, n),
    )
    expected = (a.T if transpose_a else a) @ (b.T if transpose_b else b) + (c if add else 0)
    product(address, transpose_a, transpose_b, m, n, k, a, b, c, add)
    np.testing.assert_allclose(c, expected, rtol=1e-5)


def test_one_row_whose_stride_is_anything():
    address = address_of(torch.float32)
    # torch and numpy call this contiguous: with one row, its stride does not count.
    b = torch.arange(5.0).reshape(5, 1).t().numpy()
    assert b.strides == (4, 4)
    a, c = np.ones((3, 1), np.float32), np.empty((3, 5), np.float32)
    product(address, False, False, 3, 5, 1, a, b, c, False)
    np.testing.assert_array_equal(c, np.tile(np.arange(5.0), (3, 1)))


def test_numbers_of_two_kinds_are_refused():
    a, b, c = np.ones((2, 2)), np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)
    with pytest.raises(TypingError, match="a product of float64 and float32 into float32"):
        product(gemm_address(torch.float32), False, False, 2, 2, 2, a, b, c, False)
