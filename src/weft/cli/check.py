"""`weft check`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Check:
    """Check the GPU kernels as far as this machine can, with or without a GPU.

    Every operator runs in triton's interpreter, forward and backward, beside the compiled loop of
    the CPU; where there is a GPU, on it, too. Every kernel is built for each target, and its
    machine code is searched for spilled registers, atomic instructions and matrix instructions.
    The exit code is 1 if anything is wrong. No time is measured.

    Attributes:
        what: The kernels to check.
        target: Build for these GPUs only: sm_80, sm_90, sm_100, gfx942.
        case: Run only operators whose names begin with these words.
        out: Write the certificate as JSON here, for `weft report`, and its page beside it.
    """

    what: tyro.conf.Positional[Literal["gpu"]]
    target: tuple[str, ...] = ()
    case: tuple[str, ...] = ()
    out: Path | None = None

    def __call__(self, console: Console) -> int:
        """Check, print the tables, and write the requested files."""
        from weft.kernels.backends import missing_triton

        missing = missing_triton()
        if missing is not None:
            raise ValueError(missing)
        from weft.kernels.triton.builds import TARGETS
        from weft.kernels.triton.cases import all_cases
        from weft.kernels.triton_certificate import certify, faults

        for name in self.target:
            if name not in TARGETS:
                raise ValueError(f"there is no target {name!r}; choose from {', '.join(TARGETS)}")
        names = [case.name for case in all_cases()]
        for words in self.case:
            if not any(name.startswith(words) for name in names):
                raise ValueError(f"no operator begins with {words!r}; they are: {', '.join(names)}")
        with console.status("Loading ...") as status:
            found = certify(self.target, self.case, status.update)
        wrong = faults(found)
        _print_tables(console, found)
        if self.out is not None:
            self._write(console, found)
        for fault in wrong:
            console.print(f"Wrong: {fault}.", soft_wrap=True)
        kernels = len({row["kernel"] for row in found["builds"]})
        console.print(
            f"{len(wrong)} faults in {kernels} kernels."
            if wrong
            else f"All is right: {kernels} kernels, checked, never timed."
        )
        return 1 if wrong else 0

    def _write(self, console: Console, found: dict[str, Any]) -> None:
        from weft.files import write_atomically
        from weft.report import write_page

        assert self.out is not None
        text = (json.dumps(found, indent=1) + "\n").encode()
        write_atomically(self.out, lambda file: file.write(text))
        console.print(f"Certificate: {self.out}; its page: {write_page([self.out])}")


def _print_tables(console: Console, found: dict[str, Any]) -> None:
    from rich.table import Column, Table

    from weft.kernels.triton_certificate import by_kernel

    dtypes = list(dict.fromkeys(row["dtype"] for row in found["values"]))
    values = Table(
        Column("operator", overflow="fold"), *(f"error, {dtype}" for dtype in dtypes), "graphs"
    )
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found["values"]:
        groups.setdefault((row["case"], row["where"]), []).append(row)
    for (case, where), rows in groups.items():
        name = case if where == "interpreter" else f"{case} on {where}"
        errors = [f"{row['error']:.0e}" for row in rows]
        values.add_row(name, *errors, str(sum(row["graphs"] for row in rows)))
    console.print(values)
    targets = list(dict.fromkeys(row["target"] for row in found["builds"]))
    builds = Table(
        Column("kernel", overflow="fold"), "builds", "bytes / least", "products", *targets
    )
    for name, machine in by_kernel(found).items():
        builds.add_row(
            name,
            str(machine.builds),
            f"{machine.ratio:.2f}" if machine.ratio else "",
            "matrix unit" if machine.matrix else "",
            *(machine.registers.get(target, "") for target in targets),
        )
    console.print(builds)
    console.print("The columns of GPUs are registers of a thread, or what is wrong.")


COMMAND = Check
