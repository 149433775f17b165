"""Orders, supergraphs, slices and crossovers of the study of dense hardware, each by itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from study_programs import small_program_table

from weft.graphs import Graph, table_from_graphs
from weft.layout import band_statistics
from weft.sources.program_graph import EdgeType, text_order
from weft_lab.studies import DenseHardwareStudy
from weft_lab.studies.dense_hardware import slices
from weft_lab.studies.dense_layouts import (
    BINS,
    STUDIED_ORDERS,
    FormCell,
    banded_from,
    banded_graph,
    count_supergraphs,
    order_figures,
    spy,
    time_forms,
)
from weft_lab.studies.dense_report import SLICES, published_slice


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return small_program_table(tmp_path_factory.mktemp("programs"))


def shuffled_program(places: list[int]) -> Graph:
    """Tokens 0 1 2, tree 3 (4 (0 1) 2), a candidate 5; node i is numbered places[i]."""
    child = [(3, 4), (4, 0), (4, 1), (3, 2)]
    edges = [(EdgeType.NEXT_TOKEN, 0, 1), (EdgeType.NEXT_TOKEN, 1, 2)]
    edges += [(EdgeType.CHILD, *ends) for ends in child] + [(EdgeType.LAST_USE, 5, 0)]
    kinds, senders, receivers = np.array(edges).T
    at = np.array(places)
    return Graph(
        num_nodes=6,
        senders=at[senders],
        receivers=at[receivers],
        edges={"type": kinds.astype(np.int8)},
    )


def test_the_order_of_the_text_follows_from_the_edges():
    first, second = [4, 2, 0, 5, 1, 3], [0, 1, 2, 3, 4, 5]
    table = table_from_graphs([shuffled_program(first), shuffled_program(second)])
    assert text_order(table).tolist() == [*first, *(6 + node for node in second)]


def test_edges_in_circles_have_some_order():
    around = np.array([0, 1, 2])
    graph = Graph(
        num_nodes=3,
        senders=np.tile(around, 2),
        receivers=np.tile(np.roll(around, 1), 2),
        edges={"type": np.repeat([EdgeType.NEXT_TOKEN, EdgeType.CHILD], 3).astype(np.int8)},
    )
    assert sorted(text_order(table_from_graphs([graph])).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("order", STUDIED_ORDERS)
def test_orders(programs, order):
    found = order_figures(programs, order)
    if found.skipped:
        assert order == "metis"
        return
    assert found.graphs == len(programs) == sum(found.histogram)
    assert len(found.histogram) == len(BINS)
    percents = list(found.percentiles.values())
    assert percents == sorted(percents)
    assert found.percentiles["100"] >= found.at_least["100"]
    assert 0 < found.fill <= 1


def test_the_order_of_the_table_is_told_as_it_is(programs):
    own = band_statistics(programs)
    found = order_figures(programs, "rcm")
    assert found.percentiles["100"] == own.bandwidth.max()
    assert found.percentiles["50"] == np.percentile(own.bandwidth, 50, method="inverted_cdf")
    assert found.mean_profile == own.profile.mean()
    assert found.percentiles["50"] < order_figures(programs, "text").percentiles["50"]


def test_an_order_without_its_library_is_left_out(programs, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pymetis", None)
    assert "weft[partition]" in order_figures(programs, "metis").skipped


def test_spy_has_the_same_edges_before_and_after(programs):
    found = spy(programs)
    before, after = np.array(found.before), np.array(found.after)
    assert before.shape == after.shape
    assert np.abs(before[0] - before[1]).max() == found.bandwidth_before
    assert np.abs(after[0] - after[1]).max() == found.bandwidth_after
    assert found.least <= found.bandwidth_after < found.bandwidth_before < found.nodes
    assert found.where.startswith("module_")
    degrees = [np.sort(np.bincount(ends[0], minlength=found.nodes)) for ends in (before, after)]
    np.testing.assert_array_equal(*degrees)


def test_supergraphs(programs):
    bandwidth = band_statistics(programs).bandwidth
    options = {"nodes": 500, "num_types": 20, "hidden": 8}
    wide = count_supergraphs(programs, bandwidth, block=int(bandwidth.max()), **options)
    assert wide.share == 1.0
    assert wide.nodes % wide.block == 0
    assert wide.nodes >= 500
    median = int(np.median(bandwidth))
    narrow = count_supergraphs(programs, bandwidth, block=median, **options)
    assert narrow.share == np.mean(bandwidth <= median)
    assert narrow.graphs > wide.graphs
    assert narrow.products < wide.products
    blocks = narrow.nodes // narrow.block
    cells = (3 * blocks - 2) * median**2 * 20
    assert narrow.megabytes == cells / 1e6
    assert 0 < wide.cell_fill < narrow.cell_fill < 1
    assert count_supergraphs(programs, bandwidth, block=1, **options) is None


def test_slices_keep_their_shares(programs):
    bandwidth = band_statistics(programs).bandwidth
    train = np.arange(0, len(programs), 2)
    found = slices(programs, bandwidth, train, (0.9, 0.5), 300)
    assert [each.by for each in found] == ["all data", *("bandwidth", "order") * 2]
    assert (found[0].name, found[0].share, found[0].graphs) == ("all data", 1.0, len(train))
    for each, share in zip(found[1:], (0.9, 0.9, 0.5, 0.5), strict=True):
        values = {"bandwidth": bandwidth, "order": programs.num_nodes}[each.by][train]
        assert each.share == np.mean(values <= each.limit) >= share
        assert np.mean(values < each.limit) < share
        kept = bandwidth[train][values <= each.limit]
        assert kept.max() <= each.block < kept.max() + 8
        assert each.nodes % each.block == 0


def test_published_slices_stand_beside_their_own_kind():
    assert published_slice("all data", 1.0) is SLICES[0]
    assert published_slice("bandwidth", 0.922).below == 1024
    assert published_slice("bandwidth", 0.83).cost is None
    assert published_slice("order", 0.83) is None


def test_a_banded_graph():
    graph = banded_graph(50, 3, 4, 1.0)
    # Every place of the band, of each type; 4 + 3 + 2 + 1 are missing at either end.
    assert graph.num_edges == 3 * (50 * 9 - 20)
    assert np.abs(graph.senders - graph.receivers).max() == 4
    assert banded_graph(50, 3, 4, 0.3).num_edges < 0.4 * graph.num_edges
    assert banded_graph(3, 1, 8, 1.0).num_edges == 9


def test_forms_take_turns():
    cell = FormCell(types=2, block=4, density=0.5)
    study = DenseHardwareStudy(form_nodes=40, hidden=4, rounds=3, max_edges=10_000)
    time_forms(cell, study)
    assert {form: len(samples) for form, samples in cell.measured.items()} == {
        "csr": 3,
        "banded": 3,
        "auto": 3,
    }
    assert min(min(samples) for samples in cell.measured.values()) > 0
    assert set(cell.estimated) == {"csr", "banded"}
    assert cell.chosen.split()[0] in ("csr", "banded", "dense")
    assert cell.edges == banded_graph(40, 2, 4, 0.5).num_edges
    large = FormCell(types=2, block=4, density=0.5)
    time_forms(large, replace(study, max_edges=100))
    assert "max_edges is 100" in large.skipped
    assert large.measured == {}


def timed(density: float, csr: float, banded: float, chosen: str = "csr") -> FormCell:
    return FormCell(
        types=1,
        block=8,
        density=density,
        chosen=chosen,
        estimated={"csr": 1.0, "banded": 2.0},
        measured={"csr": [csr] * 3, "banded": [banded] * 3, "auto": [csr] * 3},
    )


def test_crossover():
    cells = [timed(0.01, 1, 4), timed(0.1, 2, 4), timed(1.0, 8, 4)]
    # The ratio doubles both ways from the middle: half way in the logarithm.
    assert banded_from(cells) == pytest.approx(math.sqrt(0.1))
    assert banded_from(cells[::-1]) == banded_from(cells)
    assert banded_from(cells[:2]) == "never"
    assert banded_from(cells[2:]) == "always"
    assert banded_from(cells, estimated=True) == "never"


def test_how_far_auto_is_behind():
    assert timed(0.1, 3.0, 2.0).behind == pytest.approx(0.5)
    assert timed(0.1, 1.0, 2.0).behind == 0.0
    assert timed(0.1, 3.0, 2.0, chosen="banded 8").behind == 0.0
