"""A trained run of the recipe `programs`, asked about every variable of new files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

import torch
from rich.console import Console
from rich.table import Table

import weft
from weft.batching import BatchingConfig, evaluation_sampler
from weft.errors import DataError
from weft.files import json_text, read_object, write_atomically
from weft.graphs import assemble, table_from_graphs
from weft.layout import TypedEdges
from weft.models.ggnn import GGNN, candidate_log_probabilities
from weft.recipes.output import notes
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.programs.data import step_budget
from weft.recipes.programs.training import KIND, make_ggnn
from weft.recipes.recipe import ABOUT, PredictOptions, from_json
from weft.sources.program_graph import CANDIDATE, PROGRAM_SCHEMA
from weft.sources.progress_bar import progress_bar
from weft.sources.python_code import MAX_NODES, Sample, each_sample
from weft.sources.python_programs import python_files
from weft.sources.python_units import Unusable, read_source
from weft.training.checkpoint import load_weights
from weft.training.run import CONFIG
from weft.training.saved_inputs import kind_of

# Samples that are held at once: a long file has tens of thousands.
_TOGETHER = 256
# Larger functions than in training are looked at, up to where one would take minutes.
_LARGEST = 4 * MAX_NODES
_THRESHOLD = 0.9
_WORDS = {"too large": f"a function or module of more than {_LARGEST:,} nodes"}
RULE = "variable-misuse"
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A use of a variable, and the name that is likeliest there beside it.

    Attributes:
        file: its path.
        line: from 1.
        column: in characters, from 1.
        name: as it is written.
        suggestion: the likeliest of the other names in scope.
        probability: of the suggestion.
        written: probability of `name`.
    """

    file: str
    line: int
    column: int
    name: str
    suggestion: str
    probability: float
    written: float

    @property
    def place(self) -> str:
        """As compilers print it."""
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def sentence(self) -> str:
        """In words."""
        return (
            f"'{self.suggestion}' is likelier here than '{self.name}' "
            f"({self.probability:.1%} against {self.written:.1%})"
        )


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a network says about the variables of files.

    Attributes:
        findings: every use with another name in scope, the most suspicious first.
        files: how many there are.
        skipped: by file, why it, or some of it, was not looked at.
    """

    findings: list[Finding]
    files: int
    skipped: Mapping[str, str]

    def suspicious(self, threshold: float) -> list[Finding]:
        """Uses where another name is likelier, and at least as probable as `threshold`."""
        return [f for f in self.findings if f.probability >= max(threshold, f.written)]


def load_programs(run: Path) -> tuple[GGNN, ProgramsConfig]:
    """The network of the run in the folder `run`, with its best weights, and the recipe.

    Raises:
        DataError: no such run, or one of another recipe.
    """
    if kind_of(run) != KIND:
        raise DataError(f"{run} holds no run of `weft train programs`")
    try:
        asked = read_object(run / CONFIG, {"config": dict})["config"]
        about = read_object(run / ABOUT, {"num_types": int, "vocabulary": int})
        config = from_json(ProgramsConfig, asked)
        sizes = {name: int(about[name]) for name in ("num_types", "vocabulary")}
    except (ValueError, TypeError) as error:
        raise DataError(f"the run in {run} cannot be read ({error})") from None
    model = make_ggnn(config, **sizes)
    load_weights(model, run)
    model.eval()
    return model, config


def inspect_code(
    trained: tuple[GGNN, ProgramsConfig], path: Path, *, progress: bool = True
) -> Inspection:
    """Ask about every use of a variable in a Python file, or in all files of a folder.

    A file that cannot be read or parsed is skipped, and so is a function that is too large.

    Raises:
        DataError: there is no such file, or no Python file in the folder.
    """
    files = python_files(path)
    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    sizes = [file.stat().st_size for _, file in files]
    with progress_bar("Python code", sum(sizes), show=progress) as move:
        done = 0
        for (_, file), size in zip(files, sizes, strict=True):
            left_out: Counter[str] = Counter()
            for some, part in _groups(file, left_out):
                findings += _findings(*trained, str(file), some)
                move(done + int(part * size))
            if left_out:
                skipped[str(file)] = _reasons(left_out)
            done += size
            move(done)
    findings.sort(key=lambda f: (f.written - f.probability, f.file, f.line, f.column))
    return Inspection(findings=findings, files=len(files), skipped=skipped)


def _groups(file: Path, left_out: Counter[str]) -> Iterator[tuple[list[Sample], float]]:
    """The samples of a file, some at a time, and about which part of it they lead to."""
    try:
        source = read_source(file)
    except Unusable as reason:
        left_out[str(reason)] += 1
        return
    lines = source.count("\n") + 1
    samples = each_sample(source, file.name, left_out, max_nodes=_LARGEST)
    while some := list(islice(samples, _TOGETHER)):
        # The first: a module's body, which comes before its functions, has lines of all parts.
        yield some, min(sample.line for sample in some) / lines


def _reasons(skipped: Mapping[str, int]) -> str:
    return ", ".join(
        _WORDS.get(reason, reason) + (f" ({count} times)" if count > 1 else "")
        for reason, count in skipped.items()
    )


def _findings(
    model: GGNN, config: ProgramsConfig, file: str, samples: Sequence[Sample]
) -> Iterator[Finding]:
    for sample, chances in zip(samples, _chances(model, config.nodes, samples), strict=True):
        own = sample.candidates.index(sample.name)
        best = max((i for i in range(len(chances)) if i != own), key=lambda i: chances[i])
        yield Finding(
            file=file,
            line=sample.line,
            column=sample.column + 1,
            name=sample.name,
            suggestion=sample.candidates[best],
            probability=chances[best],
            written=chances[own],
        )


def _chances(model: GGNN, least: int, samples: Sequence[Sample]) -> list[list[float]]:
    """The probabilities of each sample's candidates, in the order that they have there."""
    table = table_from_graphs([sample.graph for sample in samples], PROGRAM_SCHEMA)
    sizes = (table.num_nodes, table.num_edges)
    budget = step_budget(*sizes, max(least, int(sizes[0].max()) + 1))
    batching = BatchingConfig(policy="dynamic", batch_size=budget.graphs, budget=budget)
    found: list[list[float]] = [[]] * len(samples)
    for planned in evaluation_sampler(*sizes, batching).plan():
        batch = assemble(table, planned.graphs, planned.budget)
        with torch.no_grad():
            scores = model(batch, TypedEdges.of_batch(batch, model.config.num_types))
        chances = candidate_log_probabilities(batch, scores).exp()
        candidate = batch.nodes["role"] == CANDIDATE
        for place, graph in enumerate(planned.graphs.tolist()):
            rows = slice(*batch.node_offsets[place : place + 2].tolist())
            found[graph] = chances[rows][candidate[rows]].tolist()
    return found


