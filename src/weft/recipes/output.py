"""What recipes print and write alike: tables of scores, predictions, where everything is."""

from __future__ import annotations

import csv
import io
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from weft.errors import DataError
from weft.files import json_text, write_atomically

if TYPE_CHECKING:
    from weft.training.config import FitResult, SparsityConfig
    from weft.training.sparse_step import StepCosts

_SHOWN = 10
# A sparse step must be slower by this much for advice against it.
_NOTABLE = 0.05


def notes(*, quiet: bool = False) -> Console:
    """Where progress is shown: not in the output of a command."""
    return Console(
        stderr=True, soft_wrap=True, markup=False, emoji=False, highlight=False, quiet=quiet
    )


def print_scores(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], console: Console
) -> None:
    """Print a table with a row for each part of the data; the first heading is `part`."""
    table = Table()
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console.print(title, soft_wrap=True)
    console.print(table)


def where(folder: Path, then: str = "") -> str:
    """Where a run is, and the next commands: one for its page, and `then`."""
    curves = f" (tensorboard --logdir {folder})" if (folder / "tensorboard").exists() else ""
    following = "\n  ".join(filter(None, ("Next:", f"weft report {folder}", then)))
    return f"Everything is in {folder}{curves}. {following}"


def way_on(folder: Path, before: str = " ") -> str:
    """How to go on with the run of this command, which has stopped: a command, after `before`."""
    from weft.recipes.recipe import member_folders
    from weft.training.checkpoint import CHECKPOINT
    from weft.training.run import CONFIG

    folder = member_folders(folder)[0]
    words = ["weft", *(word for word in sys.argv[1:] if word != "--resume")]
    if (folder / CONFIG).exists():
        words.append("--resume")
    how = "Resume" if (folder / CHECKPOINT).exists() else "Start again"
    return f"{how} with:{before}{shlex.join(words)}"


def prediction_file(out: Path | None, file: Path, suffixes: Sequence[str], what: str) -> Path:
    """The file to write, by default FILE-predicted with the first suffix, here.

    Args:
        out: as requested.
        file: that is read; its name is the default's.
        suffixes: that `out` may have.
        what: is written, such as `predictions`.

    Raises:
        DataError: it has another suffix, its folder is not there, or it is the file to read.
    """
    out = out or Path(f"{file.resolve().stem}-predicted{suffixes[0]}")
    if out.suffix not in suffixes:
        listed = " or ".join(filter(None, [", ".join(suffixes[:-1]), suffixes[-1]]))
        raise DataError(f"{what} are written as {listed}, not as {out.name}")
    if not out.parent.is_dir():
        raise DataError(f"{out} cannot be written: there is no folder {out.parent}")
    if out.resolve() == file.resolve():
        raise DataError(f"{out} is the file to read; choose another name to write to")
    return out


def print_predictions(
    headings: Sequence[str], rows: Sequence[Sequence[str]], total: int, out: Path, console: Console
) -> None:
    """Print the first of `total` predictions, and where all of them are."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows[:_SHOWN]:
        table.add_row(*row)
    console.print(table)
    more = total - _SHOWN
    console.print(
        f"{f'... and {more:,} more. ' if more > 0 else ''}Written to {out}.", soft_wrap=True
    )


def write_probabilities(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], out: Path, console: Console
) -> None:
    """Write rows with a probability, their only float, as .csv or .json, and print the first."""
    if out.suffix == ".json":
        text = json_text([dict(zip(headings, row, strict=True)) for row in rows], indent=1) + "\n"
    else:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(headings)
        writer.writerows([_digits(value, ".6g") for value in row] for row in rows)
        text = buffer.getvalue()
    write_atomically(out, lambda file: file.write(text.encode()))
    shown = [[_digits(value, ".4f") for value in row] for row in rows[:_SHOWN]]
    print_predictions(headings, shown, len(rows), out, console)


def _digits(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, float) else str(value)


def time_sentence(result: FitResult, what: str) -> str:
    """How long a training took, and of which epoch its weights are."""
    best = (
        f"the weights are those of epoch {result.best_epoch}, the best on the validation {what}"
        if result.best_epoch
        else "nothing was trained"
    )
    return f"{result.epochs} epochs in {result.seconds:.1f} s; {best}."


def weights_sentence(counts: dict[str, int], config: SparsityConfig) -> str:
    """How many weights there are, and how many of them are left."""
    size, active = counts["weights"], counts["active"]
    if config.sparsify == "none":
        return f"{size:,} weights, dense."
    how: str = config.sparsify
    if config.structure != "weights":
        how += f", structure {config.structure}"
    return f"{active:,} of {size:,} weights are active ({1 - active / size:.1%} sparse, by {how})."


def costs_sentences(costs: StepCosts | None, config: SparsityConfig, *, linear: bool) -> str:
    """FLOPs and time of a training step, each against its own kind; and what to do about it.

    Args:
        costs: if they were measured.
        config: how the model became sparse.
        linear: whether its layers have a sparse form.
    """
    if costs is None:
        return ""
    left = "" if config.may_be_sparse else " with the weights that are left"
    form = "masks on all weights" if config.form == "dense" else "active weights only"
    said = f"FLOPs of a training step{left}: {costs.flops:.1%} of dense; time of a step ({form}): "
    if not costs.is_certain:
        low, high = min(costs.ratios), max(costs.ratios)
        return (
            f"{said}from {low:.0%} to {high:.0%} of the same step dense: the machine is busy with "
            "something else.\n"
        )
    said += (
        f"{costs.time:.0%} of the same step dense ({1e3 * costs.seconds:.3g} of "
        f"{1e3 * costs.dense_seconds:.3g} ms, timed side by side afterwards)."
    )
    if config.form == "sparse" and costs.time > 1 + _NOTABLE:
        said += (
            " The network is too small, or not sparse enough, for --form sparse to pay: leave it "
            "out, or take wider layers (--hidden)."
        )
    elif config.structure.startswith(("units", "columns")):
        said += " Masks save no time; weft.sparsify.compact leaves out the units that are gone."
    elif config.form == "dense" and config.may_be_sparse and linear:
        said += " Masks save no time; --form sparse does where layers are wide and sparse enough."
    return f"{said}\n"
