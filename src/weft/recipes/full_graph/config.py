"""Settings for training on one big graph."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from weft.errors import check_choices, check_least
from weft.models.config import (
    GCNConfig,
    GraphNetworkConfig,
    LayerOptions,
    NetworkKind,
    SAGEConfig,
)
from weft.parallel.cost_model import NETWORKS, Estimate, Machine, Problem, choose, estimate
from weft.parallel.grid import Grid, check_grid, grid_of, grids_for
from weft.parallel.labels import TargetName, check_class_weights
from weft.parallel.method import DeviceName, Method
from weft.sources.config import EdgeColumn
from weft.training.config import FitConfig, LoopOptions, OptimizerOptions, ScheduleConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from weft.graphs import GraphTable
    from weft.models import GCN, GraphSAGE
    from weft.parallel.graph_network import GraphNetwork
    from weft.parallel.traffic_formulas import Sizes

Normalisation = Literal["auto", "symmetric", "row", "none"]
Dtype = Literal["float32", "float64"]
Monitor = Literal[
    "validation_accuracy",
    "validation_f1",
    "validation_auc",
    "validation_r2",
    "validation_mae",
    "validation_rmse",
    "validation_loss",
]
SMALLER_IS_BETTER = ("validation_mae", "validation_rmse", "validation_loss")
PartitionName = Literal["contiguous", "random", "metis", "volume", "balanced", "rcm"]

_MACHINE = Machine(name="10 Gb/s", link=NETWORKS["ethernet-10"])
# Options of layers that only some kinds have.
_ONLY_OF: dict[str, tuple[NetworkKind, ...]] = {
    "aggregate": ("sage",),
    "heads": ("gat", "gatv2"),
    "steps": ("appnp", "sgc"),
    "teleport": ("appnp",),
}
_NORMALISATION: dict[NetworkKind, str] = {
    "gcn": "symmetric",
    "appnp": "symmetric",
    "sgc": "symmetric",
    "sage": "row",
}
# Where the ranks are, how they talk and how often they save changes nothing but rounding, so a
# run may go on with others.
_PLACEMENT = (
    "grid",
    "replication",
    "ranks",
    "device",
    "method",
    "partition",
    "epochs",
    "patience",
    "evaluate_every",
    "checkpoint_every",
    "timeout",
)


@dataclass(frozen=True, kw_only=True)
class FullGraphConfig(LoopOptions, OptimizerOptions):
    """Node classification on one graph that many ranks share.

    Attributes:
        data: a graph of the catalogue (`weft data list`), or a path: a graph table, a folder of
            OGB's layout, .npz, .pt of torch_geometric, .mat, .mtx; or an edge list (text, CSV,
            Parquet, .npy; see `columns`) with `features` and `labels`.
        columns: what a line of an edge list holds, such as `src dst weight`; times are passed
            over, and so is a header line.
        features: .npy [n, f], with row i for the node of number i; or a CSV or Parquet file
            whose first column has the names of the nodes.
        labels: .npy, whole numbers [n]: classes from 0, -1 for none; or, see `target`, labels or
            numbers [n, t]; or CSV or Parquet: the node, then its label or numbers.
        target: `classes`; `multilabel`, rows of 0 and 1; `regression`, numbers; nan for unknown.
            `auto`: whole numbers [n] are classes, rows of 0 and 1 labels, all else numbers.
        class_weights: `balanced`, or for each class the weight of its nodes in the loss; for
            labels, the weight of a node that has the label.
        edge_weight: Edge column of a graph table that weighs its edges, NAME or NAME:COLUMN;
            `none` for no weights; by default the column `weight` where there is one.
        directed: take edges of files as they are; otherwise each edge goes both ways.
        train_mask: Nodes to train on: .npy (a mask or numbers of nodes), or text with a node on
            each line; such as a file of a split of OGB.
        validation_mask: Nodes to validate with, the same way; none by default.
        test_mask: Nodes to test with, the same way; none by default.
        split: fractions for training, validation and test, for a graph that comes without a split;
            by default 20 nodes of each class for training, 30 for validation, and all others.
        feature_scale: `rows` divides a node's features by their sum, as for bags of words; `auto`
            does so where no feature is negative; `none` leaves them as they are.
        model: gcn; sage; gin; gat and gatv2, attention; appnp, a perceptron and then products;
            sgc, products and then one linear layer.
        hidden: widths of the hidden layers; of all heads together.
        layer: further options of the layers.
        dropout: probability of dropping a hidden activation.
        input_dropout: the same for features; above 0 the first product cannot be kept.
        normalisation: Scale of the adjacency; `auto` is symmetric for gcn, appnp and sgc, row (a
            mean) for sage, none for the others.
        grid: 1d, 1.5d, 2d, 3d, a shape such as 4x2, or `auto` for the one that the cost model
            finds fastest.
        replication: Replication of the grid 1.5d; by default the best that fits.
        ranks: processes; by default as many as torchrun has started, or 1.
        device: cpu, cuda (a GPU for each rank of a host), or `auto`: cuda where there is any.
        method: What travels between ranks.
        partition: which nodes go together: `volume` (METIS, then fewer rows that travel) and
            `metis` need `pip install 'weft[partition]'`; `balanced` gives every rank equally many
            nonzeros.
        clusters: cut the graph into this many parts (METIS) and take each step on some of them,
            with the edges among these: less memory and many steps an epoch, as Cluster-GCN does.
            None: a step is over the whole graph. Evaluation is over the whole graph either way.
        clusters_per_step: parts that each rank takes together in a step, drawn again in every
            epoch.
        learning_rate: Learning rate.
        weight_decay: Weight decay on the first layer's weights.
        schedule: how the learning rate moves; without clusters, a step is an epoch.
        epochs: full-graph steps.
        monitor: what decides which weights are best; by default the accuracy of classes, the F1 of
            labels, the MAE of numbers.
        patience: stop after this many epochs without a better value of `monitor`.
        evaluate_every: epochs between evaluations.
        checkpoint_every: epochs between checkpoints, which a killed run has to repeat.
        seed: Seed of weights, dropout, split and partition.
        dtype: Precision of features and weights.
        timeout: Seconds that a rank waits for another one, at most.
    """

    data: str = "cora"
    columns: tuple[EdgeColumn, ...] = ("src", "dst")
    features: str | None = None
    labels: str | None = None
    target: TargetName = "auto"
    class_weights: tuple[str, ...] = ()
    edge_weight: str | None = None
    directed: bool = False
    train_mask: str | None = None
    validation_mask: str | None = None
    test_mask: str | None = None
    split: tuple[float, float, float] | None = None
    feature_scale: Literal["auto", "rows", "none"] = "auto"
    model: NetworkKind = "gcn"
    hidden: tuple[int, ...] = (16,)
    layer: LayerOptions = field(default_factory=LayerOptions)
    dropout: float = 0.5
    input_dropout: float = 0.0
    normalisation: Normalisation = "auto"
    grid: str = "auto"
    replication: int | None = None
    ranks: int | None = None
    device: DeviceName = "auto"
    method: Method = field(default_factory=Method)
    partition: PartitionName = "contiguous"
    clusters: int | None = None
    clusters_per_step: int = 1
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    epochs: int = 200
    monitor: Monitor | None = None
    patience: int | None = None
    evaluate_every: int = 1
    checkpoint_every: int = 20
    seed: int = 0
    dtype: Dtype = "float32"
    timeout: float = 600.0

    def __post_init__(self) -> None:
        check_least(self, learning_rate=0, seed=0, checkpoint_every=1, ranks=1)
        check_least(self, clusters=1, clusters_per_step=1)
        if self.clusters_per_step > (self.clusters or 1):
            raise ValueError(
                f"clusters_per_step is {self.clusters_per_step}, but clusters is {self.clusters}; "
                "cut the graph into more"
            )
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout} s; it must be above 0")
        check_choices(
            self, dtype=Dtype, model=NetworkKind, device=DeviceName, normalisation=Normalisation
        )
        check_choices(self, target=TargetName)
        if self.monitor is not None:
            check_choices(self, monitor=Monitor)
        check_class_weights(self.class_weights)
        self._check_network()
        if self.mask_files and (self.train_mask is None or self.split is not None):
            without = "train_mask is missing" if self.train_mask is None else "split is given too"
            raise ValueError(f"masks say which node is in which part, but {without}")
        self.layers()
        self.fit_config(quiet=True)
        self.check_optimizer()
        if self.grid != "auto" and self.ranks is not None:
            grid_of(self.grid, self.ranks, self.replication)
        if self.grid == "auto" and self.replication is not None:
            raise ValueError(
                f"replication is {self.replication}, but only the grid 1.5d has replicas"
            )

    def _check_network(self) -> None:
        """Raise ValueError where the network has no such option, or travels otherwise."""
        for name, kinds in _ONLY_OF.items():
            value = getattr(self.layer, name)
            if value != getattr(LayerOptions, name) and self.model not in kinds:
                raise ValueError(
                    f"layer.{name} is {value}, but {self.model} has none: it is for "
                    f"{' and '.join(kinds)}"
                )
        if not self.counted or self.model != "gcn":
            what = "clusters" if self.clusters else self.model if self.counted else "such layers"
            if not self.method.reductions:
                raise ValueError(
                    f"method.reductions is off, but the published algorithms have no {what}"
                )
        if self._reads_rows and self.method.exchange != "rows":
            raise ValueError(
                f"method.exchange is {self.method.exchange}, but {self.model} reads the rows of "
                "neighbours; set it to rows"
            )

    @property
    def counted(self) -> bool:
        """Whether there are formulas for bytes and memory; otherwise those of a GCN are used."""
        return self.clusters is None and not isinstance(self.layers(), GraphNetworkConfig)

    @property
    def _reads_rows(self) -> bool:
        return self.model in ("gat", "gatv2") or self.layer.aggregate == "max"

    def recipe(self) -> dict[str, Any]:
        """The settings that decide the result; a run can only be resumed with the same ones."""
        found = {name: value for name, value in asdict(self).items() if name not in _PLACEMENT}
        # Runs from before there was a choice go on.
        only = {"columns": type(self).columns, "schedule": ScheduleConfig()}
        only |= {**asdict(LoopOptions()), "optimizer": "adam", "momentum": 0.0, "monitor": None}
        only |= {"target": "auto", "class_weights": (), "edge_weight": None}
        only |= dict.fromkeys(("train_mask", "validation_mask", "test_mask"))
        only |= {"layer": LayerOptions(), "clusters": None, "clusters_per_step": 1}
        for name, value in only.items():
            if getattr(self, name) == value:
                del found[name]
        if "schedule" in found and self.schedule.shape != "plateau":
            for name in ("reduction", "patience", "threshold"):
                del found["schedule"][name]
        return found

    @property
    def mask_files(self) -> dict[str, str]:
        """The files that say which nodes are in a part, of those parts that have one."""
        files = (self.train_mask, self.validation_mask, self.test_mask)
        named = zip(("train", "validation", "test"), files, strict=True)
        return {part: file for part, file in named if file is not None}

    def fit_config(self, *, quiet: bool) -> FitConfig:
        """The settings of the training loop, as other recipes have them."""
        return FitConfig(
            epochs=self.epochs,
            monitor=self.monitor or "validation_accuracy",
            mode="min" if self.monitor in SMALLER_IS_BETTER else "max",
            patience=self.patience,
            evaluate_every=self.evaluate_every,
            checkpoint_every=self.checkpoint_every,
            log_every=None,
            clip_norm=self.clip_norm,
            ema=self.ema,
            counts="epochs",
            quiet=quiet,
        )

    def layers(self) -> GCNConfig:
        """Shape of the network."""
        shape: dict[str, Any] = {
            "hidden": self.hidden,
            "dropout": self.dropout,
            "input_dropout": self.input_dropout,
        }
        if self.layer == LayerOptions() and self.model in ("gcn", "sage"):
            return GCNConfig(**shape) if self.model == "gcn" else SAGEConfig(**shape)
        options = {each.name: getattr(self.layer, each.name) for each in fields(self.layer)}
        return GraphNetworkConfig(kind=self.model, **shape, **options)

    def make_model(self, features: int, classes: int) -> GCN | GraphSAGE | GraphNetwork:
        """The network, its weights drawn from the global random numbers."""
        from weft.models import GCN, GraphSAGE
        from weft.parallel.graph_network import GraphNetwork

        layers = self.layers()
        if isinstance(layers, GraphNetworkConfig):
            return GraphNetwork(features, classes, layers).to(self.torch_dtype)
        if isinstance(layers, SAGEConfig):
            return GraphSAGE(features, classes, layers).to(self.torch_dtype)
        return GCN(features, classes, layers).to(self.torch_dtype)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The same for torch."""
        import torch

        return torch.float32 if self.dtype == "float32" else torch.float64

    @property
    def matrix(self) -> str:
        """The normalisation that `auto` stands for."""
        if self.normalisation != "auto":
            return self.normalisation
        return _NORMALISATION.get(self.model, "none")

    @property
    def wait(self) -> timedelta:
        """How long a rank waits for another one, at most."""
        return timedelta(seconds=self.timeout)

    @property
    def num_ranks(self) -> int:
        """Processes that train.

        Raises:
            ValueError: torchrun has started a number of processes that is not `ranks`.
        """
        started = int(os.environ.get("WORLD_SIZE", "0"))
        if started and self.ranks is not None and self.ranks != started:
            raise ValueError(
                f"ranks is {self.ranks}, but torchrun has started {started}; leave --ranks out"
            )
        return started or self.ranks or 1

    def estimates(
        self,
        nodes: int,
        edges: int,
        features: int,
        classes: int,
        *,
        symmetric: bool = True,
        training: int | None = None,
        machine: Machine = _MACHINE,
        counts: Sequence[Sizes] | None = None,
    ) -> list[Estimate]:
        """What an epoch costs on the chosen grid, or for `auto` on each grid that fits.

        By the cost model, with 10 Gb/s between ranks unless a machine is given; `edges` are
        nonzeros of the matrix. It counts gcn and sage, and a GCN of the same widths for others.

        Raises:
            ValueError: the network cannot run on the chosen grid; the message has the reason.
        """
        ranks, whole_rows = self.num_ranks, self.layer.aggregate == "max"
        if self.grid == "auto":
            fitting = (grid for grid in grids_for(ranks) if grid.blocks <= nodes)
            grids = [grid for grid in fitting if grid.layers == 1 or not whole_rows]
        else:
            grids = [grid_of(self.grid, ranks, self.replication)]
            check_grid(grids[0], whole_rows="GraphSAGE with maxima" if whole_rows else None)
        problem = Problem(
            nodes=nodes,
            edges=edges,
            widths=(features, *(() if self.model == "sgc" else self.hidden), classes),
            model="sage" if self.model == "sage" else "gcn",
            item=4 if self.dtype == "float32" else 8,
            symmetric=symmetric,
            input_dropout=self.input_dropout > 0,
            training=training,
        )
        return [estimate(problem, grid, self.method, machine, counts) for grid in grids]

    def estimates_of(
        self,
        table: GraphTable,
        machine: Machine = _MACHINE,
        counts: Sequence[Sizes] | None = None,
    ) -> list[Estimate]:
        """The same for a prepared graph; `counts` are of the ranks of the chosen grid."""
        return self.estimates(
            table.total_nodes,
            table.total_edges,
            int(table.column("x").shape[1]),
            int(table.metadata["classes"]),
            symmetric=bool(table.metadata["symmetric_values"]),
            training=table.metadata["counts"]["train"],
            machine=machine,
            counts=counts,
        )

    def on_grid(self, grid: Grid) -> FullGraphConfig:
        """The same settings with this grid."""
        name, layers = ("1.5d", grid.layers) if grid.replicated else (grid.shape, None)
        return replace(self, grid=name, replication=layers, ranks=grid.ranks)

    def chosen_grid(self, nodes: int, edges: int, features: int, classes: int) -> Grid:
        """The grid that the settings name, or for `auto` the fastest by the cost model.

        Raises:
            ValueError: it does not fit the ranks, or there are fewer nodes than ranks.
        """
        if nodes < self.num_ranks:
            raise ValueError(
                f"{nodes} nodes for {self.num_ranks} ranks: each needs at least one, so take "
                "fewer ranks"
            )
        found = self.estimates(nodes, edges, features, classes)
        return choose(found).grid
