"""The chapter of a certificate of the GPU kernels, as `weft check gpu --out` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.kernels.triton_certificate import by_kernel, faults
from weft.report.page import Block, Chapter, Facts, Part, Table, Words


def certificate_chapter(value: Mapping[str, Any]) -> Chapter:
    """The values of a certificate's file as a chapter."""
    wrong = faults(value)
    targets = list(dict.fromkeys(row["target"] for row in value["builds"]))
    kernels = by_kernel(value)
    pairs = sum(row["graphs"] for row in value["values"])
    facts = [
        ("Faults", str(len(wrong)), "" if value["complete"] else "of a part of the checks"),
        ("Kernels", str(len(kernels)), f"built for {', '.join(targets)}" if targets else ""),
        ("Comparisons", f"{pairs:,}", "each forward and backward"),
        ("Builds", f"{len(value['builds']):,}", f"by triton {value['versions']['triton']}"),
    ]
    first: list[Block] = [Facts(facts=facts)]
    if wrong:
        first.append(Words(words=[f"{fault}." for fault in wrong], points=True))
    values = Table(
        caption="Values",
        headings=("operator", "dtype", "where", "graphs", "largest error", "allowed", "kernels"),
        rows=[
            (
                row["case"],
                row["dtype"],
                row["where"],
                str(row["graphs"]),
                f"{row['error']:.1e}",
                f"{row['bound']:.0e}",
                ", ".join(row["kernels"]),
            )
            for row in value["values"]
        ],
        titled=True,
    )
    moved = Table(
        caption="Bytes",
        headings=("kernel", "dtype", "moved, kB", "least, kB", "ratio", "why it is cut so"),
        rows=[
            (
                row["kernel"],
                row["dtype"],
                f"{row['moved'] / 1000:.1f}",
                f"{row['least'] / 1000:.1f}",
                f"{row['ratio']:.2f}",
                row["reason"],
            )
            for row in value["bytes"]
        ],
        titled=True,
    )
    builds = Table(
        caption="Machine code",
        headings=("kernel", "builds", *(f"registers, {target}" for target in targets), "products"),
        rows=[
            (
                name,
                str(found.builds),
                *(found.registers.get(target, "–") for target in targets),
                f"{found.matrix} matrix instructions or more" if found.dots else "–",
            )
            for name, found in kernels.items()
        ],
        titled=True,
    )
    about = (
        "Every operator was run in triton's interpreter on random, typical, empty, hub-heavy and "
        "padded graphs and on one with a huge row, forward and backward, and compared with the "
        "compiled loop of the CPU. Errors are relative to the largest number (at least 1)."
    )
    code = (
        "Built offline with triton's own compilers. A build that spills, holds an atomic "
        "instruction, takes more shared memory than the GPU has, or multiplies matrices without "
        "the matrix unit is a fault. Nothing here was timed."
    )
    return Chapter(
        kind="Certificate",
        title="GPU kernels: checked, never timed",
        lead="What can be proven of the kernels without their GPUs.",
        headline=first,
        parts=[
            Part(title="Values", blocks=[Words(words=[about]), values]),
            Part(title="Bytes that a kernel moves", blocks=[moved]),
            Part(title="Machine code", blocks=[Words(words=[code]), builds]),
        ],
    )
