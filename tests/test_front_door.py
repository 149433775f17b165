"""What a newcomer meets first: the names of `weft` itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import weft
from weft.graphs import graph_to_pyg, write_table
from weft.layout import BandedAdjacency, DenseAdjacency, TypedEdges
from weft.sources import FullyConnected, small_graphs, with_neighbours

ROOT = Path(__file__).resolve().parents[1]
WATER = """3
Lattice="9 0 0 0 9 0 0 0 9" Properties=species:S:1:pos:R:3:forces:R:3 energy={energy} pbc="F F F"
O 0.0 0.0 {z} 0.0 0.0 0.1
H 0.0 0.8 0.6 0.0 0.1 0.0
H 0.0 -0.8 0.6 0.0 -0.1 -0.1
"""


@pytest.fixture
def extxyz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve molecules of water with energies and forces, and a data folder of their own."""
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.extxyz"
    file.write_text("".join(WATER.format(energy=-14.0 - i / 10, z=i / 100) for i in range(12)))
    return file


def test_ten_lines_of_a_newcomer(extxyz: Path) -> None:
    table = weft.open("mine.extxyz")
    batches = weft.loader(table, policy="packed", batch_size=4)
    model = weft.SchNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(model, batch):
        error = model(batch) - batch.graphs["energy"]
        return (error**2)[batch.graph_mask].mean()

    result = weft.fit(model, optimizer, batches, loss, epochs=2, run="runs/a")

    assert result.epochs == 2
    assert np.isfinite(result.metrics["train_loss"])
    weights = load_file("runs/a/weights.safetensors")
    assert weights.keys() == model.state_dict().keys()
    assert weft.write_page(["runs/a"]).stat().st_size > 1000


class TestOpen:
    def test_structures_keep_energy_and_forces(self, extxyz: Path) -> None:
        table = weft.open(extxyz)
        assert len(table) == 12
        assert table.schema["forces"].level == "node"
        np.testing.assert_allclose(table.column("energy")[:2], [-14.0, -14.1])

    def test_targets_can_be_chosen(self, extxyz: Path) -> None:
        assert "forces" not in weft.open(extxyz, targets=["energy"]).schema
        assert "energy" not in weft.open(extxyz, targets=[]).schema

    def test_a_file_that_changed_is_read_again(self, extxyz: Path) -> None:
        assert len(weft.open(extxyz)) == 12
        extxyz.write_text(WATER.format(energy=-1.0, z=0.0))
        assert len(weft.open(extxyz)) == 1

    def test_a_table(self, tmp_path: Path) -> None:
        graphs = list(small_graphs(3))
        write_table(tmp_path / "t.weft", graphs)
        assert len(weft.open(tmp_path / "t.weft")) == 3
        assert len(weft.open(str(tmp_path / "t.weft"))) == 3

    def test_one_graph(self, extxyz: Path) -> None:
        matrix = extxyz.with_suffix(".mtx")
        matrix.write_text("%%MatrixMarket matrix coordinate pattern general\n3 3 2\n1 2\n2 3\n")
        assert weft.open(matrix).num_edges.tolist() == [2]
        edges = extxyz.with_suffix(".txt")
        edges.write_text("0 1\n1 2\n")
        assert weft.open(edges, reader="edge-list").num_nodes.tolist() == [3]

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(weft.DataError, match=r"none\.xyz is not there"):
            weft.open(tmp_path / "none.xyz")


class TestLoader:
    def test_atoms_within_the_cutoff_are_neighbours(self, extxyz: Path) -> None:
        table = weft.open(extxyz)
        near = weft.loader(table, policy="unpadded", batch_size=1, cutoff=1.2)
        far = weft.loader(table, policy="unpadded", batch_size=1)
        assert next(iter(near)).num_edges < next(iter(far)).num_edges == 6
        # Kept in the data folder, where the table is from.
        assert near.table.path is not None
        assert near.table.path.parent == table.path.parent

    def test_edges_that_are_there_stay(self, extxyz: Path) -> None:
        table = with_neighbours(weft.open(extxyz), FullyConnected(), progress=False)
        assert weft.loader(table, cutoff=0.1).table is table

    def test_some_graphs_in_order(self) -> None:
        table = weft.table_from_graphs(list(small_graphs(9)))
        options = {"policy": "unpadded", "batch_size": 2, "shuffle": False, "graphs": [4, 7, 8]}
        sizes = [batch.num_nodes for batch in weft.loader(table, **options)]
        nodes = table.num_nodes
        assert sizes == [nodes[4] + nodes[7], nodes[8]]

    def test_a_device_that_is_not_there(self) -> None:
        table = weft.table_from_graphs(list(small_graphs(2)))
        with pytest.raises(ValueError, match="device is cuda:1, but torch finds no GPUs here"):
            weft.loader(table, device="cuda:1")

    def test_data_of_torch_geometric(self) -> None:
        pytest.importorskip("torch_geometric")
        table = weft.table_from_graphs(list(small_graphs(9)))
        data = [graph_to_pyg(table[i]) for i in range(9)]
        loader = weft.loader(data, batch_size=4, graphs=range(5))
        shapes = {(batch.num_nodes, batch.num_edges) for batch in loader}
        assert len(shapes) == 1
        assert sum(int(batch.graph_mask.sum()) for batch in loader) == 5
        with pytest.raises(ValueError, match=r"batch\.to\(device\)"):
            weft.loader(data, device="cpu")
        mask = np.arange(9) % 2 == 0
        for wrong in (mask, torch.from_numpy(mask), mask.tolist(), [1, 9], [-1], [1, 1], [0.5], []):
            messages = []
            for source in (table, data):
                with pytest.raises(ValueError, match="graph") as refused:
                    weft.loader(source, graphs=wrong)
                messages.append(str(refused.value))
            assert messages[0] == messages[1]


