"""`weft plan full-graph`: the table, the choice, the files, and mistakes."""

from __future__ import annotations

import json
import re

import pytest

from weft.graphs import open_table
from weft.parallel.prepare import prepare
from weft.recipes.full_graph.estimates import ranks_of

AMAZON = ("--nodes", 14249639, "--edges", 230788269, "--widths", 300, 16, 24)


def test_the_figures_as_published(weft, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = weft("plan", "full-graph", *AMAZON, "--ranks", 64, "--published")
    assert said.code == 0, said
    assert "as published" in said.out
    for figure in ("20.0 GB", "7.0 GB", "8.8 GB"):
        assert figure in said.out
    assert max(map(len, said.out.splitlines()[3:-1])) <= 80
    assert "Fastest: " in said.out
    assert "◀" in said.out


def test_the_figure_with_reductions(weft, tmp_path):
    words = ("plan", "full-graph", *AMAZON, "--ranks", 64, "--exchange", "blocks")
    said = weft(*words, "--out", tmp_path / "plan.json")
    assert said.code == 0, said
    assert "1.8 GB" in said.out
    whole = json.loads((tmp_path / "plan.json").read_text())
    assert whole["schema"] == "weft plan 1"
    assert whole["command"].startswith("weft plan full-graph")
    assert whole["method"]["exchange"] == "blocks"
    assert {row["ranks"] for row in whole["estimates"]} == {64}
    replications = {e["grid"]["layers"] for e in whole["estimates"] if e["grid"]["name"] == "1.5d"}
    assert replications == {2, 4, 8}
    plain = next(row for row in whole["estimates"] if row["grid"]["name"] == "1d")
    assert plain["bytes"] == pytest.approx(1.8e9, rel=0.03)


def test_thousands_of_ranks(weft):
    said = weft("plan", "full-graph", *AMAZON, "--ranks", "4..4096")
    assert said.code == 0, said
    assert "4,096" in said.out
    assert "3d" in said.out


def test_a_memory_limit(weft, mistake):
    words = ("plan", "full-graph", *AMAZON, "--ranks", "4..64")
    said = weft(*words, "--memory-limit", 2)
    assert said.code == 0
    assert "too large" in said.out
    assert "within 2 GB a rank" in said.out
    assert "no grid fits in 0.001 GB a rank" in mistake(*words, "--memory-limit", 0.001)
    assert "memory_limit is -1.0 GB" in mistake(*words, "--memory-limit", -1)


def test_a_table_gives_sizes(weft, mistake, small_cora, tmp_path):
    said = weft("plan", "full-graph", "--data", small_cora, "--ranks", "2..4")
    assert said.code == 0, said
    edges = open_table(small_cora).total_edges
    assert f"gcn of widths 24-16-3 on 300 nodes and {edges + 300:,} nonzeros" in said.out
    # Small ones too, in units that need no exponent and do not round to nothing.
    tiny = weft("plan", "full-graph", "--nodes", 9, "--edges", 20, "--widths", 2, 2, "--ranks", 4)
    assert re.search(r" <1 ns ", tiny.out)
    assert re.search(r" \d+ B ", tiny.out)
    assert not re.search(r"e-\d\d (µs|ns)| 0\.0 kB", said.out + tiny.out)
    prepare(open_table(small_cora)[0], tmp_path / "prepared", blocks=2)
    said = weft("plan", "full-graph", "--data", tmp_path / "prepared", "--ranks", 2)
    assert f"gcn of widths 24-16-3 on 300 nodes and {edges + 300:,} nonzeros" in said.out
    said = weft("plan", "full-graph", "--data", small_cora, "--ranks", 2, "--model", "sage")
    assert f"sage of widths 24-16-3 on 300 nodes and {edges:,} nonzeros" in said.out
    assert "does not exist" in mistake("plan", "full-graph", "--data", "nowhere")
    assert "512 ranks for 300 nodes" in mistake(
        "plan", "full-graph", "--data", small_cora, "--ranks", "512"
    )


def test_a_measured_machine_is_kept(weft, mistake, tmp_path):
    small = ("plan", "full-graph", "--nodes", 1000, "--edges", 9000, "--widths", 8, 4, "--ranks", 4)
    said = weft(*small, "--calibrate", "--save", tmp_path / "here.json")
    assert said.code == 0, said
    assert "groups of 2: α" in said.out
    kept = json.loads((tmp_path / "here.json").read_text())
    assert kept["link"]["alpha"] > 0
    again = weft(*small, "--machine", tmp_path / "here.json")
    assert "measured here" in again.out
    changed = weft(*small, "--machine", tmp_path / "here.json", "--alpha", 0.5)
    assert "α 500 ms" in changed.out
    assert "use one of them" in mistake(*small, "--calibrate", "--machine", "here.json")
    (tmp_path / "bad.json").write_text('{"name": "x", "link": {"alpha": 1}}')
    assert "does not describe a machine" in mistake(*small, "--machine", tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text("[1, 2]")
    assert "does not describe a machine" in mistake(*small, "--machine", tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nodes", 10), "give --edges and --widths, or --data"),
        ((*AMAZON, "--ranks", "many"), "ranks is 'many'; give a number"),
        ((*AMAZON, "--ranks", "64..4"), "they must ascend"),
        ((*AMAZON, "--ranks", "4..10000000"), "at most 65,536"),
        ((*AMAZON, "--ranks", "0"), "from at least 1"),
        ((*AMAZON, "--beta", "0"), "beta is 0.0; it must be a positive number"),
        ((*AMAZON, "--out", "nowhere/plan.json"), "there is no folder nowhere"),
        ((*AMAZON, "--panels", "sent"), "panels to 'kept'"),
        ((*AMAZON, "--published", "--exchange", "blocks"), "leave out --exchange"),
        (("--nodes", 9, "--edges", 9, "--widths", 3), "widths are (3,); give at least 2"),
        (("--nodes", 0, "--edges", 9, "--widths", 3, 2), "nodes is 0; it must be at least 1"),
    ],
)
def test_mistakes(mistake, words, message):
    assert message in mistake("plan", "full-graph", *words)


def test_numbers_of_ranks():
    assert ranks_of("64") == [64]
    assert ranks_of("27, 4,9") == [4, 9, 27]
    assert ranks_of("4..9") == [4, 5, 6, 7, 8, 9]
    assert ranks_of("4..4096") == [2**k for k in range(2, 13)]
    assert ranks_of("1025..1100")[0] == 1025
