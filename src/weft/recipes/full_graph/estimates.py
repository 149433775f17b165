"""`weft plan full-graph`: what an epoch costs on every grid of ranks, by formulas or measured."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import weft
from weft.errors import DataError
from weft.files import json_text, write_atomically
from weft.models.config import NetworkKind
from weft.parallel.cost_model import (
    NETWORKS,
    Estimate,
    Link,
    Machine,
    Problem,
    choose,
    estimate,
    estimate_published,
    load_machine,
    save_machine,
)
from weft.parallel.grid import Grid, grids_for
from weft.parallel.method import Method
from weft.planning.plan import Target
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.output import notes

if TYPE_CHECKING:
    from weft.graphs import GraphTable

_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_RANKS = 2**16
# A range of no more numbers than this is tried whole, a longer one at its powers of two.
_FEW = 16
_MOST_MEASURED = 8
_RANKS = "4..4096"
_BY_FORMULAS = (
    *("nodes", "edges", "published", "alpha", "beta", "flops", "spmm_bytes", "calibrate"),
    *("machine", "save"),
)


@dataclass(frozen=True, kw_only=True)
class PlanFullGraph:
    """Time, bytes and memory of an epoch on every grid of ranks, and which grid to take.

    By formulas; no rank is started, so thousands cost nothing. With --measure the ways that are
    best by them are timed on this machine, for `weft train full-graph --plan`. Examples:
      weft plan full-graph --nodes 14249639 --edges 230788269 --widths 300 16 24
      weft plan full-graph --data physics.weft --ranks 4,8,16 --memory-limit 8
      weft plan full-graph --data physics.weft --ranks 2..8 --calibrate --save here.json
      weft plan full-graph --data physics.weft --machine here.json
      weft plan full-graph --measure --data cora --epochs 200 --out plan.json

    Attributes:
        ranks: Numbers of ranks: 64, a list 4,9,27, or a range 4..4096 (its powers of two if it
            is long).
        nodes: Nodes of the graph.
        edges: Nonzeros of the adjacency: an undirected edge counts twice, a self-loop once.
        widths: Widths of the features, the hidden layers and the classes.
        data: The folder of a table, for nodes, edges and widths (one hidden layer of 16) not given.
        model: A gcn, or sage with a second weight matrix for a node's own features; the others
            with --measure alone.
        directed: The adjacency differs from its transpose: both are held.
        published: Count volumes as the algorithms' authors count them, without weft's reductions.
        network: Usual latency and bandwidth, where nothing better is given.
        alpha: Latency of a message, s.
        beta: Inverse bandwidth, s/byte.
        flops: Floating-point operations of a rank's matrix products, 1/s.
        spmm_bytes: Bytes that a rank's sparse products read and write, 1/s.
        calibrate: Measure all four on this machine, with ranks that talk through gloo.
        machine: Read these four from this file.
        save: Write these four to this file.
        memory_limit: Memory that a rank may hold, GB.
        measure: Train for a few seconds in each of the best ways; --ranks is then one number, by
            default every one up to the cores.
        epochs: Epochs of the training that is planned with --measure.
        minimise: What is to be least with --measure: time or memory.
        budget: Seconds that --measure may take, about; by default two minutes, or 5% of the run.
        out: Write every grid, also the replications not shown, to this JSON file; with --measure
            the plan, by default to plan.json.
        data_dir: The data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        quiet: Show no progress of --measure.
    """

    RENAMED: ClassVar[dict[str, str]] = {"--target": "--minimise"}
    COMMON: ClassVar[tuple[str, ...]] = (
        *("data", "nodes", "edges", "widths", "model", "ranks", "memory_limit"),
        *("measure", "epochs", "minimise", "budget", "out"),
    )

    config: Method = field(default_factory=Method)
    ranks: str = _RANKS
    nodes: int | None = None
    edges: int | None = None
    widths: tuple[int, ...] = ()
    data: Path | None = None
    model: NetworkKind = "gcn"
    directed: bool = False
    published: bool = False
    network: Literal["ethernet-10", "infiniband-100"] = "ethernet-10"
    alpha: float | None = None
    beta: float | None = None
    flops: float | None = None
    spmm_bytes: float | None = None
    calibrate: bool = False
    machine: Path | None = None
    save: Path | None = None
    memory_limit: float | None = None
    measure: bool = False
    epochs: int = 200
    minimise: Target = "time"
    budget: float | None = None
    out: Path | None = None
    data_dir: Path | None = None
    quiet: bool = False

    def __call__(self, console: Console) -> int:
        """Estimate, print the table and the choice, and write the files."""
        for path in (self.out, self.save):
            if path is not None and not path.absolute().parent.is_dir():
                raise DataError(f"there is no folder {path.parent} to write {path.name} to")
        if self.memory_limit is not None and not self.memory_limit > 0:
            raise ValueError(f"memory_limit is {self.memory_limit} GB; it must be positive")
        if self.measure:
            return self._measure(console)
        if self.published and self.config != Method():
            raise ValueError(
                "--published counts whole blocks and nothing else; leave out --exchange, --panels "
                "and the other options of a method, or --published"
            )
        problem = self._problem()
        counts = ranks_of(self.ranks)
        if counts[-1] > problem.nodes:
            raise ValueError(
                f"{counts[-1]} ranks for {problem.nodes} nodes; each rank needs at least one node"
            )
        machine = self._machine(console)
        estimates = [
            estimate_published(problem, grid, machine)
            if self.published
            else estimate(problem, grid, self.config, machine)
            for count in counts
            for grid in grids_for(count)
        ]
        limit = None if self.memory_limit is None else 1e9 * self.memory_limit
        link, widths = machine.link, "-".join(map(str, problem.widths))
        said = (
            f"{problem.model} of widths {widths} on {problem.nodes:,} nodes and "
            f"{problem.edges:,} nonzeros, float32\n"
            f"machine: {machine.name}; α {_time(link.alpha)}, {1e-9 / link.beta:.3g} GB/s; "
            f"products {machine.flops / 1e9:,.4g} GFLOP/s, sparse "
            f"{machine.spmm_bytes / 1e9:,.3g} GB/s a rank"
        )
        if self.published:
            said += "\nvolumes as published, without the f² terms"
        elif self.config.exchange == "rows":
            said += "\nrows that travel: as if edges were drawn at random; a partition leaves fewer"
        console.print(said, soft_wrap=True)
        console.print(_table(estimates, limit))
        if self.out is not None:
            self._write(self.out, problem, machine, estimates)
            console.print(f"written to {self.out}", soft_wrap=True)
        best = choose(estimates, limit)
        console.print(
            f"Fastest: {_name(best.grid)} on {best.grid.ranks:,} ranks, {_time(best.seconds)} an "
            f"epoch; marks show the fastest for each number of ranks"
            + ("." if limit is None else f" within {self.memory_limit:g} GB a rank."),
            soft_wrap=True,
        )
        return 0

    def _measure(self, console: Console) -> int:
        """Time the ways to train, print the table and the reasons, and write the plan."""
        from weft.planning.explain import show_plan
        from weft.planning.task import make_plan
        from weft.planning.worker import prepare_workers
        from weft.recipes.full_graph.candidates import FullGraphTask
        from weft.recipes.planned_runs import PLAN, check_plan_file
        from weft.training import prepare_process

        config = self._measured_config()
        out = self.out or Path(PLAN)
        check_plan_file(out)
        prepare_workers(FullGraphTask.__module__)
        prepare_process()
        limit = None if self.memory_limit is None else 1e9 * self.memory_limit
        plan = make_plan(
            FullGraphTask(config, data_dir=self.data_dir, memory_limit=limit),
            target=self.minimise,
            seconds=self.budget,
            data_dir=self.data_dir,
            tell=notes(quiet=self.quiet).print,
        )
        plan.save(out)
        show_plan(plan, console)
        hidden = " ".join(map(str, config.hidden))
        console.print(
            f"The plan is in {out}. Next:\n"
            f"  weft train full-graph --data {config.data} --model {config.model} --hidden "
            f"{hidden} --epochs {config.epochs} --plan {out}",
            soft_wrap=True,
        )
        return 0

    def _measured_config(self) -> FullGraphConfig:
        """The training that is planned."""
        for name in _BY_FORMULAS:
            if getattr(self, name) not in (None, False):
                option = name.replace("_", "-")
                raise ValueError(
                    f"--{option} is for formulas, and --measure times a real graph; leave out one"
                )
        if self.data is None:
            raise ValueError(
                "--measure trains on a real graph: name it with --data, as for weft train "
                "full-graph"
            )
        if self.budget is not None and not self.budget > 0:
            raise ValueError(f"budget is {self.budget}; it must be above 0")
        ranks: int | None = None
        if self.ranks != _RANKS:
            if not self.ranks.isdecimal():
                raise ValueError(
                    f"ranks is '{self.ranks}'; with --measure it is one number, or leave it out to "
                    "try every one up to the cores"
                )
            ranks = int(self.ranks)
        return FullGraphConfig(
            data=str(self.data),
            directed=self.directed,
            model=self.model,
            hidden=tuple(self.widths[1:-1]) if self.widths else (16,),
            method=self.config,
            ranks=ranks,
            epochs=self.epochs,
        )

    def _problem(self) -> Problem:
        model = self.model
        if model != "gcn" and model != "sage":
            raise ValueError(
                f"model is {model}, but the formulas count gcn and sage; add --measure, which "
                "times it, or take gcn for a rough idea"
            )
        asked = (self.nodes, self.edges, self.widths or None)
        given: dict[str, Any] = dict(zip(("nodes", "edges", "widths"), asked, strict=True))
        symmetric, training = not self.directed, None
        if self.data is not None:
            if not self.data.exists():
                raise DataError(f"--data {self.data} does not exist; name the folder of a table")
            from weft.graphs import open_table

            table = open_table(self.data)
            found = {
                "nodes": table.total_nodes,
                "edges": _nonzeros(table, model),
                "widths": self.widths or _widths(table, self.data),
            }
            given = {n: found[n] if value is None else value for n, value in given.items()}
            symmetric = symmetric and bool(table.metadata.get("symmetric_values", symmetric))
            training = table.metadata.get("counts", {}).get("train")
        missing = [name for name, value in given.items() if value is None]
        if missing:
            raise ValueError(f"give --{' and --'.join(missing)}, or --data with a table")
        return Problem(**given, model=model, symmetric=symmetric, training=training)

    def _machine(self, console: Console) -> Machine:
        if self.calibrate and self.machine is not None:
            raise ValueError(
                f"--calibrate measures what --machine {self.machine} would give; use one of them"
            )
        if self.calibrate:
            machine = _measured(console)
        elif self.machine is not None:
            machine = load_machine(self.machine)
        else:
            machine = Machine(name=self.network, link=NETWORKS[self.network])
        given = {
            name: value
            for name in ("alpha", "beta", "flops", "spmm_bytes")
            if (value := getattr(self, name)) is not None
        }
        link = Link(
            alpha=given.pop("alpha", machine.link.alpha), beta=given.pop("beta", machine.link.beta)
        )
        changed = replace(machine, link=link, **given)
        if changed != machine:
            changed = replace(changed, name=f"{machine.name}, changed by options")
        if self.save is not None:
            save_machine(changed, self.save)
            console.print(f"the machine is written to {self.save}", soft_wrap=True)
        return changed

    def _write(
        self, path: Path, problem: Problem, machine: Machine, estimates: list[Estimate]
    ) -> None:
        whole = {
            "schema": "weft plan 1",
            "command": shlex.join(["weft", *sys.argv[1:]]),
            "versions": {"weft": weft.__version__},
            "problem": asdict(problem),
            "method": "published" if self.published else asdict(self.config),
            "machine": asdict(machine),
            "estimates": [estimate.to_json() for estimate in estimates],
        }
        write_atomically(path, lambda file: file.write(json_text(whole, indent=1).encode()))


def ranks_of(words: str) -> list[int]:
    """Numbers of ranks that `64`, `4,9,27` or `4..4096` mean, ascending."""
    if match := _RANGE.fullmatch(words.strip()):
        first, last = map(int, match.groups())
        powers = [2**k for k in range(_MOST_RANKS.bit_length()) if first <= 2**k <= last]
        few = last - first < _FEW or not powers
        found = list(range(first, min(last, first + _FEW - 1) + 1)) if few else powers
    elif re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", words):
        found = sorted({int(word) for word in words.split(",")})
        last = found[-1]
    else:
        raise ValueError(f"ranks is '{words}'; give a number, a list 4,9,27 or a range 4..4096")
    if not found or found[0] < 1 or last > _MOST_RANKS:
        raise ValueError(
            f"ranks is '{words}'; they must ascend, from at least 1 to at most {_MOST_RANKS:,}"
        )
    return found


def _nonzeros(table: GraphTable, model: str) -> int:
    # A prepared table has the self-loops of a GCN already.
    prepared = table.metadata.get("kind") == "full graph"
    return table.total_edges + (0 if prepared or model == "sage" else table.total_nodes)


def _widths(table: GraphTable, path: Path) -> tuple[int, ...]:
    for name in ("x", "y"):
        if name not in table.schema:
            raise DataError(
                f"{path} has no node column '{name}' to take widths from; give --widths"
            )
    classes = table.metadata.get("classes")
    if classes is None:
        labels = table.column("y")
        classes = int(np.max(labels)) + 1 if labels.ndim == 1 else int(labels.shape[1])
    return (int(table.column("x").shape[1]), 16, int(classes))


def _measured(console: Console) -> Machine:
    # More ranks than cores would measure how they wait for each other.
    ranks = max(2, min(os.cpu_count() or 2, _MOST_MEASURED))
    console.print(f"measuring with up to {ranks} ranks here ...", soft_wrap=True)
    from weft.training.calibrate import calibrate

    found = calibrate(ranks)
    for size, link in found.links.items():
        console.print(
            f"  groups of {size}: α {_time(link.alpha)}, β {link.beta:.3g} s/byte "
            f"({1e-9 / link.beta:.3g} GB/s)",
            soft_wrap=True,
        )
    return found.machine()


def _table(estimates: list[Estimate], limit: float | None) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("ranks", justify="right")
    table.add_column("grid", no_wrap=True)
    for heading in ("time an\nepoch", "compute", "messages", "received\na rank", "memory\na rank"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for count, group in groupby(estimates, key=lambda e: e.grid.ranks):
        rows = list(group)
        order = sorted(rows, key=lambda row: (_over(row, limit), row.seconds))
        # Of the replications of 1.5d, which are many, only the fastest that fits if one does.
        best = {row.grid.name: row for row in reversed(order)}
        shown = [row for row in rows if row is best[row.grid.name]]
        for number, row in enumerate(shown):
            table.add_row(
                f"{count:,}" if number == 0 else "",
                _name(row.grid),
                _time(row.seconds),
                _time(row.compute),
                _time(row.bandwidth + row.latency - row.hidden),
                _size(row.bytes),
                _size(row.memory.total),
                "too large" if _over(row, limit) else "◀" if row is order[0] else "",
                end_section=number == len(shown) - 1,
            )
    return table


def _over(row: Estimate, limit: float | None) -> bool:
    return limit is not None and row.memory.total > limit


def _name(grid: Grid) -> str:
    return f"{grid.name} c={grid.layers}" if grid.name == "1.5d" else grid.name


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:,.3g} {unit}" if seconds < 1000 else f"{seconds:,.0f} s"
    if seconds >= 1e-6:
        return f"{seconds / 1e-6:.3g} µs"
    return f"{seconds / 1e-9:.0f} ns" if seconds >= 1e-9 or not seconds else "<1 ns"


def _size(count: float) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1e3:.1f} kB" if count >= 1e3 else f"{count:.0f} B"
