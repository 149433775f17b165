"""`weft study NAME`."""

from __future__ import annotations

from weft_lab.commands.study_all import All
from weft_lab.commands.study_batching import Batching
from weft_lab.commands.study_communication import Communication
from weft_lab.commands.study_dense import DenseHardware
from weft_lab.commands.study_sparsification import Sparsification

COMMANDS = {
    "batching": Batching,
    "dense-hardware": DenseHardware,
    "communication": Communication,
    "sparsification": Sparsification,
    "all": All,
}
