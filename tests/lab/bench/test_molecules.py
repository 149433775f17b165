"""The benchmark of training on molecules, on molecules that the test makes."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress
from small_qm9 import small_qm9

from weft.graphs import write_table
from weft.sources import ATOM_REFERENCES
from weft.sources.qm9 import QM9_ELEMENTS
from weft_lab.bench.molecules import bench_molecules, labelled
from weft_lab.bench.result import BenchResult, CandidateResult, CaseResult, print_result
from weft_lab.bench.runner import Candidate, run_case
from weft_lab.bench_settings import MoleculesBench

pytestmark = pytest.mark.usefixtures("in_this_process")

MOLECULES = 40
LIBRARY = {"torch_geometric": "torch_geometric", "JAX": "haiku", "SchNetPack": "schnetpack"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with the random molecules as QM9."""
    write_table(tmp_path / "data" / "qm9.weft", [small_qm9(MOLECULES)])
    return tmp_path / "data"


def test_small(data: Path) -> None:
    config = MoleculesBench(cases=("schnet-32", "mpeu-32"), rounds=2, steps=1, data_dir=data)
    schnet, mpeu = bench_molecules(config, Progress(disable=True)).cases
    assert (schnet.case, mpeu.case) == ("schnet-32", "mpeu-32")
    assert schnet.what == "batch and update, SchNet, 32 molecules a batch, all pairs of atoms"
    assert list(mpeu.candidates) == ["weft", "weft, dynamic", "JAX, jraph dynamically_batch"]
    check(schnet, size=32)
    check(mpeu, size=32)
    if find_spec("torch_geometric"):
        peers = {"torch_geometric", "torch_geometric, denormals flushed"}
        # Like with like: it has whole batches, as our unpadded ones are.
        assert peers <= set(schnet.ratios("weft"))
        assert not peers & set(schnet.ratios("weft, dynamic"))


def test_neighbours_within_the_cutoff(data: Path) -> None:
    config = MoleculesBench(cases=("painn-64", "schnet-1"), rounds=1, steps=2, data_dir=data)
    case, alone = bench_molecules(config, Progress(disable=True)).cases
    assert "64 features" in case.what
    assert "cutoff 5 Å" in case.what
    check(case, size=32)
    assert list(alone.ratios("weft")) == ["one thread of weft"]
    assert all(step["graphs"] == 1 for each in alone.candidates.values() for step in each.details)


def check(case: CaseResult, size: int) -> None:
    """Everyone whose library is here ran two steps and says what each did."""
    for name, candidate in case.candidates.items():
        library = LIBRARY.get(name.partition(",")[0], "weft")
        if not find_spec(library):
            assert candidate.absent == f"No module named '{library}'"
            continue
        assert candidate.absent == "", name
        assert len(candidate.samples) == len(candidate.details) == 2
        for sample, step in zip(candidate.samples, candidate.details, strict=True):
            assert sample == step["seconds"] / step["graphs"]
            # Ours is made in a thread, which may have worked for this step before it began.
            assert step["batching"] >= 0
            assert 0 <= step.get("waiting", 0.0) < step["seconds"]
            assert step["batching"] < step["seconds"] or library == "weft"
            # The 40 molecules are small: a padded batch holds one less, the last one the rest.
            most = size - 1 if "dynamic" in name else size
            assert step["graphs"] in (most, MOLECULES - most)
            if "torch_geometric" in name or name == "SchNetPack":
                assert step["graphs"] == size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"molecules": 31, "cases": ("painn-64",)}, "molecules is 31 .* need at least 32"),
        ({"cases": ("painn-64", "mpeu-128")}, "QM9 has 40; .* need at least 128"),
        ({"cases": ()}, "no cases to run; choose from schnet-1, .*painn-128"),
    ],
)
def test_nothing_to_train_on(data: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bench_molecules(MoleculesBench(data_dir=data, **changes), Progress(disable=True))


def test_the_label_is_a_standardised_atomization_energy() -> None:
    qm9 = small_qm9(MOLECULES)
    table = labelled(qm9)
    y = table.columns["y"].astype(float)
    assert y.mean() == pytest.approx(0, abs=1e-5)
    assert y.std() == pytest.approx(1, abs=1e-5)
    symbols = {number: symbol for symbol, number in QM9_ELEMENTS.items()}
    energies = [
        molecule.graph["u0"]
        - sum(ATOM_REFERENCES["u0"][symbols[int(z)]] for z in molecule.nodes["z"])
        for molecule in qm9
    ]
    np.testing.assert_allclose(y, (energies - np.mean(energies)) / np.std(energies), atol=1e-4)
    assert [g.nodes["z"].tolist() for g in table] == [g.nodes["z"].tolist() for g in qm9]


def test_steps_that_tell_their_graphs(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(
        "import itertools\n"
        "def prepare(case):\n"
        "    count = itertools.count(1)\n"
        "    return lambda: {'graphs': next(count), 'batching': 0.0}, {}\n"
    )
    case = run_case(
        "toy",
        "a step",
        {"weft": Candidate(script=str(tmp_path / "toy"), peer=False)},
        {},
        rounds=2,
        steps=2,
        warmup=1,
        progress=Progress(disable=True),
        unit="s/graph",
    )
    found = case.candidates["weft"]
    assert [step["graphs"] for step in found.details] == [2, 3, 4, 5]
    for sample, step in zip(found.samples, found.details, strict=True):
        assert sample == step["seconds"] / step["graphs"]


def test_throughput_is_written_and_shown() -> None:
    seconds, graphs = [0.02, 0.04, 0.12], [20, 20, 30]
    ours = CandidateResult(
        samples=[s / g for s, g in zip(seconds, graphs, strict=True)],
        details=[
            {"seconds": s, "graphs": g, "batching": 0.003, "waiting": 0.0006}
            for s, g in zip(seconds, graphs, strict=True)
        ],
    )
    peer = CandidateResult(absent="No module named 'peer'")
    case = CaseResult(case="c", what="w", unit="s/graph", candidates={"weft": ours, "peer": peer})
    result = BenchResult(name="toy", cases=[case])
    written = result.to_json()["cases"][0]["contenders"]
    assert written["weft"]["details"] == ours.details
    assert written["weft"]["median"] == pytest.approx(0.002)
    assert written["weft"]["graphs_per_second"] == pytest.approx(500)
    assert written["weft"]["seconds_per_step"] == 0.04
    assert written["weft"]["graphs_per_step"] == pytest.approx(70 / 3)
    assert written["weft"]["batching_share"] == pytest.approx(0.05)
    assert written["weft"]["waiting_share"] == pytest.approx(0.01)
    # Who has no thread waits for all of it.
    alone = CandidateResult(
        samples=[0.1], details=[{"seconds": 0.1, "graphs": 1, "batching": 0.02}]
    )
    assert alone.throughput["waiting_share"] == pytest.approx(0.2)
    assert "details" not in written["peer"]
    stream = io.StringIO()
    print_result(result, Console(file=stream, width=160, markup=False))
    text = stream.getvalue()
    assert all(
        heading in text for heading in ("median", "ms/graph", "graphs/s", "ms/step", "batching")
    )
    (line,) = (x.split() for x in text.splitlines() if x.startswith(" weft "))
    assert line == ["weft", "2", "500", "40", "5.0", "(1.0)", "%"]
