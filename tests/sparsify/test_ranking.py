"""Exactly so many of the largest, the first among equals."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.sparsify.masks import mask_of, random_order, top

# Few values, so that there are many ties.
few = st.sampled_from([0.0, -0.0, 1.0, -2.0, 3.5, math.inf, -math.inf, math.nan])


@given(st.data(), st.lists(few, max_size=40), st.sampled_from(["float64", "float32", "float16"]))
def test_top_is_a_stable_sort(data, values, dtype):
    count = data.draw(st.integers(0, len(values)))
    key = [-math.inf if math.isnan(value) else value for value in values]
    expected = sorted(sorted(range(len(values)), key=lambda i: -key[i])[:count])
    found = top(torch.tensor(values, dtype=getattr(torch, dtype)), count)
    assert found.tolist() == expected


def test_top_tells_large_whole_numbers_apart():
    scores = torch.tensor([2**24, 2**24 + 1, 2**24 + 2])
    assert top(scores, 2).tolist() == [1, 2]


def test_random_orders_are_of_their_key():
    assert random_order(50, 1, 2).equal(random_order(50, 1, 2))
    assert not random_order(50, 1, 2).equal(random_order(50, 2, 1))
    assert random_order(50, 3).sort().values.tolist() == list(range(50))


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_a_mask_has_the_shape_of_its_weight(shape):
    mask = mask_of(torch.tensor([1, 4]), torch.zeros(shape))
    assert mask.shape == shape
    assert mask.flatten().tolist() == [False, True, False, False, True, False]
