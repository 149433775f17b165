"""`weft.plan`: how to train your own model on many graphs, found by measuring."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
import multiprocessing
import pickle
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import torch
from rich.console import Console
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.data import Subset

from weft.batching import (
    POLICIES,
    BatchingConfig,
    GraphLoader,
    GraphSampler,
    PolicyName,
    graph_sizes,
)
from weft.graphs import Array, GraphTable, open_table, write_table
from weft.integrations.accelerate import accelerate, message_layers
from weft.planning.candidate import Candidate
from weft.planning.explain import show_plan
from weft.planning.plan import Measured, Plan, Target
from weft.planning.search import best_plan
from weft.planning.task import (
    ENDLESS,
    best_of,
    cached_plan,
    content_of,
    content_of_arrays,
    keep_plan,
    plan_key,
    thread_counts,
)
from weft.planning.worker import prepare_workers
from weft.training import Compilation, CompileMode, FitConfig, fit, seed_everything
from weft.training.step import Loss

_RECIPE = "own model"
# What all processes need for data of torch_geometric, loaded once for them.
_GEOMETRIC = ("weft.integrations.torch_geometric", "weft.integrations.geometric.redirect")
_POLICY, _ACCELERATE = "batching.policy", "accelerate"
# Of one shape or few, or of none; static-constant pads to the largest graph and never pays.
_SENSIBLE: tuple[PolicyName, ...] = ("packed", "dynamic", "static-64", "static-2^n", "unpadded")
# Policies that go on to the waves in which threads and compilers are tried.
_KEPT = 2


def plan(
    model_fn: Callable[[], nn.Module],
    data: Any,
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
    """Measure ways to train a model on many graphs, and choose the best for so many steps.

    Each way is trained for a moment in a separate process, where the model is made again. A script
    that calls this does so under `if __name__ == "__main__":`. Use what was found so:

        batches = weft.loader(data, policy=found.batching(32).policy, batch_size=32)
        model = make_model()
        if found.settings["accelerate"]:
            weft.accelerate(model)
        model = Compilation(found.compile).wrap(model)

    Args:
        model_fn: makes the model; like `loss` and `optimizer` it is a function or class at the top
            level of a module, or a functools.partial of one. A model with layers of torch_geometric
            is tried with and without `weft.accelerate`, but never with that and compiled.
        data: the graphs to train on: a GraphTable, or a data set of torch_geometric (one in memory
            or on disk, a list of `Data`, a Subset).
        loss: of a model and a batch, as `weft.training.fit` takes it. Batches are those of
            `weft.loader`: GraphBatch of a table, else torch_geometric's `Batch`; padding is for
            the loss to leave out (`batch.graph_mask`).
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
        The plan: `found.batching(batch_size)`, `found.compile`, `found.settings["threads"]` and
        `found.settings["accelerate"]`.

    Raises:
        ValueError: `data`, `model_fn`, `loss` or `optimizer` cannot be sent to another process, an
            option is not among the legal ones, or no way of training works; the message says why.
    """
    _check_main()
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not indexed or isinstance(data, Mapping | str):
        raise ValueError(
            f"data is a {type(data).__name__}; give a GraphTable, or a data set of torch_geometric "
            "such as a list of Data"
        )
    for name, value in (("model_fn", model_fn), ("loss", loss), ("optimizer", optimizer)):
        _check_sendable(name, value)
    counts = thread_counts() if threads is None else list(threads)
    if not counts or not all(isinstance(each, int) and each >= 1 for each in counts):
        raise ValueError(f"threads is {threads}; give whole numbers of at least 1")
    _check_choices("policies", policies, tuple(POLICIES))
    _check_choices("compile", compile, get_args(CompileMode))
    for name, number in (("steps", steps), ("batch_size", batch_size)):
        if not isinstance(number, int | np.integer) or number < 1:
            raise ValueError(f"{name} is {number!r}; it must be a whole number of at least 1")
    if target not in get_args(Target):
        raise ValueError(f"target is {target!r}; it must be {' or '.join(get_args(Target))}")
    modules = (__name__, *(() if isinstance(data, GraphTable) else _GEOMETRIC))
    if data_dir is None:
        prepare_workers(*modules)
    shapes = _shapes(graph_sizes(data), policies, batch_size)
    model = model_fn()
    if not isinstance(model, nn.Module):
        raise ValueError(f"model_fn gave {type(model).__name__}; it must make a torch.nn.Module")
    if any(map(is_lazy, model.parameters())):
        raise ValueError(
            "model_fn gave a model whose parameters have no shape yet: give its layers their sizes "
            "(not -1), or let model_fn run it on a batch once"
        )
    layers = message_layers(model)
    console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
    with TemporaryDirectory(prefix="weft-plan-") as folder:
        path = _stored(data, Path(folder))
        key = plan_key(
            recipe=_RECIPE,
            data=content_of(data)
            if isinstance(data, GraphTable)
            else content_of_arrays({"graphs": np.memmap(path, np.uint8, "r")}),
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
            prepare_workers(*modules)
            work = OwnWork(
                model_fn=model_fn,
                data=path,
                loss=loss,
                optimizer=optimizer,
                batch_size=batch_size,
            )
            found = best_plan(
                work,
                _waves(shapes, compile, counts, (True, False) if layers else (False,)),
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
    """Training of a user's model, for the planner: what `plan` was given, the data as a path."""

    model_fn: Callable[[], nn.Module]
    data: Path
    loss: Loss
    optimizer: Callable[[Any], Optimizer]
    batch_size: int
    units: str = "graphs"

    def train(self, settings: Mapping[str, Any]) -> None:
        """Train without end."""
        seed_everything(0)
        batching = BatchingConfig(policy=settings[_POLICY], batch_size=self.batch_size)
        model = self.model_fn()
        if settings[_ACCELERATE]:
            accelerate(model, report=None)
        fit(
            Compilation(settings["compile"]).wrap(model),
            self.optimizer(model.parameters()),
            _batches(self.data, batching),
            self.loss,
            config=FitConfig(epochs=ENDLESS, quiet=True),
        )


