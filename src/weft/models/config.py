"""Shapes of the networks: their options, readable without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from weft.errors import check_choices, check_least
from weft.sources.program_graph import NUM_TYPES, VOCABULARY

Pooling = Literal["sum", "mean"]
Activation = Literal["relu", "gelu", "tanh", "sigmoid"]
Start = Literal["subtokens", "bits"]


def _check_chances(config: object, *names: str) -> None:
    for name in names:
        if not 0.0 <= (value := getattr(config, name)) < 1.0:
            raise ValueError(f"{name} is {value}; it must be in [0, 1)")


def _check_positive(config: object, **units: str) -> None:
    """Raise ValueError where a field, with its unit, is not above 0 and finite; None passes."""
    for name, unit in units.items():
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} is {value} {unit}; it must be above 0 and finite")


@dataclass(frozen=True, kw_only=True)
class FNNConfig:
    """Activation and dropout between the layers of an FNN.

    Attributes:
        dropout: probability of dropping a hidden activation in training.
        activation: of every hidden layer.
    """

    dropout: float = 0.0
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        _check_chances(self, "dropout")
        check_choices(self, activation=Activation)


@dataclass(frozen=True, kw_only=True)
class GCNConfig:
    """Shape of a GCN.

    Attributes:
        hidden: widths of the hidden layers.
        dropout: probability of dropping a hidden activation.
        input_dropout: the same for input features; 0 allows the first product to be kept.
    """

    hidden: tuple[int, ...] = (16,)
    dropout: float = 0.5
    input_dropout: float = 0.5

    def __post_init__(self) -> None:
        _check_chances(self, "dropout", "input_dropout")
        if not all(width > 0 for width in self.hidden):
            raise ValueError(f"hidden widths are {self.hidden}; each must be at least 1")


@dataclass(frozen=True, kw_only=True)
class SAGEConfig(GCNConfig):
    """Shape of a GraphSAGE network, as that of a GCN; by default no features are dropped."""

    input_dropout: float = 0.0


NetworkKind = Literal["gcn", "sage", "gin", "gat", "gatv2", "appnp", "sgc"]
Norm = Literal["none", "layer", "batch", "graph"]
Aggregation = Literal["mean", "max"]


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Options of the layers of a network over one graph, other than their kind and widths.

    Attributes:
        aggregate: how GraphSAGE combines the neighbours.
        heads: of attention; they share a layer's width, and the last layer takes their mean.
        steps: products of appnp and sgc.
        teleport: the share of a node's own prediction in each product of appnp.
        residual: add a layer's input to its output, where both are of one width.
        norm: of hidden features: of each node's, or of each feature over all nodes, as in a batch
            norm or in a graph norm.
        checkpoint: compute hidden activations again in the backward pass instead of keeping them.
    """

    aggregate: Aggregation = "mean"
    heads: int = 4
    steps: int = 10
    teleport: float = 0.1
    residual: bool = False
    norm: Norm = "none"
    checkpoint: bool = False

    def __post_init__(self) -> None:
        check_choices(self, norm=Norm, aggregate=Aggregation)
        check_least(self, heads=1, steps=1)
        _check_chances(self, "teleport")


@dataclass(frozen=True, kw_only=True)
class GraphNetworkConfig(LayerOptions, GCNConfig):
    """Shape of a network over one graph that ranks may share.

    Attributes:
        kind: of its layers. appnp: a perceptron of these widths, then `steps` products; sgc:
            `steps` products, then one linear layer, without hidden ones.
    """

    kind: NetworkKind = "gcn"
    input_dropout: float = 0.0

    def __post_init__(self) -> None:
        LayerOptions.__post_init__(self)
        GCNConfig.__post_init__(self)
        check_choices(self, kind=NetworkKind)
        if self.kind in ("gat", "gatv2"):
            for width in self.hidden:
                if width % self.heads:
                    raise ValueError(
                        f"a hidden layer of {width} features cannot be shared by {self.heads} "
                        "heads; take a multiple of them"
                    )


