"""`weft study NAME`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro
from rich.console import Console

from weft.errors import DataError
from weft_lab.study_settings import (
    BatchingStudy,
    CommunicationStudy,
    DenseHardwareStudy,
    SparsificationStudy,
    quick,
)

if TYPE_CHECKING:
    from weft_lab.report import Claim

PAGE = "four-papers.html"
"""The page of `weft study all`, with everything on it."""

_Out = Annotated[Path, tyro.conf.arg(aliases=["--folder"])]


@dataclass(frozen=True, kw_only=True)
class _Common:
    """Options of a study and of all of them.

    Attributes:
        quick: Smaller settings for everything not given: under 5 minutes on 2 cores.
        out: Folder for results.json, results.md and the plots.
        resume: Resume the study in that folder; what is measured there is kept.
        data_dir: The data folder; by default $WEFT_DATA_DIR or the user's cache folder.
        quiet: Show no progress.
    """

    quick: bool = False
    out: _Out
    resume: bool = False
    data_dir: Path | None = None
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class StudyCommand(_Common):
    """Options of every study; what else a command has are options of its data.

    Attributes:
        print_config: Print the settings as JSON and stop.
    """

    name: ClassVar[str]
    config: Any
    print_config: bool = False

    @property
    def settings(self) -> Any:
        """What is measured: the study's own dataclass, made smaller where `quick` is given."""
        return quick(self.config) if self.quick else self.config

    def __call__(self, console: Console) -> int:
        """Measure, print the tables, and write everything to the folder."""
        # Imported here and not above: help needs no torch.
        from weft.cli.options import print_config
        from weft.training import prepare_process
        from weft.training.launch import LaunchStopped
        from weft_lab.report import claims_section, print_report
        from weft_lab.results import machine
        from weft_lab.studies import STUDIES
        from weft_lab.study import write_markdown

        if self.print_config:
            return print_config(self.settings, console)
        _check_folder(self.out)
        prepare_process()
        study = STUDIES[self.name]
        common = {each.name for each in fields(StudyCommand)}
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in common}
        try:
            data = study.load(self.settings, data_dir=self.data_dir, quiet=self.quiet, **options)
            results = study.run(
                self.settings,
                data,
                self.out,
                resume=self.resume,
                machine=machine(),
                quiet=self.quiet,
            )
        except (KeyboardInterrupt, LaunchStopped):
            words = [word for word in sys.argv[1:] if word != "--resume"]
            console.print(
                f"Interrupted; what was measured is in {self.out}. Resume with:\n"
                f"  {shlex.join(['weft', *words, '--resume'])}",
                soft_wrap=True,
            )
            return 130
        sections = study.report(results)
        print_report(sections, console)
        plots: Sequence[Path] = ()
        try:
            plots = study.plot(results, self.out)
        except DataError as error:
            # Hours of measuring are not to end with an error for want of pictures.
            console.print(f"No plots: {error}", soft_wrap=True)
        claims = claims_section(study.claims(results, ""))
        written = [claims, *sections] if claims.rows else sections
        write_markdown(results, written, self.out / "results.md", plots=plots)
        names = ", ".join(["results.md", "results.json", *(path.name for path in plots)])
        console.print(f"Everything is in {self.out}: {names}", soft_wrap=True)
        return 0

    def claims(self, words: str) -> list[Claim]:
        """What the paper says, beside what the command `words` has measured in the folder."""
        from weft_lab.studies import STUDIES

        study = STUDIES[self.name]
        results = study.results.load(self.out, self.settings)
        return study.claims(results, words)


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; --out names a folder")


@dataclass(frozen=True, kw_only=True)
class Batching(StudyCommand):
    """Speckhard et al. (2025): models, batch sizes and policies of batching, timed and compared.

    On QM9, and on crystals of your own. Examples:
      weft study batching --quick
      weft study batching --compile eager static dynamic --crystals crystals.jsonl.gz

    Attributes:
        crystals_file: Also on these crystals, JSON lines as of the data set mp-matminer.
    """

    name = "batching"
    config: Annotated[BatchingStudy, tyro.conf.arg(name="")] = field(default_factory=BatchingStudy)
    out: _Out = Path("studies/batching")
    crystals_file: Annotated[Path | None, tyro.conf.arg(name="crystals")] = None


