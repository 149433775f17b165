"""Settings of a process that computes: denormal floats flushed, freed memory kept, less garbage."""

from __future__ import annotations

import ctypes
import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_OMP_PAUSE_SOFT = 1
# glibc's names for its options, from malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
# torch gives a thread at least this many elements of an elementwise operation.
_GRAIN = 32768
# Bits of the exponent and of the mantissa, with an integer type of the same width.
_LAYOUTS = {
    torch.float16: (torch.int16, 0x7C00, 0x03FF),
    torch.bfloat16: (torch.int16, 0x7F80, 0x007F),
    torch.float32: (torch.int32, 0x7F800000, 0x007FFFFF),
    torch.float64: (torch.int64, 0x7FF0000000000000, 0x000FFFFFFFFFFFFF),
}


def prepare_process() -> None:
    """Make this process fit for training: call it once, before other torch work.

    Denormals are flushed (see `flush_denormals`), freed memory is kept for the next step (see
    `keep_freed_memory`), and Python's garbage collector no longer looks at what is there already.
    `weft train` and `weft bench` do this by themselves.
    """
    flush_denormals()
    keep_freed_memory()
    # The libraries' own objects, hundreds of thousands, which the collector would go through again
    # and again: every step makes enough garbage to wake it.
    gc.freeze()


def keep_freed_memory() -> bool:
    """Have the C library reuse large freed blocks rather than give them back to the system.

    Full-batch training frees and takes the same large tensors every step. By default each comes
    from the system as fresh zeroed pages, one page fault per 4 KiB: a quarter of an epoch on
    170,000 nodes. The price is that the process keeps its peak memory until it ends.

    Returns:
        Whether it could be set: only glibc has the switch.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    most = 2**31 - 1
    options = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: most, _M_TOP_PAD: 64 * 2**20}
    return all(set_option(option, value) for option, value in options.items())


def flush_denormals() -> bool:
    """Treat denormal floats as zero in this thread and in its pool of compute threads.

    Values below about 1e-38 (float32) make a CPU's arithmetic many times slower, and narrow
    Gaussians far from their centre are full of them. The setting stays for the rest of the
    process; threads that are started later inherit it.

    Returns:
        Whether all threads flush now. False on a CPU that cannot, and, with a warning, where a
        pool that was running before could not be started again.
    """
    if not torch.set_flush_denormal(True):
        return False
    if not _makes_denormals(_all_threads()):
        return True
    # The setting belongs to a thread, and a pool takes its maker's. A pool that computed before
    # keeps the old one for ever, so it is ended; the next operation starts it again.
    _end_thread_pool()
    if not _makes_denormals(_all_threads()):
        return True
    warnings.warn(
        "torch's compute threads were started before denormals were flushed and keep the slow "
        "arithmetic; call weft.training.flush_denormals() before any other torch work",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Flush denormals for a while; afterwards they are as they were before."""
    flushed_before = not _makes_denormals(1)
    flush_denormals()
    try:
        yield
    finally:
        if not flushed_before:
            torch.set_flush_denormal(False)
            _end_thread_pool()


def _all_threads() -> int:
    """Elements of an operation that keeps every compute thread busy."""
    return 2 * _GRAIN * torch.get_num_threads()


def _makes_denormals(size: int) -> bool:
    products = torch.full((size,), 1e-30) * 1e-10
    # As integers: a comparison of floats would itself take a denormal for zero.
    return bool(products.view(torch.int32).any())


def _end_thread_pool() -> None:
    """Ask OpenMP to give its threads back; without OpenMP 5 nothing happens."""
    try:
        pause = ctypes.CDLL(None).omp_pause_resource_all
    except (AttributeError, OSError, TypeError):
        return
    pause.argtypes, pause.restype = [ctypes.c_int], ctypes.c_int
    pause(_OMP_PAUSE_SOFT)


def count_denormals(tensor: Tensor) -> int:
    """How many values of a floating-point tensor are denormal: too small for full precision.

    A weight, an activation or a gradient with many of them tells that a model suffers. Look
    before `flush_denormals`: afterwards new ones become zero.
    """
    if tensor.dtype not in _LAYOUTS:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _LAYOUTS)
        raise ValueError(f"denormals are counted in {known} tensors, this one is {tensor.dtype}")
    integer, exponent, mantissa = _LAYOUTS[tensor.dtype]
    bits = tensor.detach().contiguous().view(integer)
    return int((((bits & exponent) == 0) & ((bits & mantissa) != 0)).sum())
