"""Options of the training loop that every recipe has: averages, clipping, schedules, loggers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from small_code import write_code
from temporal_graphs import circles, write_edges

from stand_in_device import DEVICE, Elsewhere
from weft.training import read_metrics

MOLECULES = ("train", "molecules", "--data", "mols.extxyz", "--target", "energy", "--hidden", 8)
PROGRAMS = ("--hidden", 8, "--steps", 2, "--nodes", 256, "--layout.form", "csr")


def losses(folder: Path) -> list[dict[str, Any]]:
    """The metrics without what the clock gave."""
    timed = ("seconds", "graphs_per_second")
    return [{k: v for k, v in line.items() if k not in timed} for line in read_metrics(folder)]


def test_averaged_weights_are_kept_and_predict_and_a_resume_goes_on_to_the_bit(
    weft, tmp_path, small_molecules
):
    words = (*MOLECULES, "--ema", 0.9, "--clip-norm", 1, "--checkpoint-every", 1, "--quiet")
    words = (*words, "--batching.batch-size", 6, "--schedule.shape", "plateau")
    words = (*words, "--schedule.patience", 0, "--schedule.threshold", 0.5)
    assert weft(*words, "--epochs", 3, "--out", "whole").code == 0
    assert weft(*MOLECULES, "--epochs", 3, "--out", "plain", "--quiet").code == 0
    cut = (*words, "--epochs", 3, "--out", "cut")
    assert weft(*cut, "--max-steps", 5).code == 0
    # As it would be asked for at once.
    config = tmp_path / "cut" / "config.json"
    whole = json.loads(config.read_text())
    config.write_text(json.dumps(whole | {"config": whole["config"] | {"max_steps": None}}))
    assert weft(*cut, "--resume").code == 0
    # Where it was cut it was evaluated once more.
    lines = [line for line in losses(tmp_path / "cut") if line["step"] != 5]
    assert lines == losses(tmp_path / "whole")
    kept, again, plain = (
        load_file(tmp_path / run / "weights.safetensors") for run in ("whole", "cut", "plain")
    )
    assert all(kept[name].equal(again[name]) for name in kept)
    assert not all(kept[name].equal(plain[name]) for name in kept)
    for run in ("whole", "cut"):
        said = weft("predict", run, "mols.extxyz", "--out", f"{run}.csv", "--quiet")
        assert said.code == 0
    assert (tmp_path / "whole.csv").read_bytes() == (tmp_path / "cut.csv").read_bytes()


@pytest.mark.parametrize("recipe", ["molecules", "crystals", "programs", "nodes", "links"])
def test_every_recipe_has_the_options_of_the_loop(weft, mistake, recipe):
    words = ("--ema", 0.99, "--clip-norm", 2.5, "--schedule.shape", "plateau")
    said = weft("train", recipe, *words, "--print-config")
    asked = json.loads(said.out)
    assert (asked["ema"], asked["clip_norm"]) == (0.99, 2.5)
    assert asked["schedule"]["shape"] == "plateau"
    assert "ema is 1.5" in mistake("train", recipe, "--ema", 1.5)
    assert "clip_norm is 0.0" in mistake("train", recipe, "--clip-norm", 0)


@pytest.mark.parametrize("recipe", ["citations", "full-graph"])
def test_loggers_are_chosen(weft, tmp_path, small_cora, monkeypatch, recipe):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    said = weft("train", recipe, "--epochs", 2, "--out", "run", "--logger", "mlflow", "--quiet")
    assert said.code == 0
    assert "tensorboard" not in said.out
    run = tmp_path / "run"
    assert not (run / "tensorboard").exists()
    own = json.loads((run / "loggers.json").read_text())["mlflow"]
    (accuracy,) = run.glob(f"mlruns/*/{own}/metrics/validation_accuracy")
    assert len(accuracy.read_text().splitlines()) == 2


def test_a_logger_whose_package_is_missing(mistake, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.training.loggers.find_spec", lambda name: None)
    told = mistake("train", "molecules", "--logger", "tensorboard", "wandb", "--out", "run")
    assert "pip install 'weft[loggers]'" in told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recipe", ["molecules", "crystals", "programs", "nodes", "links"])
def test_a_device_that_is_not_there(mistake, tmp_path, recipe):
    for device in ("cuda", "cuda:1", "tpu"):
        for ranks in ((), ("--ranks", 2)):
            told = mistake("train", recipe, "--device", device, "--out", "run", *ranks)
            assert "choose" in told
            assert device in told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("recipe", "options", "file"),
    [
        ("molecules", ("--data", "mols.extxyz", "--target", "energy"), "mols.extxyz"),
        ("nodes", ("--data", "cora", "--hidden", 8), None),
        ("links", ("--data", "edges.txt", "--dim", 8, "--hidden", 8, "--walks", 20), "pairs.txt"),
        ("programs", ("--data", "code", *PROGRAMS), "code"),
    ],
)
def test_a_whole_command_on_another_device(
    weft, tmp_path, monkeypatch, small_molecules, small_cora, recipe, options, file
):
    write_edges(circles(), tmp_path / "edges.txt")
    (tmp_path / "pairs.txt").write_text("0 1\n2 3\n")
    write_code(tmp_path / "code")
    words = ("train", recipe, *options, "--epochs", 2, "--quiet")
    assert weft(*words, "--out", "here").code == 0
    monkeypatch.setattr("weft.parallel.device.replica_device", lambda name, ranks=None: DEVICE)
    with Elsewhere():
        assert weft(*words, "--out", "there", "--device", "cuda").code == 0
    # The CPU predicts with either.
    told = [weft("predict", run, *([] if file is None else [file])) for run in ("here", "there")]
    assert [said.code for said in told] == [0, 0]
    assert told[0].out.count("\n") == told[1].out.count("\n")
    here, there = losses(tmp_path / "here"), losses(tmp_path / "there")
    assert [line.keys() for line in there] == [line.keys() for line in here]
    assert there[-1]["train_loss"] == pytest.approx(here[-1]["train_loss"], rel=1e-3)


@pytest.mark.parametrize("forces", [(), ("--forces", "forces", "--model", "painn")])
def test_products_in_bfloat16(weft, tmp_path, small_molecules, forces):
    words = (*MOLECULES, *forces, "--epochs", 2, "--quiet")
    for precision in ("float32", "bf16"):
        assert weft(*words, "--precision", precision, "--out", precision).code == 0
    exact, near = (losses(tmp_path / run)[-1]["train_loss"] for run in ("float32", "bf16"))
    assert near != exact
    assert near == pytest.approx(exact, rel=0.1)
    weights = load_file(tmp_path / "bf16" / "weights.safetensors")
    assert {str(each.dtype) for each in weights.values()} == {"torch.float32", "torch.float64"}


def test_the_option_that_programs_had_before(weft):
    words = ("train", "programs", "--layout.form", "banded", "--print-config")
    assert json.loads(weft(*words, "--bf16").out)["precision"] == "bf16"
