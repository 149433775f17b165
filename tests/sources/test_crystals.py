from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import DataError
from weft.sources.crystals import crystals_table

REAL = (
    Path(__file__).resolve().parents[2].parent
    / "shared"
    / "data"
    / "mp_matminer"
    / "crystals.jsonl.gz"
)


def crystal(**changes: Any) -> dict[str, Any]:
    made = {
        "dataset": "toy",
        "id": "t-1",
        "lattice": [[4.0, 0.0, 0.0], [1.0, 4.0, 0.0], [0.0, 0.0, 5]],
        "z": [11, 17],
        "frac": [[0.0, 0.0, 0.0], [0.5, 0.5, 0.25]],
        "targets": {"gap": 1.5, "volume": 80},
    }
    return {**made, **changes}


def write_lines(path: Path, crystals: list[Any]) -> Path:
    path.write_text("".join(json.dumps(c) + "\n" for c in crystals), encoding="utf-8")
    return path


def test_columns(tmp_path: Path) -> None:
    lines = [
        crystal(),
        crystal(id="ü-2", z=[3], frac=[[1.5, 0, -0.5]], targets={"gap": None}),
    ]
    file = write_lines(tmp_path / "c.jsonl", lines)
    table = crystals_table(tmp_path / "t", file, targets=["gap", "volume"], progress=False)
    assert list(table.schema) == ["z", "pos", "cell", "pbc", "gap", "volume", "id", "dataset"]
    assert table.num_nodes.tolist() == [2, 1]
    assert table.total_edges == 0
    assert table.column("z").tolist() == [11, 17, 3]
    assert table.column("pos").tolist() == [[0, 0, 0], [2.5, 2.0, 1.25], [6.0, 0.0, -2.5]]
    assert table.column("cell")[1].tolist() == crystal()["lattice"]
    assert table.column("pbc").all()
    np.testing.assert_array_equal(table.column("gap"), [1.5, np.nan])
    np.testing.assert_array_equal(table.column("volume"), [80.0, np.nan])
    assert table.schema["gap"].missing
    assert [bytes(graph.ragged["id"]).decode() for graph in table] == ["t-1", "ü-2"]
    assert [bytes(graph.ragged["dataset"]).decode() for graph in table] == ["toy", "toy"]


