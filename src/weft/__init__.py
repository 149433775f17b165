"""weft: sparse graphs woven into dense hardware.

    table = weft.open("mine.extxyz")  # or weft.load("qm9"), or a torch_geometric data set
    batches = weft.loader(table, policy="packed", batch_size=32)
    weft.fit(model, optimizer, batches, loss, epochs=30, run="runs/a")

`dir(weft)` shows the names of the front door, which are imported on first use; the rooms behind
it, such as `weft.batching` and `weft.sparsify`, have the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.batching import BatchingConfig as BatchingConfig
    from weft.errors import DataError as DataError
    from weft.front_door import adjacency as adjacency
    from weft.front_door import export as export
    from weft.front_door import fit as fit
    from weft.front_door import loader as loader
    from weft.front_door import open as open  # noqa: A004
    from weft.front_door import world as world
    from weft.graphs import Budget as Budget
    from weft.graphs import Graph as Graph
    from weft.graphs import GraphBatch as GraphBatch
    from weft.graphs import GraphTable as GraphTable
    from weft.graphs import assemble as assemble
    from weft.graphs import table_from_graphs as table_from_graphs
    from weft.integrations.accelerate import accelerate as accelerate
    from weft.integrations.accelerate import restore as restore
    from weft.integrations.ase_calculator import calculator as calculator
    from weft.integrations.custom_model import plan as plan
    from weft.models import FNN as FNN
    from weft.models import GCN as GCN
    from weft.models import GGNN as GGNN
    from weft.models import MPEU as MPEU
    from weft.models import GraphSAGE as GraphSAGE
    from weft.models import PaiNN as PaiNN
    from weft.models import PaiNNConfig as PaiNNConfig
    from weft.models import SchNet as SchNet
    from weft.models import SchNetConfig as SchNetConfig
    from weft.models import energy_and_forces as energy_and_forces
    from weft.planning import Plan as Plan
    from weft.report import write_page as write_page
    from weft.sources import load as load
    from weft.sparsify import SLR as SLR
    from weft.sparsify import DropAndGrow as DropAndGrow
    from weft.sparsify import Masks as Masks
    from weft.training import FitConfig as FitConfig
    from weft.training import Run as Run
    from weft.training import Step as Step
    from weft.training import seed_everything as seed_everything
else:
    __all__ = [*lazy_names(__name__), "__version__"]

__version__ = "0.1.0"
