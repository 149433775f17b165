"""Networks: FNN; GCN, GraphSAGE; GGNN for typed edges; SchNet, MPEU, PaiNN for atoms."""

from weft.models.atoms import energy_and_forces
from weft.models.fnn import FNN, FNNConfig
from weft.models.gcn import GCN, GCNConfig, GCNLayer, with_first_product
from weft.models.ggnn import (
    GGNN,
    GatedGraph,
    GGNNConfig,
    candidate_log_probabilities,
    candidate_loss,
    right_choices,
)
from weft.models.mpeu import MPEU, MPEUConfig
from weft.models.painn import PaiNN, PaiNNConfig, painn_from_schnetpack
from weft.models.sage import GraphSAGE, SAGEConfig, SAGELayer
from weft.models.scaling import Standardised, TargetScale, learn_scale
from weft.models.schnet import SchNet, SchNetConfig, schnet_from_torch_geometric

__all__ = [
    "FNN",
    "GCN",
    "GGNN",
    "MPEU",
    "FNNConfig",
    "GCNConfig",
    "GCNLayer",
    "GGNNConfig",
    "GatedGraph",
    "GraphSAGE",
    "MPEUConfig",
    "PaiNN",
    "PaiNNConfig",
    "SAGEConfig",
    "SAGELayer",
    "SchNet",
    "SchNetConfig",
    "Standardised",
    "TargetScale",
    "candidate_log_probabilities",
    "candidate_loss",
    "energy_and_forces",
    "learn_scale",
    "painn_from_schnetpack",
    "right_choices",
    "schnet_from_torch_geometric",
    "with_first_product",
]
