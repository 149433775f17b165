"""Recipe: which nodes of a temporal graph are joined next, from embeddings of walks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from weft.graphs import Array
from weft.models import FNN
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.data import LinkSplit, Pairs, split_links, walk_embedding
from weft.recipes.links.history import FEATURES, LinkHistory, feature_rows, trivial_scores
from weft.recipes.sparse_training import Measurements, PreparedNetwork
from weft.sources import EdgeList
from weft.training.saved_inputs import keep_inputs
from weft.training.scores import average_precision, bootstrap, roc_auc

KIND = "links"

# Pairs at a time where no gradient is needed, and at most where a fixed sample is.
_ROWS = 2**16
# A feature further than this from its mean, in deviations, is taken to be so far.
_FAR = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class PairFeatures:
    """What the network reads of pairs beside embeddings.

    Attributes:
        early: float32 [n, dim], embeddings of the edges before those that are learned from.
        scale: float32 [2, f], what is subtracted from a feature and what it is then multiplied by,
            by the pairs that are learned from; 0 times where those are all alike.
        rows: of the pairs of each part, float32 [m, f].
    """

    early: Tensor
    scale: Tensor
    rows: Mapping[str, Tensor]

    def on(self, device: torch.device) -> PairFeatures:
        """The same there."""
        rows = {part: values.to(device) for part, values in self.rows.items()}
        return PairFeatures(early=self.early.to(device), scale=self.scale.to(device), rows=rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedLinks(PreparedNetwork):
    """A temporal graph made ready for a recipe.

    Attributes:
        config: the recipe, settled.
        edges: the graph.
        split: pairs to learn from, to choose by and to test on.
        embedding: float32 [n, dim].
        features: of the pairs, if the network reads any.
        vectors: the embedding on a GPU, where that computes.
    """

    config: LinksConfig
    edges: EdgeList
    split: LinkSplit
    embedding: Array
    features: PairFeatures | None = None
    vectors: Tensor | None = None

    units = "pairs"
    score = "validation_auc"

    def network(self) -> FNN:
        """See `make_fnn`."""
        return make_fnn(self.config)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """SGD."""
        config = self.config
        return SGD(model.parameters(), lr=config.learning_rate, momentum=config.momentum)

    def rows(self) -> tuple[Tensor, ...]:
        """Pairs [m, 2], whether they are edges [m], and features [m, f] if there are any."""
        train, device = self.split.train, self._vectors.device
        own = torch.from_numpy(train.nodes).to(device), torch.from_numpy(train.labels).to(device)
        return own if self.features is None else (*own, self.features.rows["train"])

    def sample(self) -> tuple[Tensor, ...]:
        """Some of the pairs. Edges come first among all of them; a sample must have both kinds."""
        count = len(self.split.train.labels)
        order = np.random.default_rng(self.config.seed).permutation(count)
        some = torch.from_numpy(order[: min(_ROWS, count)]).to(self._vectors.device)
        return tuple(tensor[some] for tensor in self.rows())

    def example(self, rows: int) -> Tensor:
        """Inputs of ones."""
        return self._vectors.new_ones(rows, input_width(self.config))

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """Cross entropy of a batch of pairs."""
        pairs, labels, *features = batch
        vectors = self._vectors if self.features is None else self.features.early
        logits = model(_inputs(vectors, pairs, *features))[:, 0]
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits))

    def _logits(self, model: nn.Module, part: str) -> Array:
        features = None if self.features is None else self.features.rows[part]
        return link_logits(model, self._vectors, getattr(self.split, part).nodes, features)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """AUC and average precision."""
        found = _auc_and_ap(self._logits(model, "validation"), self.split.validation)
        return {f"validation_{name}": value for name, value in found.items()}

    def measured(self, model: nn.Module) -> Measurements:
        """`auc` and `ap` of the test pairs, edges in each part, and what guesses reach.

        Guesses know the training edges, as the network does.
        """
        split = self.split
        parts = {"train": split.train, "validation": split.validation, "test": split.test}
        scores = bootstrap(self._logits(model, "test"), split.test.labels)
        counts = {name: len(pairs.labels) // 2 for name, pairs in parts.items()}
        history = LinkHistory.of(split.trained)
        baselines = {
            part: {
                name: _auc_and_ap(guess, parts[part])
                for name, guess in trivial_scores(history, parts[part].nodes).items()
            }
            for part in ("validation", "test")
        }
        facts = {"repeated": split.repeated, "baselines": baselines}
        return scores, {"nodes": len(self.embedding), **counts}, facts

    @property
    def _vectors(self) -> Tensor:
        return torch.from_numpy(self.embedding) if self.vectors is None else self.vectors

    def on(self, device: torch.device) -> PreparedLinks:
        """With embeddings and features there."""
        features = None if self.features is None else self.features.on(device)
        return dataclasses.replace(self, vectors=self._vectors.to(device), features=features)

    def keep(self, folder: Path) -> None:
        """Names, embeddings, and what features follow from, of the edges known in training."""
        self._keep(folder, self.split.known, self.embedding)

    def refit(self, folder: Path) -> None:
        """Keep the same of all edges, for predictions of what comes after them.

        The network stays: it was trained on what follows the edges up to a moment, tested on a
        later moment, and predicts from a still later one. The new embeddings are
        turned to those of the test, as these were turned to those that it learned from.
        """
        if self.split.known.num_edges < self.edges.num_edges:
            embedding = walk_embedding(self.edges, self.config, like=self.embedding)
            self._keep(folder, self.edges, embedding)

    def _keep(self, folder: Path, edges: EdgeList, embedding: Array) -> None:
        tensors = {"embedding": torch.from_numpy(embedding)}
        about: dict[str, Any] = {"edges": edges.num_edges, "of_edges": self.edges.num_edges}
        if self.features is not None:
            history = LinkHistory.of(edges)
            for name in HISTORY:
                tensors[name] = torch.from_numpy(getattr(history, name))
            tensors["scale"] = self.features.scale.cpu()
            about["features"] = FEATURES
        keep_inputs(folder, KIND, self.edges.ids, tensors, **about)

    def content(self) -> dict[str, Array]:
        """The training pairs, and their features."""
        own = {"nodes": self.split.train.nodes, "labels": self.split.train.labels}
        if self.features is not None:
            own["features"] = self.features.rows["train"].cpu().numpy()
        return own

    def hardly_validated(self) -> PreparedLinks:
        """With a pair of each kind, which is what a score needs."""
        held, features = self.split.validation, self.features
        few = Pairs(nodes=held.nodes[[0, -1]], labels=held.labels[[0, -1]])
        if features is not None:
            rows = {**features.rows, "validation": features.rows["validation"][[0, -1]]}
            features = dataclasses.replace(features, rows=rows)
        split = dataclasses.replace(self.split, validation=few)
        return dataclasses.replace(self, split=split, features=features)


HISTORY = ("pairs", "counts", "last")
"""What a run keeps of a LinkHistory."""


def prepare_links(edges: EdgeList, config: LinksConfig) -> PreparedLinks:
    """Split a temporal graph, embed its nodes, and make the features of its pairs.

    Raises:
        DataError: the graph has too few edges, too few pairs that are none, or gensim is missing.
    """
    config = config.settled()
    split = split_links(
        edges,
        validation=config.validation,
        test=config.test,
        compat=config.compat,
        apart=config.features,
        negatives=config.negatives,
        seed=config.seed,
    )
    began = time.perf_counter()
    embedding = walk_embedding(split.known, config)
    features = None
    if split.earlier is not None:
        early = walk_embedding(split.earlier, config, like=embedding)
        features = _pair_features(split, early)
    seconds = time.perf_counter() - began
    return PreparedLinks(
        config=config,
        edges=edges,
        split=split,
        embedding=embedding,
        features=features,
        seconds=seconds,
    )


def _pair_features(split: LinkSplit, early: Array) -> PairFeatures:
    """Those of the training pairs by the edges before them, the others' by the training edges."""
    assert split.earlier is not None
    train = feature_rows(LinkHistory.of(split.earlier), split.train.nodes, FEATURES)
    deviation = train.std(axis=0)
    factor = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 1e-4)
    scale = np.stack([train.mean(axis=0), factor])
    history = LinkHistory.of(split.trained)
    rows = {
        "train": train,
        "validation": feature_rows(history, split.validation.nodes, FEATURES),
        "test": feature_rows(history, split.test.nodes, FEATURES),
    }
    return PairFeatures(
        early=torch.from_numpy(early),
        scale=torch.from_numpy(scale),
        rows={
            part: standardised(torch.from_numpy(values), torch.from_numpy(scale))
            for part, values in rows.items()
        },
    )


