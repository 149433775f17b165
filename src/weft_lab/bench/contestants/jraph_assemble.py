"""jraph: dynamically_batch over GraphsTuples of numpy arrays, as its users run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import jraph
import numpy as np


def prepare(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One padded batch a step."""
    arrays = dict(np.load(case["arrays"]))
    nodes, edges = arrays["node_offsets"], arrays["edge_offsets"]
    graphs = [
        jraph.GraphsTuple(
            nodes={
                "z": arrays["z"][nodes[i] : nodes[i + 1]],
                "pos": arrays["pos"][nodes[i] : nodes[i + 1]],
            },
            edges=None,
            senders=arrays["senders"][edges[i] : edges[i + 1]],
            receivers=arrays["receivers"][edges[i] : edges[i + 1]],
            globals=arrays["y"][i : i + 1],
            n_node=np.array([nodes[i + 1] - nodes[i]]),
            n_edge=np.array([edges[i + 1] - edges[i]]),
        )
        for i in range(len(nodes) - 1)
    ]
    rng = np.random.default_rng(0)

    def stream() -> Iterator[Any]:
        while True:
            for i in rng.permutation(len(graphs)):
                yield graphs[i]

    budget = case["budget"]
    source = jraph.dynamically_batch(
        stream(), n_node=budget["nodes"], n_edge=budget["edges"], n_graph=budget["graphs"]
    )

    def step() -> None:
        next(source)

    return step, {"jraph": version("jraph"), "jax": version("jax")}
