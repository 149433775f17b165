"""Planning: measure what could be done, and choose what is fastest on this machine."""

from weft.planning.cache import cached_plan, keep_plan, plan_key
from weft.planning.candidate import Candidate, applied, set_threads
from weft.planning.halving import search
from weft.planning.plan import Measured, Plan
from weft.planning.show import show_plan
from weft.planning.worker import Turn, Worker, prepare_workers
from weft.planning.worker_client import pace_address, pace_at
from weft.planning.workload import Work

__all__ = [
    "Candidate",
    "Measured",
    "Plan",
    "Turn",
    "Work",
    "Worker",
    "applied",
    "cached_plan",
    "keep_plan",
    "pace_address",
    "pace_at",
    "plan_key",
    "prepare_workers",
    "search",
    "set_threads",
    "show_plan",
]
