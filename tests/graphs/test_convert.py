import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import torch
from graph_strategies import (
    assert_same_array,
    assert_same_graph,
    data_sets,
    graphs_of,
    quick,
    schemas,
    sorted_edges,
)
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import DataError
from weft.graphs import (
    Budget,
    Column,
    Graph,
    assemble,
    batch_from_pyg,
    batch_to_pyg,
    graph_from_atoms,
    graph_from_networkx,
    graph_from_pyg,
    graph_from_scipy,
    graph_to_atoms,
    graph_to_networkx,
    graph_to_pyg,
    graph_to_scipy,
    table_from_graphs,
)

CASES = {
    "no nodes": Graph(num_nodes=0),
    "no edges": Graph(num_nodes=3),
    "one node": Graph(num_nodes=1, senders=np.array([0]), receivers=np.array([0])),
    "an isolated node": Graph(num_nodes=4, senders=np.array([0, 3]), receivers=np.array([1, 0])),
    "duplicates and self-loops": Graph(
        num_nodes=3, senders=np.array([0, 0, 2, 2, 0]), receivers=np.array([1, 1, 2, 2, 1])
    ),
}


def with_columns(graph):
    """The graph with a column on each level, its dtypes and shapes all different."""
    n, e = graph.num_nodes, graph.num_edges
    return Graph(
        num_nodes=n,
        senders=graph.senders,
        receivers=graph.receivers,
        nodes={"z": np.arange(n, dtype=np.uint8), "pos": np.ones((n, 3)) * np.arange(n)[:, None]},
        edges={
            "edge_attr": np.arange(2 * e, dtype=np.float32).reshape(e, 2),
            "edge_weight": np.arange(e, dtype=np.float64),
        },
        graph={"y": np.float32(1.5), "cell": np.arange(9.0).reshape(3, 3)},
    )


any_case = pytest.mark.parametrize("graph", [*map(with_columns, CASES.values())], ids=[*CASES])


def test_importing_graphs_imports_no_optional_library():
    code = (
        "import sys, weft.graphs\n"
        "optional = {'torch_geometric', 'ase', 'networkx', 'pyarrow', 'scipy.sparse'}\n"
        "sys.exit(', '.join(sorted(optional & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("module", "convert", "install"),
    [
        ("torch_geometric.data", graph_to_pyg, "pip install torch_geometric"),
        ("ase", graph_to_atoms, r"pip install 'weft\[chem\]'"),
        ("networkx", graph_to_networkx, "pip install networkx"),
    ],
)
def test_an_absent_library_is_named_with_how_to_get_it(monkeypatch, module, convert, install):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"needs {module.split('.')[0]} .*{install}"):
        convert(Graph(num_nodes=0))


# torch_geometric


@pytest.fixture(scope="module")
def pyg():
    return pytest.importorskip("torch_geometric.data")


@any_case
def test_pyg_round_trip(pyg, graph):
    data = graph_to_pyg(graph)
    data.validate(raise_on_error=True)
    assert data.num_nodes == graph.num_nodes
    assert data.edge_index.dtype == torch.int64
    # Shapes do not tell the level where a graph has as many nodes or edges as it is graphs.
    assert_same_graph(graph_from_pyg(data, levels={"cell": "graph", "z": "node"}), graph)


@quick
@given(st.data())
def test_pyg_round_trip_of_any_columns(pyg, draw):
    schema = draw.draw(schemas())
    graph = draw.draw(graphs_of(schema))
    levels = {name: column.level for name, column in schema.items()}
    assert_same_graph(graph_from_pyg(graph_to_pyg(graph), levels=levels), graph)


