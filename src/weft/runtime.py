"""How weft's loops become machine code and run: compiler, cache, threads, BLAS and instructions.

The loops are plain Python that numba compiles. Everything about that which depends on the machine,
on torch's libraries or on numba's inner workings is here; the loops themselves are in the rooms.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import hashlib
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import caching, cgutils, serialize
from numba.core.errors import TypingError
from numba.extending import intrinsic

Loop = TypeVar("Loop", bound=Callable[..., Any])

# -- The compiler ----------------------------------------------------------------------------------


def compiled(**options: Any) -> Callable[[Loop], Loop]:
    """Decorator: compile a function without the interpreter lock; `options` are numba's.

    The machine code is kept between processes, see `_Cache`. Where no folder can be written (a
    read-only container), every process compiles again.
    """

    def decorate(loop: Loop) -> Loop:
        dispatcher: Any = njit(nogil=True, **options)(loop)
        with suppress(RuntimeError):
            dispatcher._cache = _Cache(loop)
        return cast(Loop, dispatcher)

    return decorate


kernel = compiled(fastmath={"contract"}, error_model="numpy")
"""Decorator: compile numeric code as the operators need it.

Contraction to fused multiply-add is the only liberty taken: sums keep their order.
"""


class SharedLoop(Protocol):
    """A compiled loop over rows [first, stop), and the same loop shared between threads."""

    def __call__(self, *arguments: Any) -> None:
        """Compute the rows of the last two arguments, first and stop, in this thread."""

    def share(
        self, arguments: tuple[Any, ...], rows: int, operations: int, offsets: Any = None
    ) -> None:
        """Compute all rows on as many threads as pay.

        Args:
            arguments: those of the loop but for first and stop.
            rows: number of output rows.
            operations: multiply-adds of all rows together, about.
            offsets: int [rows + 1], CSR offsets that tell the work of a row; None if all are alike.
        """

    def run(self, pool: int, threads: int, arguments: Any, offsets: Any, rows: int) -> None:
        """Compute all rows on this many threads of the pool, see `share_rows`."""


def shared_rows(loop: Callable[..., None]) -> SharedLoop:
    """Decorator for a compiled loop whose rows threads may share, see SharedLoop.

    The loop's last two arguments are `first` and `stop`. It computes the output rows first:stop and
    nothing else, so parts run side by side and the result does not depend on how they were cut.
    """
    found: Any = loop
    function = found.py_func
    name = function.__name__
    # Made from text, because numba caches code that names a function by its module, but not a
    # closure that holds the function.
    text = (
        f"def {name}_shared(pool, threads, arguments, offsets, rows):\n"
        f"    share_rows(pool, threads, module.{name}, arguments, offsets, rows)\n"
    )
    namespace: dict[str, Any] = {
        "__name__": function.__module__,
        "module": sys.modules[function.__module__],
        "share_rows": share_rows,
    }
    exec(compile(text, function.__code__.co_filename, "exec"), namespace)  # noqa: S102
    run = kernel(namespace[f"{name}_shared"])

    def share(arguments: tuple[Any, ...], rows: int, operations: int, offsets: Any = None) -> None:
        run(POOL, threads_for(operations), arguments, offsets, rows)

    found.run, found.share = run, share
    return cast(SharedLoop, found)


# -- The cache of machine code ---------------------------------------------------------------------


class _InUserFolder(caching.UserWideCacheLocator):  # type: ignore[misc]
    """In weft's folder of the user's cache, which all checkouts and environments share."""

    def __init__(self, function: Any, file: str) -> None:
        # Not at the top, where it would count as a source of the machine code.
        from weft.files import user_cache

        super().__init__(function, file)
        # Not by the path of the source: what the code was made from is in the names of its files.
        self._cache_path = str(user_cache() / "compiled" / function.__module__.rpartition(".")[0])


class _Implementation(caching.CompileResultCacheImpl):  # type: ignore[misc]
    # The first is $NUMBA_CACHE_DIR, if it is set.
    _locator_classes = (caching.UserProvidedCacheLocator, _InUserFolder)


# Versions of a source whose machine code is kept: checkouts and installations that take turns.
_VERSIONS_KEPT = 6


class _CodeFiles:
    """Machine code of a function: a file for each signature, named by all that it was made from.

    numba's own files are numbered, beside an index. A process that is killed between the two, or
    two that compile at once, can leave it pointing at other code than it says.
    """

    def __init__(self, folder: Path, name: str, stamp: str) -> None:
        self._folder, self._name, self._stamp = folder, name, stamp

    def load(self, key: Any) -> Any:
        """What was saved under `key`; None where there is nothing, or it is damaged."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        digest, payload = content[:32], content[32:]
        if hashlib.sha256(payload).digest() != digest:
            return None
        return pickle.loads(payload)  # noqa: S301 - of the user's own cache, as numba does

    def save(self, key: Any, data: Any) -> None:
        """Keep `data`, and what the latest other sources gave; a full disk is no error."""
        payload = serialize.dumps(data)
        path = self._path(key)
        part = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            part.write_bytes(hashlib.sha256(payload).digest() + payload)
            part.replace(path)
        except OSError:
            with suppress(OSError):
                part.unlink()
            return
        written: dict[str, float] = {}
        for other in self._folder.glob(f"{glob.escape(self._name)}.*.nbc"):
            with suppress(OSError):
                version, when = other.name.rsplit(".", 2)[0], other.stat().st_mtime
                written[version] = max(when, written.get(version, when))
        for version in sorted(written, key=written.__getitem__)[:-_VERSIONS_KEPT]:
            for other in self._folder.glob(f"{glob.escape(version)}.*.nbc"):
                with suppress(OSError):
                    other.unlink()

    def _start(self) -> str:
        return f"{self._name}.{self._stamp[:16]}."

    def _path(self, key: Any) -> Path:
        words = repr((numba.__version__, self._stamp, key))
        # An address says nothing in another process, and names of functions may be the same.
        assert " at 0x" not in words, f"a function is an argument of a cached one: {words}"
        return self._folder / f"{self._start()}{hashlib.sha256(words.encode()).hexdigest()}.nbc"


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    """Keeps machine code for as long as no source that it was made from has changed.

    numba alone looks at the file of the function itself, but machine code also holds the functions
    and constants of other modules that were compiled into it.
    """

    _impl_class = _Implementation

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        stamp = f"{_stamp(function.__module__)} {_THROUGH_TORCH}"
        stamp = hashlib.sha256(stamp.encode()).hexdigest()
        self._cache_file = _CodeFiles(Path(self._cache_path), self._impl.filename_base, stamp)
        self._missed = 0.0

    def load_overload(self, signature: Any, context: Any) -> Any:
        found = super().load_overload(signature, context)
        if found is None:
            self._missed = time.perf_counter()
        return found

    def save_overload(self, signature: Any, result: Any) -> None:
        # A folder that cannot be made or written to any more: this process goes on without.
        with suppress(OSError):
            super().save_overload(signature, result)
        _tell(self._py_func, time.perf_counter() - self._missed)


