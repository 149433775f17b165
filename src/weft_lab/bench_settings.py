"""What each benchmark measures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from weft_lab.checks import at_least, fractions, scratch_folder, some_of

CommunicationCase = Literal["exact", "bytes", "model", "balance", "volume", "speed", "scale"]
GCNCase = Literal["generated", "pubmed", "orders", "gat"]
MoleculesCase = Literal[
    "schnet-1", "schnet-32", "schnet-128", "mpeu-32", "mpeu-128", "painn-64", "painn-128"
]
ForcesModel = Literal["painn-64", "painn-128", "schnet-64", "schnet-128"]
ForcesTask = Literal["training", "forces"]
Structures = Literal["molecules", "cells"]
PlanCase = Literal[
    "molecules-32", "molecules-128", "crystals", "programs", "full-graph", "sparse", "short"
]
StrangersCase = Literal[
    "gcn",
    "sage",
    "gin",
    "graph",
    "gat",
    "gatv2",
    "transformer",
    "pna",
    "rgcn",
    "gated",
    "schnet",
    "gine",
    "nn",
    "own",
    "perceptron",
    "gate",
    "loader",
]
SparseCase = Literal[
    "step", "online", "accelerate", "units", "fan-in", "memory", "accuracy", "walks", "edges"
]


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """What every benchmark takes.

    Attributes:
        data_dir: The data folder; by default $WEFT_DATA_DIR or the user's cache folder.
    """

    data_dir: Path | None = None


@dataclass(frozen=True, kw_only=True)
class AssembleBench(_Bench):
    """One shuffled batch: atoms, positions, all pairs as edges, a target.

    Attributes:
        size: Graphs in a batch.
        molecules: Molecules of QM9 that take part, drawn at random.
        rounds: Turns of each candidate.
        steps: Batches in a turn.
    """

    size: int = 128
    molecules: int = 20_000
    rounds: int = 10
    steps: int = 20


@dataclass(frozen=True, kw_only=True)
class CitationsBench(_Bench):
    """Accuracy in % of `weft train citations` with its default settings.

    Attributes:
        seeds: Trainings on each data set, with seeds 0, 1, ...
        planetoid: Folder with the ind.* files; without it they come from the cache or are
            downloaded.
    """

    seeds: int = 10
    planetoid: Path | None = None


@dataclass(frozen=True, kw_only=True)
class GCNBench(_Bench):
    """One training epoch: forward, backward, Adam.

    Attributes:
        cases: generated, pubmed: a GCN on a generated graph and on PubMed; orders: weft's epoch on
            the generated graph, its nodes in other orders; gat: a GAT with 4 heads on the generated
            graph, which takes torch_geometric some 10 GB.
        nodes: Nodes of the generated graph.
        degree: Neighbours of a node of that graph; 170,000 nodes of 13.53 have 2.3 million directed
            edges.
        rounds: Turns of each candidate.
        steps: Epochs in a turn.
        before: Folder with the sources of another version of weft, whose epoch is timed too.
        planetoid: Folder with the ind.pubmed.* files; without it PubMed comes from the cache or is
            downloaded.
    """

    cases: tuple[GCNCase, ...] = ("generated", "pubmed")
    nodes: int = 170_000
    degree: float = 13.53
    rounds: int = 5
    steps: int = 2
    before: Path | None = None
    planetoid: Path | None = None

    def __post_init__(self) -> None:
        some_of(self, "cases", get_args(GCNCase))
        if self.before and not (self.before / "weft").is_dir():
            raise ValueError(
                f"before is {self.before}, which has no folder weft; give the src of a checkout"
            )


@dataclass(frozen=True, kw_only=True)
class MoleculesBench(_Bench):
    """One training step on QM9's U0: the next shuffled batch, forward, backward, Adam.

    Attributes:
        cases: Cases to run: model and molecules in a batch, or for PaiNN (32 in a batch) features.
        molecules: Molecules of QM9 that take part, drawn at random.
        rounds: Turns of each candidate.
        steps: Training steps in a turn.
    """

    cases: tuple[MoleculesCase, ...] = get_args(MoleculesCase)
    molecules: int = 20_000
    rounds: int = 10
    steps: int = 20


@dataclass(frozen=True, kw_only=True)
class ForcesBench(_Bench):
    """Energies and forces of a shuffled batch, and an update in training.

    Attributes:
        models: Models to run, by the features of an atom.
        structures: Batches of 32 generated molecules of 27 atoms, or of 8 periodic cells of 64.
        tasks: Training steps, or energies and forces alone.
        rounds: Turns of each candidate.
        steps: Steps in a turn.
    """

    models: tuple[ForcesModel, ...] = get_args(ForcesModel)
    structures: tuple[Structures, ...] = get_args(Structures)
    tasks: tuple[ForcesTask, ...] = get_args(ForcesTask)
    rounds: int = 5
    steps: int = 5


@dataclass(frozen=True, kw_only=True)
class MDBench(_Bench):
    """One step of ASE's velocity Verlet in silicon at 300 K, 0.5 fs, with PaiNN of 64 features.

    Attributes:
        atoms: Sizes of the cells, 8 n³ atoms each.
        rounds: Turns of each candidate.
        steps: Steps in a turn.
    """

    atoms: tuple[int, ...] = (64, 216, 512)
    rounds: int = 5
    steps: int = 20


@dataclass(frozen=True, kw_only=True)
class ProgramsBench(_Bench):
    """One training step: rounds of messages forward, backward, Adam.

    Attributes:
        nodes: Nodes of the random graph and, about, of the supergraph of programs.
        edges: Edges of the random graph, of 20 types.
        hidden: Features of a node.
        steps_of_model: Rounds of messages.
        complete: Sizes of the complete graphs over which forms are compared.
        form_nodes: Nodes of each batch of complete graphs.
        rounds: Turns of each candidate.
        steps: Training steps in a turn.
        files: Python files, or folders of them, instead of the standard library.
    """

    nodes: int = 20_000
    edges: int = 75_000
    hidden: int = 128
    steps_of_model: int = 8
    complete: tuple[int, ...] = (4, 9, 18, 36, 144)
    form_nodes: int = 4_000
    rounds: int = 5
    steps: int = 1
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CommunicationBench(_Bench):
    """Training on ranks of this machine.

    Attributes:
        cases: exact: every grid against one process; bytes: received, recorded and predicted;
            model: formulas against the literature; balance: how even the ranks of big grids are;
            volume: what METIS and our refinement of it leave to travel; speed: an epoch on 2 ranks
            and in one process; scale: a graph of 64 million edges, which takes minutes and some
            10 GB.
        data: coauthor-physics.zip, or a folder with it, for `bytes`, `balance` and `volume`; else
            it comes from the data folder.
        edge_list: A directed edge list, src and dst, for `balance` and `volume` too.
        exact_ranks: Numbers of ranks of `exact`.
        bytes_ranks: Numbers of ranks of `bytes`.
        volume_ranks: Numbers of ranks of `volume`.
        nodes: Nodes of the generated graph of `speed`.
        degree: Neighbours of a node of that graph; 170,000 nodes of 13.53 have 2.3 million directed
            edges.
        speed_ranks: Ranks of `speed`.
        rounds: Turns of each candidate of `speed`.
        steps: Epochs in a turn.
        scale_nodes: Nodes of the R-MAT graph of `scale`.
        scale_edges: Edges of that graph.
        scale_widths: Features, hidden layer and classes of `scale`.
        scale_ranks: Ranks of `scale`.
        scratch: Folder for the table of `scale`, 2 GB; by default that of the system for temporary
            files.
    """

    cases: tuple[CommunicationCase, ...] = ("exact", "bytes", "model", "speed")
    data: Path | None = None
    edge_list: Path | None = None
    exact_ranks: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 9, 16, 27)
    bytes_ranks: tuple[int, ...] = (4, 16)
    volume_ranks: tuple[int, ...] = (4, 16, 64, 256, 1024)
    nodes: int = 170_000
    degree: float = 13.53
    speed_ranks: int = 2
    rounds: int = 5
    steps: int = 2
    scale_nodes: int = 2_000_000
    scale_edges: int = 64_000_000
    scale_widths: tuple[int, ...] = (32, 16, 8)
    scale_ranks: int = 4
    scratch: Path | None = None

    def __post_init__(self) -> None:
        some_of(self, "cases", get_args(CommunicationCase))
        at_least(self, 1, "exact_ranks", "speed_ranks", "scale_ranks", "rounds", "steps")
        at_least(self, 2, "bytes_ranks", "volume_ranks")
        at_least(self, 1, "scale_widths", count=2)
        scratch_folder(self.scratch)


@dataclass(frozen=True, kw_only=True)
class SparseBench(_Bench):
    """Sparse networks beside dense ones, rigl-torch and sparseprop; and what feeds them.

    Attributes:
        cases: step: a training step of two networks against the same dense ones and the peers;
            online: a pass forward of a few samples; accelerate: the step of an accelerated network
            over the dense one's; units: a network with three quarters of its units removed, in
            onnxruntime; fan-in: one of constant fan-in for 1 to 16 samples; memory: of weights and
            optimizer; accuracy: a GCN on Cora, dense, RigL, SET and static random; walks: temporal
            walks on sx-mathoverflow; edges: a generated edge list read.
        wide: Widths of the first network.
        wide_batch: Samples in its step.
        narrow: Widths of the second network, the literature's.
        narrow_batch: Samples in its step.
        online_batches: Samples in a pass of `online`.
        sparsities: Sparsities of `step`.
        accelerate_sparsities: Sparsities of `accelerate`, ascending, and, those above 0, of
            `memory`.
        update_every: Steps of RigL from one change of the pattern to the next.
        rounds: Turns of each candidate of `step`, `walks` and `edges`.
        steps: Training steps in a turn of `step`; as many times `rounds` in `accelerate`.
        seeds: Trainings of each candidate of `accuracy`, with seeds 0, 1, ...
        epochs: Epochs of these trainings; by default those of `weft train nodes`.
        lines: Lines of the edge list of `edges`.
        temporal: sx-mathoverflow.txt.gz, or a folder with it; else it comes from the data folder.
        planetoid: Folder with the ind.* files of Cora; else they come from the data folder.
        scratch: Folder for the edge list, 25 bytes a line; by default that of the system for
            temporary files.
    """

    cases: tuple[SparseCase, ...] = get_args(SparseCase)
    wide: tuple[int, ...] = (1024, 1024, 1024, 10)
    wide_batch: int = 1024
    narrow: tuple[int, ...] = (64, 256, 128, 10)
    narrow_batch: int = 512
    online_batches: tuple[int, ...] = (1, 4, 16)
    sparsities: tuple[float, ...] = (0.906, 0.95)
    accelerate_sparsities: tuple[float, ...] = (0.0, 0.5, 0.75, 0.875, 0.906, 0.938, 0.969, 0.99)
    update_every: int = 100
    rounds: int = 10
    steps: int = 20
    seeds: int = 10
    epochs: int | None = None
    lines: int = 10_000_000
    temporal: Path | None = None
    planetoid: Path | None = None
    scratch: Path | None = None

    def __post_init__(self) -> None:
        some_of(self, "cases", get_args(SparseCase))
        at_least(self, 1, "wide", "narrow", count=2)
        at_least(self, 0, "sparsities", "accelerate_sparsities")
        fractions(self, "sparsities", "accelerate_sparsities", zero=True)
        if list(self.accelerate_sparsities) != sorted(set(self.accelerate_sparsities)):
            raise ValueError(
                f"accelerate_sparsities are {self.accelerate_sparsities}; they must ascend"
            )
        # rigl-torch accumulates gradients over fewer steps than that, and over at least one.
        at_least(self, 2, "update_every")
        at_least(self, 1, "wide_batch", "narrow_batch", "online_batches")
        at_least(self, 1, "rounds", "steps", "seeds", "lines")
        scratch_folder(self.scratch)


@dataclass(frozen=True, kw_only=True)
class PlanBench(_Bench):
    """A plan is made for each case; then all fixed choices take turns, and none is dropped.

    Attributes:
        cases: molecules-32, molecules-128: SchNet on QM9, so many molecules in a batch; crystals;
            programs: Python's standard library; full-graph: a GCN on a generated graph; sparse: an
            FNN on generated links, with RigL; short: molecules for 200 steps, too few to compile.
        molecules: Molecules of QM9, and crystals, that take part, drawn at random.
        programs: Samples of programs that take part.
        nodes: Nodes of the graph of full-graph.
        links: Edges of the graph of sparse.
        budget: Seconds for a plan.
        rounds: Turns of each choice after its first.
        turn: Seconds of a turn.
        crystals: File of the data set mp-matminer, if it is not in the data folder.
        files: Python files, or folders of them, instead of the standard library.
    """

    cases: tuple[PlanCase, ...] = get_args(PlanCase)
    molecules: int = 20_000
    programs: int = 5_000
    nodes: int = 170_000
    links: int = 40_000
    budget: float = 90.0
    rounds: int = 5
    turn: float = 0.7
    crystals: Path | None = None
    files: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        some_of(self, "cases", get_args(PlanCase))
        at_least(self, 200, "molecules", "programs", "links")
        at_least(self, 100, "nodes")
        for name in ("budget", "rounds", "turn"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")


@dataclass(frozen=True, kw_only=True)
class StrangersBench(_Bench):
    """Models as torch_geometric's users write them, beside the same after `weft.accelerate`.

    Attributes:
        cases: Which layers; all by default. own, perceptron and gate are own classes of
            MessagePassing; loader times batches alone.
        nodes: Nodes of the large random graph.
        edges: Its directed edges.
        sorted: They are sorted by receiver; by default they are in no order.
        width: Features of a node there, and of the typed graph.
        molecules: Molecules in the small batch.
        compile: Also time torch_geometric's models under torch.compile.
        rounds: Turns of each candidate.
        steps: Steps in a turn.
    """

    cases: tuple[StrangersCase, ...] = ()
    nodes: int = 170_000
    edges: int = 2_300_000
    sorted: bool = False
    width: int = 128
    molecules: int = 128
    compile: bool = False
    rounds: int = 3
    steps: int = 2

    def __post_init__(self) -> None:
        at_least(self, 1, "nodes", "edges", "molecules", "rounds", "steps")
        at_least(self, 4, "width")
