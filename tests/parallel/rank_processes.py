"""Functions on several gloo ranks, started by a fork server that has torch in memory already."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

# Longer than any test takes on a busy machine, and shorter than what ranks of a run wait.
SECONDS = 300


def context():
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["torch._dynamo", "numba", "weft.parallel.network"])
    return server


def _rank(function, rank, ranks, port, seconds, connection, arguments):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    wait = timedelta(seconds=seconds)
    try:
        if ranks > 1:
            store = dist.TCPStore("127.0.0.1", port, ranks, is_master=False, timeout=wait)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=wait)
        answer = ("result", function(*arguments))
    except BaseException as error:
        answer = ("error", f"{type(error).__name__}: {error}", traceback.format_exc())
    # Not `send`, which would share tensors with a process that is about to end.
    connection.send_bytes(pickle.dumps(answer))
    connection.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def answers_of(ranks, function, *arguments, seconds=SECONDS):
    """What each rank answered: ("result", value), ("error", text, traceback) or ("died", code)."""
    server = context()
    # In this process, which has the port from the system: one that is only looked up may be taken
    # by another test before rank 0 comes to use it.
    store = dist.TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False)
    pipes, processes = [], []
    for rank in range(ranks):
        ours, theirs = server.Pipe(duplex=False)
        process = server.Process(
            target=_rank, args=(function, rank, ranks, store.port, seconds, theirs, arguments)
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


def results_of(ranks, function, *arguments):
    """The result of `function(*arguments)` on each rank."""
    answers = answers_of(ranks, function, *arguments)
    for rank, answer in enumerate(answers):
        assert answer[0] == "result", f"rank {rank}: {answer[-1]}"
    return [answer[1] for answer in answers]
