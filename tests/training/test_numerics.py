from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from weft.training import count_denormals

SCRIPT = """
import sys, threading
import torch
from weft.training import flush_denormals
from weft.training.numerics import denormals_flushed

def denormals():
    size = 1 << 20
    products = torch.full((size,), 1e-30) * 1e-10
    x = torch.full((size,), 1e-20, requires_grad=True)
    ((x * 1e-20) * 1e-20).sum().backward()
    return [int((v.view(torch.int32) != 0).sum()) for v in (products, x.grad)]

torch.set_num_threads(4)
before = denormals()
assert before == [1 << 20] * 2, before
with denormals_flushed():
    assert denormals() == [0, 0]
assert denormals() == [1 << 20] * 2
torch.set_flush_denormal(True)
half = denormals()
# What makes flush_denormals necessary: torch's own call leaves the threads that exist as they are.
assert half[0] > 0, half
assert flush_denormals()
after = denormals()
assert after == [0, 0], after
with denormals_flushed():
    pass
assert denormals() == [0, 0]
found = []
thread = threading.Thread(target=lambda: found.append(denormals()))
thread.start()
thread.join()
assert found == [[0, 0]], found
"""


def supported() -> bool:
    code = "import torch, sys; sys.exit(0 if torch.set_flush_denormal(True) else 1)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="threads inherit the setting on Linux")
def test_all_threads_flush_and_stop_flushing() -> None:
    if not supported():
        pytest.skip("this CPU cannot flush denormals")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_count_denormals(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    normal = torch.tensor(
        [0.0, -0.0, tiny, -tiny, 1.0, torch.inf, -torch.inf, torch.nan], dtype=dtype
    )
    assert count_denormals(normal) == 0
    # 1 as an integer is the smallest denormal; made from bits, as arithmetic might flush it.
    bits = torch.tensor([[1, 2], [0, torch.iinfo(integer).min + 1]], dtype=integer)
    assert count_denormals(bits.view(dtype)) == 3
    assert count_denormals(bits.view(dtype).t()) == 3
    assert count_denormals(torch.empty(0, dtype=dtype)) == 0


def test_count_denormals_agrees_with_numpy() -> None:
    bits = np.random.default_rng(0).integers(0, 2**25, 10_000, dtype=np.int32)
    values = bits.view(np.float32)
    expected = int(
        ((bits != 0) & (bits < np.float32(np.finfo(np.float32).tiny).view(np.int32))).sum()
    )
    assert 0 < expected < 10_000
    assert count_denormals(torch.from_numpy(values)) == expected


def test_only_floats_have_denormals() -> None:
    with pytest.raises(ValueError, match=r"this one is torch\.int64"):
        count_denormals(torch.arange(3))


def test_a_prepared_process_spares_the_collector_the_libraries():
    script = "import gc; from weft.training import prepare_process; prepare_process()"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}; print(gc.get_freeze_count())"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert int(done.stdout) > 10_000
