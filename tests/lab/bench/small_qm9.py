"""QM9 in small."""

from __future__ import annotations

import numpy as np

from weft.graphs import GraphTable
from weft.sources.qm9 import QM9_ELEMENTS, QM9_TARGETS, Molecule, molecules_table


def small_qm9(count: int) -> GraphTable:
    """Random molecules with the columns of QM9, atoms about an Å apart."""
    rng = np.random.default_rng(0)
    molecules = []
    for i in range(count):
        size = int(rng.integers(2, 7))
        places = np.arange(size)[:, None] * [1.1, 0.0, 0.0] + rng.uniform(0, 0.1, (size, 3))
        molecules.append(
            Molecule(
                index=i + 1,
                smiles="C",
                elements=rng.choice(list(QM9_ELEMENTS), size).tolist(),
                positions=places.ravel().tolist(),
                charges=[0.0] * size,
                targets=rng.normal(size=len(QM9_TARGETS)).tolist(),
            )
        )
    return molecules_table(molecules)
