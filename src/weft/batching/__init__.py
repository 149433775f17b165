"""Batching many small graphs: policies, samplers that plan from sizes alone, and a loader."""

from weft.batching.config import POLICIES, BatchingConfig, Oversize, Policy, PolicyName
from weft.batching.loader import GraphLoader
from weft.batching.plan import BatchStatistics, EpochPlan, PlannedBatch
from weft.batching.sampler import GraphSampler, evaluation_sampler
from weft.batching.sizes import graph_sizes

__all__ = [
    "POLICIES",
    "BatchStatistics",
    "BatchingConfig",
    "EpochPlan",
    "GraphLoader",
    "GraphSampler",
    "Oversize",
    "PlannedBatch",
    "Policy",
    "PolicyName",
    "evaluation_sampler",
    "graph_sizes",
]
