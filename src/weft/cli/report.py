"""`weft report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from weft.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Report:
    """One HTML page on runs, plans and studies; several runs are compared.

    A folder of runs becomes a leader board. The page is one file that needs no network and no
    script. Examples:
      weft report runs/molecules-qm9-u0
      weft report runs
      weft report plan.json
      weft report runs/eager runs/compiled --out compared.html

    Attributes:
        items: Folders of runs or studies, folders with runs, files of plans or benchmarks.
        out: Write the page to this file; by default report.html in the folder (in the current one
            for several items), and plan.html beside plan.json.
    """

    items: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="ITEM [ITEM ...]", help_behavior_hint="(required)"),
    ]
    out: Path | None = None

    def __call__(self, console: Console) -> int:
        """Write the page and print its path."""
        from weft.report import write_page

        if self.out is not None and not self.out.absolute().parent.is_dir():
            raise DataError(f"there is no folder {self.out.parent} to write {self.out.name} to")
        if self.out is not None and self.out.is_dir():
            raise DataError(f"--out {self.out} is a folder; name a file in it")
        console.print(str(write_page(self.items, self.out)), soft_wrap=True, highlight=False)
        return 0


COMMAND = Report
