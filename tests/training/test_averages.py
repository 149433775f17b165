"""Moving averages of the weights: torch's own as the reference, sparse layers, and `fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_fits import adam, data, fixed_model, losses, quiet, squared_error
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from weft import DropAndGrow
from weft.errors import DataError
from weft.sparsify.sparse_layers import SparseLinear
from weft.training import Run, fit, load_weights
from weft.training.averages import AveragedWeights


def reference(decay: float) -> tuple[AveragedModel, Any]:
    """torch's averages of `fixed_model`, and what takes in the weights after a step."""

    def average(before: Tensor, now: Tensor, steps: Any) -> Tensor:
        d = min(decay, (1 + float(steps)) / (10 + float(steps)))
        return d * before + (1 - d) * now

    averaged = AveragedModel(fixed_model().double(), avg_fn=average)
    # The first update copies the weights: that is how ours begin.
    averaged.update_parameters(fixed_model().double())
    return averaged, averaged.update_parameters


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_averages_are_torchs_with_a_warm_up(decay):
    model, (expected, update) = fixed_model().double(), reference(decay)
    optimizer, batch = adam(model), tuple(each.double() for each in data())
    averages = AveragedWeights(model, decay)
    for _ in range(12):
        optimizer.zero_grad()
        squared_error(model, batch).backward()
        optimizer.step()
        averages.update()
        update(model)
    raw = [p.detach().clone() for p in model.parameters()]
    with averages.in_model():
        for one, other in zip(model.parameters(), expected.module.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    assert all(map(torch.equal, raw, model.parameters()))


def test_what_is_evaluated_kept_and_written_are_the_averages(tmp_path):
    model, (expected, update) = fixed_model(), reference(0.9)
    seen: list[list[Tensor]] = []

    class Noting(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            found = super().step(closure)
            update(fixed_copy(model))
            return found

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append([p.detach().clone() for p in model.parameters()])
        for one, other in zip(seen[-1], expected.module.parameters(), strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)
        # The second of three evaluations is the best.
        return {"score": [1.0, 3.0, 2.0][len(seen) - 1]}

    config = quiet(epochs=3, monitor="score", mode="max", ema=0.9)
    with Run.create(tmp_path / "run", {}, tensorboard=False) as run:
        optimizer = Noting(model.parameters(), lr=0.05)
        fit(
            model, optimizer, [data()] * 4, squared_error, config=config, evaluate=evaluate, run=run
        )
    assert len(seen) == 3
    stored = fixed_model()
    load_weights(stored, tmp_path / "run")
    assert all(map(torch.equal, seen[1], model.parameters()))
    assert all(map(torch.equal, seen[1], stored.parameters()))
    # The checkpoint has both; whoever takes weights from it gets the averages.
    load_weights(stored, tmp_path / "run" / "last.pt")
    assert all(map(torch.equal, seen[2], stored.parameters()))


def fixed_copy(model: nn.Module) -> nn.Module:
    copy = fixed_model().double()
    copy.load_state_dict(model.state_dict())
    return copy


def trained(folder: Path, **options: Any) -> tuple[list[float], nn.Module]:
    model = fixed_model()
    with Run.create(folder, {}, tensorboard=False, resume=True) as run:
        config = quiet(epochs=3, log_every=1, **options)
        fit(model, adam(model), [data()] * 4, squared_error, config=config, run=run)
    return losses(folder), model


def test_without_a_monitor_the_last_averages_are_kept_and_a_cut_run_goes_on_to_the_bit(tmp_path):
    whole, model = trained(tmp_path / "whole", ema=0.9)
    raw, plain = trained(tmp_path / "plain")
    # Training itself does not notice.
    assert whole == raw
    assert not torch.equal(next(model.parameters()), next(plain.parameters()))
    trained(tmp_path / "cut", ema=0.9, max_steps=6)
    again, same = trained(tmp_path / "cut", ema=0.9)
    assert again == whole
    assert all(map(torch.equal, model.parameters(), same.parameters()))
    stored = fixed_model()
    load_weights(stored, tmp_path / "cut")
    assert all(map(torch.equal, model.parameters(), stored.parameters()))


def test_a_resume_with_other_averages_is_refused(tmp_path):
    trained(tmp_path / "run", ema=0.9, max_steps=2)
    with pytest.raises(DataError, match="averaged weights"):
        trained(tmp_path / "run")
    for decay in (1.0, -0.1):
        with pytest.raises(ValueError, match="it is a decay below 1"):
            quiet(ema=decay)


def test_averages_of_masked_weights_stay_masked():
    model = fixed_model()
    optimizer = adam(model)
    masks = DropAndGrow(model, optimizer, total_steps=30, sparsity=0.5, every=3, quiet=True).masks
    changed = masks["0.weight"].clone()
    config = quiet(epochs=5, ema=0.99)
    fit(model, optimizer, [data()] * 5, squared_error, config=config)
    assert not torch.equal(masks["0.weight"], changed)
    for name in masks:
        assert not masks.weight(name)[~masks[name]].any()
        assert masks.weight(name)[masks[name]].any()


def test_the_average_of_a_sparse_layers_weight_moves_with_it():
    torch.manual_seed(0)
    layer = SparseLinear(4, 3, torch.ones(3, 4).tril(1).bool())
    averages = AveragedWeights(layer, 0.9)
    dense = layer.weight.detach().clone()
    with torch.no_grad():
        layer.values *= 3
    averages.update()
    dense += (1 - 2 / 11) * 2 * dense
    moved = layer.active_mask()
    moved[0, 0], moved[0, 3] = False, True
    layer.topology(moved)
    with averages.in_model():
        torch.testing.assert_close(layer.weight, dense * moved)
