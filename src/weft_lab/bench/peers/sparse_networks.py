"""The same feed-forward network, its weights mostly 0: torch, sparseprop, rigl-torch and weft."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


def _arrays(case: dict[str, Any]) -> dict[str, Tensor]:
    """Weights, masks and the batch; what every process does before it makes a network."""
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    return {name: torch.from_numpy(array) for name, array in np.load(case["arrays"]).items()}


def _dense_layers(case: dict[str, Any], arrays: dict[str, Tensor]) -> list[nn.Linear]:
    layers = []
    for number in range(case["layers"]):
        weight = arrays[f"weight_{number}"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data.copy_(weight)
        nn.init.zeros_(layer.bias)
        layers.append(layer)
    return layers


def _with_relu(layers: list[Any]) -> nn.Sequential:
    return nn.Sequential(*[each for layer in layers for each in (layer, nn.ReLU())][:-1])


def _sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)


def _step(
    model: nn.Module,
    optimizer: torch.optim.SGD,
    arrays: dict[str, Tensor],
    schedule: Callable[[], bool] = lambda: True,
) -> Callable[[], None]:
    """A step of SGD with momentum; `schedule` says whether the optimizer has its turn."""

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(arrays["x"]), arrays["y"]).backward()  # type: ignore[no-untyped-call]
        if schedule():
            optimizer.step()

    return step


def _inference(model: Callable[[Tensor], Tensor], arrays: dict[str, Tensor]) -> Callable[[], None]:
    """A pass forward."""
    x = arrays["x"]

    def step() -> None:
        with torch.inference_mode():
            model(x)

    return step


def dense(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """torch: zeros among the weights, which cost as much as other numbers."""
    from weft.training import prepare_process

    # What helps weft's process must help the one that it is compared with.
    prepare_process()
    arrays = _arrays(case)
    model = _with_relu(_dense_layers(case, arrays))
    step = _inference(model, arrays) if case["online"] else _step(model, _sgd(model), arrays)
    return step, {"torch": torch.__version__}


def csr(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """torch: weights as sparse CSR tensors, inference alone."""
    from weft.training import prepare_process

    prepare_process()
    arrays = _arrays(case)
    weights = [arrays[f"weight_{number}"].to_sparse_csr() for number in range(case["layers"])]
    biases = [torch.zeros(weight.shape[0], 1) for weight in weights]

    def model(x: Tensor) -> Tensor:
        # By feature, as a sparse matrix is multiplied from the left.
        h = x.t()
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            h = torch.addmm(bias, weight, h)
            h = h.relu_() if number < len(weights) - 1 else h
        return h.t()

    return _inference(model, arrays), {"torch": torch.__version__}


def sparse(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """weft: a chain of `SparseLinear`; case["rigl"] changes their pattern by RigL too."""
    import weft
    from weft.sparsify import DropAndGrow
    from weft.training import prepare_process

    prepare_process()
    arrays = _arrays(case)
    model = _sparse_model(case, arrays)
    versions = {"weft": weft.__version__, "torch": torch.__version__}
    if case["online"]:
        return _inference(model, arrays), versions
    optimizer = _sgd(model)
    if case["rigl"]:
        DropAndGrow(
            model,
            optimizer,
            total_steps=case["total_steps"],
            sparsity=case["sparsity"],
            densities="uniform",
            every=case["every"],
            death=0.3,
            quiet=True,
        )
    return _step(model, optimizer, arrays), versions


def _sparse_model(case: dict[str, Any], arrays: dict[str, Tensor]) -> nn.Sequential:
    """The network as `weft.accelerate` makes it where all layers are faster."""
    from weft.sparsify.replacement import put_sparse

    model = _with_relu(_dense_layers(case, arrays))
    # A layer and a relu take turns.
    put_sparse(model, {f"{2 * n}": arrays[f"mask_{n}"] for n in range(case["layers"])})
    return model


def sparseprop(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """sparseprop: the network of its sparse linear layers."""
    from sparseprop.modules import SparseLinear

    arrays = _arrays(case)
    weights = [arrays[f"weight_{number}"] for number in range(case["layers"])]
    layers = [SparseLinear(w, nn.Parameter(torch.zeros(w.shape[0]))) for w in weights]
    model = _with_relu(layers)
    versions = {"sparseprop": version("sparseprop"), "torch": torch.__version__}
    if case["online"]:
        return _inference(model, arrays), versions
    return _step(model, _sgd(model), arrays), versions


def rigl_torch(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """rigl-torch: masks on dense weights and gradients, changed by RigL."""
    # It asks whether a layer is one of torchvision's residual blocks, and needs nothing else of it.
    names = ("Bottleneck", "BasicBlock")
    blocks = SimpleNamespace(**{name: type(name, (), {}) for name in names})
    vision: Any = ModuleType("torchvision")
    vision.models = SimpleNamespace(resnet=blocks)
    sys.modules.setdefault("torchvision", vision)
    from rigl_torch.RigL import RigLScheduler

    arrays = _arrays(case)
    model = _with_relu(_dense_layers(case, arrays))
    settings = {
        "dense_allocation": 1 - case["sparsity"],
        "T_end": int(0.75 * case["total_steps"]),
        "delta": case["every"],
        "alpha": 0.3,
        "ignore_linear_layers": False,
    }
    # By itself it leaves the first layer dense; a state says which masks all candidates have.
    other = copy.deepcopy(model)
    state = RigLScheduler(other, _sgd(other), **settings).state_dict()
    state["S"] = [case["sparsity"]] * case["layers"]
    state["backward_masks"] = [arrays[f"mask_{number}"] for number in range(case["layers"])]
    optimizer = _sgd(model)
    schedule = RigLScheduler(model, optimizer, **settings, state_dict=state)
    versions = {"rigl-torch": version("rigl-torch"), "torch": torch.__version__}
    return _step(model, optimizer, arrays, schedule), versions
