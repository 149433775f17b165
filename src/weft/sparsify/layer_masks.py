"""The sparse layers of a model as drop-and-grow sees them: by name, with the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.sparsify.sparse_layers import SparseLinear
from weft.sparsify.structure import Groups, Structure


class SparseLayers:
    """The `SparseLinear` layers of a model that learn, each by the name of its dense weight.

    Args:
        model: any module.
        optimizer: of the model; its state of weights moves with them.
        exclude: names or patterns of layers' weights to leave as they are.
        structure: of all weights, which they must have already.

    Raises:
        ValueError: the optimizer does not have a layer's values, or these have another structure.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        exclude: Sequence[str],
        structure: Structure = Structure(),  # noqa: B008 - frozen
    ) -> None:
        self.optimizer, self._structure = optimizer, structure
        self._layers = {}
        known = parameter_ids(optimizer)
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
            misfit = structure.misfit((module.out_features, module.in_features), 0)
            if misfit is not None:
                raise ValueError(f"structure {structure} does not fit {name}: {misfit}")
            self.kept(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, name: str) -> Tensor:
        """Bool [O, I], True where there is a weight."""
        return self._layers[name].active_mask()

    def groups(self, name: str) -> Groups:
        """The weights of a layer that move together."""
        layer = self._layers[name]
        shape = (layer.out_features, layer.in_features)
        return Groups(structure=self._structure, shape=shape)

    def kept(self, name: str) -> Tensor:
        """The groups of a layer that are there, bool [P, G]."""
        return self.groups(name).kept(self[name], name)

    def weight(self, name: str) -> Tensor:
        """The dense weight [O, I]."""
        return self._layers[name].weight.detach()

    def want_gradients(self, wanted: bool) -> None:
        """Set whether the next backward passes compute dense gradients."""
        for layer in self._layers.values():
            layer.want_dense_gradient = wanted

    def gradient(self, name: str) -> Tensor | None:
        """The dense gradient [O, I] of all micro-batches and ranks; None where there is none.

        DistributedDataParallel averages the gradients of the active weights; those of the others
        are averaged here, over all ranks.
        """
        layer = self._layers[name]
        gradient, layer._dense_gradient = layer._dense_gradient, None
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
        slots = optimizer_slots(self.optimizer, layer.values)
        if layer.values.grad is not None:
            slots.append(layer.values.grad)
        layer.topology(mask, slots)


def parameter_ids(optimizer: Optimizer) -> set[int]:
    """Identities of the parameters that an optimizer has."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def optimizer_slots(optimizer: Optimizer, parameter: Tensor) -> list[Tensor]:
    """What an optimizer holds for each number of a parameter: momentum, Adam's moments."""
    state = optimizer.state.get(parameter, {}).values()
    return [slot for slot in state if isinstance(slot, Tensor) and slot.shape == parameter.shape]
