"""The short forms of the front door: `weft.open`, `weft.loader`, `weft.fit`, `weft.export`, ...

Each is a thin function over the rooms, which have all options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from weft.batching import (
    BatchingConfig,
    GraphLoader,
    GraphSampler,
    Oversize,
    PolicyName,
    graph_sizes,
)
from weft.batching.sampler import graph_numbers
from weft.errors import DataError
from weft.graphs import Array, Budget, GraphBatch, GraphTable, open_table
from weft.graphs.store import MANIFEST
from weft.layout import AnyAdjacency, LayoutConfig, adjacency_of
from weft.layout.config import Form
from weft.parallel import joined
from weft.parallel.device import checked_device
from weft.recipes.recipe import ExportOptions, recipe_of_run
from weft.recipes.structures.config import NeighbourConfig
from weft.recipes.structures.data import neighbour_table, own_table, reader_of
from weft.sources import data_folder, with_neighbours
from weft.sources.atoms import files_of, read_structures
from weft.sources.graph_files import is_graph_file
from weft.training import FitConfig, FitResult, Run, Stateful
from weft.training import fit as _fit
from weft.training.step import Loss, Step

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from weft.models.exported_program import Exported
    from weft.sparsify.masks import Masks

world = joined


def open(  # noqa: A001  (weft.open, as there is gzip.open)
    path: str | Path,
    *,
    targets: Sequence[str] | None = None,
    reader: str | None = None,
    data_dir: Path | None = None,
    progress: bool = False,
) -> GraphTable:
    """Your own graphs as a table, from a file or a folder.

    A table's folder is mapped. Anything else is read once and kept in the data folder, to be found
    there the next time: extxyz and whatever else ASE reads, crystals as JSON lines (`.jsonl`),
    CIF files with their values in an `id_prop.csv` or as text in a CSV file; and one graph, see
    `weft.sources.read_graph`: a folder of OGB's layout, `.npz`, `.pt` of torch_geometric, `.mat`,
    MatrixMarket (`.mtx`), edges as `.parquet`.

    Args:
        path: the file or folder.
        targets: the values to keep from files of structures; by default the `energy` and the
            `forces` that ASE finds in the first one.
        reader: the data set of `weft data list` that reads such files, where the name does not
            tell: `edge-list`, `temporal-edge-list`, `crystals`, `great`, ...
        data_dir: the data folder, see `weft.sources.data_folder`.
        progress: show a progress bar.

    Raises:
        DataError: there is no such file, or it cannot be read; the message names the place.
    """
    path = Path(path)
    if reader is None and (path / MANIFEST).exists():
        return open_table(path)
    if not path.exists():
        raise DataError(f"{path} is not there; name a file of graphs or the folder of a table")
    if reader is None:
        reader = "graph" if is_graph_file(path) else reader_of(path)
    if targets is None:
        targets = _labels(path) if reader == "atoms" else ()
    return own_table(reader, [path], targets, data_dir, progress=progress)


def _labels(path: Path) -> list[str]:
    """Which of energy and forces the first structure has."""
    first = next(read_structures(files_of([path])[:1], lambda *args, **kwargs: None))
    return [name for name in ("energy", "forces") if name in first.values]


@overload
def loader(
    data: GraphTable,
    *,
    policy: PolicyName = ...,
    batch_size: int = ...,
    shuffle: bool = ...,
    seed: int = ...,
    oversize: Oversize = ...,
    budget: Budget | None = ...,
    graphs: Sequence[int] | Array | None = ...,
    cutoff: float = ...,
    device: torch.device | str | None = ...,
    rank: int = ...,
    ranks: int = ...,
) -> GraphLoader: ...
@overload
def loader(
    data: Any,
    *,
    policy: PolicyName = ...,
    batch_size: int = ...,
    shuffle: bool = ...,
    seed: int = ...,
    oversize: Oversize = ...,
    budget: Budget | None = ...,
    graphs: Sequence[int] | Array | None = ...,
    rank: int = ...,
    ranks: int = ...,
) -> Any: ...
def loader(
    data: Any,
    *,
    policy: PolicyName = "packed",
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int = 0,
    oversize: Oversize = "raise",
    budget: Budget | None = None,
    graphs: Sequence[int] | Array | None = None,
    cutoff: float = 5.0,
    device: torch.device | str | None = None,
    rank: int = 0,
    ranks: int = 1,
) -> Any:
    """Batches of a table of graphs, or of a data set of torch_geometric.

    `packed`, `dynamic` and `static-constant` give every batch the same shape. All policies but
    `unpadded` have padding at the end of a batch, which a loss leaves out:

        error = model(batch) - batch.graphs["energy"]
        loss = (error**2)[batch.graph_mask].mean()

    Graphs of torch_geometric are read once, when the loader is made, and its batches are gathered
    from there: many times faster than torch_geometric's own loader, with the same attributes. See
    `weft.integrations.torch_geometric.PackedDataLoader` for those that cannot be kept, such as
    graphs with a random transform.

    Args:
        data: a GraphTable, or a data set of torch_geometric (in memory or on disk, a list of
            `Data`, a Subset).
        policy: how graphs become batches, see `weft.batching.BatchingConfig`; so are the next five.
        batch_size: graphs in a batch, one of which is padding where there is any.
        shuffle: other batches in every epoch.
        seed: of the shuffles.
        oversize: what becomes of a graph that is larger than the budget.
        budget: the padded size, in place of the one that the graphs' sizes suggest.
        graphs: the numbers of the graphs to take, such as those of a training split; all by
            default.
        cutoff: for structures with positions and without edges: atoms nearer than this, in Å, are
            joined by an edge each way. `weft.sources.with_neighbours` has other rules.
        device: where the batches of a table go.
        rank: the process that this is, from 0.
        ranks: processes that share each epoch.

    Returns:
        A GraphLoader of GraphBatch for a table, a loader of torch_geometric's `Batch` for the rest.

    Raises:
        ValueError: a setting that cannot be, or a device that is not there.
        DataError: a graph larger than the budget, with `oversize="raise"`; HeteroData.
    """
    options: dict[str, Any] = {
        "policy": policy,
        "batch_size": batch_size,
        "shuffle": shuffle,
        "seed": seed,
        "oversize": oversize,
        "budget": budget,
    }
    if isinstance(data, GraphTable):
        device = None if device is None else checked_device(device)
        config = BatchingConfig(**options)
        table = _with_edges(data, cutoff)
        sampler = GraphSampler(*graph_sizes(table), config, graphs=graphs, rank=rank, ranks=ranks)
        return GraphLoader(table, sampler, device=device)
    if device is not None:
        raise ValueError(
            f"device is {device!r}, but torch_geometric's batches are moved by batch.to(device)"
        )
    from weft.integrations.torch_geometric import PackedDataLoader

    if graphs is not None:
        data = torch.utils.data.Subset(data, graph_numbers(graphs, len(data)).tolist())
    return PackedDataLoader(data, rank=rank, ranks=ranks, **options)


def _with_edges(table: GraphTable, cutoff: float) -> GraphTable:
    """The table, or its structures with their neighbours; kept if the data folder has the table."""
    if "pos" not in table.schema or table.num_edges.sum() > 0:
        return table
    rule = NeighbourConfig(kind="cutoff", cutoff=cutoff)
    if table.path is not None and table.path.resolve().parent == data_folder().resolve():
        return neighbour_table(table, rule, progress=False)
    return with_neighbours(table, rule.rule(), progress=False)


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    train: Any,
    loss: Loss | Step,
    *,
    epochs: int | None = None,
    config: FitConfig | None = None,
    run: Run | str | Path | None = None,
    resume: bool = False,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    scheduler: LRScheduler | ReduceLROnPlateau | None = None,
    extras: Mapping[str, Stateful] | None = None,
) -> FitResult:
    """Train `model`; with `run`, a folder, also log, keep checkpoints and resume where it stopped.

    This is `weft.training.fit`, whose docstring has more detail, with short forms of two arguments.

    Args:
        model: any module.
        optimizer: any torch optimizer that steps without a closure.
        train: batches, iterated once an epoch.
        loss: computes the loss of a batch: `loss(model, batch)`; or a Step, for steps that do more.
        epochs: passes over the batches; for anything more give `config`.
        config: how long, and what to watch.
        run: a folder for config, metrics, checkpoints and weights, or an open Run.
        resume: resume the run in that folder; where there is none, start one.
        evaluate: measures the model and returns metrics by name.
        scheduler: a scheduler of the learning rate.
        extras: other objects whose state is to be resumed, by name: masks, averaged weights.

    Raises:
        ValueError: both or neither of `epochs` and `config` are given, and as `weft.training.fit`.
        DataError: `run` is a folder with a run and `resume` is not given, or with another model's.
    """
    if (epochs is None) == (config is None):
        raise ValueError(
            f"epochs is {epochs} and config is {config}; give one of them: the number of epochs, "
            "or a FitConfig with everything"
        )
    if config is None:
        assert epochs is not None
        config = FitConfig(epochs=epochs)
    parts: dict[str, Any] = {"evaluate": evaluate, "scheduler": scheduler, "extras": extras}
    if run is None or isinstance(run, Run):
        if resume:
            raise ValueError("resume is for the path of a run; give it to Run.create instead")
        return _fit(model, optimizer, train, loss, config=config, run=run, **parts)
    # What decides whether a run can go on; it may go on for longer, or be watched otherwise.
    asked = {"model": str(model), "optimizer": type(optimizer).__name__}
    with Run.create(run, asked, resume=resume) as opened:
        return _fit(model, optimizer, train, loss, config=config, run=opened, **parts)


def adjacency(
    batch: GraphBatch, *, types: int = 1, form: Form = "auto", hidden: int = 128
) -> AnyAdjacency:
    """How the edges of a batch are stored and multiplied; every form has the same result.

    `auto` measures on this batch. For many batches, measure once and pass the form that was found.

    Args:
        batch: with an edge column `type` where there is more than one type.
        types: types of edges.
        form: `csr` for any graph, `banded` for edges close to the diagonal, `dense` for small
            graphs with many edges, `auto` for the fastest here.
        hidden: features of a node, for the cost model.

    Raises:
        DataError: the form cannot hold the batch.
    """
    return adjacency_of(batch, types, LayoutConfig(form=form, hidden=hidden))


def export(
    model: nn.Module | ExportedProgram | str | Path,
    path: str | Path,
    *,
    example: Any = None,
    masks: Masks | Mapping[str, Tensor] | None = None,
    int8: bool = False,
    forces: bool = True,
    stress: bool = False,
    layout: Literal["banded"] | None = None,
    block: int | None = None,
) -> Exported:
    """Write a model, or that of a run, for programs without weft; see docs/export.md.

    The file is compared with the model at several sizes before it is kept. Hidden units that do
    nothing are left out, exactly.

    Args:
        model: any module; the folder of a run of `weft train`; or a program of `torch.export`, as
            it is or as the file that `torch.export.save` wrote.
        path: model.pt2, for torch's AOTInductor on processors like this one, or model.onnx.
        example: inputs of a module, a tuple if there are several, a dictionary for inputs by name;
            sizes of at least 2 may vary where the model allows it.
        masks: of a module's parameters by name; inactive weights count as 0.
        int8: 8-bit weights, for .onnx; not for potentials. The largest difference is printed, and a
            file that is off by more than a tenth of the largest output is not kept.
        forces: of a run: forces of structures too.
        stress: of a run: stress of structures too; runs on crystals have it wherever they have
            forces.
        layout: of a run on programs, which needs it: edges as dense blocks beside the diagonal.
        block: nodes of such a block; by default that of the run's own layout, or 128.

    Raises:
        DataError: no such run, another suffix, a model that cannot be exported or has no sound
            forces, no C++ compiler, or a file that would give other results than the model.
    """
    from weft.sparsify.export import export_model, load_program

    if isinstance(model, (str, Path)) and not Path(model).is_file():
        if example is not None or masks is not None:
            raise ValueError("example and masks are for a module; a run has its own")
        recipe = recipe_of_run(Path(model))
        if layout is not None and recipe.name != "programs":
            raise ValueError(
                f"layout is {layout!r}, for runs of `weft train programs`, and {model} is one of "
                f"`weft train {recipe.name}`; leave it out"
            )
        if block is not None and layout is None:
            raise ValueError(f"block is {block}, and there is no layout; add --layout banded")
        options = ExportOptions(forces=forces, stress=stress, int8=int8, layout=layout, block=block)
        return recipe.export(Path(model), Path(path), options)
    if layout is not None or block is not None:
        raise ValueError("layout and block are for runs of `weft train programs`; leave them out")
    if isinstance(model, (str, Path)):
        model = load_program(Path(model))
    return export_model(model, path, example=example, masks=masks, int8=int8)
