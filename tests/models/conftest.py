import numpy as np
import pytest

from weft.graphs import Budget, Column, assemble, table_from_columns
from weft.sources import Cutoff, FullyConnected, with_neighbours

ELEMENTS = np.array([1, 6, 7, 8, 9])


def structures(count=5, *, largest=7, periodic=False, seed=0):
    """A table of random atoms, at least 0.7 Å apart."""
    rng = np.random.default_rng(seed)
    places, sizes = [], rng.integers(1, largest + 1, count)
    for n in sizes:
        some = [rng.uniform(0, 4, 3)]
        while len(some) < n:
            place = rng.uniform(0, 4, 3)
            if min(np.linalg.norm(place - other) for other in some) > 0.7:
                some.append(place)
        places.append(np.array(some))
    pos = np.concatenate(places)
    schema = {
        "z": Column(level="node", dtype="uint8"),
        "pos": Column(level="node", dtype="float64", shape=(3,), unit="Å"),
    }
    columns = {"z": rng.choice(ELEMENTS, len(pos)).astype(np.uint8), "pos": pos}
    if periodic:
        schema["cell"] = Column(level="graph", dtype="float64", shape=(3, 3), unit="Å")
        schema["pbc"] = Column(level="graph", dtype="bool", shape=(3,))
        columns["cell"] = np.eye(3) * 5.0 + rng.uniform(-0.4, 0.4, (count, 3, 3))
        columns["pbc"] = np.ones((count, 3), dtype=bool)
    return table_from_columns(schema, num_nodes=sizes, columns=columns)


@pytest.fixture
def atoms_table():
    """Makes a table of molecules or crystals without edges."""
    return structures


@pytest.fixture
def atoms_batch():
    """Makes a batch of molecules (all pairs) or crystals (within 4 Å)."""

    def make(count=5, *, largest=7, periodic=False, padded=False, paired=True, seed=0):
        rule = Cutoff(radius=4.0) if periodic else FullyConnected()
        table = with_neighbours(
            structures(count, largest=largest, periodic=periodic, seed=seed), rule, progress=False
        )
        if not paired:
            object.__setattr__(table, "metadata", {})
        budget = Budget(nodes=table.total_nodes + 3, edges=table.total_edges + 5, graphs=count + 2)
        return assemble(table, range(count), budget if padded else None)

    return make
