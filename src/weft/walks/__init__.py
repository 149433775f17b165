"""Walks over graphs, in order of time or not, and the embeddings that skip-gram makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.walks.embeddings import skip_gram as skip_gram
    from weft.walks.embeddings import sparse_embedding as sparse_embedding
    from weft.walks.random_walks import node2vec_walks as node2vec_walks
    from weft.walks.random_walks import temporal_walks as temporal_walks
    from weft.walks.random_walks import uniform_walks as uniform_walks
else:
    __all__ = lazy_names(__name__)
