"""`weft train`: a run folder that is complete, can be stopped, killed and resumed."""

from __future__ import annotations

import json
import os
import random
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.io import read, write
from safetensors.torch import load_file, save_file

import weft.recipes.table_training as weft_tables
from weft.training import read_metrics

FOLDER = ["config.json", "last.pt", "metrics.jsonl", "summary.json", "weights.safetensors"]


def losses(folder: Path) -> list[dict[str, Any]]:
    """The metrics without what the clock gave."""
    timed = ("seconds", "graphs_per_second")
    return [{k: v for k, v in line.items() if k not in timed} for line in read_metrics(folder)]


def test_trains_on_cora_of_the_package(weft, tmp_path):
    pytest.importorskip("pyarrow")
    run = tmp_path / "run[1]"
    words = ("train", "citations", "--data", "cora-package", "--epochs", "5", "--out", run)
    said = weft(*words)
    assert said.code == 0
    assert "cora-package: finished" in said.out
    assert all(part in said.out for part in ("train", "validation", "test", "accuracy", "loss"))
    assert "5 epochs in " in said.out
    assert f"tensorboard --logdir {run}" in said.out
    assert "epoch 5/5" in said.err
    # With what predictions need.
    folder = sorted([*FOLDER, "inputs.safetensors", "model.json", "nodes.json"])
    assert sorted(p.name for p in run.iterdir() if p.is_file() and p.name[0] != ".") == folder
    assert list((run / "tensorboard").iterdir())
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["epochs"], summary["stopped"]) == (5, "finished")
    assert f"{summary['test_accuracy']:.1%}" in said.out
    recorded = json.loads((run / "config.json").read_text())
    assert recorded["sessions"][0]["command"] == ["weft", *map(str, words)]
    names = ("model", "split", "hidden", "dropout", "input_dropout")
    assert [recorded["config"][name] for name in names] == ["gcn", "public", [16], 0.5, 0.5]
    assert len([line for line in read_metrics(run) if "validation_accuracy" in line]) == 5


def test_the_folder_by_default_and_quiet(weft, tmp_path, small_cora):
    said = weft("train", "citations", "--epochs", "2", "--quiet")
    assert (said.code, said.err) == (0, "")
    assert (tmp_path / "runs" / "citations-cora" / "weights.safetensors").exists()


def test_citations_are_nodes_with_the_published_settings(weft, tmp_path, small_cora):
    said = weft("train", "citations", "--epochs", 9, "--out", "old")
    (told,) = (line for line in said.out.splitlines() if "is now" in line)
    words = shlex.split(told.rpartition("is now `weft ")[-1].rstrip("`."))
    assert weft(*words, "--epochs", 9, "--out", "new", "--quiet").code == 0
    old, new = (load_file(tmp_path / name / "weights.safetensors") for name in ("old", "new"))
    assert old.keys() == new.keys()
    assert all(old[name].equal(new[name]) for name in old)
    summaries = [json.loads((tmp_path / f / "summary.json").read_text()) for f in ("old", "new")]
    assert summaries[0]["test_accuracy"] == summaries[1]["accuracy"]["test"]["value"]
    recipes = [
        json.loads((tmp_path / f / "config.json").read_text())["recipe"] for f in ("old", "new")
    ]
    assert recipes == ["citations", "nodes"]
    for name in ("old", "new"):
        assert weft("predict", name, "--out", f"{name}.csv", "--quiet").code == 0
    assert (tmp_path / "old.csv").read_bytes() == (tmp_path / "new.csv").read_bytes()


def test_print_config(weft, tmp_path):
    said = weft("train", "citations", "--model.hidden", "8", "4", "--seed", "7", "--print-config")
    printed = json.loads(said.out)
    assert (printed["hidden"], printed["dropout"], printed["input_dropout"]) == ([8, 4], 0.5, 0.5)
    assert (printed["data"], printed["seed"], printed["epochs"]) == ("cora", 7, 200)
    assert list(tmp_path.iterdir()) == []


def test_resume_of_a_finished_run_trains_no_more(weft, tmp_path, small_cora):
    words = ("train", "citations", "--epochs", "4", "--out", "run", "--quiet")
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
    weft("train", "citations", "--epochs", "30", "--out", "first", "--quiet")
    said = weft(
        *("train", "citations", "--epochs", "0", "--out", "second", "--quiet"),
        *("--init-from", "first"),
    )
    assert said.code == 0
    first, second = (load_file(tmp_path / f / "weights.safetensors") for f in ("first", "second"))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)


