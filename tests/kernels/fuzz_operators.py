"""Calls every operator with random shapes and indices, right ones and wrong ones.

Run as a program, so that a crash ends a process of its own: python fuzz_operators.py CASES SEED.
Right arguments must give the right answer. Of arguments with a fault, an operator says so with a
ValueError, or the fault does no harm and the answer is right still. All else is printed.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import torch

from weft import kernels
from weft.kernels import segment_ops as operators
from weft.kernels.edge_pairs import pair_products, pair_spmm, sorted_pairs
from weft.kernels.painn_message import painn_message
from weft.kernels.sparse_input_linear import sparse_input_linear
from weft.kernels.sparse_linear import pattern_of, sparse_linear
from weft.layout import TypedEdges


class NoAnswer(Exception):
    """The arguments have none."""


def need(right):
    if not right:
        raise NoAnswer


def numbers(tensor):
    """The numbers of an index, which must be a vector of whole ones."""
    need(tensor.ndim == 1 and not tensor.is_floating_point())
    return tensor.tolist()


def look_up(x, index):
    need(all(0 <= i < len(x) for i in index))
    return x[np.array(index, dtype=np.int64)]


def sums(values, rows, count):
    need(len(values) == len(rows) and all(0 <= r < count for r in rows))
    out = np.zeros((count, *values.shape[1:]))
    for value, row in zip(values, rows, strict=True):
        out[row] += value
    return out


def softplus(x):
    return np.logaddexp(x, 0) - np.log(2)


def segments_of(values, offsets):
    starts = numbers(offsets)
    need(values.ndim > 0 and starts and starts[0] == 0 and starts[-1] == len(values))
    need(all(a <= b for a, b in pairwise(starts)))
    return [values.numpy()[a:b] for a, b in pairwise(starts)]


class Fuzz:
    """Random arguments; `rng` decides all."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.index = torch.int32

    def whole(self, low, high):
        return int(self.rng.integers(low, high))

    def randn(self, *shape):
        return torch.from_numpy(self.rng.normal(size=shape))

    def graph(self):
        """Sorted edges with both views, in pairs."""
        n = self.whole(1, 6)
        half = self.rng.integers(0, n, (2, self.whole(0, 5)))
        half = half[:, half[0] != half[1]]
        ends = np.concatenate([half, half[::-1]], axis=1)
        order = np.lexsort(ends)
        senders, receivers = ends[:, order]
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        count = half.shape[1]
        of_edge = np.empty(2 * count, dtype=np.int64)
        of_edge[place[:count]] = of_edge[place[count:]] = np.arange(count)
        out_order = np.argsort(senders, kind="stable")

        def tensor(values):
            return torch.from_numpy(np.ascontiguousarray(values)).to(self.index)

        def offsets(keys):
            return tensor(np.append(0, np.cumsum(np.bincount(keys, minlength=n))))

        return {
            "senders": tensor(senders),
            "receivers": tensor(receivers),
            "in_offsets": offsets(receivers),
            "out_offsets": offsets(senders),
            "out_order": tensor(out_order),
            "forward": tensor(place[:count]),
            "backward": tensor(place[count:]),
            "of_edge": tensor(of_edge),
        }, n

    def fault(self, tensor):
        """The tensor with something changed, perhaps for nothing."""
        kind = self.whole(0, 12)
        flat = tensor.numel()
        if tensor.dtype == torch.bool:
            return ~tensor
        if kind < 6 and flat and not tensor.is_floating_point():
            changed = tensor.clone()
            limit = torch.iinfo(tensor.dtype).max
            values = (-1, flat, flat + 1, 10**9, -(10**9), limit, -limit, 0, 1)
            changed.view(-1)[self.whole(0, flat)] = values[self.whole(0, len(values))]
            return changed
        if kind == 6:
            return tensor[: max(len(tensor) - 1, 0)] if tensor.ndim else tensor
        if kind == 7:
            return torch.cat([tensor, tensor[-1:]]) if tensor.ndim else tensor
        if kind == 8:
            return tensor.flip(0) if tensor.ndim else tensor
        if kind == 9 and tensor.ndim:
            # Not one after the other in memory, but right.
            return tensor.repeat_interleave(2, 0)[::2]
        if kind == 10:
            return tensor.reshape(-1)[:1].reshape(()) if flat else tensor
        if kind == 11 and not tensor.is_floating_point():
            return tensor.to((torch.float32, torch.int8)[self.whole(0, 2)])
        return tensor[None]