def test_a_pyg_data_as_people_have_it(pyg):
    data = pyg.Data(
        x=torch.randn(4, 3, requires_grad=True),
        pos=torch.randn(4, 3),
        z=torch.tensor([6, 1, 1, 1]),
        edge_index=torch.tensor([[0, 1, 2], [1, 0, 0]]),
        edge_attr=torch.randn(3, 2),
        edge_weight=torch.rand(3),
        y=torch.randn(1, 19),
        energy=torch.tensor([-1.5]),
        charge=torch.tensor(2),
        idx=17,
        name="gdb 17",
        train_mask=torch.tensor([True, False, True, True]),
    )
    graph = graph_from_pyg(data)
    assert graph.num_nodes == 4
    assert (graph.senders.tolist(), graph.receivers.tolist()) == ([0, 1, 2], [1, 0, 0])
    assert set(graph.nodes) == {"x", "pos", "z", "train_mask"}
    assert set(graph.edges) == {"edge_attr", "edge_weight"}
    assert graph.graph["y"].shape == (19,)
    assert [graph.graph[name] for name in ("energy", "charge", "idx")] == [-1.5, 2, 17]
    assert bytes(graph.ragged["name"]) == b"gdb 17"
    back = graph_to_pyg(graph)
    for name in ("x", "pos", "z", "edge_index", "edge_attr", "edge_weight", "y", "energy"):
        assert torch.equal(back[name], data[name])
    assert table_from_graphs([graph])[0].graph["y"].shape == (19,)


@pytest.mark.parametrize("shape", [(1,), (1, 5), (1, 2, 3)])
@pytest.mark.parametrize("nodes", [1, 5])
def test_y_of_one_row_stays_the_graphs(pyg, shape, nodes):
    y = torch.randn(shape)
    data = pyg.Data(x=torch.zeros(nodes, 2), edge_index=torch.zeros(2, 1, dtype=torch.long), y=y)
    graph = graph_from_pyg(data)
    assert graph.graph["y"].shape == shape[1:]
    assert torch.equal(graph_to_pyg(graph).y, y)


def test_y_of_one_row_a_node_is_the_nodes(pyg):
    graph = graph_from_pyg(pyg.Data(x=torch.zeros(3, 2), y=torch.arange(3)))
    assert graph.nodes["y"].tolist() == [0, 1, 2]


def test_levels_settle_what_shapes_do_not(pyg):
    data = pyg.Data(
        num_nodes=2,
        edge_index=torch.tensor([[0, 1], [1, 0]]),
        bond=torch.tensor([1.0, 2.0]),
        dipole=torch.tensor([3.0, 4.0]),
    )
    graph = graph_from_pyg(data, levels={"bond": "edge", "dipole": "graph"})
    assert graph.edges["bond"].tolist() == [1, 2]
    assert graph.graph["dipole"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("adj_t", torch.eye(3).to_sparse(), "attribute 'adj_t' is a Tensor; only dense"),
        ("face", torch.zeros(3, 2, dtype=torch.long), "attribute 'face' numbers nodes"),
        ("rdmol", object(), "attribute 'rdmol' is a object"),
    ],
)
def test_an_attribute_that_no_column_holds_is_named(pyg, name, value, message):
    data = pyg.Data(x=torch.zeros(3, 1))
    data[name] = value
    with pytest.raises(DataError, match=message):
        graph_from_pyg(data)


def test_other_pyg_kinds_are_refused(pyg):
    with pytest.raises(DataError, match="heterogeneous"):
        graph_from_pyg(pyg.HeteroData())
    with pytest.raises(DataError, match="use graph_from_pyg"):
        batch_from_pyg(pyg.Data(x=torch.zeros(3, 1)))
    with pytest.raises(DataError, match="reserves the name 'batch'"):
        graph_to_pyg(Graph(num_nodes=1, nodes={"batch": np.zeros(1)}))


LEVELS = ("node", "edge", "graph")


@quick
@given(data_sets(min_size=1, max_size=5, levels=LEVELS), st.booleans())
def test_batches_to_pyg_hold_the_real_graphs(pyg, data, padded):
    schema, graphs = data
    table = table_from_graphs(graphs, schema)
    size = Budget(nodes=64, edges=128, graphs=9) if padded else None
    batch = batch_to_pyg(assemble(table, range(len(graphs)), size))
    levels = {name: column.level for name, column in schema.items()}
    assert batch.num_graphs == len(graphs)
    for data, graph in zip(batch.to_data_list(), graphs, strict=True):
        assert_same_graph(graph_from_pyg(data, levels=levels), sorted_edges(graph))
    last = graph_from_pyg(batch[len(graphs) - 1], levels=levels)
    assert_same_graph(last, sorted_edges(graphs[-1]))