_IMPORT = re.compile(r"^(?:from (\w[\w.]*) import (\([^)]*\)|.*)|import (\w[\w.]*))", re.MULTILINE)


@functools.cache
def _stamp(module: str) -> str:
    """Hash of all that a module's machine code may be made from."""
    return hashlib.sha256(repr(sorted(_sources(module).items())).encode()).hexdigest()


def _sources(module: str) -> dict[str, str]:
    """Hashes of the source of a module and of what it imports, and they, of weft or its package."""
    hashes: dict[str, str] = {}
    todo, packages = [module], ("weft", module.partition(".")[0])
    while todo:
        name = todo.pop()
        file = getattr(sys.modules.get(name), "__file__", None)
        if name in hashes or file is None or name.partition(".")[0] not in packages:
            continue
        text = Path(file).read_text(encoding="utf-8")
        hashes[name] = hashlib.sha256(text.encode()).hexdigest()
        for origin, names, whole in _IMPORT.findall(text):
            # What is imported from a package is one of its modules, or of the package itself.
            words = re.findall(r"\w+", re.sub(r"\bas \w+|#.*", "", names))
            parts = [f"{origin}.{word}" for word in words]
            modules = [part for part in parts if part in sys.modules]
            todo += modules if words and len(modules) == len(words) else [*modules, whole or origin]
    return hashes


