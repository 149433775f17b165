from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.graphs import Budget, GraphBatch, GraphTable, assemble, table_from_graphs
from weft.kernels import (
    gather_receivers,
    gather_senders,
    segment_mean,
    segment_sum,
    spmm,
    sum_to_receivers,
)
from weft.sources.synthetic import small_graphs
from weft.training import FitConfig, Run, fit, load_weights
from weft.training.compilation import Compilation, why_not_inductor, worth_compiling

# Traces forward and backward as inductor has it done, without machine code.
TRACED = "aot_eager"
# Traces forward only: enough to count.
COUNTED = "eager"


@pytest.fixture(autouse=True)
def _fresh_torch() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def table() -> GraphTable:
    return table_from_graphs(list(small_graphs(60)))


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, batch: GraphBatch) -> Tensor:
        h = self.first(batch.nodes["pos"])
        h = torch.relu(spmm(batch, h, batch.edges["distance"]))
        return segment_mean(self.last(h), batch.node_offsets, batch.node_graph)[:, 0]


def padded(table: GraphTable, count: int = 4, *, nodes: int = 200) -> list[GraphBatch]:
    budget = Budget(nodes=nodes, edges=500, graphs=9)
    return [assemble(table, range(8 * i, 8 * i + 8), budget) for i in range(count)]


def unpadded(table: GraphTable, count: int = 4) -> list[GraphBatch]:
    return [assemble(table, range(8 * i, 8 * i + 8)) for i in range(count)]


def answer(called: nn.Module, model: nn.Module, batch: GraphBatch) -> list[Tensor]:
    """Output and gradients."""
    out = called(batch)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), list(model.parameters()))]


def run(compilation: Compilation, batches: list[GraphBatch]) -> None:
    """Forward and backward over the batches, equal to the plain model's."""
    model = Tiny()
    compiled = compilation.wrap(model)
    for batch in batches:
        torch.testing.assert_close(answer(compiled, model, batch), answer(model, model, batch))


def test_equal_shapes_compile_once(table: GraphTable) -> None:
    for mode in ("static", "dynamic"):
        compilation = Compilation(mode, backend=TRACED)
        run(compilation, padded(table))
        assert (compilation.compilations, compilation.recompiles) == (1, 0)
        assert compilation.events[0].cause == "the first call"
        assert compilation.events[0].graph_breaks == ()


def test_static_compiles_each_shape_once_and_names_it(table: GraphTable) -> None:
    compilation = Compilation("static", backend=TRACED)
    batches = unpadded(table)
    run(compilation, [*batches, *batches])
    assert (compilation.compilations, compilation.recompiles) == (4, 3)
    first, second = batches[0], batches[1]
    assert compilation.events[1].cause == (
        f"batch.num_nodes {first.num_nodes} -> {second.num_nodes}, "
        f"batch.num_edges {first.num_edges} -> {second.num_edges}"
    )


def test_dynamic_compiles_once_for_all_shapes(table: GraphTable) -> None:
    compilation = Compilation("dynamic", backend=TRACED)
    run(compilation, [*unpadded(table), assemble(table, range(3))])
    assert compilation.compilations == 1


