import numpy as np
from graph_strategies import quick
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from weft.counting_sort import counting_order, group_starts
from weft.graphs.edge_loops import copy_ranges, shift_ranges

keys = hnp.arrays(
    st.sampled_from([np.int32, np.int64]), st.integers(0, 30), elements=st.integers(0, 6)
)


@quick
@given(keys)
def test_counting_order_is_the_stable_argsort(keys):
    assert counting_order(keys, 7).tolist() == np.argsort(keys, kind="stable").tolist()


@quick
@given(keys)
def test_group_starts_are_the_offsets_of_sorted_keys(keys):
    assert group_starts(keys, 7).tolist() == np.searchsorted(np.sort(keys), np.arange(8)).tolist()


ranges = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), max_size=6)


@quick
@given(ranges, st.integers(1, 3))
def test_copy_ranges_copies_rows_one_range_after_another(ranges, width):
    source = np.arange(12 * width, dtype=np.uint8)
    starts, stops = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    expected = [source[a * width : b * width] for a, b in ranges]
    out = np.full(sum(map(len, expected)) + 2, 255, dtype=np.uint8)
    copy_ranges(source, np.ascontiguousarray(starts), np.ascontiguousarray(stops), width, out)
    assert out.tolist() == np.concatenate([*expected, [255, 255]]).tolist()


@quick
@given(ranges)
def test_shift_ranges_adds_each_ranges_shift(ranges):
    source = np.arange(12, dtype=np.int32)
    starts, stops = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    shifts = 100 * np.arange(len(ranges))
    expected = [source[a:b] + shift for (a, b), shift in zip(ranges, shifts, strict=True)]
    out = np.full(sum(map(len, expected)) + 1, -1, dtype=np.int32)
    shift_ranges(source, np.ascontiguousarray(starts), np.ascontiguousarray(stops), shifts, out)
    assert out.tolist() == np.concatenate([*expected, [-1]]).tolist()
