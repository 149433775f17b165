"""Node embeddings: skip-gram over walks, and the sparse form of any."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array

# Rows turned into words at a time, so that memory does not grow with the number of walks.
_ROWS = 4096


def skip_gram(
    walks: Array,
    num_nodes: int,
    *,
    dim: int,
    window: int = 10,
    negatives: int = 5,
    sample: float = 1e-3,
    learning_rate: float = 0.025,
    epochs: int = 5,
    seed: int = 0,
) -> Array:
    """Embeddings by word2vec's skip-gram with negative sampling: walks are sentences.

    It runs in one thread, so that the same seed makes the same embeddings; they do not depend on
    PYTHONHASHSEED. Needs gensim (`pip install 'weft[walks]'`).

    Args:
        walks: int [w, length], nodes 0..n-1, each walk ended by -1 or by the row.
        num_nodes: n.
        dim: width of an embedding.
        window: how far apart in a walk two nodes may be.
        negatives: nodes drawn against each pair.
        sample: threshold above which frequent nodes are passed over at random; 0 for never.
        learning_rate: at the start; it falls linearly.
        epochs: passes over the walks.
        seed: of the initial embeddings and the samples.

    Returns:
        float32 [n, dim]. A node in no walk of at least two nodes has learned nothing: zeros.

    Raises:
        DataError: gensim is not installed, or the walks name nodes that are not there.
    """
    for name, value, low in (
        ("num_nodes", num_nodes, 0),
        ("dim", dim, 1),
        ("window", window, 1),
        ("negatives", negatives, 1),
        ("sample", sample, 0),
        ("learning_rate", learning_rate, 0),
        ("epochs", epochs, 1),
        ("seed", seed, 0),
    ):
        if not value >= low:
            raise ValueError(f"{name} is {value}; it must be at least {low}")
    if seed >= 2**32:
        raise ValueError(f"seed is {seed}; it must be below 2**32")
    walks = np.asarray(walks)
    if walks.ndim != 2 or walks.dtype.kind not in "iu":
        raise DataError(f"walks are integers [w, length], got {walks.dtype}{list(walks.shape)}")
    if walks.size and (walks.max() >= num_nodes or walks.min() < -1):
        bad = walks[(walks >= num_nodes) | (walks < -1)][0]
        raise DataError(f"a walk has node {bad}, out of range for {num_nodes} nodes (-1 ends one)")
    sentences = _Sentences(walks, num_nodes)
    embeddings = np.zeros((num_nodes, dim), dtype=np.float32)
    if not len(sentences.walks):
        return embeddings
    model = _word2vec(
        vector_size=dim,
        window=window,
        negative=negatives,
        sample=sample,
        alpha=learning_rate,
        min_alpha=min(1e-4, learning_rate),
        epochs=epochs,
        seed=seed,
        sg=1,
        hs=0,
        min_count=1,
        workers=1,
        hashfxn=_hash,
    )
    model.build_vocab(sentences)
    model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
    nodes = np.array([int(word) for word in model.wv.index_to_key], dtype=np.int64)
    embeddings[nodes] = model.wv.vectors
    return embeddings


def _word2vec(**settings: Any) -> Any:
    try:
        from gensim.models import Word2Vec
    except ImportError:
        raise DataError(
            "skip-gram embeddings are made with gensim; install it with: pip install 'weft[walks]'"
        ) from None
    return Word2Vec(**settings)


def _hash(word: str) -> int:
    """A hash that is the same in every process, as Python's own is not."""
    return zlib.crc32(word.encode())


class _Sentences:
    """The walks of two nodes or more as lists of words; can be iterated over repeatedly."""

    def __init__(self, walks: Array, num_nodes: int) -> None:
        self.walks = walks[walks[:, 1] >= 0] if walks.shape[1] > 1 else walks[:0]
        self.words = [str(node) for node in range(num_nodes)]

    def __iter__(self) -> Iterator[list[str]]:
        words = self.words
        for first in range(0, len(self.walks), _ROWS):
            for walk in self.walks[first : first + _ROWS].tolist():
                yield [words[node] for node in (walk if walk[-1] >= 0 else walk[: walk.index(-1)])]


def sparse_embedding(x: Array, keep: float) -> Array:
    """x with all but its largest values set to 0.

    Args:
        x: float [n, d].
        keep: the fraction of the n * d values that stay: exactly round(keep * n * d) of them, by
            absolute value over the whole matrix; of equal ones those that come first.

    Returns:
        A copy, [n, d]. A value that is kept may be 0 itself.
    """
    if not 0 <= keep <= 1:
        raise ValueError(f"keep is {keep}; it is a fraction from 0 to 1")
    if not np.isfinite(x).all():
        raise DataError("the embedding holds values that are not finite: nan has no size to order")
    size = np.abs(x).ravel()
    count = round(keep * size.size)
    kept = np.zeros_like(x)
    if count == 0:
        return kept
    # The count-th largest value divides them; only those equal to it need an order of their own.
    border = np.partition(size, size.size - count)[size.size - count]
    stay = size > border
    stay[np.flatnonzero(size == border)[: count - int(stay.sum())]] = True
    np.copyto(kept, x, where=stay.reshape(x.shape))
    return kept
