"""Guesses and features of links: what plain counting gives, from earlier edges alone."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from temporal_graphs import circles

from weft.recipes.links.config import LinksConfig
from weft.recipes.links.data import split_links, turned
from weft.recipes.links.history import (
    FEATURES,
    LinkHistory,
    feature_rows,
    pair_features,
    trivial_scores,
)
from weft.recipes.links.prediction import LinkPredictor, predict_links
from weft.recipes.links.recipe import LINKS
from weft.recipes.links.training import PreparedLinks, link_logits, make_fnn, prepare_links
from weft.recipes.sparse_training import train_network
from weft.sources import EdgeList
from weft.training import Run

SMALL: dict[str, Any] = {"dim": 4, "hidden": (8,), "batch_size": 64, "epochs": 2, "walks": 3}
NODES = 7


def graph(rows: list[tuple[int, int, int]], nodes: int = NODES) -> EdgeList:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return EdgeList(
        senders=table[:, 0].astype(np.int32),
        receivers=table[:, 1].astype(np.int32),
        time=table[:, 2].astype(np.float64),
        ids=np.arange(nodes),
    )


ALL_PAIRS = np.array([(a, b) for a in range(NODES) for b in range(NODES)])
streams = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1), st.integers(0, 9)), max_size=25
)


@settings(deadline=None, max_examples=25)
@given(streams)
def test_guesses_are_what_counting_by_hand_gives(rows: list[tuple[int, int, int]]) -> None:
    history = LinkHistory.of(graph(rows))
    history.check()
    found = trivial_scores(history, ALL_PAIRS)
    events = nx.MultiDiGraph([(a, b) for a, b, _ in rows])
    events.add_nodes_from(range(NODES))
    plain = nx.Graph(events)
    plain.remove_edges_from(list(nx.selfloop_edges(plain)))
    latest = [
        max((sum(u <= t for *_, u in rows) for a, b, t in rows if node in (a, b)), default=0)
        for node in range(NODES)
    ]
    for row, (a, b) in enumerate(ALL_PAIRS.tolist()):
        assert found["degree product"][row] == events.out_degree(a) * events.in_degree(b)
        assert found["seen before"][row] == events.has_edge(a, b)
        shared = set(plain[a]) if a == b else set(nx.common_neighbors(plain, a, b))
        assert found["common neighbours"][row] == len(shared)
        assert found["most recent"][row] == (latest[a] + latest[b]) / 2


@settings(deadline=None, max_examples=12)
@given(streams)
def test_features_are_what_they_are_called(rows: list[tuple[int, int, int]]) -> None:
    history = LinkHistory.of(graph(rows))
    found = pair_features(history, ALL_PAIRS)
    assert set(FEATURES) == set(found)

    def age(chosen: list[int]) -> float:
        """Of the latest of some times: the edges after it."""
        later = sum(t > max(chosen) for *_, t in rows) if chosen else len(rows)
        return float(np.log1p(later))

    for row, pair in enumerate(ALL_PAIRS.tolist()):
        expected: dict[str, float] = {}
        for end, node in zip(("sender", "receiver"), pair, strict=True):
            sent = [t for a, _, t in rows if a == node]
            received = [t for _, b, t in rows if b == node]
            others = {a + b - node for a, b, _ in rows if node in (a, b)} - {node}
            expected |= {
                f"{end}_sent": np.log1p(len(sent)),
                f"{end}_received": np.log1p(len(received)),
                f"{end}_neighbours": np.log1p(len(others)),
                f"{end}_age_sent": age(sent),
                f"{end}_age_received": age(received),
                f"{end}_has_sent": bool(sent),
                f"{end}_has_received": bool(received),
            }
        for way, ends in (("there", pair), ("back", pair[::-1])):
            times = [t for a, b, t in rows if [a, b] == ends]
            expected |= {
                f"{way}_count": np.log1p(len(times)),
                f"{way}_age": age(times),
                f"{way}_seen": bool(times),
            }
        for name, value in expected.items():
            assert found[name][row] == pytest.approx(value), name


def test_neither_unit_nor_origin_of_the_times_matters() -> None:
    edges = circles()
    assert edges.time is not None
    first, other = (
        feature_rows(LinkHistory.of(each), ALL_PAIRS, FEATURES)
        for each in (edges, replace(edges, time=3600 * edges.time + 1e9))
    )
    assert np.array_equal(first, other)


def test_a_history_that_is_damaged() -> None:
    whole = LinkHistory.of(circles())
    pairs = whole.pairs.copy()
    pairs[0, 1] = whole.num_nodes
    for damage in (
        {"pairs": pairs},
        {"pairs": whole.pairs[::-1]},
        {"counts": whole.counts - 1},
        {"last": whole.last + whole.edges},
        {"last": whole.last[1:]},
        {"counts": whole.counts.astype(np.float64)},
    ):
        with pytest.raises(ValueError, match="the history's"):
            replace(whole, **damage).check()


def prepared(edges: EdgeList | None = None, **changed: Any) -> PreparedLinks:
    return prepare_links(edges or circles(), LinksConfig(**{**SMALL, **changed}))


def changed_after(edges: EdgeList, share: float) -> EdgeList:
    """The same up to that share of its edges by time; the later ones have other ends."""
    assert edges.time is not None
    late = np.argsort(edges.time, kind="stable")[round(share * edges.num_edges) :]
    senders, receivers = edges.senders.copy(), edges.receivers.copy()
    # Ends change places among each other, so that no node is lost.
    senders[late], receivers[late] = np.roll(edges.receivers[late], 3), edges.senders[late]
    return replace(edges, senders=senders, receivers=receivers)


@pytest.mark.parametrize("negatives", ["any", "alive"])
def test_later_edges_change_nothing_that_is_learned(negatives: Any) -> None:
    edges = circles()
    one, other = (
        prepared(each, negatives=negatives) for each in (edges, changed_after(edges, 0.7))
    )
    assert not np.array_equal(one.split.test.nodes, other.split.test.nodes)
    assert one.features is not None
    assert other.features is not None
    assert np.array_equal(one.split.train.nodes, other.split.train.nodes)
    assert np.array_equal(one.embedding, other.embedding)
    assert torch.equal(one.features.early, other.features.early)
    assert torch.equal(one.features.scale, other.features.scale)
    assert torch.equal(one.features.rows["train"], other.features.rows["train"])


def test_what_is_learned_from_comes_after_what_is_known_of_it() -> None:
    edges = circles()
    split = split_links(edges, validation=0.1, test=0.2, apart=True)
    whole = split_links(edges, validation=0.1, test=0.2)
    assert split.earlier is not None
    assert split.earlier.num_edges == 840 - 360
    assert len(split.train.labels) == 2 * 360
    # The same pairs as without features: for validation, test, and those that are learned from.
    for part in ("validation", "test"):
        assert np.array_equal(getattr(split, part).nodes, getattr(whole, part).nodes)
    assert np.array_equal(split.train.nodes, whole.train.latest(360).nodes)
    # Edges after a moment change no feature of the pairs that come before them.
    one, other = prepared(edges).features, prepared(changed_after(edges, 0.4)).features
    assert one is not None
    assert other is not None
    history = LinkHistory.of(split.earlier)
    values = feature_rows(history, split.train.nodes, FEATURES)
    assert torch.allclose(
        one.rows["train"],
        torch.from_numpy(((values - one.scale[0].numpy()) * one.scale[1].numpy()).clip(-5, 5)),
    )
    assert np.array_equal(
        *(
            feature_rows(
                LinkHistory.of(
                    split_links(each, validation=0.1, test=0.2, apart=True).earlier  # type: ignore[arg-type]
                ),
                split.train.nodes,
                FEATURES,
            )
            for each in (edges, changed_after(edges, 0.4))
        )
    )


def test_alive_nodes_have_had_an_edge() -> None:
    # Node k writes to node 0 at time k: before that nobody knows it.
    rows = [(k, (k * 7) % max(1, k // 2), k) for k in range(1, 200)]
    split = split_links(graph(rows, 200), validation=0.1, test=0.2, negatives="alive")
    late = 0
    for part in ("train", "validation", "test"):
        pairs = getattr(split, part)
        edges, others = pairs.nodes[pairs.labels], pairs.nodes[~pairs.labels]
        # Of the first few, all are joined to each other.
        late += int((others.max(axis=1) > edges.max(axis=1)).sum())
    assert late <= 3
    free = split_links(graph(rows, 200), validation=0.1, test=0.2)
    assert (free.train.nodes[139:].max(axis=1) > free.train.nodes[:139].max(axis=1)).sum() > 30


def test_an_embedding_is_turned_back() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 5))
    x[4] = 0
    rotation, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    assert np.allclose(turned(x @ rotation, x), x, atol=1e-5)


def test_a_run_predicts_from_all_edges_as_it_was_tested(tmp_path: Path) -> None:
    edges = circles()
    data = prepared(edges)
    with Run.create(tmp_path / "run", data.config, tensorboard=False) as run:
        trained = train_network(data, run=run, quiet=True)
        pairs = data.split.test.nodes
        (tmp_path / "pairs.txt").write_text("".join(f"{a} {b}\n" for a, b in pairs.tolist()))
        # So far it knows the training edges, as in the test.
        before = LinkPredictor.load(tmp_path / "run").probabilities(pairs)
        assert data.features is not None
        vectors = torch.from_numpy(data.embedding)
        tested = link_logits(trained.model, vectors, pairs, data.features.rows["test"])
        assert np.allclose(before, 1 / (1 + np.exp(-tested.astype(np.float64))), atol=1e-6)
        found = predict_links([tmp_path / "run"], tmp_path / "pairs.txt")
        assert (found.edges, found.of_edges) == (840, 1200)
        data.refit(tmp_path / "run")
    found = predict_links([tmp_path / "run"], tmp_path / "pairs.txt")
    assert (found.edges, found.of_edges) == (1200, 1200)
    kept = LinkPredictor.load(tmp_path / "run")
    scale = data.features.scale.numpy()
    rows = (feature_rows(LinkHistory.of(edges), pairs, FEATURES) - scale[0]) * scale[1]
    logits = link_logits(
        trained.model,
        kept.kept.tensors["embedding"],
        pairs,
        torch.from_numpy(rows.clip(-5, 5).astype(np.float32)),
    )
    expected = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert np.allclose([row[2] for row in found.rows], expected, atol=1e-6)
    # The embeddings point where those of the test did.
    assert vectors.shape == kept.kept.tensors["embedding"].shape
    assert float((vectors * kept.kept.tensors["embedding"]).sum()) > 0


def test_nodes_without_an_edge_are_named(tmp_path: Path) -> None:
    edges = circles()
    strange = replace(edges, ids=np.arange(42))
    for changes in ({}, {"features": False}):
        folder = tmp_path / f"run-{len(changes)}"
        data = prepared(strange, walks=100, **changes)
        with Run.create(folder, data.config, tensorboard=False) as run:
            train_network(data, run=run, quiet=True)
            data.refit(folder)
        (tmp_path / "pairs.txt").write_text("0 1\n40 2\n3 41\n40 41\n")
        found = predict_links([folder], tmp_path / "pairs.txt")
        assert [row[3] for row in found.rows] == ["", "40", "41", "40 41"]
        assert (found.unknown, found.pairs) == ([40, 41], 3)


def test_settings_that_take_the_features_away() -> None:
    assert LinksConfig().features
    compat = LinksConfig(compat=True).settled()
    assert (compat.features, compat.length, compat.alpha) == (False, 6, "printed")
    assert compat.settled() == compat
    again = LinksConfig(compat=True).settled(asdict(compat))
    assert again == compat
    older = LinksConfig(compat=True).settled({"compat": True, "length": 5})
    assert (older.length, older.alpha) == (5, "slr")
    # Runs of the first versions do not say that they have none.
    assert not LINKS.settled(LinksConfig(), {"data": "edges.txt"}).features
    assert LINKS.settled(LinksConfig(), {"features": True}).features
    config = LinksConfig(features=False)
    assert make_fnn(config).layers[0].in_features == 16
    assert make_fnn(LinksConfig()).layers[0].in_features == 16 + len(FEATURES)
    assert prepared(features=False).features is None
