"""The certificate of the Triton kernels: their values, their bytes and their machine code.

Two processes make it, because triton chooses between its interpreter and its compiler when kernels
are loaded: one runs every case in the interpreter (a third on the GPU, where there is one), the
other builds what was launched for each target.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from weft.kernels.triton.cases import GraphKind

SCHEMA = "weft certificate 1"
# Bytes that a kernel may move, beside the fewest possible.
MOST_TRAFFIC = 1.3
_DTYPES = ("float32", "bfloat16")
# A graph that bytes are counted on: its rows are as wide as a model's. And one for other widths.
# Builds are made of what both launch.
_TYPICAL, _TYPICAL_WIDTH, _OF_ALL_WIDTHS = "typical", 128, "random"
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Values:
    """One case on one kind of graph, forward and backward, against the compiled loop.

    Attributes:
        case: what is computed.
        where: interpreter, or the name of a GPU.
        dtype: of the tensors.
        graphs: how many (graph, width) pairs were tried.
        error: largest difference, beside the largest number.
        bound: the largest that is right.
        wrong: the first pair that was not right, or "".
        kernels: what was launched.
        raised: what it ended with at the last pair, or "".
    """

    case: str
    where: str
    dtype: str
    graphs: int
    error: float
    bound: float
    wrong: str
    kernels: list[str]
    raised: str


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Bytes that a kernel moved at the typical graph, beside the fewest that it must."""

    kernel: str
    dtype: str
    moved: int
    least: int
    reason: str

    @property
    def ratio(self) -> float:
        """Bytes moved for each byte that must be."""
        return self.moved / max(self.least, 1)


def certify(
    targets: Sequence[str] = (),
    cases: Sequence[str] = (),
    progress: Progress = lambda line: None,
) -> dict[str, Any]:
    """The certificate as plain values: see `faults` for what is wrong in it.

    Args:
        targets: names of GPUs to build for; all of them by default.
        cases: names of cases, or the first words of names; all of them by default.
        progress: told what is being done, a line each.
    """
    import torch

    values: list[dict[str, Any]] = []
    moved: list[dict[str, Any]] = []
    launches: list[dict[str, Any]] = []
    found: dict[str, list[Any]] = {"values": values, "bytes": moved, "launch": launches}
    places = ["interpreter", *(["cuda"] if torch.cuda.is_available() else [])]
    for place in places:
        asked = {"do": "values", "place": place, "cases": list(cases)}
        for kind, record in _records(asked, interpreted=place == "interpreter"):
            if kind == "doing":
                progress(record)
            else:
                found[kind].append(record)
    builds = _built(targets, launches, progress)
    import triton

    versions = {"triton": triton.__version__, "torch": torch.__version__}
    return {
        "schema": SCHEMA,
        "versions": versions,
        "values": values,
        "bytes": moved,
        "builds": builds,
        "complete": not (targets or cases),
    }


def _built(
    targets: Sequence[str], launches: Sequence[dict[str, Any]], progress: Progress
) -> list[dict[str, Any]]:
    """The builds of these launches for each target, as many targets at once as there are cores."""
    from weft.kernels.triton.builds import TARGETS

    stopped = threading.Event()

    def built(target: str) -> list[dict[str, Any]]:
        found = []
        for kind, record in _records({"do": "builds", "target": target, "launches": launches}):
            if stopped.is_set():
                break
            if kind == "doing":
                progress(record)
            else:
                found.append(record)
        return found

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            return [each for some in pool.map(built, targets or TARGETS) for each in some]
        except BaseException:
            stopped.set()
            raise


def faults(certificate: Mapping[str, Any]) -> list[str]:
    """All that is wrong in a certificate, a sentence each."""
    found = []
    for row in certificate["values"]:
        if row["wrong"]:
            found.append(
                f"{row['case']} ({row['dtype']}, {row['where']}): {row['error']:.1e} off at "
                f"{row['wrong']}, where {row['bound']:.0e} is allowed"
            )
        if row.get("raised"):
            found.append(f"{row['case']} ({row['dtype']}, {row['where']}): {row['raised']}")
        elif not row["kernels"]:
            found.append(f"{row['case']} ({row['dtype']}, {row['where']}): no kernel was launched")
    for row in certificate["bytes"]:
        if row["ratio"] > MOST_TRAFFIC:
            found.append(
                f"{row['kernel']} ({row['dtype']}) moves {row['ratio']:.2f} times the bytes that "
                f"it must; {MOST_TRAFFIC} is allowed"
            )
    for row in certificate["builds"]:
        found += [
            f"{row['kernel']} for {row['target']}: {fault} ({row['variant']})"
            for fault in row["faults"]
        ]
    return found


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the builds of one kernel told, for a table.

    Attributes:
        builds: how many there are.
        registers: most registers of a thread by target, or what is wrong.
        dots: whether it multiplies matrices.
        matrix: fewest matrix instructions in a build.
        ratio: most bytes moved for each that must be; 0 if not counted.
    """

    builds: int
    registers: dict[str, str]
    dots: bool
    matrix: int
    ratio: float


def by_kernel(certificate: Mapping[str, Any]) -> dict[str, Machine]:
    """The builds and bytes of each kernel."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in certificate["builds"]:
        groups.setdefault(row["kernel"], []).append(row)
    found = {}
    for name, rows in sorted(groups.items()):
        registers: dict[str, str] = {}
        for target in dict.fromkeys(row["target"] for row in rows):
            own = [row for row in rows if row["target"] == target]
            wrong = sorted({fault for row in own for fault in row["faults"]})
            registers[target] = "; ".join(wrong) or str(max(row["registers"] for row in own))
        ratios = [row["ratio"] for row in certificate["bytes"] if row["kernel"] == name]
        found[name] = Machine(
            builds=len(rows),
            registers=registers,
            dots=any(row["dots"] for row in rows),
            matrix=min((row["matrix"] for row in rows if row["dots"]), default=0),
            ratio=max(ratios, default=0.0),
        )
    return found


