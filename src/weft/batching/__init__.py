"""Batching many small graphs: policies, samplers that plan from sizes alone, and a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.batching.config import POLICIES as POLICIES
    from weft.batching.config import BatchingConfig as BatchingConfig
    from weft.batching.config import Oversize as Oversize
    from weft.batching.config import Policy as Policy
    from weft.batching.config import PolicyName as PolicyName
    from weft.batching.loader import GraphLoader as GraphLoader
    from weft.batching.plan import BatchStatistics as BatchStatistics
    from weft.batching.plan import EpochPlan as EpochPlan
    from weft.batching.plan import PlannedBatch as PlannedBatch
    from weft.batching.sampler import GraphSampler as GraphSampler
    from weft.batching.sampler import evaluation_sampler as evaluation_sampler
    from weft.batching.sizes import graph_sizes as graph_sizes
else:
    __all__ = lazy_names(__name__)
