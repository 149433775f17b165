"""What a run on the nodes of one graph keeps for predictions: their names and what is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from weft.errors import DataError
from weft.files import json_text, read_json, read_object, text_lines, write_atomically
from weft.graphs import Array
from weft.training.checkpoint import read_weights, save_weights
from weft.training.run import CONFIG

_ABOUT = "model.json"
_NAMES = "nodes.json"
_INPUTS = "inputs.safetensors"


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptInputs:
    """What is read from a run's folder.

    Attributes:
        config: of the run, as JSON values.
        names: of the nodes, in order: whole numbers or text.
        tensors: what the network reads.
        about: more that the recipe keeps.
    """

    config: dict[str, Any]
    names: list[int | str]
    tensors: dict[str, Tensor]
    about: dict[str, Any]

    def places(self, file: Path, count: int, what: str) -> Array:
        """Numbers int64 [m, count] of the nodes named in a text file, plain or gzip.

        Tokens are separated by blanks, tabs or a comma; blank lines and lines that begin with # or
        % are passed over.

        Args:
            file: with `count` names on each line.
            count: of a line.
            what: the names of a line, for messages.

        Raises:
            DataError: the file cannot be read or names none, or a line has another number of
                tokens, or a node that is none of the run's; the message has file and line.
        """
        place_of = {str(name): place for place, name in enumerate(self.names)}
        found: list[list[int]] = []
        for number, line in text_lines(file):
            if not line.strip() or line.lstrip()[0] in "#%":
                continue
            tokens = line.replace(",", " ").split()
            if len(tokens) != count:
                raise DataError(
                    f"{file}, line {number}: {count} token{'s' if count > 1 else ''} ({what}) "
                    f"expected; the line is {line.strip()[:80]!r}"
                )
            strange = [token for token in tokens if token not in place_of]
            if strange:
                raise DataError(
                    f"{file}, line {number}: {strange[0]!r} is none of the {len(place_of):,} nodes "
                    f"that the run was trained with ({_some(self.names)}); leave the line out, or "
                    "train again with that node"
                )
            found.append([place_of[token] for token in tokens])
        if not found:
            raise DataError(f"{file} names no nodes; give a line ({what}) for each prediction")
        return np.array(found, dtype=np.int64)


def _some(names: list[int | str]) -> str:
    shown = ", ".join(map(str, names[:3]))
    return f"{shown}, ..." if len(names) > 3 else shown


def keep_inputs(
    folder: Path, kind: str, names: Array, tensors: Mapping[str, Tensor], **about: Any
) -> None:
    """Write what predictions need beside the weights, each file whole or not at all.

    Args:
        folder: of the run.
        kind: the recipe.
        names: [n], of the nodes.
        tensors: what the network reads.
        **about: more that the recipe keeps, JSON values.
    """
    texts = {_NAMES: json_text(names.tolist()), _ABOUT: json_text({"kind": kind, **about})}
    save_weights(folder / _INPUTS, tensors, {"kind": kind})
    for name, text in texts.items():
        _write(folder / name, text)


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))


def kind_of(run: Path) -> str | None:
    """The recipe of the run in a folder, if it kept its inputs."""
    try:
        return str(read_object(run / _ABOUT, {"kind": object})["kind"])
    except DataError:
        return None


def kept_inputs(run: Path, kind: str) -> KeptInputs:
    """What the run in a folder has kept.

    Raises:
        DataError: it is not a run of this recipe, or damaged.
    """
    if kind_of(run) != kind:
        raise DataError(f"{run} holds no run of `weft train {kind}` that can predict")
    try:
        config = read_object(run / CONFIG, {"config": dict})["config"]
        about = read_object(run / _ABOUT)
        names = read_json(run / _NAMES)
    except DataError as error:
        raise DataError(f"the run in {run} cannot be read ({error})") from None
    if not isinstance(names, list):
        raise DataError(f"{run / _NAMES} holds no list of names: the run is damaged")
    return KeptInputs(config=config, names=names, tensors=read_weights(run / _INPUTS), about=about)
