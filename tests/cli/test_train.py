"""`weft train citations`: a run folder that is complete, can be stopped, killed and resumed."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from weft.training import read_metrics

FOLDER = ["config.json", "last.pt", "metrics.jsonl", "summary.json", "weights.safetensors"]


def losses(folder: Path) -> list[dict[str, Any]]:
    """The metrics without what the clock gave."""
    timed = ("seconds", "graphs_per_second")
    return [{k: v for k, v in line.items() if k not in timed} for line in read_metrics(folder)]


def test_trains_on_cora_of_the_package(weft, tmp_path):
    pytest.importorskip("pyarrow")
    run = tmp_path / "run[1]"
    words = ("train", "citations", "--data", "cora-package", "--epochs", "5", "--run-dir", run)
    said = weft(*words)
    assert said.code == 0
    assert "cora-package: finished" in said.out
    assert all(part in said.out for part in ("train", "validation", "test", "accuracy", "loss"))
    assert "5 epochs in " in said.out
    assert f"tensorboard --logdir {run}" in said.out
    assert "epoch 5/5" in said.err
    assert sorted(p.name for p in run.iterdir() if p.is_file() and p.name[0] != ".") == FOLDER
    assert list((run / "tensorboard").iterdir())
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["epochs"], summary["stopped"]) == (5, "finished")
    assert f"{summary['test_accuracy']:.1%}" in said.out
    recorded = json.loads((run / "config.json").read_text())
    assert recorded["sessions"][0]["command"] == ["weft", *map(str, words)]
    assert recorded["config"]["model"] == {"hidden": [16], "dropout": 0.5, "input_dropout": 0.5}
    assert len([line for line in read_metrics(run) if "validation_accuracy" in line]) == 5


def test_the_folder_by_default_and_quiet(weft, tmp_path, small_cora):
    said = weft("train", "citations", "--epochs", "2", "--quiet")
    assert (said.code, said.err) == (0, "")
    assert (tmp_path / "runs" / "citations-cora" / "weights.safetensors").exists()


def test_print_config(weft, tmp_path):
    said = weft("train", "citations", "--model.hidden", "8", "4", "--seed", "7", "--print-config")
    printed = json.loads(said.out)
    assert printed["model"] == {"hidden": [8, 4], "dropout": 0.5, "input_dropout": 0.5}
    assert (printed["data"], printed["seed"], printed["epochs"]) == ("cora", 7, 200)
    assert list(tmp_path.iterdir()) == []


def test_resume_of_a_finished_run_trains_no_more(weft, tmp_path, small_cora):
    words = ("train", "citations", "--epochs", "4", "--run-dir", "run", "--quiet")
    first = weft(*words)
    before = losses(tmp_path / "run")
    again = weft(*words, "--resume")
    assert again.code == 0
    assert losses(tmp_path / "run") == before
    table = [line for line in first.out.splitlines() if "%" in line]
    assert table == [line for line in again.out.splitlines() if "%" in line]
    sessions = json.loads((tmp_path / "run" / "config.json").read_text())["sessions"]
    assert len(sessions) == 2


def test_init_from_takes_the_weights(weft, tmp_path, small_cora):
    weft("train", "citations", "--epochs", "30", "--run-dir", "first", "--quiet")
    said = weft(
        *("train", "citations", "--epochs", "0", "--run-dir", "second", "--quiet"),
        *("--init-from", "first"),
    )
    assert said.code == 0
    first, second = (load_file(tmp_path / f / "weights.safetensors") for f in ("first", "second"))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)


def test_init_from_another_model(weft, mistake, tmp_path, small_cora):
    words = ("train", "citations", "--epochs", "1", "--quiet")
    weft(*words, "--run-dir", "wide", "--model.hidden", "32")
    said = mistake(*words, "--run-dir", "a", "--init-from", "wide")
    assert "wide is of another model: 'layers.0.weight' is [24, 32] there and [24, 16] here" in said
    save_file(
        {"conv.weight": load_file(tmp_path / "wide" / "weights.safetensors")["layers.0.bias"]},
        tmp_path / "other.safetensors",
    )
    said = mistake(*words, "--run-dir", "b", "--init-from", "other.safetensors")
    assert "other.safetensors is of another model" in said
    assert "nowhere" in mistake(*words, "--run-dir", "c", "--init-from", "nowhere")


def test_a_run_that_is_there(weft, mistake, small_cora):
    words = ("train", "citations", "--run-dir", "run", "--quiet", "--epochs")
    weft(*words, "2")
    assert "run holds a run already; go on with it (--resume)" in mistake(*words, "2")
    said = mistake(*words, "3", "--resume")
    assert "epochs = 2, now it is 3" in said


def test_a_folder_of_something_else(mistake, tmp_path, small_cora):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "a.tex").write_text("x")
    said = mistake("train", "citations", "--run-dir", "thesis")
    assert "thesis is not empty and holds no run" in said
    (tmp_path / "file").write_text("x")
    said = mistake("train", "citations", "--run-dir", "file/run")
    assert "cannot make the run folder file/run" in said


def test_a_cut_checkpoint(weft, mistake, tmp_path, small_cora):
    words = ("train", "citations", "--run-dir", "run", "--quiet", "--epochs", "2")
    weft(*words)
    last = tmp_path / "run" / "last.pt"
    last.write_bytes(last.read_bytes()[:500])
    assert "last.pt is cut" in mistake(*words, "--resume")


def test_files_of_the_wrong_folder(mistake, tmp_path):
    (tmp_path / "empty").mkdir()
    said = mistake("train", "citations", "--files", "empty", "--run-dir", "run")
    assert "empty/ind.cora." in said
    assert not (tmp_path / "run").exists()


def test_a_damaged_table(mistake, tmp_path, small_cora):
    (small_cora / "y.npy").write_bytes(b"")
    said = mistake("train", "citations", "--run-dir", "run")
    assert "y.npy has 0 bytes" in said
    assert not (tmp_path / "run").exists()


def test_a_table_that_is_no_citation_graph(weft, mistake, tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n")
    weft("data", "get", "edge-list", "--files", "edges.txt")
    (tmp_path / "data" / "edge-list.weft" / "asked.json").unlink()
    (tmp_path / "data" / "edge-list.weft").rename(tmp_path / "data" / "cora.weft")
    assert "'x'" in mistake("train", "citations")


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "weft", *words],
        cwd=folder,
        env={**os.environ, "WEFT_DATA_DIR": str(folder / "data")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def wait_for_steps(process: subprocess.Popen[str], folder: Path, steps: int) -> None:
    """Until the run has logged `steps` steps."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        if (folder / "metrics.jsonl").exists():
            lines = read_metrics(folder)
            if lines and lines[-1]["step"] >= steps:
                return
        time.sleep(0.005)
    process.kill()
    raise AssertionError(finish(process))