def segment_case(fuzz):
    sizes = fuzz.rng.integers(0, 4, fuzz.whole(0, 5))
    offsets = torch.from_numpy(np.append(0, np.cumsum(sizes))).to(fuzz.index)
    values = fuzz.randn(int(sizes.sum()), *(() if fuzz.whole(0, 2) else (fuzz.whole(0, 3),)))
    index = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)).to(fuzz.index)
    given = {"values": values, "offsets": offsets}
    name = ("sum", "mean", "max")[fuzz.whole(0, 3)]
    if name != "max" and fuzz.whole(0, 2):
        given["index"] = index

    def call(values, offsets, index=None):
        extra = () if index is None else (index,)
        return getattr(kernels, f"segment_{name}")(values, offsets, *extra)

    def answer(values, offsets, index=None):
        parts = segments_of(values, offsets)
        empty = np.zeros(values.shape[1:])
        reduce = {"sum": np.sum, "mean": np.mean, "max": np.max}[name]
        found = [reduce(part, axis=0) if len(part) else empty for part in parts]
        return np.array(found).reshape(len(parts), *values.shape[1:])

    return f"segment_{name}", given, call, answer


EDGES = ("senders", "receivers", "in_offsets", "out_offsets", "out_order")
PAIRS = ("forward", "backward", "of_edge")


def edge_case(fuzz):
    graph, n = fuzz.graph()
    edges = {name: graph[name] for name in EDGES}
    e, width = len(graph["senders"]), fuzz.whole(0, 3)
    kind = fuzz.whole(0, 6)
    x, values = fuzz.randn(n, width), fuzz.randn(e, width)

    def of(g):
        """The two ends of each edge, and N."""
        senders, receivers = numbers(g["senders"]), numbers(g["receivers"])
        need(len(senders) == len(receivers) and g["in_offsets"].ndim == 1)
        return senders, receivers, len(g["in_offsets"]) - 1

    def split(arguments):
        return {k: arguments[k] for k in EDGES}, [v for k, v in arguments.items() if k not in EDGES]

    def caller(function):
        def call(**arguments):
            g, rest = split(arguments)
            return function(SimpleNamespace(**g), *rest)

        return call

    if kind < 2:
        name = ("gather_senders", "gather_receivers")[kind]

        def answer(**arguments):
            g, (x,) = split(arguments)
            need(x.ndim > 0)
            return look_up(x.numpy(), numbers(g[EDGES[kind]]))

        return name, {**edges, "x": x}, caller(getattr(kernels, name)), answer
    if kind < 4:
        name = ("sum_to_senders", "sum_to_receivers")[kind - 2]

        def answer(**arguments):
            g, (values,) = split(arguments)
            need(values.ndim > 0)
            offsets = numbers(g[("out_offsets", "in_offsets")[kind - 2]])
            return sums(values.numpy(), numbers(g[EDGES[kind - 2]]), len(offsets) - 1)

        return name, {**edges, "values": values}, caller(getattr(kernels, name)), answer
    if kind == 4:
        given = {**edges, "x": x}
        if fuzz.whole(0, 2):
            given["weight"] = fuzz.randn(e)

        def answer(**arguments):
            g, (x, *weight) = split(arguments)
            senders, receivers, count = of(g)
            need(x.ndim > 0)
            messages = look_up(x.numpy(), senders)
            if weight:
                w = weight[0].numpy()
                need(w.ndim > 0 and len(w) == len(messages))
                w = w.reshape(len(w), *(1,) * (messages.ndim - 1)) if w.size == len(w) else w
                need(w.shape[1:] in (messages.shape[1:], (1,) * (messages.ndim - 1)))
                messages = messages * w
            return sums(messages, receivers, count)

        return "spmm", given, caller(kernels.spmm), answer

    def products(a, b, senders, receivers, in_offsets, out_offsets, out_order):
        views = (receivers, senders, in_offsets, None, out_offsets, out_order)
        return operators.edge_products(a, b, *views, False)

    def answer(a, b, **g):
        senders, receivers, _ = of(g)
        need(a.ndim == b.ndim == 2 and a.shape[1] == b.shape[1])
        return (look_up(a.numpy(), receivers) * look_up(b.numpy(), senders)).sum(1)

    return "edge_products", {"a": x, "b": fuzz.randn(n, width), **edges}, products, answer


