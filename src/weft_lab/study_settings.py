"""What each study measures; `quick` makes it smaller."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from weft.batching.policies import POLICIES, BatchingConfig, PolicyName
from weft.parallel.method import PARTITIONS
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.structures.config import ModelName, StructuresConfig
from weft.training.config import CompileMode
from weft_lab.checks import at_least, fractions, some_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")


@dataclass(frozen=True, kw_only=True)
class BatchingStudy:
    """What to measure.

    Attributes:
        models: Models to train: schnet, mpeu, painn.
        batch_sizes: Graphs in a batch.
        policies: Policies of batching.
        compile: eager, static (torch.compile for each shape), dynamic (once for all shapes).
        compiled_policies: Policies that the compiled modes are measured with.
        max_compilations: Mode static is left out where the timed steps have more shapes than this.
        structures: Structures that take part in the timing, drawn at random from each data set.
        hidden: Features of an atom.
        rounds: Turns of each cell.
        steps: Timed steps in a turn.
        run_steps: Length of the training for which compiling should pay, in steps.
        planned_steps: Batches planned for the table of shapes and fill.
        repeats: Trainings of each policy, for the test error; 0 for none.
        repeat_model: Model of these trainings.
        repeat_batch_size: Graphs in a batch of these trainings.
        repeat_structures: Structures that take part in these trainings.
        repeat_epochs: Passes over the training structures.
    """

    models: tuple[ModelName, ...] = get_args(ModelName)
    batch_sizes: tuple[int, ...] = (16, 32, 64, 128)
    policies: tuple[PolicyName, ...] = tuple(POLICIES)
    compile: tuple[CompileMode, ...] = ("eager",)
    compiled_policies: tuple[PolicyName, ...] = tuple(POLICIES)
    max_compilations: int = 4
    structures: int = 20_000
    hidden: int = 64
    rounds: int = 10
    steps: int = 5
    run_steps: int = 100_000
    planned_steps: int = 100_000
    repeats: int = 10
    repeat_model: ModelName = "schnet"
    repeat_batch_size: int = 32
    repeat_structures: int = 4_000
    repeat_epochs: int = 10

    def __post_init__(self) -> None:
        some_of(self, "models", get_args(ModelName))
        some_of(self, "policies", tuple(POLICIES))
        some_of(self, "compile", get_args(CompileMode))
        some_of(self, "compiled_policies", tuple(POLICIES))
        at_least(self, 2, "batch_sizes", "structures")
        at_least(self, 1, "max_compilations", "rounds", "steps", "run_steps", "planned_steps")
        at_least(self, 0, "repeats")
        at_least(self, 10, "repeat_structures")
        at_least(self, 1, "repeat_epochs")
        # These have their own rules.
        StructuresConfig(model=self.repeat_model, hidden=self.hidden)
        BatchingConfig(policy="dynamic", batch_size=self.repeat_batch_size)


@dataclass(frozen=True, kw_only=True)
class DenseHardwareStudy:
    """What to measure.

    Attributes:
        graphs: Use only so many graphs, from files drawn at random; all by default.
        blocks: Sizes of the blocks, for the table of supergraphs.
        nodes: Nodes of a supergraph, for that table.
        shares: Shares of the training graphs that slices by bandwidth and by order keep.
        hidden: Features of a node.
        steps: Rounds of messages.
        training_nodes: Nodes of a supergraph in the trainings.
        epochs: Passes over all training graphs; slices see as many graphs, again and again.
        evaluations: Evaluations of each training, at equal distances; a multiple of 3 for the table
            of thirds.
        iterations: Timed training steps of each slice and form.
        types: Types of edges, for the comparison of banded and csr.
        form_blocks: Sizes of the blocks for that comparison.
        densities: Edges of each type among the places |i - j| <= block, for that comparison.
        form_nodes: Nodes of the graphs of that comparison.
        max_edges: Graphs of that comparison with more edges are left out.
        rounds: Turns of each form in that comparison.
        seed: Seed of the split, the weights and what is drawn.
    """

    graphs: int | None = None
    blocks: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    nodes: tuple[int, ...] = (4096, 16384)
    shares: tuple[float, ...] = (0.92, 0.83)
    hidden: int = 64
    steps: int = 6
    training_nodes: int = 4096
    epochs: int = 4
    evaluations: int = 9
    iterations: int = 5
    types: tuple[int, ...] = (1, 20)
    form_blocks: tuple[int, ...] = (8, 16, 32, 64, 128)
    densities: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    form_nodes: int = 2048
    max_edges: int = 6_000_000
    rounds: int = 9
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(self, 1, "blocks", "nodes", "types", "form_blocks")
        fractions(self, "shares", "densities", one=True)
        at_least(self, 20, "graphs")
        at_least(self, 0, "epochs", "iterations")
        at_least(self, 1, "evaluations", "max_edges", "rounds")
        at_least(self, 2, "form_nodes")
        # It has its own rules.
        self.recipe()

    def recipe(self) -> ProgramsConfig:
        """The training that slices are compared by."""
        return ProgramsConfig(
            hidden=self.hidden,
            steps=self.steps,
            nodes=self.training_nodes,
            # As in the figures of the docs.
            learning_rate=1e-3,
            # Nothing is chosen by the accuracy, so validation graphs serve as test graphs too.
            split=(0.8, 0.2, 0.0),
            split_seed=self.seed,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class CommunicationStudy:
    """What to measure.

    Attributes:
        ranks: Numbers of ranks; every grid of each is measured.
        real_ranks: Up to so many ranks are processes; more are simulated, one rank at a time.
        simulated: Ranks of a grid that are simulated, spread over it; all by default.
        widths: Features, hidden layers and classes for the bytes; on random features.
        partition: Partition of the nodes for the sparsity-aware method.
        timed_epochs: Epochs of each grid and method on real ranks.
        accuracy_ranks: Numbers of ranks on which the graph's own classes are learned.
        epochs: Epochs of these trainings.
        hidden: Hidden layers of these trainings.
        nodes: Nodes of the generated graph, where no other is given.
        seed: Seed of the graph, the weights, dropout and partition.
    """

    ranks: tuple[int, ...] = (1, 2, 4, 8, 9, 16, 27, 36, 64)
    real_ranks: int = 16
    simulated: int | None = None
    widths: tuple[int, ...] = (128, 128, 16)
    partition: str = "metis"
    timed_epochs: int = 5
    accuracy_ranks: tuple[int, ...] = (2, 4, 8, 9)
    epochs: int = 100
    hidden: tuple[int, ...] = (16,)
    nodes: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(self, 1, "ranks", "real_ranks", "simulated", "timed_epochs", "epochs", "nodes")
        at_least(self, 1, "accuracy_ranks", "hidden", count=0)
        at_least(self, 1, "widths", count=2)
        if self.partition not in PARTITIONS:
            raise ValueError(
                f"partition is {self.partition!r}; choose from {', '.join(PARTITIONS)}"
            )


Task = Literal["links", "nodes", "gcn"]
"""An FNN for temporal links, an FNN for classes of nodes, a GCN for classes of nodes."""

SPARSITIES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.906, 0.938, 0.969)
"""Those of Peng et al. (2022)."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A feed-forward network to be timed.

    Attributes:
        widths: of the input, the hidden layers and the output.
        batch: rows of a step.
    """

    widths: tuple[int, ...]
    batch: int

    @classmethod
    def read(cls, text: str) -> Network:
        """From text such as 64-256-128-10x512: widths, x, rows.

        Raises:
            ValueError: it is no such text.
        """
        try:
            widths, batch = text.split("x")
            found = cls(widths=tuple(map(int, widths.split("-"))), batch=int(batch))
        except ValueError:
            found = cls(widths=(), batch=0)
        if len(found.widths) < 2 or min(*found.widths, found.batch) < 1:
            raise ValueError(
                f"network {text!r} is not of the form 64-256-128-10x512: widths joined by -, then "
                "x and the rows of a batch"
            )
        return found

    def __str__(self) -> str:
        return f"{'-'.join(map(str, self.widths))}, batch {self.batch}"


@dataclass(frozen=True, kw_only=True)
class SparsificationStudy:
    """What to measure.

    Attributes:
        tasks: links: temporal link prediction; nodes: classes of nodes from embeddings of walks;
            gcn: classes of nodes from features and neighbours.
        sparsities: Sparsities of the weights, in the trainings.
        curve_sparsity: Sparsity whose scores are shown epoch by epoch.
        links_keep: Fraction of the links' embeddings that stays where they are sparse.
        nodes_keep: Fraction of the nodes' embeddings that stays where they are sparse.
        epochs: Epochs of the trainings on pairs of embeddings.
        nodes_epochs: Epochs of the trainings on embeddings of single nodes, which have fewer steps.
        gcn_epochs: Epochs of the GCN's trainings.
        batch_size: Samples in a batch of the trainings on embeddings.
        repeats: Trainings of each kind, from different seeds.
        edges: Edges of the generated stream, where no temporal graph is given.
        nodes: Nodes of the generated graphs, where none is given.
        networks: Networks to be timed, such as 64-256-128-10x512 for the widths 64, 256, 128 and 10
            and batches of 512; none to time nothing.
        time_sparsities: Sparsities of the weights, in the timing.
        rounds: Turns of each form in the timing.
        seed: Seed of data, splits, embeddings and timed weights.
    """

    tasks: tuple[Task, ...] = get_args(Task)
    sparsities: tuple[float, ...] = SPARSITIES
    curve_sparsity: float = 0.906
    links_keep: float = 0.262
    nodes_keep: float = 0.469
    epochs: int = 40
    nodes_epochs: int = 40
    gcn_epochs: int = 200
    batch_size: int = 128
    repeats: int = 5
    edges: int = 20_000
    nodes: int = 3_000
    networks: tuple[str, ...] = ("16-128-1x128", "64-256-128-10x512", "1024-1024-1024-16x1024")
    time_sparsities: tuple[float, ...] = (*SPARSITIES, 0.99)
    rounds: int = 9
    seed: int = 0

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in get_args(Task):
                raise ValueError(f"task {task!r} is none of {', '.join(get_args(Task))}")
        fractions(self, "sparsities", "time_sparsities", "curve_sparsity")
        fractions(self, "links_keep", "nodes_keep", one=True)
        # Each phase of SLR needs an epoch.
        at_least(self, 4, "epochs", "nodes_epochs", "gcn_epochs")
        at_least(self, 1, "batch_size", "repeats", "rounds")
        at_least(self, 100, "edges")
        at_least(self, 40, "nodes")
        at_least(self, 0, "seed")
        self.timed()

    def timed(self) -> list[Network]:
        """The networks to be timed."""
        return [Network.read(text) for text in self.networks]


# Under 5 minutes each on 2 cores.
_QUICK = (
    BatchingStudy(
        models=("schnet",),
        batch_sizes=(32, 128),
        compile=("eager", "static"),
        compiled_policies=("dynamic",),
        structures=4_000,
        rounds=5,
        steps=4,
        repeats=4,
        repeat_structures=600,
        repeat_epochs=3,
    ),
    DenseHardwareStudy(
        graphs=2500,
        nodes=(4096,),
        hidden=32,
        steps=4,
        training_nodes=2048,
        epochs=3,
        evaluations=6,
        iterations=3,
        form_blocks=(8, 32, 128),
        densities=(0.03, 0.3, 1.0),
        form_nodes=1024,
        max_edges=2_000_000,
        rounds=5,
    ),
    CommunicationStudy(
        ranks=(1, 2, 4, 8, 16, 64),
        real_ranks=4,
        simulated=3,
        timed_epochs=3,
        accuracy_ranks=(2, 4),
        epochs=60,
        nodes=8_000,
    ),
    SparsificationStudy(
        sparsities=(0.5, 0.75, 0.906, 0.969),
        epochs=16,
        # Sparse networks begin slowly: fewer steps would show that and nothing else.
        nodes_epochs=60,
        gcn_epochs=80,
        repeats=3,
        edges=5_000,
        nodes=1_500,
        time_sparsities=(0.5, 0.75, 0.875, 0.906, 0.938, 0.969),
        rounds=5,
    ),
)


def quick(config: Settings) -> Settings:
    """`config` with less of everything that is as it is by default: some minutes on 2 cores."""
    (smaller,) = (each for each in _QUICK if type(each) is type(config))
    default = type(config)()
    given = {
        each.name: getattr(config, each.name)
        for each in fields(config)
        if getattr(config, each.name) != getattr(default, each.name)
    }
    return replace(smaller, **given)
