"""A trained run of the recipe `programs`, asked about every variable of new files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from weft.batching import BatchingConfig, evaluation_sampler
from weft.errors import DataError
from weft.files import read_object, write_atomically
from weft.graphs import assemble, table_from_graphs
from weft.layout import TypedEdges
from weft.models.ggnn import GGNN, candidate_log_probabilities
from weft.models.misuse import MisuseDetector, answers
from weft.recipes.output import notes
from weft.recipes.programs.changed_lines import Lines, changed_since
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.programs.data import step_budget
from weft.recipes.programs.detection import Calibration, read_calibration
from weft.recipes.programs.findings import (
    Baseline,
    Finding,
    findings_github,
    findings_json,
    findings_sarif,
    is_ignored,
)
from weft.recipes.programs.training import KIND, make_detector, make_ggnn
from weft.recipes.recipe import ABOUT, PredictOptions, from_json
from weft.sources.program_graph import CANDIDATE, MISUSE_SCHEMA, PROGRAM_SCHEMA
from weft.sources.progress_bar import progress_bar
from weft.sources.python_code import MAX_NODES, Sample, each_sample
from weft.sources.python_misuse import FunctionGraph, each_function
from weft.sources.python_programs import python_files
from weft.sources.python_units import Unusable, read_source
from weft.training.checkpoint import load_weights
from weft.training.run import CONFIG
from weft.training.saved_inputs import kind_of

# Samples that are held at once: a long file has tens of thousands.
_TOGETHER = 256
# Functions of so many nodes in all are looked at in one pass.
_NODES_TOGETHER = 8192
# Larger functions than in training are looked at, up to where one would take minutes.
_LARGEST = 4 * MAX_NODES
_THRESHOLD = 0.9
_RATE = 1.0
_WORDS = {"too large": f"a function or module of more than {_LARGEST:,} nodes"}
_PYTHON = {"", ".py", ".pyi", ".pyw"}

Wanted = Callable[[Finding, str], bool]
"""Whether a finding is to be kept, by itself and the text of its line."""


class Trained(NamedTuple):
    """A network and how it is read.

    Attributes:
        model: with the best weights of a run.
        config: the recipe.
        calibration: of a detector.
    """

    model: GGNN | MisuseDetector
    config: ProgramsConfig
    calibration: Calibration | None = None


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a network says about the variables of files.

    Attributes:
        findings: those that were wanted, the most suspicious first.
        uses: of variables with another name in scope.
        files: how many there are.
        skipped: by file, why it, or some of it, was not looked at.
        detects: the network says which uses are wrong, not what is likeliest in each.
    """

    findings: list[Finding]
    uses: int
    files: int
    skipped: Mapping[str, str]
    detects: bool = False

    def suspicious(self, threshold: float) -> list[Finding]:
        """Uses that are probably wrong, see `is_suspicious`."""
        return [f for f in self.findings if is_suspicious(f, threshold, detects=self.detects)]


def is_suspicious(finding: Finding, threshold: float, *, detects: bool) -> bool:
    """Whether a use is as probably wrong as `threshold`; in a slot the other name is likelier."""
    return finding.probability >= (threshold if detects else max(threshold, finding.written))


def load_programs(run: Path) -> Trained:
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
    detects = about.get("detects") is True
    model = (make_detector if detects else make_ggnn)(config, **sizes)
    load_weights(model, run)
    model.eval()
    return Trained(model, config, read_calibration(run) if detects else None)


def inspect_code(
    trained: Trained,
    path: Path,
    *,
    exclude: Sequence[str] = (),
    only: Mapping[Path, Lines] | None = None,
    wanted: Wanted | None = None,
    progress: bool = True,
) -> Inspection:
    """Ask about every use of a variable in a Python file, or in all files of a folder.

    Files are read one after another, and of what is found only the wanted is kept. A file that
    cannot be read or parsed is skipped, and so is a function that is too large.

    Args:
        trained: the network.
        path: a file or folder.
        exclude: patterns of paths, or of names of files and folders, to leave out.
        only: the files to look at, resolved, and the lines to report.
        wanted: which findings to keep; all by default.
        progress: show a progress bar.

    Raises:
        DataError: there is no such file, or no Python file in the folder.
    """
    if path.is_file() and path.suffix not in _PYTHON:
        raise DataError(f"{path} is not Python (.py), and other languages cannot be checked")
    files = [
        (file, file.stat().st_size)
        for name, file in python_files(path)
        if not is_excluded(name, exclude) and (only is None or file.resolve() in only)
    ]
    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    done = uses = 0
    with progress_bar("Python code", sum(size for _, size in files), show=progress) as move:
        for file, size in files:
            left_out: Counter[str] = Counter()
            lines = Lines() if only is None else only[file.resolve()]
            for found, text, part in _of_file(trained, file, left_out):
                uses += 1
                if found.line in lines and (wanted is None or wanted(found, text)):
                    findings.append(found)
                move(done + int(part * size))
            if left_out:
                skipped[str(file)] = _reasons(left_out)
            done += size
            move(done)
    findings.sort(key=lambda f: (f.written - f.probability, f.file, f.line, f.column))
    return Inspection(
        findings=findings,
        uses=uses,
        files=len(files),
        skipped=skipped,
        detects=trained.calibration is not None,
    )