@dataclass(frozen=True, kw_only=True)
class GGNNConfig:
    """A gated graph network that scores nodes.

    Attributes:
        hidden: H, features of a node.
        steps: T, rounds of messages.
        num_types: P, edge types; those of programs and their reverses by default.
        vocabulary: rows of the embedding of subtokens.
        start: a node begins as the mean of its `subtokens` and its role, or as `bits`: its role
            alone, without any name.
        dropout: of the messages.
        recompute: less memory for more time, see `GatedGraph`.
    """

    hidden: int = 128
    steps: int = 8
    num_types: int = NUM_TYPES
    vocabulary: int = VOCABULARY
    start: Start = "subtokens"
    dropout: float = 0.0
    recompute: bool = False

    def __post_init__(self) -> None:
        check_least(self, hidden=2, vocabulary=2)
        check_choices(self, start=Start)


@dataclass(frozen=True, kw_only=True)
class GaussianConfig:
    """Options shared by the models that describe a distance by Gaussians.

    Attributes:
        hidden: features of an atom.
        layers: interactions.
        centres: Gaussians at 0, spacing, 2 spacing, ...
        spacing: between centres, Å.
        sharpness: a Gaussian is exp(-sharpness · (d - centre)²), in 1 / Å².
        cutoff: messages fall to 0 at this distance, by a cosine, Å; None: they do not.
        aggregation: of messages; `sum` for forces: the number that a mean divides by jumps where
            a neighbour crosses the cutoff.
        readout: of the atoms' values; `sum` for a model whose energy grows with the molecule.
        elements: atomic numbers that the model knows.
    """

    hidden: int = 64
    layers: int = 3
    centres: int = 150
    spacing: float = 0.1
    sharpness: float = 10.0
    cutoff: float | None = None
    aggregation: Pooling = "mean"
    readout: Pooling = "mean"
    elements: tuple[int, ...] = (1, 6, 7, 8, 9)

    def __post_init__(self) -> None:
        check_least(self, hidden=2, layers=1, centres=1)
        _check_positive(self, spacing="Å", sharpness="1/Å²", cutoff="Å")
        check_choices(self, aggregation=Pooling, readout=Pooling)


@dataclass(frozen=True, kw_only=True)
class SchNetConfig(GaussianConfig):
    """The defaults are those of Speckhard et al. (2025): 80,352 weights.

    Attributes:
        filters: features of a filter.
        activate_filter: the last layer of the filter network has an activation too.
        bias: layers have biases (the one that makes a sender's message never has).
    """

    filters: int = 64
    activate_filter: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, filters=1)


@dataclass(frozen=True, kw_only=True)
class MPEUConfig(GaussianConfig):
    """The defaults are those of Speckhard et al. (2025): 173,152 weights.

    Edges have `hidden` features, as atoms do; an edge begins as the Gaussians of its length.
    """


@dataclass(frozen=True, kw_only=True)
class PaiNNConfig:
    """Shape of a PaiNN.

    Attributes:
        hidden: F, scalar and vector features of an atom.
        layers: rounds of messages.
        radial: Gaussians from 0 to the cutoff, evenly spaced, that describe a distance.
        cutoff: messages fall to 0 at this distance, by a cosine, Å.
        elements: atomic numbers that the model knows.
        readout: of the atoms' values; `sum` for an energy that grows with the molecule.
    """

    hidden: int = 128
    layers: int = 3
    radial: int = 20
    cutoff: float = 5.0
    elements: tuple[int, ...] = (1, 6, 7, 8, 9)
    readout: Pooling = "sum"

    def __post_init__(self) -> None:
        check_least(self, hidden=2, layers=1, radial=2)
        _check_positive(self, cutoff="Å")
        check_choices(self, readout=Pooling)

    @property
    def spacing(self) -> float:
        """Distance between the centres of two Gaussians, Å."""
        return self.cutoff / (self.radial - 1)

    @property
    def sharpness(self) -> float:
        """A Gaussian is exp(-sharpness · (d - centre)²), in 1 / Å²."""
        return 0.5 / self.spacing**2
