"""Layers of torch_geometric and own messages, accelerated and as they were: equal, in float64."""

from __future__ import annotations

import copy
import gc
import pickle
import types
import weakref

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

geometric = pytest.importorskip("torch_geometric")

from torch_geometric import EdgeIndex  # noqa: E402
from torch_geometric.nn import (  # noqa: E402
    EdgeConv,
    FastRGCNConv,
    GATConv,
    GatedGraphConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    GraphConv,
    MessagePassing,
    NNConv,
    PNAConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
    aggr,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)

from weft.integrations.accelerate import _difference, accelerate, restore  # noqa: E402
from weft.integrations.geometric import lazy_edges  # noqa: E402
from weft.integrations.geometric.edge_cache import _kept  # noqa: E402
from weft.integrations.geometric.lazy_edges import EdgeTensor  # noqa: E402
from weft.integrations.geometric.redirect import _stock_classes, is_redirected, redirect  # noqa: E402

NODES, EDGES, WIDTH, OUT, ATTRIBUTES = 11, 37, 4, 6, 3


class Own(MessagePassing):
    """Linear([x_i, x_j, e]) -> ReLU -> sum."""

    def __init__(self):
        super().__init__(aggr="add")
        self.linear = nn.Linear(2 * WIDTH + ATTRIBUTES, OUT)

    def forward(self, x, edge_index, attr):
        return self.propagate(edge_index, x=x, attr=attr)

    def message(self, x_i, x_j, attr):
        return self.linear(torch.cat([x_i, x_j, attr], dim=-1)).relu()


class Perceptron(Own):
    """A message of two layers, and their mean."""

    def __init__(self):
        MessagePassing.__init__(self, aggr="mean")
        self.linear = nn.Sequential(
            nn.Linear(2 * WIDTH + ATTRIBUTES, OUT), nn.ReLU(), nn.Linear(OUT, OUT)
        )

    def message(self, x_i, x_j, attr):
        return self.linear(torch.cat([x_i, x_j, attr], dim=-1))


class Gated(Own):
    """A gate of both ends and the edge."""

    def __init__(self):
        MessagePassing.__init__(self, aggr="add")
        self.i, self.j, self.value = (nn.Linear(WIDTH, OUT) for _ in range(3))
        self.e = nn.Linear(ATTRIBUTES, OUT)

    def message(self, x_i, x_j, attr):
        gate = torch.sigmoid(self.i(x_i) + self.j(x_j) + self.e(attr))
        value = self.value(x_j)
        value *= 0.5
        return gate * value


class Odd(Own):
    """What weft does not know: sorting, randomness, branches on values, in place, no gradient."""

    def message(self, x_i, x_j, attr):
        strange = torch.sort(x_j - x_i, dim=-1).values.cumsum(-1)
        if strange.mean() > 1e9:
            strange = strange * 0
        strange = nn.functional.dropout(strange, 0.5, training=True)
        x_j[:, 0] = 1.0
        with torch.no_grad():
            shift = x_i.mean()
        return torch.cat([strange + x_j.clamp(min=0), attr], dim=-1) - shift


def degrees(edge_index):
    return torch.bincount(torch.bincount(edge_index[1], minlength=NODES))