def test_init_from_another_model(weft, mistake, tmp_path, small_cora):
    words = ("train", "citations", "--epochs", "1", "--quiet")
    weft(*words, "--out", "wide", "--model.hidden", "32")
    said = mistake(*words, "--out", "a", "--init-from", "wide")
    assert "wide is of another model: 'layers.0.weight' is [24, 32] there and [24, 16] here" in said
    save_file(
        {"conv.weight": load_file(tmp_path / "wide" / "weights.safetensors")["layers.0.bias"]},
        tmp_path / "other.safetensors",
    )
    said = mistake(*words, "--out", "b", "--init-from", "other.safetensors")
    assert "other.safetensors is of another model" in said
    assert "nowhere" in mistake(*words, "--out", "c", "--init-from", "nowhere")


def test_a_run_that_is_there(weft, mistake, small_cora):
    words = ("train", "citations", "--out", "run", "--quiet", "--epochs")
    weft(*words, "2")
    assert "run holds a run already; resume it (--resume)" in mistake(*words, "2")
    said = mistake(*words, "3", "--resume")
    assert "epochs = 2, now it is 3" in said


def test_a_folder_of_something_else(mistake, tmp_path, small_cora):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "a.tex").write_text("x")
    said = mistake("train", "citations", "--out", "thesis")
    assert "thesis is not empty and holds no run" in said
    (tmp_path / "file").write_text("x")
    said = mistake("train", "citations", "--out", "file/run")
    assert "cannot make the run folder file/run" in said


def test_a_cut_checkpoint(weft, mistake, tmp_path, small_cora):
    words = ("train", "citations", "--out", "run", "--quiet", "--epochs", "2")
    weft(*words)
    last = tmp_path / "run" / "last.pt"
    last.write_bytes(last.read_bytes()[:500])
    assert "last.pt is cut" in mistake(*words, "--resume")


def test_files_of_the_wrong_folder(mistake, tmp_path):
    (tmp_path / "empty").mkdir()
    said = mistake("train", "citations", "--files", "empty", "--out", "run")
    assert "empty/ind.cora." in said
    assert not (tmp_path / "run").exists()


def test_a_damaged_table(mistake, tmp_path, small_cora):
    (small_cora / "y.npy").write_bytes(b"")
    said = mistake("train", "citations", "--out", "run")
    assert "y.npy has 0 bytes" in said
    assert not (tmp_path / "run").exists()


