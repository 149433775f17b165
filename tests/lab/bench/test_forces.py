"""The benchmark of forces, on a few structures."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from rich.progress import Progress

from weft_lab.bench import forces
from weft_lab.bench_settings import ForcesBench, MDBench

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.mark.parametrize("structures", ["molecules", "cells"])
def test_small(monkeypatch, structures):
    few = {"molecules": 4, "cells": 2}[structures]
    make = getattr(forces, structures)
    monkeypatch.setattr(forces, structures, lambda: make(few))
    monkeypatch.setitem(forces._SIZE, structures, few)
    config = ForcesBench(models=("schnet-64",), structures=(structures,), rounds=1, steps=1)
    training, alone = forces.bench_forces(config, Progress(disable=True)).cases
    assert training.case == f"schnet-64-{structures}-training"
    assert f"{few} {structures}" in alone.what
    for case in (training, alone):
        assert len(case.candidates["weft"].samples) == 1
        if find_spec("torch_geometric"):
            assert len(case.candidates["torch_geometric"].samples) == 1
            assert case.ratios("weft")["torch_geometric"] > 0


def test_structures_are_like_matter():
    for table, atoms in ((forces.molecules(3), 27), (forces.cells(2), 64)):
        assert (table.num_nodes == atoms).all()
        pos = np.asarray(table.column("pos"))[:atoms]
        apart = np.linalg.norm(pos[:, None] - pos[None], axis=2) + 10 * np.eye(atoms)
        assert 0.9 < apart.min() < 2.4


def test_dynamics():
    (case,) = forces.bench_md(MDBench(atoms=(64,), rounds=1, steps=2), Progress(disable=True)).cases
    steps = case.candidates["weft"].details
    assert len(steps) == 2
    assert all(0 < step["batching"] < step["seconds"] for step in steps)
    with pytest.raises(ValueError, match="atoms is 100"):
        forces.bench_md(MDBench(atoms=(100,)), Progress(disable=True))
