from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.parallel.grid import Grid, balanced, grid_of, grids_for

sides = st.integers(1, 5)
grids = st.one_of(
    st.builds(lambda r, c, k: Grid(rows=r, columns=c, layers=k), sides, sides, sides),
    st.integers(1, 5).flatmap(
        lambda c: st.builds(lambda r: Grid(rows=r, layers=c, replicated=True), st.integers(c, 12))
    ),
)


@given(grids)
def test_every_rank_has_a_place_and_every_pair_of_blocks_meets_once(grid):
    places = [grid.place(rank) for rank in range(grid.ranks)]
    assert [grid.rank(place) for place in places] == list(range(grid.ranks))
    assert len(set(places)) == grid.ranks
    blocks = set(range(grid.blocks))
    assert {grid.block_of(place) for place in places} == blocks
    for column in range(grid.columns):
        met = [
            (row, stage.block)
            for place in places
            if place.column == column
            for row in [place.row]
            for stage in grid.stages(place)
        ]
        expected = [(row, block) for row in range(grid.rows) for block in blocks]
        assert sorted(met) == expected
    for place in places:
        for stage in grid.stages(place):
            # The rank that sends a stage's features holds their block.
            sender = next(
                p
                for p in places
                if (p.row, p.column, p.layer) == (stage.row, place.column, place.layer)
            )
            assert grid.block_of(sender) == stage.block
        assert grid.block_of(place) in grid.blocks_of_row(place.row)


@given(st.integers(0, 1000), st.integers(1, 40))
def test_parts_differ_by_one_at_most(total, parts):
    sizes = [
        b - a for a, b in zip(balanced(total, parts), balanced(total, parts)[1:], strict=False)
    ]
    assert sum(sizes) == total
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("name", "ranks", "replication", "shape"),
    [
        ("1d", 7, None, (7, 1, 1)),
        ("1.5d", 64, None, (16, 1, 4)),
        ("1.5d", 64, 8, (8, 1, 8)),
        ("1.5d", 7, None, (7, 1, 1)),
        ("2d", 9, None, (3, 3, 1)),
        ("3d", 27, None, (3, 3, 3)),
        ("4x2", 8, None, (4, 2, 1)),
        ("2x2x3", 12, None, (2, 2, 3)),
        ("1d", 1, None, (1, 1, 1)),
    ],
)
def test_named_grids(name, ranks, replication, shape):
    grid = grid_of(name, ranks, replication)
    assert (grid.rows, grid.columns, grid.layers) == shape
    assert grid.ranks == ranks


def test_names_lead_back_to_the_grid():
    for ranks in (1, 2, 4, 6, 8, 27, 64, 4096):
        for grid in grids_for(ranks):
            replication = grid.layers if grid.name == "1.5d" else None
            assert grid_of(grid.name, ranks, replication) == grid
        names = [grid.name for grid in grids_for(ranks)]
        assert ("2d" in names) == (ranks > 1 and math.isqrt(ranks) ** 2 == ranks)


@pytest.mark.parametrize(
    ("name", "ranks", "replication", "words"),
    [
        ("2d", 6, None, ["take 4 or 9", "1.5d with replication 2", "3x2"]),
        ("2d", 3, None, ["take 1 or 4"]),
        ("3d", 9, None, ["take 8 or 27", "2d"]),
        ("1.5d", 8, 4, ["replication is 4", "1, 2"]),
        ("1.5d", 9, 2, ["replication is 2", "1, 3"]),
        ("1d", 8, 2, ["only the grid 1.5d"]),
        ("4x2", 6, None, ["8 ranks, not 6"]),
        ("0x2", 6, None, ["at least 1"]),
        ("4d", 6, None, ["1d, 1.5d, 2d, 3d"]),
        ("2d", 0, None, ["at least 1"]),
    ],
)
def test_a_grid_that_does_not_fit_names_those_that_do(name, ranks, replication, words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        grid_of(name, ranks, replication)
    for word in words:
        assert word in str(caught.value)
