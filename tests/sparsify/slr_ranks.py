"""SLR under DistributedDataParallel, as a function that each rank calls."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from weft.sparsify.train_and_prune import SLR


def run():
    """Weights, masks and the conditions of each epoch, by the model's own names."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 6, generator=generator, dtype=torch.float64)
    y = torch.randn(32, 3, generator=generator, dtype=torch.float64)
    rows = 32 // ranks
    mine = slice(rank * rows, (rank + 1) * rows)
    whole = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    slr = SLR(model, optimizer, sparsity=0.7, phases=(2, 8, 2), rho=0.2, step=0.2)
    conditions = []
    for epoch in range(slr.total_epochs):
        optimizer.zero_grad()
        (mse_loss(whole(x[mine]), y[mine]) + slr.penalty()).backward()
        optimizer.step()
        # Losses that rise by 1/2 in the mean, by 5 on one rank, and fall by 4 on the other.
        rise = 0.5 + (4.5 if rank == 0 else -4.5) * (ranks > 1) if epoch in (4, 7) else 0.0
        extra = iter((rise, 0.0))
        slr.end_epoch(lambda extra=extra: float(mse_loss(model(x[mine]), y[mine])) + next(extra))
        conditions.append(slr.conditions)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    return weights, slr.masks.state_dict(), conditions
