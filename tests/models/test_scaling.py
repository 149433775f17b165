"""The scale of a target: references by element, standardisation, and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weft.errors import DataError
from weft.graphs import Budget, Column, assemble, table_from_columns
from weft.models.target_scale import Standardised, TargetScale, element_counts, learn_scale

BY_ELEMENT = {1: -13.6, 6: -1030.5, 8: -2042.25}


def table(numbers, target):
    return table_from_columns(
        {
            "z": Column(level="node", dtype="uint8"),
            "energy": Column(level="graph", dtype="float64", missing=True),
        },
        num_nodes=[len(z) for z in numbers],
        columns={
            "z": np.concatenate([np.array(z, dtype=np.uint8) for z in numbers]),
            "energy": np.array(target, dtype=np.float64),
        },
    )


def random_numbers(count=60, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.choice(list(BY_ELEMENT), rng.integers(1, 9)).tolist() for _ in range(count)]


def energies(numbers):
    return np.array([sum(BY_ELEMENT[z] for z in molecule) for molecule in numbers])


def test_references_recover_the_energy_of_each_element():
    numbers = random_numbers()
    made = table(numbers, energies(numbers))
    scale = learn_scale(made, np.arange(40), "energy", references=True)
    found = scale.references.numpy()
    assert found[list(BY_ELEMENT)] == pytest.approx(list(BY_ELEMENT.values()), abs=1e-9)
    assert np.count_nonzero(found) == 3
    # Nothing but rounding is left, which is no reason to blow it up.
    assert float(scale.std) == 1.0
    assert float(scale.mean) == pytest.approx(0, abs=1e-9)
    assert np.abs(scale.standardise(made, energies(numbers))).max() < 1e-8


@pytest.mark.parametrize("references", [True, False])
def test_standardise_and_forward_are_inverse(references):
    numbers = random_numbers()
    target = energies(numbers) + np.random.default_rng(1).normal(size=60)
    made = table(numbers, target)
    scale = learn_scale(made, np.arange(50), "energy", references=references)
    label = scale.standardise(made, target)
    assert label.dtype == np.float32
    assert abs(label[:50].mean(dtype=np.float64)) < 1e-6
    assert label[:50].std(dtype=np.float64) == pytest.approx(1, abs=1e-6)
    budget = Budget(nodes=made.total_nodes + 5, edges=4, graphs=64)
    batch = assemble(made, range(60), budget)
    raw = torch.zeros(64, dtype=torch.float64)
    # In float64 the way there, to take the label's own rounding out.
    exact = (target - (scale(batch, raw)[:60].numpy())) / float(scale.std)
    assert np.abs(exact - label).max() < 1e-6
    raw[:60] = torch.from_numpy(exact)
    back = scale(batch, raw)
    assert back.dtype == torch.float64
    assert np.abs(back[:60].numpy() - target).max() < 1e-10
    rounded = scale(batch, raw.float())[:60].numpy()
    assert np.abs(rounded - target).max() < 1e-6 * float(scale.std)


def test_only_the_training_graphs_are_learned_from():
    numbers = random_numbers(20)
    target = energies(numbers)
    target[15:] = np.nan
    scale = learn_scale(table(numbers, target), np.arange(15), "energy", references=False)
    assert float(scale.mean) == pytest.approx(target[:15].mean())
    assert float(scale.std) == pytest.approx(target[:15].std())
    assert not scale.references.any()


@pytest.mark.parametrize("value", [0.0, 3.25, -1.1e6])
def test_a_constant_target(value):
    made = table(random_numbers(10), np.full(10, value))
    scale = learn_scale(made, np.arange(10), "energy", references=False)
    assert (float(scale.mean), float(scale.std)) == (pytest.approx(value), 1.0)
    assert np.abs(scale.standardise(made, np.full(10, value))).max() < 1e-6


def test_a_target_in_a_large_unit():
    target = np.random.default_rng(0).normal(size=20) * 1e-40
    made = table(random_numbers(20), target)
    scale = learn_scale(made, np.arange(20), "energy", references=False)
    assert scale.standardise(made, target).std() == pytest.approx(1, abs=1e-5)


def test_elements_that_always_come_together_share():
    # Every molecule has two H for an O: their energies cannot be told apart, the sum can.
    numbers = [[8, 1, 1] * n for n in range(1, 6)]
    made = table(numbers, [-76.0 * n for n in range(1, 6)])
    scale = learn_scale(made, np.arange(5), "energy", references=True)
    found = scale.references.numpy()
    assert 2 * found[1] + found[8] == pytest.approx(-76.0)
    # The smallest solution, not two huge ones that cancel.
    assert np.abs(found).max() < 76.0


def test_an_element_that_only_other_graphs_have_gets_nothing():
    made = table([[1], [1, 1], [6]], [-1.0, -2.0, -40.0])
    scale = learn_scale(made, np.array([0, 1]), "energy", references=True)
    assert scale.references[1] == pytest.approx(-1.0)
    assert scale.references[6] == 0


@pytest.mark.parametrize(("graphs", "count"), [([0, 1], 2), ([], 0)])
def test_values_that_no_scale_follows_from(graphs, count):
    made = table([[1], [6]], [1.0, np.nan])
    with pytest.raises(DataError, match=f"'energy' has {count} training values"):
        learn_scale(made, np.array(graphs, dtype=np.int64), "energy", references=True)


def test_sums_of_many_graphs_lose_no_digits():
    numbers = [[8] * 9] * 5000
    made = table(numbers, np.zeros(5000))
    references = np.zeros(119)
    references[8] = -2042.123456789
    scale = TargetScale(0.0, 1e-6, references)
    target = np.full(5000, sum([references[8]] * 9))
    assert not scale.standardise(made, target).any()


def test_element_counts():
    elements, counts = element_counts(table([[1, 1, 8], [6], [8, 8]], [0, 0, 0]))
    assert elements.tolist() == [1, 6, 8]
    assert counts.tolist() == [[2, 0, 1], [0, 1, 0], [0, 0, 2]]


def test_the_scale_travels_with_the_weights():
    model = Standardised(torch.nn.Linear(1, 1), TargetScale(2.0, 3.0, np.arange(119.0)))
    other = Standardised(torch.nn.Linear(1, 1), TargetScale())
    other.load_state_dict(model.state_dict())
    assert (float(other.scale.mean), float(other.scale.std)) == (2.0, 3.0)
    assert other.scale.references.tolist() == list(range(119))
    assert other.scale.references.dtype == torch.float64


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.0), (0.0, -1.0), (np.nan, 1.0), (0.0, np.inf)])
def test_a_scale_that_cannot_be_undone_is_refused(mean, std):
    with pytest.raises(ValueError, match="both are finite and std is above 0"):
        TargetScale(mean, std)


@pytest.mark.parametrize("references", [True, False])
def test_an_extensive_scale_has_no_constant_and_the_deviation_of_an_atom(references):
    numbers = random_numbers()
    sizes = np.array([len(z) for z in numbers])
    target = energies(numbers) + sizes * np.random.default_rng(1).normal(7.0, 0.5, 60)
    twice = [z + z for z in numbers]
    made = table(numbers + twice, np.concatenate([target, 2 * target]))
    scale = learn_scale(made, np.arange(60), "energy", references=references, extensive=True)
    assert float(scale.mean) == 0
    labels = scale.standardise(made, made.column("energy")).astype(np.float64)
    assert labels[60:] == pytest.approx(2 * labels[:60], rel=1e-5, abs=1e-5)
    assert (labels[:60] / sizes).std() == pytest.approx(1, rel=1e-5)


def test_with_forces_their_root_mean_square_is_the_scale():
    numbers = random_numbers(20)
    made = table(numbers, energies(numbers))
    pushes = np.random.default_rng(1).normal(0, 3.0, (made.total_nodes, 3))
    # Of the training graphs alone: the others have none.
    pushes[made.node_offsets[15] :] = np.nan
    schema = {
        **made.schema,
        "push": Column(level="node", dtype="float64", shape=(3,), missing=True),
    }
    made = table_from_columns(
        schema, num_nodes=made.num_nodes, columns={**made.columns, "push": pushes}
    )
    known = pushes[: made.node_offsets[15]]
    options = {"references": True, "extensive": True, "forces": "push"}
    scale = learn_scale(made, np.arange(15), "energy", **options)
    assert float(scale.std) == pytest.approx(np.sqrt((known**2).mean()))
