"""Networks: GCN for nodes of a graph; SchNet, MPEU and PaiNN for molecules and crystals."""

from weft.models.atoms import energy_and_forces
from weft.models.gcn import GCN, GCNConfig, GCNLayer, with_first_product
from weft.models.mpeu import MPEU, MPEUConfig
from weft.models.painn import PaiNN, PaiNNConfig, painn_from_schnetpack
from weft.models.scaling import Standardised, TargetScale, learn_scale
from weft.models.schnet import SchNet, SchNetConfig, schnet_from_torch_geometric

__all__ = [
    "GCN",
    "MPEU",
    "GCNConfig",
    "GCNLayer",
    "MPEUConfig",
    "PaiNN",
    "PaiNNConfig",
    "SchNet",
    "SchNetConfig",
    "Standardised",
    "TargetScale",
    "energy_and_forces",
    "learn_scale",
    "painn_from_schnetpack",
    "schnet_from_torch_geometric",
    "with_first_product",
]