def pair_case(fuzz):
    graph, n = fuzz.graph()
    e, p, width = len(graph["senders"]), len(graph["forward"]), fuzz.whole(1, 3)
    names = ("receivers", "senders", "in_offsets", "out_offsets", "out_order", *PAIRS)
    topology = {name: graph[name] for name in names}

    def views(g):
        order = (g["receivers"], g["senders"], g["in_offsets"], None)
        return (*order, g["out_offsets"], g["out_order"], *(g[name] for name in PAIRS))

    def ends(g):
        senders, receivers = numbers(g["senders"]), numbers(g["receivers"])
        need(len(senders) == len(receivers) == len(numbers(g["of_edge"])))
        return senders, receivers

    kind = fuzz.whole(0, 5)
    x, weight = fuzz.randn(n, width), fuzz.randn(p, width)
    if kind == 0:

        def answer(x, weight, **g):
            senders, receivers = ends(g)
            need(x.ndim == weight.ndim == 2 and x.shape[1] == weight.shape[1])
            rows = look_up(weight.numpy(), numbers(g["of_edge"]))
            return sums(look_up(x.numpy(), senders) * rows, receivers, len(g["in_offsets"]) - 1)

        call = lambda x, weight, **g: pair_spmm(x, weight, *views(g))  # noqa: E731
        return "pair_spmm", {"x": x, "weight": weight, **topology}, call, answer
    if kind == 1:

        def answer(a, b, **g):
            senders, receivers = ends(g)
            need(a.ndim == b.ndim == 2 and a.shape[1] == b.shape[1])
            products = look_up(a.numpy(), receivers) * look_up(b.numpy(), senders)
            return sums(products, numbers(g["of_edge"]), len(numbers(g["forward"])))

        call = lambda a, b, **g: pair_products(a, b, *views(g))  # noqa: E731
        return "pair_products", {"a": x, "b": fuzz.randn(n, width), **topology}, call, answer
    if kind == 2:
        given = {"pos": fuzz.randn(n, 3), **{k: graph[k] for k in ("senders", "receivers", *PAIRS)}}

        def call(pos, **g):
            return sorted_pairs(pos, None, *g.values(), 0.5)[0].sort()[0]

        def answer(pos, **g):
            senders, receivers = ends(g)
            need(pos.ndim == 2)
            vectors = look_up(pos.numpy(), senders) - look_up(pos.numpy(), receivers)
            lengths = np.sqrt((vectors**2).sum(1))
            return np.sort(np.maximum(look_up(lengths, numbers(g["forward"])), 1e-6))

        return "sorted_pairs", given, call, answer
    if kind == 3:
        given = {"a": x, "b": fuzz.randn(n, width), "c": weight, **topology}

        def call(a, b, c, **g):
            order = (g["senders"], g["receivers"], g["in_offsets"], g["out_offsets"])
            pairs = (g[name] for name in PAIRS)
            return kernels.edge_softplus(a, b, c, *order, g["out_order"], *pairs)

        def answer(a, b, c, **g):
            senders, receivers = ends(g)
            need(a.ndim == b.ndim == c.ndim == 2 and a.shape[1] == b.shape[1] == c.shape[1])
            own = look_up(c.numpy(), numbers(g["of_edge"]))
            return softplus(look_up(a.numpy(), senders) + look_up(b.numpy(), receivers) + own)

        return "edge_softplus", given, call, answer
    given = {
        "x": fuzz.randn(n, 3 * width),
        "mu": fuzz.randn(n, 3, width),
        "filters": fuzz.randn(p, 3 * width),
        "direction": fuzz.randn(e, 3),
        "edge_mask": torch.ones(e, dtype=torch.bool),
        **topology,
    }

    def call(x, mu, filters, direction, **g):
        fields = {name: g[name] for name in (*EDGES, "edge_mask")}
        batch = SimpleNamespace(**fields, pairs={name: g[name] for name in PAIRS})
        return painn_message(batch, x, mu, filters, direction)[1]

    def answer(x, mu, filters, direction, **g):
        senders, receivers = ends(g)
        need(x.ndim == filters.ndim == direction.ndim == 2 and mu.ndim == 3)
        mask = g["edge_mask"].numpy()
        need(mask.shape == (len(senders),) and direction.shape == (len(senders), 3))
        parts = look_up(filters.numpy(), numbers(g["of_edge"])) * mask[:, None]
        need(x.shape[1] == parts.shape[1] == 3 * mu.shape[2])
        w = np.split(parts, 3, axis=1)
        xs = np.split(look_up(x.numpy(), senders), 3, axis=1)
        vectors = (w[1] * xs[1])[:, None] * direction.numpy()[:, :, None]
        vectors = vectors + (w[2] * xs[2])[:, None] * look_up(mu.numpy(), senders)
        return sums(vectors, receivers, len(g["in_offsets"]) - 1)

    return "painn_message", given, call, answer


