"""Temporal link prediction: edges split by time, pairs that are no edges, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph
from weft.recipes.links.config import Negatives
from weft.recipes.sparse_recipe import NetworkConfig, check_file
from weft.sources import CATALOGUE, EdgeList, load, read_edge_list
from weft.walks import skip_gram, sparse_embedding, temporal_walks

# Draws of a pair after which the graph is taken to have too few that are no edges.
_ROUNDS = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Pairs of nodes, half of them edges.

    Attributes:
        nodes: int64 [m, 2], from and to.
        labels: bool [m], whether it is an edge.
    """

    nodes: Array
    labels: Array

    def latest(self, count: int) -> Pairs:
        """The last `count` edges with the pairs that came to them."""
        half = len(self.labels) // 2
        chosen = np.r_[half - count : half, 2 * half - count : 2 * half]
        return Pairs(nodes=self.nodes[chosen], labels=self.labels[chosen])


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkSplit:
    """The parts of a temporal graph.

    Attributes:
        train: pairs to learn from.
        validation: pairs to choose the best weights by.
        test: pairs of the latest edges.
        known: edges that embeddings may be made of; all nodes of the graph.
        trained: the edges of the training part, which guesses may be made from.
        earlier: those of them that come before the edges in `train`; None where `train` has all.
        repeated: share of the test's edges that joined the same two nodes, the same way, in
            training already.
    """

    train: Pairs
    validation: Pairs
    test: Pairs
    known: EdgeList
    trained: EdgeList
    earlier: EdgeList | None
    repeated: float


def temporal_edges(
    data: str,
    *,
    files: Sequence[Path] = (),
    data_dir: Path | None = None,
    progress: bool = True,
) -> EdgeList:
    """The timed edges of a data set of the catalogue, or of an edge list `src dst time`.

    Raises:
        DataError: there is no such data set or file, or its edges have no times.
    """
    if data not in CATALOGUE:
        check_file(data)
        edges = read_edge_list(Path(data))
    else:
        table = load(data, files=files, data_dir=data_dir, progress=progress)
        if "time" not in table.schema or len(table) != 1:
            raise DataError(f"the edges of '{data}' have no times; link prediction splits by time")
        graph = table[0]
        edges = EdgeList(
            senders=graph.senders,
            receivers=graph.receivers,
            time=np.asarray(graph.edges["time"], dtype=np.float64),
            ids=node_names(graph),
        )
    if edges.num_edges == 0:
        raise DataError(f"{data} holds no edges")
    return edges


def node_names(graph: Graph) -> Array:
    """What its file calls each node, [n]: int64, or str objects; their numbers if it says nothing.

    See `edge_list_graph`.
    """
    names = text_column(graph, "names")
    if len(names) == graph.num_nodes:
        return np.array([*names, None], dtype=object)[:-1]
    return graph.nodes.get("id", np.arange(graph.num_nodes))


def text_column(graph: Graph, name: str) -> list[str]:
    """The lines of a ragged column of UTF-8 text; none where there is no such column."""
    if name not in graph.ragged:
        return []
    return bytes(graph.ragged[name]).decode().split("\n")[:-1]


