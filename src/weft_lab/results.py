"""The JSON files of studies and benchmarks: what was measured, where, and with which command.

All of them begin alike: `schema`, when it was `created`, the `command`, the `machine` and the
`versions`. What follows are the fields of a results class, written and read by their types.
"""

from __future__ import annotations

import math
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timezone
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, cast, get_args, get_origin, get_type_hints

import torch

import weft
from weft.errors import DataError
from weft.files import json_text, read_object, write_atomically
from weft.layout.layout_choice import timed_by_turns
from weft.training.hardware import hardware

RESULTS = "results.json"
"""The file in a study's folder with everything that was measured."""


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system, and two measured limits (under a second, once a process).

    `gemm_gflop_per_s`: a product of two float32 matrices of 2048 rows; `copy_gb_per_s`: bytes read
    and written by a copy of 200 MB. What a program does less than this is its distance to the
    hardware.
    """
    products, copies = _limits()
    return {
        **hardware(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "gemm_gflop_per_s": products,
        "copy_gb_per_s": copies,
    }


@cache
def _limits() -> tuple[float, float]:
    """GFLOP/s of matrix products, and GB/s of copies."""
    size = 2048
    a, b, c = (torch.ones(size, size) for _ in range(3))
    source, target = torch.zeros(50_000_000), torch.zeros(50_000_000)
    product, copied = timed_by_turns(
        [lambda: torch.mm(a, b, out=c), lambda: target.copy_(source)], "cpu"
    )
    return 2e-9 * size**3 / product, 2e-9 * source.nbytes / copied


@dataclass(kw_only=True)
class Provenance:
    """Where figures come from.

    Attributes:
        command: that began the measurement.
        machine: it ran on.
        created: when it was begun.
    """

    command: str = field(default_factory=lambda: shlex.join(["weft", *sys.argv[1:]]))
    machine: dict[str, Any] = field(default_factory=dict)
    created: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )


def document(
    schema: str,
    origin: Provenance,
    measured: Mapping[str, Any],
    *,
    name: str = "",
    packages: Sequence[str] = (),
) -> dict[str, Any]:
    """The content of a file.

    Args:
        schema: what the file holds, with the version of its layout at the end.
        origin: where the figures come from.
        measured: the figures as plain values.
        name: which of several things with the same schema it is.
        packages: whose versions are told beside those of weft and Python.
    """
    versions = {package: import_module(package).__version__ for package in packages}
    return {
        "schema": schema,
        **({"name": name} if name else {}),
        "created": origin.created,
        "command": origin.command,
        "machine": origin.machine,
        "versions": {"weft": weft.__version__, **versions, "python": platform.python_version()},
        **measured,
    }


def write_document(path: Path, values: Mapping[str, Any]) -> None:
    """Write a file, whole or not at all."""
    text = json_text(values, indent=1)
    write_atomically(path, lambda file: file.write(text.encode()))


def read_document(path: Path, schemas: Sequence[str]) -> dict[str, Any]:
    """The values in a file that has one of these schemas.

    Raises:
        DataError: it has another version of such a schema.
        ValueError: it is no such file.
    """
    try:
        values = read_object(path, {"schema": str})
    except DataError as error:
        raise ValueError(str(error)) from None
    if values["schema"] not in schemas:
        if values["schema"].rpartition(" ")[0] == schemas[0].rpartition(" ")[0]:
            raise DataError(
                f"{path} was written by another version of weft ({values['schema']!r}, this one "
                f"reads {' and '.join(map(repr, schemas))}); choose another folder"
            )
        raise ValueError(values["schema"])
    return values


def to_plain(value: Any) -> Any:
    """Dataclasses as dicts, all the way down, each with the values that it has `derived`."""
    if is_dataclass(value):
        own = {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
        derived = getattr(value, "derived", None)
        return {**own, **(derived() if derived else {})}
    if isinstance(value, Mapping):
        return {key: to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    return value


def from_plain(kind: Any, value: Any) -> Any:
    """What `to_plain` was given, by its type; fields that a dataclass does not have are left out.

    Raises:
        KeyError, TypeError, ValueError: a field is missing, or a value is of another type.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        hints, make = get_type_hints(kind), cast("type[Any]", kind)
        names = [each.name for each in fields(kind)]
        return make(**{name: from_plain(hints[name], value[name]) for name in names})
    if NoneType in inner:
        (other,) = (each for each in inner if each is not NoneType)
        return None if value is None else from_plain(other, value)
    if origin is list:
        return [from_plain(inner[0], each) for each in value]
    if origin is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(from_plain(own, each) for own, each in zip(kinds, value, strict=True))
    if origin is dict:
        key, own = inner
        return {key(name): from_plain(own, each) for name, each in value.items()}
    # JSON has no word for what is not a number.
    return math.nan if kind is float and value is None else value
