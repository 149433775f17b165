"""DropAndGrow as Lightning's callback: a real trainer, exact counts, and going on."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("pytorch_lightning")
    from weft.integrations.lightning import DropAndGrowCallback

from weft.sparsify import DropAndGrow

# Advice about workers, devices and folders, and what Lightning still takes from older torch.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning.*"),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning_fabric.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
EPOCHS, BATCHES = 4, 6


class Regression(lightning.LightningModule):
    """Two layers that learn a sum, the same from every start."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1))
        self.losses: list[float] = []

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.losses.append(float(loss.detach()))
        return loss

    def validation_step(self, batch, index):
        zeros = sum(int((w == 0).sum()) for w in self.parameters() if w.dim() == 2)
        self.log("zeros", float(zeros))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def batches() -> DataLoader:
    torch.manual_seed(1)
    x = torch.randn(16 * BATCHES, 8)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)


def trainer(folder: Path, callback: DropAndGrowCallback, **settings):
    return lightning.Trainer(
        **{"max_epochs": EPOCHS, **settings},
        accelerator="cpu",
        callbacks=[callback],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def callback(**settings) -> DropAndGrowCallback:
    return DropAndGrowCallback(**{"sparsity": 0.75, "every": 3, "seed": 5, **settings})


@pytest.mark.parametrize("growth", ["rigl", "set", "snfs"])
def test_one_line_makes_training_sparse(tmp_path, growth):
    module, sparsifier = Regression(), callback(growth=growth)
    fitting = trainer(tmp_path, sparsifier)
    fitting.fit(module, batches(), batches())
    sparse = sparsifier.sparse
    assert sparse is not None
    assert sparse.schedule.total_steps == EPOCHS * BATCHES == sparse.step
    size = 8 * 16 + 16
    assert sparse.masks.nnz() == round(size / 4)
    assert int((module.net[0].weight != 0).sum()) <= sparse.masks.nnz("net.0.weight")
    assert sparse.itop > 0.25  # masks have moved
    assert float(fitting.callback_metrics["sparsity"]) == pytest.approx(0.75)
    assert float(fitting.callback_metrics["ever_active"]) == pytest.approx(sparse.itop)
    # Validation, the check before the training among it, sees the sparse module.
    assert float(fitting.callback_metrics["zeros"]) >= size - sparse.masks.nnz()


def test_the_same_as_a_loop_of_ones_own(tmp_path):
    module = Regression()
    trainer(tmp_path, callback(every=4)).fit(module, batches())
    other = Regression()
    optimizer = other.configure_optimizers()
    sparse = DropAndGrow(
        other, optimizer, total_steps=EPOCHS * BATCHES, sparsity=0.75, every=4, seed=5
    )
    for _ in range(EPOCHS):
        for index, batch in enumerate(batches()):
            optimizer.zero_grad()
            other.training_step(batch, index).backward()
            optimizer.step()
    assert sparse.step == EPOCHS * BATCHES
    assert module.losses == other.losses
    for ours, theirs in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("growth", ["rigl", "snfs"])
def test_a_checkpoint_goes_on_as_if_never_stopped(tmp_path, growth):
    settings = {"growth": growth, "total_steps": EPOCHS * BATCHES}
    whole, first = Regression(), Regression()
    straight = callback(**settings)
    trainer(tmp_path / "whole", straight).fit(whole, batches())
    stopped = trainer(tmp_path / "part", callback(**settings), max_epochs=2)
    stopped.fit(first, batches())
    stopped.save_checkpoint(tmp_path / "half.ckpt")
    again, sparsifier = Regression(), callback(**settings)
    # Whatever it starts with comes from the checkpoint.
    nn.init.zeros_(again.net[0].weight)
    going = trainer(tmp_path / "rest", sparsifier)
    going.fit(again, batches(), ckpt_path=tmp_path / "half.ckpt")
    assert first.losses + again.losses == whole.losses
    for ours, theirs in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert sparsifier.sparse is not None
    assert straight.sparse is not None
    assert sparsifier.sparse.step == straight.sparse.step
    assert sparsifier.sparse.masks.nnz() == straight.sparse.masks.nnz()
    assert sparsifier.sparse.itop == straight.sparse.itop


def test_a_second_fit_keeps_the_masks(tmp_path):
    module, sparsifier = Regression(), callback(total_steps=100, stop=0.1)
    trainer(tmp_path, sparsifier, max_epochs=2).fit(module, batches())
    assert sparsifier.sparse is not None
    masks = sparsifier.sparse.masks.state_dict()
    weights = module.net[0].weight.detach().clone()
    trainer(tmp_path, sparsifier, max_epochs=1).fit(module, batches())
    assert sparsifier.sparse.step == 3 * BATCHES
    after = sparsifier.sparse.masks.state_dict()
    assert all(torch.equal(masks[name], after[name]) for name in masks)
    assert not torch.equal(weights, module.net[0].weight)
    assert torch.equal(module.net[0].weight != 0, masks["net.0.weight"])
    # Another module begins anew.
    trainer(tmp_path, sparsifier, max_epochs=1).fit(Regression(), batches())
    assert sparsifier.sparse.step == BATCHES


def test_mistakes(tmp_path):
    for asked, settings, said in (
        (callback(optimizer=1), {}, "optimizer is 1; the module has 1"),
        (callback(), {"max_epochs": -1}, "give total_steps"),
        (callback(sparsity=1.5), {}, "1.5"),
        (callback(exclude=["conv"]), {}, "conv"),
    ):
        with pytest.raises(ValueError, match=said):
            trainer(tmp_path, asked, **settings).fit(Regression(), batches())


def test_without_lightning_the_error_names_the_extra():
    script = (
        "import sys\n"
        "sys.modules['pytorch_lightning'] = sys.modules['lightning'] = None\n"
        "try:\n    import weft.integrations.lightning\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout == "this needs Lightning: pip install 'weft[lightning]'\n"