def test_sizes_equal_by_chance_do_not_tie_dynamic_code() -> None:
    class Sums(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a.sum() + b.sum()

    compilation = Compilation("dynamic", backend=COUNTED)
    model = compilation.wrap(Sums())
    for m, n in ((5, 5), (4, 7), (9, 2)):
        assert model(torch.ones(m), torch.ones(n)) == m + n
    assert compilation.compilations == 1


def test_a_change_is_told_against_the_nearest_shape(table: GraphTable) -> None:
    a, b = padded(table, 1, nodes=200)[0], padded(table, 1, nodes=300)[0]
    compilation = Compilation("static", backend=COUNTED)
    model = compilation.wrap(Tiny())
    model(a)
    model(assemble(table, range(3)))
    model(b)
    model(b.replace(edges={"distance": b.edges["distance"].double().float()[:, None]}))
    with torch.no_grad():
        model.eval()(b)
    causes = [event.cause for event in compilation.events]
    assert causes[2:] == [
        "batch.num_nodes 200 -> 300",
        "batch.edges['distance'] float32 [rows] -> float32 [rows, 1]",
        "training True -> False, gradients True -> False",
    ]


def test_what_is_not_a_shape_is_told_by_torch(table: GraphTable) -> None:
    class Scaled(Tiny):
        scale = 1.0

        def forward(self, batch: GraphBatch) -> Tensor:
            return super().forward(batch) * self.scale

    model = Scaled()
    compilation = Compilation("static", backend=COUNTED)
    compiled = compilation.wrap(model)
    batch = padded(table, 1)[0]
    before = compiled(batch)
    model.scale = 2.0
    torch.testing.assert_close(compiled(batch), 2 * before)
    assert compilation.recompiles == 1
    assert compilation.events[1].cause.startswith("torch says: ")
    assert "scale" in compilation.events[1].cause


def test_arguments_of_any_kind_are_named() -> None:
    class Sum(nn.Module):
        def forward(
            self, x: Tensor, more: list[Tensor], *, power: int, named: Any = None
        ) -> Tensor:
            return (x.sum() + more[0].sum() + named["y"].sum()) ** power

    compilation = Compilation("static", backend=COUNTED)
    model = compilation.wrap(Sum())
    model(torch.ones(3), [torch.ones(2)], power=1, named={"y": torch.ones(1)})
    model(torch.ones(3), [torch.ones(4)], power=2, named={"y": torch.ones(1, 1).double()})
    assert compilation.events[1].cause == (
        "more[0] float32 [2] -> float32 [4], power 1 -> 2, named['y'] float32 [1] -> float64 [1, 1]"
    )


def test_more_shapes_than_torch_allows_and_no_setting_changed() -> None:
    config = torch._dynamo.config
    settings = (config.recompile_limit, config.accumulated_recompile_limit)
    compilation = Compilation("static", backend=COUNTED)
    model = compilation.wrap(nn.Linear(3, 2))
    count = config.recompile_limit + 4
    for rows in range(2, count + 2):
        model(torch.ones(rows, 3))
    assert compilation.compilations == count
    assert (config.recompile_limit, config.accumulated_recompile_limit) == settings
    handler = torch._dynamo.callback.callback_handler
    assert not handler.start_callbacks
    assert not handler.end_callbacks


def test_past_the_limit_eager_with_one_warning(table: GraphTable) -> None:
    compilation = Compilation("static", backend=COUNTED, limit=2)
    batches = unpadded(table)
    with pytest.warns(UserWarning, match=r"compiled for 2 shapes .*num_nodes.* packed") as caught:
        run(compilation, [*batches, *batches])
    assert len(caught) == 1
    assert compilation.compilations == 2
    assert compilation.eager_calls == 4


def test_dynamic_code_stays_in_use_past_the_limit(table: GraphTable) -> None:
    compilation = Compilation("dynamic", backend=COUNTED, limit=1)
    model = Tiny()
    compiled = compilation.wrap(model)
    for batch in unpadded(table):
        compiled(batch)
    assert compilation.eager_calls == 0
    with torch.no_grad(), pytest.warns(UserWarning, match="compiled 1 times"):
        torch.testing.assert_close(compiled(batch), model(batch))
    assert (compilation.compilations, compilation.eager_calls) == (1, 1)


# torch's own warning, when it goes on after the break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_graph_breaks_are_reported(table: GraphTable) -> None:
    class Broken(Tiny):
        def forward(self, batch: GraphBatch) -> Tensor:
            out = super().forward(batch)
            torch._dynamo.graph_break()
            return out + 1

    compilation = Compilation("static", backend=COUNTED)
    model = compilation.wrap(Broken())
    with pytest.warns(UserWarning, match="cannot compile the model whole.*graph_break") as caught:
        list(map(model, unpadded(table, 2)))
    assert len([w for w in caught if "whole" in str(w.message)]) == 1
    assert compilation.compilations == 2
    (words,) = compilation.report()["graph_breaks"]
    assert "graph_break" in words


def test_forces_train_compiled(table: GraphTable) -> None:
    class Forces(nn.Module):
        """Energies and forces; the loss of both needs second derivatives."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(1, 8), nn.Linear(8, 1)

        def forward(self, batch: GraphBatch) -> Tensor:
            pos = batch.nodes["pos"]
            vector = gather_senders(batch, pos) - gather_receivers(batch, pos)
            distance = (vector.square().sum(1, keepdim=True) + 1e-6).sqrt()
            h = sum_to_receivers(batch, self.first(distance).tanh())
            energy = segment_sum(self.last(h.tanh()), batch.node_offsets, batch.node_graph)
            (slope,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)
            return torch.cat([energy[:, 0], -slope.flatten()])

    model = Forces()
    for mode in ("static", "dynamic"):
        compilation = Compilation(mode, backend=TRACED)
        compiled = compilation.wrap(model)
        for batch in padded(table, 2):
            pos = batch.nodes["pos"].requires_grad_()
            batch = batch.replace(nodes={"pos": pos})
            torch.testing.assert_close(answer(compiled, model, batch), answer(model, model, batch))
        assert compilation.compilations == 1
        assert compilation.report()["graph_breaks"] == []


def test_pairs_are_compiled_like_the_rest(table: GraphTable) -> None:
    class Paired(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter = nn.Linear(1, 3)

        def forward(self, batch: GraphBatch) -> Tensor:
            distance = batch.edges["distance"][batch.pairs["forward"]]
            weight = self.filter(distance[:, None])[batch.pairs["of_edge"]]
            return spmm(batch, batch.nodes["pos"], weight)

    def with_pairs(batch: GraphBatch) -> GraphBatch:
        count = (batch.num_edges + 1) // 2
        of_edge = torch.arange(batch.num_edges) // 2
        return batch.replace(
            pairs={"forward": 2 * torch.arange(count), "backward": of_edge, "of_edge": of_edge}
        )

    model = Paired()
    for mode, batches, expected in (
        ("static", padded(table, 2), 1),
        ("dynamic", unpadded(table, 2), 1),
    ):
        compilation = Compilation(mode, backend=TRACED)
        compiled = compilation.wrap(model)
        for batch in map(with_pairs, batches):
            torch.testing.assert_close(answer(compiled, model, batch), answer(model, model, batch))
        assert compilation.compilations == expected


def test_assertion_names_what_changed(table: GraphTable) -> None:
    compilation = Compilation("static", backend=COUNTED)
    model = compilation.wrap(Tiny())
    with compilation.assert_at_most(1):
        for batch in padded(table, 2):
            model(batch)

    def too_often() -> None:
        with compilation.assert_at_most(1):
            for batch in unpadded(table, 2):
                model(batch)

    with pytest.raises(AssertionError, match=r"compiled 2 times, at most 1 expected:\n  1\. batch"):
        too_often()


def test_fit_trains_checkpoints_and_evaluates_compiled(table: GraphTable, tmp_path: Path) -> None:
    def loss(model: nn.Module, batch: GraphBatch) -> Tensor:
        error = (model(batch) - batch.graphs["energy"]) * batch.graph_mask
        return error.square().sum() / batch.graph_mask.sum()

    def evaluate(model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"error": float(loss(model, batches[0]))}

    def train(wrap: Callable[[nn.Module], nn.Module], folder: Path) -> nn.Module:
        torch.manual_seed(0)
        model = Tiny()
        with Run.create(folder, {}) as run:
            fit(
                wrap(model),
                torch.optim.Adam(model.parameters(), lr=0.01),
                batches,
                loss,
                config=FitConfig(epochs=2, quiet=True),
                evaluate=evaluate,
                run=run,
            )
        assert model.training
        return model

    batches = padded(table)
    compilation = Compilation("static", backend=TRACED)
    with compilation.assert_at_most(2):
        compiled = train(compilation.wrap, tmp_path / "compiled")
    plain = train(lambda model: model, tmp_path / "plain")
    torch.testing.assert_close(compiled.state_dict(), plain.state_dict())
    again = Tiny()
    load_weights(again, tmp_path / "compiled")
    torch.testing.assert_close(again.state_dict(), compiled.state_dict())


def test_wrapped_model_stands_for_the_model() -> None:
    model = Tiny()
    compiled = Compilation("static", backend=COUNTED).wrap(model)
    assert compiled.first is model.first
    model.eval()
    assert not compiled.training
    compiled.train()
    assert model.training
    assert model.first.training
    with pytest.raises(AttributeError, match="nothing"):
        _ = compiled.nothing


def test_a_copy_has_code_of_its_own(table: GraphTable) -> None:
    batch = padded(table, 1)[0]
    compiled = Compilation("static", backend=COUNTED).wrap(Tiny())
    before = compiled(batch)
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        twin.last.bias += 1
    torch.testing.assert_close(compiled(batch), before)
    torch.testing.assert_close(twin(batch), before + (batch.node_offsets.diff() > 0))


def test_eager_is_the_model_itself() -> None:
    model = Tiny()
    compilation = Compilation("eager")
    assert compilation.wrap(model) is model
    assert compilation.report() == {
        "mode": "eager",
        "compilations": 0,
        "recompiles": 0,
        "compile_seconds": 0,
        "graph_breaks": [],
        "eager_calls": 0,
        "causes": [],
    }


def test_without_a_compiler_a_warning_and_eager() -> None:
    from torch._inductor import config

    model = Tiny()
    compilation = Compilation("static")
    with (
        config.patch({"cpp.cxx": (None, "no-such-compiler")}),
        pytest.warns(UserWarning, match=r"C\+\+ compiler .*CXX.* without compilation") as caught,
    ):
        assert compilation.wrap(model) is model
    assert len(caught) == 1
    assert compilation.report()["mode"] == "eager"


def test_without_headers_a_warning_and_eager(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch._inductor import cpp_builder

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: "g++")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    model = Tiny()
    with pytest.warns(UserWarning, match=r"Python\.h does not exist \(install python3-dev\)"):
        assert Compilation("dynamic").wrap(model) is model


def test_machine_code_of_inductor(table: GraphTable) -> None:
    missing = why_not_inductor()
    if missing is not None:
        pytest.skip(missing)
    compilation = Compilation("static")
    with warnings.catch_warnings():
        # Of torch's own making, while it compiles.
        warnings.simplefilter("ignore")
        run(compilation, padded(table, 2))
    assert compilation.compilations == 1
    assert compilation.eager_calls == 0
    assert compilation.report()["graph_breaks"] == []
    assert compilation.seconds == compilation.events[0].seconds > 0


def test_compile_time_is_apart_from_run_time() -> None:
    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        made.append(graph)
        return graph.forward

    made: list[torch.fx.GraphModule] = []
    compilation = Compilation("static", backend=backend)
    model = compilation.wrap(nn.Linear(3, 2))
    model(torch.ones(4, 3))
    after_compiling = compilation.seconds
    model(torch.ones(4, 3))
    assert after_compiling > 0
    assert compilation.seconds == after_compiling
    assert len(made) == compilation.compilations == 1


@pytest.mark.parametrize(
    ("steps", "compiled_step", "pays", "needed"),
    [(1000, 0.01, True, 1000), (999, 0.01, False, 1000), (10**6, 0.03, False, math.inf)],
)
def test_worth_compiling(steps: int, compiled_step: float, pays: bool, needed: float) -> None:
    payoff = worth_compiling(
        steps, compile_seconds=10.0, eager_step=0.02, compiled_step=compiled_step
    )
    assert (payoff.pays, payoff.steps_needed) == (pays, needed)
    assert payoff.words.startswith("compile:" if pays else "do not compile:")
    if needed < math.inf:
        assert "pays from 1,000 steps on" in payoff.words


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match="'fast'; it must be one of eager, static, dynamic"):
        Compilation("fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit is 0"):
        Compilation("static", limit=0)
