"""Takes turns between contenders: each its own process, asleep while another is timed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import Progress

from weft_lab.bench.result import CaseResult, Contender

_FOLDER = Path(__file__).parent / "contestants"
# Generous: a contender may compile for minutes, but a stuck one must not hang the benchmark.
_PATIENCE_SECONDS = 900.0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One contender: the file in contestants/ that runs it, and its settings.

    Attributes:
        script: file name without .py.
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


def peers_python() -> str:
    """The peers' Python: $WEFT_PEERS_PYTHON, else .venv-peers here (`make peers`), else ours."""
    given = os.environ.get("WEFT_PEERS_PYTHON")
    local = Path.cwd() / ".venv-peers" / "bin" / "python"
    return given or (str(local) if local.exists() else sys.executable)


class _Worker:
    def __init__(self, name: str, entry: Entry) -> None:
        self.name, self.settings = name, entry.settings
        python = peers_python() if entry.peer else sys.executable
        self.process = subprocess.Popen(  # noqa: S603
            [python, str(_FOLDER / "serve.py"), str(_FOLDER / f"{entry.script}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if not os.environ.get("WEFT_BENCH_DEBUG") else None,
            text=True,
            env={**os.environ, **entry.environment},
        )
        self.versions: dict[str, str] = {}
        self.samples: list[float] = []
        self.details: list[dict[str, float]] = []
        self.absent, self.failed = "", False
        self.against = entry.against

    def prepare(self, case: Mapping[str, Any]) -> None:
        answer = self.ask({**case, **self.settings})
        self.note(answer)
        self.versions = answer.get("versions", {})

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self.ended()
        if not select.select([self.process.stdout], [], [], _PATIENCE_SECONDS)[0]:
            self.process.kill()  # or it would disturb the others' times
            return {"absent": f"no answer within {_PATIENCE_SECONDS:.0f} s", "failed": True}
        line = self.process.stdout.readline()
        if not line:
            return self.ended()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def note(self, answer: Mapping[str, Any]) -> None:
        self.absent, self.failed = answer.get("absent", ""), answer.get("failed", False)

    def ended(self) -> dict[str, Any]:
        code = self.process.wait()
        why = f"failed with exit code {code}; WEFT_BENCH_DEBUG=1 shows why"
        return {"absent": why, "failed": True}

    def sample(self, steps: int) -> None:
        answer = self.ask({"steps": steps})
        self.note(answer)
        self.samples += answer.get("samples", [])
        self.details += answer.get("details", [])

    def stop(self) -> None:
        self.process.kill()
        with suppress(BrokenPipeError):  # a word it died too early to read
            self.process.communicate()


def run_case(
    name: str,
    what: str,
    entries: Mapping[str, Entry],
    case: Mapping[str, Any],
    *,
    rounds: int,
    steps: int,
    warmup: int,
    progress: Progress,
    unit: str = "s",
) -> CaseResult:
    """Time all contenders in turn, `rounds` times `steps` steps each, in one run.

    Noise of the machine hits all alike because each round visits everyone.
    """
    if rounds < 1 or steps < 1:
        raise ValueError(f"{rounds} rounds of {steps} steps time nothing; each must be at least 1")
    task = progress.add_task(f"{name}: preparing", total=len(entries) + rounds)
    workers: list[_Worker] = []
    with ExitStack() as stack:
        for label, entry in entries.items():
            progress.update(task, description=f"{name}: preparing {label}")
            worker = _Worker(label, entry)
            stack.callback(worker.stop)
            worker.prepare({**case, "warmup": warmup})
            workers.append(worker)
            progress.advance(task)
        for _ in range(rounds):
            for worker in workers:
                if not worker.absent:
                    progress.update(task, description=f"{name}: timing {worker.name}")
                    worker.sample(steps)
            progress.advance(task)
    progress.update(task, description=name)
    return CaseResult(case=name, what=what, unit=unit, contenders=_contenders(workers))


def _contenders(workers: Sequence[_Worker]) -> dict[str, Contender]:
    return {
        w.name: Contender(
            samples=[] if w.absent else w.samples,
            versions=w.versions,
            absent=w.absent,
            failed=w.failed,
            against=list(w.against),
            details=[] if w.absent else w.details,
        )
        for w in workers
    }
