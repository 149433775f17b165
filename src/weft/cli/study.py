"""`weft study NAME`."""

from __future__ import annotations

from weft.cli.study_all import All
from weft.cli.study_batching import Batching
from weft.cli.study_communication import Communication
from weft.cli.study_dense import DenseHardware
from weft.cli.study_sparsification import Sparsification

__all__ = ["COMMANDS"]

COMMANDS = {
    "batching": Batching,
    "dense-hardware": DenseHardware,
    "communication": Communication,
    "sparsification": Sparsification,
    "all": All,
}