def show_findings(run: Path, path: Path, options: PredictOptions, console: Console) -> None:
    """Look at a Python file or a folder of them, and print or write what was found.

    Raises:
        DataError: an option does not fit, or there is nothing to look at.
    """
    threshold = _THRESHOLD if options.threshold is None else options.threshold
    form, out, every = options.format or "table", options.out, options.all
    if not 0 <= threshold <= 1:
        raise DataError(f"--threshold is {threshold}; a probability is from 0 to 1")
    if out is not None:
        if form == "table":
            raise DataError(f"--out {out} is for --format json or sarif; a table is printed")
        if not out.parent.is_dir():
            raise DataError(f"{out} cannot be written: there is no folder {out.parent}")
        if out.suffix == ".py" or out.is_dir():
            raise DataError(f"{out} is no file for what was found; name one that ends with .{form}")
    found = inspect_code(load_programs(run), path, progress=not options.quiet)
    # Beside what a program reads from standard output.
    for file, reason in found.skipped.items():
        notes().print(f"weft: {file}: not looked at: {reason}")
    shown = found.findings if every else found.suspicious(threshold)
    if form == "table":
        _print_table(shown, found, threshold, console, every=every)
        return
    write = findings_json if form == "json" else findings_sarif
    text = write(shown, found.skipped)
    if out is None:
        console.out(text, highlight=False, end="")
        return
    write_atomically(out, lambda file: file.write(text.encode()))
    count = _count(shown, found, threshold, every=every)
    console.print(f"{count} Written to {out}.", soft_wrap=True)


