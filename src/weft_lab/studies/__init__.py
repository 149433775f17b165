"""The papers' experiments, rerun on the machine at hand."""

from weft_lab.studies.batching import study_batching
from weft_lab.studies.communication import study_communication
from weft_lab.studies.communication_plots import plot_communication
from weft_lab.studies.communication_report import communication_report
from weft_lab.studies.communication_results import CommunicationResults
from weft_lab.studies.communication_settings import CommunicationStudy, quick_communication
from weft_lab.studies.dense_hardware import study_dense_hardware
from weft_lab.studies.dense_plots import plot_dense
from weft_lab.studies.dense_report import dense_report
from weft_lab.studies.dense_results import DenseResults
from weft_lab.studies.dense_settings import DenseHardwareStudy, quick_dense
from weft_lab.studies.plots import plot_study
from weft_lab.studies.report import batching_report
from weft_lab.studies.results import StudyResults
from weft_lab.studies.results_file import RESULTS
from weft_lab.studies.sections import Section, print_report, write_markdown
from weft_lab.studies.settings import BatchingStudy, StudyData, crystals, molecules, quick
from weft_lab.studies.shapes import ShapeCount, count_shapes
from weft_lab.studies.sparsification import (
    SparsificationData,
    generated_edges,
    generated_nodes,
    study_sparsification,
)
from weft_lab.studies.sparsification_plots import plot_sparsification
from weft_lab.studies.sparsification_report import sparsification_report
from weft_lab.studies.sparsification_results import SparsificationResults
from weft_lab.studies.sparsification_settings import SparsificationStudy, quick_sparsification
from weft_lab.studies.statistics import Comparison, Interval, compare, holm, mean_interval

__all__ = [
    "RESULTS",
    "BatchingStudy",
    "CommunicationResults",
    "CommunicationStudy",
    "Comparison",
    "DenseHardwareStudy",
    "DenseResults",
    "Interval",
    "Section",
    "ShapeCount",
    "SparsificationData",
    "SparsificationResults",
    "SparsificationStudy",
    "StudyData",
    "StudyResults",
    "batching_report",
    "communication_report",
    "compare",
    "count_shapes",
    "crystals",
    "dense_report",
    "generated_edges",
    "generated_nodes",
    "holm",
    "mean_interval",
    "molecules",
    "plot_communication",
    "plot_dense",
    "plot_sparsification",
    "plot_study",
    "print_report",
    "quick",
    "quick_communication",
    "quick_dense",
    "quick_sparsification",
    "sparsification_report",
    "study_batching",
    "study_communication",
    "study_dense_hardware",
    "study_sparsification",
    "write_markdown",
]
