"""What recipes for networks that may be sparse, on one graph, have in common: nodes and links."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from weft.errors import DataError, check_least
from weft.recipes.recipe import StandardRecipe
from weft.training.config import BatchOptions, FitConfig, ScheduleConfig, SparsityConfig

if TYPE_CHECKING:
    from rich.console import Console

    from weft.parallel.world import World
    from weft.recipes.sparse_training import PreparedNetwork, SparseTask, TrainedNetwork


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(SparsityConfig, BatchOptions):
    """A network on embeddings of walks, or on features, of the nodes of one graph.

    Attributes:
        length: nodes of a walk.
        dim: width of an embedding.
        keep: fraction of the embeddings' values that stay, the largest; 1 for dense ones.
        schedule: how the learning rate moves.
        checkpoint_every: steps from one checkpoint to the next; 0 for every 30 seconds.
    """

    data: str
    walks: int = 10
    length: int = 5
    dim: int
    keep: float = 1.0
    batch_size: int
    learning_rate: float = 0.1
    schedule: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(shape="cosine"))
    patience: int | None = None
    checkpoint_every: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        SparsityConfig.__post_init__(self)
        BatchOptions.__post_init__(self)
        FitConfig(epochs=0, clip_norm=self.clip_norm, ema=self.ema)
        check_least(self, walks=1, length=2, dim=1, batch_size=1, learning_rate=0, patience=1)
        # A run of no epochs measures the weights that it starts from.
        check_least(self, checkpoint_every=0, seed=0, epochs=0 if self.sparsify == "none" else 1)
        hidden: tuple[int, ...] | None = getattr(self, "hidden", None)
        if hidden is not None and not all(width > 0 for width in hidden):
            raise ValueError(f"hidden widths are {hidden}; each must be at least 1")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is {self.keep}; it is a fraction above 0, up to 1")
        if self.patience is not None and self.sparsify in ("gmp", "slr", "admm", "oneshot"):
            raise ValueError(
                f"patience is {self.patience}, which may end the training before {self.sparsify} "
                "has pruned the model: leave it out"
            )


def check_file(data: str) -> None:
    """Raise DataError where there is no file of that name, which is that of no data set either."""
    if not Path(data).exists():
        raise DataError(
            f"{data!r} is neither a file nor a data set: give an edge list with the lines src "
            "dst time, or a name that `weft data list` shows"
        )


class SparseRecipe(StandardRecipe):
    """A network that may be sparse, on one graph: `read` gives what it is trained on, prepared."""

    shares_batches = True
    before: ClassVar[Mapping[str, Any]] = {"patience": None}
    scored: ClassVar[str]
    """What summary.json calls the scores."""
    headings: ClassVar[tuple[str, ...]]
    """Of the table of scores."""

    def plan_task(self, data: PreparedNetwork, config: Any) -> SparseTask:
        """The form of the layers, and threads."""
        from weft.recipes.sparse_training import SparseTask

        return SparseTask(self.name, data)

    def prepare(self, data: Any, config: Any, *, world: World, **_: Any) -> PreparedNetwork:
        """What was prepared with the data, with the settings of the plan."""
        prepared: PreparedNetwork = replace(data, config=config)
        prepared.check_ranks(world)
        return prepared

    def train(self, prepared: PreparedNetwork, **how: Any) -> TrainedNetwork:
        """Train the network, and time a step of it if it is sparse."""
        from weft.recipes.sparse_training import train_network

        return train_network(prepared, measure_step=True, **how)

    def summary(self, trained: TrainedNetwork, prepared: PreparedNetwork) -> dict[str, Any]:
        """Scores with intervals, counts, what else is known, and costs."""
        return {
            self.scored: {name: asdict(score) for name, score in trained.scores.items()},
            "counts": trained.counts,
            **trained.facts,
            "embedding_seconds": prepared.seconds,
            "step_costs": None if trained.costs is None else asdict(trained.costs),
        }

    @abstractmethod
    def rows(self, trained: TrainedNetwork) -> Sequence[tuple[str, ...]]:
        """Of the table of scores."""

    @abstractmethod
    def remarks(self, trained: TrainedNetwork, config: Any) -> tuple[str, str, str]:
        """On the scores, on what was trained on, and the name of what was chosen by."""

    def show(
        self, trained: TrainedNetwork, prepared: PreparedNetwork, folder: Path, console: Console
    ) -> None:
        """Print the scores, the sparsity with its costs, and where everything is."""
        from weft.recipes import output

        result, config = trained.result, prepared.config
        title = f"{config.data}: {result.stopped}"
        output.print_scores(title, self.headings, self.rows(trained), console)
        on_scores, trained_on, held = self.remarks(trained, config)
        console.print(
            f"{on_scores}\n{output.weights_sentence(trained.counts, config)}\n"
            f"{output.costs_sentences(trained.costs, config, linear=prepared.linear)}"
            f"{trained_on}, {output.time_sentence(result, held)}\n{output.where(folder)}",
            soft_wrap=True,
        )