def is_excluded(name: str, patterns: Sequence[str]) -> bool:
    """Whether a path, or the name of a file or folder in it, fits one of the patterns."""
    parts = (name, *PurePath(name).parts)
    return any(fnmatch(part, pattern.rstrip("/")) for pattern in patterns for part in parts)


def _of_file(
    trained: Trained, file: Path, left_out: Counter[str]
) -> Iterator[tuple[Finding, str, float]]:
    """What is found in a file, the text of its line, and about which part of the file is done."""
    try:
        source = read_source(file)
    except Unusable as reason:
        left_out[str(reason)] += 1
        return
    lines = source.split("\n")
    model, config, calibration = trained
    if isinstance(model, GGNN):
        samples = each_sample(source, file.name, left_out, max_nodes=_LARGEST)
        while some := list(islice(samples, _TOGETHER)):
            # The first: a module's body, before its functions, has lines of all parts.
            part = min(sample.line for sample in some) / len(lines)
            for found in _findings(model, config, str(file), some):
                yield found, lines[found.line - 1], part
        return
    assert calibration is not None
    functions = each_function(source, file.name, left_out, max_nodes=_LARGEST)
    while together := _together(functions):
        part = min(function.uses[0].line for function in together) / len(lines)
        for found in _doubts(model, config, calibration.temperature, str(file), together):
            yield found, lines[found.line - 1], part


def _together(functions: Iterator[FunctionGraph]) -> list[FunctionGraph]:
    """The next functions, as many as are looked at in one pass."""
    found: list[FunctionGraph] = []
    nodes = 0
    for function in functions:
        found.append(function)
        nodes += function.graph.num_nodes
        if nodes >= _NODES_TOGETHER:
            break
    return found


def _doubts(
    model: MisuseDetector,
    config: ProgramsConfig,
    temperature: float,
    file: str,
    functions: Sequence[FunctionGraph],
) -> Iterator[Finding]:
    """A finding for each use of these functions, in one pass."""
    batch = assemble(
        table_from_graphs([each.graph for each in functions], MISUSE_SCHEMA), range(len(functions))
    )
    with torch.no_grad():
        judged = model(batch, TypedEdges.of_batch(batch, model.config.num_types))
    chances = answers(batch, judged, temperature=temperature).doubt.exp().double().numpy()
    uses = batch.receivers[judged.pairs].numpy()
    variables = batch.senders[judged.pairs].numpy()
    order = np.argsort(uses, kind="stable")
    for function, first in zip(functions, batch.node_offsets.tolist(), strict=False):
        nodes = function.nodes + first
        starts = np.searchsorted(uses, nodes, sorter=order)
        stops = np.searchsorted(uses, nodes, side="right", sorter=order)
        for use, start, stop in zip(function.uses, starts.tolist(), stops.tolist(), strict=True):
            pairs = order[start:stop]
            wrong = min(1.0, float(chances[pairs].sum()))
            best = int(variables[pairs[chances[pairs].argmax()]]) - first
            yield Finding(
                file=file,
                line=use.line,
                column=use.column + 1,
                name=use.name,
                suggestion=function.variables[best],
                probability=wrong,
                written=1 - wrong,
            )


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


