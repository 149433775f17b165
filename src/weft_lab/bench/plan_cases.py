"""The cases of `weft bench plan`: a recipe with its data, and every sensible fixed choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from weft.batching import POLICIES, BatchingConfig
from weft.graphs import GraphTable, write_table
from weft.planning.candidate import Candidate
from weft.planning.task import Recipe, thread_counts
from weft.recipes.full_graph.candidates import FullGraphRecipe
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.training import prepare_links
from weft.recipes.programs.candidates import ProgramsRecipe
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.programs.data import read_programs
from weft.recipes.recipe_data import read_structures
from weft.recipes.sparse_candidates import LinksRecipe
from weft.recipes.structures.candidates import StructuresRecipe
from weft.recipes.structures.config import NeighbourConfig, StructuresConfig
from weft.recipes.structures.data import some_of
from weft.sources.synthetic import planted_partition, temporal
from weft.training.compilation import why_not_inductor

if TYPE_CHECKING:
    from weft_lab.bench.plan import PlanBench

PlanCase = Literal[
    "molecules-32", "molecules-128", "crystals", "programs", "full-graph", "sparse", "short"
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is planned, and what it could be instead.

    Attributes:
        what: in words.
        recipe: with its data.
        choices: every sensible fixed one.
        steps: of the run that is planned for.
    """

    what: str
    recipe: Recipe
    choices: Sequence[Candidate]
    steps: int


def _molecules(batch_size: int, steps: int) -> Callable[[PlanBench, Path], Case]:
    def case(bench: PlanBench, folder: Path) -> Case:
        config = StructuresConfig(
            # As in Speckhard et al.: means over all pairs of atoms.
            readout="mean",
            limit=bench.molecules,
            batching=BatchingConfig(policy="dynamic", batch_size=batch_size),
        )
        what = f"SchNet on QM9, {batch_size} molecules a batch"
        return _structures("molecules", what, config, bench, folder, steps=steps)

    return case


def _crystals(bench: PlanBench, folder: Path) -> Case:
    config = StructuresConfig(
        data="mp-matminer",
        target="formation_energy_per_atom",
        references=False,
        neighbours=NeighbourConfig(kind="nearest", nearest=24, cutoff=6.0),
        limit=bench.molecules,
    )
    files = () if bench.crystals is None else (bench.crystals,)
    what = "SchNet on crystals of the Materials Project, 32 a batch"
    return _structures("crystals", what, config, bench, folder, steps=20_000, files=files)


def _structures(
    name: str,
    what: str,
    config: StructuresConfig,
    bench: PlanBench,
    folder: Path,
    *,
    steps: int,
    files: Sequence[Path] = (),
) -> Case:
    table = read_structures(config, files=files, data_dir=bench.data_dir, progress=False)
    recipe = StructuresRecipe(name, _on_disk(table, folder), replace(config, limit=None))
    every, *fewer = thread_counts()

    def choice(policy: str, mode: str, threads: int) -> Candidate:
        return Candidate({"batching.policy": policy, "compile": mode, "threads": threads})

    choices = [choice(policy, "eager", every) for policy in POLICIES]
    choices += [choice(config.batching.policy, "eager", count) for count in fewer]
    if why_not_inductor() is None:
        choices += [choice(policy, "static", every) for policy in ("dynamic", "packed")]
        choices.append(choice("unpadded", "dynamic", every))
    return Case(what=what, recipe=recipe, choices=choices, steps=steps)


def _programs(bench: PlanBench, folder: Path) -> Case:
    config = ProgramsConfig(limit=bench.programs)
    corpus = read_programs("python", files=bench.files, data_dir=bench.data_dir, progress=False)
    table = some_of(corpus, config.limit, config.split_seed)
    recipe = ProgramsRecipe(_on_disk(table, folder), replace(config, limit=None))
    forms = _first_wave(recipe)
    fewer = thread_counts()[1:]
    choices = [each.but(policy=policy) for each in forms for policy in ("packed", "dynamic")]
    choices += [each.but(threads=count) for each in forms for count in fewer]
    return Case(
        what="a gated network on programs of Python's standard library",
        recipe=recipe,
        choices=choices,
        steps=5_000,
    )


def _full_graph(bench: PlanBench, folder: Path) -> Case:
    graph = planted_partition(
        bench.nodes, 40, mean_degree=14, homophily=0.7, num_features=128, seed=0
    )
    write_table(folder / "graph.weft", [graph])
    config = FullGraphConfig(data=str(folder / "graph.weft"), hidden=(128,), epochs=200)
    recipe = FullGraphRecipe(config, data_dir=folder)
    ways = _first_wave(recipe)
    return Case(
        what=f"a GCN of 128-128-40 on {graph.num_nodes:,} nodes, {graph.num_edges:,} directed "
        "edges",
        recipe=recipe,
        choices=[*ways, *(each.but(partition="rcm") for each in ways[:1])],
        steps=config.epochs,
    )


def _sparse(bench: PlanBench, folder: Path) -> Case:
    config = LinksConfig(
        hidden=(1024, 1024),
        batch_size=1024,
        sparsify="rigl",
        sparsity=0.906,
        update_every=100,
    )
    prepared = prepare_links(temporal(bench.links // 20, bench.links), config)
    recipe = LinksRecipe(prepared)
    return Case(
        what="an FNN of 16-1024-1024-1 on links, 90.6 % sparse by RigL, 1,024 pairs a batch",
        recipe=recipe,
        choices=_first_wave(recipe),
        steps=5_000,
    )


def _on_disk(table: GraphTable, folder: Path) -> GraphTable:
    """Processes map a table on disk; one in memory would be sent to each of them."""
    if table.path is not None:
        return table
    return write_table(folder / "graphs.weft", [table], metadata=table.metadata)


def _first_wave(recipe: Recipe) -> list[Candidate]:
    """What the planner begins with."""
    return list(next(iter(recipe.waves())))


CASES: Mapping[PlanCase, Callable[[PlanBench, Path], Case]] = {
    "molecules-32": _molecules(32, 20_000),
    "molecules-128": _molecules(128, 10_000),
    "crystals": _crystals,
    "programs": _programs,
    "full-graph": _full_graph,
    "sparse": _sparse,
    "short": _molecules(32, 200),
}
