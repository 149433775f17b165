"""`weft.plan`: how to train a model of one's own on a table of graphs, found by measuring."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import multiprocessing
import pickle
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import torch
from rich.console import Console
from torch import nn
from torch.optim import Optimizer

from weft.batching import (
    POLICIES,
    BatchingConfig,
    GraphLoader,
    GraphSampler,
    PolicyName,
    graph_sizes,
)
from weft.graphs import GraphTable, open_table, write_table
from weft.planning.candidate import Candidate
from weft.planning.explain import show_plan
from weft.planning.plan import Measured, Plan, Target
from weft.planning.search import best_plan
from weft.planning.task import (
    ENDLESS,
    best_of,
    cached_plan,
    content_of,
    keep_plan,
    plan_key,
    thread_counts,
)
from weft.planning.worker import prepare_workers
from weft.training import Compilation, CompileMode, FitConfig, fit, seed_everything
from weft.training.step import Loss

_RECIPE = "own model"
_POLICY = "batching.policy"
# Of one shape or few, or of none; static-constant pads to the largest graph and never pays.
_SENSIBLE: tuple[PolicyName, ...] = ("packed", "dynamic", "static-64", "static-2^n", "unpadded")
# Policies that go on to the waves in which threads and compilers are tried.
_KEPT = 2


def plan(
    model_fn: Callable[[], nn.Module],
    table: GraphTable,
    *,
    loss: Loss,
    optimizer: Callable[[Any], Optimizer] = torch.optim.Adam,
    batch_size: int = 32,
    policies: Sequence[PolicyName] = _SENSIBLE,
    compile: Sequence[CompileMode] = get_args(CompileMode),  # noqa: A002
    threads: Sequence[int] | None = None,
    steps: int,
    target: Target = "time",
    memory_limit: float | None = None,
    data_dir: Path | None = None,
    quiet: bool = False,
) -> Plan:
    """Measure ways to train a model on a table of graphs, and choose the best for so many steps.

    Each way is trained for a moment in a process of its own; the model is made there anew. A script
    that calls this does so under `if __name__ == "__main__":`. Use what was found so:

        sampler = GraphSampler(*graph_sizes(table), found.batching(32))
        model = Compilation(found.compile).wrap(make_model())

    Args:
        model_fn: makes the model, which takes a GraphBatch; like `loss` and `optimizer` it is a
            function or class at the top level of a module, or a functools.partial of one.
        table: the graphs to train on.
        loss: of a model and a GraphBatch, as `weft.training.fit` takes it; padding is for it to
            leave out (`batch.graph_mask`).
        optimizer: makes one, from the model's parameters.
        batch_size: graphs in a batch.
        policies: ways of batching to choose from, see `weft.batching.BatchingConfig`.
        compile: modes of `weft.training.Compilation` to choose from.
        threads: numbers of compute threads to choose from; by default all cores, half of
            them, about their root, and one.
        steps: of the training that is planned: compile time has to pay within them.
        target: the least time, or the least memory.
        memory_limit: bytes that training may take at most; by default what is free.
        data_dir: a data folder that keeps the plan, to be found there the next time; None measures
            each time.
        quiet: nothing is shown.

    Returns:
        The plan: `found.batching(batch_size)`, `found.compile`, `found.settings["threads"]`.

    Raises:
        ValueError: `table` is no GraphTable, `model_fn`, `loss` or `optimizer` cannot be sent to
            another process, an option is not among the legal ones, or no way of training works;
            the message says why.
    """
    _check_main()
    if not isinstance(table, GraphTable):
        raise ValueError(
            f"table is a {type(table).__name__}; weft.plan takes a GraphTable: "
            "table_from_graphs([graph_from_pyg(each) for each in data]) of weft.graphs makes one "
            "from the Data of torch_geometric"
        )
    for name, value in (("model_fn", model_fn), ("loss", loss), ("optimizer", optimizer)):
        _check_sendable(name, value)
    counts = thread_counts() if threads is None else list(threads)
    if not counts or not all(isinstance(each, int) and each >= 1 for each in counts):
        raise ValueError(f"threads is {threads}; give whole numbers of at least 1")
    _check_choices("policies", policies, tuple(POLICIES))
    _check_choices("compile", compile, get_args(CompileMode))
    for name, number in (("steps", steps), ("batch_size", batch_size)):
        if number < 1:
            raise ValueError(f"{name} is {number}; it must be at least 1")
    if target not in get_args(Target):
        raise ValueError(f"target is {target!r}; it must be {' or '.join(get_args(Target))}")
    if data_dir is None:
        prepare_workers(__name__)
    shapes = _shapes(table, policies, batch_size)
    model = model_fn()
    if not isinstance(model, nn.Module):
        raise ValueError(f"model_fn gave {type(model).__name__}; it must make a torch.nn.Module")
    console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
    with TemporaryDirectory(prefix="weft-plan-") as folder:
        path = table.path
        if path is None:
            path = Path(folder) / "graphs.weft"
            write_table(path, [table], metadata=table.metadata)
        key = plan_key(
            recipe=_RECIPE,
            data=content_of(table),
            config={
                "model": _description(model),
                "functions": [_source(each) for each in (model_fn, loss, optimizer)],
                "batch_size": batch_size,
                "choices": [list(policies), list(compile), counts, memory_limit],
            },
            planned=(),
            target=target,
            total_units=steps * batch_size,
        )
        found = None if data_dir is None else cached_plan(key, data_dir)
        if found is None:
            work = OwnWork(
                model_fn=model_fn,
                table=path,
                loss=loss,
                optimizer=optimizer,
                batch_size=batch_size,
            )
            found = best_plan(
                work,
                _waves(shapes, compile, counts),
                total_units=steps * batch_size,
                target=target,
                tell=console.print,
                recipe=_RECIPE,
                steps=steps,
                memory_limit=memory_limit,
            )
            found = dataclasses.replace(found, key=key)
            if data_dir is not None:
                keep_plan(found, data_dir)
    if not quiet:
        show_plan(found, console)
    return found


@dataclass(frozen=True, kw_only=True)
class OwnWork:
    """Training of a user's model, for the planner: what `plan` was given, the table as a folder."""

    model_fn: Callable[[], nn.Module]
    table: Path
    loss: Loss
    optimizer: Callable[[Any], Optimizer]
    batch_size: int
    units: str = "graphs"

    def train(self, settings: Mapping[str, Any]) -> None:
        """Train without end."""
        seed_everything(0)
        # The process that plans has checked the table.
        table = open_table(self.table, check=False)
        batching = BatchingConfig(policy=settings[_POLICY], batch_size=self.batch_size)
        loader = GraphLoader(table, GraphSampler(*graph_sizes(table), batching))
        model = self.model_fn()
        fit(
            Compilation(settings["compile"]).wrap(model),
            self.optimizer(model.parameters()),
            loader,
            self.loss,
            config=FitConfig(epochs=ENDLESS, quiet=True),
        )


