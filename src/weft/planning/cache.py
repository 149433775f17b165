"""Plans that were made before: one file each in the data folder, named by what they hold for."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numba
import torch

import weft
from weft.errors import DataError
from weft.files import json_text
from weft.planning.plan import Plan, Target
from weft.sources.table_cache import data_folder
from weft.training.hardware import hardware

FOLDER = "plans"


def plan_key(
    *,
    recipe: str,
    data: str,
    config: Any,
    planned: Iterable[str],
    target: Target,
    total_units: float,
) -> dict[str, Any]:
    """What a plan holds for, as JSON values; two alike need only one plan.

    Args:
        recipe: its name.
        data: a hash of the data's content.
        config: the recipe's configuration, a dataclass, or a mapping that describes the work.
        planned: dotted names of its settings that the plan decides, and so does not depend on.
        target: what is to be least.
        total_units: how much is to be trained: the time of compiling is spread over it.
    """
    given = dict(config) if isinstance(config, Mapping) else dataclasses.asdict(config)
    plain = json.loads(json_text(given, default=str))
    for name in planned:
        part = plain
        *path, last = name.split(".")
        for each in path:
            part = part.get(each) or {}
        part.pop(last, None)
    return {
        "recipe": recipe,
        "data": data,
        "config": plain,
        "target": target,
        "total_units": total_units,
        "machine": _machine(),
        "versions": {
            "weft": weft.__version__,
            "torch": str(torch.__version__),
            "numba": str(numba.__version__),
        },
    }


def plan_path(key: Mapping[str, Any], data_dir: Path | None = None) -> Path:
    """Where the plan of this key is kept, whether it is there or not."""
    text = json.dumps(key, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return data_folder(data_dir) / FOLDER / f"{digest}.json"


def cached_plan(key: Mapping[str, Any], data_dir: Path | None = None) -> Plan | None:
    """The plan made for this key; None where there is none that can be read."""
    path = plan_path(key, data_dir)
    if not path.exists():
        return None
    try:
        return Plan.load(path)
    except DataError:
        # Of an older version, or damaged: a new plan takes its place.
        return None


def keep_plan(plan: Plan, data_dir: Path | None = None) -> Path:
    """Keep a plan for the next time its `key` comes up; gives its file.

    Raises:
        DataError: the data folder cannot be written.
    """
    assert plan.key, "a plan is kept under its key"
    path = plan_path(plan.key, data_dir)
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the folder {path.parent} cannot be made ({error.strerror}); choose another with "
            "--data-dir or the environment variable WEFT_DATA_DIR"
        ) from None
    plan.save(path)
    return path


def _machine() -> dict[str, Any]:
    found = hardware()
    if "memory_gib" in found:
        # Whole ones: what the system keeps for itself changes with every start.
        found["memory_gib"] = round(found["memory_gib"])
    return found
