"""`weft bench NAME`."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from weft.errors import DataError
from weft_lab.bench_settings import (
    AssembleBench,
    CitationsBench,
    CommunicationBench,
    ForcesBench,
    GCNBench,
    MDBench,
    MoleculesBench,
    PlanBench,
    ProgramsBench,
    SparseBench,
    StrangersBench,
)


@dataclass(frozen=True, kw_only=True)
class BenchCommand:
    """Options of every benchmark.

    Attributes:
        out: Write machine, versions, command, raw samples, medians and ratios to this JSON file.
        print_config: Print the settings as JSON and stop.
    """

    function: ClassVar[str]
    out: Annotated[Path | None, tyro.conf.arg(aliases=["--json"])] = None
    print_config: bool = False
    config: Any

    def __call__(self, console: Console) -> int:
        """Run it, print the tables, and write the file."""
        # Imported here and not above: help needs no torch.
        from weft.cli.options import print_config
        from weft.training.launch import LaunchStopped
        from weft_lab.bench.result import print_result

        if self.print_config:
            return print_config(self.config, console)
        if self.out and not self.out.absolute().parent.is_dir():
            # Better known now than after minutes of timing.
            raise DataError(f"there is no folder {self.out.parent} to write {self.out.name} to")
        if self.out and self.out.is_dir():
            raise DataError(f"{self.out} is a folder; --out names a file")
        module, _, name = self.function.partition(":")
        bench = getattr(import_module(f"weft_lab.bench.{module}"), name)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        errors = Console(stderr=True)
        with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
            try:
                result = bench(self.config, progress)
            except LaunchStopped:
                raise KeyboardInterrupt from None
        print_result(result, console)
        if self.out:
            result.save(self.out)
            console.print(f"written to {self.out}", soft_wrap=True)
        return 1 if any(case.own_failures or case.missed for case in result.cases) else 0


def _command(name: str, config: type[Any], module: str, words: str) -> type[BenchCommand]:
    """The command of one benchmark, with its settings as options."""
    settings = ("config", Annotated[config, tyro.conf.arg(name="")], field(default_factory=config))
    made = make_dataclass(
        config.__name__, [settings], bases=(BenchCommand,), frozen=True, kw_only=True
    )
    made.__doc__ = words
    made.function = f"{module}:bench_{name}"  # type: ignore[attr-defined]
    return made


# Settings, the module, and the help.
_BENCHES: dict[str, tuple[type[Any], str, str]] = {
    "gcn": (GCNBench, "nodes", "Full-batch GCN training, an epoch: weft and torch_geometric."),
    "assemble": (
        *(AssembleBench, "molecules"),
        "Assembling a batch of QM9 molecules: weft, torch_geometric and jraph.",
    ),
    "citations": (
        *(CitationsBench, "nodes"),
        "Test accuracy of the GCN on Cora, CiteSeer and PubMed over seeds.",
    ),
    "molecules": (
        *(MoleculesBench, "molecules"),
        "SchNet, MPEU and PaiNN on QM9, a step: weft, torch_geometric, JAX and SchNetPack.",
    ),
    "forces": (
        *(ForcesBench, "forces"),
        "Potentials, a training step and forces alone: weft, SchNetPack, torch_geometric, MACE.",
    ),
    "md": (
        *(MDBench, "forces"),
        "Molecular dynamics with ASE, a step: weft's calculator and SchNetPack's.",
    ),
    "programs": (
        *(ProgramsBench, "programs"),
        "Typed gated networks, a step: weft, ptgnn, torch_geometric; and the forms of an "
        "adjacency.",
    ),
    "communication": (
        *(CommunicationBench, "communication"),
        "One graph on many ranks: exactness, bytes received, the cost model, speed and scale.",
    ),
    "sparse": (
        *(SparseBench, "sparse"),
        "Sparse networks: speed beside torch, sparseprop and rigl-torch; memory, accuracy, walks.",
    ),
    "strangers": (
        *(StrangersBench, "strangers"),
        "Models of torch_geometric's users, a step: as they are, and after weft.accelerate.",
    ),
    "plan": (
        *(PlanBench, "plan"),
        "What the planner chooses, beside every sensible fixed choice: within 10% of the best?",
    ),
}
COMMANDS = {name: _command(name, *each) for name, each in _BENCHES.items()}
