"""JAX: SchNet and MPEU with jraph, dm-haiku and optax; batches by jraph.dynamically_batch."""
# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call"

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

_LATENT, _LAYERS, _CENTRES = 64, 3, 150
_ELEMENTS = np.array([1, 6, 7, 8, 9])
# The same model in every framework, or the times mean nothing.
_PARAMETERS = {"schnet": 80_352, "mpeu": 173_152}


def _batched(graphs: Sequence[Any], budget: dict[str, int]) -> Iterator[Any]:
    """Endless padded batches of shuffled graphs."""
    import jraph

    rng = np.random.default_rng(0)

    def stream() -> Iterator[Any]:
        while True:
            for i in rng.permutation(len(graphs)):
                yield graphs[i]

    batches: Iterator[Any] = jraph.dynamically_batch(
        stream(), n_node=budget["nodes"], n_edge=budget["edges"], n_graph=budget["graphs"]
    )
    return batches


def _graphs(path: str, of_nodes: Callable[..., Any], of_edges: Callable[..., Any]) -> list[Any]:
    """GraphsTuples of numpy arrays, with what is made of atoms and positions on nodes and edges."""
    import jraph

    arrays = dict(np.load(path))
    nodes, edges = arrays["node_offsets"], arrays["edge_offsets"]
    graphs = []
    for i in range(len(nodes) - 1):
        z, pos = (arrays[name][nodes[i] : nodes[i + 1]] for name in ("z", "pos"))
        ends = [arrays[name][edges[i] : edges[i + 1]] for name in ("senders", "receivers")]
        graphs.append(
            jraph.GraphsTuple(
                nodes=of_nodes(z, pos),
                edges=of_edges(pos, *ends),
                senders=ends[0],
                receivers=ends[1],
                globals=arrays["y"][i : i + 1],
                n_node=np.array([len(pos)]),
                n_edge=np.array([len(ends[0])]),
            )
        )
    return graphs


def batches(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One padded batch a step, as users of jraph make it."""
    graphs = _graphs(case["arrays"], lambda z, pos: {"z": z, "pos": pos}, lambda *_: None)
    source = _batched(graphs, case["budget"])

    def step() -> None:
        next(source)

    return step, {"jraph": version("jraph"), "jax": version("jax")}


def _softplus(x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return jax.nn.softplus(x) - jnp.log(2.0)


def _mlp(*widths: int, activate_final: bool = False) -> Any:
    import haiku as hk

    return hk.nets.MLP(widths, with_bias=False, activation=_softplus, activate_final=activate_final)


def _network(model: str) -> Callable[[Any], Any]:
    """Energies [G] of a GraphsTuple: element numbers on the nodes, distances in Å on the edges."""
    import haiku as hk
    import jax.numpy as jnp
    import jraph

    def network(graph: Any) -> Any:
        nodes, graphs = graph.nodes.shape[0], graph.n_node.shape[0]
        h = hk.Embed(len(_ELEMENTS), _LATENT)(graph.nodes)
        e = jnp.exp(-((graph.edges[:, None] - 0.1 * jnp.arange(_CENTRES)) ** 2) / 0.1)
        for _ in range(_LAYERS):
            if model == "mpeu":
                ends = [h[graph.senders], h[graph.receivers], e]
                e = _mlp(2 * _LATENT, _LATENT)(jnp.concatenate(ends, axis=-1))
            filters = _mlp(_LATENT, _LATENT, activate_final=True)(e)
            messages = filters * hk.Linear(_LATENT, with_bias=False)(h)[graph.senders]
            received = jraph.segment_mean(messages, graph.receivers, nodes)
            h = h + _mlp(_LATENT, _LATENT)(received)
        energies = _mlp(_LATENT // 2, 1)(h)[:, 0]
        of_graph = jnp.repeat(jnp.arange(graphs), graph.n_node, total_repeat_length=nodes)
        return jraph.segment_mean(energies, of_graph, graphs)

    return network


def molecules(case: dict[str, Any]) -> tuple[Callable[[], dict[str, float]], dict[str, str]]:
    """A batch and an update of case["model"] a step, padded to case["budget"]."""
    import haiku as hk
    import jax
    import jax.numpy as jnp
    import jraph
    import optax

    def elements(z: Any, _: Any) -> Any:
        return np.searchsorted(_ELEMENTS, z).astype(np.int32)

    def distances(pos: Any, senders: Any, receivers: Any) -> Any:
        return np.linalg.norm(pos[senders] - pos[receivers], axis=1)

    source = _batched(_graphs(case["arrays"], elements, distances), case["budget"])
    network = hk.without_apply_rng(hk.transform(_network(case["model"])))
    first = next(source)
    params = network.init(jax.random.PRNGKey(0), first)
    parameters = sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))
    assert parameters == _PARAMETERS[case["model"]], parameters
    optimizer = optax.adam(optax.exponential_decay(1e-4, 100_000, 0.96))

    def loss(params: Any, graph: Any) -> Any:
        mask = jraph.get_graph_padding_mask(graph)
        error = (network.apply(params, graph) - graph.globals) * mask
        return jnp.sum(error**2) / jnp.sum(mask), jnp.sum(mask)

    @jax.jit  # type: ignore[untyped-decorator]
    def update(params: Any, state: Any, graph: Any) -> Any:
        (_, count), gradient = jax.value_and_grad(loss, has_aux=True)(params, graph)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, count

    state = optimizer.init(params)

    def step() -> dict[str, float]:
        nonlocal params, state
        start = time.perf_counter()
        graph = next(source)
        batching = time.perf_counter() - start
        # jax computes in the background: without waiting the next batch would hide in this step.
        params, state, count = jax.block_until_ready(update(params, state, graph))
        return {"graphs": int(count), "batching": batching}

    names = ("jax", "jraph", "dm-haiku", "optax")
    return step, {name: version(name) for name in names}