def linear_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - 1).square().mean()


class TestFit:
    def run(self, **options: object) -> torch.nn.Module:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        weft.fit(model, optimizer, [torch.ones(3, 2)], linear_loss, **options)
        return model

    def test_a_config_says_the_same(self) -> None:
        long = self.run(config=weft.FitConfig(epochs=3, quiet=True))
        assert torch.equal(self.run(epochs=3).weight, long.weight)

    @pytest.mark.parametrize("options", [{}, {"epochs": 1, "config": weft.FitConfig(epochs=1)}])
    def test_one_of_epochs_and_config(self, options: dict[str, object]) -> None:
        with pytest.raises(ValueError, match="give one of them"):
            self.run(**options)

    def test_a_run_goes_on(self, tmp_path: Path) -> None:
        self.run(epochs=2, run=tmp_path / "a")
        with pytest.raises(weft.DataError, match="holds a run already"):
            self.run(epochs=4, run=tmp_path / "a")
        resumed = self.run(epochs=4, run=tmp_path / "a", resume=True)
        assert torch.equal(resumed.weight, self.run(epochs=4).weight)

    def test_a_run_of_ones_own(self, tmp_path: Path) -> None:
        with weft.Run.create(tmp_path / "a", {"mine": 1}) as run:
            self.run(epochs=1, run=run)
            assert run.weights.exists()
            with pytest.raises(ValueError, match=r"Run\.create"):
                self.run(epochs=1, run=run, resume=True)


@pytest.mark.parametrize(
    ("form", "kind"),
    [("csr", TypedEdges), ("banded", BandedAdjacency), ("dense", DenseAdjacency)],
)
def test_adjacency(form: str, kind: type) -> None:
    table = weft.table_from_graphs(
        [
            weft.Graph(
                num_nodes=4,
                senders=np.array([0, 1, 2]),
                receivers=np.array([1, 2, 3]),
                edges={"type": np.array([0, 1, 1])},
            )
        ]
    )
    batch = weft.assemble(table, [0])
    assert isinstance(weft.adjacency(batch, types=2, form=form, hidden=8), kind)
    assert weft.adjacency(batch, types=2, hidden=8) is not None


def test_world_of_one() -> None:
    with weft.world("2d") as world:
        assert world.grid.ranks == 1


def test_dir_shows_the_names() -> None:
    assert set(weft.__all__) <= set(dir(weft))
    assert 25 <= len(weft.__all__) <= 40
    for name in weft.__all__:
        assert getattr(weft, name) is not None


TYPED = """
import torch, weft
from typing_extensions import assert_type
table: weft.GraphTable = weft.open("mine.extxyz")
batch = next(iter(weft.loader(table, policy="packed", batch_size=32)))
assert_type(batch, weft.GraphBatch)
model = weft.SchNet()
def loss(model: torch.nn.Module, batch: weft.GraphBatch) -> torch.Tensor:
    return torch.as_tensor(model(batch)).mean()
weft.fit(model, torch.optim.Adam(model.parameters()), [batch], loss, epochs=3, run="runs/a")
with weft.world("2d") as world:
    print(world.rank)
weft.loader(table, policy="no such policy")
weft.no_such_name
"""


def test_types_are_visible_to_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(TYPED)
    # The project's settings and its cache, which `make lint` has filled.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(script)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if " error: " in line]
    assert len(errors) == 2, done.stdout + done.stderr
    assert '"loader"' in errors[0]
    assert '"no_such_name"' in errors[1]