@quick
@given(data_sets(min_size=1, max_size=5, levels=LEVELS))
def test_pyg_batches_come_back(pyg, data):
    schema, graphs = data
    levels = {name: column.level for name, column in schema.items()}
    pyg_batch = pyg.Batch.from_data_list([graph_to_pyg(graph) for graph in graphs])
    found = batch_from_pyg(pyg_batch, levels=levels)
    expected = assemble(table_from_graphs(graphs, schema), range(len(graphs)))
    for level, columns in ((found.nodes, expected.nodes), (found.edges, expected.edges)):
        assert level.keys() == columns.keys()
        assert all(torch.equal(level[name], columns[name]) for name in columns)
    for name in ("senders", "receivers", "in_offsets", "out_order", "node_graph", "graph_mask"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    for back, graph in zip(found.unbatch(), graphs, strict=True):
        assert_same_graph(back, sorted_edges(graph))


def test_a_pyg_batch_as_people_have_it(pyg):
    def data(n):
        return pyg.Data(
            x=torch.full((n, 2), float(n)),
            edge_index=torch.tensor([[0, n - 1], [n - 1, 0]]),
            edge_attr=torch.tensor([[1.0], [2.0]]),
            y=torch.tensor([[float(n), float("nan")]]),
            name=f"molecule {n}",
        )

    batch = batch_from_pyg(pyg.Batch.from_data_list([data(3), data(1), data(4)]))
    assert batch.node_offsets.tolist() == [0, 3, 4, 8]
    assert batch.receivers.tolist() == [0, 2, 3, 3, 4, 7]
    assert batch.edges["edge_attr"].flatten().tolist() == [2, 1, 1, 2, 2, 1]
    assert batch.graphs["y"][:, 0].tolist() == [3, 1, 4]
    assert set(batch.graphs) == {"y"}


def test_a_pyg_batch_that_is_inconsistent_is_refused(pyg):
    def batch(edge, **attributes):
        vector = torch.tensor([0, 0, 1])
        index = torch.tensor([[edge[0]], [edge[1]]])
        return pyg.Batch(batch=vector, edge_index=index, num_nodes=3, **attributes)

    assert batch_from_pyg(batch((0, 1))).num_graphs == 2
    with pytest.raises(DataError, match="edge 0 of the Batch joins two graphs"):
        batch_from_pyg(batch((0, 2)))
    with pytest.raises(DataError, match="exceeds its 3 nodes"):
        batch_from_pyg(batch((0, 3)))
    with pytest.raises(DataError, match="negative entries"):
        batch_from_pyg(batch((0, -1)))
    with pytest.raises(DataError, match=r"attribute 'p' of the Batch has shape \[5\]"):
        batch_from_pyg(batch((0, 1), p=torch.zeros(5)))


def test_a_batch_without_graphs_has_no_pyg_batch(pyg):
    empty = assemble(table_from_graphs([Graph(num_nodes=1)]), [])
    with pytest.raises(DataError, match="no real graphs"):
        batch_to_pyg(empty)


def test_conversions_to_pyg_copy_mapped_columns(pyg, tmp_path):
    from weft.graphs import write_table

    table = write_table(tmp_path / "t", [with_columns(CASES["an isolated node"])])
    data = graph_to_pyg(table[0])
    data.pos += 1
    assert torch.equal(data.pos - 1, graph_to_pyg(table[0]).pos)


# ASE


@pytest.fixture(scope="module")
def ase():
    return pytest.importorskip("ase")


def test_atoms_round_trip(ase):
    atoms = ase.Atoms("NaCl", positions=[[0, 0, 0], [0.1, 2, 3]], cell=[4, 5, 6], pbc=[1, 1, 0])
    atoms.info["energy"] = -3.5
    atoms.set_array("forces", np.arange(6.0).reshape(2, 3))
    graph = graph_from_atoms(atoms, info=["energy"], arrays=["forces"])
    assert_same_array(graph.nodes["z"], np.array([11, 17], np.uint8))
    assert_same_array(graph.nodes["pos"], atoms.positions)
    assert_same_array(graph.graph["cell"], np.diag([4.0, 5.0, 6.0]))
    assert graph.graph["pbc"].tolist() == [True, True, False]
    assert graph.num_edges == 0
    back = graph_to_atoms(graph)
    assert back == atoms
    assert back.info == {"energy": -3.5}
    assert_same_array(back.arrays["forces"], atoms.arrays["forces"])
    assert_same_graph(graph_from_atoms(back, info=["energy"], arrays=["forces"]), graph)


def test_no_atoms_are_an_empty_graph(ase):
    graph = graph_from_atoms(ase.Atoms())
    assert graph.nodes["pos"].shape == (0, 3)
    assert len(graph_to_atoms(graph)) == 0


def test_graphs_do_not_share_memory_with_their_atoms(ase):
    atoms = ase.Atoms("H", positions=[[0, 0, 0]])
    graph = graph_from_atoms(atoms)
    atoms.positions += 1
    assert not graph.nodes["pos"].any()


def test_results_of_a_calculator_are_found(ase):
    from ase.calculators.singlepoint import SinglePointCalculator

    atoms = ase.Atoms("H2", positions=[[0, 0, 0], [0, 0, 0.7]])
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0, forces=np.ones((2, 3)))
    graph = graph_from_atoms(atoms, info=["energy"], arrays=["forces"])
    assert graph.graph["energy"] == -1
    assert_same_array(graph.nodes["forces"], np.ones((2, 3)))


