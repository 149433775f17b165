"""To and from torch_geometric, ASE, NetworkX and SciPy; each is imported when it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import DataError
from weft.graphs.batch import GraphBatch, assemble
from weft.graphs.build import table_from_columns
from weft.graphs.graph import LEVEL_FIELDS, Array, Column, Graph, Level
from weft.graphs.table import offsets_of

if TYPE_CHECKING:
    import scipy.sparse

# Names that torch_geometric reserves in a Data or Batch.
_PYG_OWN = ("edge_index", "num_nodes", "batch", "ptr")


def _load(module: str, install: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this conversion needs {module.partition('.')[0]} ({error}): pip install {install}"
        ) from error


# torch_geometric


def graph_from_pyg(data: Any, *, levels: Mapping[str, Level] | None = None) -> Graph:
    """A torch_geometric `Data` as a Graph; edge_index[0] sends, edge_index[1] receives.

    Tensors and numbers become columns: of nodes or edges where `data.is_node_attr` or
    `data.is_edge_attr` says so, else of the graph, without their leading dimension of 1 if they
    have it. A `y` of one row is the graph's, also in a graph of one node or one edge. Text becomes
    a ragged column of UTF-8 bytes.

    Args:
        data: a `torch_geometric.data.Data`.
        levels: the level of attributes that does not follow from their shape.

    Raises:
        DataError: an attribute that no column can hold; the message names it.
    """
    columns: dict[str, dict[str, Array]] = {name: {} for name in LEVEL_FIELDS.values()}
    for name, value in _pyg_attributes(data):
        if isinstance(value, str):
            columns["ragged"][name] = np.frombuffer(value.encode(), dtype=np.uint8)
            continue
        values = _pyg_array(data, name, value)
        level = (levels or {}).get(name) or _pyg_level(data, name, value, rows=1)
        if level == "graph" and values.ndim and values.shape[0] == 1:
            values = values[0, ...]
        columns[LEVEL_FIELDS[level]][name] = values
    senders, receivers = _pyg_ends(data)
    return Graph(
        num_nodes=int(data.num_nodes or 0),
        senders=senders,
        receivers=receivers,
        **columns,
    )


def graph_to_pyg(graph: Graph) -> Any:
    """The graph as a torch_geometric `Data` of copies, with int64 edge_index [2, e].

    Columns become attributes of the same name; a graph column of shape [...] becomes [1, ...],
    which is what torch_geometric's batches stack; ragged columns stay as they are.
    """
    pyg = _load("torch_geometric.data", "torch_geometric")
    ends = np.stack([graph.senders, graph.receivers]).astype(np.int64)
    attributes = {
        **{name: _tensor(values) for name, values in graph.nodes.items()},
        **{name: _tensor(values) for name, values in graph.edges.items()},
        **{name: _tensor(values)[None] for name, values in graph.graph.items()},
        **{name: _tensor(values) for name, values in graph.ragged.items()},
    }
    for name in _PYG_OWN:
        if name in attributes:
            raise DataError(f"torch_geometric reserves the name '{name}'; rename the column")
    return pyg.Data(edge_index=torch.from_numpy(ends), num_nodes=graph.num_nodes, **attributes)


def batch_to_pyg(batch: GraphBatch) -> Any:
    """The real graphs of a batch as a torch_geometric `Batch` on the same device."""
    pyg = _load("torch_geometric.data", "torch_geometric")
    graphs = batch.unbatch()
    if not graphs:
        raise DataError("the batch has no real graphs; torch_geometric has no empty Batch")
    return pyg.Batch.from_data_list([graph_to_pyg(graph) for graph in graphs]).to(
        batch.senders.device
    )


def batch_from_pyg(batch: Any, *, levels: Mapping[str, Level] | None = None) -> GraphBatch:
    """A torch_geometric `Batch` as an unpadded GraphBatch on the same device.

    Edges are sorted by receiver, with their columns. Attributes are taken as in `graph_from_pyg`;
    text and attributes declared ragged in `levels` stay behind, as they do in `assemble`.
    """
    if getattr(batch, "batch", None) is None:
        raise DataError("not a torch_geometric Batch: it has no vector `batch`; use graph_from_pyg")
    count = int(batch.num_graphs)
    node_graph = _array(batch.batch)
    senders, receivers = _pyg_ends(batch)
    if (np.diff(node_graph) < 0).any():
        raise DataError("the nodes of the Batch are not in the order of its graphs")
    if senders.size and min(senders.min(), receivers.min()) < 0:
        raise DataError("edge_index of the Batch has negative entries")
    if senders.size and max(senders.max(), receivers.max()) >= node_graph.size:
        raise DataError(f"edge_index of the Batch exceeds its {node_graph.size} nodes")
    num_nodes = np.bincount(node_graph, minlength=count)
    edge_graph = node_graph[receivers]
    across = np.flatnonzero(edge_graph != node_graph[senders])
    if across.size:
        raise DataError(f"edge {across[0]} of the Batch joins two graphs")
    order = np.argsort(edge_graph, kind="stable")
    first = offsets_of(num_nodes)[:-1][edge_graph[order]]
    columns = {"senders": senders[order] - first, "receivers": receivers[order] - first}
    schema: dict[str, Column] = {}
    for name, value in _pyg_attributes(batch):
        if isinstance(value, (str, list)):
            continue
        values = _pyg_array(batch, name, value)
        level = (levels or {}).get(name) or _pyg_level(batch, name, value, rows=count)
        if level == "ragged":
            continue
        rows = {"node": node_graph.size, "edge": senders.size, "graph": count}[level]
        if values.ndim == 0 or values.shape[0] != rows:
            raise DataError(
                f"attribute '{name}' of the Batch has shape {list(values.shape)}: a row for each "
                f"of {node_graph.size} nodes, {senders.size} edges or {count} graphs is needed"
            )
        columns[name] = values[order] if level == "edge" else values
        schema[name] = Column(
            level=level, dtype=values.dtype.name, shape=values.shape[1:], missing=True
        )
    table = table_from_columns(
        schema,
        num_nodes=num_nodes,
        num_edges=np.bincount(edge_graph, minlength=count),
        columns=columns,
    )
    return assemble(table, range(count)).to(batch.batch.device)


def _pyg_attributes(data: Any) -> Iterable[tuple[str, Any]]:
    if hasattr(data, "node_types"):
        raise DataError("heterogeneous data (several kinds of nodes) cannot be converted")
    return [(name, data[name]) for name in data.keys() if name not in _PYG_OWN]  # noqa: SIM118


def _pyg_ends(data: Any) -> Array:
    index = getattr(data, "edge_index", None)
    if index is None:
        return np.empty((2, 0), dtype=np.int64)
    if not isinstance(index, Tensor) or index.layout != torch.strided:
        raise DataError("edge_index is a sparse matrix; convert it to COO pairs [2, e] first")
    return _array(index)


def _pyg_array(data: Any, name: str, value: Any) -> Array:
    """A tensor, array or number of `data`, as numpy."""
    if isinstance(value, Tensor) and value.layout == torch.strided:
        values = _array(value)
    elif isinstance(value, (bool, int, float, np.ndarray, np.generic)):
        values = np.asarray(value)
    else:
        raise DataError(
            f"attribute '{name}' is a {type(value).__name__}; only dense tensors, numbers and "
            "text can be converted: delete it from the data first"
        )
    if values.ndim > 1 and data.__cat_dim__(name, value) != 0:
        raise DataError(
            f"attribute '{name}' numbers nodes, as edge_index does; no column can hold it: "
            "delete it from the data first"
        )
    return values


def _pyg_level(data: Any, name: str, value: Any, *, rows: int) -> Level:
    if name == "y" and np.ndim(value) and len(value) == rows:
        return "graph"
    if data.is_node_attr(name):
        return "node"
    return "edge" if data.is_edge_attr(name) else "graph"


def _array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()


def _tensor(values: Array) -> Tensor:
    # A copy: columns of a table may be mapped read-only, which a tensor cannot be.
    return torch.from_numpy(np.array(values))


# ASE


def graph_from_atoms(atoms: Any, *, info: Sequence[str] = (), arrays: Sequence[str] = ()) -> Graph:
    """ASE `Atoms` as a Graph without edges.

    Node columns `z` (uint8, atomic number) and `pos` (float64 [n, 3], Å); graph columns `cell`
    (float64 [3, 3], rows are lattice vectors, Å) and `pbc` (bool [3]).

    Args:
        atoms: an `ase.Atoms`.
        info: names in `atoms.info` or the calculator's results to take as graph columns.
        arrays: names in `atoms.arrays` or the calculator's results to take as node columns.

    Raises:
        DataError: a name that is not there, or not numbers; the message says what there is.
    """
    results = {} if atoms.calc is None else atoms.calc.results
    nodes = {
        "z": atoms.numbers.astype(np.uint8),
        "pos": np.array(atoms.positions, dtype=np.float64),
    }
    graph = {"cell": np.array(atoms.cell.array, dtype=np.float64), "pbc": np.array(atoms.pbc)}
    for columns, names, where, found in (
        (graph, info, "info", atoms.info),
        (nodes, arrays, "arrays", atoms.arrays),
    ):
        for name in names:
            if name not in found and name not in results:
                there = ", ".join(map(str, [*found, *results])) or "nothing"
                raise DataError(
                    f"no '{name}' in the {where} of {atoms.symbols}, nor in its calculator's "
                    f"results; there is {there}"
                )
            values = np.array(found[name] if name in found else results[name])
            if values.dtype.kind not in "biuf":
                raise DataError(
                    f"'{name}' in the {where} of {atoms.symbols} is not numbers: {values.dtype}"
                )
            columns[name] = values
    whole = Graph(num_nodes=len(atoms), nodes=nodes, graph=graph)
    whole.validate(str(atoms.symbols))
    return whole


def graph_to_atoms(graph: Graph) -> Any:
    """The graph as ASE `Atoms`: `z`, `pos`, `cell` and `pbc`, which `graph_from_atoms` makes.

    Other node columns become arrays and other graph columns info; edges and ragged columns stay
    behind, since Atoms have no place for them.

    Raises:
        DataError: there is no node column `z` or `pos`.
    """
    ase = _load("ase", "'weft[chem]'")
    for name in ("z", "pos"):
        if name not in graph.nodes:
            raise DataError(
                f"atoms need the node column '{name}'; the graph has "
                f"{', '.join(graph.nodes) or 'no node columns'}"
            )
    atoms = ase.Atoms(
        numbers=graph.nodes["z"],
        positions=graph.nodes["pos"],
        cell=graph.graph.get("cell"),
        pbc=graph.graph.get("pbc"),
    )
    for name, values in graph.nodes.items():
        if name not in ("z", "pos"):
            atoms.set_array(name, np.array(values))
    for name, values in graph.graph.items():
        if name not in ("cell", "pbc"):
            atoms.info[name] = np.array(values)[()]
    return atoms


# NetworkX


def graph_from_networkx(
    g: Any, *, node_columns: Sequence[str] = (), edge_columns: Sequence[str] = ()
) -> Graph:
    """A NetworkX graph as a Graph; nodes are numbered in the order of `g.nodes`.

    An edge of an undirected graph becomes one in each direction (a self-loop stays one).

    Args:
        g: Graph, DiGraph, MultiGraph or MultiDiGraph of NetworkX.
        node_columns: attributes of the nodes to take, numbers or arrays of one shape.
        edge_columns: attributes of the edges to take.

    Raises:
        DataError: a node or edge without one of the attributes; the message names both.
    """
    number = {node: i for i, node in enumerate(g.nodes)}
    pairs = [(u, v, attributes) for u, v, attributes in g.edges(data=True)]
    ends = np.array([(number[u], number[v]) for u, v, _ in pairs], dtype=np.int32).reshape(-1, 2)
    rows = np.arange(len(pairs))
    if not g.is_directed():
        back = np.flatnonzero(ends[:, 0] != ends[:, 1])
        ends = np.concatenate([ends, ends[back, ::-1]])
        rows = np.concatenate([rows, back])
    nodes = [(f"node {node!r}", attributes) for node, attributes in g.nodes(data=True)]
    edges = [(f"edge {u!r} -> {v!r}", attributes) for u, v, attributes in pairs]
    return Graph(
        num_nodes=len(number),
        senders=np.ascontiguousarray(ends[:, 0]),
        receivers=np.ascontiguousarray(ends[:, 1]),
        nodes={name: _attribute_column(nodes, name) for name in node_columns},
        edges={name: _attribute_column(edges, name)[rows] for name in edge_columns},
    )


def _attribute_column(items: Sequence[tuple[str, Mapping[str, Any]]], name: str) -> Array:
    for item, attributes in items:
        if name not in attributes:
            raise DataError(f"{item} has no attribute '{name}'")
    try:
        values = np.array([attributes[name] for _, attributes in items])
        numbers = values.dtype.kind in "biuf"
    except ValueError:
        numbers = False
    if not numbers:
        raise DataError(f"attribute '{name}' is not numbers of one shape on all nodes or edges")
    return values


def graph_to_networkx(graph: Graph) -> Any:
    """The graph as a NetworkX DiGraph, or MultiDiGraph if two edges join the same nodes in one way.

    Nodes are 0 to n - 1; rows of columns become attributes of nodes, edges and the graph.
    """
    nx = _load("networkx", "networkx")
    graph.validate()
    pairs = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    g = nx.DiGraph() if len(set(pairs)) == len(pairs) else nx.MultiDiGraph()
    g.graph.update({**graph.graph, **graph.ragged})
    g.add_nodes_from(
        (i, {name: values[i] for name, values in graph.nodes.items()})
        for i in range(graph.num_nodes)
    )
    g.add_edges_from(
        (u, v, {name: values[i] for name, values in graph.edges.items()})
        for i, (u, v) in enumerate(pairs)
    )
    return g


# SciPy


def graph_from_scipy(matrix: Any, *, weight: str | None = "weight") -> Graph:
    """A square SciPy sparse matrix as a Graph: a stored entry (i, j) is an edge i -> j.

    That is the convention of `scipy.sparse.csgraph`. Stored zeros are edges too, and entries that
    a COO matrix stores twice are two edges.

    Args:
        matrix: any `scipy.sparse` matrix or array, [n, n].
        weight: the edge column for the entries' values; None leaves them out.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"an adjacency matrix must be square; this one is {list(matrix.shape)}")
    entries = matrix.tocoo()
    if weight is not None and entries.dtype.kind not in "biuf":
        raise DataError(f"the matrix holds {entries.dtype} values; weights must be real numbers")
    return Graph(
        num_nodes=int(matrix.shape[0]),
        senders=np.array(entries.row),
        receivers=np.array(entries.col),
        edges={} if weight is None else {weight: np.array(entries.data)},
    )


def graph_to_scipy(graph: Graph, *, weight: str | None = None) -> scipy.sparse.csr_array[Any]:
    """The adjacency matrix [n, n]: entry (i, j) is the sum over the edges i -> j.

    Args:
        graph: the graph.
        weight: the edge column that is summed; None counts the edges (float32).
    """
    from scipy.sparse import coo_array

    graph.validate()
    if weight is None:
        values: Array = np.ones(graph.num_edges, dtype=np.float32)
    elif weight in graph.edges and graph.edges[weight].ndim == 1:
        values = graph.edges[weight]
    else:
        raise DataError(
            f"'{weight}' is not an edge column with a number for each edge; the graph has "
            f"{', '.join(graph.edges) or 'no edge columns'}"
        )
    shape = (graph.num_nodes, graph.num_nodes)
    return coo_array((values, (graph.senders, graph.receivers)), shape=shape).tocsr()
