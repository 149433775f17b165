"""What a gated graph network runs as Triton kernels: messages by type, gates, blocks of edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from typed_graphs import banded, typed_graph

from weft.graphs import assemble, table_from_graphs
from weft.kernels import gru
from weft.kernels.backends import use_backend
from weft.kernels.recurrent import _gate_gradients_of, _gated_states
from weft.kernels.triton import typed
from weft.kernels.triton.builds import distinct
from weft.kernels.triton.launch import KERNELS, recording
from weft.kernels.triton_certificate import _records
from weft.layout import DenseAdjacency, TypedEdges, csr
from weft.models.ggnn import GatedGraph


def edges(nodes=40, count=150, types=3, reach=5):
    rng = np.random.default_rng(0)
    senders = rng.integers(0, nodes, count)
    receivers = np.clip(senders + rng.integers(-reach, reach + 1, count), 0, nodes - 1)
    return senders, receivers, rng.integers(0, types, count), nodes, types


def forms_of_an_adjacency():
    batch = assemble(table_from_graphs([typed_graph(n, 2 * n, seed=n) for n in (9, 14)]), [0, 1])
    return {
        "csr": TypedEdges.of(*edges()),
        "banded": banded(*edges(), block=16),
        "banded, spilled": banded(*edges(reach=20), block=7, outside="spill"),
        "dense": DenseAdjacency.of_batch(batch, 3, 16),
    }


def results(model, adjacency, h, backend):
    learned = [h, *model.parameters()]
    with use_backend(backend):
        out = model(h, adjacency)
        return [out, *torch.autograd.grad(out.square().sum(), learned)]


@pytest.mark.parametrize("form", forms_of_an_adjacency())
def test_a_model_learns_the_same_compiled_in_one_graph_and_not(form):
    adjacency = forms_of_an_adjacency()[form]
    torch.manual_seed(0)
    model = GatedGraph(6, 3, 2).double()
    h = torch.randn(adjacency.num_nodes, 6, dtype=torch.float64, requires_grad=True)
    expected = results(model, adjacency, h, None)
    torch.testing.assert_close(results(model, adjacency, h, "triton"), expected)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(results(compiled, adjacency, h, "triton"), expected)


def test_float64_has_builds_too():
    # The certificate is about float32 and bfloat16.
    launches = []
    model = GatedGraph(128, 3, 1).double()
    h = torch.randn(40, 128, dtype=torch.float64, requires_grad=True)
    with recording(launches.append):
        for form in ("csr", "banded"):
            results(model, forms_of_an_adjacency()[form], h, "triton")
    products = distinct(launch for launch in launches if KERNELS[launch.kernel].dots)
    assert {each["kernel"] for each in products} == {
        "typed_rows",
        "typed_weights",
        "block_products",
    }
    asked = {"do": "builds", "target": "sm_80", "launches": products}
    built = [record for kind, record in _records(asked) if kind == "build"]
    assert len(built) == len(products)
    assert [record["faults"] for record in built] == [[] for _ in built]


@pytest.mark.parametrize("aggregate", [True, False])
def test_types_of_many_chunks_and_chunks_of_many_tiles(aggregate, monkeypatch):
    monkeypatch.setattr(csr, "_CHUNK_ROWS", 150)
    monkeypatch.setattr(typed, "_SLOTS", 2)
    senders, receivers, types, *_ = edges(300, 900, 2, 300)
    adjacency = TypedEdges.of(senders, receivers, types, 300, 3, aggregate=aggregate)
    assert adjacency.chunk_types.tolist() == [0, 0, 1, 1]
    given = [
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((300, 5), (3, 5, 4), (3, 4))
    ]

    def found(backend):
        with use_backend(backend):
            out = adjacency.propagate(*given)
            return [out, *torch.autograd.grad(out.square().sum(), given)]

    torch.testing.assert_close(found("triton"), found(None))


def test_gates_of_two_precisions_give_states_of_the_wider():
    # As under autocast: sums of products are bfloat16, states stay float32.
    generator = torch.Generator().manual_seed(0)
    sums = [torch.randn(30, 24, generator=generator).bfloat16() for _ in range(2)]
    h, grad = (torch.randn(30, 8, generator=generator) for _ in range(2))
    tests = ("test_schema", "test_faketensor")
    with use_backend("triton"):
        found = _gated_states(*sums, h)
        torch.library.opcheck(_gated_states.op, (*sums, h), test_utils=tests)
        torch.library.opcheck(_gate_gradients_of.op, (*sums, h, grad), test_utils=tests)
        gradients = _gate_gradients_of(*sums, h, grad)
    assert found.dtype == torch.float32
    assert [t.dtype for t in gradients] == [torch.bfloat16, torch.bfloat16, torch.float32]
    r, z = (sum(s.chunk(3, 1)[k].float() for s in sums) for k in range(2))
    inputs, states = (s.chunk(3, 1)[2].float() for s in sums)
    n = torch.tanh(inputs + r.sigmoid() * states)
    torch.testing.assert_close(found, n + z.sigmoid() * (h - n))


def test_the_whole_range_of_the_gates():
    cell = nn.GRUCell(4, 16)
    weights = (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    x, h = torch.randn(200, 4) * 30, torch.randn(200, 16) * 10
    x[0], h[1] = 1e30, torch.nan
    with torch.no_grad():
        with use_backend("triton"):
            found = gru(x, h, *weights)
        expected = cell.double()(x.double(), h.double())
    assert found[1].isnan().all()
    expected[1] = found[1] = 0
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_small_states_keep_their_bits():
    # Both gates half open, nothing to remember: the new state is half of tanh.
    inputs = torch.zeros(30, 3)
    inputs[:, 2] = torch.logspace(-20, 1, 30)
    with use_backend("triton"):
        found = _gated_states(inputs, torch.zeros(30, 3), torch.zeros(30, 1))
    expected = torch.tanh(inputs[:, 2:].double()) / 2
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=0)


def test_gradients_of_gradients():
    cell = nn.GRUCell(2, 3).double()
    given = [torch.randn(4, n, dtype=torch.float64, requires_grad=True) for n in (2, 3)]

    def states(x, h):
        with use_backend("triton"):
            return gru(x, h, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)

    with use_backend("triton"):
        assert torch.autograd.gradcheck(states, given)
        assert torch.autograd.gradgradcheck(states, given)