def test_a_table_that_is_no_citation_graph(weft, mistake, tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n")
    weft("data", "get", "edge-list", "--files", "edges.txt")
    (tmp_path / "data" / "edge-list.weft" / "asked.json").unlink()
    (tmp_path / "data" / "edge-list.weft").rename(tmp_path / "data" / "cora.weft")
    assert "no node column 'y'" in mistake("train", "citations")


# As `weft WORDS`, but the last of 150 steps waits for a signal: whoever sends it may come late.
HELD = """
import os, signal, socket, sys
from weft.cli import main
from weft.training.progress import FitProgress

heard, heard_by = socket.socketpair()
heard_by.setblocking(False)
signal.set_wakeup_fd(heard_by.fileno())
step = FitProgress.step

def held(self, **values):
    step(self, **values)
    if values["step"] == 149:
        heard.recv(1)

FitProgress.step = held
sys.exit(main())
"""


def start(folder: Path, *words: str, held: bool = False) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *(("-c", HELD) if held else ("-m", "weft")), *words],
        cwd=folder,
        env={**os.environ, "WEFT_DATA_DIR": str(folder / "data")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def wait_for_steps(process: subprocess.Popen[str], folder: Path, steps: int) -> None:
    """Until the run has logged `steps` steps."""
    while process.poll() is None:
        if (folder / "metrics.jsonl").exists():
            lines = read_metrics(folder)
            if lines and lines[-1]["step"] >= steps:
                return
        time.sleep(0.005)
    raise AssertionError(finish(process))


def recipe(run: str) -> list[str]:
    return shlex.split(f"train citations --epochs 150 --checkpoint-every 2 --out {run}")


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
    process = start(tmp_path, *recipe("run[1]"), held=True)
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
    assert f"resuming after step {found[1]} of run[1]" in err
    assert_the_same(tmp_path / "run[1]", undisturbed)


def test_a_closed_terminal_leaves_a_checkpoint(undisturbed, tmp_path):
    screen, terminal = os.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-m", "weft", *recipe("run")],
        cwd=tmp_path,
        env={**os.environ, "WEFT_DATA_DIR": str(tmp_path / "data")},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    log, end = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 60
    shown = b""
    while not (log.exists() and len(read_metrics(log)) >= 5):
        assert process.poll() is None, shown.decode()
        assert time.monotonic() < end
        if select.select([screen], [], [], 0.005)[0]:
            shown += os.read(screen, 2**16)
    os.close(screen)
    assert process.wait(120) == 128 + signal.SIGHUP
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped"] == "interrupted by SIGHUP"
    assert 5 <= summary["steps"] < 150
    code, _, err = finish(start(tmp_path, *recipe("run"), "--resume"))
    assert code == 0, err
    assert f"resuming after step {summary['steps']} of run" in err
    assert_the_same(tmp_path / "run", undisturbed)


def test_killed_at_a_random_moment_it_resumes_to_the_bit(undisturbed, tmp_path):
    moment = random.uniform(0, 0.3)
    process = start(tmp_path, *recipe("run"), held=True)
    wait_for_steps(process, tmp_path / "run", 1)
    time.sleep(moment)
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL, moment
    assert not (tmp_path / "run" / "summary.json").exists()
    code, _, err = finish(start(tmp_path, *recipe("run"), "--resume"))
    assert code == 0, err
    assert_the_same(tmp_path / "run", undisturbed)


SMALL = ("--hidden", "8", "--layers", "1", "--batching.batch-size", "8", "--quiet")


def test_molecules_of_a_file(weft, tmp_path, small_molecules):
    said = weft("train", "molecules", "--data", "mols.extxyz", "--target", "energy", *SMALL[:-1])
    assert said.code == 0, said.err
    run = tmp_path / "runs" / "molecules-mols-energy"
    assert "energy [eV]: finished" in said.out
    assert all(heading in said.out for heading in ("structures", "MAE [eV]", "RMSE [eV]", "test"))
    assert "left out" not in said.out
    assert "19 structures for training, 30 epochs in " in said.out
    assert "% of the time spent waiting for batches; the weights are" in said.out
    assert "weft predict runs/molecules-mols-energy FILE.extxyz" in said.out
    assert "epoch 30/30" in said.err
    assert {p.name for p in run.iterdir()} >= {*FOLDER, "model.json"}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["counts"] == {
        "train": 19,
        "validation": 3,
        "test": 2,
        "dropped": 0,
        "skipped": 0,
    }
    assert (summary["unit"], summary["epochs"], summary["stopped"]) == ("eV", 30, "finished")
    assert f"{summary['test_mae']:.4g}" in said.out
    assert 0 < summary["batching_share"] < 1
    assert summary["compilation"]["mode"] == "eager"
    about = json.loads((run / "model.json").read_text())
    assert about == {"elements": [1, 6, 8], "trained_elements": [1, 6, 8], "unit": "eV"}


def test_molecules_with_forces(weft, tmp_path, small_molecules):
    said = weft(
        *("train", "molecules", "--data", "mols.extxyz", "--target", "energy"),
        *("--forces", "forces", "--model", "painn", "--epochs", "1", *SMALL),
    )
    assert said.code == 0, said.err
    assert "force MAE [meV/Å]" in said.out
    summary = json.loads((tmp_path / "runs/molecules-mols-energy/summary.json").read_text())
    assert f"{1e3 * summary['test_force_rmse']:.4g}" in said.out


def test_structures_without_a_value_are_counted(weft, small_molecules):
    made = read(small_molecules, ":")
    made[2].calc = None
    made[5].calc.results["energy"] = np.nan
    made[6].calc.results["forces"][0] = np.nan
    write(small_molecules, made)
    words = ("train", "molecules", "--data", small_molecules, "--target", "energy", "--epochs", "1")
    assert "2 structures without energy were left out." in weft(*words, *SMALL).out
    said = weft(*words, "--forces", "forces", "--out", "b", *SMALL)
    assert "3 structures without energy or forces were left out." in said.out


def test_molecules_of_a_database_with_a_name_of_its_own(weft, tmp_path):
    name = tmp_path / "Müller's data (2).db"
    write(name, [Atoms("H" * n, [[0, 0, i] for i in range(n)]) for n in (1, 2, 3)], append=False)
    from ase.db import connect

    with connect(name) as database:
        for n in range(1, 4):
            database.update(n, gap=float(n))
    words = ("train", "molecules", "--data", name, "--target", "gap", "--no-references")
    said = weft(*words, "--epochs", "1", *SMALL)
    assert said.code == 0, said.err
    assert (tmp_path / "runs" / "molecules-M-ller-s-data--2-gap" / "summary.json").exists()
    # The unit of a user's own value is not known.
    assert "gap: finished" in said.out


def crystal(number: int, **changes: Any) -> dict[str, Any]:
    edge = 3.5 + number / 10
    return {
        "dataset": "made",
        "id": f"c{number}",
        "lattice": [[edge, 0, 0], [0, edge, 0], [0, 0, edge]],
        "z": [11, 17],
        "frac": [[0, 0, 0], [0.5, 0.5, 0.5]],
        "targets": {"gap": edge},
        **changes,
    }


def write_lines(path: Path, crystals: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(c) + "\n" for c in crystals), encoding="utf-8")
    return path


