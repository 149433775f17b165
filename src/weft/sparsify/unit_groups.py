"""The hidden units of a model by its exported graph: which go together, and which do nothing.

The graph is walked with a number for each unit of each tensor's last axis and of each axis of each
weight. A linear layer's outputs are new units, operations that treat units alike hand them on, an
addition makes two into one, and the linear layer that reads them joins its columns to them. What
is not understood fixes its units, and says why. Beside the numbers goes what is constant: a unit
without inputs has one value for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, fx
from torch.export import ExportedProgram

OUTPUT = "they are outputs of the model"
_INPUT = "they are joined with those of an input of the model"

# Operations of the same rows and units; those that torch tags as pointwise are others.
_ALIKE = ("clone", "contiguous", "to", "_to_copy", "type_as", "alias", "detach", "lift_fresh_copy")
# Operations that pick rows.
_PICKING = ("index_select", "index", "gather", "slice", "select", "narrow")
# Operations that make one row of many: what was 0 stays 0.
_SUMMING = ("sum", "mean", "amax", "amin")
# Operations that write rows into others; a row that is 0 in both is 0.
_WRITING = ("scatter_add", "index_add", "scatter_reduce", "scatter", "index_put", "index_copy")
_MAKING = ("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "zeros_like",
           "ones_like", "full_like", "new_empty", "empty_like")  # fmt: skip
_VIEW = "a view splits or joins them, as into attention heads"


@dataclass(frozen=True, eq=False)
class _Value:
    """What is known of a tensor of the graph.

    Attributes:
        axes: the units of each dimension, int64; None where there are none. Of what is computed
            from inputs only the last dimension has any.
        tensor: its numbers, if parameters alone make it.
        known: bool [C], which units have one value for all rows.
        value: [C], that value.
        uniform: the last dimension is one value repeated.
    """

    axes: tuple[Tensor | None, ...] = ()
    tensor: Tensor | None = None
    known: Tensor | None = None
    value: Tensor | None = None
    uniform: bool = False

    @property
    def units(self) -> Tensor | None:
        return self.axes[-1] if self.axes else None

    def constants(self, width: int) -> tuple[Tensor, Tensor]:
        """`known` and `value` of the last dimension, or of a single number."""
        tensor = self.tensor
        if tensor is not None:
            rows = tensor.reshape(-1, 1 if tensor.numel() == 1 else tensor.shape[-1])
            known, value = (rows == rows[0]).all(0), rows[0]
            return known.expand(width), value.expand(width)
        if self.known is None or self.value is None:
            return torch.zeros(width, dtype=torch.bool), torch.zeros(width)
        return self.known.expand(width), self.value.expand(width)


@dataclass(frozen=True, eq=False)
class Linear:
    """A product of features and a weight.

    Attributes:
        node: of the graph.
        name: of the layer, or of the parameter that its weight is made of.
        weight: the name of the parameter, where the weight is one as it is.
        bias: that of its bias, where nothing else reads that.
        matrix: [out, in], its numbers.
        inputs: units that it reads.
        outputs: units that it makes.
        known: bool [in], which inputs are constant.
        value: [in], their values.
    """

    node: str
    name: str
    weight: str | None
    bias: str | None
    matrix: Tensor
    inputs: Tensor
    outputs: Tensor
    known: Tensor
    value: Tensor


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a graph, for the weights of now.

    Attributes:
        axes: the units of each axis of each parameter and buffer, by name.
        linears: the products that are followed.
        labels: the group of each unit.
        fixed: why units cannot be removed.
    """

    axes: Mapping[str, tuple[Tensor | None, ...]]
    linears: tuple[Linear, ...]
    labels: Tensor
    fixed: tuple[tuple[Tensor, str], ...]

    def reason(self, units: Tensor) -> str:
        """Why some of the units are fixed; empty where none is."""
        groups = self.labels[units]
        found = [why for others, why in self.fixed if torch.isin(self.labels[others], groups).any()]
        # That its end is reached says least.
        return next((why for why in found if why != OUTPUT), found[0] if found else "")


def follow(
    program: ExportedProgram, tensors: Mapping[str, Tensor], biases: Mapping[str, Tensor]
) -> Units:
    """Follow the units of a graph.

    Args:
        program: see `weft.models.exported_program.program_of`.
        tensors: the numbers of parameters and buffers by name.
        biases: those of biases that linear layers are to get, by the name of their node.
    """
    return _Walk(program, tensors, biases).walk()


