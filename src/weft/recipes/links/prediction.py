"""A trained run on links applied to pairs of nodes, or several runs on one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from weft.errors import DataError
from weft.graphs import Array
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.history import LinkHistory, feature_rows
from weft.recipes.links.training import HISTORY, KIND, link_logits, make_fnn, standardised
from weft.recipes.recipe import from_json, reading
from weft.training.saved_inputs import KeptInputs, kept_inputs
from weft.training.sparse_form import load_dense


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkPredictor:
    """A trained run on links, ready to predict.

    Attributes:
        kept: names of the nodes and what the network reads.
        model: the network.
        history: of the edges that features follow from; None without features.
        features: their names.
    """

    kept: KeptInputs
    model: nn.Module
    history: LinkHistory | None
    features: Sequence[str]

    @classmethod
    def load(cls, run: Path) -> LinkPredictor:
        """The predictor in the folder of a run.

        Raises:
            DataError: no such run, or one of another recipe, or damaged.
        """
        kept = kept_inputs(run, KIND)
        with reading(run):
            # The first versions had no features, and their runs do not say so.
            config = from_json(LinksConfig, {"features": False, **kept.config})
            features = [str(name) for name in kept.about.get("features", ())]
        tensors, nodes = kept.tensors, len(kept.names)
        embedding = tensors.get("embedding")
        if embedding is None or embedding.shape != (nodes, config.dim):
            raise DataError(f"the run in {run} is damaged: its embeddings do not fit its nodes")
        history = None
        if features:
            with reading(run):
                values = {name: tensors[name].numpy() for name in HISTORY}
                count = int(values["counts"].sum())
                history = LinkHistory(num_nodes=nodes, edges=count, **values)
                history.check()
            scale = tensors.get("scale")
            if scale is None or scale.shape != (2, len(features)):
                raise DataError(f"the run in {run} is damaged: its scale does not fit its features")
        model = make_fnn(config, 2 * config.dim + len(features))
        load_dense(model, run)
        return cls(kept=kept, model=model.eval(), history=history, features=features)

    @property
    def known(self) -> Array:
        """Whether anything is known of a node: an edge, or without features a walk, bool [n]."""
        if self.history is not None:
            return self.history.known
        found: Array = self.kept.tensors["embedding"].any(dim=1).numpy()
        return found

    def probabilities(self, pairs: Array) -> Array:
        """float64 [m], for pairs of nodes int64 [m, 2]."""
        rows = None
        if self.history is not None:
            values = feature_rows(self.history, pairs, self.features)
            rows = standardised(torch.from_numpy(values), self.kept.tensors["scale"])
        logits = link_logits(self.model, self.kept.tensors["embedding"], pairs, rows)
        found: Array = torch.from_numpy(logits).double().sigmoid().numpy()
        return found


@dataclass(frozen=True, kw_only=True)
class PredictedLinks:
    """Predictions for the pairs in a file.

    Attributes:
        rows: of each pair both names and the probability that an edge joins them, where half of
            all pairs are edges; unless the run is of an early version, also the names of those of
            the two of which nothing is known.
        unknown: all nodes of which nothing is known, in the order of the file.
        pairs: how many pairs have such a node.
        edges: how many edges of the graph the predictions rest on, the fewest of all runs; None
            where they do not say.
        of_edges: how many there are.
    """

    rows: list[tuple[Any, ...]]
    unknown: list[int | str]
    pairs: int
    edges: int | None
    of_edges: int | None


def predict_links(runs: Sequence[Path], file: Path) -> PredictedLinks:
    """Predict every pair `src dst` of a text file, with one run or the mean of several on a graph.

    Raises:
        DataError: no such run, or one of another recipe, or damaged; or a line is no pair of the
            run's nodes (the message has file and line).
    """
    members = [LinkPredictor.load(run) for run in runs]
    kept = members[0].kept
    names = kept.names
    places = kept.places(file, 2, "src, dst")
    for run, member in zip(runs, members, strict=True):
        if member.kept.names != names:
            raise DataError(f"the run in {run} has other nodes than the one in {runs[0]}")
    probabilities = np.mean([member.probabilities(places) for member in members], axis=0)
    known = np.all([member.known for member in members], axis=0)
    strangers = [[names[node] for node in pair if not known[node]] for pair in places.tolist()]
    rows: list[tuple[Any, ...]] = [
        (names[a], names[b], probability)
        for (a, b), probability in zip(places.tolist(), probabilities.tolist(), strict=True)
    ]
    bases = [member.kept.about for member in members]
    tells = all("edges" in about for about in bases)
    if tells:
        told = [" ".join(map(str, dict.fromkeys(each))) for each in strangers]
        rows = [(*row, each) for row, each in zip(rows, told, strict=True)]
    return PredictedLinks(
        rows=rows,
        unknown=list(dict.fromkeys(name for each in strangers for name in each)),
        pairs=sum(map(bool, strangers)),
        edges=min(int(about["edges"]) for about in bases) if tells else None,
        of_edges=max(int(about["of_edges"]) for about in bases) if tells else None,
    )