LAYERS = {
    "gcn": (lambda e: GCNConv(WIDTH, OUT), ()),
    "gcn, weights": (lambda e: GCNConv(WIDTH, OUT, improved=True), ("weight",)),
    "sage": (lambda e: SAGEConv(WIDTH, OUT, normalize=True, project=True), ()),
    "sage, max": (lambda e: SAGEConv(WIDTH, OUT, "max"), ()),
    "graph": (lambda e: GraphConv(WIDTH, OUT), ("weight",)),
    "gin": (lambda e: GINConv(nn.Linear(WIDTH, OUT), train_eps=True), ()),
    "gine": (lambda e: GINEConv(nn.Linear(WIDTH, OUT), edge_dim=ATTRIBUTES), ("attr",)),
    "gat": (lambda e: GATConv(WIDTH, OUT, heads=3, dropout=0.5), ()),
    "gat, edges": (lambda e: GATConv(WIDTH, OUT, heads=3, edge_dim=ATTRIBUTES), ("attr",)),
    "gatv2": (lambda e: GATv2Conv(WIDTH, OUT, heads=3, share_weights=True), ()),
    "transformer": (lambda e: TransformerConv(WIDTH, OUT, heads=3, beta=True), ()),
    "pna": (
        lambda e: PNAConv(
            WIDTH,
            OUT,
            ["mean", "max", "min", "std"],
            ["identity", "amplification", "attenuation", "linear", "inverse_linear"],
            degrees(e),
            towers=2,
        ),
        (),
    ),
    "edge": (lambda e: EdgeConv(nn.Linear(2 * WIDTH, OUT)), ()),
    "rgcn": (lambda e: RGCNConv(WIDTH, OUT, 4, num_bases=2), ("type",)),
    "fast rgcn": (lambda e: FastRGCNConv(WIDTH, OUT, 4, aggr="add"), ("type",)),
    "own": (lambda e: Own(), ("attr",)),
    "perceptron": (lambda e: Perceptron(), ("attr",)),
    "gated": (lambda e: Gated(), ("attr",)),
    "odd": (lambda e: Odd(), ("attr",)),
}


