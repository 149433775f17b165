"""Every public operator has three forms of one result, and stays whole under torch.compile."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import sys
from types import SimpleNamespace

import pytest
import torch
from operator_calls import calls

from weft import kernels
from weft.kernels import custom_op
from weft.kernels.attention import Dropout, attention
from weft.kernels.backends import missing_triton, use_backend
from weft.kernels.custom_op import Operator
from weft.kernels.edge_softmax import edge_softmax
from weft.kernels.fan_in_linear import fan_in_linear
from weft.kernels.fused_messages import EdgeWalks
from weft.kernels.sparse_linear import pattern_of, sparse_linear
from weft.kernels.triton.launch import recording

# A sort, which is torch's own on a GPU.
NO_KERNEL = {"sorted_pairs"}
# Two gathers, and torch's own product of matrices.
NO_LOOP = {"pair_sums", "block_products"}
# Parts of others: what their gradients are made of.
PARTS = {
    "gaussian_basis", "gaussian_product_transposed", "gated_states", "pair_rows", "pass_positive",
    "row_sums",
}  # fmt: skip
# Not registered with torch.
FUNCTIONS = {"attention", "attention_part", "self_attention", "edge_softmax"}
NAMES = (
    "spmm", "gather", "segment_sum", "segment_max", "edge_products", "pair_spmm", "pair_products",
    "pair_sums", "sorted_pairs", "edge_softplus", "painn_message", "painn_invariants",
    "painn_update", "typed_messages", "gru", "sparse_linear", "fan_in_linear",
    "sparse_input_linear", "radial_filters", "gaussian_product", "shifted_softplus", "dropout",
    "attention", "attention_part", "self_attention", "edge_softmax", "block_products",
)  # fmt: skip


def registered():
    """The operators that torch knows, by name."""
    found = {}
    for module in pkgutil.iter_modules(kernels.__path__):
        if module.name in ("triton", "triton_certificate"):
            continue
        for value in vars(importlib.import_module(f"weft.kernels.{module.name}")).values():
            if isinstance(value, Operator):
                found[value.op._name.removeprefix("weft::")] = value
    return found


@pytest.fixture
def batch(molecules):
    return molecules(torch.float32)


def outcome(call):
    """What an operator gives, and its gradients."""
    function, inputs = call
    torch.manual_seed(0)
    out = function(*inputs)
    inputs = [t for t in inputs if t.requires_grad]
    return [out, *torch.autograd.grad(out.sin().sum(), inputs)] if inputs else [out]


def test_every_public_operator_is_called_here(batch):
    names = {name for name in registered() if not name.endswith("_backward")}
    assert names - PARTS | FUNCTIONS == set(NAMES)
    assert list(calls(batch)) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_has_a_loop_a_kernel_and_plain_torch(name, batch, monkeypatch):
    call = calls(batch)[name]
    asked, launches = [], []
    allowed = custom_op.loops_allowed

    def noted():
        asked.append(allowed())
        return asked[-1]

    monkeypatch.setattr(custom_op, "loops_allowed", noted)
    with recording(launches.append):
        with use_backend("cpu"):
            loop = outcome(call)
        assert not launches
        assert any(asked) == (name not in NO_LOOP)
        with use_backend("plain"):
            plain = outcome(call)
        assert not launches
        with use_backend("triton"):
            call[0](*call[1])
            assert bool(launches) == (name not in NO_KERNEL)
            kernel = outcome(call)
    if name != "dropout":
        # Which numbers are dropped is another draw in plain torch.
        torch.testing.assert_close(plain, loop, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(kernel, loop, rtol=1e-4, atol=1e-5)


# torch.compile traces no sparse tensors; what is behind the function is tried below.
WHOLE = [name for name in NAMES if name != "sparse_input_linear"]


@pytest.mark.parametrize("name", WHOLE)
def test_an_operator_stays_whole_when_it_is_compiled(name, batch):
    function, inputs = calls(batch)[name]
    torch._dynamo.reset()
    with use_backend(None if name in NO_KERNEL else "triton"):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        found, expected = outcome((compiled, inputs)), outcome((function, inputs))
    if name != "dropout":
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_what_the_tracer_is_told_is_what_comes(backend, batch, monkeypatch):
    known = {}

    def noted(self, *arguments):
        known.setdefault(self, arguments)
        return self.op(*arguments)

    monkeypatch.setattr(Operator, "__call__", noted)
    with use_backend(backend):
        for name, call in calls(batch).items():
            if backend == "cpu" or name not in NO_KERNEL:
                outcome(call)
        for operator, arguments in known.items():
            given = [t.detach() if isinstance(t, torch.Tensor) else t for t in arguments]
            torch.library.opcheck(operator.op, given, test_utils="test_faketensor")
    if backend == "cpu":
        # Loops that do the whole of it.
        parts = ("row_sums", "gaussian_basis", "gated_states")
        missed = {name for name, each in registered().items() if each not in known}
        assert missed <= {*parts, *(f"{part}_backward" for part in parts)}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("triton", None, r"pip install 'weft\[gpu\]'"),
        ("triton", SimpleNamespace(__version__="3.1.0"), r"3\.1\.0 is older than 3\.3"),
    ],
)
def test_operators_say_that_triton_is_missing_or_old(name, value, message, batch, monkeypatch):
    made = calls(batch)
    monkeypatch.setitem(sys.modules, name, value)
    missing_triton.cache_clear()
    try:
        for operator in set(NAMES) - NO_KERNEL:
            function, inputs = made[operator]
            with use_backend("triton"), pytest.raises(ValueError, match=message):
                function(*inputs)
    finally:
        missing_triton.cache_clear()


META = torch.device("meta")


@pytest.mark.parametrize("backend", ["plain", "triton", "cpu"])
def test_tensors_on_two_devices_are_refused(backend):
    walks = EdgeWalks(torch.tensor([0, 1]), torch.tensor([1, 0]), 2, 2)
    values, scores = torch.ones(2, 1, 3), torch.ones(2, 1)
    pattern = pattern_of(torch.tensor([0, 3]), 2, 2)
    columns, offsets = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0, 1, 2])
    x, two = torch.ones(2, 2), torch.ones(2)
    dropout = Dropout(kept=torch.ones(2, 1, dtype=torch.bool, device=META), p=0.5)
    wrong = (
        lambda: attention(walks, values, sender_scores=scores.to(META)),
        lambda: attention(walks, values, sender_scores=scores, dropout=dropout),
        lambda: edge_softmax(scores.to(META), walks),
        lambda: sparse_linear(x, two.to(META), None, pattern, 2),
        lambda: sparse_linear(x.to(META), two, None, pattern, 2),
        lambda: fan_in_linear(x, two, two.to(META), columns, 2),
        lambda: kernels.segment_sum(x.to(META), offsets),
        lambda: kernels.segment_max(x.to(META), offsets),
    )
    for call in wrong:
        with use_backend(backend), pytest.raises(ValueError, match="move them to one device"):
            call()


# Those that take tensors of several dtypes, as autocast gives them; the others want one.
MIXED = (
    "spmm", "edge_products", "pair_spmm", "pair_products", "edge_softplus", "painn_message",
    "painn_invariants", "painn_update",
)  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_results_of_mixed_precision_have_the_dtypes_that_the_tracer_is_told(
    name, batch, monkeypatch
):
    known, (function, given) = [], calls(batch)[name]

    def noted(self, *arguments):
        known.append((self.op, arguments))
        return self.op(*arguments)

    monkeypatch.setattr(Operator, "__call__", noted)
    for narrow in range(len(given)):
        leaves = [
            (t.bfloat16() if k == narrow else t).detach().requires_grad_()
            for k, t in enumerate(given)
        ]
        found = {}
        for backend in ("plain", "triton"):
            with use_backend(backend):
                found[backend] = outcome((function, leaves))
                for operator, arguments in known:
                    inputs = [t.detach() if isinstance(t, torch.Tensor) else t for t in arguments]
                    torch.library.opcheck(operator, inputs, test_utils="test_faketensor")
            known.clear()
        torch.testing.assert_close(found["triton"], found["plain"], rtol=5e-2, atol=1e-1)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_KERNEL | {"dropout"}])
def test_a_gradient_has_the_form_that_is_chosen_by_then(name, batch):
    function, given = calls(batch)[name]
    leaves = [t for t in given if t.requires_grad]
    expected = outcome((function, given))[1:]
    for forward, backward in itertools.permutations(("cpu", "plain", "triton"), 2):
        with use_backend(forward):
            out = function(*given)
        with use_backend(backward):
            found = torch.autograd.grad(out.sin().sum(), leaves)
        torch.testing.assert_close(list(found), expected, rtol=1e-4, atol=1e-5)
