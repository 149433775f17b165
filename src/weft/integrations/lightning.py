"""DropAndGrow as a callback of Lightning's trainer, for either name of its package."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from weft.sparsify import DropAndGrow


def _callback_class() -> Any:
    # Both packages may be installed, with different classes: take the one in use.
    names = ["pytorch_lightning", "lightning.pytorch"]
    names.sort(key=lambda name: name not in sys.modules)
    for name in names:
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise ImportError("this needs Lightning: pip install 'weft[lightning]'")


_Callback = _callback_class()


class DropAndGrowCallback(_Callback):  # type: ignore[misc, valid-type]
    """Sparse training in one line: `Trainer(callbacks=[DropAndGrowCallback(sparsity=0.9)])`.

    When a fit starts, the module's weights get masks and its optimizer the hooks that keep them;
    see `DropAndGrow`. Masks and the place in their schedule are part of every checkpoint, so that
    `trainer.fit(module, ckpt_path=...)` goes on as if it had never stopped. A second fit of the
    same module goes on with its masks too. At the end of each epoch `sparsity` and `ever_active`
    (the share of weights that were active at some time) are logged.

    Attributes:
        sparse: the DropAndGrow of the current fit; None before the first.
    """

    def __init__(
        self,
        *,
        sparsity: float = 0.9,
        total_steps: int | None = None,
        optimizer: int = 0,
        **settings: Any,
    ) -> None:
        """Store the settings.

        Args:
            sparsity: share of the weights that is 0, from 0 to below 1.
            total_steps: optimizer steps of the whole training; by default what the trainer
                expects from its epochs.
            optimizer: number of the optimizer that has the weights, where there are several.
            settings: options of `DropAndGrow`, such as growth, every, exclude, example, seed.
        """
        super().__init__()
        self.sparse: DropAndGrow | None = None
        self._total_steps, self._optimizer = total_steps, optimizer
        self._settings = {"sparsity": sparsity, **settings}
        self._loaded: dict[str, Any] | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach to the optimizer, which is a new one in every fit.

        Raises:
            ValueError: there is no such optimizer, the trainer does not know how long it will
                train, or a setting is refused by DropAndGrow.
        """
        if not 0 <= self._optimizer < len(trainer.optimizers):
            raise ValueError(
                f"optimizer is {self._optimizer}; the module has {len(trainer.optimizers)}, "
                "counted from 0"
            )
        old = self.sparse
        if old is not None:
            old.masks.detach()
            if self._loaded is None and old.masks.model is pl_module:
                self._loaded = old.state_dict()
        optimizer = trainer.optimizers[self._optimizer]
        self.sparse = DropAndGrow(
            pl_module, optimizer, total_steps=self._steps(trainer), **self._settings
        )
        self._restore()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore again: some strategies read the checkpoint only now."""
        self._restore()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the sparsity."""
        assert self.sparse is not None
        if len(self.sparse.masks):
            pl_module.log("sparsity", self.sparse.masks.sparsity)
        pl_module.log("ever_active", self.sparse.itop)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {} if self.sparse is None else self.sparse.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint for the fit that is about to start."""
        self._loaded = state_dict or None

    def _restore(self) -> None:
        if self._loaded is not None and self.sparse is not None:
            self.sparse.load_state_dict(self._loaded)
            self._loaded = None

    def _steps(self, trainer: Any) -> int:
        if self._total_steps is not None:
            return self._total_steps
        expected = trainer.estimated_stepping_batches
        if not 0 < expected < float("inf"):
            raise ValueError(
                "the trainer does not know how many steps it will take; give total_steps, or "
                "max_epochs or max_steps to the trainer"
            )
        return int(expected)
