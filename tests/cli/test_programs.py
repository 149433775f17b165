"""`weft train programs` and `weft predict RUN FILE.py`."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from weft.training import read_metrics

FUNCTION = """
def {verb}_{number}(first, second):
    total = first + second
    return total
"""
WRONG = """def add(first, second):
    total = first + first
    return total
"""
SMALL = ("--hidden", "8", "--steps", "2", "--nodes", "256", "--quiet")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder of Python files."""
    folder = tmp_path / "code"
    folder.mkdir()
    for file in range(12):
        verbs = ("add", "sum", "join")
        text = "".join(FUNCTION.format(verb=verb, number=file) for verb in verbs)
        (folder / f"part{file}.py").write_text(text)
    return folder


@pytest.fixture
def run(weft: Callable[..., Any], tmp_path: Path, code: Path) -> Path:
    """A run on that code."""
    words = ("--data", "code", "--target", "slot", "--epochs", "1", "--out", "run", *SMALL)
    said = weft("train", "programs", *words)
    assert said.code == 0, said.err
    (tmp_path / "wrong.py").write_text(WRONG)
    return tmp_path / "run"


def test_a_run_with_its_baselines(weft, tmp_path, code):
    words = ("train", "programs", "--data", "code", "--target", "slot", "--epochs", "2", *SMALL)
    said = weft(*words)
    assert (said.code, said.err) == (0, "")
    assert "code: finished" in said.out
    for word in ("accuracy", "random", "most recent use", "train", "validation", "test"):
        assert word in said.out
    folder = tmp_path / "runs" / "programs-code"
    assert "weft predict runs/programs-code FILE.py" in said.out
    summary = json.loads((folder / "summary.json").read_text())
    assert f"{summary['test_accuracy']:.1%}" in said.out
    assert f"{summary['baselines']['test']['recent']:.1%}" in said.out
    assert summary["counts"]["skipped"] == 0
    assert json.loads((folder / "model.json").read_text())["kind"] == "programs"
    assert "holds a run already" in weft(*words).err
    again = weft(*words, "--resume")
    assert again.code == 0
    assert [x for x in again.out.splitlines() if "%" in x][:3] == [
        x for x in said.out.splitlines() if "%" in x
    ][:3]
    (code / "part3.py").write_text((code / "part3.py").read_text().replace("second", "third"))
    said = weft(*words, "--resume")
    assert said.code == 2
    assert "the data has changed since the run in runs/programs-code was started: " in said.err