def example(seed=0):
    """Nodes without edges, self-loops, duplicates, in no order."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    edge_index = torch.randint(0, NODES - 2, (2, EDGES), generator=generator)
    edge_index[:, 1] = edge_index[:, 0]
    edge_index[1, 2] = edge_index[0, 2]
    return {
        "x": draw(NODES, WIDTH),
        "edge_index": edge_index,
        "attr": draw(EDGES, ATTRIBUTES),
        "weight": draw(EDGES).abs(),
        "type": torch.randint(0, 3, (EDGES,), generator=generator),
    }


def results(layer, x, edge_index, *more):
    """Outputs, and gradients to all inputs and parameters."""
    given = [t.clone().requires_grad_() if t.is_floating_point() else t for t in (x, *more)]
    torch.manual_seed(1)
    out = layer(given[0], edge_index, *given[1:])
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    wanted = [*layer.parameters(), *(t for t in given if t.requires_grad)]
    gradients = torch.autograd.grad((out * weight).sum(), wanted, allow_unused=True)
    return [out, *(torch.zeros(()) if g is None else g for g in gradients)]


def pair(layer):
    """The layer in float64, and an accelerated copy."""
    stock = layer.double()
    fast = copy.deepcopy(stock)
    redirect(fast)
    return stock, fast


def both(make, data, names):
    torch.manual_seed(0)
    stock, fast = pair(make(data["edge_index"]))
    more = [data[name] for name in names]
    for layer in (stock, fast):
        yield results(layer, data["x"], data["edge_index"], *more)


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_are_torch_geometrics(name):
    make, names = LAYERS[name]
    expected, found = both(make, example(), names)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["gcn", "gat", "rgcn", "own", "sage, max"])
def test_other_graphs(name):
    make, names = LAYERS[name]
    data = example(2)
    # Sorted by receiver, as int32, or none at all.
    order = torch.argsort(data["edge_index"][1])
    ordered = {k: v[order] if v.shape[0] == EDGES else v for k, v in data.items()}
    ordered["edge_index"] = data["edge_index"][:, order].contiguous()
    empty = {k: v[:0] if v.shape[0] == EDGES else v for k, v in data.items()}
    empty["edge_index"] = data["edge_index"][:, :0]
    for graph in (ordered, empty):
        expected, found = both(make, graph, names)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_two_sets_of_nodes_and_the_other_direction():
    data = example()
    torch.manual_seed(0)
    nodes = (data["x"], torch.randn(NODES - 2, WIDTH, dtype=torch.float64))
    for layer in (
        SAGEConv((WIDTH, WIDTH), OUT),
        GATConv((WIDTH, WIDTH), OUT, add_self_loops=False),
        TransformerConv((WIDTH, WIDTH), OUT),
    ):
        stock, fast = pair(layer)
        edge_index = data["edge_index"]
        torch.testing.assert_close(fast(nodes, edge_index), stock(nodes, edge_index))
    stock, fast = pair(GraphConv(WIDTH, OUT, flow="target_to_source"))
    found, expected = (layer(data["x"], data["edge_index"]) for layer in (fast, stock))
    torch.testing.assert_close(found, expected)


def test_an_edge_index_that_is_changed_in_place_is_noticed():
    data = example()
    stock, fast = pair(GCNConv(WIDTH, OUT))
    edge_index = data["edge_index"].clone()
    fast(data["x"], edge_index)
    edge_index[1] = edge_index[1].flip(0)
    found, expected = (layer(data["x"], edge_index) for layer in (fast, stock))
    torch.testing.assert_close(found, expected)


def test_weights_of_other_calls_are_not_kept():
    data = example()
    stock, fast = pair(GCNConv(WIDTH, OUT))
    for seed in range(3):
        weight = example(seed)["weight"]
        found, expected = (layer(data["x"], data["edge_index"], weight) for layer in (fast, stock))
        torch.testing.assert_close(found, expected)
        weight *= 2
        found, expected = (layer(data["x"], data["edge_index"], weight) for layer in (fast, stock))
        torch.testing.assert_close(found, expected)
    _, facts = _kept[data["edge_index"]]
    assert len(facts) <= 2


def test_more_features_than_the_loops_hold():
    data = example()
    x = torch.randn(NODES, 1100, dtype=torch.float64)
    stock, fast = pair(SAGEConv(1100, OUT))
    found, expected = (layer(x, data["edge_index"]) for layer in (fast, stock))
    torch.testing.assert_close(found, expected)


def test_errors_are_torch_geometrics():
    data = example()
    stock, fast = pair(SAGEConv(WIDTH, OUT))
    for change in (NODES, -1):
        for row in (0, 1):
            wrong = data["edge_index"].clone()
            wrong[row, 0] = change
            said = []
            for layer in (stock, fast):
                with pytest.raises(Exception) as error:  # noqa: PT011
                    layer(data["x"], wrong)
                said.append((type(error.value), str(error.value)))
            assert said[0] == said[1]


def test_one_batch_with_a_wrong_edge_changes_nothing_for_the_next():
    data = example()
    stock, fast = pair(Own())
    wrong = data["edge_index"].clone()
    wrong[1, 0] = NODES
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        fast(data["x"], wrong, data["attr"])
    assert Own not in _stock_classes
    arguments = data["x"], data["edge_index"], data["attr"]
    torch.testing.assert_close(fast(*arguments), stock(*arguments))


def test_the_comparison_sees_what_is_not_finite():
    class Wrong(nn.Module):
        def forward(self, x):
            return x.nan_to_num()

    call = ((torch.tensor([1.0, float("nan")]),), {})
    assert _difference(nn.Identity(), nn.Identity(), call) == 0
    assert _difference(nn.Identity(), Wrong(), call) == float("inf")
    assert _difference(Wrong(), nn.Identity(), call) == float("inf")


def test_a_wrong_example_leaves_the_model_as_it_was():
    model = Model().double()
    with pytest.raises(TypeError):
        accelerate(model, ("nonsense",), report=None)
    assert not any(is_redirected(module) for module in model.modules())


def test_half_precision_and_autocast_run_as_before():
    data = example()
    layer = SAGEConv(WIDTH, OUT)
    redirect(layer)
    x = data["x"].float()
    expected = copy.deepcopy(layer).bfloat16()(x.bfloat16(), data["edge_index"])
    assert expected.dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x, data["edge_index"]).dtype == torch.bfloat16


def test_copies_pickles_and_hooks():
    data = example()
    layer = GATConv(WIDTH, OUT).double()
    before = layer.state_dict().keys()
    redirect(layer)
    assert is_redirected(layer)
    assert layer.state_dict().keys() == before
    other = copy.deepcopy(layer)
    assert is_redirected(other)
    assert other.propagate.__self__ is other
    read = pickle.loads(pickle.dumps(layer))
    expected = layer(data["x"], data["edge_index"])
    torch.testing.assert_close(read(data["x"], data["edge_index"]), expected)
    seen = []
    layer.register_message_forward_hook(lambda *call: seen.append(call))
    layer.register_forward_hook(lambda *call: seen.append(call))
    torch.testing.assert_close(layer(data["x"], data["edge_index"]), expected)
    assert len(seen) == 2
    assert not isinstance(seen[0][-1], EdgeTensor)


class Model(nn.Module):
    """As users write them."""

    def __init__(self, pool=global_add_pool):
        super().__init__()
        self.first = GCNConv(WIDTH, OUT)
        self.second = Own()
        self.second.linear = nn.Linear(2 * OUT + ATTRIBUTES, OUT)

    def forward(self, x, edge_index, attr, batch):
        h = self.second(self.first(x, edge_index).relu(), edge_index, attr)
        pooled = [global_add_pool(h, batch), global_mean_pool(h, batch), global_max_pool(h, batch)]
        return torch.cat(pooled, dim=-1)


def arguments():
    data = example()
    batch = torch.tensor([0] * 4 + [2] * (NODES - 4))
    return data["x"], data["edge_index"], data["attr"], batch


def test_a_model_is_accelerated_and_restored():
    torch.manual_seed(0)
    model = Model().double()
    expected = model(*arguments())
    names = model.state_dict().keys()
    said = []
    assert accelerate(model, report=said.append) is model
    assert is_redirected(model)
    assert is_redirected(model.first)
    torch.testing.assert_close(model(*arguments()), expected)
    assert model.state_dict().keys() == names
    assert "first: GCNConv" in said[0]
    assert "ms" not in said[0].split()
    restore(model)
    assert not any(is_redirected(module) for module in model.modules())
    torch.testing.assert_close(model(*arguments()), expected)


def test_with_an_example_each_layer_is_compared_and_timed():
    model = Model().double()
    said = []
    accelerate(model, arguments(), report=said.append)
    (table,) = said
    assert "before ms" in table
    for line in table.splitlines()[1:]:
        assert "messages reduced in one loop" in line or "left alone: not faster" in line
        assert float(line.split()[4]) < 1e-9


def test_a_model_without_layers_of_torch_geometric():
    said = []
    accelerate(nn.Linear(2, 2), report=said.append)
    assert said == [
        "Linear has no layer of torch_geometric, and there are no masks; "
        "weft.accelerate leaves it as it is",
    ]


def test_second_derivatives():
    data = example()
    layer = Gated().double()
    redirect(layer)
    x = data["x"].requires_grad_()

    def energy(x):
        return layer(x, data["edge_index"], data["attr"]).square().sum()

    assert torch.autograd.gradgradcheck(energy, (x,))


def test_with_and_without_weights_in_either_order():
    data = example()
    for order in ((True, False, True), (False, True, False)):
        edge_index = data["edge_index"].clone()
        stock, fast = pair(GCNConv(WIDTH, OUT))
        for weighted in order:
            more = (data["weight"],) if weighted else ()
            found, expected = (layer(data["x"], edge_index, *more) for layer in (fast, stock))
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_torch_geometrics_own_class_of_an_edge_index(flow):
    data = example()
    edge_index = EdgeIndex(data["edge_index"], sparse_size=(NODES, NODES))
    stock, fast = pair(GraphConv(WIDTH, OUT, flow=flow))
    found, expected = (layer(data["x"], edge_index) for layer in (fast, stock))
    torch.testing.assert_close(found, expected)


class Given(MessagePassing):
    """A message that is given as a function."""

    def __init__(self, function):
        super().__init__(aggr="add")
        self.linear, self.function = nn.Linear(WIDTH, WIDTH), function

    def forward(self, x, edge_index, attr):
        return self.propagate(edge_index, x=x, attr=attr)

    def message(self, x_i, x_j, attr):
        return self.function(self, x_i, x_j, attr)


def half_of_it_is_zero(layer, x_i, x_j, attr):
    view = x_j[:, :2]
    view *= 0
    return x_j


def a_view_is_halved(layer, x_i, x_j, attr):
    x_j.view(-1, 2, 2).mul_(0.5)
    return x_j


def joined_and_then_changed(layer, x_i, x_j, attr):
    joined = torch.cat([x_i, x_j], dim=-1)
    x_j *= 0
    return joined


def added_and_then_zero(layer, x_i, x_j, attr):
    made = torch.ones_like(attr[:, :1])
    out = x_j + made
    made.zero_()
    return out


def without_gradients(layer, x_i, x_j, attr):
    with torch.no_grad():
        shift = (x_i * x_j).mean()
    return x_j - shift


def kept_elsewhere(layer, x_i, x_j, attr):
    layer.kept = (x_i - 2 * x_j) * layer.linear.bias
    return layer.kept


def by_name(layer, x_i, x_j, attr):
    out = nn.functional.linear(input=x_i * x_j, weight=layer.linear.weight)
    out = torch.cat(tensors=[out, x_j], axis=-1)
    return torch.sum(input=out, dim=-1, keepdim=True) + x_j[torch.arange(EDGES), :1]


def of_autograd(layer, x_i, x_j, attr):
    apart = x_j - x_i
    if apart.requires_grad:
        apart.register_hook(lambda grad: grad * 0)
    return apart * 2


def again_and_again(layer, x_i, x_j, attr):
    h = x_i + x_j
    for _ in range(30):
        h = h * 0.5 + h
    return h


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def own_function(layer, x_i, x_j, attr):
    return Doubled.apply(x_j - x_i)


def rows_and_numbers(layer, x_i, x_j, attr):
    first, *_ = x_j
    return x_j * float(x_i.detach()[0, 0]) + first + int(x_i.sum() > 0)


FUNCTIONS = [
    *(half_of_it_is_zero, a_view_is_halved, joined_and_then_changed, added_and_then_zero),
    *(without_gradients, kept_elsewhere, by_name, of_autograd, again_and_again, own_function),
    rows_and_numbers,
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_whatever_a_message_does(function):
    data = example()
    expected, found = both(lambda e: Given(function), data, ("attr",))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_what_a_message_keeps_is_a_tensor_of_its_own_time():
    data = example()
    stock, fast = pair(Given(kept_elsewhere))
    for layer in (stock, fast):
        layer(data["x"], data["edge_index"], data["attr"])
        with torch.no_grad():
            layer.linear.bias += 1
    with torch.no_grad():
        torch.testing.assert_close(fast.kept + 0, stock.kept + 0)


@pytest.mark.parametrize("value", [0.0, 1000.0, float("nan")])
def test_a_node_that_no_edge_reads_reaches_no_gradient(value):
    def message(layer, x_i, x_j, attr):
        return layer.linear(x_j) + x_j.abs().sqrt() + (x_j * 10).exp() + 1 / x_j

    data = example()
    data["x"][NODES - 1] = value
    expected, found = both(lambda e: Given(message), data, ("attr",))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_inference_mode_and_checkpoints():
    data = example()
    for layer in (GCNConv(WIDTH, OUT), GATConv(WIDTH, OUT), SAGEConv(WIDTH, OUT)):
        stock, fast = pair(layer)
        edge_index = data["edge_index"].clone()
        with torch.inference_mode():
            found, expected = (each(data["x"], edge_index) for each in (fast, stock))
            torch.testing.assert_close(found, expected)
        x = data["x"].clone().requires_grad_()
        out = torch.utils.checkpoint.checkpoint(fast, x, edge_index, use_reentrant=False)
        (found,) = torch.autograd.grad(out.sum(), x)
        (expected,) = torch.autograd.grad(stock(x, edge_index).sum(), x)
        torch.testing.assert_close(found, expected)


def test_nothing_outlives_its_edges():
    data = example()
    layers = [GCNConv(WIDTH, OUT, add_self_loops=False), GATConv(WIDTH, OUT), Own()]
    for layer in layers:
        redirect(layer.double())
        edge_index = data["edge_index"].clone()
        alive = weakref.ref(edge_index)
        more = (data["attr"],) if isinstance(layer, Own) else ()
        layer(data["x"], edge_index, *more).sum().backward()
        del edge_index
        gc.collect()
        assert alive() is None


@pytest.mark.parametrize("name", ["gcn, weights", "gat", "sage", "own", "pna"])
def test_a_step_leaves_no_tensors_to_the_garbage_collector(name):
    """A reference cycle would keep some of them, hundreds of megabytes, over many steps."""
    make, names = LAYERS[name]
    data = example()
    layer = accelerate(make(data["edge_index"]).double(), report=None)
    given = [data[name].detach() for name in names]
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(3):
            layer(data["x"].detach().requires_grad_(), data["edge_index"], *given).sum().backward()
        gc.collect()
        left = [each for each in gc.garbage if issubclass(type(each), torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left


@pytest.mark.parametrize("name", ["gcn", "gcn, weights", "graph", "sage, max", "gin"])
def test_what_never_changes_is_summed_once(name, monkeypatch):
    """The same features and edges at every step: results and gradients of each are right."""
    sums = []
    stock_sum = lazy_edges.fused_messages
    monkeypatch.setattr(
        lazy_edges, "fused_messages", lambda *given: sums.append(0) or stock_sum(*given)
    )
    make, names = LAYERS[name]
    data = example()
    stock, fast = pair(make(data["edge_index"]).double())
    x = data["x"].detach()
    given = [data[name].detach() for name in names]
    for step in range(8):
        if step == 5:
            assert len(sums) == (4 if name.startswith("gcn") else 3)
            # A change is noticed, also where it leaves no trace.
            x.data[0] += 1.0
        outs = [layer(x, data["edge_index"], *given) for layer in (stock, fast)]
        torch.testing.assert_close(*outs, rtol=1e-10, atol=1e-10)
        wanted = [
            torch.autograd.grad(out.square().sum(), list(layer.parameters()))
            for out, layer in zip(outs, (stock, fast), strict=True)
        ]
        torch.testing.assert_close(*wanted, rtol=1e-10, atol=1e-10)


class Twice(MessagePassing):
    """Twice the features of one end of an edge."""

    def __init__(self, function=lambda x_i, x_j: x_j * 2, **options):
        super().__init__(aggr="add", **options)
        self.function = function

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return self.function(x_i, x_j)


def test_kept_sums_of_other_layers_on_the_same_features():
    data = example()
    x, edge_index = data["x"].detach(), data["edge_index"]
    layers = [
        pair(Twice()),
        pair(Twice(lambda x_i, x_j: x_i * 2)),
        pair(Twice(lambda x_i, x_j: x_j - x_i)),
        pair(Twice(lambda x_i, x_j: x_i - x_j)),
        pair(Twice(flow="target_to_source")),
        pair(GCNConv(WIDTH, OUT)),
        pair(GCNConv(WIDTH, OUT, aggr="max")),
    ]
    for _ in range(5):
        for stock, fast in layers:
            torch.testing.assert_close(fast(x, edge_index), stock(x, edge_index))
    smaller = edge_index % 5
    stock, fast = pair(GraphConv((WIDTH, WIDTH), OUT))
    for receivers in (5, 5, 5, 5, 9):
        nodes = x, x[:receivers]
        torch.testing.assert_close(fast(nodes, smaller), stock(nodes, smaller))


def test_a_kept_sum_is_nobody_elses():
    data = example()
    x, edge_index = data["x"].detach(), data["edge_index"]
    stock, fast = pair(Twice())
    expected = stock(x, edge_index)
    for _ in range(5):
        found = fast(x, edge_index)
        torch.testing.assert_close(found, expected)
        found.numpy()[:] = 0.0
        fast(x, edge_index).relu_()


def test_few_sums_are_kept():
    data = example()
    x, edge_index = data["x"].detach(), data["edge_index"]
    layer = Twice()
    redirect(layer)
    for step in range(20):
        layer.function = lambda x_i, x_j, factor=float(step): x_j * factor
        layer(x, edge_index)
    (kept,) = (facts for _, facts in (_kept[x],))
    assert max(len(value) for *_, value in kept.values() if isinstance(value, dict)) == 4


def test_checkpoints_of_the_first_layer():
    data = example()
    stock, fast = pair(GCNConv(WIDTH, OUT))
    for _ in range(4):
        x = data["x"].detach().clone()
        out = torch.utils.checkpoint.checkpoint(fast, x, data["edge_index"], use_reentrant=False)
        out.sum().backward()
        torch.testing.assert_close(out, stock(x, data["edge_index"]))


@pytest.mark.parametrize("change", ["aggregation", "hook", "method"])
def test_layers_whose_parts_were_replaced(change):
    data = example()
    x, edge_index = data["x"].detach(), data["edge_index"]
    attr, kinds = data["attr"], data["type"]
    cases = [
        (GCNConv(WIDTH, OUT), ()),
        (GatedGraphConv(OUT, 2), ()),
        (NNConv(WIDTH, OUT, nn.Linear(ATTRIBUTES, WIDTH * OUT)), (attr,)),
        (RGCNConv(WIDTH, OUT, 3), (kinds,)),
    ]
    for made, more in cases:
        stock, fast = pair(made)
        for layer in (stock, fast):
            if change == "aggregation":
                layer.aggr_module = aggr.MaxAggregation()
            elif change == "hook":
                layer.aggr_module.register_forward_hook(lambda module, given, out: out.relu())
            else:
                layer.message = types.MethodType(twice_the_message, layer)
        for _ in range(3):
            torch.testing.assert_close(
                fast(x, edge_index, *more), stock(x, edge_index, *more), msg=type(stock).__name__
            )


def twice_the_message(self, *arguments, **named):
    return 2 * type(self).message(self, *arguments, **named)


def test_what_was_read_from_a_pickle_is_accelerated_again():
    layer = SAGEConv(WIDTH, OUT)
    redirect(layer)
    read = pickle.loads(pickle.dumps(layer))
    assert not is_redirected(read)
    redirect(read)
    assert is_redirected(read)


def test_an_example_changes_nothing_of_the_model():
    data = example()
    network = nn.Sequential(nn.Linear(WIDTH, OUT), nn.BatchNorm1d(OUT))
    model = GINConv(network).double()
    model(data["x"], data["edge_index"]).sum().backward()
    before = copy.deepcopy([*model.buffers(), *(p.grad for p in model.parameters())])
    accelerate(model, (data["x"], data["edge_index"]), report=None)
    after = [*model.buffers(), *(p.grad for p in model.parameters())]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


class Assigning(nn.Module):
    """Writes what it computes into the graph that it is given."""

    def __init__(self):
        super().__init__()
        self.encoder, self.layer = nn.Linear(WIDTH, OUT), GCNConv(OUT, OUT)

    def forward(self, data):
        assert data.size_of_cell == (1, 2)
        data.x = self.encoder(data.x)
        data.x = self.layer(data.x, data.edge_index)
        return data.x


def test_an_example_that_the_model_writes_to_is_left_as_it_is():
    model = Assigning()
    mask = torch.rand(OUT, WIDTH) < 0.5
    model.encoder.weight.data.mul_(mask)
    x, edges = torch.randn(NODES, WIDTH), torch.randint(NODES, (2, EDGES))
    example = geometric.data.Data(x=x, edge_index=edges, size_of_cell=(1, 2))
    said = []
    accelerate(model, example, masks={"encoder.weight": mask}, report=said.append)
    assert example.x is x
    assert example.edge_index is edges
    assert "whole model" in said[0]