def _records(asked: dict[str, Any], interpreted: bool = False) -> Iterator[tuple[str, Any]]:
    """What a process of this module prints: (kind, record) pairs."""
    environment = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET",)}
    environment |= {"TRITON_INTERPRET": "1"} if interpreted else {}
    environment.pop("WEFT_BACKEND", None)
    process = subprocess.Popen(  # noqa: S603  this Python, this module
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            process.stdin.write(json.dumps(asked))
            process.stdin.close()
            for line in process.stdout:
                kind, record = json.loads(line)
                yield kind, record
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise RuntimeError(f"checking the kernels ended with exit code {process.returncode}")


def _tell(kind: str, record: Any) -> None:
    sys.stdout.write(json.dumps([kind, record]) + "\n")
    sys.stdout.flush()


def _values(place: Literal["interpreter", "cuda"], names: Sequence[str]) -> None:
    """Run the cases and print what came of them."""
    import torch

    from weft.kernels.triton.builds import distinct
    from weft.kernels.triton.cases import all_cases, sample_edges
    from weft.kernels.triton.checks import Traffic, compare
    from weft.kernels.triton.launch import KERNELS, Launch

    device = "cuda" if place == "cuda" else "cpu"
    where = torch.cuda.get_device_name() if place == "cuda" else place
    launches: list[Launch] = []
    traffic: dict[tuple[str, str], Traffic] = {}
    for case in all_cases():
        if names and not any(case.name.startswith(name) for name in names):
            continue
        for name in _DTYPES:
            _tell("doing", f"{case.name}, {name}, {where}")
            tried, worst, wrong, raised, bound = 0, 0.0, "", "", case.bound
            kernels: set[str] = set()
            for kind, width in _pairs(case.widths):
                dtype = getattr(torch, name)
                try:
                    found = compare(case, sample_edges(kind), width, dtype, device=device)
                except Exception as error:
                    # Whatever triton or torch raises is what is reported.
                    about = f"{type(error).__name__}: {str(error).strip()[:300]}"
                    raised = f"{about} at {kind}, width {width}"
                    break
                tried, bound = tried + 1, found.bound
                worst = max(worst, found.error)
                if not found.right and not wrong:
                    wrong = f"{kind}, width {width}"
                kernels |= {each.launch.kernel for each in found.traffic}
                if kind in (_TYPICAL, _OF_ALL_WIDTHS):
                    # Without their tensors, of which there would be many.
                    launches += [replace(each.launch, tensors=()) for each in found.traffic]
                if kind == _TYPICAL:
                    _keep_worst(traffic, name, found.traffic)
            row = Values(
                case=case.name,
                where=where,
                dtype=name,
                graphs=tried,
                error=worst,
                bound=bound,
                wrong=wrong,
                kernels=sorted(kernels),
                raised=raised,
            )
            _tell("values", asdict(row))
    if place == "cuda":
        return
    for (kernel, dtype), each in sorted(traffic.items()):
        moved = Bytes(
            kernel=kernel,
            dtype=dtype,
            moved=each.bytes,
            least=each.launch.least,
            reason=KERNELS[kernel].reason,
        )
        _tell("bytes", {**asdict(moved), "ratio": moved.ratio})
    for described in distinct(launches):
        _tell("launch", described)


def _pairs(widths: Sequence[int]) -> Iterator[tuple[GraphKind, int]]:
    """The graphs that a case is tried on, each with a width."""
    from weft.kernels.triton.cases import GraphKind

    for kind in get_args(GraphKind):
        # Widths change no path of a kernel that the kind of graph changes, and the reverse.
        if kind == _OF_ALL_WIDTHS:
            yield from ((kind, width) for width in widths)
        else:
            yield kind, _TYPICAL_WIDTH if kind == _TYPICAL else widths[-1]


def _keep_worst(known: dict[tuple[str, str], Any], dtype: str, found: Sequence[Any]) -> None:
    """Of each kernel's launches, the one that moved most for what it must."""
    for each in found:
        key = (each.launch.kernel, dtype)
        before = known.get(key)
        if before is None or each.bytes * before.launch.least > before.bytes * each.launch.least:
            known[key] = each


def _builds(name: str, launches: Sequence[dict[str, Any]]) -> None:
    """Build the launches for a target and print what came of them."""
    from weft.kernels.triton.builds import TARGETS, as_record, build
    from weft.kernels.triton.cases import all_cases

    # Modules with kernels are loaded by their cases.
    all_cases()
    for number, described in enumerate(launches, start=1):
        _tell("doing", f"{described['kernel']} for {name} ({number} of {len(launches)})")
        _tell("build", as_record(build(described, TARGETS[name])))


def _main() -> None:
    asked = json.load(sys.stdin)
    if asked["do"] == "values":
        _values(asked["place"], asked["cases"])
    else:
        _builds(asked["target"], asked["launches"])


if __name__ == "__main__":
    _main()