def typed_case(fuzz):
    n, types, e = fuzz.whole(1, 5), fuzz.whole(1, 4), fuzz.whole(0, 8)
    ends, kinds = fuzz.rng.integers(0, n, (2, e)), fuzz.rng.integers(0, types, e)
    edges = TypedEdges.of(*ends, kinds, n, types)
    fields = {k: v for k, v in vars(edges).items() if isinstance(v, torch.Tensor)}
    given = {"h": fuzz.randn(n, 2), "weight": fuzz.randn(types, 2, 3), **fields}

    def call(h, weight, **fields):
        return TypedEdges(**fields, num_types=types).propagate(h, weight)

    def answer(h, weight, **fields):
        def rows_of(offsets):
            lengths = np.diff(numbers(fields[offsets]))
            return np.repeat(np.arange(len(lengths)), lengths).tolist()

        need(h.shape == (n, 2) and weight.shape == (types, 2, 3))
        of_rows = look_up(h.numpy(), numbers(fields["into_nodes"]))
        count = len(fields["into_offsets"]) - 1
        gathered = sums(of_rows, rows_of("into_offsets"), count)
        chosen = look_up(np.array(numbers(fields["chunk_types"])), rows_of("chunk_starts"))
        need(len(chosen) == count)
        made = np.einsum("rh,rho->ro", gathered, look_up(weight.numpy(), chosen.tolist()))
        return sums(look_up(made, numbers(fields["out_rows"])), rows_of("out_offsets"), n)

    return "typed_messages", given, call, answer


def sparse_case(fuzz):
    outputs, inputs, samples = fuzz.whole(1, 5), fuzz.whole(1, 5), fuzz.whole(0, 4)
    places = np.flatnonzero(fuzz.rng.random(outputs * inputs) < 0.5)
    pattern = pattern_of(torch.from_numpy(places), outputs, inputs)
    x = fuzz.randn(samples, inputs)
    given = {"x": x, "values": fuzz.randn(len(places)), "pattern": pattern}
    sparse = bool(fuzz.whole(0, 2))

    def answer(x, values, pattern, **csr):
        need(torch.equal(pattern, given["pattern"]) and values.shape == (len(places),))
        weight = np.zeros(outputs * inputs)
        weight[places] = values.numpy()
        need(x.ndim == 2 and x.shape[1] == inputs)
        return x.numpy() @ weight.reshape(outputs, inputs).T

    if not sparse:
        call = lambda x, values, pattern: sparse_linear(x, values, None, pattern, outputs)  # noqa: E731
        return "sparse_linear", given, call, answer
    csr = x.to_sparse_csr()
    given |= {"columns": csr.col_indices(), "starts": csr.crow_indices()}
    del given["x"]

    def call(values, pattern, columns, starts):
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            unchecked = torch.sparse_csr_tensor(starts, columns, csr.values(), (samples, inputs))
        return sparse_input_linear(unchecked, values, None, pattern, outputs)

    def sparse_answer(values, pattern, columns, starts):
        lengths = np.diff(numbers(starts))
        need(len(lengths) == samples and (lengths >= 0).all() and lengths.sum() == len(columns))
        need(all(0 <= column < inputs for column in numbers(columns)))
        dense = np.zeros((samples, inputs))
        places = (np.repeat(np.arange(samples), lengths), columns.numpy())
        np.add.at(dense, places, csr.values().numpy())
        return answer(torch.from_numpy(dense), values, pattern)

    return "sparse_input_linear", given, call, sparse_answer