def test_a_run_resumes_with_what_it_has_measured(weft, tmp_path, code, monkeypatch):
    words = ("train", "programs", "--data", "code", "--epochs", "1", *SMALL, "--out", "run")
    words += ("--nodes", "0", "--layout.form", "auto")
    assert weft(*words).code == 0
    chosen = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert chosen["nodes"] >= 1024

    def measured_again(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("weft.recipes.programs.supergraphs.measured_choice", measured_again)
    monkeypatch.setattr("weft.recipes.programs.supergraphs.timed_by_turns", measured_again)
    again = weft(*words, "--resume")
    assert again.code == 0, again.err


def test_other_files_in_the_folder_do_not_matter(weft, tmp_path, code):
    (code / "gone").symlink_to(tmp_path / "nothing")
    words = ("train", "programs", "--data", "code", "--epochs", "0", *SMALL, "--out")
    assert weft(*words, "code/run").code == 0
    assert weft(*words, "code/again").code == 0
    assert len(list((tmp_path / "data").glob("misuses-code-*.weft"))) == 1


def test_samples_as_json_lines(weft, tmp_path):
    def line(number: int) -> str:
        graph = {
            "Edges": {"NextToken": [[0, 1], [1, 2]], "LastUse": [[3, 0]], "LastWrite": [[4, 0]]},
            "NodeLabels": {str(n): f"name{n}" for n in range(5)},
        }
        candidates = [{"SymbolDummyNode": n, "IsCorrect": n == 3} for n in (3, 4)]
        sample = {"filename": f"p{number}.cs", "ContextGraph": graph, "SlotDummyNode": 2}
        return json.dumps({**sample, "SymbolCandidates": candidates}) + "\n"

    with gzip.open(tmp_path / "my.jsonl.gz", "wt") as file:
        file.writelines(line(number) for number in range(30))
    said = weft("train", "programs", "--data", "my.jsonl.gz", "--epochs", "1", *SMALL)
    assert said.code == 0, said.err
    assert "50.0%" in said.out  # of two candidates at random
    assert (tmp_path / "runs" / "programs-my-jsonl" / "weights.safetensors").exists()


def test_init_from(weft, tmp_path, run):
    said = weft(
        *("train", "programs", "--data", "code", "--epochs", "0", "--out", "second", *SMALL),
        *("--target", "slot", "--init-from", "run"),
    )
    assert said.code == 0, said.err
    first, second = (load_file(tmp_path / f / "weights.safetensors") for f in ("run", "second"))
    assert all(first[name].equal(second[name]) for name in first)


def test_print_config(weft, tmp_path):
    said = weft("train", "programs", "--layout.form", "banded", "--print-config")
    printed = json.loads(said.out)
    assert (printed["data"], printed["layout"]["form"]) == ("python", "banded")
    assert list(tmp_path.iterdir()) == []


def test_two_ranks_write_one_run(weft, tmp_path, code):
    words = ("train", "programs", "--data", "code", "--epochs", "2", *SMALL)
    words += ("--supergraphs-per-step", "2", "--dropout", "0.1", "--out")
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    done = subprocess.run(
        [*command, "2", "-m", "weft", *words, "two"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished") == 1
    assert weft(*words, "one").code == 0
    lines = [
        [line["train_loss"] for line in read_metrics(tmp_path / name) if "train_loss" in line]
        for name in ("one", "two")
    ]
    assert len(lines[0]) == 2
    assert lines[0] == pytest.approx(lines[1], rel=1e-5)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--data", "nothing"], "'nothing' is neither a file or folder nor one of"),
        (["--data", "qm9"], "'qm9' is molecules, not programs"),
        (["--data", "empty"], "no .py files in empty"),
        (["--data", "plain"], "no variable in 1 Python files"),
        (["--data", "one"], "of 1 files none is for"),
        (["--data", "code", "--files", "one"], "so --files one would not be read"),
        (["--data", "python", "--files", "none.py"], "--files none.py does not exist"),
        (["--data", "shard-00001"], "take --data great --files shard-00001"),
        (["--data", "code", "--compile", "static"], "only the banded form"),
        (["--data", "code", "--nodes", "8"], "a supergraph of 8 has room for 7; raise nodes"),
        (["--data", "code", "--init-from", "nowhere"], "--init-from nowhere does not exist"),
    ],
)
def test_mistakes_in_training(mistake, tmp_path, code, words, named):
    for folder in ("empty", "plain", "one"):
        (tmp_path / folder).mkdir()
    (tmp_path / "plain" / "a.py").write_text("print('hello')\n")
    (tmp_path / "one" / "a.py").write_text(WRONG)
    (tmp_path / "shard-00001").write_text("{}")
    assert named in mistake("train", "programs", *words, "--quiet")
    assert not (tmp_path / "runs").exists()


def test_a_table_of_what_is_suspicious(weft, tmp_path, run):
    said = weft("predict", "run", "wrong.py", "--all", "--quiet")
    assert (said.code, said.err) == (0, "")
    assert "wrong.py:2:21" in said.out
    assert "of the name" in said.out
    assert "3 of 3 uses of variables in 1 file are shown." in said.out
    none = weft("predict", "run", "wrong.py", "--threshold", "1", "--quiet")
    assert none.code == 0
    assert none.out.startswith("0 of ")
    assert "in 1 file have a likelier name, at 100% or more.\nA lower --threshold" in none.out


def test_json_and_sarif(weft, tmp_path, run):
    (tmp_path / "code" / "broken.py").write_text("def f(:\n")
    words = ("predict", "run", "code", "--quiet", "--all", "--format")
    said = weft(*words, "json")
    assert said.code == 0
    assert said.err == "weft: code/broken.py: skipped: syntax error\n"
    printed = json.loads(said.out)
    assert printed["skipped"] == {"code/broken.py": "syntax error"}
    assert {f["file"] for f in printed["findings"]} == {f"code/part{n}.py" for n in range(12)}
    said = weft(*words, "sarif", "--out", "found.sarif")
    assert said.code == 0
    assert "Written to found.sarif." in said.out
    log = json.loads((tmp_path / "found.sarif").read_text())
    assert len(log["runs"][0]["results"]) == len(printed["findings"])


def test_a_file_that_is_no_python_is_no_error(weft, tmp_path, run):
    (tmp_path / "broken.py").write_text("def f(:\n")
    said = weft("predict", "run", "broken.py", "--quiet")
    assert said.code == 0
    assert said.err == "weft: broken.py: skipped: syntax error\n"
    assert said.out.startswith("0 of 0 uses of variables in 1 file (1 not or not wholly looked at)")


def test_a_detector_is_the_default(weft, tmp_path, code):
    words = ("train", "programs", "--data", "code", "more.py", "--epochs", "2", *SMALL)
    (tmp_path / "more.py").write_text(WRONG)
    said = weft(*words, "--out", "run")
    assert (said.code, said.err) == (0, "")
    for word in ("code more.py: finished", "false alarms", "repaired", "all uses", "by chance"):
        assert word in said.out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert f"{summary['test_all_uses']:.1%}" in said.out
    assert weft(*words, "--out", "run", "--resume").code == 0
    shown = weft("predict", "run", "more.py", "--all", "--quiet")
    assert "3 of 3 uses of variables in 1 file are shown." in shown.out
    few = weft("predict", "run", "more.py", "--false-alarms", "0.5", "--quiet")
    assert "in 1 file look wrong, at " in few.out
    said = weft("predict", "run", "code", "--inject", "5", "--quiet")
    assert (said.code, said.err) == (0, "")
    assert "5 misuses in 2 files of " in said.out
    assert "one of each function" in said.out
    assert "give one" in weft("predict", "run", "code", "--threshold", "1", *few_alarms()).err


def few_alarms() -> tuple[str, str]:
    return ("--false-alarms", "2")


def places(said: Any) -> list[str]:
    """The places in what was printed as JSON."""
    return [f"{f['file']}:{f['line']}:{f['column']}" for f in json.loads(said.out)["findings"]]


def test_exit_codes_and_what_is_left_out(weft, tmp_path, run):
    words = ("predict", "run", "src", "--quiet", "--threshold", "0.01", "--format", "json")
    (tmp_path / "src" / "tests").mkdir(parents=True)
    for name in ("src/wrong.py", "src/tests/test_wrong.py", "src/wrong_pb2.py"):
        (tmp_path / name).write_text(WRONG)
    # The network has learned next to nothing: what it finds wrong is not in question here.
    every = weft(*words, "--all")
    assert every.code == 0
    assert len(places(every)) == 9
    few = weft(*words, "--all", "--exclude", "tests", "*_pb2.py")
    assert {place.split(":")[0] for place in places(few)} == {"src/wrong.py"}
    found = weft(*words)
    assert found.code == 0
    if places(found):
        assert weft(*words, "--fail-over", "0").code == 1
    assert weft(*words, "--fail-over", "1").code == 0
    ignored = WRONG.replace("first\n", "first  # weft: ignore\n")
    (tmp_path / "src" / "wrong.py").write_text(ignored)
    lines = {
        place.split(":")[1] for place in places(weft(*words, "--all", "--exclude", "t*", "*2*"))
    }
    assert lines == {"3"}


def test_a_baseline_knows_what_was_found(weft, tmp_path, run):
    words = ("predict", "run", "wrong.py", "--quiet", "--threshold", "0", "--fail-over", "0")
    found = weft(*words, "--format", "github")
    count = found.out.count("::warning file=wrong.py,line=")
    assert found.code == int(count > 0)
    said = weft(*words, "--baseline", "known.json", "--write-baseline")
    assert (said.code, said.err) == (0, "")
    assert f"{count} findings are now recorded as known in known.json." in said.out
    # Known wherever its line has moved to.
    (tmp_path / "wrong.py").write_text("import os\n\n\n" + WRONG)
    again = weft(*words, "--baseline", "known.json", "--format", "github")
    assert (again.code, again.out) == (0, "")
    (tmp_path / "wrong.py").write_text(WRONG + WRONG)
    twice = weft(*words, "--baseline", "known.json", "--format", "github")
    assert twice.out.count("::warning") == count


def test_only_changed_lines(weft, tmp_path, run):
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=tmp_path / "src", check=True, capture_output=True)

    (tmp_path / "src").mkdir()
    for name in ("same.py", "grown ö.py", "gone.py"):
        (tmp_path / "src" / name).write_text(WRONG)
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    (tmp_path / "src" / "grown ö.py").write_text(WRONG + WRONG.replace("add", "sum"))
    (tmp_path / "src" / "new.py").write_text(WRONG)
    (tmp_path / "src" / "gone.py").unlink()
    words = ("predict", "run", "src", "--quiet", "--all", "--format", "json", "--changed-since")
    assert sorted(places(weft(*words, "HEAD"))) == [
        *("src/grown ö.py:5:13", "src/grown ö.py:5:21", "src/grown ö.py:6:12"),
        *("src/new.py:2:13", "src/new.py:2:21", "src/new.py:3:12"),
    ]
    said = weft(*words, "nowhere")
    assert said.code == 2
    assert "no such revision: nowhere" in said.err
    assert weft(*words, "--output=x").code == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "nothing.py"], "nothing.py is not there"),
        (["run", "empty"], "no .py files in empty"),
        (
            ["run", "wrong.py", "--forces"],
            "of `weft train programs`, for which there is no --forces",
        ),
        (["run", "wrong.py", "--threshold", "90"], "--threshold is 90.0; a probability"),
        (["run", "wrong.py", "--out", "a.txt"], "--out a.txt is for --format json, sarif or"),
        (
            ["run", "wrong.py", "--out", "no/a.json", "--format", "json"],
            "there is no folder no",
        ),
        (["run", "wrong.py", "--out", "wrong.py", "--format", "json"], "wrong.py is not a file"),
        (["run", "wrong.py", "--fail-over", "2"], "--fail-over is 2.0; a probability"),
        (["run", "wrong.py", "--write-baseline"], "--write-baseline needs the file to write"),
        (["run", "wrong.py", "--baseline", "none.json"], "there is no baseline none.json"),
        (["run", "wrong.py", "--baseline", "run/metrics.jsonl"], "metrics.jsonl"),
        (["run", "wrong.py", "--false-alarms", "1"], "train with --target misuse"),
        (["run", "wrong.py", "--inject", "5"], "train with --target misuse"),
        (["run", "wrong.py", "--changed-since", "main"], "--changed-since: git in "),
        (["run", "main.js"], "main.js is not Python (.py), and other languages"),
        (["code", "wrong.py", "--all"], "code holds no run of `weft train`"),
        (["nowhere", "wrong.py"], "nowhere holds no run of `weft train`"),
    ],
)
def test_mistakes_in_prediction(mistake, tmp_path, run, words, named):
    (tmp_path / "empty").mkdir()
    (tmp_path / "main.js").write_text("let x = 1;\n")
    assert named in mistake("predict", *words, "--quiet")
    assert (tmp_path / "wrong.py").read_text() == WRONG


def test_a_plan_for_another_machine(weft: Callable[..., Any], mistake, code: Path, tmp_path: Path):
    words = ("plan", "programs", "--data", code, "--hidden", 64, "--quiet")
    said = weft(*words, "--machine", "a100")
    assert said.code == 0, said
    assert "A roofline model of a100, never timed" in said.out
    assert "By the model, the fastest" in said.out
    assert "Assumptions:" in said.out
    assert not (tmp_path / "plan.json").exists()
    assert "machine is 'b300'; choose from tpu-v2-8, a100" in mistake(*words, "--machine", "b300")
    said = mistake(*words, "--machine", "a100", "--run-steps", 5)
    assert "--run-steps is for what is measured, and --machine a100 is a model" in said
    assert weft("plan", "molecules", "--machine", "a100").code == 2
