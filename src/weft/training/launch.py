"""Starts ranks of a function on this machine, and starts them again where one has been killed."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from weft.errors import DataError
from weft.parallel.world import FirstFailed
from weft.training.hardware import cores
from weft.training.stopping import (
    SIGNALS,
    handlers_kept,
    heard_signals,
    leave_lost_terminal,
    terminals,
    was_asked_to_stop,
)

# Long enough for a busy machine; nothing waits so long where all goes well.
_START_SECONDS = 600
_MONITOR_SECONDS = 0.1
# How long a rank that only misses another one waits before it ends: the one at fault goes first,
# also where the launcher comes late to look. The launcher ends it meanwhile.
_PEER_LOST_SECONDS = 5.0
# What a rank that was told to stop may take to end.
_STOP_SECONDS = 2.0
# What a rank may take to end by itself when the process that started it is gone.
_ORPHAN_SECONDS = 60.0
_PEER_LOST_WORDS = (
    "closed by peer",
    "reset by peer",
    "broken pipe",
    "timed out",
    "timeout",
    "gloo",
)
# What every rank would load sooner or later: once for all of them instead.
_PRELOADED = ("weft.training.launch", "torch._dynamo", "torch.utils.tensorboard")
_LOGGERS = ("torch.distributed.elastic", "torch.multiprocessing.spawn")
# Where in torch's source an error was raised, before its text.
_PLACE = re.compile(r"^\[[^\]]*\]\s*")


class RankError(DataError):
    """A rank has ended before its work was done; the message names it and says how."""


class LaunchStopped(Exception):
    """The launcher was asked to stop, and its ranks have stopped.

    Attributes:
        signal: name of the signal that came.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"interrupted by {name}")
        self.signal = name


class UserError(Exception):
    """A user error that a rank has met: no restart would help."""


class PeerLost(Exception):
    """A rank could not go on since another one is gone or does not answer."""


def is_a_rank() -> bool:
    """Whether torchrun, or `launch`, has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def launch(
    function: Callable[..., Any],
    arguments: tuple[Any, ...] = (),
    *,
    ranks: int,
    logs: Path,
    max_restarts: int = 0,
    again: Callable[[], str] = lambda: "the beginning",
    tell: Callable[[str], object] = lambda text: None,
) -> list[Any]:
    """Run `function(*arguments)` in `ranks` processes of this machine, joined by torch's elastic.

    Each finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, as under torchrun,
    and has its share of the cores. What rank 0 prints goes where this process prints; what the
    others print, and every traceback, to `logs`/rank-N.log. Where a rank ends too early, the
    others are ended within half a minute, and all are started again, unless it was a user error (a
    ValueError) that would only happen again.

    Args:
        function: importable by name: it is called in new processes.
        arguments: its arguments, to be pickled.
        ranks: how many.
        logs: folder for what they write; it is made.
        max_restarts: how often to start them again at most.
        again: says from where they will go on, such as `epoch 40`.
        tell: takes a sentence for the user about each restart.

    Returns:
        What the function gave, by rank.

    Raises:
        DataError: a rank met a user error; its words, and its number.
        RankError: a rank failed for good; the sentence names the rank, its signal or exit code,
            and its own words.
        LaunchStopped: SIGINT, SIGTERM or SIGHUP came; the ranks have ended.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; it must be at least 1")
    if max_restarts < 0:
        raise ValueError(f"max_restarts is {max_restarts}; it must be at least 0")
    logs.mkdir(parents=True, exist_ok=True)
    for attempt in range(max_restarts + 1):
        try:
            return _attempt(function, arguments, ranks, logs)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            what, hopeless = _words(rank, failure)
        if hopeless:
            raise DataError(what)
        if attempt == max_restarts:
            tried = f", also after {attempt} restarts" if attempt else ""
            raise RankError(f"{what}{tried}; the ranks' logs are in {logs}")
        tell(f"{what}; restarting from {again()} ({attempt + 1} of {max_restarts})")
    raise AssertionError


