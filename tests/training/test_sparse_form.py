"""Training with the active weights only: as with masks, and resumed to the bit."""

from __future__ import annotations

import itertools
import os
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from temporal_graphs import circles, grouped
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from weft.errors import DataError
from weft.models import FNN, FNNConfig
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.training import PreparedLinks, make_fnn, prepare_links
from weft.recipes.nodes.config import NodesConfig
from weft.recipes.nodes.training import prepare_nodes
from weft.recipes.sparse_training import train_network
from weft.sparsify import Masks, random_masks
from weft.sparsify.sparse_layers import SparseLinear
from weft.training import Run, read_metrics
from weft.training.sparse_form import load_dense, sparse_layers, to_sparse_form

WAYS = ("rigl", "set", "snfs", "random", "magnitude", "snip", "grasp", "synflow")
CASES = [*((name, "weights") for name in WAYS), ("rigl", "fan-in"), ("snip", "units")]
SMALL: dict[str, Any] = {
    "features": False,
    "dim": 6,
    "hidden": (24, 12),
    "batch_size": 64,
    "epochs": 6,
    "walks": 50,
}


@cache
def links() -> PreparedLinks:
    return prepare_links(circles(), LinksConfig(**SMALL))


def with_settings(prepared: PreparedLinks, **settings: Any) -> PreparedLinks:
    return replace(prepared, config=replace(prepared.config, **settings))


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of float64."""
    monkeypatch.setattr(
        "weft.recipes.links.training.make_fnn", lambda config: make_fnn(config).double()
    )


def dense_weights(model: FNN) -> list[Tensor]:
    return [layer.weight.detach() for layer in model.layers]  # type: ignore[operator]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("name", "structure"), CASES)
def test_the_same_curve_as_with_masks(name: Any, structure: str, tmp_path: Path) -> None:
    exact = replace(links(), embedding=links().embedding.astype(np.float64))
    found = {}
    for form in ("dense", "sparse"):
        prepared = with_settings(
            exact, sparsify=name, structure=structure, sparsity=0.8, form=form, momentum=0.5
        )
        with Run.create(tmp_path / form, prepared.config, tensorboard=False) as run:
            trained = train_network(prepared, run=run, quiet=True)
        curve = [line["train_loss"] for line in read_metrics(run.folder) if "train_loss" in line]
        found[form] = trained, curve
    dense, sparse = found["dense"][0], found["sparse"][0]
    assert len(found["dense"][1]) == 6
    assert found["sparse"][1] == pytest.approx(found["dense"][1], rel=1e-9)
    assert sparse.counts == dense.counts
    assert sparse.result.best_metrics["sparsity"] == dense.result.best_metrics["sparsity"]
    # Units of the last layer are the outputs.
    replaced = [isinstance(layer, SparseLinear) for layer in sparse.model.layers]
    assert replaced == [True, True, structure != "units"]
    for one, other in zip(dense_weights(dense.model), dense_weights(sparse.model), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-12)
        assert torch.equal(one == 0, other == 0)


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_a_stopped_run_goes_on_to_the_same_weights(
    tmp_path: Path, name: Any, structure: str
) -> None:
    # Averages of weights that move too.
    prepared = with_settings(
        links(),
        sparsify=name,
        structure=structure,
        sparsity=0.8,
        form="sparse",
        momentum=0.5,
        ema=0.9,
    )
    with Run.create(tmp_path / "whole", prepared.config, tensorboard=False) as run:
        whole = train_network(prepared, run=run, quiet=True)
    steps = itertools.count(1)

    def hook(module: nn.Module, _: object) -> None:
        if isinstance(module, FNN) and module.training and next(steps) == 70:
            os.kill(os.getpid(), signal.SIGTERM)

    handle = register_module_forward_pre_hook(hook)
    try:
        with Run.create(tmp_path / "cut", prepared.config, tensorboard=False) as run:
            first = train_network(prepared, run=run, quiet=True)
    finally:
        handle.remove()
    assert first.result.stopped == "interrupted by SIGTERM"
    with Run.create(tmp_path / "cut", prepared.config, resume=True, tensorboard=False) as run:
        second = train_network(prepared, run=run, quiet=True)
    for one, other in zip(sparse_layers(whole.model), sparse_layers(second.model), strict=True):
        assert torch.equal(one.values, other.values)  # type: ignore[arg-type]
        assert torch.equal(one.pattern, other.pattern)  # type: ignore[arg-type]
    assert second.scores == whole.scores
    files = [load_file(tmp_path / run / "weights.safetensors") for run in ("whole", "cut")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])


def test_weights_go_into_a_dense_model_and_a_run_of_either_form(tmp_path: Path) -> None:
    prepared = with_settings(links(), sparsify="rigl", sparsity=0.8, form="sparse")
    with Run.create(tmp_path / "run", prepared.config, tensorboard=False) as run:
        trained = train_network(prepared, run=run, quiet=True)
    model = make_fnn(prepared.config)
    load_dense(model, tmp_path / "run")
    for one, other in zip(dense_weights(trained.model), dense_weights(model), strict=True):
        assert torch.equal(one, other)
    still = with_settings(links(), learning_rate=0.0, epochs=1)
    again = train_network(still, init_from=tmp_path / "run", quiet=True)
    assert all(map(torch.equal, dense_weights(again.model), dense_weights(trained.model)))
    # Those of a dense run too.
    with Run.create(tmp_path / "dense", still.config, tensorboard=False) as run:
        dense = train_network(still, run=run, quiet=True)
    load_dense(model, tmp_path / "dense")
    assert all(map(torch.equal, dense_weights(dense.model), dense_weights(model)))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_form_changes_no_output(activation: Any) -> None:
    torch.manual_seed(0)
    model = FNN((6, 8, 5, 3), FNNConfig(activation=activation))
    x = torch.randn(20, 6)
    masks = Masks(model)
    random_masks(model, masks, 0.5)
    masks.apply_()
    before, drawn = model(x), torch.random.get_rng_state()
    to_sparse_form(model, masks)
    torch.testing.assert_close(model(x), before)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert (before.min() < 0) == (model(x).min() < 0)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    model = FNN((6, 8, 1))
    masks = Masks(model)
    random_masks(model, masks, 0.5)
    to_sparse_form(model, masks)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    path = tmp_path / "w.safetensors"
    save_file(state, path)
    load_dense(FNN((6, 8, 1)), path)
    broken = {**state, "layers.0.pattern": state["layers.0.pattern"] + 1}
    save_file(broken, path)
    with pytest.raises(DataError, match=r"w\.safetensors is of another model, or damaged"):
        load_dense(FNN((6, 8, 1)), path)
    with pytest.raises(DataError, match=r"is of another model"):
        load_dense(FNN((6, 3, 1)), path)


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("name", ["rigl", "set", "snfs", "random"])
def test_costs_of_a_step(form: Any, name: Any) -> None:
    prepared = with_settings(links(), sparsify=name, sparsity=0.8, form=form, epochs=4)
    found = train_network(prepared, quiet=True, measure_step=True)
    costs = found.costs
    assert costs is not None
    weights = 12 * 24 + 24 * 12 + 12
    share = round(0.2 * weights) / weights
    if name in ("set", "random"):
        assert costs.flops == pytest.approx(share, rel=0.01)
    elif name == "rigl":
        # Updates after every fifth step of 108, before step 81: 16 dense gradients.
        steps = found.result.steps
        every = max(1, steps // 20)
        updates = (int(np.ceil(0.75 * steps)) - 1) // every
        assert costs.flops == pytest.approx(share + updates / steps * (1 - share) / 3, rel=0.01)
    else:
        assert costs.flops == pytest.approx(share + 0.75 * (1 - share) / 3, rel=0.02)
    assert costs.seconds > 0
    assert costs.dense_seconds > 0
    assert len(costs.ratios) == 3


def test_no_costs_where_nothing_is_sparse_or_asked() -> None:
    assert (
        train_network(with_settings(links(), epochs=1), measure_step=True, quiet=True).costs is None
    )
    prepared = with_settings(links(), epochs=1, sparsify="random")
    assert train_network(prepared, quiet=True).costs is None


def test_classes_of_nodes() -> None:
    small = {"dim": 12, "epochs": 20, "batch_size": 16, "walks": 100, "hidden": (24,)}
    ways = [
        train_network(
            prepare_nodes(
                grouped(),
                NodesConfig(model="fnn", sparsify="rigl", sparsity=0.5, form=form, **small),  # type: ignore[arg-type]
            ),
            quiet=True,
            measure_step=True,
        )
        for form in ("dense", "sparse")
    ]
    assert ways[0].counts["weights"] == ways[1].counts["weights"]
    assert ways[1].scores["test"].value == pytest.approx(ways[0].scores["test"].value, abs=0.1)
    assert ways[0].costs is not None
    assert ways[1].costs is not None
    assert ways[0].costs.flops == pytest.approx(ways[1].costs.flops)


@pytest.mark.parametrize("name", ["none", "gmp", "slr", "admm", "oneshot", "lottery"])
def test_methods_that_need_all_weights_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=r"form is sparse, but .* choose sparsify from rigl, set"):
        LinksConfig(sparsify=name, form="sparse")


def test_other_mistakes() -> None:
    with pytest.raises(ValueError, match="form is 'csr'; choose from dense, sparse"):
        LinksConfig(form="csr")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a gcn's layers have no sparse form: choose model = fnn"):
        NodesConfig(sparsify="rigl", form="sparse")
    model = nn.Sequential(nn.Conv1d(4, 4, 3))
    with pytest.raises(ValueError, match="'0' is a Conv1d, which has no sparse form"):
        to_sparse_form(model, Masks(model))
