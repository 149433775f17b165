"""Source files of fused messages, which processes share."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from weft.kernels.message_code import _module

MODULES = 300
WRITE = f"""
from weft.kernels.message_code import _module
for number in range({MODULES}):
    assert _module(f"shared_{{number}}", f"VALUE = {{number}}").VALUE == number
"""


def test_processes_that_need_the_same_loops_at_once(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE], env=environment, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    errors = [writer.communicate()[1].decode() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], errors
    left = sorted(path.name for path in (tmp_path / "weft" / "messages").iterdir())
    assert left == sorted(f"shared_{number}.py" for number in range(MODULES))


@pytest.mark.parametrize("place", ["", "weft/messages"])
def test_a_cache_that_is_no_folder_is_done_without(place, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    occupied = cache / place
    occupied.parent.mkdir(parents=True, exist_ok=True)
    occupied.write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert _module("made_in_memory", "VALUE = 7").VALUE == 7
    assert occupied.read_text() == "a file"
