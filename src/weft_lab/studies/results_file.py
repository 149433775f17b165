"""The file of a study: what was asked and measured, written whole, read again to go on."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

import weft
from weft.errors import DataError
from weft.files import json_text, read_object, write_atomically

RESULTS = "results.json"
"""File of a study's folder with everything that was measured."""


@dataclass(kw_only=True)
class Provenance:
    """Where figures come from.

    Attributes:
        command: that the study was begun with.
        machine: it ran on.
        created: when it was begun.
    """

    command: str = field(default_factory=lambda: shlex.join(["weft", *sys.argv[1:]]))
    machine: dict[str, Any] = field(default_factory=dict)
    created: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )


def write_results(
    folder: Path, schema: str, origin: Provenance, config: Any, measured: Mapping[str, Any]
) -> None:
    """Write the file, whole or not at all."""
    values = {
        "schema": schema,
        "created": origin.created,
        "command": origin.command,
        "machine": origin.machine,
        "versions": {
            "weft": weft.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "config": asdict(config),
        **measured,
    }
    text = json_text(values, indent=1)
    write_atomically(folder / RESULTS, lambda file: file.write(text.encode()))


def read_results(folder: Path, schema: str, config: Any) -> dict[str, Any]:
    """What `write_results` wrote, of a study with the same `config`.

    Raises:
        DataError: it is of a study with other settings.
        ValueError: it is no such file.
    """
    path = folder / RESULTS
    try:
        values = read_object(path, {"schema": str, "config": dict})
    except DataError as error:
        raise ValueError(str(error)) from None
    if values["schema"] != schema:
        if values["schema"].rpartition(" ")[0] == schema.rpartition(" ")[0]:
            raise DataError(
                f"{path} was written by another version of weft ({values['schema']!r}, this one "
                f"reads {schema!r}); choose another folder"
            )
        raise ValueError(values["schema"])
    for name, value in json.loads(json_text(asdict(config))).items():
        if values["config"].get(name) != value:
            raise DataError(
                f"{path} is of a study with {name} = {values['config'].get(name)}, not "
                f"{value}; resume it with the same settings or choose another folder"
            )
    return values
