"""What the models of atoms share."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weft.models import (
    MPEU,
    MPEUConfig,
    PaiNN,
    PaiNNConfig,
    SchNet,
    SchNetConfig,
    energy_and_forces,
)


class Added(TorchDispatchMode):
    """Notes the rows that torch adds up with atomics on a GPU, where a row is met three times.

    A sum of two numbers and 0 does not depend on their order.
    """

    def __init__(self):
        super().__init__()
        self.calls, self.most = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.calls += 1
        if name.startswith(("index_add", "scatter_add")):
            self.most = max(self.most, int(torch.bincount(args[2].flatten()).max()))
        elif name.startswith(("index_put", "_index_put")) and len(args) > 3 and args[3]:
            (rows,) = (index for index in args[1] if index is not None)
            self.most = max(self.most, int(torch.bincount(rows.flatten()).max()))
        return func(*args, **(kwargs or {}))


def test_the_watch_sees_a_sum():
    with Added() as added:
        x = torch.ones(3, 2, requires_grad=True)
        x.index_select(0, torch.tensor([0, 0, 0, 1])).sum().backward()
    assert added.most == 3


MODELS = {
    "schnet": lambda: SchNet(
        SchNetConfig(hidden=8, filters=8, cutoff=4.0, aggregation="sum", readout="sum")
    ),
    "mpeu": lambda: MPEU(MPEUConfig(hidden=8, cutoff=4.0, aggregation="sum", readout="sum")),
    "painn": lambda: PaiNN(PaiNNConfig(hidden=8, cutoff=4.0, readout="sum")),
}


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("name", list(MODELS))
def test_forces_do_not_depend_on_the_order_of_atomics(atoms_batch, name, paired):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    batch = atoms_batch(4, periodic=True, paired=paired)
    with Added() as added:
        energy, forces = energy_and_forces(model, batch, training=True)
        (energy.sum() + forces.square().sum()).backward()
    assert added.calls
    assert added.most <= 2
