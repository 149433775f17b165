from __future__ import annotations

import json
import runpy
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from weft_lab.bench import runner, sparse
from weft_lab.bench.runner import FOLDER, Candidate


@pytest.fixture(autouse=True)
def _peers_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same result whether or not `make peers` was run in this checkout."""
    monkeypatch.setenv("WEFT_PEERS_PYTHON", sys.executable)


class InThisProcess:
    """A candidate served by the code that serves it in a process of its own."""

    def __init__(self, candidate: Candidate) -> None:
        self._lines: list[str] = []
        answers = runpy.run_path(str(FOLDER / "serve.py"))["answers"]
        self._replies = answers(*candidate.file_and_function, self._next_lines())

    def _next_lines(self) -> Iterator[str]:
        while True:
            yield self._lines.pop()

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self._lines.append(json.dumps(message))
        with warnings.catch_warnings():
            # What a peer warns of is an error in a test's process, not in one of its own.
            warnings.simplefilter("ignore")
            reply: dict[str, Any] = json.loads(json.dumps(next(self._replies)))
        return reply

    def stop(self) -> None:
        """Nothing runs."""


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates without processes of their own, which take seconds to load torch.

    How they are started and stopped is tested in test_runner.py, serve.py in test_peers.py, and
    a benchmark with all of it in tests/lab/commands/test_bench.py.
    """
    monkeypatch.setattr(runner, "_Process", InThisProcess)
    monkeypatch.setattr(sparse, "on_ranks", lambda function, *given: [function(*given)])
