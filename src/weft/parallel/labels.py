"""What is learned of each node, from the array that a user has: a class, labels, or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from weft.errors import DataError
from weft.graphs import Array

TargetKind = Literal["classes", "multilabel", "regression"]
TargetName = Literal["auto", TargetKind]
METRICS: dict[TargetKind, tuple[str, ...]] = {
    "classes": ("accuracy",),
    "multilabel": ("f1", "auc"),
    "regression": ("mae", "rmse", "r2"),
}
"""Scores beside the loss; the first decides by default which weights are best."""
_IGNORED = -100


def as_target(y: Array, asked: str = "auto") -> tuple[TargetKind, Array]:
    """The kind of target that `y` is, and the array that tables hold of it.

    Args:
        y: [n] or [n, t], one row for each node.
        asked: a TargetKind, or `auto`: whole numbers [n] are classes, rows of 0 and 1 are
            multilabel, other numbers are regression.

    Returns:
        For classes int64 [n], -1 for none (also given as -100 or nan). For the others a float
        array [n, t] with nan for what is unknown; multilabel holds 0 and 1 (-1 counts as unknown
        in whole numbers).

    Raises:
        DataError: the values do not fit the kind; names a node and its value.
    """
    if asked not in get_args(TargetName):
        raise ValueError(f"target is {asked!r}; choose from {', '.join(get_args(TargetName))}")
    y = np.asarray(y)
    if y.ndim not in (1, 2) or y.dtype.kind not in "iufb" or (y.ndim == 2 and not y.shape[1]):
        raise DataError(
            f"node column 'y' is {y.dtype}{list(y.shape)}; one whole number for each node is "
            "needed, its class from 0, or -1 for none; or a row of labels or of numbers"
        )
    kind = _kind(y) if asked == "auto" else asked
    if kind == "classes":
        return "classes", _classes(y)
    values = y.reshape(len(y), -1)
    whole = y.dtype.kind in "iub"
    values = values.astype(np.float64 if y.dtype == np.float64 else np.float32)
    if kind == "regression":
        _check(~np.isinf(values), values, "a finite number is needed, or nan for none")
        return "regression", values
    if whole:
        values[values == -1] = np.nan
    good = (values == 0) | (values == 1) | np.isnan(values)
    _check(good, values, "a label is 0 or 1, or nan for one that is unknown")
    return "multilabel", values


def check_class_weights(weights: Sequence[str]) -> None:
    """Raise ValueError unless they are nothing, `balanced`, or numbers that are not negative."""
    for word in () if list(weights) == ["balanced"] else weights:
        try:
            good = 0 <= float(word) < float("inf")
        except ValueError:
            good = False
        if not good:
            raise ValueError(
                f"class_weights has {word!r}; give a number of at least 0 for each class, or "
                "balanced"
            )


def is_known(y: Array) -> Array:
    """Which nodes have anything to learn from, bool [n], of what `as_target` gives."""
    if y.ndim == 1:
        return np.greater_equal(y, 0)
    return np.asarray(np.logical_not(np.isnan(y)).any(1))


def width_of(y: Array) -> int:
    """Outputs that a network needs for what `as_target` gives: its classes, labels or numbers."""
    return int(y.max(initial=-1)) + 1 if y.ndim == 1 else int(y.shape[1])


def target_scale(kind: TargetKind, y: Array, train: Array) -> dict[str, list[float]] | None:
    """Mean and standard deviation of each number over the training nodes, for a regression.

    Args:
        kind: of the target.
        y: [n, t].
        train: bool [n].
    """
    if kind != "regression":
        return None
    means, deviations = [], []
    for column in y[train].astype(np.float64).T:
        known = column[~np.isnan(column)]
        means.append(float(known.mean()) if known.size else 0.0)
        deviation = float(known.std()) if known.size else 0.0
        # A target that never changes is only moved.
        deviations.append(deviation or 1.0)
    return {"mean": means, "std": deviations}


def _kind(y: Array) -> TargetKind:
    if y.ndim == 1:
        if y.dtype.kind in "iub":
            return "classes"
        known = y[~np.isnan(y)]
        if known.size and bool((known == np.floor(known)).all()):
            raise DataError(
                f"node column 'y' is {y.dtype} and holds whole numbers only: pass --target classes "
                "or --target regression"
            )
        return "regression"
    known = y[~np.isnan(y)] if y.dtype.kind == "f" else y[y != -1] if y.dtype.kind == "i" else y
    return "multilabel" if bool(((known == 0) | (known == 1)).all()) else "regression"


def _classes(y: Array) -> Array:
    if y.ndim == 2:
        if y.shape[1] != 1:
            raise DataError(
                f"node column 'y' has shape {list(y.shape)}, and a node has one class: pass "
                "--target multilabel for rows of labels, or regression"
            )
        y = y[:, 0]
    if y.dtype.kind == "f":
        y = np.where(np.isnan(y), -1, y)
        whole = y == np.floor(y)
        _check(whole[:, None], y[:, None], "a class is a whole number from 0, -1 or nan for none")
    # What torch's cross-entropy leaves out by default.
    y = np.where(y == _IGNORED, -1, y)
    labelled = int(np.count_nonzero(y >= 0))
    good = (y >= -1) & (y < max(1, labelled))
    _check(
        good[:, None],
        y[:, None],
        f"classes are numbered from 0, there are at most as many as nodes that have one "
        f"({labelled}), and -1 is for a node without one",
    )
    return y.astype(np.int64)


def _check(good: Array, values: Array, needed: str) -> None:
    """Raise DataError for the first of values [n, t] that is not good."""
    if good.all():
        return
    node, column = np.argwhere(~good)[0].tolist()
    which = f", column {column}" if values.shape[1] > 1 else ""
    raise DataError(f"the target of node {node}{which} is {values[node, column]:g}; {needed}")
