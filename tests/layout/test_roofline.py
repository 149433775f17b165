"""The roofline model of accelerators: its arithmetic, its machines, and what wins where."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from weft.errors import DataError
from weft.layout.roofline import (
    ACCELERATORS,
    Accelerator,
    Operation,
    accelerator,
    banded_operations,
    block_memory,
    dense_operations,
    product,
    roofline,
    sparse_operations,
    unit_operations,
)

PLAIN = Accelerator(
    name="plain",
    flops=1e12,
    bandwidth=1e11,
    tile=(1, 1, 1),
    gather=1.0,
    start=1e-6,
    memory=1e9,
)
SIZES = {"types": 3, "hidden": 16, "rounds": 2}


def test_sizes_of_products_are_rounded_up_to_tiles():
    tiled = replace(PLAIN, tile=(8, 128, 64))
    found = product(tiled, 10, 100, 65, 3)
    assert found.flops == 2 * 3 * 16 * 128 * 128
    assert found.wanted == 2 * 3 * 10 * 100 * 65
    assert found.bytes == 2 * 3 * (10 * 65 + 65 * 100 + 10 * 100)
    assert product(PLAIN, 10, 100, 65).flops == product(PLAIN, 10, 100, 65).wanted


def test_an_operator_takes_the_longer_of_products_and_bytes():
    slow = Operation(flops=1e9, wanted=5e8, bytes=1e5, times=2)
    far = Operation(bytes=1e7, gathered=1e7)
    found = roofline(PLAIN, [slow, far])
    assert found.products == pytest.approx(2e-3)
    assert found.traffic == pytest.approx(2e-4)
    assert found.starts == pytest.approx(3e-6)
    assert found.seconds == pytest.approx(2.203e-3)
    assert found.rounding == pytest.approx(2.0)
    assert found.bound == "products"
    half = roofline(replace(PLAIN, gather=0.1), [far])
    assert half.traffic == pytest.approx(1.1e-3)
    assert half.bound == "memory"
    assert roofline(PLAIN, [Operation(bytes=1.0)]).bound == "starting operators"


def wanted(operations: list[Operation]) -> float:
    return sum(each.times * each.wanted for each in operations)


def test_multiply_adds_are_those_of_the_forms():
    cells = 64 * 3 * 3 * 16  # (node, type) and three blocks of 16 sources
    transform = 3 * 64 * 3 * 16 * 16
    # The sums and the gradient of their sources; matrices, and the gradients of both factors.
    found = banded_operations(PLAIN, nodes=64, block=16, **SIZES)
    assert wanted(found) == 2 * 2 * (2 * cells * 16 + transform)
    alone = banded_operations(PLAIN, nodes=64, block=64, **SIZES)
    assert wanted(alone) == 2 * 2 * (2 * 64 * 3 * 64 * 16 + transform)
    dense = dense_operations(PLAIN, graphs=4, block=16, **SIZES)
    assert wanted(dense) == 2 * 2 * (2 * 64 * 3 * 16 * 16 + transform)
    rows = [10, 0, 7]
    sparse = sparse_operations(PLAIN, edges=40, rows=rows, nodes=64, hidden=16, rounds=2)
    assert wanted(sparse) == 2 * 2 * 3 * 17 * 16 * 16
    # Each edge and each row is read by index, forward and backward.
    gathered = sum(each.times * each.gathered for each in sparse)
    assert gathered == 2 * 2 * (40 + 17) * 16 * PLAIN.item
    unit = unit_operations(PLAIN, nodes=64, hidden=16, rounds=2)
    assert wanted(unit) == 2 * 2 * 3 * 64 * 6 * 16 * 16
    assert sparse_operations(PLAIN, edges=0, rows=[0], nodes=4, hidden=2, rounds=1) == []
    assert block_memory(PLAIN, cells=100, nodes=10, **SIZES) == 300 + 2 * 10 * 16 * 2 * 9


@pytest.mark.parametrize("machine", ACCELERATORS.values(), ids=list(ACCELERATORS))
def test_full_blocks_win_and_empty_ones_lose(machine):
    shared = {"nodes": 8192, "hidden": 128, "rounds": 8}
    blocks = roofline(machine, banded_operations(machine, block=128, types=1, **shared)).seconds
    full = sparse_operations(machine, edges=8192 * 384, rows=[8192], **shared)
    few = sparse_operations(machine, edges=8192, rows=[4096], **shared)
    assert blocks < roofline(machine, full).seconds
    assert blocks > roofline(replace(machine, gather=1.0), few).seconds


def test_narrow_networks_waste_wide_matrix_units():
    sizes = {"nodes": 1024, "types": 20, "block": 128, "rounds": 1}
    found = {
        name: roofline(machine, banded_operations(machine, hidden=64, **sizes)).rounding
        for name, machine in ACCELERATORS.items()
    }
    assert found["tpu-v2-8"] > 1.9
    assert found["a100"] < 1.05


def test_a_machine_is_named_or_read(tmp_path):
    assert accelerator("a100").flops == 312e12
    assert accelerator("tpu-v2-8").cores == 8
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(asdict(PLAIN)))
    assert accelerator(str(path)) == PLAIN
    with pytest.raises(ValueError, match="'b300'; choose from tpu-v2-8, a100, h100, or name a"):
        accelerator("b300")
    for change, message in (
        ({"flops": -1.0}, "flops is -1.0; it must be positive"),
        ({"tile": [8, 8]}, "give three: rows, columns and depth"),
        ({"tile": [8, 8, "a"]}, "it must be positive"),
        ({"colour": 1}, "colour"),
    ):
        path.write_text(json.dumps({**asdict(PLAIN), **change}))
        with pytest.raises(DataError, match=message):
            accelerator(str(path))
    path.write_text("[]")
    with pytest.raises(DataError, match="not an object with fields"):
        accelerator(str(path))
