"""Test errors of repeated trainings, policy by policy, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.batching import BatchingConfig, PolicyName
from weft.graphs import GraphTable
from weft.recipes.structures.config import ModelName, NeighbourConfig, StructuresConfig
from weft.recipes.structures.training import train_structures

Errors = dict[str, list[float]]
"""Test RMSE of each seed in order, by policy, in the target's unit."""


def repeat_trainings(
    table: GraphTable,
    errors: Errors,
    *,
    model: ModelName,
    target: str,
    references: bool,
    neighbours: NeighbourConfig,
    policies: Sequence[PolicyName],
    batch_size: int,
    epochs: int,
    hidden: int,
    repeats: int,
    done: Callable[[], None],
) -> None:
    """Train with every policy from seeds 0, 1, ... and add the test errors to `errors`.

    All trainings have the split of the data in common, those of a seed their first weights; all
    see each graph as often.
    What `errors` has already is not trained again.

    Args:
        table: structures with neighbours.
        errors: is added to.
        model: which network.
        target: column to learn.
        references: see StructuresConfig.
        neighbours: that the table has.
        policies: of batching.
        batch_size: graphs in a batch.
        epochs: passes over the training structures.
        hidden: features of an atom.
        repeats: trainings a policy.
        done: called after each training.

    Raises:
        KeyboardInterrupt: a training was interrupted; `errors` has those before.
    """
    for seed in range(repeats):
        for policy in policies:
            known = errors.setdefault(policy, [])
            if len(known) > seed:
                continue
            config = StructuresConfig(
                target=target,
                model=model,
                hidden=hidden,
                references=references,
                # The paper's own.
                readout="mean",
                neighbours=neighbours,
                batching=BatchingConfig(policy=policy, batch_size=batch_size),
                epochs=epochs,
                seed=seed,
            )
            trained = train_structures(table, config, quiet=True)
            if trained.result.stopped.startswith("interrupted"):
                raise KeyboardInterrupt
            known.append(trained.scores["test_rmse"])
            done()
