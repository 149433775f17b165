"""Shares a compiled loop between the threads of torch's own OpenMP pool.

A pool of our own would fight torch's: its threads spin for a while after every operation, and on a
busy core the loser waits for milliseconds. So the loops are handed to the pool that is awake
already, through OpenMP's C entry point. Where torch has no such pool they run in one thread.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from weft.compiled import compiled

# Below this many multiply-adds, waking a thread costs more than it saves.
_WORTH_SHARING = 100_000
# More parts than threads, so that one slow core does not hold up the others.
_PARTS_PER_THREAD = 4


@functools.cache
def openmp() -> int:
    """Address of OpenMP's GOMP_parallel in this process (GNU's or LLVM's runtime), or 0."""
    try:
        function = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def threads_for(operations: int) -> int:
    """Threads for a loop of this many multiply-adds."""
    if operations < _WORTH_SHARING or not openmp():
        return 1
    return torch.get_num_threads()


@intrinsic
def _next_turn(typing_context: Any, counter: Any) -> Any:
    """counter[0], which is then one more; each thread gets another number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", view.data, ir.IntType(64)(1), "monotonic")

    return types.int64(counter), generate


def _work(loop: Any, arguments: Any, cuts: Any, counter: Any) -> None:
    """What each thread does: take the next part until none is left."""
    turn = _next_turn(counter)
    while turn < cuts.shape[0] - 1:
        loop(*arguments, cuts[turn], cuts[turn + 1])
        turn = _next_turn(counter)


@intrinsic
def _run_team(
    typing_context: Any,
    openmp: Any,
    threads: Any,
    loop: Any,
    arguments: Any,
    cuts: Any,
    counter: Any,
) -> Any:
    """Have OpenMP call `_work` in every thread of a team, and wait for all of them."""
    work = types.void(loop, arguments, cuts, counter)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        packed = cgutils.pack_struct(builder, values[2:])
        shared = cgutils.alloca_once_value(builder, packed)
        # The C function that OpenMP calls: it unpacks the shared values from its one argument.
        name = builder.module.get_unique_name("weft_team_task")
        task = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), [pointer]), name)
        task.linkage = "internal"
        inside = ir.IRBuilder(task.append_basic_block("entry"))
        unpacked = inside.load(inside.bitcast(task.args[0], packed.type.as_pointer()))
        compiled = context.compile_subroutine(builder, _work, work)
        context.call_internal_no_propagate(
            inside, compiled.fndesc, work, cgutils.unpack_tuple(inside, unpacked)
        )
        inside.ret_void()
        parallel = ir.FunctionType(ir.VoidType(), [pointer, pointer, number, number])
        builder.call(
            builder.inttoptr(values[0], parallel.as_pointer()),
            [
                builder.bitcast(task, pointer),
                builder.bitcast(shared, pointer),
                builder.trunc(values[1], number),
                number(0),
            ],
        )
        return context.get_dummy_value()

    return types.void(openmp, threads, loop, arguments, cuts, counter), generate


@compiled()
def _cut_rows(offsets: Any, rows: int, parts: int) -> Any:
    """Row numbers int64 [parts + 1] that cut the rows into parts of about equal work."""
    cuts = np.empty(parts + 1, dtype=np.int64)
    cuts[0], cuts[parts] = 0, rows
    for part in range(1, parts):
        if offsets is None:
            cuts[part] = rows * part // parts
        else:
            # A row costs something even when it is empty, so row r stands at offsets[r] + r.
            goal = (np.int64(offsets[rows]) + rows) * part // parts
            low, high = cuts[part - 1], rows
            while low < high:
                middle = (low + high) // 2
                if np.int64(offsets[middle]) + middle < goal:
                    low = middle + 1
                else:
                    high = middle
            cuts[part] = low
    return cuts


# Inlined, so that `loop` stays a name known when the caller is compiled and its code can be cached.
@njit(nogil=True, inline="always")
def share(openmp: int, threads: int, loop: Any, arguments: Any, offsets: Any, rows: int) -> None:
    """Call loop(*arguments, first, stop) over all rows; parts run side by side.

    Args:
        openmp: see `openmp`.
        threads: at most this many; 1 calls the loop directly.
        loop: compiled; computes the output rows first:stop and nothing else.
        arguments: tuple of what else it takes.
        offsets: int [rows + 1], CSR offsets that tell the work of a row; None if all are alike.
        rows: number of output rows.
    """
    if threads == 1:
        loop(*arguments, 0, rows)
    else:
        cuts = _cut_rows(offsets, rows, threads * _PARTS_PER_THREAD)
        _run_team(openmp, threads, loop, arguments, cuts, np.zeros(1, dtype=np.int64))