def _print_table(
    shown: Sequence[Finding], found: Inspection, threshold: float, console: Console, *, every: bool
) -> None:
    if shown:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for heading in ("place", "name", "suggestion"):
            table.add_column(heading, overflow="fold")
        for heading in ("probability", "of the name"):
            table.add_column(heading, justify="right")
        for finding in shown:
            chances = (f"{finding.probability:.1%}", f"{finding.written:.1%}")
            table.add_row(finding.place, finding.name, finding.suggestion, *chances)
        console.print(table)
    console.print(_count(shown, found, threshold, every=every), soft_wrap=True)
    if not (shown or every) and found.findings:
        console.print("A lower --threshold shows more, --all every use.", soft_wrap=True)


def _count(shown: Sequence[Finding], found: Inspection, threshold: float, *, every: bool) -> str:
    uses, files = len(found.findings), found.files
    where = f"uses of variables in {files:,} file{'' if files == 1 else 's'}"
    what = "are shown" if every else f"have a likelier name, at {100 * threshold:g}% or more"
    left = f" ({len(found.skipped):,} not or not wholly looked at)" if found.skipped else ""
    return f"{len(shown):,} of {uses:,} {where}{left} {what}."


def findings_json(findings: Sequence[Finding], skipped: Mapping[str, str]) -> str:
    """All findings, and the files or functions that were not looked at, with the reason."""
    value = {"findings": [asdict(finding) for finding in findings], "skipped": dict(skipped)}
    return json_text(value, indent=2) + "\n"


def findings_sarif(findings: Sequence[Finding], skipped: Mapping[str, str]) -> str:
    """The same as a log of SARIF 2.1.0, with the suggestions as fixes."""
    rule = {
        "id": RULE,
        "name": "VariableMisuse",
        "shortDescription": {"text": "Another variable in scope is likelier here"},
        "fullDescription": {
            "text": "A network trained on other programs finds another name in scope likelier "
            "than the one that is written."
        },
        "defaultConfiguration": {"level": "warning"},
    }
    driver = {"name": "weft", "semanticVersion": weft.__version__, "rules": [rule]}
    notes = [
        {
            "level": "warning",
            "message": {"text": f"not looked at: {reason}"},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(file)}}}],
        }
        for file, reason in skipped.items()
    ]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "results": [_result(finding) for finding in findings],
    }
    return json_text({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(finding: Finding) -> dict[str, Any]:
    artifact = {"uri": _uri(finding.file)}
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.line,
        "endColumn": finding.column + len(finding.name),
    }
    replacement = {"deletedRegion": region, "insertedContent": {"text": finding.suggestion}}
    return {
        "ruleId": RULE,
        "ruleIndex": 0,
        "level": "warning",
        "message": {"text": finding.sentence},
        "locations": [{"physicalLocation": {"artifactLocation": artifact, "region": region}}],
        "rank": round(100 * finding.probability, 2),
        "fixes": [
            {
                "description": {"text": f"Write '{finding.suggestion}'"},
                "artifactChanges": [{"artifactLocation": artifact, "replacements": [replacement]}],
            }
        ],
    }


def _uri(file: str) -> str:
    path = PurePath(file)
    # Bytes: a name may hold what is no text in the encoding of names.
    return path.as_uri() if path.is_absolute() else quote(os.fsencode(path.as_posix()))