# Seconds of compiling after which a person who waits is told why.
_PATIENCE_SECONDS = 2.0
_spent_seconds = 0.0
_listeners: list[Callable[[str, float], None]] = []


def _tell(function: Any, seconds: float) -> None:
    """Pass on that a function was compiled."""
    global _spent_seconds
    for listener in _listeners:
        listener(f"{function.__module__}.{function.__name__}", seconds)
    before, _spent_seconds = _spent_seconds, _spent_seconds + seconds
    told = before > _PATIENCE_SECONDS
    if not (told or _listeners) and _spent_seconds > _PATIENCE_SECONDS and sys.stderr.isatty():
        sys.stderr.write(
            "weft: compiling its loops for this machine, once; `weft compile` does it ahead\n"
        )


@contextmanager
def compilations(listener: Callable[[str, float], None]) -> Iterator[None]:
    """Call listener(name of the function, seconds) for whatever is compiled meanwhile."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


# -- Threads ---------------------------------------------------------------------------------------
#
# A pool of our own would fight torch's: its threads spin for a while after every operation, and on
# a busy core the loser waits for milliseconds. So the loops are handed to the pool that is awake
# already: through OpenMP's C function (GNU's or LLVM's runtime), or else through torch's own (2.10
# and later), which takes a microsecond longer. Where there is neither, loops run in one thread.

# Below this many multiply-adds, waking a thread costs more than it saves.
WORTH_SHARING = 100_000
# More parts than threads, so that one slow core does not hold up the others.
_PARTS_PER_THREAD = 4


def _address(library: str | None, name: str) -> int:
    """Address of a C function of a library, or of this process, or 0."""
    try:
        function = getattr(ctypes.CDLL(library), name)
    except (AttributeError, OSError, TypeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


# What torch's libraries hold on macOS and Windows has not been tried: there, neither is found.
_TORCH_LIBRARY = str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
_IN_TORCH = _address(_TORCH_LIBRARY, "torch_parallel_for")
_IN_OPENMP = _address(None, "GOMP_parallel")
# Machine code is made for one of the two.
_THROUGH_TORCH = bool(_IN_TORCH) and not _IN_OPENMP
POOL = _IN_TORCH if _THROUGH_TORCH else _IN_OPENMP
"""Address of the C function that runs a task on torch's threads, or 0."""


