"""Walks over graphs, in order of time or not, and the embeddings that skip-gram makes of them."""

from weft.walks.biased import node2vec_walks, uniform_walks
from weft.walks.embeddings import skip_gram, sparse_embedding
from weft.walks.temporal import temporal_walks

__all__ = [
    "node2vec_walks",
    "skip_gram",
    "sparse_embedding",
    "temporal_walks",
    "uniform_walks",
]
