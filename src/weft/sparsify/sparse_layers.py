"""A model's sparse layers, as drop-and-grow sees them: like masks, but nothing is masked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.sparsify.layers import SparseLinear


class SparseLayers:
    """The `SparseLinear` layers of a model that learn, each by the name of its dense weight.

    Args:
        model: any module.
        optimizer: of the model; what it knows of weights moves with them.
        exclude: names or patterns of layers' weights to leave as they are.

    Raises:
        ValueError: the optimizer does not have a layer's values.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, exclude: Sequence[str]) -> None:
        self.optimizer = optimizer
        self._layers = {}
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for path, module in model.named_modules():
            name = f"{path}.weight" if path else "weight"
            if not isinstance(module, SparseLinear) or not module.values.requires_grad:
                continue
            if any(fnmatchcase(name, pattern) for pattern in exclude):
                continue
            if id(module.values) not in known:
                raise ValueError(
                    f"the optimizer does not have {name.removesuffix('weight')}values; give it "
                    "this parameter, or exclude the layer"
                )
            self._layers[name] = module

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, name: str) -> Tensor:
        """Bool [O, I], True where there is a weight."""
        return self._layers[name].active_mask()

    def weight(self, name: str) -> Tensor:
        """The dense weight [O, I]."""
        return self._layers[name].weight.detach()

    def want_gradients(self, wanted: bool) -> None:
        """Say whether the next backward passes are to compute dense gradients."""
        for layer in self._layers.values():
            layer.want_dense_gradient = wanted

    def gradient(self, name: str) -> Tensor | None:
        """The dense gradient [O, I] of all micro-batches and ranks; None where there is none.

        What DistributedDataParallel sums is the gradient of the weights that are there; the
        others' is summed here, over all ranks.
        """
        layer = self._layers[name]
        try:
            gradient = layer.dense_gradient()
        except RuntimeError:
            gradient = None
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            if gradient is None:
                gradient = layer.values.new_zeros(layer.out_features, layer.in_features)
            gradient = gradient.contiguous()
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        return gradient

    def set(self, name: str, mask: Tensor) -> None:
        """Move weights to where `mask` [O, I] is True; new ones are 0, and so are their slots."""
        layer = self._layers[name]
        state = self.optimizer.state.get(layer.values, {}).values()
        slots = [s for s in state if isinstance(s, Tensor) and s.shape == layer.values.shape]
        if layer.values.grad is not None:
            slots.append(layer.values.grad)
        layer.topology(mask, slots)
