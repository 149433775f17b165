"""Writes the checkpoints that full-graph training wrote before it had the ordinary one."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_old(
    folder: Path,
    epoch: int,
    tensors: Mapping[str, Tensor],
    progress: Mapping[str, Any],
    fingerprint: Mapping[str, Any],
) -> Path:
    """The checkpoint after `epoch` in the folder `checkpoints` of a run."""
    target = folder / f"epoch-{epoch:06d}"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process")
        save(dict(tensors), checkpoint_id=target, no_dist=True)
    manifest = {
        "format": "weft full-graph checkpoint",
        "version": 1,
        "epoch": epoch,
        "fingerprint": fingerprint,
        "progress": progress,
        "files": {path.name: checksum(path) for path in sorted(target.iterdir())},
    }
    (target / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return target
