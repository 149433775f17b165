from pathlib import Path

import numpy as np
import pytest

from weft.errors import DataError
from weft.graphs import Graph, table_from_graphs
from weft.parallel.prepare import prepare
from weft.parallel.splits import PARTS, class_split, share_split, with_split
from weft.sources.catalogue import load

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"

Y = np.random.default_rng(0).permutation(np.repeat([-1, 0, 1, 4], [20, 60, 55, 70]))


def test_class_split():
    masks = class_split(Y)
    assert tuple(masks) == PARTS
    assert (sum(masks.values()) == (Y >= 0)).all()
    for label in (0, 1, 4):
        members = np.flatnonzero(label == Y)
        assert np.count_nonzero(masks["train"][members]) == 20
        assert np.count_nonzero(masks["validation"][members]) == 30
    again, other = class_split(Y), class_split(Y, seed=1)
    assert (again["train"] == masks["train"]).all()
    assert (other["train"] != masks["train"]).any()
    with pytest.raises(DataError, match="class 1 has 55 nodes, too few for 27 to train on and 30"):
        class_split(Y, train=27)


def test_share_split():
    masks = share_split(Y, shares=(0.5, 0.2, 0.2))
    assert [np.count_nonzero(masks[name]) for name in PARTS] == [92, 38, 36]
    assert (sum(masks.values()) <= (Y >= 0)).all()
    assert (sum(share_split(Y).values()) == (Y >= 0)).all()
    for shares in ((0.5, 0.6, 0.1), (1.2, -0.2, 0)):
        with pytest.raises(ValueError, match="three are needed, for train, validation, test"):
            share_split(Y, shares=shares)


def test_with_split():
    graph = Graph(num_nodes=len(Y), nodes={"y": Y})
    split = with_split(table_from_graphs([graph]))
    assert (split.nodes["train"] == class_split(Y)["train"]).all()
    assert with_split(split) is split
    mine = with_split(split, share_split(Y))
    assert (mine.nodes["test"] == share_split(Y)["test"]).all()
    with pytest.raises(DataError, match="no node column 'y'"):
        with_split(Graph(num_nodes=3))
    with pytest.raises(DataError, match="holds 2 graphs"):
        with_split(table_from_graphs([graph, graph]))


def test_a_source_without_a_split(tmp_path):
    file = DATA / "amazon_coauthor" / "amazon-photo.zip"
    if not file.exists():
        pytest.skip("shared data set not here")
    source = load("amazon-photo", files=[file], data_dir=tmp_path, progress=False)
    with pytest.raises(DataError, match="no node column 'train'"):
        prepare(source, blocks=2)
    table = prepare(with_split(source), blocks=2)
    assert table.metadata["counts"] == {"train": 160, "validation": 240, "test": 7250}
    assert table.metadata["classes"] == 8
    assert table.metadata["symmetric_values"]