def test_crystals_of_json_lines(weft, tmp_path):
    made = [crystal(n) for n in range(12)] + [crystal(12, targets={"gap": None, "x": 1})]
    file = write_lines(tmp_path / "my.jsonl", made)
    words = ("train", "crystals", "--data", file, "--target", "gap", "--epochs", "1", *SMALL)
    said = weft(*words, "--neighbours.nearest", "6")
    assert said.code == 0, said.err
    assert "1 structures without gap were left out." in said.out
    config = json.loads((tmp_path / "runs/crystals-my-gap/config.json").read_text())["config"]
    assert config["neighbours"] == {"kind": "nearest", "cutoff": 6.0, "nearest": 6}
    said = weft(*words, "--out", "b", "--neighbours.kind", "cutoff", "--limit", "6")
    assert said.code == 0, said.err
    assert "5 structures for training" in said.out


def test_crystals_of_the_materials_project_by_name(weft, tmp_path):
    names = (
        *("formation_energy_per_atom", "e_above_hull", "band_gap", "n", "poly_electronic"),
        *("poly_total", "K_VRH", "G_VRH", "elastic_anisotropy", "poisson_ratio", "eij_max"),
        *("volume", "space_group"),
    )
    targets = dict.fromkeys(names, 1.0)
    file = write_lines(tmp_path / "c.jsonl", [crystal(n, targets=targets) for n in range(6)])
    # What the help shows: the default target is one that the data has.
    said = weft("train", "crystals", "--files", file, "--epochs", "1", *SMALL)
    assert said.code == 0, said.err
    assert "formation_energy_per_atom [eV/atom]: finished" in said.out


def cif_folder(tmp_path: Path, listed: str) -> Path:
    folder = tmp_path / "cifs"
    folder.mkdir()
    for n in range(6):
        edge = 4 + n / 10
        cell = Atoms("NaCl", [[0, 0, 0], [edge / 2] * 3], cell=[edge] * 3, pbc=True)
        write(folder / f"c{n}.cif", cell)
    (folder / "id_prop.csv").write_text(listed)
    return folder


