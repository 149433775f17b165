"""Link prediction: it learns, every sparsifier leaves exactly what it should, runs resume."""

from __future__ import annotations

import itertools
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from temporal_graphs import circles
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from weft.models import FNN
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.training import PreparedLinks, prepare_links
from weft.recipes.sparse_training import TrainedNetwork, train_network
from weft.training import Run, read_metrics
from weft.training.config import SparsifierName

SMALL: dict[str, Any] = {
    "features": False,
    "dim": 6,
    "hidden": (20,),
    "batch_size": 64,
    "rounds": 2,
}
WEIGHTS = 12 * 20 + 20


@cache
def prepared(**settings: Any) -> PreparedLinks:
    return prepare_links(circles(), LinksConfig(**{**SMALL, "epochs": 8, **settings}))


def trained(**settings: Any) -> TrainedNetwork:
    return train_network(prepared(**settings), quiet=True)


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_it_learns_who_writes_to_whom() -> None:
    # Skip-gram passes over most of the visits of so few nodes.
    found = trained(walks=300)
    assert found.scores["auc"].value > 0.65
    assert found.scores["auc"].low < found.scores["auc"].value < found.scores["auc"].high
    assert found.scores["ap"].value > 0.6
    assert found.counts == {
        "nodes": 40,
        "train": 840,
        "validation": 120,
        "test": 240,
        "weights": WEIGHTS,
        "active": WEIGHTS,
    }
    assert found.result.best_metrics["validation_auc"] == found.result.best_metrics["selection"]


SPARSIFIERS = [name for name in get_args(SparsifierName) if name != "none"]


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_every_sparsifier_leaves_as_many_weights_as_asked(name: Any) -> None:
    found = trained(sparsify=name, sparsity=0.8)
    kept = round(0.2 * WEIGHTS)
    assert found.counts["active"] == kept
    assert found.result.best_metrics["sparsity"] == pytest.approx(0.8, abs=0.005)
    assert found.result.best_epoch is not None
    if name in ("slr", "admm", "oneshot"):
        # 4 epochs dense, 2 re-weighted (or dense), 2 retrained: the best is none of the first 6.
        assert found.result.best_epoch >= 6
    assert all(torch.isfinite(weight).all() for weight in weights(found.model))


@pytest.mark.parametrize("name", ["slr", "admm", "oneshot"])
def test_a_training_too_short_to_retrain_is_warned_of(name: Any) -> None:
    with pytest.warns(UserWarning, match=rf"{name} only prunes.* epochs=3 .*4 epochs or more"):
        found = trained(sparsify=name, sparsity=0.8, epochs=3)
    assert found.counts["active"] == round(0.2 * WEIGHTS)


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("name", ["rigl", "set", "snfs"])
def test_weights_that_are_active_and_zero_are_not_reported_as_sparsity(
    name: Any, form: Any
) -> None:
    # Weights that were grown stay at 0, where they started.
    found = trained(sparsify=name, sparsity=0.8, form=form, learning_rate=0.0)
    there = sum(int(torch.count_nonzero(weight)) for weight in weights(found.model)[::2])
    assert there < round(0.2 * WEIGHTS) == found.counts["active"]
    assert found.counts["weights"] == WEIGHTS


def test_the_sparsity_of_a_training_that_was_stopped_is_that_of_its_weights() -> None:
    """Those of the best epoch so far, which gradual pruning has since gone beyond."""
    with stop_at(100):
        found = trained(sparsify="gmp", sparsity=0.8, update_every=1)
    assert found.result.stopped.startswith("interrupted")
    there = sum(int(torch.count_nonzero(weight)) for weight in weights(found.model)[::2])
    assert 0.2 * WEIGHTS < there == found.counts["active"] < WEIGHTS


def stop_at(step: int) -> Any:
    """Ask the process to stop at this forward pass of a training model."""
    steps = itertools.count(1)

    def hook(module: nn.Module, _: object) -> None:
        if isinstance(module, FNN) and module.training and next(steps) == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return register_module_forward_pre_hook(hook)