def threads_for(operations: int) -> int:
    """Threads for a loop of this many multiply-adds."""
    if operations < WORTH_SHARING or not POOL:
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
def _run_on_pool(
    typing_context: Any,
    pool: Any,
    threads: Any,
    loop: Any,
    arguments: Any,
    cuts: Any,
    counter: Any,
) -> Any:
    """Have the pool call `_work` in every one of its threads, and wait for all of them."""
    work = types.void(loop, arguments, cuts, counter)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer, half, whole = ir.IntType(8).as_pointer(), ir.IntType(32), ir.IntType(64)
        packed = cgutils.pack_struct(builder, values[2:])
        shared = builder.bitcast(cgutils.alloca_once_value(builder, packed), pointer)
        # The C function that the pool calls: it unpacks the shared values from its last argument.
        given = [whole, whole, pointer] if _THROUGH_TORCH else [pointer]
        name = builder.module.get_unique_name("weft_task")
        task = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), given), name)
        task.linkage = "internal"
        inside = ir.IRBuilder(task.append_basic_block("entry"))
        unpacked = inside.load(inside.bitcast(task.args[-1], packed.type.as_pointer()))
        body = context.compile_subroutine(builder, _work, work)
        context.call_internal_no_propagate(
            inside, body.fndesc, work, cgutils.unpack_tuple(inside, unpacked)
        )
        inside.ret_void()
        if _THROUGH_TORCH:
            # One number of 0:threads for each thread, which takes its turns whatever that is.
            kind = ir.FunctionType(half, [whole, whole, whole, task.type, pointer])
            passed = [whole(0), values[1], whole(1), task, shared]
        else:
            kind = ir.FunctionType(ir.VoidType(), [task.type, pointer, half, half])
            passed = [task, shared, builder.trunc(values[1], half), half(0)]
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), passed)
        return context.get_dummy_value()

    return types.void(pool, threads, loop, arguments, cuts, counter), generate


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
def share_rows(pool: int, threads: int, loop: Any, arguments: Any, offsets: Any, rows: int) -> None:
    """Call loop(*arguments, first, stop) over all rows; parts run side by side.

    For compiled functions that share several loops; others call SharedLoop.share.

    Args:
        pool: see `POOL`.
        threads: at most this many; 1 calls the loop directly.
        loop: compiled, named by its module (module.loop), or the caller could not be cached;
            computes the output rows first:stop and nothing else.
        arguments: tuple of what else it takes.
        offsets: int [rows + 1], CSR offsets that tell the work of a row; None if all are alike.
        rows: number of output rows.
    """
    if threads == 1:
        loop(*arguments, 0, rows)
    else:
        cuts = _cut_rows(offsets, rows, threads * _PARTS_PER_THREAD)
        _run_on_pool(pool, threads, loop, arguments, cuts, np.zeros(1, dtype=np.int64))


# -- Matrix products -------------------------------------------------------------------------------
#
# A product of some hundred rows is too small to be shared between threads, but a loop that is
# shared can do many of them, each in its own thread and cache: it calls torch's BLAS by its
# address.

_PRODUCTS = {torch.float32: "sgemm_", torch.float64: "dgemm_"}
# Found once, here: what asks for them may be traced by torch.compile.
_GEMM = {
    dtype: _address(_TORCH_LIBRARY, name) if sys.byteorder == "little" else 0
    for dtype, name in _PRODUCTS.items()
}


def gemm_address(dtype: torch.dtype) -> int:
    """Address of BLAS's product of this dtype (Fortran) in torch's library, or 0.

    Its integers may have 32 bits or 64: `gemm` gives 64, whose lower half comes first here.
    """
    return _GEMM.get(dtype, 0)


@intrinsic
def gemm(
    typing_context: Any,
    address: Any,
    transpose_a: Any,
    transpose_b: Any,
    m: Any,
    n: Any,
    k: Any,
    a: Any,
    b: Any,
    c: Any,
    add: Any,
) -> Any:
    """C [m, n] = A [m, k] @ B [k, n], plus C itself if `add`.

    The matrices are row-major arrays with unit column stride. `transpose_a` says that `a` is
    [k, m], `transpose_b` that `b` is [n, k].
    """
    number = c.dtype
    if not a.dtype == b.dtype == number or number not in (types.float32, types.float64):
        # It would read one as the other.
        raise TypingError(f"a product of {a.dtype} and {b.dtype} into {number}")
    flag, size = types.boolean, types.int64
    signature = types.void(size, flag, flag, size, size, size, a, b, c, flag)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        # BLAS has integers of 32 or 64 bits; a little-endian machine reads these as either.
        byte = ir.IntType(8)
        real = ir.FloatType() if number == types.float32 else ir.DoubleType()
        size = 4 if number == types.float32 else 8

        def place(value: Any) -> Any:
            return builder.bitcast(cgutils.alloca_once_value(builder, value), byte.as_pointer())

        def letter(flag: Any) -> Any:
            return place(builder.select(flag, byte(ord("T")), byte(ord("N"))))

        def matrix(index: int) -> tuple[Any, Any]:
            view = context.make_array(signature.args[index])(context, builder, values[index])
            rows = cgutils.unpack_tuple(builder, view.strides)[0]
            leading = builder.sdiv(rows, rows.type(size))
            # The stride of a single row may be anything, but BLAS wants a possible one.
            columns = cgutils.unpack_tuple(builder, view.shape)[1]
            short = builder.icmp_signed("<", leading, columns)
            leading = builder.select(short, columns, leading)
            data = builder.bitcast(view.data, byte.as_pointer())
            return data, place(leading)

        (a_data, a_lead), (b_data, b_lead), (c_data, c_lead) = matrix(6), matrix(7), matrix(8)
        m, n, k = (place(values[i]) for i in (3, 4, 5))
        one = place(real(1.0))
        beta = place(builder.select(values[9], real(1.0), real(0.0)))
        # Fortran is column-major, so it is told of Cᵀ = Bᵀ Aᵀ.
        arguments = [
            letter(values[2]), letter(values[1]), n, m, k, one,
            b_data, b_lead, a_data, a_lead, beta, c_data, c_lead,
        ]  # fmt: skip
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer()] * len(arguments))
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), arguments)
        return context.get_dummy_value()

    return signature, generate


