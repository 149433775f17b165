"""Checkpoints: the whole state of a run in one file, and weights alone in another."""

from __future__ import annotations

import copy
import hashlib
import io
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from weft.errors import DataError
from weft.files import json_text, parse_json, write_atomically

if TYPE_CHECKING:
    from weft.parallel.world import World

CHECKPOINT = "last.pt"
WEIGHTS = "weights.safetensors"
AVERAGES = "averaged weights"
"""The part of a checkpoint's extras with the averages of `AveragedWeights`."""
_FORMAT = "weft checkpoint"
_VERSION = 1
_SUM = "sha256"
# With tensors, lists, tuples and dicts: what torch.load(weights_only=True) gives back.
_PLAIN = (str, bytes, bool, int, float, complex, type(None), torch.Size, torch.dtype)


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write `state` (nested dicts and lists of tensors and plain values) to `path`, atomically.

    Raises:
        DataError: it holds something that could not be read back safely, or it cannot be
            written; the checkpoint that was there is kept.
    """
    whole = _plain({"format": _FORMAT, "version": _VERSION, **state}, "")
    # Not straight into the file: torch turns a full disk's OSError into a RuntimeError.
    buffer = io.BytesIO()
    torch.save(whole, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()))


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        # torch's schedulers need their Counter again; of other kinds of dict the content is enough.
        kind = type(value) if type(value) in (OrderedDict, Counter) else dict
        return kind(
            {
                _plain(key, where): _plain(part, f"{where}.{key}" if where else str(key))
                for key, part in value.items()
            }
        )
    if type(value) in (list, tuple):
        return type(value)(_plain(part, f"{where}.{i}") for i, part in enumerate(value))
    if isinstance(value, np.generic):
        return _plain(value.item(), where)
    if isinstance(value, Tensor):
        # A run goes on wherever it is resumed, whatever it was trained on.
        return value if value.device.type == "cpu" else value.detach().cpu()
    if type(value) in _PLAIN:
        return value
    raise DataError(
        f"the checkpoint cannot hold {where}, a {type(value).__module__}."
        f"{type(value).__qualname__}: a checkpoint is read without unpickling objects; let the "
        "state_dict() it comes from give tensors, numbers, strings, lists and dicts only"
    )


def load_checkpoint(path: Path, *needed: str) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote, onto the CPU, checked to the last byte.

    Args:
        path: the file.
        needed: parts that it must have.

    Raises:
        DataError: no such file, cut, damaged, without a part that is needed, or not a checkpoint
            of this version.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist; start the run again without resuming")
    remedy = "remove it to start from the beginning, or take another checkpoint"
    try:
        # torch does not look at the archive's checksums: a flipped bit would become a weight.
        with zipfile.ZipFile(path) as archive:
            packed = [
                part.filename
                for part in archive.infolist()
                if part.compress_type != zipfile.ZIP_STORED
            ]
            # torch never packs; a part that is could unpack to any size.
            damaged = packed[0] if packed else archive.testzip()
        if damaged is not None:
            raise DataError(f"{path} is damaged (its part {damaged} has changed); {remedy}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; {remedy}") from error
    except MemoryError:
        raise DataError(f"{path} does not fit into memory; stop what else takes it") from None
    # A damaged archive can fail anywhere in torch's reader, with that place's own error.
    except Exception as error:
        reason = str(error).split("\n")[0].split(". ")[0] or type(error).__name__
        raise DataError(
            f"{path} is cut, damaged or not a checkpoint ({reason}); {remedy}"
        ) from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise DataError(
            f"{path} is not a weft checkpoint; to start from a model's weights "
            "alone, save its state_dict as safetensors and use --init-from"
        )
    if state.get("version") != _VERSION:
        raise DataError(
            f"{path} has version {state.get('version')}; this weft reads version {_VERSION}, use "
            "the weft that wrote it"
        )
    for name in needed:
        if name not in state:
            raise DataError(f"{path} is damaged (it has no part '{name}'); {remedy}")
    if not isinstance(state.get("model", {}), dict):
        raise DataError(f"{path} is damaged (its part 'model' holds no weights); {remedy}")
    return state


def shared_checkpoint(
    path: Path | None, world: World | None, *needed: str
) -> tuple[str, dict[str, Any]] | None:
    """Name and content of the checkpoint that a run goes on from; None where there is none yet.

    Args:
        path: the file, if it is there; rank 0's counts, and the others get what it has read.
        world: the ranks, all of which call this; None for this process alone.
        needed: parts that it must have.

    Raises:
        DataError: the checkpoint is damaged, see `load_checkpoint`; on every rank.
    """

    def read() -> tuple[str, dict[str, Any]] | None:
        if path is None or not path.exists():
            return None
        return str(path), load_checkpoint(path, *needed)

    found: tuple[str, dict[str, Any]] | None
    found = read() if world is None else world.broadcast_from_rank0(read)
    return found


def plain_module(model: nn.Module) -> nn.Module:
    """The module inside a compiled one, so that a file fits with and without compilation."""
    inner = getattr(model, "_orig_mod", model)
    assert isinstance(inner, nn.Module)
    return inner


def copy_weights(model: nn.Module) -> dict[str, Any]:
    """The model's state_dict, copied to the CPU."""
    return {
        name: value.detach().to("cpu", copy=True)
        if isinstance(value, Tensor)
        else copy.deepcopy(value)
        for name, value in plain_module(model).state_dict().items()
    }