def _waves(
    shapes: Mapping[PolicyName, int], modes: Sequence[CompileMode], threads: Sequence[int]
) -> Generator[list[Candidate], Sequence[Measured], None]:
    """Policies first; then, for the best of them, other threads; then what compiling gives.

    Args:
        shapes: that the batches of each policy have.
        modes: of compilation, to choose from.
        threads: to choose from.
    """
    most, *others = sorted(set(threads), reverse=True)
    fitting = {policy: [m for m in modes if _fits(shapes[policy], m)] for policy in shapes}
    firsts = [(policy, found[0]) for policy, found in fitting.items() if found]
    if not firsts:
        raise ValueError(
            f"none of the policies {', '.join(shapes)} goes with compile {', '.join(modes)}: "
            "static is for batches of one shape, dynamic for those of many"
        )
    results = yield [_candidate(policy, mode, most) for policy, mode in firsts]
    best = best_of(results, _POLICY, _KEPT)
    if others:
        results = yield [_candidate(p, fitting[p][0], count) for p in best for count in others]
    for count in best_of(results, "threads"):
        yield [_candidate(p, mode, count) for p in best for mode in fitting[p][1:]]


def _candidate(policy: str, mode: str, threads: int) -> Candidate:
    return Candidate({_POLICY: policy, "compile": mode, "threads": threads})


def _fits(shapes: int, mode: CompileMode) -> bool:
    """Code for one shape needs one; code for all shapes is for batches that have many."""
    return mode == "eager" or (shapes == 1) == (mode == "static")


def _shapes(
    table: GraphTable, policies: Sequence[PolicyName], batch_size: int
) -> dict[PolicyName, int]:
    """How many different shapes the batches of an epoch have, by policy."""
    found = {}
    for policy in policies:
        batching = BatchingConfig(policy=policy, batch_size=batch_size)
        sampler = GraphSampler(*graph_sizes(table), batching)
        found[policy] = sampler.statistics().distinct_shapes
    return found


def _check_choices(name: str, given: Sequence[str], legal: Sequence[str]) -> None:
    if isinstance(given, str) or not given or set(given) - set(legal):
        raise ValueError(f"{name} is {given!r}; give some of {', '.join(legal)}")


def _check_main() -> None:
    # Set by multiprocessing while it imports the user's script in a new process.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ValueError(
            "weft.plan starts processes, and each of them reads your script: put the call of "
            "weft.plan, and all other work, under `if __name__ == '__main__':`"
        )


def _check_sendable(name: str, value: Any) -> None:
    remedy = (
        "define it at the top level of a module, with functools.partial for its settings, not as "
        "a lambda or inside a function"
    )
    if not callable(value):
        raise ValueError(f"{name} is {value!r}; it must be a function")
    try:
        sent = pickle.dumps(value)
    except Exception as error:
        raise ValueError(
            f"{name} cannot be sent to the processes that are timed ({error}); {remedy}"
        ) from None
    if b"__main__" in sent and not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError(
            f"{name} is defined at a prompt or in a notebook, where the processes that are timed "
            "do not find it; put it into a file and import it from there"
        )


def _description(model: nn.Module) -> dict[str, Any]:
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    return {"layers": repr(model), "shapes": shapes, "code": _source(type(model))}


def _source(value: Any) -> str:
    """What tells a function from another of the same name: a hash of its text and settings."""
    settings = ""
    while hasattr(value, "func"):
        settings += f"{value.args!r}{value.keywords!r}"
        value = value.func
    try:
        text = inspect.getsource(value if hasattr(value, "__qualname__") else type(value))
    except (OSError, TypeError):
        text = repr(value)
    return hashlib.sha256((settings + text).encode()).hexdigest()