def _attempt(
    function: Callable[..., Any], arguments: tuple[Any, ...], ranks: int, logs: Path
) -> list[Any]:
    start_method = "spawn"
    if has_fork_server():
        # A rank is then a fork of a process that has torch loaded: milliseconds, not seconds.
        start_method = "forkserver"
        start_fork_server(*_PRELOADED, function.__module__)
    shown, hears = terminals(), heard_signals()
    with TemporaryDirectory(prefix="weft-launch-") as errors:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            rdzv_configs={"timeout": _START_SECONDS},
            local_addr="127.0.0.1",
            # Restarts are counted by `launch`, which knows when one is of no use.
            max_restarts=0,
            monitor_interval=_MONITOR_SECONDS,
            start_method=start_method,
            logs_specs=DefaultLogsSpecs(log_dir=errors),
            signals_to_handle=",".join([*hears, "SIGQUIT"]),
        )
        threads = max(1, cores() // ranks)
        task = (function, arguments, str(logs), threads, "SIGHUP" in hears)
        with handlers_kept((*SIGNALS, "SIGQUIT")), _elastic_logged(logs / "launcher.log"):
            try:
                found = elastic_launch(config, run_rank)(*task)
            except SignalException as stop:
                leave_lost_terminal(shown)
                raise LaunchStopped(stop.sigval.name) from None
    return [found[rank] for rank in range(ranks)]


def has_fork_server() -> bool:
    """Whether new processes can be forks of one that has torch loaded."""
    # Elsewhere than on Linux the system's libraries may not survive a fork, once loaded.
    return sys.platform == "linux" and "forkserver" in multiprocessing.get_all_start_methods()


def start_fork_server(*modules: str) -> None:
    """Start, unless it runs, the process that new ones are forked from, with `modules` loaded.

    A closed terminal does not end it: it reports whether its children are alive.
    """
    from multiprocessing import forkserver

    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
    with handlers_kept(["SIGHUP"]) as may_set:
        if may_set:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        forkserver.ensure_running()


def _words(rank: int, failure: ProcessFailure) -> tuple[str, bool]:
    """What happened to a rank, for people, and whether it would happen again."""
    if failure.exitcode < 0:
        name = failure.signal_name()
        hint = " (the system does this when memory runs out)" if name == "SIGKILL" else ""
        return f"rank {rank} was killed by {name}{hint}", False
    message: Any = failure.message
    if not isinstance(message, dict):
        return f"rank {rank} ended with exit code {failure.exitcode}", False
    kind, _, text = str(message.get("message", "")).partition(": ")
    first = _first_line(text)
    if kind == UserError.__name__:
        return f"rank {rank}: {text}", True
    if kind == PeerLost.__name__:
        return f"rank {rank} could not reach another rank: {first}", False
    return f"rank {rank} failed with {kind}: {first}", False


def _first_line(text: str) -> str:
    return _PLACE.sub("", text.strip().split("\n")[0])


def run_rank(
    function: Callable[..., Any], arguments: tuple[Any, ...], logs: str, threads: int, hangup: bool
) -> Any:
    """What a rank's process does: its own share of the cores, its own log, then the function."""
    rank = int(os.environ["RANK"])
    if hasattr(signal, "SIGHUP"):
        # As it was for the launcher: the server that this is a fork of ignores it.
        signal.signal(signal.SIGHUP, signal.SIG_DFL if hangup else signal.SIG_IGN)
    _in_background(_end_with_launcher)
    torch.set_num_threads(threads)
    if sys.platform == "linux" and any(name == "lo" for _, name in socket.if_nameindex()):
        # By the machine's name gloo may find an address that leads nowhere.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Closed below: on a full disk that fails too, and must not hide the rank's own error.
    log = Path(logs, f"rank-{rank}.log").open("a", buffering=1, encoding="utf-8")  # noqa: SIM115
    if rank > 0:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        return function(*arguments)
    except Exception as error:
        # The disk may be full: that is then what the error says.
        with suppress(OSError):
            traceback.print_exc(file=log)
        if _is_peer_lost(error):
            time.sleep(_PEER_LOST_SECONDS)
            raise PeerLost(str(error)) from error
        if isinstance(error, ValueError):
            raise UserError(str(error)) from error
        raise
    finally:
        with suppress(OSError):
            log.close()
        if was_asked_to_stop():
            # The launcher that stops reads no answers any more, and torch would wait for that.
            _in_background(_end_later, _STOP_SECONDS)


def _is_peer_lost(error: Exception) -> bool:
    if isinstance(error, dist.DistError | FirstFailed):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _PEER_LOST_WORDS)


@contextmanager
def lost_ranks_named() -> Iterator[None]:
    """Raise one sentence, in a rank of torchrun, where another rank is gone or does not answer."""
    try:
        yield
    except Exception as error:
        if not (is_a_rank() and _is_peer_lost(error)):
            raise
        raise RankError(
            f"rank {os.environ['RANK']} could not reach another rank: {_first_line(str(error))}"
        ) from error


def _end_with_launcher() -> None:
    """Ask this process to stop when the one that started it is gone, then end it."""
    launcher = multiprocessing.parent_process()
    if launcher is not None:
        launcher.join()
        os.kill(os.getpid(), signal.SIGTERM)
        _end_later(_ORPHAN_SECONDS)


def _end_later(seconds: float) -> None:
    time.sleep(seconds)
    os._exit(1)


def _in_background(function: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


class _Log(logging.FileHandler):
    """A log that a full disk leaves incomplete: what ended the ranks is said in any case."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say nothing."""


@contextmanager
def _elastic_logged(path: Path) -> Iterator[None]:
    """Send what the elastic agent reports to a file: the user gets one sentence instead."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    handler = _Log(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in zip(loggers, before, strict=True):
            logger.propagate = propagate
            logger.removeHandler(handler)
        with suppress(OSError):
            handler.close()
