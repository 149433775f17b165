"""What the study of dense hardware measures."""

from __future__ import annotations

from dataclasses import dataclass

from weft.recipes.programs.config import ProgramsConfig
from weft_lab.studies.settings import keep_given


@dataclass(frozen=True, kw_only=True)
class DenseHardwareStudy:
    """What to measure.

    Attributes:
        graphs: use only so many graphs, from files drawn at random; all by default.
        blocks: sizes of the blocks, for the table of supergraphs.
        nodes: of a supergraph, for that table.
        shares: of the training graphs that slices by bandwidth and by order keep.
        hidden: features of a node.
        steps: rounds of messages.
        training_nodes: of a supergraph in the trainings.
        epochs: passes over all training graphs; slices see as many graphs, again and again.
        evaluations: of each training, at equal distances; a multiple of 3 for the table of thirds.
        iterations: timed training steps of each slice and form.
        types: of edges, for the comparison of banded and csr.
        form_blocks: sizes of the blocks for that comparison.
        densities: edges of each type among the places |i - j| <= block, for that comparison.
        form_nodes: of the graphs of that comparison.
        max_edges: graphs of that comparison with more are left out.
        rounds: turns of each form in that comparison.
        seed: of the split, the weights and what is drawn.
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
        for name in ("blocks", "nodes", "types", "form_blocks"):
            given = getattr(self, name)
            if not given or min(given) < 1:
                raise ValueError(f"{name} is {given}; one number at least, and each at least 1")
        for name in ("shares", "densities"):
            given = getattr(self, name)
            if any(not 0 < value <= 1 for value in given):
                raise ValueError(f"{name} is {given}; each is above 0 and at most 1")
        for name, least in (
            ("graphs", 20),
            ("epochs", 0),
            ("evaluations", 1),
            ("iterations", 0),
            ("form_nodes", 2),
            ("max_edges", 1),
            ("rounds", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; it must be at least {least}")
        # It has its own rules.
        self.recipe()

    def recipe(self) -> ProgramsConfig:
        """The training that slices are compared by."""
        return ProgramsConfig(
            hidden=self.hidden,
            steps=self.steps,
            nodes=self.training_nodes,
            # Nothing is chosen by the accuracy, so validation graphs serve as test graphs too.
            split=(0.8, 0.2, 0.0),
            split_seed=self.seed,
            seed=self.seed,
        )


def quick_dense(config: DenseHardwareStudy) -> DenseHardwareStudy:
    """`config` with less of everything that is as it is by default: under 5 minutes on 2 cores."""
    smaller = DenseHardwareStudy(
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
    )
    return keep_given(config, DenseHardwareStudy(), smaller)