def dense_case(fuzz):
    rows, width = fuzz.whole(0, 4), fuzz.whole(1, 3)
    kind = fuzz.whole(0, 3)
    if kind == 0:
        d, weight = fuzz.randn(rows).abs(), fuzz.randn(fuzz.whole(1, 4), width)

        def answer(d, weight):
            need(d.ndim == 1 and weight.ndim == 2 and len(weight) > 0)
            places = np.arange(len(weight)) * 0.5
            return np.exp(-2.0 * (d.numpy()[:, None] - places) ** 2) @ weight.numpy()

        call = lambda d, weight: kernels.gaussian_product(d, weight, spacing=0.5, sharpness=2.0)  # noqa: E731
        return "gaussian_product", {"d": d, "weight": weight}, call, answer
    if kind == 1:
        given = {
            "x": fuzz.randn(rows, 2),
            "h": fuzz.randn(rows, width),
            "a": fuzz.randn(3 * width, 2),
            "b": fuzz.randn(3 * width, width),
            "c": fuzz.randn(3 * width),
            "d": fuzz.randn(3 * width),
        }

        def answer(x, h, a, b, c, d):
            need(h.ndim == 2 and x.ndim == 2 and a.ndim == b.ndim == 2 and c.ndim == d.ndim == 1)
            need(len(x) == len(h) and a.shape == (3 * h.shape[1], x.shape[1]))
            need(b.shape == (3 * h.shape[1], h.shape[1]) and len(c) == len(d) == len(a))
            return torch.gru_cell(x, h, a, b, c, d).numpy()

        return "gru", given, lambda **g: kernels.gru(*g.values()), answer
    given = {"d": fuzz.randn(rows).abs(), "first": fuzz.randn(1, width, 3)}
    given["second"] = fuzz.randn(1, width, width)

    def call(d, first, second):
        settings = {"spacing": 0.5, "sharpness": 2.0, "activate": False}
        return kernels.radial_filters(d, first, None, second, None, **settings)[0]

    def answer(d, first, second):
        need(d.ndim == 1 and first.ndim == second.ndim == 3 and len(first) == len(second) > 0)
        need(second.shape[1:] == (first.shape[1],) * 2 and first.shape[2] > 0)
        basis = np.exp(-2.0 * (d.numpy()[:, None] - np.arange(first.shape[2]) * 0.5) ** 2)
        return softplus(basis @ first.numpy()[0].T) @ second.numpy()[0].T

    return "radial_filters", given, call, answer


MAKERS = (segment_case, edge_case, edge_case, pair_case, pair_case, typed_case, sparse_case,
          dense_case)  # fmt: skip


def judge(case, wrong):
    """What is wrong with what an operator did, or its verdict."""
    name, given, call, answer = case
    try:
        found = call(**given)
    except ValueError as error:
        return "refused" if wrong else f"PROBLEM {name}: right arguments refused: {error}"
    except Exception as error:
        return f"PROBLEM {name}: {type(error).__name__}: {error}"
    try:
        expected = answer(**given)
    except NoAnswer:
        return f"PROBLEM {name}: an answer where there is none: {given}"
    right = found.shape == expected.shape and np.allclose(found.numpy(), expected, atol=1e-9)
    return "right" if right else f"PROBLEM {name}: {found} is not {expected}: {given}"


def main(cases, seed):
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    fuzz = Fuzz(seed)
    verdicts, problems, names = Counter(), [], Counter()
    for number in range(cases):
        maker = MAKERS[fuzz.whole(0, len(MAKERS))]
        fuzz.index = torch.int32
        if maker in (segment_case, edge_case) and fuzz.whole(0, 2):
            fuzz.index = torch.int64
        name, given, call, answer = maker(fuzz)
        wrong = fuzz.whole(0, 3) > 0
        if wrong:
            key = list(given)[fuzz.whole(0, len(given))]
            given[key] = fuzz.fault(given[key])
        verdict = judge((name, given, call, answer), wrong)
        names[name] += 1
        verdicts[verdict if verdict in ("refused", "right") else "problem"] += 1
        if verdict.startswith("PROBLEM"):
            problems.append(f"case {number}: {verdict}")
    about = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    sys.stdout.write("\n".join([*problems[:20], f"{cases} cases, {len(names)} operators: {about}"]))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
