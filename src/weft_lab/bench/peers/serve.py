"""Runs one candidate of a benchmark: prepares it once, then times steps when told to.

Started as `python serve.py FILE.py FUNCTION` by whichever Python has the candidate's libraries, so
it uses the standard library alone. The function takes the case, and returns a step to time and the
versions. A step may return the value to record instead of its seconds, or details: a
dict with the number of "graphs" it worked on, which makes the sample seconds per graph, and
whatever else is to be kept beside its "seconds". Talks JSON lines: the case comes first, then
counts of steps.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def answers(file: str, function: str, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """A reply to each line: to the first, which is the case, and to each count of steps."""
    lines = iter(lines)
    case = json.loads(next(lines))
    try:
        prepare = getattr(_module(file), function)
        step, versions = prepare(case)
    except ImportError as error:
        yield {"absent": f"{error}"}
        return
    held = _memory("VmRSS")
    for _ in range(case["warmup"]):
        step()
    yield {"versions": {"python": sys.version.split()[0], **versions}, "data_bytes": held}
    for line in lines:
        samples, details = [], []
        for _ in range(json.loads(line)["steps"]):
            start = time.perf_counter()
            value = step()
            seconds = time.perf_counter() - start
            if isinstance(value, dict):
                details.append({"seconds": seconds, **value})
                samples.append(seconds / value["graphs"])
            else:
                samples.append(seconds if value is None else value)
        answer = {"samples": samples, "peak_bytes": _memory("VmHWM")}
        yield {**answer, **({"details": details} if details else {})}


def _memory(name: str) -> int:
    """A field of this process's status, bytes; 0 where the system does not tell."""
    # getrusage would count the process that started this one as well.
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    lines = (line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(next(lines, f"{name}: 0").split()[1]) * 1024


def _module(file: str) -> Any:
    """The file as a module by its name, which libraries that inspect classes look for."""
    name = Path(file).stem
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Serve until standard input closes."""
    # Libraries may print; only replies may reach the parent.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for answer in answers(sys.argv[1], sys.argv[2], sys.stdin):
        replies.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
