"""`weft bench NAME`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from weft.cli.show import print_config
from weft.errors import DataError
from weft_lab.bench import (
    AssembleBench,
    BenchResult,
    CitationsBench,
    CommunicationBench,
    GCNBench,
    MoleculesBench,
    PlanBench,
    ProgramsBench,
    SparseBench,
    bench_assemble,
    bench_citations,
    bench_communication,
    bench_gcn,
    bench_molecules,
    bench_plan,
    bench_programs,
    bench_sparse,
    print_result,
)


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """Options of every benchmark.

    Attributes:
        json: write machine, versions, command, raw samples, medians and ratios to this file.
        print_config: print the settings as JSON and stop.
    """

    json: Path | None = None
    print_config: bool = False

    def _go(
        self, console: Console, config: Any, bench: Callable[[Any, Progress], BenchResult]
    ) -> int:
        if self.print_config:
            return print_config(config, console)
        if self.json and not self.json.absolute().parent.is_dir():
            # Better known now than after minutes of timing.
            raise DataError(f"there is no folder {self.json.parent} to write {self.json.name} to")
        if self.json and self.json.is_dir():
            raise DataError(f"{self.json} is a folder; --json names a file")
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        errors = Console(stderr=True)
        with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
            result = bench(config, progress)
        print_result(result, console)
        if self.json:
            result.save(self.json)
            console.print(f"written to {self.json}", soft_wrap=True)
        return 1 if any(case.own_failures or case.missed for case in result.cases) else 0


@dataclass(frozen=True, kw_only=True)
class Gcn(_Bench):
    """Full-batch GCN training, an epoch: weft and torch_geometric."""

    config: Annotated[GCNBench, tyro.conf.arg(name="")] = field(default_factory=GCNBench)

    def __call__(self, console: Console) -> int:
        """Run it."""
        return self._go(console, self.config, bench_gcn)


@dataclass(frozen=True, kw_only=True)
class Assemble(_Bench):
    """Assembling a batch of QM9 molecules: weft, torch_geometric and jraph."""

    config: Annotated[AssembleBench, tyro.conf.arg(name="")] = field(default_factory=AssembleBench)

    def __call__(self, console: Console) -> int:
        """Run it."""
        return self._go(console, self.config, bench_assemble)


@dataclass(frozen=True, kw_only=True)
class Citations(_Bench):
    """Test accuracy of the GCN on Cora, CiteSeer and PubMed over seeds."""

    config: Annotated[CitationsBench, tyro.conf.arg(name="")] = field(
        default_factory=CitationsBench
    )

    def __call__(self, console: Console) -> int:
        """Run it."""
        return self._go(console, self.config, bench_citations)


@dataclass(frozen=True, kw_only=True)
class Molecules(_Bench):
    """SchNet, MPEU and PaiNN on QM9, a step: weft, torch_geometric, JAX and SchNetPack."""

    config: Annotated[MoleculesBench, tyro.conf.arg(name="")] = field(
        default_factory=MoleculesBench
    )

    def __call__(self, console: Console) -> int:
        """Run it."""
        return self._go(console, self.config, bench_molecules)


@dataclass(frozen=True, kw_only=True)
class Programs(_Bench):
    """Typed gated networks, a step: weft, ptgnn, torch_geometric; and the forms of an adjacency."""

    config: Annotated[ProgramsBench, tyro.conf.arg(name="")] = field(default_factory=ProgramsBench)

    def __call__(self, console: Console) -> int:
        """Run it."""
        return self._go(console, self.config, bench_programs)


@dataclass(frozen=True, kw_only=True)
class Communication(_Bench):
    """One graph on many ranks: exactness, bytes received, the cost model, speed and scale."""

    config: Annotated[CommunicationBench, tyro.conf.arg(name="")] = field(
        default_factory=CommunicationBench
    )

    def __call__(self, console: Console) -> int:
        """Run it."""
        return self._go(console, self.config, bench_communication)


@dataclass(frozen=True, kw_only=True)
class Sparse(_Bench):
    """Sparse networks: speed beside torch, sparseprop and rigl-torch; memory, accuracy, walks."""

    config: Annotated[SparseBench, tyro.conf.arg(name="")] = field(default_factory=SparseBench)

    def __call__(self, console: Console) -> int:
        """Run it."""
        return self._go(console, self.config, bench_sparse)


@dataclass(frozen=True, kw_only=True)
class Plan(_Bench):
    """What the planner chooses, beside every sensible fixed choice: within 10% of the best?"""

    config: Annotated[PlanBench, tyro.conf.arg(name="")] = field(default_factory=PlanBench)

    def __call__(self, console: Console) -> int:
        """Run it."""
        return self._go(console, self.config, bench_plan)


COMMANDS = {
    "gcn": Gcn,
    "assemble": Assemble,
    "citations": Citations,
    "molecules": Molecules,
    "programs": Programs,
    "communication": Communication,
    "sparse": Sparse,
    "plan": Plan,
}