def _stored(data: Any, folder: Path) -> Path:
    """Where other processes find the data: a table's own folder, or a new file or folder."""
    if isinstance(data, GraphTable):
        if data.path is None:
            write_table(folder / "graphs.weft", [data], metadata=data.metadata)
        return data.path or folder / "graphs.weft"
    few = _in_few_tensors(data)
    try:
        torch.save(few, folder / "graphs.pt")
    except Exception as error:
        raise ValueError(
            f"data cannot be sent to the processes that are timed ({type(error).__name__}: "
            f"{error}); its classes and transforms must be at the top level of a module"
        ) from error
    return folder / "graphs.pt"


def _in_few_tensors(data: Any) -> Any:
    """The same data set, its graphs joined if they are in memory: written and mapped at once."""
    from torch_geometric.data import InMemoryDataset

    # A class of one's own may change each graph that is taken out.
    if type(data) is Subset:
        return Subset(_in_few_tensors(data.dataset), data.indices)
    if isinstance(data, list | tuple):
        _check_attributes(data)
        joined = InMemoryDataset()
        try:
            joined._data, joined.slices = InMemoryDataset.collate(list(data))
        except Exception as error:
            raise ValueError(
                f"the graphs of data cannot be joined ({type(error).__name__}: {error}); give "
                "each attribute one dtype and, after its rows, one shape in all of them"
            ) from error
        return joined
    data = copy.copy(data)
    if isinstance(data, InMemoryDataset):
        # Graphs that were taken out before.
        data._data_list = None
    return data


def _check_attributes(graphs: Sequence[Any]) -> None:
    first = set(graphs[0].keys()) if graphs else set()
    for number, graph in enumerate(graphs):
        if other_names := first ^ set(graph.keys()):
            name = min(other_names)
            without, other = (number, 0) if name in first else (0, number)
            raise ValueError(
                f"graph {without} of data has no {name!r}, which graph {other} has; give all "
                "graphs the same attributes"
            )


def _batches(path: Path, batching: BatchingConfig) -> Iterable[Any]:
    """The batches of stored data."""
    if path.is_dir():
        # The process that plans has checked the table.
        table = open_table(path, check=False)
        return GraphLoader(table, GraphSampler(*graph_sizes(table), batching))
    from weft.integrations.torch_geometric import PackedDataLoader

    # Not from elsewhere: the process that plans has written it, where only this user can.
    data = torch.load(path, mmap=True, weights_only=False)
    loader: Iterable[Any] = PackedDataLoader(data, batching.batch_size, policy=batching.policy)
    return loader


def _waves(
    shapes: Mapping[PolicyName, int],
    modes: Sequence[CompileMode],
    threads: Sequence[int],
    accelerated: Sequence[bool] = (False,),
) -> Generator[list[Candidate], Sequence[Measured], None]:
    """Policies first; then, for the best of them, other threads; then what compiling gives.

    Args:
        shapes: that the batches of each policy have.
        modes: of compilation, to choose from.
        threads: to choose from.
        accelerated: whether by `weft.accelerate`, to choose from; never together with compiling.
    """
    most, *others = sorted(set(threads), reverse=True)
    fitting = {policy: [m for m in modes if _fits(shapes[policy], m)] for policy in shapes}
    firsts = [
        Candidate({_POLICY: policy, "compile": found[0], _ACCELERATE: fast, "threads": most})
        for policy, found in fitting.items()
        for fast in accelerated
        if found and not (fast and found[0] != "eager")
    ]
    if not firsts:
        raise ValueError(
            f"none of the policies {', '.join(shapes)} goes with compile {', '.join(modes)}: "
            "static is for batches of one shape, dynamic for those of many"
        )
    results = yield firsts
    best = {
        policy: next(each.candidate for each in results if each.settings[_POLICY] == policy)
        for policy in best_of(results, _POLICY, _KEPT)
    }
    if others:
        results = yield [each.but(threads=count) for each in best.values() for count in others]
    for count in best_of(results, "threads"):
        yield [
            each.but(compile=mode, accelerate=False, threads=count)
            for policy, each in best.items()
            for mode in fitting[policy][1:]
        ]


def _fits(shapes: int, mode: CompileMode) -> bool:
    """Code for one shape needs one; code for all shapes is for batches that have many."""
    return mode == "eager" or (shapes == 1) == (mode == "static")


def _shapes(
    sizes: tuple[Array, Array], policies: Sequence[PolicyName], batch_size: int
) -> dict[PolicyName, int]:
    """How many different shapes the batches of an epoch have, by policy."""
    found = {}
    for policy in policies:
        batching = BatchingConfig(policy=policy, batch_size=batch_size)
        sampler = GraphSampler(*sizes, batching)
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
