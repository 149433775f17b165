"""Networks: FNN; GCN, GraphSAGE; GGNN for typed edges; SchNet, MPEU, PaiNN for atoms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.models.config import FNNConfig as FNNConfig
    from weft.models.config import GCNConfig as GCNConfig
    from weft.models.config import GGNNConfig as GGNNConfig
    from weft.models.config import MPEUConfig as MPEUConfig
    from weft.models.config import PaiNNConfig as PaiNNConfig
    from weft.models.config import SAGEConfig as SAGEConfig
    from weft.models.config import SchNetConfig as SchNetConfig
    from weft.models.dipole import DipolePaiNN as DipolePaiNN
    from weft.models.fnn import FNN as FNN
    from weft.models.gcn import GCN as GCN
    from weft.models.gcn import GCNLayer as GCNLayer
    from weft.models.gcn import GraphSAGE as GraphSAGE
    from weft.models.gcn import SAGELayer as SAGELayer
    from weft.models.gcn import with_first_product as with_first_product
    from weft.models.ggnn import GGNN as GGNN
    from weft.models.ggnn import GatedGraph as GatedGraph
    from weft.models.ggnn import candidate_log_probabilities as candidate_log_probabilities
    from weft.models.ggnn import candidate_loss as candidate_loss
    from weft.models.ggnn import right_choices as right_choices
    from weft.models.mpeu import MPEU as MPEU
    from weft.models.painn import PaiNN as PaiNN
    from weft.models.painn import painn_from_schnetpack as painn_from_schnetpack
    from weft.models.properties import Properties as Properties
    from weft.models.properties import energy_and_forces as energy_and_forces
    from weft.models.properties import properties_of as properties_of
    from weft.models.schnet import SchNet as SchNet
    from weft.models.schnet import schnet_from_torch_geometric as schnet_from_torch_geometric
    from weft.models.target_scale import Standardised as Standardised
    from weft.models.target_scale import TargetScale as TargetScale
    from weft.models.target_scale import learn_scale as learn_scale
else:
    __all__ = lazy_names(__name__)
