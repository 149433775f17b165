"""Checkpoints of a run that many ranks share: whole or not there, for any number of ranks.

Every rank holds all weights, so rank 0 writes and reads them, with torch's distributed checkpoints
as the format, and tells the others. A run can thus go on with other ranks, another grid, or other
machines, and only rank 0 needs the folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from weft.errors import DataError
from weft.files import json_text, read_object, write_atomically
from weft.sources.pickles import check_pickle

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints in that of a run."""

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
_KEPT = 2
_NAME = re.compile(r"epoch-(\d{6,})")
# What the index of a distributed checkpoint is made of; torch reads it as any pickle.
_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    (_METADATA, "Metadata"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
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
    """

    epoch: int
    tensors: dict[str, Tensor]
    progress: dict[str, Any]


def broadcast_from_rank0(work: Callable[[], Any]) -> Any:
    """What `work` gives on rank 0, a JSON value, on every rank; all of them must call this.

    Raises:
        DataError: with the same words on every rank, where rank 0 has met a user's mistake or a
            file that it cannot read or write.
    """
    if not dist.is_initialized():
        return work()
    said: dict[str, Any] = {}
    failed: Exception | None = None
    if dist.get_rank() == 0:
        try:
            said = {"value": work()}
        except (ValueError, OSError) as error:
            failed, said = error, {"error": str(error)}
        except BaseException:
            _share_text(json.dumps({"error": "rank 0 has failed; see its message"}))
            raise
    said = json.loads(_share_text(json.dumps(said)))
    if failed is not None:
        raise failed
    if "error" in said:
        raise DataError(said["error"])
    return said["value"]


def _share_text(text: str) -> str:
    """The text of rank 0."""
    raw = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    size = torch.tensor([raw.numel()])
    dist.broadcast(size, 0)
    if dist.get_rank() > 0:
        raw = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(raw, 0)
    return bytes(raw.tolist()).decode()


class Checkpoints:
    """The checkpoints in a folder, of a run of this model on this data.

    All ranks make it and call its functions together; only rank 0 looks at the folder.
    """

    def __init__(self, folder: Path, fingerprint: Mapping[str, Any]) -> None:
        """Look after `folder`; `fingerprint` (JSON values) tells this run from any other."""
        self.folder = folder
        self.fingerprint: dict[str, Any] = json.loads(json.dumps(fingerprint))

    def save(self, epoch: int, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Write a checkpoint after `epoch`; the last two are kept.

        Raises:
            DataError: it cannot be written, on every rank; the earlier ones are kept.
        """
        broadcast_from_rank0(lambda: self._save(epoch, dict(tensors), dict(progress)))

    def _save(self, epoch: int, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        target = self.folder / f"epoch-{epoch:06d}"
        partial = self.folder / f".{target.name}.partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(partial, ignore_errors=True)
            with _alone():
                save_distributed(
                    {name: tensor.detach().cpu() for name, tensor in tensors.items()},
                    checkpoint_id=partial,
                    no_dist=True,
                )
            manifest = {
                "format": _FORMAT,
                "version": _VERSION,
                "epoch": epoch,
                "fingerprint": self.fingerprint,
                "progress": progress,
                "files": {path.name: _sum(path) for path in sorted(partial.iterdir())},
            }
            text = json_text(manifest, indent=1) + "\n"
            write_atomically(partial / _MANIFEST, lambda file: file.write(text.encode()))
            # An epoch that is done a second time: what it gave before is worth no more.
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            _sync(self.folder)
        # The last is none of the Exceptions.
        except (OSError, RuntimeError, CheckpointException) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise DataError(
                f"cannot write the checkpoint {target} ({_reason(error)}); make room or choose "
                "another folder, the earlier checkpoints are kept"
            ) from error
        for path in _folders(self.folder)[_KEPT:]:
            shutil.rmtree(path, ignore_errors=True)

    def load(self) -> Saved | None:
        """The newest checkpoint that is whole, the same on every rank; None if there is none.

        Raises:
            DataError: on every rank: it is of another model or data, and the message says what
                differs.
        """
        held: dict[str, Tensor] = {}

        def read() -> dict[str, Any] | None:
            found = _newest(self.folder)
            if found is None:
                return None
            path, manifest = found
            self._check(path, manifest)
            held.update(_read(path))
            return {
                "epoch": manifest["epoch"],
                "progress": manifest["progress"],
                "tensors": {
                    name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
                    for name, tensor in held.items()
                },
            }

        about = broadcast_from_rank0(read)
        if about is None:
            return None
        if dist.is_initialized():
            for name, (dtype, shape) in about["tensors"].items():
                if name not in held:
                    held[name] = torch.empty(shape, dtype=getattr(torch, dtype))
                dist.broadcast(held[name], 0)
        return Saved(epoch=about["epoch"], tensors=held, progress=about["progress"])

    def _check(self, path: Path, manifest: dict[str, Any]) -> None:
        found = _difference(manifest["fingerprint"], self.fingerprint, "")
        if found is not None:
            what, before, now = found
            raise DataError(
                f"{path} is of another run: {what} is {before} there and {now} here; resume with "
                "the same, or take its weights into another folder (--init-from)"
            )


def last_epoch(folder: Path) -> int:
    """The epoch of the newest whole checkpoint in `folder`; 0 if there is none."""
    found = _newest(folder)
    return 0 if found is None else int(found[1]["epoch"])


def _folders(folder: Path) -> list[Path]:
    """Folders of checkpoints, the newest first."""
    if not folder.is_dir():
        return []
    names = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(names, key=lambda path: int(path.name.partition("-")[2]), reverse=True)


def _newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    for path in _folders(folder):
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
                f"{path} has version {version}; this weft reads version {_VERSION}, go on with "
                "the weft that wrote it"
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
        with _alone():
            load_distributed(tensors, checkpoint_id=path, no_dist=True)
    except DataError:
        raise
    # A damaged index can fail in any instruction, with that instruction's own error.
    except (Exception, CheckpointException) as error:
        raise DataError(
            f"{path} cannot be read ({_reason(error)}); remove it to go on from the checkpoint "
            "before it"
        ) from error
    return tensors


def _reason(error: BaseException) -> str:
    """What the system said, where it is at the root of an error; else the error's first line."""
    found: list[BaseException] = [error]
    for each in found:
        if isinstance(each, OSError) and each.strerror:
            return each.strerror
        if isinstance(each, CheckpointException):
            found += [failure for failure, _ in each.failures.values()]
        found += [inner for inner in (each.__cause__, each.__context__) if inner is not None]
    # A checkpoint's own first line is a list of ranks.
    first = found[1] if isinstance(error, CheckpointException) and len(found) > 1 else error
    return str(first).split("\n")[0]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise DataError(
            f"the index of a checkpoint asks for '{module}.{name}', which is not on the list of "
            "what may be loaded; it was not run, remove that checkpoint"
        )


@contextmanager
def _alone() -> Iterator[None]:
    """Without torch's warning that one process does this by itself: that is what is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process")
        yield


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(2**20):
            digest.update(block)
        return digest.hexdigest()


def _sync(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _difference(before: Any, now: Any, where: str) -> tuple[str, str, str] | None:
    """The first place where two JSON values differ, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in [*before, *(name for name in now if name not in before)]:
            inner = f"{where}.{name}" if where else str(name)
            texts = [
                json.dumps(side[name]) if name in side else "not there" for side in (before, now)
            ]
            if texts[0] != texts[1]:
                if name in before and name in now:
                    return _difference(before[name], now[name], inner)
                return inner, texts[0], texts[1]
        return None
    return where, json.dumps(before), json.dumps(now)
