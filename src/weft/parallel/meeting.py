"""Ranks that come at different times: rank 0 says whom it waits for, and that all run the same.

They meet at the store of torch's rendezvous, before any collective: a rank that is late, missing
or has another version of weft or torch is named on every rank, where a collective would hang.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist

# Its functions have the default group of the moment of their import as a default argument, and
# would keep it, with its threads, until the process ends: imported now, there is none.
import torch.distributed.nn.functional
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

import weft
from weft.errors import DataError

# Ranks usually come within seconds; who waits longer wants to know for whom.
_QUIET_SECONDS = 5.0
_TELL_SECONDS = 10.0
_POLL_SECONDS = 0.1
_LAST_WORDS_SECONDS = 2.0
# How many of the missing are named.
_NAMED = 8
_meetings = count()
_Tell = Callable[[str], object]


def versions() -> dict[str, str]:
    """What has to be the same on all hosts."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"weft": weft.__version__, "torch": str(torch.__version__), "python": python}


def meet(timeout: timedelta, tell: _Tell | None = None) -> None:
    """Join the default group of gloo, through the environment of torchrun, when all are there.

    Args:
        timeout: what a rank waits for another at most, now and later.
        tell: takes a sentence of rank 0 about ranks that it waits for.

    Raises:
        DataError: on every rank: some have not joined in time, or have other versions.
    """
    store, rank, ranks = next(rendezvous("env://", timeout=timeout))
    store.set_timeout(timeout)
    _check_in(store, rank, ranks, f"join-{next(_meetings)}", "join", timeout, tell)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timeout)


def check_in(what: str, timeout: timedelta, tell: _Tell | None = None) -> None:
    """Wait, as one of the ranks of the default group, till all of them have done `what`.

    Arguments and errors as of `meet`.
    """
    store, rank, ranks = _default_store(), dist.get_rank(), dist.get_world_size()
    _check_in(store, rank, ranks, f"{what}-{next(_meetings)}", what, timeout, tell)


def _default_store() -> Store:
    store: Store = dist.distributed_c10d._get_default_store()
    return store


def _check_in(
    store: Store,
    rank: int,
    ranks: int,
    key: str,
    what: str,
    timeout: timedelta,
    tell: _Tell | None,
) -> None:
    """Say that this rank is there; rank 0 waits for all others and says what it found."""
    host = os.environ.get("HOSTNAME") or platform.node()
    store.set(f"weft/{key}/{rank}", json.dumps({"host": host, **versions()}))
    verdict = f"weft/{key}/verdict"
    if rank == 0:
        store.set(verdict, _judge(store, ranks, key, what, timeout.total_seconds(), tell))
    try:
        store.wait([verdict], timeout)
    except RuntimeError:
        raise DataError(
            f"rank {rank} has waited {timeout.total_seconds():g} s for rank 0 to {what}; see its "
            "message, or raise --timeout"
        ) from None
    said = store.get(verdict).decode()
    if said:
        if rank == 0:
            # The store may be in this process, and the others have to read why they stop.
            time.sleep(_LAST_WORDS_SECONDS)
        raise DataError(said)


def _judge(
    store: Store, ranks: int, key: str, what: str, seconds: float, tell: _Tell | None
) -> str:
    """Wait for all ranks; what is wrong with them, or nothing."""
    began, told = time.monotonic(), -float("inf")
    missing, known = list(range(ranks)), {}
    while True:
        here = [rank for rank in missing if store.check([f"weft/{key}/{rank}"])]
        for rank in here:
            known[rank] = json.loads(store.get(f"weft/{key}/{rank}"))
        missing = [rank for rank in missing if rank not in known]
        if not missing:
            return _differing(known)
        waited = time.monotonic() - began
        names = ", ".join(map(str, missing[:_NAMED])) + (", ..." if missing[_NAMED:] else "")
        if waited > seconds:
            return (
                f"{len(missing)} of {ranks} ranks did not {what} within {seconds:g} s: {names}; "
                "see whether their hosts have started, or raise --timeout"
            )
        if tell is not None and waited > _QUIET_SECONDS and waited - told > _TELL_SECONDS:
            told = waited
            tell(
                f"waiting for {len(missing)} of {ranks} ranks to {what}: {names} ({waited:.0f} s "
                f"of {seconds:.0f} s)"
            )
        time.sleep(_POLL_SECONDS)


def _differing(known: dict[int, dict[str, str]]) -> str:
    """Which rank has another version than rank 0, of what; nothing where all are alike."""
    first = known[0]
    for rank, own in sorted(known.items()):
        for name in versions():
            if own.get(name) != first.get(name):
                return (
                    f"rank {rank} on {own['host']} has {name} {own.get(name)}, rank 0 on "
                    f"{first['host']} has {first.get(name)}; install the same on all hosts"
                )
    return ""