def test_names_that_atoms_do_not_have_are_named(ase):
    atoms = ase.Atoms("H2O", info={"gap": 1, "name": "water"})
    with pytest.raises(DataError, match=r"no 'energy' in the info of H2O, .* there is gap, name"):
        graph_from_atoms(atoms, info=["energy"])
    with pytest.raises(DataError, match="'name' in the info of H2O is not numbers"):
        graph_from_atoms(atoms, info=["name"])
    with pytest.raises(DataError, match=r"no 'forces' in the arrays of H2O, .* numbers, positions"):
        graph_from_atoms(atoms, arrays=["forces"])
    with pytest.raises(DataError, match="atoms need the node column 'z'; the graph has no node"):
        graph_to_atoms(Graph(num_nodes=1))


# NetworkX


@pytest.fixture(scope="module")
def nx():
    return pytest.importorskip("networkx")


@any_case
def test_networkx_round_trip(nx, graph):
    back = graph_from_networkx(
        graph_to_networkx(graph),
        node_columns=list(graph.nodes) if graph.num_nodes else (),
        edge_columns=list(graph.edges) if graph.num_edges else (),
    )
    found, expected = sorted_edges(back), sorted_edges(graph)
    assert_same_graph(found, expected, levels=())
    for level in ("nodes", "edges"):
        for name, values in getattr(found, level).items():
            assert_same_array(values, getattr(expected, level)[name], name)


def test_graphs_become_the_simplest_networkx_kind(nx):
    plain, multi = CASES["an isolated node"], CASES["duplicates and self-loops"]
    assert type(graph_to_networkx(plain)) is nx.DiGraph
    assert list(graph_to_networkx(plain).edges) == [(0, 1), (3, 0)]
    assert type(graph_to_networkx(multi)) is nx.MultiDiGraph
    assert graph_to_networkx(multi).number_of_edges(0, 1) == 3
    assert graph_to_networkx(with_columns(plain)).graph["y"] == 1.5


def test_undirected_edges_go_both_ways_and_self_loops_once(nx):
    g = nx.Graph()
    g.add_nodes_from("abc", kind=1)
    g.add_edge("c", "a", d=2.0)
    g.add_edge("b", "b", d=3.0)
    graph = sorted_edges(graph_from_networkx(g, node_columns=["kind"], edge_columns=["d"]))
    ends = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    assert list(ends) == [(2, 0), (1, 1), (0, 2)]
    assert graph.edges["d"].tolist() == [2, 3, 2]
    assert graph.nodes["kind"].tolist() == [1, 1, 1]


def test_parallel_edges_of_a_multigraph_stay(nx):
    g = nx.MultiGraph([(0, 1), (0, 1), (1, 1)])
    assert graph_from_networkx(g).num_edges == 5
    assert graph_from_networkx(nx.MultiDiGraph([(0, 1), (0, 1), (1, 1)])).num_edges == 3


