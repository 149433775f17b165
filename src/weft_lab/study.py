"""The form of every study: settings, results that are kept all along, tables, plots and claims."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_type_hints

from weft.errors import DataError
from weft.files import json_text, write_atomically
from weft.sources.progress_bar import progress_bar
from weft_lab.report import Claim, Panel, Section, draw_panels, markdown_of
from weft_lab.results import (
    RESULTS,
    Provenance,
    document,
    from_plain,
    read_document,
    to_plain,
    write_document,
)

if TYPE_CHECKING:
    from typing_extensions import Self

Data = TypeVar("Data")
Item = TypeVar("Item")

Finding = tuple[str, str, str, bool | None]
"""A claim of a paper, the published figure, the one measured here, and whether it holds; None
where the paper leaves it open."""


@dataclass(kw_only=True)
class StudyResults(Provenance):
    """Everything that a study measured, and where; a study adds its own fields.

    Attributes:
        schemas: of the file; the first is written, all are read.
        title: of the page.
        kind: what the study is called in messages.
        method: how it was measured.
        folder: where results.json is.
        config: what was asked.
        data: what it was measured on.
        quiet: show no progress.
    """

    schemas: ClassVar[tuple[str, ...]]
    title: ClassVar[str]
    kind: ClassVar[str]
    method: ClassVar[str]

    folder: Path
    config: Any
    data: dict[str, Any] = field(default_factory=dict)
    quiet: bool = False

    def missing(
        self, what: str, items: Sequence[Item], done: Callable[[Item], object] = lambda _: False
    ) -> Iterator[Item]:
        """Those of `items` that are not `done`, to be measured; the file is saved after each.

        Args:
            what: the words of the progress bar.
            items: all that there are.
            done: whether an item has been measured already.
        """
        with progress_bar(what, len(items), show=not self.quiet, count=True) as move:
            for number, item in enumerate(items, start=1):
                if not done(item):
                    yield item
                    self.save()
                move(number)

    def save(self) -> None:
        """Write the file, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        names = [each.name for each in fields(self) if each.name not in _HEAD]
        measured = {name: to_plain(getattr(self, name)) for name in ("config", *names)}
        measured |= self.derived()
        values = document(self.schemas[0], self, measured, packages=("torch", "numpy"))
        write_document(self.folder / RESULTS, values)

    def derived(self) -> dict[str, Any]:
        """Figures that follow from others, for readers of the file."""
        return {}

    @classmethod
    def upgraded(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The values of a file, in the layout that is written today."""
        return values

    @classmethod
    def describe(cls, data: Mapping[str, Any]) -> str:
        """The data in words; data with the same words is the same."""
        return str(data)

    @classmethod
    def load(cls, folder: Path, config: Any) -> Self:
        """What a study with the same `config` has measured so far.

        Raises:
            DataError: the file is none, or of a study with other settings.
        """
        path = folder / RESULTS
        try:
            values = cls.upgraded(read_document(path, cls.schemas))
            for name, value in json.loads(json_text(asdict(config))).items():
                if (written := values["config"].get(name)) != value:
                    raise DataError(
                        f"{path} is of a study with {name} = {written}, not {value}; resume it "
                        "with the same settings or choose another folder"
                    )
            hints = get_type_hints(cls)
            own = ("folder", "config", "quiet")
            names = [each.name for each in fields(cls) if each.name not in own]
            measured = {name: from_plain(hints[name], values[name]) for name in names}
            return cls(folder=folder, config=config, **measured)
        except DataError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} is not the file of a {cls.kind}; choose another folder"
            ) from error


# Fields that a file begins with, and those that are not in it.
_HEAD = {each.name for each in fields(Provenance)} | {"folder", "config", "quiet"}


Results = TypeVar("Results", bound=StudyResults)


@dataclass(frozen=True, kw_only=True)
class Study(Generic[Data, Results]):
    """The experiment of a paper, on the machine at hand.

    Attributes:
        paper: authors, year and title.
        results: what is measured, and its file.
        load: gives the data for some settings, the data folder, `quiet` and the options of the
            command.
        about: what the file says of the data.
        measure: takes results and data; fills the results, and saves them all along.
        sections: the results as tables; those without rows are not shown.
        figures: panels of the plots, by the name of their file; those without panels are not
            drawn.
        findings: what the paper claims, and what was measured.
    """

    paper: str
    results: type[Results]
    load: Callable[..., Data]
    about: Callable[[Data], dict[str, Any]]
    measure: Callable[..., None]
    sections: Callable[[Results], list[Section]]
    figures: Callable[[Results], dict[str, list[Panel]]]
    findings: Callable[[Results], Iterable[Finding]]

    def run(
        self,
        config: Any,
        data: Data,
        folder: Path,
        *,
        resume: bool = False,
        machine: Mapping[str, Any] | None = None,
        quiet: bool = False,
        **options: Any,
    ) -> Results:
        """Measure, and keep what was measured in `folder` all along.

        Args:
            config: what to measure.
            data: what to measure it on.
            folder: where results.json goes.
            resume: go on with the study in `folder`: what it has is not measured again; what was
                not finished begins again.
            machine: what to say about it in the file.
            quiet: show no progress.
            options: passed to `measure`.

        Raises:
            DataError: there is a study in `folder` and `resume` is not given, or it has other
                settings or other data; the data is not what the study needs; a rank failed.
            ValueError: the settings do not fit the data.
            KeyboardInterrupt: the study was interrupted; what was measured is kept.
        """
        about, kind = self.about(data), self.results
        if not (folder / RESULTS).exists():
            results = kind(folder=folder, config=config, machine=dict(machine or {}), data=about)
        elif not resume:
            raise DataError(
                f"{folder} holds a study already; resume it (--resume) or choose another folder"
            )
        else:
            results = kind.load(folder, config)
            before, now = kind.describe(results.data), kind.describe(about)
            if before != now:
                raise DataError(
                    f"{folder} holds a study of {before}, not of {now}; choose another folder"
                )
        results.quiet = quiet
        self.measure(results, data, **options)
        return results

    def report(self, results: Results) -> list[Section]:
        """All tables that have rows."""
        return [section for section in self.sections(results) if section.rows]

    def plot(self, results: Results, folder: Path) -> list[Path]:
        """Write what there is to show as SVG or PNG files; gives their paths.

        Raises:
            DataError: matplotlib is not installed.
        """
        figures = self.figures(results).items()
        return [draw_panels(panels, folder / name) for name, panels in figures if panels]

    def claims(self, results: Results, command: str) -> list[Claim]:
        """The paper's claims beside what was measured with `command`."""
        return [Claim(self.paper, command, *finding) for finding in self.findings(results)]


def write_markdown(
    results: StudyResults, sections: Sequence[Section], path: Path, *, plots: Sequence[Path] = ()
) -> None:
    """The report as a page with every column, and the plots that are beside it."""
    about = results.machine
    lines = [f"# {results.title}", ""]
    if about:
        lines += [f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB.", ""]
    lines += [f"Begun {results.created} with:", "", f"    {results.command}", ""]
    lines += [results.method, "", *markdown_of(sections)]
    lines += [line for plot in plots for line in (f"![{plot.stem}]({plot.name})", "")]
    text = "\n".join(lines)
    write_atomically(path, lambda file: file.write(text.encode()))