@dataclass(frozen=True, kw_only=True)
class DenseHardware(StudyCommand):
    """Balog et al. (2019): sparse graphs of programs on dense hardware, measured and compared.

    Orders of nodes, supergraphs, slices of the data, banded against csr. Examples:
      weft study dense-hardware --quick
      weft study dense-hardware --data my_project/ --epochs 8

    Attributes:
        data: A folder of .py files; by default the standard library of this Python.
    """

    name = "dense-hardware"
    config: Annotated[DenseHardwareStudy, tyro.conf.arg(name="")] = field(
        default_factory=DenseHardwareStudy
    )
    out: _Out = Path("studies/dense-hardware")
    data: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Communication(StudyCommand):
    """Tripathy et al. (2020): what ranks that share one graph send each other, on every grid.

    Bytes predicted and recorded, as published and with less communication; times; accuracies.

    Examples:
      weft study communication --quick
      weft study communication --data amazon-photo --files amazon-photo.zip

    Attributes:
        data: A graph of the catalogue, or a path, as for `weft train full-graph`; by default one
            is generated.
        files: Files of the data set of that name, instead of cached or downloaded ones.
    """

    name = "communication"
    config: Annotated[CommunicationStudy, tyro.conf.arg(name="")] = field(
        default_factory=CommunicationStudy
    )
    out: _Out = Path("studies/communication")
    data: str | None = None
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sparsification(StudyCommand):
    """Peng et al. (2022): accuracy, FLOPs and time against the sparsity of the weights.

    SLR and RigL, with dense and sparse embeddings; dense, sparse and accelerated steps. Examples:
      weft study sparsification --quick
      weft study sparsification --links CollegeMsg --classes cora
      weft study sparsification --links my_edges.txt.gz --tasks links

    Attributes:
        links: A temporal graph of `weft data list`, or an edge list with the lines src dst time;
            by default a stream is generated.
        links_files: Files of the data set of that name, instead of cached or downloaded ones.
        classes: A graph of `weft data list` whose nodes have classes; by default one is generated.
        classes_files: Files of the data set of that name.
    """

    name = "sparsification"
    config: Annotated[SparsificationStudy, tyro.conf.arg(name="")] = field(
        default_factory=SparsificationStudy
    )
    out: _Out = Path("studies/sparsification")
    links: str | None = None
    links_files: tuple[Path, ...] = ()
    classes: str | None = None
    classes_files: tuple[Path, ...] = ()


# In the order of the papers.
_EACH: dict[str, Callable[..., StudyCommand]] = {
    "dense-hardware": DenseHardware,
    "communication": Communication,
    "sparsification": Sparsification,
    "batching": Batching,
}


@dataclass(frozen=True, kw_only=True)
class All(_Common):
    """All four studies one after another, and one page: the four papers on this machine.

    Each claim, the published figure, the one measured here, and the command that measures it.

    Examples:
      weft study all --quick
      weft study all --quick --resume     (after Ctrl-C: what is measured is kept)

    Attributes:
        quick: The quick form of each: about 8 minutes on 2 cores in all.
        out: Folder for the page, and for a folder of each study.
        resume: Resume the studies in that folder; what is measured there is kept.
    """

    out: _Out = Path("studies")

    def __call__(self, console: Console) -> int:
        """Run the studies and write the page."""
        from weft_lab.report import write_four_papers
        from weft_lab.results import RESULTS

        _check_folder(self.out)
        if find_spec("jinja2") is None:
            # Better known now than after minutes of measuring.
            raise DataError(
                "a page needs jinja2, which is not installed: pip install 'weft[report]'"
            )
        begun = [name for name in _EACH if (self.out / name / RESULTS).exists()]
        if begun and not self.resume:
            raise DataError(
                f"{self.out / begun[0]} holds a study already; resume it (--resume) or "
                "choose another folder"
            )
        claims: list[Claim] = []
        missing: dict[str, str] = {}
        for number, (name, make) in enumerate(_EACH.items(), start=1):
            console.rule(f"{number} of {len(_EACH)}: weft study {name}", characters="─")
            command = make(
                quick=self.quick,
                out=self.out / name,
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
                return code
            claims += command.claims(f"weft study {name}" + " --quick" * self.quick)
        if len(missing) == len(_EACH):
            raise DataError(
                f"none of the studies could be made; the first: {next(iter(missing.values()))}"
            )
        done = [self.out / name for name in _EACH if name not in missing]
        page = write_four_papers(claims, done, self.out / PAGE, missing=missing)
        console.print(f"The four papers on this machine: {page}", soft_wrap=True)
        return 2 if missing else 0


COMMANDS = {"batching": Batching, **_EACH, "all": All}
