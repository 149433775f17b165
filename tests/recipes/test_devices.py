"""Recipes on a device that is not the CPU: the same results, and no step that waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import small_programs
import torch
from small_code import write_code
from small_structures import config, metals, molecules, table_of
from temporal_graphs import circles, grouped
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from stand_in_device import DEVICE, Elsewhere, There
from weft.batching import BatchingConfig
from weft.layout.config import LayoutConfig
from weft.parallel.grid import Grid
from weft.parallel.world import alone
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.training import prepare_links
from weft.recipes.nodes.config import NodesConfig
from weft.recipes.nodes.training import prepare_nodes
from weft.recipes.programs.data import read_programs
from weft.recipes.programs.training import train_programs
from weft.recipes.sparse_training import train_network
from weft.recipes.structures.training import train_structures
from weft.training import NonFiniteLoss, Run

SMALL: dict[str, Any] = {"dim": 6, "hidden": (12,), "walks": 20}
PACKED = BatchingConfig(policy="packed", batch_size=8)
Train = Callable[..., Any]


def structures(folder: Path, **options: Any) -> Train:
    made = metals() if options.get("stress") else molecules()
    asked = config(**{"ema": 0.9, "clip_norm": 1.0, "batching": PACKED, **options})
    table = table_of(folder, made, asked)
    return lambda epochs, **session: train_structures(
        table, replace(asked, epochs=epochs), quiet=True, **session
    )


def network(prepared: Any) -> Train:
    return lambda epochs, **session: train_network(
        replace(prepared, config=replace(prepared.config, epochs=epochs)), quiet=True, **session
    )


def nodes(folder: Path, **options: Any) -> Train:
    graph = grouped()
    if options["model"] == "gcn":
        graph = replace(graph, nodes={**graph.nodes, "x": torch.eye(graph.num_nodes).numpy()})
    return network(prepare_nodes(graph, NodesConfig(**SMALL, **options)))


def links(folder: Path, **options: Any) -> Train:
    return network(prepare_links(circles(), LinksConfig(**SMALL, batch_size=101, **options)))


def programs(folder: Path, *, misuse: bool = False, **options: Any) -> Train:
    table = small_programs.small_programs(40)
    if misuse:
        code = write_code(folder / "code", files=12)
        table = read_programs(str(code), target="misuse", data_dir=folder, progress=False)
        options |= {"nodes": 256}
    asked = small_programs.config(dropout=0.1, start="subtokens", **options)
    return lambda epochs, **session: train_programs(
        table, replace(asked, epochs=epochs), quiet=True, **session
    )


def layout(form: Any) -> LayoutConfig:
    return LayoutConfig(form=form, block={"banded": 32, "dense": 16}.get(form))


CASES: dict[str, Callable[[Path], Train]] = {
    "molecules": partial(structures),
    "forces": partial(structures, forces="forces", readout="sum", model="painn"),
    "crystals": partial(
        structures,
        forces="forces",
        stress="stress",
        readout="sum",
        batching=replace(PACKED, batch_size=4),
    ),
    "mpeu": partial(structures, model="mpeu"),
    "fnn": partial(nodes, model="fnn", batch_size=20),
    "gcn": partial(nodes, model="gcn"),
    "links": partial(links, sparsify="rigl", sparsity=0.5, update_every=3),
    "penalty": partial(links, sparsify="admm", sparsity=0.5),
    "csr": partial(programs, layout=layout("csr")),
    "banded": partial(programs, layout=layout("banded"), supergraphs_per_step=2),
    "dense": partial(programs, layout=layout("dense")),
    "misuse": partial(programs, misuse=True, layout=layout("csr")),
}
STATIC = ("molecules", "forces", "crystals", "mpeu", "banded", "dense")
# ADMM has three phases.
EPOCHS = {"penalty": 4}


@dataclass
class Watch:
    """What was done in each step: from the first forward pass, and from the end of the one before.

    Attributes:
        waits: for which operations the CPU has waited between the two and the optimizer.
        done: all operations from the end of the step before.
        held: addresses of the weights and of the optimizer's state after the step.
    """

    there: Elsewhere
    waits: list[tuple[list[str], list[str]]] = field(default_factory=list)
    done: list[list[Any]] = field(default_factory=list)
    held: list[list[int]] = field(default_factory=list)
    forward: int | None = None
    end: int = 0

    def begin(self, model: torch.nn.Module, arguments: Any) -> None:
        if self.forward is None and model.training:
            self.forward = len(self.there.waits)

    def close(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        waits = self.there.waits
        self.waits.append((waits[self.forward :], waits[self.end :]))
        self.forward, self.end = None, len(waits)
        self.done.append(self.there.done)
        self.there.done = []
        state = optimizer.state_dict()["state"].values()
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        tensors = [*weights, *(value for each in state for value in each.values())]
        held = [t.detach() for t in tensors if isinstance(t, torch.Tensor)]
        self.held.append([t.inner.data_ptr() for t in held if isinstance(t, There)])


@dataclass
class Both:
    """A training on the CPU, the same on the device, its weights, and what its steps did."""

    here: Any
    there: Any
    weights: list[torch.Tensor]
    watch: Watch

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return self.there.result.steps // self.there.result.epochs


def watched(train: Train, epochs: int, ranks: int = 1) -> tuple[Any, Watch]:
    """A training on the device, by one of some ranks of which the others are not there."""
    with Elsewhere() as device:
        device.done = []
        watch = Watch(device)
        handles = [
            register_module_forward_pre_hook(watch.begin),
            register_optimizer_step_post_hook(watch.close),
        ]
        try:
            return train(epochs, world=alone(Grid(rows=ranks), 0, DEVICE)), watch
        finally:
            for handle in handles:
                handle.remove()


@cache
def trained(name: str) -> Both:
    epochs = EPOCHS.get(name, 2)
    with TemporaryDirectory() as folder:
        train = CASES[name](Path(folder))
        here = train(epochs, world=alone(Grid(rows=1), 0))
        there, watch = watched(train, epochs)
    with Elsewhere():
        assert {type(p.data) for p in there.model.parameters()} == {There}
        weights = [p.detach().cpu() for p in there.model.parameters()]
    return Both(here, there, weights, watch)


@pytest.fixture(params=CASES)
def both(request: pytest.FixtureRequest) -> Both:
    return trained(request.param)


def test_another_device_has_all_that_is_computed_with(both: Both) -> None:
    here, there = both.here, both.there
    assert there.result.steps == here.result.steps >= 2
    for name, value in here.result.metrics.items():
        assert there.result.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    for one, other in zip(here.model.parameters(), both.weights, strict=True):
        torch.testing.assert_close(other, one.detach(), rtol=1e-2, atol=1e-3)
    assert here.scores.keys() == there.scores.keys()


def test_no_step_waits_for_the_device(both: Both) -> None:
    waits = both.watch.waits
    assert len(waits) == both.there.result.steps
    # Changes of masks read how many weights there are.
    changes = {3, 6, 9, 12} if both is trained("links") else set()
    for step, (own, whole) in enumerate(waits, start=1):
        if step not in changes:
            # Every tenth step is logged; after an epoch the model is evaluated.
            between = step % 10 == 1 or (step - 1) % both.steps == 0
            assert (own if between else whole) == [], step


@pytest.mark.parametrize("name", ["forces", "penalty", "banded"])
def test_no_step_that_ranks_share_waits(name: str, tmp_path: Path) -> None:
    found, watch = watched(CASES[name](tmp_path), EPOCHS.get(name, 1), ranks=2)
    assert len(watch.waits) == found.result.steps
    assert [own for own, _ in watch.waits] == [[]] * found.result.steps


@pytest.mark.parametrize("name", STATIC)
def test_packed_steps_have_the_same_shapes_at_the_same_addresses(name: str) -> None:
    both = trained(name)
    # The first step makes the optimizer's state, the first of an epoch comes after an evaluation.
    pairs = [(2, 3), (both.steps + 2, both.steps + 3), (2, both.steps + 2)]
    assert both.steps >= 3
    for one, other in pairs:
        assert both.watch.done[one - 1] == both.watch.done[other - 1]
        assert both.watch.held[one - 1] == both.watch.held[other - 1] != []
    assert len({line[1] for line in both.watch.done[2] if line[0] == "copied from the CPU"}) > 10
    assert not any(line[0] == "moved from the CPU" for line in both.watch.done[2])


def on_device(train: Train, epochs: int, folder: Path) -> Any:
    with Elsewhere(), Run.create(folder, {}, tensorboard=False) as run:
        return train(epochs, world=alone(Grid(rows=1), 0, DEVICE), run=run)


@pytest.mark.parametrize("name", ["molecules", "links", "gcn", "banded"])
def test_a_run_of_another_device_is_read_on_the_cpu(name: str, tmp_path: Path) -> None:
    train = CASES[name](tmp_path)
    there = on_device(train, 2, tmp_path / "run")
    with Run.create(tmp_path / "run", {}, tensorboard=False, resume=True) as run:
        found = train(2, run=run)
    assert found.result.metrics == there.result.metrics
    for one, other in zip(found.model.parameters(), there.model.parameters(), strict=True):
        assert torch.equal(one, other.inner if isinstance(other, There) else other.data.inner)


def test_a_run_goes_on_with_another_device(tmp_path: Path) -> None:
    train = CASES["molecules"](tmp_path)
    on_device(train, 1, tmp_path / "run")
    with Run.create(tmp_path / "run", {}, tensorboard=False, resume=True) as run:
        found = train(2, run=run)
    expected = trained("molecules").here.result
    assert found.result.steps == expected.steps
    assert found.result.metrics == pytest.approx(expected.metrics, rel=1e-3)


def test_a_loss_that_is_not_finite_is_named_when_it_is_read(tmp_path: Path) -> None:
    train = structures(tmp_path, learning_rate=1e30, clip_norm=None, ema=0.0)
    with pytest.raises(NonFiniteLoss, match=r"the loss is (nan|inf) at step \d \(epoch") as here:
        train(2)
    run = tmp_path / "run"
    with pytest.raises(NonFiniteLoss, match=rf"; {run}/last.pt holds an earlier, finite") as there:
        on_device(train, 2, run)
    assert there.value.step == here.value.step
    assert str(there.value).partition(";")[0] == str(here.value).partition(";")[0]