@pytest.mark.parametrize(
    ("heading", "target"), [("", "target"), ("id,energy\n", "energy"), ("id, e ,\n", "e")]
)
def test_crystals_of_a_folder_of_cif_files(weft, tmp_path, heading, target):
    end = "," if heading.endswith(",\n") else ""
    listed = heading + "".join(f"c{n},{-n / 10}{end}\n" for n in range(5))
    folder = cif_folder(tmp_path, listed)
    said = weft(
        *("train", "crystals", "--data", folder, "--target", target, "--epochs", "1", *SMALL)
    )
    assert said.code == 0, said.err
    assert f"1 structures without {target} were left out." in said.out
    assert "4 structures for training" in said.out


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        ("c0,1\nc1,high\n", "id_prop.csv, line 2: could not convert string to float: 'high'"),
        ("c0,1\nc1,2,3\n", "id_prop.csv, line 2: 3 fields, 2 expected"),
        ("c0,1\nd1,2\n", "id_prop.csv, line 2: there is no d1.cif in the folder"),
        ("id,gap\nc0,1\n", "no structure has a 'target'; they have gap, "),
        ("", "no structure has a 'target'"),
    ],
)
def test_values_of_cif_files_that_cannot_be_read(mistake, tmp_path, listed, named):
    folder = cif_folder(tmp_path, listed)
    assert named in mistake("train", "crystals", "--data", folder, "--target", "target", *SMALL)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            ["--data", "mols.extxyz", "--target", "gap"],
            "no structure has a 'gap'; they have energy",
        ),
        (["--data", "mols.extxyz", "--target", "forces"], "'forces' is a node column of shape [3]"),
        (
            ["--data", "mols.extxyz", "--target", "energy", "--forces", "push"],
            "no structure has a 'push'",
        ),
        (["--data", "mols.extxyz", "--target", "cell"], "'cell' is named twice, or is a column"),
        (["--data", "nothing.extxyz"], "'nothing.extxyz' is neither a file or folder nor one of"),
        (["--data", "cora"], "'cora' is one graph, not molecules or crystals"),
        (["--data", "mols.extxyz", "--files", "a"], "--files a would not be read"),
        (["--split", "0.5", "0.4", "0.3"], "split is (0.5, 0.4, 0.3)"),
        (["--limit", "1"], "limit is 1; it must be at least 2"),
        (["--forces", "forces", "--readout", "mean"], "readout is 'mean', so the energy does not"),
        (["--forces", "forces", "--neighbours.kind", "nearest"], "so the energy jumps where one"),
        (["--monitor", "validation_loss"], "monitor is 'validation_loss'; choose from validation_"),
        (["--init-from", "nowhere"], "--init-from nowhere does not exist"),
        (
            [
                *("--data", "mols.extxyz", "--target", "energy", "--batching.policy", "packed"),
                *("--batching.budget", "4", "9", "8"),
            ],
            "a batch has room for 3 and 9",
        ),
    ],
)
def test_mistakes_about_molecules(mistake, tmp_path, small_molecules, words, named):
    assert named in mistake("train", "molecules", *SMALL, *words)
    # Nothing is left that would have to be resumed or removed.
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"positions": [[0, 0, 0], [0, 0, 0]]}, "graph 1: atoms 0 and 1 are in one place"),
        ({"positions": [[0, 0, 0], [0, np.nan, 0]]}, "bad.extxyz, structure 1 (line 5): atom 1 is"),
        ({"cell": [3, 3, 0], "pbc": True}, "structure 1 (line 5): periodic along 3 vectors"),
        ({"cell": [3, 3, 3], "pbc": True}, "structure 1 is periodic (1 of 3 are)"),
        ({"cell": [3, 3, 3], "pbc": True}, "are for molecules: train with `weft train crystals`"),
    ],
)
def test_structures_that_are_none(mistake, tmp_path, changes, named):
    plain = {"symbols": "HH", "positions": [[0, 0, 0], [0, 0, 1]], "info": {"energy": 1.0}}
    made = [Atoms(**plain), Atoms(**{**plain, **changes}), Atoms(**plain)]
    write(tmp_path / "bad.extxyz", made)
    words = ("train", "molecules", "--data", "bad.extxyz", "--target", "energy", *SMALL)
    words = (*words, "--neighbours.kind", "complete")
    assert named in mistake(*words)
    assert not (tmp_path / "runs").exists()
    if "one place" in named:
        said = mistake(*words, "--limit", "2", "--split-seed", "3")
        assert "are in one place" in said
        assert "(as numbered among the 2 drawn)" in said


def test_periodic_structures_are_pointed_to_crystals(weft, tmp_path):
    rng = np.random.default_rng(0)
    made = [
        Atoms("HH", [[0, 0, 0], [0, 0, z]], cell=[3, 3, 3], pbc=n < 5, info={"energy": z})
        for n, z in enumerate(rng.uniform(0.7, 1.4, 12))
    ]
    write(tmp_path / "mixed.extxyz", made)
    loud = [word for word in SMALL if word != "--quiet"]
    said = weft("train", "molecules", "--data", "mixed.extxyz", "--target", "energy", *loud)
    assert said.code == 0, said
    assert "5 of 12 structures are periodic" in said.out + said.err
    assert "`weft train crystals`" in said.out + said.err


