"""CandidateResults in processes of their own: in turn, and reported when they cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from weft_lab.bench.result import CandidateResult, CaseResult
from weft_lab.bench.runner import Candidate, peers_python, run_case

NOTES = """
import os, sys, time

print("a library that prints when it is imported")

def prepare(case):
    os.write(1, b"and one that writes to the descriptor\\n")
    def step():
        print("chatter")
        with open(case["notes"], "a") as notes:
            notes.write(f"{case['who']} {time.monotonic_ns()}\\n")
    return step, {"toy": "1.0", "setting": os.environ.get("TOY", "")}
"""


def script(folder: Path, name: str, text: str) -> str:
    """What a Candidate calls the script: its path without .py."""
    (folder / f"{name}.py").write_text(text)
    return str(folder / name)


def run(candidates: dict[str, Candidate], case: dict[str, Any], **options: Any) -> CaseResult:
    settings = {"rounds": 2, "steps": 1, "warmup": 0, **options}
    return run_case("toy", "a step", candidates, case, progress=Progress(disable=True), **settings)


def one(candidate: Candidate, **options: Any) -> CandidateResult:
    return run({"it": candidate}, {}, **options).candidates["it"]


def test_each_round_visits_everyone(tmp_path: Path) -> None:
    file, notes = script(tmp_path, "notes", NOTES), tmp_path / "notes.txt"
    names = ["a", "b", "c"]
    candidates = {who: Candidate(script=file, settings={"who": who}) for who in names}
    result = run(candidates, {"notes": str(notes)}, rounds=3, steps=2, warmup=1)
    lines = [line.split() for line in notes.read_text().splitlines()]
    assert [who for who, _ in lines] == names + 3 * ["a", "a", "b", "b", "c", "c"]
    times = [int(at) for _, at in lines]
    assert times == sorted(times)
    assert list(result.candidates) == names
    for candidate in result.candidates.values():
        # The warm-up is not among the samples.
        assert len(candidate.samples) == 6
        assert all(seconds > 0 for seconds in candidate.samples)
        assert candidate.versions["toy"] == "1.0"
        assert candidate.versions["python"] == sys.version.split()[0]
        assert candidate.absent == ""


def test_settings_and_environment_are_its_own(tmp_path: Path) -> None:
    file = script(tmp_path, "notes", NOTES)
    candidates = {
        "plain": Candidate(script=file, settings={"who": "p"}),
        "set": Candidate(script=file, settings={"who": "s"}, environment={"TOY": "yes"}),
    }
    result = run(candidates, {"notes": str(tmp_path / "n.txt")})
    assert [c.versions["setting"] for c in result.candidates.values()] == ["", "yes"]


def test_a_step_may_give_the_value_to_record(tmp_path: Path) -> None:
    text = "def prepare(case):\n    values = iter(range(9))\n    return lambda: next(values), {}\n"
    assert one(Candidate(script=script(tmp_path, "v", text)), steps=3).samples == [0, 1, 2, 3, 4, 5]


def test_a_missing_library_is_absent(tmp_path: Path) -> None:
    found = one(Candidate(script=script(tmp_path, "m", "import no_such_library\n")))
    assert found.absent == "No module named 'no_such_library'"
    assert found.samples == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def prepare(case):\n    raise RuntimeError('odd')\n", 1),
        ("import sys\nsys.exit(7)\n", 7),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", -11),
        ("def prepare(case):\n    return lambda: 1 / 0, {}\n", 1),
    ],
    ids=["raises", "exits", "crashes", "raises in a step"],
)
def test_a_failure_is_reported_with_its_exit_code(tmp_path: Path, text: str, code: int) -> None:
    good = Candidate(script=script(tmp_path, "good", "def prepare(case):\n    return int, {}\n"))
    bad = Candidate(script=script(tmp_path, "bad", text))
    result = run({"bad": bad, "good": good}, {})
    assert result.candidates["bad"].absent.startswith(f"failed with exit code {code};")
    assert "WEFT_BENCH_DEBUG=1" in result.candidates["bad"].absent
    assert result.candidates["bad"].samples == []
    assert result.candidates["good"].samples == [0, 0]


def test_what_it_measured_before_it_failed_is_left_out(tmp_path: Path) -> None:
    text = (
        "def prepare(case):\n    values = iter([1.0])\n"
        "    def step():\n        return next(values)\n    return step, {}\n"
    )
    found = one(Candidate(script=script(tmp_path, "once", text)))
    assert found.absent.startswith("failed with exit code 1")
    assert found.samples == []


def test_a_python_that_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_PEERS_PYTHON", "/bin/false")
    file = script(tmp_path, "good", "def prepare(case):\n    return int, {}\n")
    result = run({"peer": Candidate(script=file), "own": Candidate(script=file, peer=False)}, {})
    assert result.candidates["peer"].absent.startswith("failed with exit code 1")
    assert result.candidates["own"].samples == [0, 0]


def test_nobody_is_left_running(tmp_path: Path) -> None:
    text = "import os\ndef prepare(case):\n    return os.getpid, {}\n"
    found = one(Candidate(script=script(tmp_path, "pid", text)), rounds=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(found.samples[0]), 0)


@pytest.mark.parametrize("options", [{"rounds": 0}, {"steps": 0}])
def test_nothing_to_time(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="each must be at least 1"):
        run({}, {}, **options)


def test_the_peers_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WEFT_PEERS_PYTHON", raising=False)
    assert peers_python() == sys.executable
    local = tmp_path / ".venv-peers" / "bin" / "python"
    local.parent.mkdir(parents=True)
    local.touch()
    assert peers_python() == str(local)
    monkeypatch.setenv("WEFT_PEERS_PYTHON", "/opt/python")
    assert peers_python() == "/opt/python"


def test_a_peers_python_without_the_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setenv("WEFT_PEERS_PYTHON", str(tmp_path / "bare" / "bin" / "python"))
    peers = ("torch_geometric_steps:gcn", "torch_geometric_steps:batches", "jax_steps:batches")
    result = run({name: Candidate(script=name) for name in peers}, {})
    for candidate in result.candidates.values():
        assert candidate.absent.startswith("No module named ")
        assert candidate.median is None
