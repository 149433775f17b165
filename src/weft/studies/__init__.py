"""The papers' experiments, rerun on the machine at hand."""

from weft.studies.batching import study_batching
from weft.studies.plots import plot_study
from weft.studies.report import Section, batching_report, print_report, write_markdown
from weft.studies.results import RESULTS, StudyResults
from weft.studies.settings import BatchingStudy, StudyData, crystals, molecules, quick
from weft.studies.shapes import ShapeCount, count_shapes
from weft.studies.statistics import Comparison, Interval, compare, holm, mean_interval

__all__ = [
    "RESULTS",
    "BatchingStudy",
    "Comparison",
    "Interval",
    "Section",
    "ShapeCount",
    "StudyData",
    "StudyResults",
    "batching_report",
    "compare",
    "count_shapes",
    "crystals",
    "holm",
    "mean_interval",
    "molecules",
    "plot_study",
    "print_report",
    "quick",
    "study_batching",
    "write_markdown",
]
