"""`weft plan full-graph --measure`: the best ways by formulas, timed with ranks of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from weft.cli.plan_option import notes
from weft.cli.plan_recipes import check_out
from weft.planning.show import show_plan
from weft.planning.worker import prepare_workers
from weft.recipes.full_graph.candidates import FullGraphRecipe
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.planned_runs import make_plan
from weft.training import prepare_process

if TYPE_CHECKING:
    from weft.cli.plan_full_graph import FullGraph

_BY_FORMULAS = (
    *("nodes", "edges", "published", "alpha", "beta", "flops", "spmm_bytes", "calibrate"),
    *("machine", "save", "json"),
)


def measure_full_graph(asked: FullGraph, console: Console) -> int:
    """Time the ways to train, print the table and the reasons, and write the plan.

    Raises:
        ValueError: an option that only formulas have, or none of the data.
    """
    config = full_graph_config(asked)
    check_out(asked.out)
    prepare_workers(FullGraphRecipe.__module__)
    prepare_process()
    limit = None if asked.memory_limit is None else 1e9 * asked.memory_limit
    recipe = FullGraphRecipe(config, data_dir=asked.data_dir, memory_limit=limit)
    plan = make_plan(
        recipe,
        target=asked.target,
        seconds=asked.budget,
        data_dir=asked.data_dir,
        tell=notes(quiet=asked.quiet).print,
    )
    plan.save(asked.out)
    show_plan(plan, console)
    hidden = " ".join(map(str, config.hidden))
    console.print(
        f"The plan is in {asked.out}. Next:\n"
        f"  weft train full-graph --data {config.data} --model {config.model} --hidden {hidden} "
        f"--epochs {config.epochs} --plan {asked.out}",
        soft_wrap=True,
    )
    return 0


def full_graph_config(asked: FullGraph) -> FullGraphConfig:
    """The training that is planned."""
    for name in _BY_FORMULAS:
        if getattr(asked, name) not in (None, False):
            option = name.replace("_", "-")
            raise ValueError(
                f"--{option} is for formulas, and --measure times a real graph; leave out one"
            )
    if asked.data is None:
        raise ValueError(
            "--measure trains on a real graph: name it with --data, as for weft train full-graph"
        )
    if asked.budget is not None and not asked.budget > 0:
        raise ValueError(f"budget is {asked.budget}; it must be above 0")
    ranks: int | None = None
    if asked.ranks != type(asked).ranks:
        if not asked.ranks.isdecimal():
            raise ValueError(
                f"ranks is '{asked.ranks}'; with --measure it is one number, or leave it out to "
                "try every one up to the cores"
            )
        ranks = int(asked.ranks)
    return FullGraphConfig(
        data=str(asked.data),
        directed=asked.directed,
        model=asked.model,
        hidden=tuple(asked.widths[1:-1]) if asked.widths else (16,),
        method=asked.config,
        ranks=ranks,
        epochs=asked.epochs,
    )
