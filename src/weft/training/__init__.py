"""Training: the loop, checkpoints that resume to the bit, metrics, schedules, runs as folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.training.batches import Stateful as Stateful
    from weft.training.batches import graphs_in as graphs_in
    from weft.training.checkpoint import load_weights as load_weights
    from weft.training.compilation import Compilation as Compilation
    from weft.training.compilation import worth_compiling as worth_compiling
    from weft.training.config import CompileMode as CompileMode
    from weft.training.config import FitConfig as FitConfig
    from weft.training.config import FitResult as FitResult
    from weft.training.config import NonFiniteLoss as NonFiniteLoss
    from weft.training.config import ScheduleConfig as ScheduleConfig
    from weft.training.loop import fit as fit
    from weft.training.metrics import MetricsLog as MetricsLog
    from weft.training.metrics import read_metrics as read_metrics
    from weft.training.numerics import count_denormals as count_denormals
    from weft.training.numerics import flush_denormals as flush_denormals
    from weft.training.numerics import keep_freed_memory as keep_freed_memory
    from weft.training.numerics import prepare_process as prepare_process
    from weft.training.randomness import seed_everything as seed_everything
    from weft.training.run import Run as Run
    from weft.training.schedules import make_scheduler as make_scheduler
    from weft.training.step import LossStep as LossStep
    from weft.training.step import Mean as Mean
    from weft.training.step import Step as Step
else:
    __all__ = lazy_names(__name__)
