"""What a detector finds: misuses at a rate of false alarms, and blanks filled in; and chance.

A use is flagged where its probability of being wrong reaches a threshold. The threshold belongs to
a rate of false alarms: flagged uses of code as it is, per 1,000 lines of it. Threshold and
temperature are chosen on the validation files; other files are then measured with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.errors import DataError
from weft.files import json_text, read_object, write_atomically
from weft.graphs import Array, GraphBatch
from weft.models.misuse import Judgement, log_shares, misuse_loss, right_fits
from weft.recipes.programs.supergraphs import StepLoader
from weft.sources.program_graph import KINDS, SLOT

CALIBRATION = "calibration.json"
"""File of a run with the temperature and the thresholds that its validation files gave."""

RATES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""False alarms per 1,000 lines that thresholds are recorded for."""

_CLEAN, _MISUSE, _BLANK = range(len(KINDS))
_TEMPERATURES = np.exp(np.linspace(math.log(0.25), math.log(8.0), 41))


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How a detector's answers are read.

    Attributes:
        temperature: the logits are divided by it, so that probabilities are right on files that
            were not trained on, where half of the functions have a misuse.
        thresholds: the least probability of a flagged use, by false alarms per 1,000 lines.
        lines: of code as it is, in which false alarms were counted.
    """

    temperature: float
    thresholds: dict[float, float]
    lines: int

    def threshold(self, rate: float) -> float:
        """The threshold for so many false alarms per 1,000 lines, between those that are known."""
        known = sorted(self.thresholds)
        least, most = known[0], known[-1]
        if not least <= rate <= most:
            raise DataError(
                f"false alarms of {rate:g} per 1,000 lines were not measured; from {least:g} to "
                f"{most:g} were"
            )
        values = [self.thresholds[each] for each in known]
        return float(np.interp(math.log(rate), np.log(known), values))


def write_calibration(folder: Path, found: Calibration) -> None:
    """Write it into a run's folder."""
    text = json_text(asdict(found), indent=2) + "\n"
    write_atomically(folder / CALIBRATION, lambda file: file.write(text.encode()))


