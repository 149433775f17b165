"""Gated graph networks against plain torch, and the choice among candidates."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from weft.graphs import Budget, Graph, assemble, table_from_graphs
from weft.layout import BandedAdjacency, TypedEdges
from weft.layout.csr import edges_of
from weft.models.config import GGNNConfig
from weft.models.ggnn import (
    GGNN,
    GatedGraph,
    candidate_log_probabilities,
    candidate_loss,
    right_choices,
)
from weft.sources.program_graph import CANDIDATE, SLOT

TYPES = 3


def program(rng, nodes, candidates):
    """A random graph with a slot and candidates, the first of which is right."""
    count = 3 * nodes
    role, correct = np.zeros((2, nodes), np.int8)
    places = rng.permutation(nodes)
    role[places[0]] = SLOT
    role[places[1 : candidates + 1]] = CANDIDATE
    correct[places[1]] = 1
    return Graph(
        num_nodes=nodes,
        senders=rng.integers(0, nodes, count),
        receivers=rng.integers(0, nodes, count),
        nodes={
            "subtokens": rng.integers(0, 50, (nodes, 6)).astype(np.int32),
            "role": role,
            "correct": correct,
        },
        edges={"type": rng.integers(0, TYPES, count).astype(np.int8)},
    )


def programs():
    rng = np.random.default_rng(0)
    return table_from_graphs([program(rng, n, c) for n, c in ((8, 2), (15, 5), (11, 3))])


def plain_steps(layer, h, senders, receivers, types):
    """T steps with torch's own operators, edge by edge."""
    edges = sorted(set(zip(senders.tolist(), receivers.tolist(), types.tolist(), strict=True)))
    for _ in range(layer.steps):
        messages = torch.zeros_like(h)
        for sender, receiver, kind in edges:
            message = h[sender] @ layer.weight[kind] + layer.bias[kind]
            messages = messages.index_add(0, torch.tensor([receiver]), message[None])
        h = layer.cell(messages, h)
    return h


@pytest.mark.parametrize("recompute", [False, True])
def test_a_gated_graph_is_its_formula(recompute):
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    senders, receivers = rng.integers(0, 9, (2, 25))
    types = rng.integers(0, TYPES, 25)
    layer = GatedGraph(5, TYPES, 3, recompute=recompute).double()
    nn.init.normal_(layer.bias)
    h = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    expected = plain_steps(layer, h, senders, receivers, types)
    edge_index = torch.from_numpy(np.stack([senders, receivers]))
    found = layer.from_edges(h, edge_index, torch.from_numpy(types))
    torch.testing.assert_close(found, expected)
    learned = (h, *layer.parameters())
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), learned),
        torch.autograd.grad(expected.square().sum(), learned),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_dropout_is_for_training_alone():
    layer = GatedGraph(4, 1, 2, dropout=0.5)
    h, edges = torch.randn(6, 4), torch.tensor([[0, 1, 2], [1, 2, 3]])
    types = torch.zeros(3, dtype=torch.long)
    layer.eval()
    assert torch.equal(layer.from_edges(h, edges, types), layer.from_edges(h, edges, types))
    layer.train()
    assert not torch.equal(layer.from_edges(h, edges, types), layer.from_edges(h, edges, types))


@pytest.mark.parametrize("start", ["subtokens", "bits"])
def test_scores_do_not_depend_on_neighbours_in_the_batch_or_padding(start):
    torch.manual_seed(0)
    table = programs()
    model = GGNN(GGNNConfig(hidden=8, steps=2, num_types=TYPES, vocabulary=50, start=start))

    def scores(batch):
        return model(batch, TypedEdges.of_batch(batch, TYPES))

    alone = torch.cat([scores(assemble(table, [i])) for i in range(3)])
    whole = assemble(table, [0, 1, 2], Budget(nodes=50, edges=120, graphs=6))
    together = scores(whole)
    torch.testing.assert_close(together[:34], alone)
    logs = candidate_log_probabilities(whole, together)
    chances = logs.exp()
    sums = torch.zeros(6).index_add(0, whole.node_graph.long(), chances)
    torch.testing.assert_close(sums, torch.tensor([1.0, 1, 1, 0, 0, 0]))
    assert (chances[whole.nodes["role"] != CANDIDATE] == 0).all()
    loss, graphs = candidate_loss(whole, together)
    parts = [
        candidate_loss(batch, scores(batch)) for batch in (assemble(table, [i]) for i in range(3))
    ]
    assert graphs == 3
    torch.testing.assert_close(loss, sum(part for part, _ in parts))
    (loss / graphs).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def indexing(name):
    words = ("gather", "scatter", "index", "embedding", "sparse", "csr", "take", "nonzero", "weft")
    return any(word in name for word in words)


