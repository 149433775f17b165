"""Reads the checkpoints that full-graph training wrote before it had the ordinary one.

Each is a folder `checkpoints/epoch-000040` of a run: tensors as torch's distributed checkpoint, and
a manifest with the checksums of its files.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed

from weft.errors import DataError
from weft.files import read_object
from weft.sources.pickles import check_pickle

_MANIFEST = "manifest.json"
_FIELDS: dict[str, type] = {
    "format": str,
    "version": int,
    "epoch": int,
    "fingerprint": dict,
    "progress": dict,
    "files": dict,
}
_FORMAT = "weft full-graph checkpoint"
_VERSION = 1
_NAME = re.compile(r"epoch-(\d{6,})")
# What the index of a distributed checkpoint is made of; torch reads it as any pickle.
_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    *((_METADATA, f"{kind}Metadata") for kind in ("", "TensorStorage", "ChunkStorage")),
    *((_METADATA, name) for name in ("TensorProperties", "MetadataIndex", "StorageMeta")),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    *(
        (module, f"{kind}Path")
        for module in ("pathlib", "pathlib._local")
        for kind in ("Posix", "Windows")
    ),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Saved:
    """What a checkpoint holds.

    Attributes:
        epoch: epochs done.
        tensors: by name.
        progress: plain values.
        fingerprint: JSON values that tell this run from any other.
    """

    epoch: int
    tensors: dict[str, Tensor]
    progress: dict[str, Any]
    fingerprint: dict[str, Any]


def newest_checkpoint(folder: Path) -> tuple[Path, Saved] | None:
    """The newest checkpoint in `folder` that is whole, and where it is; None if there is none.

    Raises:
        DataError: it is of another version, or its index asks for what may not be loaded.
    """
    found = _newest(folder)
    if found is None:
        return None
    path, manifest = found
    return path, Saved(
        epoch=manifest["epoch"],
        tensors=_read(path),
        progress=manifest["progress"],
        fingerprint=manifest["fingerprint"],
    )


def last_epoch(folder: Path) -> int:
    """The epoch of the newest whole checkpoint in `folder`; 0 if there is none."""
    found = _newest(folder)
    return 0 if found is None else int(found[1]["epoch"])


def _newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    numbered = {
        int(found[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (found := _NAME.fullmatch(path.name))
    }
    for _, path in sorted(numbered.items(), reverse=True):
        try:
            manifest = read_object(path / _MANIFEST, _FIELDS)
            if manifest["format"] != _FORMAT:
                continue
            version = manifest["version"]
            if version == _VERSION and all(
                _sum(path / Path(name).name) == sum_ for name, sum_ in manifest["files"].items()
            ):
                return path, manifest
        except (OSError, DataError):
            continue
        if version != _VERSION:
            raise DataError(
                f"{path} has version {version}; this weft reads version {_VERSION}, use the weft "
                f"that wrote it"
            )
    return None


def _read(path: Path) -> dict[str, Tensor]:
    try:
        index = (path / ".metadata").read_bytes()
        check_pickle(index)
        metadata = _Unpickler(io.BytesIO(index)).load()
        tensors = {
            name: torch.empty(tuple(entry.size), dtype=entry.properties.dtype)
            for name, entry in metadata.state_dict_metadata.items()
        }
        with warnings.catch_warnings():
            # That one process does this by itself is what is meant.
            warnings.filterwarnings("ignore", message=".*single process")
            load_distributed(tensors, checkpoint_id=path, no_dist=True)
    except DataError:
        raise
    # A damaged index can fail in any instruction, with that instruction's own error.
    except (Exception, CheckpointException) as error:
        reason = str(error).split("\n")[0]
        raise DataError(
            f"{path} cannot be read ({reason}); remove it to resume from the checkpoint before it"
        ) from error
    return tensors


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise DataError(
            f"the index of a checkpoint needs '{module}.{name}', which is not on the list of "
            "what may be loaded; it was not run, remove that checkpoint"
        )


def _sum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
