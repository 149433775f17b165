"""What link prediction learns from: disjoint parts, pairs that are no edges, no look ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from temporal_graphs import circles, write_edges

from weft.errors import DataError
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.data import (
    LinkSplit,
    Pairs,
    scaled,
    split_links,
    temporal_edges,
    walk_embedding,
)
from weft.sources import EdgeList

EDGES = circles()
PARTS = ("train", "validation", "test")


def keys(pairs: Pairs, *, edges: bool) -> list[tuple[int, int]]:
    return [(a, b) for a, b in pairs.nodes[pairs.labels == edges].tolist()]


def in_order(edges: EdgeList) -> list[tuple[int, int]]:
    assert edges.time is not None
    order = np.argsort(edges.time, kind="stable")
    return list(zip(edges.senders[order].tolist(), edges.receivers[order].tolist(), strict=True))


def split(**settings: object) -> LinkSplit:
    return split_links(EDGES, **{"validation": 0.1, "test": 0.2, **settings})  # type: ignore[arg-type]


def test_clean_parts_follow_each_other_in_time() -> None:
    found = split()
    edges = in_order(EDGES)
    assert [keys(getattr(found, part), edges=True) for part in PARTS] == [
        edges[:840],
        edges[840:960],
        edges[960:],
    ]
    assert sorted(in_order(found.known)) == sorted(edges[:840])
    assert found.known.num_nodes == EDGES.num_nodes
    assert found.repeated == np.mean([edge in set(edges[:840]) for edge in edges[960:]])


def test_the_papers_parts_overlap_and_look_ahead() -> None:
    found = split(compat=True)
    edges = in_order(EDGES)
    assert [keys(getattr(found, part), edges=True) for part in PARTS] == [
        edges[:960],
        edges[840:960],
        edges[960:],
    ]
    assert in_order(found.known) == edges


def test_pairs_are_none_of_the_known_edges() -> None:
    found, edges = split(), in_order(EDGES)
    for part, stop in zip(PARTS, (840, 960, 1200), strict=True):
        pairs = getattr(found, part)
        assert pairs.labels.sum() * 2 == len(pairs.labels)
        others, known = keys(pairs, edges=False), set(edges[:stop])
        assert not known & set(others)
        assert all(a != b for a, b in others)
        assert {node for pair in others for node in pair} <= {n for edge in known for n in edge}
    # Training knows nothing of later edges: some of its pairs become edges one day.
    assert set(keys(found.train, edges=False)) & set(edges[840:])
    assert not set(keys(split(compat=True).train, edges=False)) & set(edges)


def test_half_keep_their_head() -> None:
    pairs = split().train
    edges, others = pairs.nodes[pairs.labels], pairs.nodes[~pairs.labels]
    assert (edges[0::2, 0] == others[0::2, 0]).all()
    assert (edges[1::2, 0] != others[1::2, 0]).mean() > 0.9


def test_a_seed_gives_the_same_pairs() -> None:
    assert np.array_equal(split(seed=1).test.nodes, split(seed=1).test.nodes)
    assert not np.array_equal(split(seed=1).test.nodes, split(seed=2).test.nodes)


def test_a_hub_that_knows_everybody() -> None:
    tails = np.tile(np.arange(1, 12), 3)
    star = EdgeList(
        senders=np.zeros(33, dtype=np.int32),
        receivers=tails.astype(np.int32),
        time=np.arange(33.0),
        ids=np.arange(12),
    )
    found = split_links(star, validation=0.1, test=0.2)
    assert all(a != 0 for a, _ in keys(found.test, edges=False))


def test_nothing_but_edges() -> None:
    ends = np.array([(a, b) for a in range(4) for b in range(4) if a != b] * 3, dtype=np.int32)
    complete = EdgeList(
        senders=ends[:, 0], receivers=ends[:, 1], time=np.arange(36.0), ids=np.arange(4)
    )
    with pytest.raises(DataError, match="12 of the 12 pairs of nodes are edges"):
        split_links(complete, validation=0.2, test=0.2)


def test_too_few_edges() -> None:
    few = replace(
        EDGES,
        senders=EDGES.senders[:6],
        receivers=EDGES.receivers[:6],
        time=np.arange(6.0),
    )
    with pytest.raises(DataError, match="6 edges give parts of 4, 1 and 1"):
        split_links(few, validation=0.1, test=0.2)


def test_edges_of_a_file(tmp_path: Path) -> None:
    found = temporal_edges(str(write_edges(EDGES, tmp_path / "edges.txt")))
    assert in_order(found) == in_order(EDGES)
    with pytest.raises(DataError, match="neither a file nor a data set"):
        temporal_edges("no-such-thing")
    (tmp_path / "none.txt").write_text("# nothing\n")
    with pytest.raises(DataError, match=r"none\.txt holds no edges"):
        temporal_edges(str(tmp_path / "none.txt"))
    with pytest.raises(DataError, match="the edges of 'rmat' have no times"):
        temporal_edges("rmat", data_dir=tmp_path, progress=False)


def test_embeddings_are_scaled_and_as_sparse_as_asked() -> None:
    x = walk_embedding(split().known, LinksConfig(dim=6, walks=3, length=4, keep=0.25))
    assert x.shape == (40, 6)
    assert x.dtype == np.float32
    assert np.count_nonzero(x) == 60
    assert np.sqrt(np.mean(x**2)) == pytest.approx(1, rel=1e-5)
    assert not scaled(np.zeros((2, 2), dtype=np.float32)).any()
