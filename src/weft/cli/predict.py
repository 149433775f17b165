"""`weft predict RUN FILE`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from weft.cli.predict_full_graph import predict_full_graph
from weft.cli.predict_links import predict_pairs, predict_some_nodes
from weft.cli.predict_programs import predict_programs
from weft.errors import DataError
from weft.recipes.full_graph.prediction import is_of_full_graph
from weft.recipes.links.prediction import is_of_links
from weft.recipes.nodes.prediction import is_of_nodes
from weft.recipes.programs.prediction import is_of_programs
from weft.recipes.structures.prediction import (
    check_output,
    load_structures,
    predict_file,
    write_predictions,
)
from weft.training import prepare_process

_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Predict structures, nodes, links or suspicious names of variables, with a trained run.

    Values are in the unit of the training data, forces in eV/Å. In code, every use of a variable
    is looked at: is another name in scope likelier there? Examples:
      weft predict runs/molecules-qm9-u0 new.extxyz
      weft predict runs/molecules-qm9-u0 new.extxyz --out new-predicted.extxyz --forces
      weft predict runs/programs-python my_project/
      weft predict runs/programs-python new.py --format sarif --out new.sarif
      weft predict runs/full-graph-cora --ranks 4
      weft predict runs/full-graph-cora new-edges.txt --features new-x.npy
      weft predict runs/links-my_edges pairs.txt             (a pair src dst on each line)
      weft predict runs/nodes-cora --out classes.json        (every node of the run's graph)
      weft predict runs/nodes-my_edges some-nodes.txt        (a node on each line)

    Attributes:
        run: the folder of a run of `weft train molecules`, `crystals`, `programs`, `full-graph`,
            `links` or `nodes`.
        file: what ASE reads (extxyz, CIF, an ASE database), a folder of CIF files, or crystals
            as JSON lines or CIF in CSV (predictions as .csv only); a Python file or a folder of
            them; another graph than that of a full-graph run, which is the default there; pairs
            of nodes, or nodes, of a run on links or nodes, called as in its edge list.
        out: the file to write, .csv or .extxyz, for links and nodes .csv or .json; by default
            FILE-predicted.csv here, .extxyz with forces. What was found in code is printed by
            default.
        forces: also the forces, minus the gradient of the value in the positions.
        threshold: of code, show where another name is at least so probable; 0.9 by default.
        all: of code, show every use of a variable.
        format: of what was found in code: a table, JSON, or SARIF for editors; table by default.
        ranks: of a full-graph run, processes that share the graph; 1 by default.
        features: of a full-graph run, .npy [n, f] where FILE is an edge list.
        data_dir: of a full-graph run, the data folder; by default as for training.
        quiet: no progress.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    file: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = None
    out: Path | None = None
    forces: bool = False
    threshold: float | None = None
    all: bool = False
    format: Literal["table", "json", "sarif"] | None = None
    ranks: int | None = None
    features: Path | None = None
    data_dir: Path | None = None
    quiet: bool = False

    def __call__(self, console: Console) -> int:
        """Predict, write the file, and print the first values."""
        file = self.file
        if file is not None and not file.exists():
            raise DataError(f"{file} is not there")
        of_code = self.all or self.format or self.threshold is not None
        if is_of_links(self.run) or is_of_nodes(self.run):
            given = self.forces or of_code or self.features or self.data_dir
            if given or self.ranks is not None:
                raise DataError(
                    f"{self.run} is of links or nodes, for which there are only --out and --quiet"
                )
            predict = predict_pairs if is_of_links(self.run) else predict_some_nodes
            return predict(self.run, file, console, out=self.out)
        if is_of_full_graph(self.run):
            if self.forces or of_code:
                raise DataError(
                    f"{self.run} is of a full graph: --forces, --threshold, --all and --format "
                    "are for other runs"
                )
            return predict_full_graph(
                self.run,
                file,
                console,
                out=self.out,
                features=self.features,
                ranks=1 if self.ranks is None else self.ranks,
                data_dir=self.data_dir,
            )
        if self.ranks is not None or self.features or self.data_dir:
            raise DataError(
                "--ranks, --features and --data-dir are for runs of `weft train full-graph`, and "
                f"{self.run} holds none"
            )
        if file is None:
            raise DataError(f"name the file to predict: weft predict {self.run} FILE")
        if is_of_programs(self.run):
            if self.forces:
                raise DataError(f"{self.run} is of programs, which have no forces")
            return predict_programs(
                self.run,
                file,
                console,
                out=self.out,
                threshold=0.9 if self.threshold is None else self.threshold,
                every=self.all,
                form=self.format or "table",
                progress=not self.quiet,
            )
        if of_code:
            raise DataError(
                "--threshold, --all and --format are for runs of `weft train programs`, and "
                f"{self.run} holds none"
            )
        return self._structures(file, console)

    def _structures(self, file: Path, console: Console) -> int:
        out = self.out or Path(
            f"{file.resolve().stem}-predicted.{'extxyz' if self.forces else 'csv'}"
        )
        check_output(out, file, forces=self.forces)
        prepare_process()
        trained = load_structures(self.run)
        if self.forces and (reason := trained.config.why_no_forces()):
            console.print(f"Do not rely on these forces: {reason}.", soft_wrap=True)
        found = predict_file(trained, file, forces=self.forces, progress=not self.quiet)
        write_predictions(out, file, found)
        table = Table(box=None, padding=(0, 2, 0, 0))
        unit = f" [{found.unit}]" if found.unit else ""
        for heading in ("structure", "atoms", f"{found.target}{unit}"):
            table.add_column(heading, justify="right")
        for number in range(min(_SHOWN, len(found.values))):
            row = (number, found.num_atoms[number], f"{found.values[number]:.6g}")
            table.add_row(*map(str, row))
        console.print(table)
        more = len(found.values) - _SHOWN
        console.print(
            f"{f'... and {more:,} more. ' if more > 0 else ''}Written to {out}.", soft_wrap=True
        )
        return 0


COMMAND = Predict
