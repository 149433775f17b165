"""Small potentials with weights drawn at random, for simulations."""

from __future__ import annotations

import numpy as np
import torch

from weft.integrations.potential import Potential
from weft.models import (
    MPEU,
    MPEUConfig,
    PaiNN,
    PaiNNConfig,
    SchNet,
    SchNetConfig,
    Standardised,
    TargetScale,
)

CUTOFF = 4.0
ELEMENTS = (1, 6, 8, 14, 26)
GAUSSIANS = {"cutoff": CUTOFF, "aggregation": "sum", "readout": "sum", "elements": ELEMENTS}
NETWORKS = {
    "schnet": lambda: SchNet(SchNetConfig(hidden=8, filters=8, layers=2, **GAUSSIANS)),
    "mpeu": lambda: MPEU(MPEUConfig(hidden=8, layers=2, **GAUSSIANS)),
    "painn": lambda: PaiNN(PaiNNConfig(hidden=8, layers=2, cutoff=CUTOFF, elements=ELEMENTS)),
}


def potential(*names: str, dtype="float64", seed: int = 0, device=None) -> Potential:
    """The potential of one network, or the mean of several."""
    torch.manual_seed(seed)
    references = -np.arange(119.0)
    models = [Standardised(NETWORKS[name](), TargetScale(0.0, 0.5, references)) for name in names]
    return Potential(models, cutoff=CUTOFF, elements=ELEMENTS, dtype=dtype, device=device)
