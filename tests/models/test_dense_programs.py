"""Networks over programs in dense operators: as the sparse ones, and a whole step as one graph."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from small_code import write_code
from small_programs import config, small_programs
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from weft.graphs import Budget, GraphBatch, GraphTable, assemble
from weft.layout import TypedEdges
from weft.models.dense_programs import (
    DenseDetector,
    DenseSlots,
    dense_answers,
    dense_inputs,
    irregular_operators,
    log_shares,
    one_hot,
)
from weft.models.exported_program import quiet
from weft.models.ggnn import GGNN, candidate_log_probabilities, candidate_loss
from weft.models.misuse import MisuseDetector, answers, misuse_loss
from weft.models.static_step import AdamStep, first_state, training_program
from weft.recipes.programs.training import make_detector, make_ggnn
from weft.sources.program_graph import EDGE_NAMES, MISUSE_EDGE_NAMES, VOCABULARY
from weft.sources.python_programs import program_table

GRAPHS, BLOCK = 6, 32


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> dict[str, GraphTable]:
    code = write_code(tmp_path_factory.mktemp("code") / "code", files=3)
    options = {"misuses": 1, "workers": 1, "progress": False}
    return {"slot": small_programs(12), "misuse": program_table(code, **options)}


class Case:
    """A network in both forms, and supergraphs of one shape."""

    def __init__(self, tables: dict[str, GraphTable], kind: str, **options: object) -> None:
        torch.manual_seed(1)
        self.table, slots = tables[kind], kind == "slot"
        self.types = len(EDGE_NAMES if slots else MISUSE_EDGE_NAMES)
        self.nodes, self.pairs = (64, None) if slots else (160, 100)
        make = make_ggnn if slots else make_detector
        asked = {"start": "subtokens", "steps": 2, **options}
        self.model = make(config(**asked), num_types=self.types, vocabulary=VOCABULARY)

    def dense(self) -> DenseSlots | DenseDetector:
        if isinstance(self.model, GGNN):
            return DenseSlots(self.model, GRAPHS)
        return DenseDetector(self.model, GRAPHS, temperature=1.5)

    def batch(self, *graphs: int) -> tuple[GraphBatch, dict[str, Tensor]]:
        budget = Budget(nodes=self.nodes, edges=1000, graphs=GRAPHS + 1)
        batch = assemble(self.table, graphs, budget)
        shape = {"graphs": GRAPHS, "pairs": self.pairs}
        inputs = dense_inputs(batch, types=self.types, block=BLOCK, **shape)
        return batch, inputs | dense_answers(batch, **shape)

    def sparse_loss(self, batch: GraphBatch) -> Tensor:
        found = self.model(batch, TypedEdges.of_batch(batch, self.types))
        if isinstance(self.model, MisuseDetector):
            return misuse_loss(batch, found).loss / batch.num_real_graphs
        return candidate_loss(batch, found)[0] / batch.num_real_graphs


KINDS = pytest.mark.parametrize("kind", ["slot", "misuse"])
# Clean, with a misuse, with blanks: the versions of a function follow each other.
SUPERGRAPHS = ((0, 1, 2, 3), (5,), (4, 2), (8, 7, 6, 0, 1))


@KINDS
def test_answers_losses_and_gradients_are_those_of_sparse_edges(tables, kind):
    case = Case(tables, kind)
    case.model.double()
    dense, parameters = case.dense(), list(case.model.parameters())
    for graphs in SUPERGRAPHS:
        batch, inputs = case.batch(*graphs)
        found = dense(**inputs)
        sparse = case.model(batch, TypedEdges.of_batch(batch, case.types))
        if isinstance(case.model, GGNN):
            expected = candidate_log_probabilities(batch, sparse).exp()
            torch.testing.assert_close(found["probability"], expected, rtol=1e-9, atol=1e-12)
        else:
            expected = answers(batch, sparse, temperature=1.5)
            pairs = len(expected.doubt)
            chances = expected.doubt.exp()
            torch.testing.assert_close(found["wrong"][:pairs], chances, rtol=1e-9, atol=1e-12)
            assert not found["wrong"][pairs:].any()
            fine = expected.fine[: len(graphs)].exp()
            torch.testing.assert_close(found["fine"][: len(graphs)], fine, rtol=1e-9, atol=1e-12)
        losses = dense.loss(**inputs), case.sparse_loss(batch)
        torch.testing.assert_close(*losses, rtol=1e-9, atol=1e-12)
        ours, theirs = (torch.autograd.grad(loss, parameters) for loss in losses)
        for own, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-7, atol=1e-10)


def test_shares_of_groups():
    values = torch.tensor([[1.0], [2.0], [-torch.inf], [90.0], [500.0]])
    shares, others = log_shares(values, one_hot(torch.tensor([0, 0, 0, 2, -1]), 3))
    torch.testing.assert_close(shares[:2].exp().sum(), torch.tensor(1.0))
    assert shares[2] == -torch.inf
    assert shares[3] == 0
    assert not others[1].exp().isnan()
    with_extra, rest = log_shares(values, one_hot(torch.tensor([0, 0, 0, 2, -1]), 3), values[:3])
    total = with_extra[:3].exp().sum() + rest[0, 0].exp()
    torch.testing.assert_close(total, torch.tensor(1.0))
    assert rest[1] == 0


@KINDS
def test_a_step_is_one_graph_of_dense_operators_and_trains_as_the_ordinary_one(tables, kind):
    case = Case(tables, kind, steps=1)
    program = training_program(case.dense(), case.batch(0, 1)[1], AdamStep(weight_decay=0.01))
    # Whatever a step needs goes in: no weight stays inside.
    assert not program.state_dict
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    names = {str(node.target) for node in calls}
    assert not irregular_operators(program.graph)
    # What each of them does: arithmetic, products, comparisons, and moving whole blocks.
    assert names <= {
        *("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor"),
        *("aten.neg.default", "aten.reciprocal.default", "aten.sqrt.default", "aten.exp.default"),
        *("aten.log.default", "aten.expm1.default", "aten.lerp.Scalar", "aten.pow.Tensor_Scalar"),
        *("aten.sigmoid.default", "aten.sigmoid_backward.default", "aten.tanh.default"),
        *("aten.tanh_backward.default", "aten.clamp.default", "aten.maximum.default"),
        *("aten.mm.default", "aten.addmm.default", "aten.bmm.default"),
        *("aten.sum.default", "aten.sum.dim_IntList", "aten.amax.default"),
        *("aten.eq.Scalar", "aten.eq.Tensor", "aten.ne.Scalar", "aten.gt.Scalar", "aten.ge.Scalar"),
        *("aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor", "aten.bitwise_not.default"),
        *("aten.where.self", "aten.masked_fill.Scalar", "aten._to_copy.default"),
        *("aten.arange.default", "aten.scalar_tensor.default", "aten.ones_like.default"),
        *("aten.t.default", "aten.transpose.int", "aten.view.default", "aten.detach.default"),
        *("aten.unsqueeze.default", "aten.squeeze.dim", "aten.expand.default", "aten.cat.default"),
        *("aten.stack.default", "aten.slice.Tensor", "aten.constant_pad_nd.default"),
        *(
            "aten.clone.default",
            "aten.full.default",
            "aten.zeros_like.default",
            "aten.new_zeros.default",
        ),
    }, names
    state, step = first_state(case.dense()), program.module()
    case.model.train()
    optimizer = torch.optim.Adam(case.model.parameters(), lr=0.03, weight_decay=0.01)
    for number, graphs in enumerate(SUPERGRAPHS):
        batch, inputs = case.batch(*graphs)
        rate = 0.03 / (1 + number)
        state, loss = step(state=state, inputs=inputs, rate=torch.tensor(rate))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        expected = case.sparse_loss(batch)
        expected.backward()
        nn.utils.clip_grad_norm_(case.model.parameters(), 1.0)
        optimizer.step()
        assert float(loss) == pytest.approx(expected.item(), rel=1e-5)
    for name, weight in case.model.named_parameters():
        torch.testing.assert_close(
            state[f"weight.model.{name}"], weight.detach(), rtol=1e-4, atol=2e-5
        )


def test_a_step_runs_in_onnxruntime(tables):
    case = Case(tables, "slot", steps=1, start="bits")
    dense, inputs = case.dense(), case.batch(0, 1)[1]
    given = {"state": first_state(dense), "inputs": inputs, "rate": torch.tensor(0.1)}
    program = training_program(dense, inputs)
    with quiet():
        proto = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False).model_proto
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    arrays = dict(zip(names, map(Tensor.numpy, tree_leaves(given)), strict=True))
    found, expected = session.run(None, arrays), tree_leaves(program.module()(**given))
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other.numpy(), rtol=1e-5, atol=1e-6)


def test_a_step_without_random_numbers(tables):
    case = Case(tables, "slot", dropout=0.1)
    with pytest.raises(
        ValueError, match=r"dropout of model\.gated is 0\.1; .*train with dropout 0"
    ):
        training_program(case.dense(), case.batch(0)[1])


def test_the_search_for_operators_finds_them(tables):
    def found(module: nn.Module, *inputs: Tensor, **options: object) -> list[str]:
        program = torch.export.export(module, inputs, **options)
        return irregular_operators(program.graph)

    class Indexing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x[:, 0].argsort()]

    rows = torch.randn(5, 3)
    assert any("argsort" in name or "sort" in name for name in found(Indexing(), rows))
    assert any("index" in name for name in found(Indexing(), rows))
    assert found(nn.Embedding(4, 2), torch.tensor([1, 3]))
    rows_vary = {"dynamic_shapes": ({0: torch.export.Dim("n", min=2)},)}
    assert found(nn.Linear(3, 2), rows, **rows_vary)
    assert not found(nn.Linear(3, 2), rows)
