"""Cases: whole units removed, in another runtime; a constant fan-in, for a few samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor, nn

from weft.sparsify import FanInLinear, Masks, SparseLinear, compact, export_model, random_masks
from weft.sparsify.sparse_layers import FusingSequential
from weft.training import prepare_process
from weft_lab.bench.result import CandidateResult, CaseResult
from weft_lab.bench_settings import SparseBench
from weft_lab.grid_training import on_ranks
from weft_lab.timing import median_ratio, time_by_turns

UNIT_BATCHES, ONLINE_BATCHES = (1, 16, 64, 256, 1024), (1, 2, 4, 8, 16)
ONE_LAYER = (3072, 768)
"""Widths of the layer that SRigL's authors time."""
_UNITS, _ONLINE = 0.75, 0.9
# How often the fast form must fit into the time of the dense one, and of torch's CSR.
_UNITS_BAR, _DENSE_BAR, _CSR_BAR = 2.5, 3.0, 1.0
# And for a single sample, as SRigL's authors report of theirs.
_DENSE_BAR_OF_ONE, _CSR_BAR_OF_ONE = 3.4, 2.5
# Seconds of a turn: a call of some microseconds is repeated, and the fastest counts.
_TURN = 0.002

Times = dict[str, dict[str, list[float]]]
"""Seconds by batch and by form."""


def units_case(config: SparseBench, progress: Progress) -> CaseResult:
    """A network with whole units removed, compacted, against the dense one, in onnxruntime."""
    case = f"units, {'-'.join(map(str, config.wide))}, {100 * _UNITS:g} % of the units removed"
    if find_spec("onnxruntime") is None:
        return CaseResult.no_data(case, "onnxruntime is not installed")
    task = progress.add_task(case, total=1)
    ((kept, times),) = on_ranks(_time_units, config.wide, config.rounds * config.steps)
    progress.advance(task)
    candidates, missed = {}, []
    for batch, seconds in times.items():
        ratio = median_ratio(seconds["dense"], seconds["compacted"])
        candidates[f"weft, batch {batch}"] = CandidateResult(
            samples=seconds["compacted"],
            figures={
                "ms": 1e3 * statistics.median(seconds["compacted"]),
                "dense ms": 1e3 * statistics.median(seconds["dense"]),
                "dense /\ncompacted": ratio,
                "the same\nin torch": median_ratio(
                    seconds["dense, torch"], seconds["compacted, torch"]
                ),
            },
        )
        if ratio < _UNITS_BAR:
            missed.append(
                f"At batch {batch} onnxruntime runs the compacted network {ratio:.2f} times as "
                f"fast as the dense one, not {_UNITS_BAR:g} times."
            )
    return CaseResult(
        case=case,
        what="a pass forward in onnxruntime, turn by turn with the dense network",
        unit="s",
        candidates=candidates,
        says=[f"The compacted network has {kept:.1%} of the weights."],
        missed=missed,
    )


def fan_in_case(config: SparseBench, widths: tuple[int, ...], progress: Progress) -> CaseResult:
    """A network of constant fan-in for a few samples, against dense torch and torch's CSR."""
    case = f"fan-in, {'-'.join(map(str, widths))}, {100 * _ONLINE:g} % sparse"
    task = progress.add_task(case, total=1)
    (times,) = on_ranks(_time_fan_in, widths, config.rounds * config.steps)
    progress.advance(task)
    candidates, missed = {}, []
    for batch, seconds in times.items():
        own = seconds["fan-in"]
        others = {name: each for name, each in seconds.items() if name != "fan-in"}
        ratios = {name: median_ratio(each, own) for name, each in others.items()}
        candidates[f"weft, batch {batch}"] = CandidateResult(
            samples=own,
            figures={
                "µs": 1e6 * statistics.median(own),
                **{f"{name} /\nfan-in": ratio for name, ratio in ratios.items()},
            },
        )
        bars = (_DENSE_BAR_OF_ONE, _CSR_BAR_OF_ONE) if batch == 1 else (_DENSE_BAR, _CSR_BAR)
        for name, bar in zip(("dense", "torch CSR"), bars, strict=True):
            if ratios[name] < bar:
                missed.append(
                    f"At batch {batch} {name} takes {ratios[name]:.2f} times as long as the "
                    f"constant fan-in, not {bar:g} times."
                )
    return CaseResult(
        case=case,
        what="a pass forward, turn by turn",
        unit="s",
        candidates=candidates,
        says=[f"On {torch.get_num_threads()} threads."],
        missed=missed,
    )


