"""Runs one contestant of a benchmark: prepares it once, then times steps when told to.

Started as `python serve.py CONTESTANT.py` by whichever Python has the contestant's libraries, so
it uses the standard library alone. The contestant defines `prepare(case)`, which returns a step to
time and the versions. A step may return the value to record instead of its seconds, or details: a
dict with the number of "graphs" it worked on, which makes the sample seconds per graph, and
whatever else is to be kept beside its "seconds". Talks JSON lines: the case comes first, then
counts of steps.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from typing import Any


def main() -> None:
    """Serve until standard input closes."""
    # Libraries may print; only replies may reach the parent.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")

    case = json.loads(sys.stdin.readline())
    try:
        prepare = runpy.run_path(sys.argv[1])["prepare"]
        step, versions = prepare(case)
    except ImportError as error:
        reply({"absent": f"{error}"})
        return
    for _ in range(case["warmup"]):
        step()
    reply({"versions": {"python": sys.version.split()[0], **versions}})
    for line in sys.stdin:
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
        reply({"samples": samples, **({"details": details} if details else {})})


if __name__ == "__main__":
    main()