@dataclass(eq=False)
class _Walk:
    program: ExportedProgram
    tensors: Mapping[str, Tensor]
    biases: Mapping[str, Tensor]
    count: int = 0
    joined: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    fixed: list[tuple[Tensor, str]] = field(default_factory=list)
    linears: list[Linear] = field(default_factory=list)
    values: dict[fx.Node, _Value] = field(default_factory=dict)
    names: dict[fx.Node, str] = field(default_factory=dict)
    memory: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def walk(self) -> Units:
        signature = self.program.graph_signature
        held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        axes: dict[str, tuple[Tensor | None, ...]] = {}
        for node in self.program.graph.nodes:
            name = held.get(node.name)
            if node.op == "placeholder" and name is not None and name in self.tensors:
                tensor = self.tensors[name]
                if name not in axes:
                    axes[name] = tuple(self._new(size) for size in tensor.shape)
                self.values[node] = _Value(axes[name], tensor)
                self.names[node] = name
            elif node.op == "placeholder":
                self.values[node] = value = self._given(node)
                self._fix([value], _INPUT)
            elif node.op == "output":
                self._fix(self._operands(node), OUTPUT)
            elif node.op == "call_function":
                self.values[node] = self._call(node)
                self._write(node)
        return Units(axes, tuple(self.linears), self._labels(), tuple(self.fixed))

    def _labels(self) -> Tensor:
        left, right = (
            torch.cat([pair[side] for pair in self.joined] or [torch.zeros(0, dtype=torch.int64)])
            for side in (0, 1)
        )
        graph = coo_array(
            (np.ones(len(left), dtype=np.int8), (left.numpy(), right.numpy())),
            shape=(self.count, self.count),
        )
        labels = connected_components(graph, directed=False)[1] if self.count else np.zeros(0)
        return torch.from_numpy(labels.astype(np.int64))

    # Units

    def _new(self, size: int) -> Tensor:
        self.count += size
        return torch.arange(self.count - size, self.count)

    def _given(self, node: fx.Node) -> _Value:
        """A tensor whose units are its own."""
        shape = _shape(node)
        if not shape or not isinstance(shape[-1], int):
            return _Value((None,) * len(shape or ()))
        return _Value((*(None,) * (len(shape) - 1), self._new(shape[-1])))

    def _join(self, a: Tensor | None, b: Tensor | None) -> None:
        if a is not None and b is not None and a is not b:
            self.joined.append((a, b))

    def _fix(self, values: list[_Value], why: str, *, last: bool = True) -> None:
        for value in values:
            for units in value.axes if last else value.axes[:-1]:
                if units is not None:
                    self.fixed.append((units, why))

    def _operands(self, node: fx.Node) -> list[_Value]:
        return [self.values[each] for each in node.all_input_nodes if each in self.values]

    def _write(self, node: fx.Node) -> None:
        """What an operation in place leaves in the tensors that share its memory."""
        schema = getattr(node.target, "_schema", None)
        alias = schema.returns[0].alias_info if schema is not None and schema.returns else None
        if alias is None or not node.args or not isinstance(node.args[0], fx.Node):
            return
        first = self.memory[node] = self.memory.get(node.args[0], node.args[0])
        if alias.is_write:
            found = self.values[node]
            for other in [first, *self.memory]:
                if self.memory.get(other, other) is first:
                    self.values[other] = replace(self.values[other], known=None)
            self.values[node] = self.values[node.args[0]] = found

    # Operations

    def _call(self, node: fx.Node) -> _Value:
        name, operands = _name(node), self._operands(node)
        if name in ("sym_size", "_assert_tensor_metadata") or not operands:
            # Of a size alone, or of nothing: a new tensor.
            return self._made(node, name) if name in _MAKING else _Value()
        if name == "getitem":
            return operands[0]
        if all(value.tensor is not None for value in operands) and name not in _MAKING:
            found = self._constant(node, name, operands)
        else:
            found = self._computed(node, name)
        if found is None:
            reads = f"the operation {name} reads them all at once"
            self._fix(operands, _VIEW if name in ("view", "reshape") else reads)
            return _Value((None,) * len(_shape(node) or ()))
        return found

    def _made(self, node: fx.Node, name: str) -> _Value:
        value = self._given(node)
        units = value.units
        if units is None:
            return value
        if name.endswith(("empty", "empty_like")):
            return value
        number = 1.0 if "ones" in name else 0.0
        if "full" in name:
            given = node.args[2 if name == "new_full" else 1]
            if not isinstance(given, (int, float)):
                return value
            number = float(given)
        same = torch.full((len(units),), number)
        return replace(value, known=torch.ones_like(same, dtype=torch.bool), value=same)

    def _constant(self, node: fx.Node, name: str, operands: list[_Value]) -> _Value | None:
        """Of parameters alone."""
        first = operands[0]
        assert first.tensor is not None
        rank = first.tensor.ndim
        axes: tuple[Tensor | None, ...]
        args: Any = node.args
        if name in ("t", "numpy_T"):
            axes = first.axes[::-1]
        elif name in ("transpose", "permute") and len(operands) == 1:
            order = torch.arange(rank)
            if name == "permute":
                order = torch.tensor([d % rank for d in args[1]])
            else:
                a, b = (d % rank for d in args[1:3])
                order[[a, b]] = order[[b, a]]
            axes = tuple(first.axes[int(d)] for d in order)
        elif name == "select":
            dim = args[1] % rank
            self._fix([_Value((first.axes[dim],))], "one of them is taken out")
            axes = first.axes[:dim] + first.axes[dim + 1 :]
        elif _is_pointwise(node, name) or name in _ALIKE:
            shapes = {tuple(v.tensor.shape) for v in operands if v.tensor is not None}
            shapes.discard(())
            if len(shapes) > 1:
                return None
            wide = next((v for v in operands if v.axes), first)
            for other in operands:
                for a, b in zip(wide.axes, other.axes, strict=False):
                    self._join(a, b)
            axes = wide.axes
        else:
            return None
        return _Value(axes, _evaluated(node, lambda each: self.values[each].tensor))

    def _computed(self, node: fx.Node, name: str) -> _Value | None:
        """Of inputs; None for an operation that is not followed."""
        args: Any = node.args
        if name in ("linear", "mm", "matmul", "addmm"):
            return self._linear(node, name)
        if _is_pointwise(node, name) or name in _ALIKE:
            return self._pointwise(node, name)
        if name == "batch_norm":
            return self._batch_norm(node)
        if name == "dropout":
            return None if args[2] and args[1] else self.values[args[0]]
        if name in _MAKING:
            return self._made(node, name)
        if name == "embedding":
            table = self.values[args[0]]
            if table.tensor is None:
                return None
            self._fix([table], "they are rows of a table", last=False)
            known, value = table.constants(table.tensor.shape[-1])
            leading = (None,) * (len(_shape(node) or ()) - 1)
            return _Value((*leading, table.units), known=known, value=value)
        if name == "cat":
            return self._cat(node)
        x = self.values.get(args[0]) if args and isinstance(args[0], fx.Node) else None
        if x is None:
            return None
        if name in ("expand", "expand_as"):
            return self._expanded(node, x)
        if x.units is None and name not in _WRITING:
            return _Value((None,) * len(_shape(node) or ()))
        return self._by_rows(node, name, x)

    def _linear(self, node: fx.Node, name: str) -> _Value | None:
        args: Any = node.args
        bias_node = None
        if name == "addmm":
            if node.kwargs:
                return None
            bias_node, *args = args
        elif name == "linear" and len(args) > 2:
            bias_node = args[2]
        x, weight = self.values[args[0]], self.values[args[1]]
        bias = None if bias_node is None else self.values[bias_node]
        if weight.tensor is None or weight.tensor.ndim != 2 or x.tensor is not None:
            return None
        if bias is not None and (bias.tensor is None or bias.tensor.ndim != 1):
            return None
        out, into = weight.axes if name == "linear" else weight.axes[::-1]
        matrix = weight.tensor if name == "linear" else weight.tensor.T
        if into is None or out is None:
            self._fix([x, weight], "their weight is computed")
            return _Value((None,) * len(_shape(node) or ()))
        known, value = x.constants(len(into))
        if x.units is None:
            self._fix([_Value((into,))], _INPUT)
        self._join(x.units, into)
        if bias is not None:
            self._join(bias.units, out)
            sums = bias.tensor
            assert sums is not None
        else:
            sums = matrix.new_zeros(len(out))
        if node.name in self.biases:
            sums = sums + self.biases[node.name]
        # A bias that is read elsewhere too takes no more.
        own = bias_node if bias_node is not None and len(bias_node.users) == 1 else None
        self.linears.append(
            Linear(
                node=node.name,
                name=self._origin(args[1], node.name),
                weight=self.names.get(args[1]),
                bias=None if own is None else self.names.get(own),
                matrix=matrix,
                inputs=into,
                outputs=out,
                known=known,
                value=value,
            )
        )
        steady = (matrix[:, ~known] == 0).all(1)
        value = torch.where(known, value, 0).to(matrix)
        leading = (None,) * (len(_shape(node) or ()) - 1)
        # Of what is not finite only products with other numbers than 0 count, as in `compact`.
        products = torch.where(matrix == 0, 0, matrix * value)
        return _Value((*leading, out), known=steady, value=products.sum(1) + sums)

    def _origin(self, node: fx.Node, default: str) -> str:
        while node not in self.names and node.all_input_nodes:
            node = node.all_input_nodes[0]
        return self.names.get(node, default).removesuffix(".weight")

    def _pointwise(self, node: fx.Node, name: str) -> _Value | None:
        shape = _shape(node)
        nodes = [each for each in node.all_input_nodes if each in self.values]
        if shape is None or not shape or not isinstance(shape[-1], int):
            self._fix([self.values[each] for each in nodes], "they are spread out by a product")
            return _Value((None,) * len(shape or ()))
        width = shape[-1]
        units: Tensor | None = None
        uniform, fixed = True, False
        constants: dict[fx.Node, tuple[Tensor, Tensor]] = {}
        for each in nodes:
            value, own = self.values[each], _shape(each)
            constants[each] = value.constants(width)
            if value.tensor is not None and value.tensor.numel() == 1:
                self._fix([value], "it is a single number")
            elif own and own[-1] == width and width > 1 and not value.uniform:
                uniform = False
                self._fix([value], "they differ from row to row", last=False)
                if value.units is None:
                    fixed = True
                self._join(units, value.units)
                units = value.units if units is None else units
            elif own and own[-1] == 1 and width == 1:
                self._fix([value], "they differ from row to row", last=False)
                self._join(units, value.units)
                units = value.units if units is None else units
            elif own:
                self._fix([value], "each of them is spread over others")
        leading = (None,) * (len(shape) - 1)
        if units is None:
            return _Value((None,) * len(shape), uniform=uniform and width > 1)
        if fixed:
            self._fix([_Value((units,))], "a tensor that no layer makes is combined with them")
        known = torch.ones(width, dtype=torch.bool)
        zero = torch.zeros(width, dtype=torch.bool)
        for each, (found, number) in constants.items():
            known &= found
            # A product with 0 is 0; what it is multiplied with or divided by is taken as finite.
            if name == "mul" or (name == "div" and each is node.args[0]):
                zero |= found & (number == 0)
        given = {each: number for each, (_, number) in constants.items()}
        value_of = _evaluated(node, given.get) if bool(known.any()) else torch.zeros(width)
        if value_of is None:
            known, value_of = torch.zeros_like(known), torch.zeros(width)
        value_of = torch.where(zero, 0, value_of.expand(width))
        return _Value((*leading, units), known=known | zero, value=value_of)

    def _batch_norm(self, node: fx.Node) -> _Value | None:
        args: Any = node.args
        x, *others = (self.values[each] for each in args[:5] if each is not None)
        # In training it mixes rows; of more dimensions it takes the second for the units.
        if args[5] or len(_shape(args[0]) or ()) != 2 or x.units is None:
            return None
        known, value = x.constants(len(x.units))
        for other in others:
            if other.tensor is None:
                return None
            self._join(x.units, other.units)
        replaced = {each: self.values[each].tensor for each in args[:5] if each is not None}
        replaced[args[0]] = value.to(replaced[args[4]])[None]
        result = _evaluated(node, replaced.get)
        if result is None:
            return None
        return _Value((None, x.units), known=known, value=result[0])

    def _cat(self, node: fx.Node) -> _Value | None:
        args: Any = node.args
        rank = len(_shape(node) or ())
        dim = (args[1] if len(args) > 1 else 0) % rank
        parts = [self.values[each] for each in args[0]]
        units = [part.units for part in parts if part.units is not None]
        if not units:
            return _Value((None,) * rank)
        if len(units) < len(parts) or any(part.tensor is not None for part in parts):
            return None
        leading = (None,) * (rank - 1)
        found = [part.constants(len(own)) for part, own in zip(parts, units, strict=True)]
        if dim == rank - 1:
            known, value = (torch.cat([each[side] for each in found]) for side in (0, 1))
            return _Value((*leading, torch.cat(units)), known=known, value=value)
        known, value = found[0]
        for other, (steady, number) in zip(units[1:], found[1:], strict=True):
            self._join(units[0], other)
            known = known & steady & (number == value)
        return _Value((*leading, units[0]), known=known, value=value)

    def _expanded(self, node: fx.Node, x: _Value) -> _Value | None:
        args: Any = node.args
        before, after = _shape(args[0]), _shape(node)
        if not before or not after:
            return None
        leading = (None,) * (len(after) - 1)
        if before[-1] == after[-1]:
            return _Value((*leading, x.units), known=x.known, value=x.value, uniform=x.uniform)
        self._fix([x], "each of them is spread over others")
        return _Value((None,) * len(after), uniform=True)

    def _by_rows(self, node: fx.Node, name: str, x: _Value) -> _Value | None:
        """Operations that leave the last axis alone."""
        args: Any = node.args
        before, after = _shape(args[0]), _shape(node)
        if before is None or not after or before[-1] != after[-1]:
            return None
        rank, leading = len(before), (None,) * (len(after) - 1)
        known, value = x.constants(after[-1]) if isinstance(after[-1], int) else (None, None)
        if name in ("view", "reshape"):
            same = len(after) == rank
            return replace(x, axes=(*leading, x.units)) if same else None
        dims: Any = args[1] if len(args) > 1 else []
        if name in ("index", "index_put"):
            whole = len(dims) < rank or dims[-1] is None
        elif name == "unsqueeze":
            whole = dims % len(after) != len(after) - 1
        elif name in (*_PICKING, *_SUMMING, *_WRITING, "squeeze"):
            # A slice has a default.
            listed = dims if isinstance(dims, (list, tuple)) else [dims]
            listed = listed or ([0] if name == "slice" else [-1])
            whole = all(d % rank != rank - 1 for d in listed)
        else:
            return None
        if not whole:
            return None
        if name in _PICKING or name in ("unsqueeze", "squeeze"):
            return _Value((*leading, x.units), known=known, value=value)
        if name in _SUMMING:
            zero = None if known is None else known & (value == 0)
            return _Value((*leading, x.units), known=zero, value=value)
        source = args[2] if name == "index_put" else args[3]
        if not isinstance(source, fx.Node) or (_shape(source) or (0,))[-1] != after[-1]:
            return None
        written = self.values[source]
        if written.units is None and x.units is None:
            return _Value((None,) * len(after))
        if written.tensor is not None or written.units is None or x.units is None:
            return None
        assert known is not None
        assert value is not None
        self._join(x.units, written.units)
        steady, number = written.constants(len(x.units))
        zero = known & steady & (value == 0) & (number == 0)
        return _Value((*leading, x.units), known=zero, value=torch.zeros(len(x.units)))


