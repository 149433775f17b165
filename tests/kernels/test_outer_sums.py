"""Sums of outer products over edges, beside plain torch."""

import pytest
import torch

from weft.kernels.fused_messages import EdgeWalks
from weft.kernels.outer_sums import _plain, outer_sums


def example(*, ordered):
    torch.manual_seed(0)
    senders, receivers = torch.randint(0, 5, (9,)), torch.randint(0, 3, (9,))
    if ordered:
        receivers = receivers.sort().values
    rows = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    return rows, x, EdgeWalks(senders, receivers, 6, 4)


@pytest.mark.parametrize("ordered", [True, False])
def test_outer_sums_and_their_derivatives(ordered):
    rows, x, edges = example(ordered=ordered)
    torch.testing.assert_close(outer_sums(rows, x, edges), _plain(rows, x, edges=edges))
    assert torch.autograd.gradcheck(lambda a, b: outer_sums(a, b, edges), (rows, x))
    assert torch.autograd.gradgradcheck(lambda a, b: outer_sums(a, b, edges), (rows, x))


def test_rows_that_do_not_fit_are_refused():
    rows, x, edges = example(ordered=True)
    for wrong in ((rows[1:], x), (rows, x[1:]), (rows.float(), x)):
        with pytest.raises(ValueError, match="needed"):
            outer_sums(*wrong, edges)
