"""Takes turns between candidates: each its own process, asleep while another is timed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import Progress

from weft_lab.bench.result import CandidateResult, CaseResult

FOLDER = Path(__file__).parent / "peers"
# Generous: a candidate may compile for minutes, but a stuck one must not hang the benchmark.
_PATIENCE_SECONDS = 900.0


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What runs a candidate: a function of a file in peers/, and its settings.

    Attributes:
        script: the file without .py and, after a colon, the function; `prepare` by default.
        peer: runs in the peers' environment where there is one.
        settings: passed to the script with the case.
        environment: environment variables of its process.
        against: which of ours it is compared with; all of them without it.
    """

    script: str
    peer: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    against: tuple[str, ...] = ()

    @property
    def file_and_function(self) -> tuple[str, str]:
        """The path of the file, and the name of the function in it."""
        file, _, function = self.script.partition(":")
        return str(FOLDER / f"{file}.py"), function or "prepare"


def peers_python() -> str:
    """The peers' Python: $WEFT_PEERS_PYTHON, else .venv-peers here (`make peers`), else ours."""
    given = os.environ.get("WEFT_PEERS_PYTHON")
    local = Path.cwd() / ".venv-peers" / "bin" / "python"
    return given or (str(local) if local.exists() else sys.executable)


class _Process:
    """A candidate in a process of its own, which answers JSON lines; see peers/serve.py."""

    def __init__(self, candidate: Candidate) -> None:
        python = peers_python() if candidate.peer else sys.executable
        self._process = subprocess.Popen(  # noqa: S603
            [python, str(FOLDER / "serve.py"), *candidate.file_and_function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if not os.environ.get("WEFT_BENCH_DEBUG") else None,
            text=True,
            env={**os.environ, **candidate.environment},
        )

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        if not select.select([self._process.stdout], [], [], _PATIENCE_SECONDS)[0]:
            self._process.kill()  # or it would disturb the others' times
            return {"absent": f"no answer within {_PATIENCE_SECONDS:.0f} s", "failed": True}
        line = self._process.stdout.readline()
        if not line:
            return self._ended()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _ended(self) -> dict[str, Any]:
        code = self._process.wait()
        why = f"failed with exit code {code}; WEFT_BENCH_DEBUG=1 shows why"
        return {"absent": why, "failed": True}

    def stop(self) -> None:
        self._process.kill()
        with suppress(BrokenPipeError):  # a word it died too early to read
            self._process.communicate()


class _Worker:
    """A candidate that is timed, with what it has measured so far."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate, self._process = candidate, _Process(candidate)
        self._samples: list[float] = []
        self._details: list[dict[str, float]] = []
        self._versions: dict[str, str] = {}
        self.absent, self._failed = "", False

    def prepare(self, case: Mapping[str, Any]) -> None:
        self._versions = self._ask({**case, **self._candidate.settings}).get("versions", {})

    def sample(self, steps: int) -> None:
        answer = self._ask({"steps": steps})
        self._samples += answer.get("samples", [])
        self._details += answer.get("details", [])

    def stop(self) -> None:
        self._process.stop()

    def result(self) -> CandidateResult:
        return CandidateResult(
            samples=[] if self.absent else self._samples,
            versions=self._versions,
            absent=self.absent,
            failed=self._failed,
            against=list(self._candidate.against),
            details=[] if self.absent else self._details,
        )

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._process.ask(message)
        self.absent, self._failed = answer.get("absent", ""), answer.get("failed", False)
        return answer


def run_case(
    name: str,
    what: str,
    candidates: Mapping[str, Candidate],
    case: Mapping[str, Any],
    *,
    rounds: int,
    steps: int,
    warmup: int,
    progress: Progress,
    unit: str = "s",
) -> CaseResult:
    """Time all candidates in turn, `rounds` times `steps` steps each, in one run.

    Noise of the machine hits all alike because each round visits everyone.
    """
    if rounds < 1 or steps < 1:
        raise ValueError(f"{rounds} rounds of {steps} steps time nothing; each must be at least 1")
    task = progress.add_task(f"{name}: preparing", total=len(candidates) + rounds)
    workers: dict[str, _Worker] = {}
    with ExitStack() as stack:
        for label, candidate in candidates.items():
            progress.update(task, description=f"{name}: preparing {label}")
            workers[label] = _Worker(candidate)
            stack.callback(workers[label].stop)
            workers[label].prepare({**case, "warmup": warmup})
            progress.advance(task)
        for _ in range(rounds):
            for label, worker in workers.items():
                if not worker.absent:
                    progress.update(task, description=f"{name}: timing {label}")
                    worker.sample(steps)
            progress.advance(task)
    progress.update(task, description=name)
    results = {label: worker.result() for label, worker in workers.items()}
    return CaseResult(case=name, what=what, unit=unit, candidates=results)