def show_findings(run: Path, path: Path, options: PredictOptions, console: Console) -> int:
    """Look at a Python file or a folder of them, and print or write what was found.

    Returns:
        1 where something is found as probable as `--fail-over`, else 0.

    Raises:
        DataError: an option does not fit, or there is nothing to look at.
    """
    _check(options)
    trained = load_programs(run)
    threshold = _threshold(trained, options)
    detects = trained.calibration is not None
    least = threshold if options.fail_over is None else min(threshold, options.fail_over)
    known = None if options.baseline is None else Baseline(options.baseline)
    if known is not None and not options.write_baseline:
        known.read()
    lines: dict[Finding, str] = {}

    def wanted(finding: Finding, line: str) -> bool:
        if is_ignored(line):
            return False
        if not is_suspicious(finding, least, detects=detects):
            return options.all
        if options.write_baseline:
            lines[finding] = line
            return True
        return known is None or known.is_new(finding, line)

    since = options.changed_since
    found = inspect_code(
        trained,
        path,
        exclude=options.exclude,
        only=None if since is None else changed_since(since, path),
        wanted=wanted,
        progress=not options.quiet,
    )
    # Beside what a program reads from standard output.
    for file, reason in found.skipped.items():
        notes().print(f"weft: {file}: skipped: {reason}")
    if known is not None and options.write_baseline:
        known.write(list(lines.items()))
        console.print(f"{len(lines):,} findings are now recorded as known in {known.path}.")
        return 0
    form, out, every = options.format or "table", options.out, options.all
    shown = found.findings
    count = _count(shown, found, least, every=every)
    if form == "table":
        _print_table(shown, console)
        console.print(count, soft_wrap=True)
        if not (shown or every) and found.uses:
            console.print("A lower --threshold shows more, --all every use.", soft_wrap=True)
    else:
        text = _FORMS[form](shown, found.skipped)
        if out is None:
            console.out(text, highlight=False, end="")
        else:
            write_atomically(out, lambda file: file.write(text.encode()))
            console.print(f"{count} Written to {out}.", soft_wrap=True)
    limit = options.fail_over
    return int(limit is not None and any(f.probability >= limit for f in found.suspicious(least)))


_FORMS = {"json": findings_json, "sarif": findings_sarif, "github": findings_github}


def _check(options: PredictOptions) -> None:
    """Raise DataError where options do not fit each other."""
    form, out = options.format or "table", options.out
    for name in ("threshold", "fail_over"):
        value = getattr(options, name)
        if value is not None and not 0 <= value <= 1:
            option = f"--{name.replace('_', '-')}"
            raise DataError(f"{option} is {value}; a probability is from 0 to 1")
    if options.write_baseline and options.baseline is None:
        raise DataError("--write-baseline needs the file to write: --baseline FILE")
    if out is None:
        return
    if form == "table":
        raise DataError(f"--out {out} is for --format json, sarif or github; a table is printed")
    if not out.parent.is_dir():
        raise DataError(f"{out} cannot be written: there is no folder {out.parent}")
    if out.suffix == ".py" or out.is_dir():
        raise DataError(f"{out} is not a file for the findings; name one that ends with .{form}")


def _threshold(trained: Trained, options: PredictOptions) -> float:
    """The one that is given, or that of so many false alarms; 0.9 for slots."""
    rate = options.false_alarms
    if trained.calibration is None:
        if rate is not None:
            raise DataError(
                "--false-alarms is for runs that detect misuses, and this one fills slots; give a "
                "--threshold, or train with --target misuse"
            )
        return _THRESHOLD if options.threshold is None else options.threshold
    if rate is not None and options.threshold is not None:
        raise DataError(
            "--threshold and --false-alarms both set which findings are shown; give one"
        )
    if options.threshold is not None:
        return options.threshold
    return trained.calibration.threshold(_RATE if rate is None else rate)


def _print_table(shown: Sequence[Finding], console: Console) -> None:
    if not shown:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("place", "name", "suggestion"):
        table.add_column(heading, overflow="fold")
    for heading in ("probability", "of the name"):
        table.add_column(heading, justify="right")
    for finding in shown:
        chances = (f"{finding.probability:.1%}", f"{finding.written:.1%}")
        table.add_row(finding.place, finding.name, finding.suggestion, *chances)
    console.print(table)


def _count(shown: Sequence[Finding], found: Inspection, threshold: float, *, every: bool) -> str:
    uses, files = found.uses, found.files
    where = f"uses of variables in {files:,} file{'' if files == 1 else 's'}"
    what = "have a likelier name" if not found.detects else "look wrong"
    what = "are shown" if every else f"{what}, at {100 * threshold:.3g}% or more"
    left = f" ({len(found.skipped):,} not or not wholly looked at)" if found.skipped else ""
    return f"{len(shown):,} of {uses:,} {where}{left} {what}."
