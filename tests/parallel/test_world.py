"""Collectives: what they give, what the wire carries, and that nobody waits for ever."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from rank_processes import answers_of, results_of
from wire import assert_carried, carried, namespace

from weft.parallel.world import joined

# Far less than the ten minutes of a run, which these tests would not sit through. What says that
# they gave up on time, and not because the silent rank left, is that this one stays until they do.
JOIN, ADD = timedelta(seconds=2), timedelta(seconds=8)


def stay_until(folder: str, given_up: int) -> None:
    while len(list(Path(folder).iterdir())) < given_up:
        time.sleep(0.05)


def joining(folder: str) -> None:
    """All but the last rank make the groups of a grid."""
    if int(os.environ["RANK"]) == 3:
        stay_until(folder, 3)
        return
    try:
        with joined("2d", timeout=JOIN):
            pass
    finally:
        Path(folder, os.environ["RANK"]).touch()


def adding(folder: str) -> None:
    """All but the last rank add up, each in its group."""
    with joined("3d", timeout=ADD) as world:
        if world.rank == world.grid.ranks - 1:
            stay_until(folder, 3)
            return
        try:
            world.all_reduce("weights", torch.ones(2), "test")
        except RuntimeError:
            Path(folder, str(world.rank)).touch()
            raise


def test_a_rank_that_does_not_join_is_not_waited_for_long(tmp_path):
    answers = answers_of(4, joining, str(tmp_path))
    assert [answer[0] for answer in answers] == ["error", "error", "error", "result"]


def test_a_rank_that_does_not_answer_is_not_waited_for_long(tmp_path):
    answers = answers_of(8, adding, str(tmp_path))
    waiting = {rank for rank, answer in enumerate(answers) if answer[0] == "error"}
    assert waiting == {2, 3, 6}, answers


SIZE = 2**18


def broadcast(world, along, source):
    """One rank's numbers."""
    found = torch.full((SIZE,), world.position(along))
    world.broadcast(along, source, found, "test").wait()
    assert torch.equal(found, torch.full((SIZE,), source))


def all_reduce(world, along, dtype, op, count=SIZE):
    """The sum or the maximum of everyone's numbers."""
    size = world.size(along)
    own = torch.full((count,), world.position(along), dtype=dtype)
    found = world.all_reduce(along, own, "test", op)
    expected = size * (size - 1) // 2 if op == "sum" else size - 1
    assert torch.equal(found, torch.full((count,), expected, dtype=dtype))


def parts_of(world, along, total, *, even):
    """For each rank of the group, an equal part; or for each one as much more than the last."""
    size = world.size(along)
    return [total // size if even else total // size * (place + 1) for place in range(size)]


def reduce_scatter(world, along, dtype, dim, *, even):
    """This rank's part of the sum of everyone's numbers."""
    size, own = world.size(along), world.position(along)
    parts = parts_of(world, along, SIZE // 64, even=even)
    base = torch.arange(64 * sum(parts), dtype=dtype).view((-1, 64) if dim == 0 else (64, -1)) % 9
    found = world.reduce_scatter(along, base + own, parts, dim, "test")
    expected = torch.split(base * size + size * (size - 1) // 2, parts, dim)[own]
    assert torch.equal(found, expected)
    # What others sent is not kept for as long as the sum is.
    assert found.untyped_storage().nbytes() == found.numel() * found.element_size()


def all_gather(world, along, *, even):
    """Everyone's columns."""
    size, own = world.size(along), world.position(along)
    widths = parts_of(world, along, 256, even=even)
    found = world.all_gather(along, torch.full((1024, widths[own]), own), widths, "test")
    expected = torch.repeat_interleave(torch.arange(size), torch.tensor(widths))
    assert torch.equal(found, expected.expand(1024, -1))


def all_to_all(world, along, dtype, *, even):
    """Everyone's rows; with uneven parts the last rank receives the most."""
    size, own = world.size(along), world.position(along)
    send = parts_of(world, along, SIZE, even=even)
    receive = [send[own]] * size
    send[own] = receive[own] = 0
    rows = torch.full((sum(send),), own, dtype=dtype)
    found = world.all_to_all(along, rows, send, receive, "test").wait()
    expected = torch.repeat_interleave(torch.arange(size), torch.tensor(receive)).to(dtype)
    assert torch.equal(found, expected)


def every_collective(grid, alongs):
    """By group and name: what each brought, and what the kernel counted."""
    with joined(grid) as world:
        return {along: each_carried(world, along) for along in alongs}


def each_carried(world, along):
    to = (world, along)
    works = {
        "broadcast of the first": lambda: broadcast(*to, 0),
        "broadcast of the last": lambda: broadcast(*to, world.size(along) - 1),
        "sum of float32": lambda: all_reduce(*to, torch.float32, "sum"),
        "sum of bfloat16": lambda: all_reduce(*to, torch.bfloat16, "sum"),
        "maximum of float64": lambda: all_reduce(*to, torch.float64, "max", SIZE + 1),
        "scattered rows": lambda: reduce_scatter(*to, torch.float32, 0, even=True),
        "scattered columns": lambda: reduce_scatter(*to, torch.float64, 1, even=True),
        "uneven rows": lambda: reduce_scatter(*to, torch.float64, 0, even=False),
        "uneven columns": lambda: reduce_scatter(*to, torch.float32, 1, even=False),
        "gathered": lambda: all_gather(*to, even=True),
        "gathered from uneven parts": lambda: all_gather(*to, even=False),
        "exchanged": lambda: all_to_all(*to, torch.float32, even=True),
        "exchanged uneven parts": lambda: all_to_all(*to, torch.bfloat16, even=False),
    }
    return {name: carried(world.recorder, work) for name, work in works.items()}


@pytest.mark.parametrize(
    ("ranks", "grid", "alongs"), [(3, "1d", ["world"]), (4, "2d", ["column", "world"])]
)
def test_the_wire_carries_what_is_recorded(ranks, grid, alongs):
    with namespace() as holder:
        answers = results_of(ranks, every_collective, grid, alongs, namespace=holder)
    for along in alongs:
        for name in answers[0][along]:
            assert_carried([answer[along][name] for answer in answers], name)