def _network(widths: tuple[int, ...]) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def _time_units(widths: tuple[int, ...], turns: int) -> tuple[float, dict[int, Any]]:
    """The share of the weights that is left, and seconds by batch and form."""
    prepare_process()
    model = _network(widths)
    masks = Masks(model, structure="units")
    random_masks(model, masks, dict.fromkeys(masks, 1 - _UNITS))
    dense = _network(widths)
    small, _ = compact(model, masks)
    example = torch.randn(2, widths[0])
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        sessions = {}
        for name, network in (("dense", dense), ("compacted", small)):
            path = Path(folder) / f"{name}.onnx"
            export_model(network, path, example=example)
            sessions[name] = _session(path)
        inputs = {batch: torch.randn(batch, widths[0]) for batch in UNIT_BATCHES}
        times = {
            batch: _timed({name: _run(each, x) for name, each in sessions.items()}, turns)
            for batch, x in inputs.items()
        }
        # Apart: threads of one library that wait would hold up the other's.
        del sessions
    for batch, x in inputs.items():
        runs = {"dense, torch": _call(dense, x), "compacted, torch": _call(small, x)}
        times[batch] |= _timed(runs, turns)
    counts = [sum(p.numel() for p in each.parameters()) for each in (small, dense)]
    return counts[0] / counts[1], times


def _timed(runs: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    return time_by_turns(runs, turns, turn=_TURN, warm_up=3)


def _session(path: Path) -> Any:
    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return runtime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def _run(session: Any, x: Tensor) -> Callable[[], object]:
    given = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, given)


def _call(model: nn.Module, x: Tensor) -> Callable[[], object]:
    def run() -> None:
        with torch.inference_mode():
            model(x)

    return run


class _CSRLinear(nn.Module):
    """A linear layer, and the relu after it, whose weight is torch's CSR tensor."""

    def __init__(self, linear: nn.Linear, relu: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.relu = (
            linear.weight.detach().to_sparse_csr(),
            linear.bias,
            relu,
        )

    def forward(self, x: Tensor) -> Tensor:
        out = torch.addmm(self.bias[:, None], self.weight, x.t()).t()
        return out.relu() if self.relu else out


def _time_fan_in(widths: tuple[int, ...], turns: int) -> dict[int, dict[str, list[float]]]:
    """Seconds by batch and form."""
    prepare_process()
    model = _network(widths)
    masks = Masks(model, structure="fan-in")
    random_masks(model, masks, dict.fromkeys(masks, 1 - _ONLINE))
    forms: dict[str, list[nn.Module]] = {"fan-in": [], "SparseLinear": [], "torch CSR": []}
    for name in masks:
        layer = model.get_submodule(name.rpartition(".")[0])
        assert isinstance(layer, nn.Linear)
        relu = name != masks.names[-1]
        forms["fan-in"].append(FanInLinear.from_dense(layer, masks[name], relu=relu))
        forms["SparseLinear"].append(SparseLinear.from_dense(layer, masks[name], relu=relu))
        forms["torch CSR"].append(_CSRLinear(layer, relu))
    networks: dict[str, nn.Module] = {"dense": model}
    for name, each in forms.items():
        # As `convert` leaves them.
        kind = nn.Sequential if name == "torch CSR" else FusingSequential
        networks[name] = kind(*each)
    times = {}
    for batch in ONLINE_BATCHES:
        x = torch.randn(batch, widths[0])
        runs = {name: _call(network.eval(), x) for name, network in networks.items()}
        times[batch] = _timed(runs, turns)
    return times