def _name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return str(getattr(node.target, "__name__", node.target))
    found: str = schema.name
    name = found.removeprefix("aten::")
    # An operation in place computes the same.
    return name.rstrip("_") if schema.returns and _writes(schema) else name


def _writes(schema: Any) -> bool:
    alias = schema.returns[0].alias_info
    return alias is not None and bool(alias.is_write)


def _shape(node: fx.Node) -> tuple[Any, ...] | None:
    """The sizes; symbols where they may vary."""
    value = node.meta.get("val")
    return tuple(map(_size, value.shape)) if isinstance(value, Tensor) else None


def _size(size: Any) -> Any:
    """A number; a symbol that turned out to be fixed has a value."""
    fixed = isinstance(size, int) or size.node.maybe_as_int() is not None
    return int(size) if fixed else size


def _is_pointwise(node: fx.Node, name: str) -> bool:
    if name == "prelu":
        # With a weight for each unit it is one of the second axis.
        args: Any = node.args
        shape = _shape(args[1])
        return shape is not None and all(size == 1 for size in shape)
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _evaluated(node: fx.Node, given: Callable[[fx.Node], Tensor | None]) -> Any:
    """The operation's result for other operands; None where it does not take them."""

    def put(each: fx.Node) -> Any:
        found = given(each)
        if found is None:
            raise LookupError(each.name)
        # An operation in place writes into it.
        return found.clone()

    try:
        target: Any = node.target
        args: Any = fx.map_arg(node.args, put)
        kwargs: Any = fx.map_arg(node.kwargs, put)
        return target(*args, **kwargs)
    except (LookupError, RuntimeError, TypeError, ValueError):
        return None
