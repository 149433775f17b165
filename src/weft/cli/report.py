"""`weft report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from weft.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Report:
    """One HTML page on runs, plans and studies; several runs are compared.

    The page is one file that needs no network and no script. Examples:
      weft report runs/molecules-qm9-u0
      weft report plan.json
      weft report runs/eager runs/compiled --out compared.html

    Attributes:
        items: Folders of runs or studies, files of plans.
        out: Write the page to this file; by default it is report.html in the one folder, or here
            for several, and plan.html beside plan.json.
    """

    items: tyro.conf.Positional[tuple[Path, ...]]
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
