"""`weft study all`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from weft.errors import DataError
from weft_lab.commands.study_batching import Batching
from weft_lab.commands.study_command import StudyCommand, check_folder
from weft_lab.commands.study_communication import Communication
from weft_lab.commands.study_dense import DenseHardware
from weft_lab.commands.study_sparsification import Sparsification
from weft_lab.report.claims import Claim, write_four_papers
from weft_lab.report.four_papers import (
    batching_claims,
    communication_claims,
    dense_hardware_claims,
    sparsification_claims,
)
from weft_lab.studies import (
    RESULTS,
    CommunicationResults,
    DenseResults,
    SparsificationResults,
    StudyResults,
)

PAGE = "four-papers.html"
"""File of the folder with everything on one page."""


@dataclass(frozen=True, kw_only=True)
class _Study:
    """One of the four: its command, what it writes, and what the paper claimed."""

    command: Callable[..., StudyCommand]
    results: type[Any]
    claims: Callable[[Any], list[Claim]]


_STUDIES = {
    "dense-hardware": _Study(
        command=DenseHardware, results=DenseResults, claims=dense_hardware_claims
    ),
    "communication": _Study(
        command=Communication, results=CommunicationResults, claims=communication_claims
    ),
    "sparsification": _Study(
        command=Sparsification, results=SparsificationResults, claims=sparsification_claims
    ),
    "batching": _Study(command=Batching, results=StudyResults, claims=batching_claims),
}


@dataclass(frozen=True, kw_only=True)
class All:
    """All four studies one after another, and one page: the four papers on this machine.

    Each claim, the published figure, the one measured here, and the command that measures it.

    Examples:
      weft study all --quick
      weft study all --quick --resume     (after Ctrl-C: what is measured is kept)

    Attributes:
        quick: the quick form of each: about 8 minutes on 2 cores in all.
        folder: for the page, and a folder for each study in it.
        resume: go on with the studies in that folder; what is measured there is kept.
        data_dir: the data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        quiet: no progress.
    """

    quick: bool = False
    folder: Path = Path("studies")
    resume: bool = False
    data_dir: Path | None = None
    quiet: bool = False

    def __call__(self, console: Console) -> int:
        """Run the studies and write the page."""
        check_folder(self.folder)
        if find_spec("jinja2") is None:
            # Better known now than after minutes of measuring.
            raise DataError(
                "a page needs jinja2, which is not installed: pip install 'weft[report]'"
            )
        begun = [name for name in _STUDIES if (self.folder / name / RESULTS).exists()]
        if begun and not self.resume:
            raise DataError(
                f"{self.folder / begun[0]} holds a study already; go on with it (--resume) or "
                "choose another folder"
            )
        claims: list[Claim] = []
        missing: dict[str, str] = {}
        for number, (name, study) in enumerate(_STUDIES.items(), start=1):
            console.rule(f"{number} of {len(_STUDIES)}: weft study {name}", characters="─")
            command = study.command(
                quick=self.quick,
                folder=self.folder / name,
                resume=name in begun,
                data_dir=self.data_dir,
                quiet=self.quiet,
            )
            try:
                code = command(console)
            except DataError as error:
                # The other papers can still be looked at.
                missing[name] = str(error)
                console.print(f"weft study {name}: {error}", style="red", soft_wrap=True)
                continue
            if code:
                return int(code)
            results = study.results.load(self.folder / name, command.settings)
            words = f"weft study {name}" + (" --quick" if self.quick else "")
            claims += [replace(claim, command=words) for claim in study.claims(results)]
        if len(missing) == len(_STUDIES):
            raise DataError(
                f"none of the studies could be made; the first: {next(iter(missing.values()))}"
            )
        done = [self.folder / name for name in _STUDIES if name not in missing]
        page = write_four_papers(claims, done, self.folder / PAGE, missing=missing)
        console.print(f"The four papers on this machine: {page}", soft_wrap=True)
        return 2 if missing else 0
