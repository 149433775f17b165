"""Rows reduced by group, as torch_geometric's utilities do it, in float64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torch_geometric")

from torch_geometric import utils

from weft.integrations.geometric import segments
from weft.integrations.geometric.running import noted

ROWS, GROUPS = 40, 7


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch):
    monkeypatch.setattr(segments, "gains", lambda *call: True)


def rows(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, *shape, dtype=torch.float64, generator=generator)


def groups(*, is_sorted=False, dtype=torch.int64):
    generator = torch.Generator().manual_seed(1)
    # Group 4 and the last one have no rows.
    index = torch.randint(0, GROUPS - 1, (ROWS,), generator=generator)
    index[index == 4] = 3
    return (index.sort().values if is_sorted else index).to(dtype)


def compared(function, stock, x, *arguments, taken=True, **named):
    """Compare results, gradients or errors; tell whether weft's loops were used."""
    said = []
    for each in (function, stock):
        given = x.clone().requires_grad_(x.is_floating_point())
        try:
            with noted() as notes:
                out = each(given, *arguments, **named)
        except Exception as error:
            said.append((type(error), str(error)))
            continue
        if each is function:
            assert bool(notes) == taken
        if given.requires_grad:
            weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
            said.append((out, *torch.autograd.grad((out * weight).sum(), given)))
        else:
            said.append(out)
    if isinstance(said[1][0], type):
        assert said[0] == said[1]
    else:
        torch.testing.assert_close(said[0], said[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("reduce", ["sum", "add", "mean", "max", "min"])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_scatter(reduce, is_sorted):
    index = groups(is_sorted=is_sorted)
    for x in (rows(), rows(3), rows(2, 3), rows(3).round(decimals=0)):
        for size in (None, GROUPS):
            compared(segments.scatter, utils.scatter, x, index, 0, size, reduce)
    compared(segments.scatter, utils.scatter, rows(3), index, -2, GROUPS, reduce)


def test_what_scatter_leaves_to_torch_geometric():
    index, x = groups(), rows(3)
    given = [
        (x, index, 0, GROUPS, "mul"),
        (x, index, 0, GROUPS, "nonsense"),
        (x, index, 0, 2, "sum"),
        (x, index - 1, 0, GROUPS, "sum"),
        (x, index[:5], 0, GROUPS, "max"),
        (x, groups(dtype=torch.int32), 0, GROUPS, "sum"),
        (x.t().contiguous(), index, 1, GROUPS, "sum"),
        (x.bfloat16(), index, 0, GROUPS, "sum"),
        (x.long(), index, 0, GROUPS, "sum"),
        (x[:0], index[:0], 0, GROUPS, "max"),
        (rows(1100), index, 0, GROUPS, "sum"),
    ]
    for call in given:
        compared(segments.scatter, utils.scatter, *call, taken=False)


def test_rows_of_an_edge_index_are_kept_with_it():
    edge_index = torch.stack([groups(), groups(is_sorted=True)])
    for _ in range(2):
        found = segments.groups_of(rows(3), edge_index[1], GROUPS)
        assert found.edge_index is segments.groups_of(rows(3), edge_index[1], GROUPS).edge_index
        compared(segments.scatter, utils.scatter, rows(3), edge_index[1], 0, GROUPS)
        edge_index[1] = edge_index[1].flip(0)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_segment(reduce):
    ptr = torch.tensor([0, 3, 3, 17, ROWS])
    compared(segments.segment, utils.segment, rows(3), ptr, reduce, taken=reduce != "max")
    compared(segments.segment, utils.segment, rows(3), ptr[:-1], reduce, taken=False)


@pytest.mark.parametrize("is_sorted", [False, True])
def test_softmax(is_sorted):
    index = groups(is_sorted=is_sorted)
    for x in (rows(), rows(3), 50 * rows(2, 3)):
        compared(segments.softmax, utils.softmax, x, index, num_nodes=GROUPS)
        compared(segments.softmax, utils.softmax, x, index)
    ptr = torch.tensor([0, 3, 3, 17, ROWS])
    compared(segments.softmax, utils.softmax, rows(3), ptr=ptr, taken=False)
    compared(segments.softmax, utils.softmax, rows(20), index, taken=False)
    compared(segments.softmax, utils.softmax, rows(3).t(), index, dim=1, taken=False)
