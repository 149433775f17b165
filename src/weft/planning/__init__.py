"""Planning: measure what could be done, and choose what is fastest on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.planning.candidate import Candidate as Candidate
    from weft.planning.candidate import applied as applied
    from weft.planning.candidate import set_threads as set_threads
    from weft.planning.explain import show_plan as show_plan
    from weft.planning.plan import Measured as Measured
    from weft.planning.plan import Plan as Plan
    from weft.planning.search import best_plan as best_plan
    from weft.planning.task import cached_plan as cached_plan
    from weft.planning.task import keep_plan as keep_plan
    from weft.planning.task import plan_key as plan_key
    from weft.planning.worker import Turn as Turn
    from weft.planning.worker import Work as Work
    from weft.planning.worker import Worker as Worker
    from weft.planning.worker import prepare_workers as prepare_workers
    from weft.planning.worker_client import pace_address as pace_address
    from weft.planning.worker_client import pace_at as pace_at
else:
    __all__ = lazy_names(__name__)