def test_gzip_and_plain_are_the_same(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "c.jsonl", [crystal(), crystal(z=[1, 2])])
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    plain = crystals_table(tmp_path / "a", file, targets=["gap"], progress=False)
    other = crystals_table(tmp_path / "b", packed, targets=["gap"], progress=False)
    for name in plain.schema:
        np.testing.assert_array_equal(plain.column(name), other.column(name))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "a list, not an object"),
        ('{"id": "x", "id2": NaN}', "not JSON (NaN is not a number)"),
        (json.dumps({"id": "x"}), "no field 'dataset'; it has id"),
        (json.dumps(crystal(id="\ud800")), "field 'id': 'utf-8' codec can't encode"),
        (json.dumps(crystal(id=3)), "field 'id': 3 is not text"),
        (json.dumps(crystal(targets=[1])), "field 'targets': not an object"),
        (json.dumps(crystal(lattice=[[1, 0, 0], [0, 1, 0]])), "field 'lattice': "),
        (json.dumps(crystal(lattice=[[1, 0, 0], [0, 1, 0], [0, 1]])), "field 'lattice': "),
        (json.dumps(crystal(lattice=[[1, 0, 0], [2, 0, 0], [0, 0, 1]])), "periodic along 3"),
        (json.dumps(crystal()).replace("4.0", "1e999"), "atom 0 is at [nan"),
        (json.dumps(crystal(lattice=[[1e39, 0, 0], [0, 1, 0], [0, 0, 1]])), "beyond 1e+06 Å"),
        (json.dumps(crystal(z=[11, 0])), "atom 1 has atomic number 0"),
        (json.dumps(crystal(z=[11, 119])), "atom 1 has atomic number 119"),
        (json.dumps(crystal(z=[11, 1.5])), "field 'z': [11, 1.5] should be whole numbers"),
        (json.dumps(crystal(z=[])), "field 'z': [] should be whole numbers"),
        (json.dumps(crystal(z=3)), "field 'z': 3 should be whole numbers"),
        (json.dumps(crystal(z=[11])), "field 'frac': "),
        (json.dumps(crystal(frac=[[0, 0], [1, 1]])), "field 'frac': "),
        (json.dumps(crystal(frac=[["a", "b", "c"]] * 2)), "field 'frac': "),
        (json.dumps(crystal(targets={"gap": "big"})), "target 'gap': 'big' is not a finite"),
        (json.dumps(crystal(targets={"gap": True})), "target 'gap': 'True' is not a finite"),
        (json.dumps(crystal(targets={"gap": 10**400})), "target 'gap': '1000"),
        (json.dumps(crystal()).replace("1.5", "1e999"), "target 'gap': 'inf' is not a finite"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    good = json.dumps(crystal()) + "\n"
    file = tmp_path / "c.jsonl"
    # The empty line counts, though it is no crystal.
    file.write_text(good * 2 + "\n" + line + "\n" + good)
    with pytest.raises(DataError) as caught:
        crystals_table(tmp_path / "t", file, targets=["gap"], progress=False)
    assert str(caught.value).startswith(f"{file}, line 4")
    assert problem in str(caught.value)
    assert list(tmp_path.iterdir()) == [file]


def test_one_bad_line_deep_in_a_large_file(tmp_path: Path) -> None:
    good = json.dumps(crystal()) + "\n"
    file = tmp_path / "large.jsonl.gz"
    bad = json.dumps(crystal(z=[11])) + "\n"
    file.write_bytes(gzip.compress((good * 20_000 + bad + good * 100).encode(), 1))
    with pytest.raises(DataError, match=r"large\.jsonl\.gz, line 20001, field 'frac'"):
        crystals_table(tmp_path / "t", file, progress=False)
    assert list(tmp_path.iterdir()) == [file]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_cut_gzip_file_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    rng = np.random.default_rng(0)
    lines = "".join(json.dumps(crystal(id=rng.bytes(20).hex())) + "\n" for _ in range(50))
    content = gzip.compress(lines.encode())
    file = folder / "c.jsonl.gz"
    file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(DataError, match=str(file)):
        crystals_table(folder / "t", file, progress=False)
    assert list(folder.iterdir()) == [file]


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    good = json.dumps(crystal()) + "\n"
    (tmp_path / "c.jsonl").write_bytes(good.encode() + good.replace("toy", "\xe9").encode("latin1"))
    with pytest.raises(DataError, match=r"c\.jsonl, line 2: .*utf-8"):
        crystals_table(tmp_path / "t", tmp_path / "c.jsonl", progress=False)


def test_a_target_that_no_crystal_has_is_an_error(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "c.jsonl", [crystal()])
    with pytest.raises(DataError, match=r"no crystal has a target 'gpa'; there are gap, volume"):
        crystals_table(tmp_path / "t", file, targets=["gpa"], progress=False)
    nulls = write_lines(tmp_path / "n.jsonl", [crystal(targets={"gap": None})] * 2)
    with pytest.raises(DataError, match=r"n\.jsonl: no crystal has a target 'gap'; there are none"):
        crystals_table(tmp_path / "t", nulls, targets=["gap"], progress=False)
    assert not (tmp_path / "t").exists()
    with pytest.raises(ValueError, match="must be unique and none of"):
        crystals_table(tmp_path / "t", file, targets=["pos"], progress=False)
    with pytest.raises(ValueError, match="must be unique"):
        crystals_table(tmp_path / "t", file, targets=["gap", "gap"], progress=False)


def test_no_crystals(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match=r"c\.jsonl holds no crystals"):
        crystals_table(tmp_path / "t", tmp_path / "c.jsonl", progress=False)
    with pytest.raises(DataError, match="absent is not a file"):
        crystals_table(tmp_path / "t", tmp_path / "absent", progress=False)


def test_progress_is_shown_or_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_lines(tmp_path / "c.jsonl", [crystal()])
    crystals_table(tmp_path / "quiet", file, progress=False)
    assert capsys.readouterr() == ("", "")
    crystals_table(tmp_path / "loud", file)
    assert "crystals" in capsys.readouterr().err


@pytest.mark.skipif(not REAL.exists(), reason="the real crystals are not here")
def test_all_real_crystals(tmp_path: Path) -> None:
    targets = ["formation_energy_per_atom", "band_gap", "K_VRH", "eij_max", "volume"]
    table = crystals_table(tmp_path / "t", REAL, targets=targets, progress=False)
    assert len(table) == 7116
    assert table.total_nodes == 76_628
    measured = {name: int(np.isfinite(table.column(name)).sum()) for name in targets}
    assert measured == {
        "formation_energy_per_atom": 3938,
        "band_gap": 1056,
        "K_VRH": 1181,
        "eij_max": 941,
        "volume": 1056 + 1181 + 941,
    }
    # Where the file gives a volume, it is that of the lattice.
    given = np.isfinite(table.column("volume"))
    volumes = np.abs(np.linalg.det(table.column("cell")[given].astype(np.float64)))
    np.testing.assert_allclose(volumes, table.column("volume")[given], rtol=1e-3)
    assert bytes(table[0].ragged["id"]).decode() == "mp-441"


def test_an_endless_line_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "bomb.jsonl.gz"
    file.write_bytes(gzip.compress(b"\n" + b"[" * (2**26), 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"bomb\.jsonl\.gz, line 2: longer than 16,777,216"):
            crystals_table(tmp_path / "t", file, progress=False)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()