def split_links(
    edges: EdgeList,
    *,
    validation: float,
    test: float,
    compat: bool = False,
    apart: bool = False,
    negatives: Negatives = "any",
    seed: int = 0,
) -> LinkSplit:
    """Split by time: the last `test` of the edges, the `validation` before them, the rest.

    To each edge of a part comes a pair that is none: half have another node at the tail, half at
    both ends. Clean: a part's pairs are drawn from the nodes, and checked against the edges, that
    are known by the end of that part, and embeddings are made of the training edges alone. With
    `compat` as in the paper: the validation edges are training edges too, pairs are checked
    against all edges, and embeddings are made of all edges, those of the test included.

    Args:
        edges: with times.
        validation: fraction of all edges.
        test: fraction of all edges.
        compat: the paper's way.
        apart: learn from the latest training edges alone, as many as those for validation and test
            together, at most half: what is known of their nodes is then what the edges before
            them say, as it will be in the test.
        negatives: draw the nodes of a pair that is none from `any` known ones, or from those
            `alive`, which had an edge by the time of the edge that the pair comes to.
        seed: of the pairs.

    Raises:
        DataError: a part would be empty, or the graph has too few pairs that are no edges.
    """
    assert edges.time is not None
    total = edges.num_edges
    test_count, validation_count = round(test * total), round(validation * total)
    train_count = total - test_count - validation_count
    if min(test_count, validation_count, train_count) < 2:
        raise DataError(
            f"{total} edges give parts of {train_count}, {validation_count} and {test_count}; each "
            "needs at least 2: use more edges or other fractions"
        )
    order = np.argsort(edges.time, kind="stable")
    ends = np.column_stack([edges.senders, edges.receivers]).astype(np.int64)[order]
    bounds = {
        "train": (0, total - test_count if compat else train_count),
        "validation": (train_count, train_count + validation_count),
        "test": (total - test_count, total),
    }
    rng = np.random.default_rng(seed)
    parts = {}
    for name, (first, stop) in bounds.items():
        known = ends if compat else ends[:stop]
        times = edges.time[order][: len(known)] if negatives == "alive" else None
        parts[name] = _with_others(ends[first:stop], known, edges.num_nodes, rng, times, first)
    train_stop = bounds["train"][1]
    learned = min(validation_count + test_count, train_stop // 2) if apart else train_stop
    train_keys = np.unique(_keys(ends[:train_stop], edges.num_nodes))
    test_keys = _keys(ends[total - test_count :], edges.num_nodes)
    trained = _some_edges(edges, order[:train_stop])
    return LinkSplit(
        train=parts["train"].latest(learned),
        validation=parts["validation"],
        test=parts["test"],
        known=_some_edges(edges, order) if compat else trained,
        trained=trained,
        earlier=_some_edges(edges, order[: train_stop - learned]) if apart else None,
        repeated=float(np.isin(test_keys, train_keys).mean()),
    )


def _some_edges(edges: EdgeList, numbers: Array) -> EdgeList:
    """Those edges, in the order of the file."""
    assert edges.time is not None
    chosen = np.sort(numbers)
    return EdgeList(
        senders=edges.senders[chosen],
        receivers=edges.receivers[chosen],
        time=edges.time[chosen],
        ids=edges.ids,
    )


def _keys(pairs: Array, num_nodes: int) -> Array:
    return pairs[:, 0] * num_nodes + pairs[:, 1]


def _with_others(
    edges: Array,
    known: Array,
    num_nodes: int,
    rng: np.random.Generator,
    times: Array | None = None,
    first: int = 0,
) -> Pairs:
    """The edges int64 [m, 2] and as many pairs that are none of the `known` ones.

    Args:
        edges: known[first : first + m].
        known: int64 [k, 2], by time.
        num_nodes: n.
        rng: of the draws.
        times: of the known edges [k], to draw of nodes that had one by then; None for of any.
        first: see `edges`.
    """
    nodes = np.unique(known)
    alive = None
    if times is not None:
        # Nodes by their first edge: those alive at an edge's time come first among them.
        _, begun = np.unique(known.ravel(), return_index=True)
        begins = times[begun // 2]
        nodes = nodes[np.argsort(begins, kind="stable")]
        alive = np.searchsorted(np.sort(begins), times[first : first + len(edges)], side="right")
    taken = np.unique(_keys(known, num_nodes))
    pairs = edges.copy()
    left = np.arange(len(pairs))
    for attempt in range(_ROUNDS):

        def drawn(places: Array, patient: bool = attempt < _ROUNDS // 2) -> Array:
            # Where all that are alive are joined already, later nodes have to do.
            if alive is None or not patient:
                return rng.choice(nodes, size=len(places))
            return nodes[rng.integers(alive[places])]

        pairs[left, 1] = drawn(left)
        # A node that is joined to all others leaves no other tail: then both ends change.
        both = left[left % 2 == 1] if attempt < _ROUNDS // 2 else left
        pairs[both, 0] = drawn(both)
        keys = _keys(pairs[left], num_nodes)
        place = np.minimum(np.searchsorted(taken, keys), len(taken) - 1)
        bad = (taken[place] == keys) | (pairs[left, 0] == pairs[left, 1])
        left = left[bad]
        if not len(left):
            return Pairs(
                nodes=np.concatenate([edges, pairs]),
                labels=np.repeat([True, False], len(edges)),
            )
    raise DataError(
        f"{len(taken):,} of the {len(nodes) * (len(nodes) - 1):,} pairs of nodes are "
        "edges; link prediction needs pairs that are not edges"
    )


def walk_embedding(
    edges: EdgeList | Graph,
    config: NetworkConfig,
    walk: Callable[..., Array] = temporal_walks,
    like: Array | None = None,
) -> Array:
    """Embeddings float32 [n, dim] of walks; with config.keep below 1, sparse ones.

    Divided by their root mean square: how far skip-gram moves from its small start depends on the
    number of walks, and the same learning rate should fit any graph.

    Args:
        edges: to walk along.
        config: walks, width, share that is kept, seed.
        walk: how.
        like: embeddings [n, dim] of other edges between the same nodes, which these are turned to.
    """
    paths = walk(edges, walks=config.walks, length=config.length, seed=config.seed)
    embedding = skip_gram(paths, edges.num_nodes, dim=config.dim, seed=config.seed)
    if like is not None:
        embedding = turned(embedding, like)
    return scaled(sparse_embedding(embedding, config.keep))


def turned(x: Array, like: Array) -> Array:
    """x [n, d] rotated as a whole so that its rows are as near to those of `like` as they can be.

    Skip-gram knows no directions: two embeddings of nearly the same walks differ by a rotation,
    which a network that has learned from the one must not see in the other (Procrustes' problem).
    Rows of zeros, of nodes on no walk, do not count.
    """
    both = x.any(axis=1) & like.any(axis=1)
    left, _, right = np.linalg.svd(x[both].astype(np.float64).T @ like[both].astype(np.float64))
    found: Array = (x @ (left @ right)).astype(np.float32)
    return found


def scaled(x: Array) -> Array:
    """x divided by its root mean square; zeros stay."""
    size = float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))) if x.size else 0.0
    return (x / size).astype(np.float32) if size > 0 else x
