"""Functions on several gloo ranks, started by a fork server that has torch in memory already."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import pickle
import socket
import struct
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

# Longer than any test takes on a busy machine, and shorter than what ranks of a run wait.
SECONDS = 300
# Nothing else runs in a network namespace of its own.
_FREE_PORT = 29500


def context():
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["torch._dynamo", "numba", "weft.parallel.network"])
    return server


def _enter(pid):
    """Move this process into the namespace that another holds open, and make it usable."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Both are opened first: they cannot be from the inside.
    spaces = Path(f"/proc/{pid}/ns")
    with (spaces / "user").open() as user, (spaces / "net").open() as net:
        for file in (user, net):
            if libc.setns(file.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"cannot enter {file.name}")
    up, set_flags = 1, 0x8914
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", up))
    # The host's name means an address that is not in here.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def _rank(function, rank, ranks, port, seconds, namespace, connection, arguments):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    wait = timedelta(seconds=seconds)
    try:
        if namespace is not None:
            # Only a process of one thread may move, and what was imported may have started some.
            child = os.fork()
            if child:
                os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            _enter(namespace)
        if ranks > 1:
            hosts = namespace is not None and rank == 0
            store = dist.TCPStore("127.0.0.1", port, ranks, is_master=hosts, timeout=wait)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=wait)
        answer = ("result", function(*arguments))
    except BaseException as error:
        answer = ("error", f"{type(error).__name__}: {error}", traceback.format_exc())
    # Not `send`, which would share tensors with a process that is about to end.
    connection.send_bytes(pickle.dumps(answer))
    connection.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def answers_of(ranks, function, *arguments, seconds=SECONDS, namespace=None):
    """What each rank answered: ("result", value), ("error", text, traceback) or ("died", code).

    With `namespace`, a process id, the ranks talk in the network namespace of that process.
    """
    server, port = context(), _FREE_PORT
    if namespace is None:
        # In this process, which has the port from the system: one that is only looked up may be
        # taken by another test before rank 0 comes to use it.
        store = dist.TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False)
        port = store.port
    pipes, processes = [], []
    for rank in range(ranks):
        ours, theirs = server.Pipe(duplex=False)
        process = server.Process(
            target=_rank,
            args=(function, rank, ranks, port, seconds, namespace, theirs, arguments),
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    end = time.monotonic() + seconds + 30
    answers = []
    for rank, (pipe, process) in enumerate(zip(pipes, processes, strict=True)):
        try:
            assert pipe.poll(max(0.1, end - time.monotonic())), f"rank {rank} did not answer"
            answers.append(pickle.loads(pipe.recv_bytes()))
        except EOFError:
            process.join(SECONDS)
            answers.append(("died", process.exitcode))
    for process in processes:
        process.join(SECONDS)
        assert process.exitcode is not None, "a rank did not end"
    return answers


def results_of(ranks, function, *arguments, namespace=None):
    """The result of `function(*arguments)` on each rank."""
    answers = answers_of(ranks, function, *arguments, namespace=namespace)
    for rank, answer in enumerate(answers):
        assert answer[0] == "result", f"rank {rank}: {answer[-1]}"
    return [answer[1] for answer in answers]