def test_a_missing_attribute_is_named_with_its_node_or_edge(nx):
    g = nx.DiGraph()
    g.add_node("a", q=1.0)
    g.add_edge("a", "b")
    with pytest.raises(DataError, match="node 'b' has no attribute 'q'"):
        graph_from_networkx(g, node_columns=["q"])
    with pytest.raises(DataError, match="edge 'a' -> 'b' has no attribute 'w'"):
        graph_from_networkx(g, edge_columns=["w"])


@pytest.mark.parametrize("bad", ["text", None, [1, 2]])
def test_an_attribute_must_be_numbers_of_one_shape(nx, bad):
    g = nx.Graph()
    g.add_nodes_from([(0, {"q": 1.0}), (1, {"q": bad})])
    with pytest.raises(DataError, match="attribute 'q' is not numbers of one shape"):
        graph_from_networkx(g, node_columns=["q"])


# SciPy


@quick
@given(graphs_of({"w": Column(level="edge", dtype="int64")}))
def test_scipy_sums_the_edges_between_two_nodes(graph):
    weights = np.zeros((graph.num_nodes, graph.num_nodes), np.int64)
    counts = weights.astype(np.float32)
    with np.errstate(over="ignore"):
        np.add.at(weights, (graph.senders, graph.receivers), graph.edges["w"])
    np.add.at(counts, (graph.senders, graph.receivers), 1)
    assert_same_array(graph_to_scipy(graph, weight="w").toarray(), weights)
    assert_same_array(graph_to_scipy(graph).toarray(), counts)


@quick
@given(graphs_of({}))
def test_scipy_round_trip(graph):
    matrix = graph_to_scipy(graph)
    back = graph_from_scipy(matrix, weight="count")
    back.validate()
    assert back.num_nodes == graph.num_nodes
    expected = sorted(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    repeated = np.repeat(
        np.stack([back.senders, back.receivers]), back.edges["count"].astype(int), 1
    )
    assert sorted(map(tuple, repeated.T.tolist())) == expected
    assert (graph_to_scipy(back, weight="count") != matrix).nnz == 0


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"])
@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csr_matrix])
def test_every_scipy_format_is_read(form, kind):
    matrix = kind(np.array([[0, 2.5, 0], [0, 1, 0], [0, 0, 0]])).asformat(form)
    graph = sorted_edges(graph_from_scipy(matrix))
    stored = graph.edges["weight"] != 0  # block and diagonal formats store zeros too
    assert graph.senders[stored].tolist() == [0, 1]
    assert graph.receivers[stored].tolist() == [1, 1]
    assert graph.edges["weight"][stored].tolist() == [2.5, 1]
    assert graph.num_nodes == 3


def test_an_entry_stored_twice_is_two_edges():
    matrix = scipy.sparse.coo_array(([1, 2], ([0, 0], [1, 1])), shape=(2, 2))
    assert graph_from_scipy(matrix).edges["weight"].tolist() == [1, 2]
    assert graph_from_scipy(matrix, weight=None).edges == {}


def test_edges_point_as_in_csgraph():
    graph = Graph(num_nodes=3, senders=np.array([0, 1]), receivers=np.array([1, 2]))
    from scipy.sparse.csgraph import breadth_first_order

    order = breadth_first_order(graph_to_scipy(graph), 0, return_predecessors=False)
    assert order.tolist() == [0, 1, 2]


def test_matrices_that_are_no_graphs_are_refused():
    with pytest.raises(DataError, match=r"must be square; this one is \[2, 3\]"):
        graph_from_scipy(scipy.sparse.csr_array((2, 3)))
    with pytest.raises(DataError, match="complex128 values"):
        graph_from_scipy(scipy.sparse.csr_array((2, 2), dtype=complex))
    graph = with_columns(CASES["an isolated node"])
    for name in ("edge_attr", "mass"):
        with pytest.raises(
            DataError, match=f"'{name}' is not an edge column with a number for each edge"
        ):
            graph_to_scipy(graph, weight=name)
