"""A trained run of the recipe `links`, asked about pairs of its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from weft.errors import DataError
from weft.graphs import Array
from weft.models import FNN
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.training import KIND, link_logits, make_fnn
from weft.recipes.structures.prediction import from_json
from weft.training.saved_inputs import KeptInputs, kept_inputs
from weft.training.sparse_form import load_dense


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedPairs:
    """A trained network with the nodes that it knows.

    Attributes:
        model: gives a logit [b, 1] for concatenated embeddings [b, 2 dim].
        config: of the training.
        kept: the nodes' names and their `embedding` [n, dim].
    """

    model: FNN
    config: LinksConfig
    kept: KeptInputs


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkPredictions:
    """What a network says about pairs of nodes.

    Attributes:
        pairs: names, from and to, in the order of the file.
        probability: float64 [m], that an edge joins them, where half of all pairs are edges.
        unseen: pairs with a node of which no training edge says anything.
    """

    pairs: list[tuple[int | str, int | str]]
    probability: Array
    unseen: int


def load_links(run: Path) -> TrainedPairs:
    """The best weights of the run in the folder `run`.

    Raises:
        DataError: no such run, or one of another recipe, or damaged.
    """
    kept = kept_inputs(run, KIND)
    try:
        config = from_json(LinksConfig, kept.config)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"the run in {run} cannot be read ({error})") from None
    embedding = kept.tensors.get("embedding")
    if embedding is None or embedding.shape != (len(kept.names), config.dim):
        raise DataError(f"the run in {run} is damaged: its embeddings do not fit its nodes")
    model = make_fnn(config)
    load_dense(model, run)
    model.eval()
    return TrainedPairs(model=model, config=config, kept=kept)


def predict_links(trained: TrainedPairs, file: Path) -> LinkPredictions:
    """Predict every pair `src dst` of a text file.

    Raises:
        DataError: a line is no pair of the run's nodes; the message has file and line.
    """
    embedding, names = trained.kept.tensors["embedding"], trained.kept.names
    places = trained.kept.places(file, 2, "src, dst")
    logits = torch.from_numpy(link_logits(trained.model, embedding, places)).double()
    seen = embedding.any(dim=1).numpy()
    return LinkPredictions(
        pairs=[(names[a], names[b]) for a, b in places.tolist()],
        probability=logits.sigmoid().numpy(),
        unseen=int(np.count_nonzero(~seen[places].all(axis=1))),
    )