# -- Instructions that Python has no word for ------------------------------------------------------


@intrinsic
def prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """Ask for the cache line of array[row, column]."""
    signature = types.void(array, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        strides = cgutils.unpack_tuple(builder, view.strides)
        byte_pointer, number = ir.PointerType(ir.IntType(8)), ir.IntType(32)
        address = builder.ptrtoint(view.data, strides[0].type)
        for place, stride in zip(arguments[1:], strides, strict=True):
            address = builder.add(address, builder.mul(place, stride))
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte_pointer, number, number, number]),
            "llvm.prefetch.p0",
        )
        read, keep, data = number(0), number(3), number(1)
        builder.call(function, [builder.inttoptr(address, byte_pointer), read, keep, data])
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def float_of_bits(typing_context: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def numbers_in_line(typing_context: Any, array: Any) -> Any:
    """How many numbers of an array a line of the cache holds, as a constant of the compiler's."""
    count = ir.Constant(ir.IntType(64), 512 // array.dtype.bitwidth)
    return types.intp(array), lambda *_: count


@intrinsic
def number_of(typing_context: Any, bits: Any) -> Any:
    """The number itself, or of an int16 the float32 whose upper half it is: a bfloat16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if bits != types.int16:
            return arguments[0]
        word = ir.IntType(32)
        upper = builder.shl(builder.zext(arguments[0], word), word(16))
        return builder.bitcast(upper, ir.FloatType())

    return (types.float32 if bits == types.int16 else bits)(bits), generate


@intrinsic(prefer_literal=True)
def stack_numbers(typing_context: Any, like: Any, count: Any) -> Any:
    """Pointer to `count` numbers like those of an array, on the stack; `count` is a constant.

    The compiler knows that these are apart from any array, so it need not ask at run time.
    """
    if not isinstance(count, types.IntegerLiteral):
        raise TypingError("the size of what is on the stack must be a constant")
    size = count.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = context.get_value_type(like.dtype)
        return cgutils.alloca_once(builder, number, size=ir.IntType(64)(size))

    return types.CPointer(like.dtype)(like, count), generate


@intrinsic
def _pointer_like(typing_context: Any, like: Any, address: Any) -> Any:
    """Pointer to numbers like those of an array, at this address."""
    kind = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[1], context.get_value_type(kind))

    return kind(like, types.int64), generate


@njit(nogil=True, inline="always")
def array_at(like: Any, address: int, count: int) -> Any:
    """The `count` numbers at this address, as an array of the dtype of `like`.

    A tensor's address costs a fraction of its array, which counts where a loop takes a hundred.
    """
    return numba.carray(_pointer_like(like, address), count)
