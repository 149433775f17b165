"""The stand-in device notes whatever a GPU would make the CPU wait for, and nothing else."""

from __future__ import annotations

import pytest
import torch

from stand_in_device import DEVICE, Elsewhere, There


def pinned(device, tensor):
    return tensor.pin_memory().to(device, non_blocking=True)


WAITING = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool((x > 0).any()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "copy to the CPU": lambda x: torch.empty(3).copy_(x),
    "queued copy to the CPU": lambda x: x.to("cpu", non_blocking=True),
    "copy from the CPU": lambda x: torch.ones(3).to(DEVICE),
    "pageable copy": lambda x: torch.ones(3).to(DEVICE, non_blocking=True),
    "copy into": lambda x: x.copy_(torch.ones(3)),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "assigned mask": lambda x: x.__setitem__(x > 0, x.new_zeros(1)),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "repeats": lambda x: torch.repeat_interleave(x.long()),
    "equal": lambda x: torch.equal(x, x),
    "multinomial": lambda x: x.multinomial(1),
    "synchronize": lambda x: torch.cuda.synchronize(),
}
QUEUED = {
    "sum": lambda x: x.sum() + 1,
    "page-locked copy": lambda x: pinned(DEVICE, torch.ones(3)),
    "page-locked copy into": lambda x: x.copy_(torch.ones(3).pin_memory(), non_blocking=True),
    "numbers as index": lambda x: x[x.long().clamp(max=2)],
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "repeats of known size": lambda x: torch.repeat_interleave(x.long(), output_size=6),
    "sort": lambda x: x.sort(),
}


def waits(operation):
    with Elsewhere() as there:
        x = pinned(DEVICE, torch.tensor([1.0, 2.0, 3.0]))
        assert isinstance(x, There)
        assert not there.waits
        operation(x)
        return there.waits


@pytest.mark.parametrize("name", WAITING)
def test_what_a_gpu_is_waited_for_is_noted(name):
    assert len(waits(WAITING[name])) == 1


@pytest.mark.parametrize("name", QUEUED)
def test_what_is_queued_is_not(name):
    assert waits(QUEUED[name]) == []


def test_tensors_of_both_devices_are_refused():
    with pytest.raises(RuntimeError, match="tensors on both devices"):
        waits(lambda x: x + torch.ones(3))
