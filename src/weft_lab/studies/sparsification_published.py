"""Figures of Peng, Gurevin et al. (2022), "Towards Sparsification of Graph Neural Networks"."""

from __future__ import annotations

COLUMNS = ("slr_dense", "slr_sparse", "training_dense", "training_sparse")
"""SLR and sparse training, each with dense and with sparse embeddings."""

TABLE_II = {
    "ia-email": ("0.773", "0.056", "0.094", "0.0067"),
    "wiki-talk": ("0.773", "0.069", "0.094", "0.0084"),
    "stackoverflow": ("0.773", "0.236", "0.094", "0.0286"),
    "brain": ("0.773", "0.640", "0.094", "0.0776"),
}
"""Training FLOPs over those of dense training at a sparsity of 0.906, as printed, by COLUMNS."""
