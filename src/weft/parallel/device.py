"""The device of a rank: a GPU of its own where the host has one for each rank, else the CPU."""

from __future__ import annotations

import os
from typing import get_args

import torch
import torch.distributed as dist

from weft.parallel.method import DeviceName


def own_device(name: DeviceName = "auto", *, ranks: int | None = None) -> torch.device:
    """The device of this process among those that torchrun has started on this host.

    Args:
        name: `cuda` for a GPU, `auto` for one where there are any that ranks can talk through.
        ranks: processes on this host, where they have not been started yet.

    Raises:
        ValueError: see `device_of`.
    """
    world = os.environ.get("WORLD_SIZE", "1")
    gpus = (
        torch.cuda.device_count() if torch.cuda.is_available() and dist.is_nccl_available() else 0
    )
    return device_of(
        name,
        gpus=gpus,
        # A launcher that does not say who is on which host is taken to have one host.
        local_rank=int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))),
        local_ranks=ranks or int(os.environ.get("LOCAL_WORLD_SIZE", world)),
    )


def device_of(name: DeviceName, *, gpus: int, local_rank: int, local_ranks: int) -> torch.device:
    """The device of rank `local_rank` of the `local_ranks` on a host with `gpus` usable GPUs.

    Raises:
        ValueError: no such name, `cuda` without a GPU, or fewer GPUs than ranks.
    """
    if name not in get_args(DeviceName):
        raise ValueError(f"device is {name!r}; choose from {', '.join(get_args(DeviceName))}")
    if name == "cpu" or (name == "auto" and gpus == 0):
        return torch.device("cpu")
    if gpus == 0:
        raise ValueError(
            "device is cuda, but torch finds no GPU here, or was built without CUDA and NCCL; "
            "choose cpu, or install a torch for this machine's GPUs"
        )
    if local_ranks > gpus:
        raise ValueError(
            f"{local_ranks} ranks on a host with {gpus} GPU{'s' * (gpus > 1)}, and each needs its "
            f"own; start {gpus} on this host, or choose the device cpu"
        )
    return torch.device("cuda", local_rank)


def replica_device(name: str = "cpu", *, ranks: int | None = None) -> torch.device:
    """The device of this process where each has the whole model: cpu, cuda or cuda:N.

    Args:
        name: `cuda` for a GPU, of several ranks on a host one for each.
        ranks: processes on this host, where they have not been started yet.

    Raises:
        ValueError: no such name or no such GPU, or fewer GPUs than ranks.
    """
    kind, _, number = name.partition(":")
    if kind == "mps":
        raise ValueError(
            "device is mps, which has no float64, the precision of scales and scores: choose cpu "
            "or cuda"
        )
    if kind not in ("cpu", "cuda") or (":" in name and not (kind == "cuda" and number.isdigit())):
        raise ValueError(f"device is {name!r}; choose from cpu, cuda, cuda:N")
    several = (ranks or int(os.environ.get("WORLD_SIZE", "1"))) > 1
    if kind == "cpu" or several:
        if number:
            raise ValueError(
                f"device is {name}, one GPU, and there are several ranks, which need one each: "
                "choose cuda"
            )
        return own_device("cuda" if kind == "cuda" else "cpu", ranks=ranks)
    checked_device(name)
    return torch.device("cuda", int(number or 0))


def checked_device(device: torch.device | str) -> torch.device:
    """The device, where it is there.

    Raises:
        ValueError: torch does not know it, or finds no such GPU here.
    """
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device is {device!r}; choose from cpu, cuda, cuda:N") from None
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found.type == "cuda" and (found.index or 0) >= gpus:
        raise ValueError(
            f"device is {found}, but torch finds {gpus or 'no'} GPU{'s' * (gpus != 1)} here; "
            "choose cpu, or install a torch for this machine's GPUs"
        )
    return found


def backend_of(device: torch.device) -> str:
    """The backend that carries messages: NCCL for tensors on a GPU, gloo for those on the CPU."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
