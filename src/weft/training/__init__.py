"""Training: the loop, checkpoints that resume to the bit, metrics, schedules, runs as folders."""

from weft.training.batches import Stateful, graphs_in
from weft.training.checkpoint import load_weights
from weft.training.compilation import Compilation, CompileMode, worth_compiling
from weft.training.config import FitConfig, FitResult, NonFiniteLoss
from weft.training.loop import fit
from weft.training.metrics import MetricsLog, read_metrics
from weft.training.numerics import (
    count_denormals,
    flush_denormals,
    keep_freed_memory,
    prepare_process,
)
from weft.training.randomness import seed_everything
from weft.training.run import Run
from weft.training.schedules import ScheduleConfig, make_scheduler

__all__ = [
    "Compilation",
    "CompileMode",
    "FitConfig",
    "FitResult",
    "MetricsLog",
    "NonFiniteLoss",
    "Run",
    "ScheduleConfig",
    "Stateful",
    "count_denormals",
    "fit",
    "flush_denormals",
    "graphs_in",
    "keep_freed_memory",
    "load_weights",
    "make_scheduler",
    "prepare_process",
    "read_metrics",
    "seed_everything",
    "worth_compiling",
]