def read_calibration(run: Path) -> Calibration:
    """That of the run in a folder.

    Raises:
        DataError: it is not there, as of a training that was stopped, or cannot be read.
    """
    if not (run / CALIBRATION).is_file():
        raise DataError(
            f"{run} has no {CALIBRATION}: its training has not finished; resume it with --resume"
        )
    kinds = {"temperature": float, "thresholds": dict, "lines": int}
    found = read_object(run / CALIBRATION, kinds)
    try:
        thresholds = {float(rate): float(value) for rate, value in found["thresholds"].items()}
        if not thresholds or not found["temperature"] > 0:
            raise ValueError("no thresholds, or a temperature of 0")
    except (ValueError, TypeError) as error:
        raise DataError(f"{run / CALIBRATION} cannot be read ({error})") from None
    return Calibration(
        temperature=found["temperature"], thresholds=thresholds, lines=found["lines"]
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Examined:
    """What a detector said of many functions, and what is right.

    Pairs of uses that are not blank have a use's number and a graph's; the graphs are versions of
    functions.

    Attributes:
        doubt: float32 [P], logits of pairs.
        use: int64 [P], ascending.
        right: bool [P], the pair is the answer to a misuse.
        pair_graph: int64 [P].
        fine: float32 [G].
        kind: int64 [G], numbers in KINDS.
        lines: int64 [G].
        blanks: float64 [B, 5], of each blank: 1 where it was filled in right, its weight among all
            uses, 1 over its candidates, 1 where the variable read last is right, its graph.
        loss: mean over the graphs.
        accuracy: share of graphs with the right answer.
    """

    doubt: Array
    use: Array
    right: Array
    pair_graph: Array
    fine: Array
    kind: Array
    lines: Array
    blanks: Array
    loss: float
    accuracy: float

    def flagged(self, temperature: float) -> Flags:
        """The probability of every use of being wrong, and whether its suggestion is right."""
        logs = log_shares(
            torch.from_numpy(self.doubt).double() / temperature,
            torch.from_numpy(self.pair_graph),
            len(self.fine),
            torch.from_numpy(self.fine).double() / temperature,
        )
        chance = logs[: len(self.doubt)].exp().numpy()
        first = np.flatnonzero(np.diff(self.use, prepend=-1))
        if not len(first):
            empty = np.zeros(0)
            return Flags(chance=empty, wrong=empty > 0, repaired=empty > 0, graph=empty.astype(int))
        best = np.maximum.reduceat(chance, first)
        counts = np.diff(np.append(first, len(chance)))
        top = chance >= np.repeat(best, counts)
        return Flags(
            chance=np.add.reduceat(chance, first),
            wrong=np.logical_or.reduceat(self.right, first),
            repaired=np.logical_or.reduceat(self.right & top, first),
            graph=self.pair_graph[first],
        )

    def calibrated(self) -> Calibration:
        """Temperature and thresholds that fit these functions best."""
        temperature = min(_TEMPERATURES.tolist(), key=self._surprise)
        flags, lines = self.flagged(temperature), int(self.lines[self.kind == _CLEAN].sum())
        alarms = np.sort(flags.chance[self.kind[flags.graph] == _CLEAN])[::-1]
        thresholds = {rate: _threshold(alarms, rate * lines / 1000) for rate in RATES}
        return Calibration(temperature=temperature, thresholds=thresholds, lines=lines)

    def _surprise(self, temperature: float) -> float:
        """Minus the mean log-probability of what is right, of functions without blanks."""
        logs = log_shares(
            torch.from_numpy(self.doubt).double() / temperature,
            torch.from_numpy(self.pair_graph),
            len(self.fine),
            torch.from_numpy(self.fine).double() / temperature,
        ).numpy()
        pairs = len(self.doubt)
        said = np.concatenate([logs[:pairs][self.right], logs[pairs:][self.kind == _CLEAN]])
        return -float(said.mean()) if len(said) else 0.0

    def figures(self, calibration: Calibration, rate: float = 1.0) -> dict[str, float]:
        """Shares of misuses found and repaired, false alarms, blanks filled in; and by chance."""
        flags, threshold = self.flagged(calibration.temperature), calibration.threshold(rate)
        clean = self.kind[flags.graph] == _CLEAN
        lines = max(1, int(self.lines[self.kind == _CLEAN].sum()))
        hit = flags.chance >= threshold
        misuses = max(1, int((self.kind == _MISUSE).sum()))
        uses, pairs = max(1, int(clean.sum())), max(1, int((self.kind[self.pair_graph] == 0).sum()))
        # Flags thrown at random: as many a use as make the asked rate; one of the others each.
        by_chance = min(1.0, rate * lines / 1000 / uses)
        others = max(1.0, pairs / uses - 1)
        return {
            "loss": self.loss,
            "accuracy": self.accuracy,
            **self.filled(),
            "threshold": threshold,
            "false_alarms": 1000 * int((hit & clean).sum()) / lines,
            "found": int((hit & flags.wrong).sum()) / misuses,
            "repaired": int((hit & flags.wrong & flags.repaired).sum()) / misuses,
            "found_by_chance": by_chance,
            "repaired_by_chance": by_chance / others,
        }

    def filled(self) -> dict[str, float]:
        """Accuracy of blanks: of all uses, of sampled ones, and without training."""
        if not len(self.blanks):
            return {}
        right, weight, random, recent, graph = self.blanks.T
        # One a function, as if one had been drawn of each.
        own = 1 / np.bincount(graph.astype(int))[graph.astype(int)]

        def mean(values: Array, weights: Array) -> float:
            return float((values * weights).sum() / weights.sum())

        return {
            "all_uses": mean(right, weight),
            "sampled_uses": mean(right, own),
            "random": mean(random, weight),
            "recent": mean(recent, weight),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Flags:
    """The uses that are not blank.

    Attributes:
        chance: float64 [U], probability of being wrong.
        wrong: bool [U], it is.
        repaired: bool [U], it is, and the likeliest other variable is the right one.
        graph: int64 [U].
    """

    chance: Array
    wrong: Array
    repaired: Array
    graph: Array


def _threshold(alarms: Array, allowed: float) -> float:
    """Between the last of the allowed alarms, descending, and the next; 1 where none is allowed."""
    count = int(allowed)
    if count >= len(alarms):
        return 0.0
    above, below = float(alarms[count - 1]) if count else 1.0, float(alarms[count])
    # Of alarms that are equally probable all or none are let through.
    return max((above + below) / 2, float(np.nextafter(below, 2)))


def examine(model: nn.Module, loader: StepLoader) -> Examined:
    """Ask a detector about all functions of `loader`."""
    batches = _judged(model, loader)
    return examined(batches)


def _judged(model: nn.Module, loader: StepLoader) -> Iterator[tuple[GraphBatch, Judgement]]:
    with torch.no_grad():
        for step in loader:
            for supergraph in step.supergraphs:
                # What follows is counting, whose results have shapes that depend on numbers.
                judged = Judgement(*(t.cpu() for t in model(*supergraph.inputs)))
                yield supergraph.batch.to("cpu"), judged


def examined(batches: Iterable[tuple[GraphBatch, Judgement]]) -> Examined:
    """What was said of these batches, one after another."""
    names = ("doubt", "use", "right", "pair_graph", "fine", "kind", "lines", "blanks")
    parts: dict[str, list[Array]] = {name: [] for name in names}
    nodes = graphs = 0
    loss = right = 0.0
    for batch, judged in batches:
        verdicts = misuse_loss(batch, judged)
        loss, right = loss + float(verdicts.loss), right + float(verdicts.right.sum())
        real = verdicts.graphs
        uses = batch.receivers[judged.pairs].long()
        owner = batch.node_graph[uses].long()
        blank = batch.nodes["role"][uses] == SLOT
        answer = batch.edges["right"][judged.pairs] == 1
        wrong = answer & (batch.edges["written"][judged.pairs] == 0) & ~blank
        # Blanks have no doubt; a version with blanks asks nothing else.
        asked = ~blank & (batch.graphs["kind"][owner] != _BLANK)
        for name, values in (
            ("doubt", judged.doubt[asked].float()),
            ("use", uses[asked] + nodes),
            ("right", wrong[asked]),
            ("pair_graph", owner[asked] + graphs),
            ("fine", judged.fine[:real].float()),
            ("kind", batch.graphs["kind"][:real].long()),
            ("lines", batch.graphs["lines"][:real].long()),
        ):
            parts[name].append(values.cpu().numpy())
        blanks = _blanks(batch, judged, uses, owner, blank, answer)
        blanks[:, 4] += graphs
        parts["blanks"].append(blanks.cpu().numpy())
        nodes, graphs = nodes + batch.num_nodes, graphs + real
    if not graphs:
        raise DataError("there are no functions with a choice among variables")
    joined: dict[str, Any] = {name: np.concatenate(values) for name, values in parts.items()}
    return Examined(**joined, loss=loss / graphs, accuracy=right / graphs)


def _blanks(
    batch: GraphBatch,
    judged: Judgement,
    uses: Tensor,
    owner: Tensor,
    blank: Tensor,
    answer: Tensor,
) -> Tensor:
    """Rows of `Examined.blanks`, with the graph's number in the batch."""
    candidates = torch.bincount(uses, minlength=batch.num_nodes)
    graph = batch.node_graph.long()
    is_blank = torch.zeros(batch.num_nodes, dtype=torch.bool)
    is_blank[uses[blank]] = True
    in_graph = torch.bincount(graph[is_blank], minlength=batch.num_graphs)
    all_uses = torch.bincount(graph[candidates > 0], minlength=batch.num_graphs)
    chosen = blank & answer
    which, of = uses[chosen], owner[chosen]
    recent = batch.edges["recent"][judged.pairs][chosen]
    columns = (
        right_fits(batch, judged)[chosen],
        all_uses[of] / in_graph[of].clamp(min=1),
        1 / candidates[which],
        recent,
        of,
    )
    return torch.stack([column.double() for column in columns], dim=1)
