"""What the kernel counts while ranks talk, in a network namespace where nobody else does."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

# Bytes of a packet on the loopback interface that are not its load: Ethernet, IPv4, TCP with times.
_HEADERS = 14 + 20 + 32
# Of Linux's struct tcp_info: where tcpi_bytes_received and tcpi_bytes_retrans are, and its size.
_RECEIVED, _SENT_AGAIN, _TCP_INFO = 128, 208, 256


@contextmanager
def namespace():
    """The process that holds a namespace open; the test is skipped where none can be made."""
    try:
        holder = subprocess.Popen(
            ["unshare", "--map-root-user", "--net", "sh", "-c", "echo made && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError:
        pytest.skip("unshare of util-linux is not installed")
    with holder:
        if not holder.stdout.readline():
            pytest.skip(f"no network namespace here: {holder.stderr.read().decode().strip()}")
        yield holder.pid


def loopback_bytes():
    """What the packets have carried that went through this namespace's loopback interface."""
    text = Path("/proc/self/net/dev").read_text(encoding="utf-8")
    size, packets = text.partition("lo:")[2].split()[:2]
    return int(size) - _HEADERS * int(packets)


def socket_bytes():
    """What the TCP connections of this process have received so far, and what they sent twice.

    A busy machine acknowledges late, and the kernel then sends a segment again in vain.
    """
    received = sent_again = 0
    for file in Path("/proc/self/fd").iterdir():
        # The folder's own descriptor is closed by now.
        if not file.is_socket():
            continue
        copy = os.dup(int(file.name))
        with socket.socket(fileno=copy) as connection:
            if connection.family == socket.AF_UNIX:
                continue
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO)
        received += struct.unpack_from("Q", info, _RECEIVED)[0]
        sent_again += struct.unpack_from("Q", info, _SENT_AGAIN)[0]
    return received, sent_again


def carried(recorder, work):
    """What `work` on all ranks brought this one: its events, its sockets' and the wire's bytes.

    Nothing else may talk meanwhile. The barriers' own bytes, some hundred, are in the counts.
    """
    work()  # Connections are made.
    recorder.clear()
    dist.barrier()
    before = np.array([*socket_bytes(), loopback_bytes()])
    dist.barrier()
    work()
    dist.barrier()
    change = np.array([*socket_bytes(), loopback_bytes()]) - before
    events = list(recorder.events)
    dist.barrier()
    return events, *change.tolist()


def assert_carried(answers, what):
    """Within 1 %, every rank received what it recorded, and all of them what the wire carried."""
    events, received, sent_again, wire = zip(*answers, strict=True)
    recorded = [sum(event.bytes for event in each) for each in events]
    found = (what, recorded, received, sent_again, wire)
    # A rank that receives nothing still hears that the others are there.
    near = max(recorded) / 100
    assert list(received) == pytest.approx(recorded, rel=0.01, abs=near), found
    assert wire[0] - sum(sent_again) == pytest.approx(sum(recorded), rel=0.01), found