def test_an_interrupted_training_of_molecules_goes_on(weft, tmp_path, small_molecules, monkeypatch):
    words = ("train", "molecules", "--data", "mols.extxyz", "--target", "energy", "--epochs", "4")
    assert weft(*words, "--out", "whole", *SMALL).code == 0
    real, steps = weft_tables.fit, 0

    def fit(model: Any, optimizer: Any, train: Any, step: Any, **rest: Any) -> Any:
        take = step.take

        def counted(model: Any, batch: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            return take(model, batch)

        step.take = counted
        return real(model, optimizer, train, step, **rest)

    monkeypatch.setattr(weft_tables, "fit", fit)
    said = weft(*words, "--out", "cut", *SMALL)
    assert said.code == 143
    assert "interrupted by SIGTERM after epoch 1, step 5; everything is in cut." in said.out
    command = shlex.split(said.out.splitlines()[-1])
    assert command == ["weft", *words, "--out", "cut", *SMALL, "--resume"]
    said = weft(*command[1:])
    assert said.code == 0
    assert "energy [eV]: finished" in said.out
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    mine, theirs = (load_file(tmp_path / f / "weights.safetensors") for f in ("cut", "whole"))
    assert all(mine[name].equal(theirs[name]) for name in theirs)


def test_resume_with_another_setting(weft, mistake, tmp_path, small_molecules):
    words = ("train", "molecules", "--data", "mols.extxyz", "--target", "energy", "--epochs", "1")
    weft(*words, *SMALL)
    assert "holds a run already; resume it (--resume)" in mistake(*words, *SMALL)
    # That is seen before the data is read.
    elsewhere = ("--files", "nowhere.extxyz")
    assert "holds a run already" in mistake(*words, *SMALL, *elsewhere)
    assert "nowhere.extxyz" in mistake(*words, *SMALL, *elsewhere, "--out", "other")
    assert not (tmp_path / "other").exists()
    said = mistake(*words, *SMALL, "--resume", "--readout", "mean")
    assert 'readout = "sum", now it is "mean"' in said


def test_an_older_run_goes_on_as_it_was_begun(weft, mistake, tmp_path, small_molecules):
    words = ("train", "molecules", "--data", "mols.extxyz", "--target", "energy", "--epochs", "2")
    words = (*words, "--out", "run", *SMALL)
    assert weft(*words, "--readout", "mean").code == 0
    path = tmp_path / "run" / "config.json"
    recorded = json.loads(path.read_text())
    for name in ("envelope", "monitor"):
        del recorded["config"][name]
    path.write_text(json.dumps(recorded))
    said = weft(*words, "--resume")
    assert said.code == 0, said.err
    assert json.loads(path.read_text())["config"]["readout"] == "mean"
    said = mistake(*words, "--resume", "--monitor", "validation_rmse")
    assert 'monitor = "validation_mae", now it is "validation_rmse"' in said


def test_resume_with_changed_molecules(weft, mistake, small_molecules):
    words = ("train", "molecules", "--data", "mols.extxyz", "--target", "energy", "--epochs", "1")
    assert weft(*words, *SMALL).code == 0
    made = read(small_molecules, ":")
    made[5].positions[0, 2] += 0.01
    write(small_molecules, made)
    said = mistake(*words, *SMALL, "--resume")
    assert "has changed since the run in runs/molecules-mols-energy was started: pos; " in said


def test_print_config_of_molecules_and_crystals(weft, tmp_path):
    printed = json.loads(weft("train", "molecules", "--target", "gap", "--print-config").out)
    assert (printed["data"], printed["target"], printed["references"]) == ("qm9", "gap", True)
    assert (printed["neighbours"]["kind"], printed["envelope"]) == ("cutoff", True)
    printed = json.loads(weft("train", "crystals", "--model", "painn", "--print-config").out)
    assert printed["data"] == "mp-matminer"
    assert printed["target"] == "formation_energy_per_atom"
    assert (printed["neighbours"]["kind"], printed["references"]) == ("nearest", False)
    words = ("train", "crystals", "--forces", "forces", "--print-config")
    printed = json.loads(weft(*words).out)
    assert (printed["neighbours"]["kind"], printed["readout"]) == ("cutoff", "sum")
    assert (printed["envelope"], printed["monitor"]) == (True, "validation_loss")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["molecules", "crystals"])
def test_help_teaches_by_examples(weft, command):
    said = weft("train", command, "--help")
    assert said.code == 0
    examples = [line for line in said.out.splitlines() if f"  weft train {command} --" in line]
    assert len(examples) >= 2
    assert "Lengths are in Å, energies in eV" in said.out
