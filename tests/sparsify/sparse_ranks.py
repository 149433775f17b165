"""Sparse training on one of several ranks, each with its share of every batch."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from small_models import OPTIMIZERS, fnn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weft.sparsify import DropAndGrow
from weft.sparsify.sparse_layers import SparseLinear

ROWS, STEPS = 16, 14


def converted(model):
    """With sparse layers in place of the first two, the same on every rank."""
    generator = torch.Generator().manual_seed(2)
    for i in (0, 2):
        mask = torch.rand(model[i].weight.shape, generator=generator) < 0.3
        model[i] = SparseLinear.from_dense(model[i], mask)
    return model


def run(growth, wrapped_first, micro_batches, sparse):
    """Patterns of the weights after each step, and the weights in the end."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    # Only rank 0's weights count.
    model = fnn(seed=rank)
    model = converted(model) if sparse else model
    outer = model
    if ranks > 1 and wrapped_first:
        outer = DistributedDataParallel(model)
    optimizer = OPTIMIZERS["adam"](outer.parameters())
    # Something random that differs from rank to rank changes nothing.
    torch.manual_seed(100 + rank)
    sparsifier = DropAndGrow(
        outer, optimizer, total_steps=STEPS, every=3, sparsity=0.7, growth=growth
    )
    if ranks > 1 and not wrapped_first:
        outer = DistributedDataParallel(model)
    generator, patterns = torch.Generator().manual_seed(7), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        for part in range(micro_batches):
            x = torch.randn(ROWS, 6, generator=generator, dtype=torch.float64)
            y = torch.randint(3, (ROWS,), generator=generator)
            mine = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
            last = part == micro_batches - 1
            with nullcontext() if last or ranks == 1 else outer.no_sync():
                loss = nn.functional.cross_entropy(outer(x[mine]), y[mine]) / micro_batches
                loss.backward()
        optimizer.step()
        masks = [sparsifier.masks[name].clone() for name in sparsifier.masks]
        masks += [m.active_mask() for m in model if isinstance(m, SparseLinear)]
        patterns.append(torch.cat([mask.flatten() for mask in masks]))
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    return torch.stack(patterns), weights


def all_runs():
    """All settings in turn: a rank takes seconds to start."""
    settings = [("rigl", True, 1), ("rigl", False, 2), ("set", True, 1), ("snfs", True, 2)]
    return {
        (setting, sparse): run(*setting, sparse) for setting in settings for sparse in (False, True)
    }