def recipe(run: str) -> list[str]:
    return shlex.split(f"train citations --epochs 150 --checkpoint-every 2 --run-dir {run}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where a run that nobody disturbed is `whole`."""
    return tmp_path_factory.mktemp("uninterrupted")


@pytest.fixture
def undisturbed(weft: Callable[..., Any], small_cora: Path, tmp_path: Path, whole: Path) -> Path:
    """A run to compare with, trained once in this process for both tests."""
    if not (whole / "whole").exists():
        assert weft(*recipe(str(whole / "whole"))).code == 0
    return whole / "whole"


def assert_the_same(run: Path, other: Path) -> None:
    # JSON floats are exact here, so equality is equality of the bits.
    assert losses(run) == losses(other)
    assert len({line["train_loss"] for line in losses(run) if "train_loss" in line}) > 140
    mine, theirs = (load_file(folder / "weights.safetensors") for folder in (run, other))
    assert all(mine[name].equal(theirs[name]) for name in theirs)


def test_sigterm_gives_the_command_to_go_on(undisturbed, tmp_path):
    process = start(tmp_path, *recipe("run[1]"))
    wait_for_steps(process, tmp_path / "run[1]", 5)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert code == 143, (out, err)
    assert "interrupted by SIGTERM after epoch " in out
    assert "Traceback" not in err
    command = shlex.split(out.splitlines()[-1])
    assert command == ["weft", *recipe("run[1]"), "--resume"]
    found = re.search(r"after epoch \d+, step (\d+); everything is in run\[1\]\.", out)
    assert found is not None
    assert 5 <= int(found[1]) < 150
    code, out, err = finish(start(tmp_path, *command[1:]))
    assert code == 0, err
    assert "cora: finished" in out
    assert f"going on after step {found[1]} of run[1]" in err
    assert_the_same(tmp_path / "run[1]", undisturbed)


def test_killed_at_a_random_moment_it_resumes_to_the_bit(undisturbed, tmp_path):
    moment = random.uniform(0, 0.3)
    process = start(tmp_path, *recipe("run"))
    wait_for_steps(process, tmp_path / "run", 1)
    time.sleep(moment)
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL, moment
    assert not (tmp_path / "run" / "summary.json").exists()
    code, _, err = finish(start(tmp_path, *recipe("run"), "--resume"))
    assert code == 0, err
    assert_the_same(tmp_path / "run", undisturbed)
