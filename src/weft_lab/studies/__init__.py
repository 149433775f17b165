"""The papers' experiments, rerun on the machine at hand."""

from typing import Any

from weft_lab.statistics import compare, holm, mean_interval
from weft_lab.studies.batching import crystals, molecules
from weft_lab.studies.batching_report import BATCHING
from weft_lab.studies.communication import COMMUNICATION
from weft_lab.studies.dense_report import DENSE_HARDWARE
from weft_lab.studies.sparsification_report import SPARSIFICATION
from weft_lab.study import Study
from weft_lab.study_settings import (
    BatchingStudy,
    CommunicationStudy,
    DenseHardwareStudy,
    SparsificationStudy,
    quick,
)

STUDIES: dict[str, Study[Any, Any]] = {
    "dense-hardware": DENSE_HARDWARE,
    "communication": COMMUNICATION,
    "sparsification": SPARSIFICATION,
    "batching": BATCHING,
}
"""All of them, by the name of their command."""

study_batching, batching_report = BATCHING.run, BATCHING.report

__all__ = [
    "BATCHING",
    "COMMUNICATION",
    "DENSE_HARDWARE",
    "SPARSIFICATION",
    "STUDIES",
    "BatchingStudy",
    "CommunicationStudy",
    "DenseHardwareStudy",
    "SparsificationStudy",
    "batching_report",
    "compare",
    "crystals",
    "holm",
    "mean_interval",
    "molecules",
    "quick",
    "study_batching",
]
