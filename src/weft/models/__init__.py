"""Models that read a GraphBatch; each is the proof of one technique."""

from weft.models.gcn import GCN, GCNConfig, GCNLayer, with_first_product

__all__ = ["GCN", "GCNConfig", "GCNLayer", "with_first_product"]