@pytest.mark.parametrize(
    ("name", "step"),
    [("none", 30), ("rigl", 100), ("snfs", 90), ("slr", 150), ("admm", 190), ("gmp", 70),
     ("snip", 5), ("random", 60)],
)  # fmt: skip
def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path: Path, name: Any, step: int) -> None:
    settings = prepared(sparsify=name, sparsity=0.8, epochs=8)
    folders = tmp_path / "whole", tmp_path / "cut"
    with Run.create(folders[0], settings.config, tensorboard=False) as run:
        whole = train_network(settings, run=run, quiet=True)
    hook = stop_at(step)
    try:
        with Run.create(folders[1], settings.config, tensorboard=False) as run:
            first = train_network(settings, run=run, quiet=True)
    finally:
        hook.remove()
    assert first.result.stopped == "interrupted by SIGTERM"
    assert 0 < first.result.steps < whole.result.steps
    with Run.create(folders[1], settings.config, resume=True, tensorboard=False) as run:
        second = train_network(settings, run=run, quiet=True)
    assert second.result.steps == whole.result.steps
    assert all(map(torch.equal, weights(second.model), weights(whole.model)))
    logs = [
        [{k: v for k, v in line.items() if "second" not in k} for line in read_metrics(folder)]
        for folder in folders
    ]
    assert logs[0] == logs[1]


def test_a_lottery_that_is_stopped_before_the_last_training(tmp_path: Path) -> None:
    settings = prepared(sparsify="lottery", sparsity=0.8)
    hook = stop_at(3)
    try:
        with (
            Run.create(tmp_path / "run", settings.config, tensorboard=False) as run,
            pytest.raises(KeyboardInterrupt),
        ):
            train_network(settings, run=run, quiet=True)
    finally:
        hook.remove()
    with Run.create(tmp_path / "run", settings.config, resume=True, tensorboard=False) as run:
        found = train_network(settings, run=run, quiet=True)
    assert found.counts["active"] == round(0.2 * WEIGHTS)


def test_a_seed_gives_the_same_weights() -> None:
    first, again = trained(sparsify="rigl"), trained(sparsify="rigl")
    assert all(map(torch.equal, weights(first.model), weights(again.model)))
    assert first.scores == again.scores


def test_weights_of_another_run(tmp_path: Path) -> None:
    settings = prepared(epochs=2)
    with Run.create(tmp_path / "run", settings.config, tensorboard=False) as run:
        first = train_network(settings, run=run, quiet=True)
    still = prepared(epochs=1, learning_rate=0.0)
    second = train_network(still, init_from=tmp_path / "run", quiet=True)
    assert all(map(torch.equal, weights(first.model), weights(second.model)))


def test_sparse_embeddings() -> None:
    embedding = prepared(keep=0.25).embedding
    assert np.count_nonzero(embedding) == 60
    assert trained(keep=0.25, walks=300).scores["auc"].value > 0.55


def test_a_layer_that_would_be_empty_is_named() -> None:
    with pytest.raises(ValueError, match=r"leaves none of the 20 weights of layers\.1\.weight"):
        trained(sparsify="slr", sparsity=0.99)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsify": "magic"}, "sparsify is 'magic'; choose from none, rigl, set"),
        ({"sparsity": 1.0}, r"sparsity is 1\.0; it is from 0 \(dense\) to below 1"),
        ({"sparsity": -0.1}, r"sparsity is -0\.1"),
        ({"update_every": -1}, "update_every is -1; it must be at least 0"),
        ({"rounds": 0}, "rounds is 0; it must be at least 1"),
        ({"death": 1.5}, r"death is 1\.5"),
        ({"rho": 0.0}, r"rho is 0\.0; it must be above 0"),
        ({"length": 1}, "length is 1; it must be at least 2"),
        ({"epochs": -1}, "epochs is -1; it must be at least 0"),
        ({"epochs": 0, "sparsify": "rigl"}, "epochs is 0; it must be at least 1"),
        ({"patience": 0}, "patience is 0; it must be at least 1"),
        ({"death": 0.0}, r"death is 0\.0; it must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"hidden": (8, 0)}, r"hidden widths are \(8, 0\)"),
        ({"keep": 0.0}, r"keep is 0\.0; it is a fraction above 0"),
        ({"negatives": "near"}, "negatives is 'near'; choose from any, alive"),
        ({"momentum": 1.0}, r"momentum is 1\.0"),
        ({"test": 0.7, "validation": 0.3}, r"test is 0\.7 and validation 0\.3; give"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinksConfig(**settings)