def standardised(features: Tensor, scale: Tensor) -> Tensor:
    """float32 [m, f], mean 0 and deviation 1 for the pairs that are learned from."""
    return ((features - scale[0]) * scale[1]).clamp(-_FAR, _FAR)


def _auc_and_ap(scores: Array, pairs: Pairs) -> dict[str, float]:
    return {
        "auc": roc_auc(scores, pairs.labels),
        "ap": average_precision(scores, pairs.labels),
    }


def input_width(config: LinksConfig) -> int:
    """Values that the network reads of a pair: two embeddings, and features if it has any."""
    return 2 * config.dim + (len(FEATURES) if config.settled().features else 0)


def make_fnn(config: LinksConfig, width: int | None = None) -> FNN:
    """The network, which gives a logit [b, 1] for inputs [b, width], see `input_width`."""
    return FNN((width or input_width(config), *config.hidden, 1), config.model)


def _inputs(vectors: Tensor, pairs: Tensor, features: Tensor | None = None) -> Tensor:
    """What the network reads of pairs: both embeddings, then the features."""
    both = vectors[pairs].flatten(1)
    return both if features is None else torch.cat([both, features], dim=1)


@torch.no_grad()
def link_logits(
    model: nn.Module, embedding: Tensor, pairs: Array, features: Tensor | None = None
) -> Array:
    """Logits float32 [m] of pairs of nodes int64 [m, 2], with features [m, f] if it reads any."""
    found = []
    for first in range(0, len(pairs), _ROWS):
        part = torch.from_numpy(pairs[first : first + _ROWS]).to(embedding.device)
        own = None if features is None else features[first : first + _ROWS]
        found.append(model(_inputs(embedding, part, own))[:, 0])
    return np.asarray(torch.cat(found).cpu().numpy())