# torch's own warning about itself.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_the_exported_banded_model_runs_on_dense_hardware():
    torch.manual_seed(0)
    batch = assemble(programs(), [0, 1, 2], Budget(nodes=48, edges=120, graphs=6))
    config = GGNNConfig(hidden=8, steps=3, num_types=TYPES, start="bits")
    model = GGNN(config).eval()
    # The graphs' edges are random, so one block must hold a whole graph.
    adjacency = BandedAdjacency.of_batch(batch, TYPES, block=16)
    exported = torch.export.export(model, (batch, adjacency)).run_decompositions()
    calls = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert any("bmm" in name for name in calls)
    assert not [name for name in calls if indexing(name)]
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(tensor, torch.Tensor):
                assert all(type(length) is int for length in tensor.shape)
    expected = model(batch, TypedEdges.of_batch(batch, TYPES))
    found = exported.module()(batch, adjacency)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    # Names are looked up, so this start is indexed: the search above would find it.
    named = GGNN(GGNNConfig(hidden=8, steps=1, num_types=TYPES, vocabulary=50)).eval()
    looked_up = torch.export.export(named, (batch, adjacency)).graph.nodes
    assert any(indexing(str(node.target)) for node in looked_up)


def two_supergraphs():
    """Two of one shape with other graphs, edges and counts of them, and their bands."""
    rng = np.random.default_rng(0)
    sizes = ((8, 2), (15, 5), (11, 3)), ((13, 4), (9, 2))
    tables = [table_from_graphs([program(rng, n, c) for n, c in some]) for some in sizes]
    budget = Budget(nodes=48, edges=120, graphs=6)
    batches = [assemble(table, range(len(table)), budget) for table in tables]
    return [(batch, BandedAdjacency.of_batch(batch, TYPES, block=16)) for batch in batches]


@pytest.fixture(scope="module")
def exported_model():
    """A model and its program, exported with the first of `two_supergraphs`."""
    torch.manual_seed(0)
    config = GGNNConfig(hidden=8, steps=3, num_types=TYPES, vocabulary=50)
    model = GGNN(config).double().eval()
    first, _ = two_supergraphs()
    with torch.no_grad():
        return model, torch.export.export(model, first)


def scores_edge_by_edge(model, batch):
    senders, receivers, types = edges_of(batch)
    start = model.start(batch)
    h = plain_steps(model.gated, start, senders, receivers, types)
    return model.score(torch.tanh(model.mix(torch.cat([h, start], dim=1)))).flatten()


def test_the_exported_banded_model_takes_another_supergraph_of_its_shape(exported_model):
    model, exported = exported_model
    first, other = two_supergraphs()
    assert first[1].inside != other[1].inside
    run = exported.module()
    for batch, adjacency in (first, other):
        found = run(batch, adjacency)
        torch.testing.assert_close(found, scores_edge_by_edge(model, batch))


RUN_ELSEWHERE = """
import sys, torch
from weft.layout import BandedAdjacency  # says how it is read
_, program, arguments, found = sys.argv
batch, adjacency = torch.load(arguments, weights_only=True)
torch.save(torch.export.load(program).module()(batch, adjacency), found)
"""


