"""Trained networks of links and nodes as ONNX files: what the runs predict, without weft."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from recipe_cases import papers
from temporal_graphs import circles

from weft.graphs import GraphBatch
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.export import export_links
from weft.recipes.links.history import FEATURES, LinkHistory, feature_rows
from weft.recipes.links.prediction import LinkPredictor
from weft.recipes.links.training import prepare_links
from weft.recipes.nodes.config import PUBLISHED
from weft.recipes.nodes.export import export_nodes
from weft.recipes.nodes.training import prepare_nodes
from weft.recipes.sparse_training import train_network
from weft.training import Run


def outputs(path: Path, **inputs: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, inputs)
    return np.asarray(found)


def test_links_from_pairs_and_their_features(tmp_path: Path) -> None:
    edges = circles()
    data = prepare_links(edges, LinksConfig(dim=6, hidden=(20,), batch_size=64, epochs=1))
    with Run.create(tmp_path / "run", data.config, tensorboard=False) as run:
        train_network(data, run=run, quiet=True)
        data.refit(tmp_path / "run")
    pairs = data.split.test.nodes
    rows = feature_rows(LinkHistory.of(edges), pairs, FEATURES)
    export_links(tmp_path / "run", tmp_path / "model.onnx")
    found = outputs(tmp_path / "model.onnx", pairs=pairs, features=rows)
    expected = LinkPredictor.load(tmp_path / "run").probabilities(pairs)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_classes_from_features_and_edges(tmp_path: Path) -> None:
    data = prepare_nodes(papers(200), replace(PUBLISHED, epochs=3))
    with Run.create(tmp_path / "run", data.config, tensorboard=False) as run:
        trained = train_network(data, run=run, quiet=True)
    batch = data.inputs
    assert isinstance(batch, GraphBatch)
    export_nodes(tmp_path / "run", tmp_path / "model.onnx")
    found = outputs(
        tmp_path / "model.onnx",
        x=batch.nodes["x"].numpy(),
        edge_index=torch.stack([batch.senders, batch.receivers]).long().numpy(),
        edge_weight=batch.edges["weight"].numpy(),
    )
    with torch.no_grad():
        expected = trained.model.eval()(batch).softmax(1).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
