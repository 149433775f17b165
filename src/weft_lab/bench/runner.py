"""Takes turns between candidates: each its own process, asleep while another is timed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
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


def ours(function: str, **settings: Any) -> Candidate:
    """A function of weft_steps.py, in this Python."""
    return Candidate(script=f"weft_steps:{function}", peer=False, settings=settings)


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


def _with_answer(before: CandidateResult, answer: Mapping[str, Any]) -> CandidateResult:
    """`before` and what was measured since; nothing of a candidate that could not go on."""
    if why := answer.get("absent"):
        failed = answer.get("failed", False)
        return replace(before, samples=[], details=[], absent=why, failed=failed)
    return replace(
        before,
        samples=before.samples + answer.get("samples", []),
        details=before.details + answer.get("details", []),
        versions=answer.get("versions", before.versions),
        peak_bytes=answer.get("peak_bytes", before.peak_bytes),
        data_bytes=answer.get("data_bytes", before.data_bytes),
    )


def run_case(
    name: str,
    what: str,
    candidates: Mapping[str, Candidate],
    case: Mapping[str, Any],
    *,
    rounds: int,
    steps: int = 1,
    warmup: int = 0,
    progress: Progress,
    unit: str = "s",
) -> CaseResult:
    """Time all candidates in turn, `rounds` times `steps` steps each, in one run.

    Noise of the machine hits all alike because each round visits everyone.
    """
    if rounds < 1 or steps < 1:
        raise ValueError(f"{rounds} rounds of {steps} steps time nothing; each must be at least 1")
    task = progress.add_task(f"{name}: preparing", total=len(candidates) + rounds)
    processes: dict[str, _Process] = {}
    found: dict[str, CandidateResult] = {}
    with ExitStack() as stack:
        for label, candidate in candidates.items():
            progress.update(task, description=f"{name}: preparing {label}")
            processes[label] = _Process(candidate)
            stack.callback(processes[label].stop)
            answer = processes[label].ask({**case, "warmup": warmup, **candidate.settings})
            found[label] = _with_answer(CandidateResult(against=list(candidate.against)), answer)
            progress.advance(task)
        for _ in range(rounds):
            for label, process in processes.items():
                if not found[label].absent:
                    progress.update(task, description=f"{name}: timing {label}")
                    found[label] = _with_answer(found[label], process.ask({"steps": steps}))
            progress.advance(task)
    progress.update(task, description=name)
    return CaseResult(case=name, what=what, unit=unit, candidates=found)