def test_a_saved_banded_model_runs_in_a_fresh_process(exported_model, tmp_path):
    model, exported = exported_model
    files = [tmp_path / name for name in ("model.pt2", "arguments.pt", "found.pt")]
    torch.export.save(exported, files[0])
    _, other = two_supergraphs()
    torch.save(other, files[1])
    done = subprocess.run(
        [sys.executable, "-c", RUN_ELSEWHERE, *map(str, files)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # What torch says when it unpickles anything at all.
    assert "weights_only" not in done.stderr
    torch.testing.assert_close(torch.load(files[2]), scores_edge_by_edge(model, other[0]))


# Of torch and onnxscript about themselves.
@pytest.mark.filterwarnings("ignore")
def test_the_banded_model_runs_as_onnx(exported_model, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    model, exported = exported_model
    torch.onnx.export(exported, dynamo=True, verbose=False).save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = [taken.name for taken in session.get_inputs()]
    for batch, adjacency in two_supergraphs():
        leaves = tree_leaves((batch, adjacency))
        values = {n: leaf.numpy() for n, leaf in zip(names, leaves, strict=True)}
        (found,) = session.run(None, values)
        torch.testing.assert_close(torch.from_numpy(found), scores_edge_by_edge(model, batch))


def test_label_smoothing_is_that_of_torch():
    batch = assemble(programs(), [1])
    scores = torch.randn(batch.num_nodes, dtype=torch.float64, requires_grad=True)
    candidates = batch.nodes["role"] == CANDIDATE
    right = int(batch.nodes["correct"][candidates].argmax())
    for smoothing in (0.0, 0.2):
        found, _ = candidate_loss(batch, scores, smoothing=smoothing)
        expected = nn.functional.cross_entropy(
            scores[candidates], torch.tensor(right), label_smoothing=smoothing
        )
        torch.testing.assert_close(found, expected)
        slope, reference = (torch.autograd.grad(x, scores)[0] for x in (found, expected))
        torch.testing.assert_close(slope, reference)


def test_the_best_candidate_is_the_choice():
    batch = assemble(programs(), [0, 1, 2], Budget(nodes=40, edges=120, graphs=5))
    scores = torch.zeros(40)
    assert not right_choices(batch, scores).any()
    scores[batch.nodes["correct"] == 1] = 1.0
    # Other nodes do not take part.
    scores[batch.nodes["role"] == SLOT] = math.inf
    assert right_choices(batch, scores).tolist() == [True, True, True, False, False]
    wrong = (batch.nodes["role"] == CANDIDATE) & (batch.nodes["correct"] == 0)
    scores[wrong] = 2.0
    assert not right_choices(batch, scores).any()


def test_settings_that_make_no_model_are_refused():
    with pytest.raises(ValueError, match="start is 'names'; choose from subtokens, bits"):
        GGNNConfig(start="names")
    with pytest.raises(ValueError, match="hidden is 1"):
        GGNNConfig(hidden=1)
    with pytest.raises(ValueError, match="steps is 0"):
        GatedGraph(4, 1, 0)
    with pytest.raises(ValueError, match=r"dropout is 1\.0"):
        GatedGraph(4, 1, 1, dropout=1.0)
    batch = assemble(programs(), [0])
    with pytest.raises(ValueError, match=r"smoothing is 1\.5"):
        candidate_loss(batch, torch.zeros(batch.num_nodes), smoothing=1.5)


def test_scores_of_other_nodes_do_not_matter_however_large():
    batch = assemble(programs(), [0, 1, 2])
    scores = torch.randn(batch.num_nodes, requires_grad=True)
    others = batch.nodes["role"] != CANDIDATE
    expected, _ = candidate_loss(batch, scores)
    (slope,) = torch.autograd.grad(expected, scores)
    for value in (1e30, math.inf, math.nan):
        moved = scores.detach().masked_fill(others, value).requires_grad_()
        found, _ = candidate_loss(batch, moved)
        assert torch.equal(found, expected)
        assert torch.equal(torch.autograd.grad(found, moved)[0], slope)


def test_a_compiled_gated_graph_learns_as_the_plain_one():
    rng = np.random.default_rng(0)
    ends, types = rng.integers(0, 9, (2, 25)), rng.integers(0, TYPES, 25)
    adjacency = TypedEdges.of(*ends, types, 9, TYPES)
    layer, h = GatedGraph(5, TYPES, 2), torch.randn(9, 5, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    learned = (h, *layer.parameters())
    found, expected = (f(h, adjacency).square().sum() for f in (compiled, layer))
    for one, other in zip(
        torch.autograd.grad(found, learned), torch.autograd.grad(expected, learned), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("edge_index", "edge_type"),
    [
        (torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, dtype=torch.long)),
        (torch.zeros(2, 3, dtype=torch.long), torch.zeros(3, 1, dtype=torch.long)),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.long)),
    ],
)
def test_edges_of_another_shape_are_refused(edge_index, edge_type):
    with pytest.raises(ValueError, match=r"edge_index int \[2, E\] and edge_type int \[E\] needed"):
        GatedGraph(4, 1, 1).from_edges(torch.randn(5, 4), edge_index, edge_type)
