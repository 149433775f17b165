"""Starting from the weights of another run, whose elements need not be those of the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from weft.files import read_object
from weft.models.target_scale import Standardised
from weft.parallel.world import World
from weft.recipes.output import notes
from weft.recipes.recipe import ABOUT
from weft.recipes.structures.atom_energies import SYMBOLS
from weft.training.checkpoint import put_weights, read_weights
from weft.training.ranks import load_on_all

_ROWS = "network.elements.embedding.weight"
_REFERENCES = "scale.references"


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """What the network of a run was made for.

    Attributes:
        elements: atomic numbers by row of its embedding; empty where it is not known.
        trained: those that it was trained on.
    """

    elements: tuple[int, ...] = ()
    trained: tuple[int, ...] = ()


def earlier_run(init_from: Path | None, world: World | None) -> Earlier:
    """What is known of the run to start from; a file of weights says nothing. Rank 0's counts."""

    def read() -> Earlier:
        if init_from is None or not (init_from / ABOUT).is_file():
            return Earlier()
        about = read_object(init_from / ABOUT, {"elements": list, "trained_elements": list})
        return Earlier(elements=tuple(about["elements"]), trained=tuple(about["trained_elements"]))

    found: Earlier = read() if world is None else world.broadcast_from_rank0(read)
    return found


def start_from_run(
    model: Standardised,
    init_from: Path,
    earlier: Earlier,
    elements: Sequence[int],
    world: World | None,
    *,
    references: Callable[[Tensor], Tensor],
    quiet: bool,
) -> None:
    """Give the model the weights and the scale of a run folder or file.

    The rows of elements that the run did not have stay as they are.

    Args:
        model: the network, made for `elements`.
        init_from: the run folder or file.
        earlier: what its network was made for.
        elements: atomic numbers by row of the model's embedding.
        world: the ranks, of which the first reads the files; None for this process alone.
        references: gives the values [119] of all elements, learned beside the run's own.
        quiet: say nothing of the elements.
    """
    new = [z for z in elements if earlier.elements and z not in earlier.elements]

    def load() -> None:
        weights = read_weights(init_from)
        rows = model.state_dict()[_ROWS].clone()
        theirs = weights.get(_ROWS)
        known = torch.tensor([list(elements).index(z) for z in earlier.elements], dtype=torch.long)
        if len(known) and theirs is not None and theirs.shape == (len(known), rows.shape[1]):
            rows[known] = theirs
            weights[_ROWS] = rows
        if new and _REFERENCES in weights:
            weights[_REFERENCES] = references(weights[_REFERENCES])
        put_weights(model, weights, str(init_from))

    load_on_all(model, load, world)
    if new and (world is None or world.rank == 0):
        old, fresh = (", ".join(SYMBOLS[z] for z in each) for each in (earlier.elements, new))
        notes(quiet=quiet).print(
            f"{init_from} knows {old}: their weights are taken over. New: {fresh}; rows of the "
            "embedding start from random numbers, and references are learned from the data."
        )
