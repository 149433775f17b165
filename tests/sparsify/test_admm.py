import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from weft.sparsify.train_and_prune import ADMM, SLR


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def numpy_top(values, count):
    out = np.zeros_like(values)
    order = np.argsort(-np.abs(values).ravel(), kind="stable")[:count]
    out.ravel()[order] = values.ravel()[order]
    return out


def test_equals_a_plain_implementation():
    torch.manual_seed(0)
    model = nn.Linear(6, 4, bias=False).double()
    goal = torch.randn_like(model.weight).detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rho = 0.4
    admm = ADMM(model, optimizer, sparsity=0.75, phases=(0, 7, 0), rho=rho)
    W = model.weight.detach().numpy().copy()
    Z, U = numpy_top(W, 6), np.zeros_like(W)
    for number in range(7):
        for _ in range(3):
            optimizer.zero_grad()
            (0.5 * (model.weight - goal).square().sum() + admm.penalty()).backward()
            optimizer.step()
            W = W - 0.1 * (W - goal.numpy() + rho * (W - Z + U))
        admm.end_epoch()
        Z = numpy_top(W + U, 6)
        U = U + W - Z
        if number < 6:
            np.testing.assert_allclose(model.weight.detach().numpy(), W, rtol=1e-10)
            np.testing.assert_allclose(admm.targets["weight"].numpy(), Z, rtol=1e-10)
            np.testing.assert_allclose(admm.multipliers["weight"].numpy() / rho, U, atol=1e-12)
    np.testing.assert_allclose(model.weight.detach().numpy(), numpy_top(W, 6), rtol=1e-10)


def test_reweighting_draws_weights_to_where_they_are_pruned():
    torch.manual_seed(0)
    x, y = torch.randn(64, 6), torch.randn(64, 3)
    lost = []
    for rho in (1e-6, 1.0):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        admm = ADMM(model, optimizer, sparsity=0.75, phases=(2, 20, 1), rho=rho)
        while admm.phase != "retrain":
            for _ in range(5):
                optimizer.zero_grad()
                (F.mse_loss(model(x), y) + admm.penalty()).backward()
                optimizer.step()
            before = {name: admm.masks.weight(name).detach().clone() for name in admm.masks}
            admm.end_epoch()
        lost.append(sum(float((w * ~admm.masks[n]).norm()) for n, w in before.items()))
        assert [admm.masks.nnz(name) for name in admm.masks] == [12, 6]
    assert lost[1] < 0.2 * lost[0]


def test_retraining_keeps_the_mask():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    admm = ADMM(model, optimizer, sparsity=0.5, phases=(0, 1, 3))
    x, y = torch.randn(16, 6), torch.randn(16, 3)
    admm.end_epoch()
    for _ in range(3):
        optimizer.zero_grad()
        (F.mse_loss(model(x), y) + admm.penalty()).backward()
        optimizer.step()
        admm.end_epoch()
        assert sum(int((admm.masks.weight(n) != 0).sum()) for n in admm.masks) == 36
    assert admm.phase == "done"


def test_a_state_of_another_method_is_refused():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = SLR(model, optimizer, sparsity=0.5).state_dict()
    with pytest.raises(ValueError, match="method is SLR, here it is ADMM"):
        ADMM(model, optimizer, sparsity=0.5).load_state_dict(state)
