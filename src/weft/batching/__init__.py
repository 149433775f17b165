"""Batching many small graphs: policies, samplers that plan from sizes alone, and a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.batching.epoch_plan import BatchStatistics as BatchStatistics
    from weft.batching.epoch_plan import EpochPlan as EpochPlan
    from weft.batching.epoch_plan import PlannedBatch as PlannedBatch
    from weft.batching.loader import GraphLoader as GraphLoader
    from weft.batching.policies import POLICIES as POLICIES
    from weft.batching.policies import BatchingConfig as BatchingConfig
    from weft.batching.policies import Oversize as Oversize
    from weft.batching.policies import Policy as Policy
    from weft.batching.policies import PolicyName as PolicyName
    from weft.batching.sampler import GraphSampler as GraphSampler
    from weft.batching.sampler import evaluation_sampler as evaluation_sampler
    from weft.batching.sampler import graph_sizes as graph_sizes
else:
    __all__ = lazy_names(__name__)
