"""Recipe: which nodes of a temporal graph are joined next, from embeddings of walks."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from weft.errors import DataError
from weft.graphs import Array
from weft.models import FNN
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.data import LinkSplit, Pairs, split_links, walk_embedding
from weft.recipes.recipe import from_json, reading
from weft.recipes.sparse_training import Measurements, PreparedNetwork
from weft.sources import EdgeList
from weft.training.saved_inputs import keep_inputs, kept_inputs
from weft.training.scores import average_precision, bootstrap, roc_auc
from weft.training.sparse_form import load_dense

KIND = "links"

# Pairs at a time where no gradient is needed, and at most where a fixed sample is.
_ROWS = 2**16


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedLinks(PreparedNetwork):
    """A temporal graph made ready for a recipe.

    Attributes:
        config: the recipe.
        edges: the graph.
        split: pairs to learn from, to choose by and to test on.
        embedding: float32 [n, dim].
        vectors: the same on a GPU, where that computes.
    """

    config: LinksConfig
    edges: EdgeList
    split: LinkSplit
    embedding: Array
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

    def rows(self) -> tuple[Tensor, Tensor]:
        """Pairs [m, 2] and whether they are edges [m]."""
        train, device = self.split.train, self._vectors.device
        return torch.from_numpy(train.nodes).to(device), torch.from_numpy(train.labels).to(device)

    def sample(self) -> tuple[Tensor, ...]:
        """Some of the pairs. Edges come first among all of them; a sample must have both kinds."""
        count = len(self.split.train.labels)
        order = np.random.default_rng(self.config.seed).permutation(count)
        some = torch.from_numpy(order[: min(_ROWS, count)]).to(self._vectors.device)
        return tuple(tensor[some] for tensor in self.rows())

    def example(self, rows: int) -> Tensor:
        """Concatenated embeddings of ones."""
        return self._vectors.new_ones(rows, 2 * self.config.dim)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross entropy of a batch of pairs."""
        pairs, labels = batch
        logits = model(self._vectors[pairs].flatten(1))[:, 0]
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """AUC and average precision."""
        pairs = self.split.validation
        logits = link_logits(model, self._vectors, pairs.nodes)
        return {
            "validation_auc": roc_auc(logits, pairs.labels),
            "validation_ap": average_precision(logits, pairs.labels),
        }

    def measured(self, model: nn.Module) -> Measurements:
        """`auc` and `ap` of the test pairs, edges in each part, and the share that is repeated."""
        split, embedding = self.split, self._vectors
        parts = {"train": split.train, "validation": split.validation, "test": split.test}
        scores = bootstrap(link_logits(model, embedding, split.test.nodes), split.test.labels)
        counts = {name: len(pairs.labels) // 2 for name, pairs in parts.items()}
        return scores, {"nodes": len(embedding), **counts}, {"repeated": split.repeated}

    @property
    def _vectors(self) -> Tensor:
        return torch.from_numpy(self.embedding) if self.vectors is None else self.vectors

    def on(self, device: torch.device) -> PreparedLinks:
        """With the embeddings there."""
        return dataclasses.replace(self, vectors=self._vectors.to(device))

    def keep(self, folder: Path) -> None:
        """Names and embeddings."""
        tensors = {"embedding": torch.from_numpy(self.embedding)}
        keep_inputs(folder, KIND, self.split.known.ids, tensors)

    def content(self) -> dict[str, Array]:
        """The training pairs."""
        return {"nodes": self.split.train.nodes, "labels": self.split.train.labels}

    def hardly_validated(self) -> PreparedLinks:
        """With a pair of each kind, which is what a score needs."""
        held = self.split.validation
        few = Pairs(nodes=held.nodes[[0, -1]], labels=held.labels[[0, -1]])
        return dataclasses.replace(self, split=dataclasses.replace(self.split, validation=few))


def prepare_links(edges: EdgeList, config: LinksConfig) -> PreparedLinks:
    """Split a temporal graph and embed its nodes.

    Raises:
        DataError: the graph has too few edges, too few pairs that are none, or gensim is missing.
    """
    split = split_links(
        edges,
        validation=config.validation,
        test=config.test,
        compat=config.compat,
        seed=config.seed,
    )
    began = time.perf_counter()
    embedding = walk_embedding(split.known, config)
    seconds = time.perf_counter() - began
    return PreparedLinks(
        config=config, edges=edges, split=split, embedding=embedding, seconds=seconds
    )


def make_fnn(config: LinksConfig) -> FNN:
    """The network, which gives a logit [b, 1] for concatenated embeddings [b, 2 dim]."""
    return FNN((2 * config.dim, *config.hidden, 1), config.model)


def predict_links(run: Path, file: Path) -> tuple[list[tuple[int | str, int | str, float]], int]:
    """Predict every pair `src dst` of a text file with the run in the folder `run`.

    Returns:
        Names and the probability that an edge joins them, where half of all pairs are edges, in the
        order of the file; and how many pairs have a node of which no training edge says anything.

    Raises:
        DataError: no such run, or one of another recipe, or damaged; or a line is no pair of the
            run's nodes (the message has file and line).
    """
    kept = kept_inputs(run, KIND)
    with reading(run):
        config = from_json(LinksConfig, kept.config)
    embedding, names = kept.tensors.get("embedding"), kept.names
    if embedding is None or embedding.shape != (len(names), config.dim):
        raise DataError(f"the run in {run} is damaged: its embeddings do not fit its nodes")
    model = make_fnn(config)
    load_dense(model, run)
    places = kept.places(file, 2, "src, dst")
    logits = torch.from_numpy(link_logits(model.eval(), embedding, places)).double()
    found = zip(places.tolist(), logits.sigmoid().tolist(), strict=True)
    seen = embedding.any(dim=1).numpy()
    unseen = int(np.count_nonzero(~seen[places].all(axis=1)))
    return [(names[a], names[b], probability) for (a, b), probability in found], unseen


@torch.no_grad()
def link_logits(model: nn.Module, embedding: Tensor, pairs: Array) -> Array:
    """Logits float32 [m] of pairs of nodes int64 [m, 2]."""
    parts = torch.split(torch.from_numpy(pairs).to(embedding.device), _ROWS)
    logits = [model(embedding[part].flatten(1))[:, 0] for part in parts]
    found: Array = torch.cat(logits).cpu().numpy()
    return found