def put_weights(model: nn.Module, weights: Mapping[str, Any], source: str) -> None:
    """Copy `weights` into the model; every tensor of both must meet one of the same shape.

    Raises:
        DataError: names `source` and the first parameter that does not fit, with both shapes.
    """
    model = plain_module(model)
    own = {name: v for name, v in model.state_dict().items() if isinstance(v, Tensor)}
    given = {name: v for name, v in weights.items() if isinstance(v, Tensor)}
    for name, value in own.items():
        if name not in given:
            raise DataError(
                f"{source} is of another model: it has no '{name}', which is {list(value.shape)} "
                "here"
            )
        if given[name].shape != value.shape:
            raise DataError(
                f"{source} is of another model: '{name}' is {list(given[name].shape)} there and "
                f"{list(value.shape)} here"
            )
    for name, value in given.items():
        if name not in own:
            raise DataError(
                f"{source} is of another model: '{name}' {list(value.shape)} has no place here"
            )
    model.load_state_dict(dict(weights), strict=False)


def as_sparse(values: Mapping[str, Tensor], weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """Values in the shapes of the weights of these names, 0 where those are exactly 0."""
    return {name: value.masked_fill(weights[name] == 0, 0) for name, value in values.items()}


def save_weights(path: Path, weights: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write a state_dict's tensors as safetensors, with the JSON values `about` in the header.

    The header's entry `weft` has a checksum of the tensors beside them: safetensors has none.
    """
    # Clones: safetensors refuses two names for one memory, which tied weights are.
    tensors = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in weights.items()
        if isinstance(value, Tensor)
    }
    header = json_text({**about, _SUM: _sum_of(tensors)})
    whole = safetensors_bytes(tensors, metadata={"weft": header})
    write_atomically(path, lambda file: file.write(whole))


def _sum_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\n{tensor.dtype}\n{list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or the weights inside a checkpoint; or of a run's folder.

    Raises:
        DataError: no weights there, or a file that is damaged.
    """
    if path.is_dir():
        file = path / WEIGHTS if (path / WEIGHTS).exists() else path / CHECKPOINT
        if not file.exists():
            raise DataError(f"{path} has neither {WEIGHTS} nor {CHECKPOINT}: no weights to take")
        return read_weights(file)
    if not path.exists():
        raise DataError(f"{path} does not exist; weights come from a .safetensors, .pt or a run")
    if path.suffix == ".pt":
        state = load_checkpoint(path, "model")
        weights: dict[str, Tensor] = state["model"]
        # As in a run's weights file: the averaged ones, where the run has them.
        averages = state.get("extras", {}).get(AVERAGES, {"averages": {}})["averages"]
        return weights | as_sparse(averages, weights)
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get("weft", "{}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} is not a complete safetensors file ({error})") from error
    about = parse_json(header, f"{path}, its header's entry 'weft'")
    # Files of others, and of earlier versions, have none.
    wanted = about.get(_SUM) if isinstance(about, dict) else None
    if wanted is not None and wanted != _sum_of(tensors):
        raise DataError(
            f"{path} is damaged (its checksum is wrong); take the weights of another file"
        )
    return tensors


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Take weights, and nothing else, from a safetensors file, a checkpoint or a run's folder.

    Raises:
        DataError: the file is damaged or of another model; the message names the first parameter
            that does not fit, with both shapes.
    """
    put_weights(model, read_weights(Path(path)), str(path))
