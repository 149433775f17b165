"""A trained predictor of links as a program: probabilities for pairs of the run's nodes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import weft
from weft.errors import DataError
from weft.models import FNN
from weft.models.exported_program import Exported
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.training import KIND, standardised
from weft.recipes.recipe import from_json, reading
from weft.sparsify.export import export_model
from weft.training.saved_inputs import kept_inputs
from weft.training.sparse_form import load_dense


class PairProgram(nn.Module):
    """Probabilities of edges between nodes of the run's graph, by their numbers."""

    embedding: Tensor

    def __init__(self, network: nn.Module, embedding: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("embedding", embedding)

    def forward(self, pairs: Tensor) -> Tensor:
        """[P] for pairs int64 [P, 2], from and to."""
        logits: Tensor = self.network(self.embedding[pairs].flatten(1))[:, 0]
        return logits.sigmoid()


class PairFeatureProgram(PairProgram):
    """The same with features of the pairs beside the embeddings."""

    scale: Tensor

    def __init__(self, network: nn.Module, embedding: Tensor, scale: Tensor) -> None:
        super().__init__(network, embedding)
        self.register_buffer("scale", scale)

    def forward(self, pairs: Tensor, features: Tensor) -> Tensor:  # type: ignore[override]
        """[P] for pairs int64 [P, 2] and features float32 [P, f] of `feature_rows`."""
        inputs = torch.cat(
            [self.embedding[pairs].flatten(1), standardised(features, self.scale)], dim=1
        )
        logits: Tensor = self.network(inputs)[:, 0]
        return logits.sigmoid()


def export_links(run: Path, path: Path, *, int8: bool = False) -> Exported:
    """Write the network of a run as .pt2 or .onnx; see `export_model`.

    Raises:
        DataError: the run cannot be read, the file cannot be written, or what was written would
            differ from the run.
    """
    kept = kept_inputs(run, KIND)
    with reading(run):
        config = from_json(LinksConfig, kept.config)
    embedding, scale = kept.tensors.get("embedding"), kept.tensors.get("scale")
    if embedding is None or embedding.shape != (len(kept.names), config.dim):
        raise DataError(f"the run in {run} is damaged: its embeddings do not fit its nodes")
    features = 0 if scale is None else scale.shape[1]
    network = FNN((2 * config.dim + features, *config.hidden, 1), config.model)
    load_dense(network, run)
    places = torch.arange(512) % len(embedding)
    pairs = torch.stack([places, places.flip(0)], dim=1)
    metadata = {"weft_version": weft.__version__, "model": "fnn"}
    program: nn.Module = PairProgram(network, embedding)
    example: tuple[Tensor, ...] = (pairs,)
    if scale is not None:
        program = PairFeatureProgram(network, embedding, scale)
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(len(pairs), features, generator=generator)
        example = (pairs, scale[0] + drawn / scale[1].clamp_min(1e-3))
        metadata["features"] = " ".join(map(str, kept.about.get("features", [])))
    return export_model(
        program, path, example=example, int8=int8, metadata=metadata, model_in="weft"
    )
