"""A device that is not the CPU, for machines without one: real numbers that the CPU cannot reach.

Its tensors say `meta` and keep their numbers in a tensor on the CPU. As on a GPU, an operation on
tensors of both devices is an error, numpy cannot read them, and only copies move them.
"""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from weft.kernels import custom_op as operator

DEVICE = torch.device("meta")
_COPIES = ("aten::_to_copy", "aten::copy_")


class There(torch.Tensor):
    """A tensor of that device."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    # It has numbers, whatever its device is called.
    is_meta = False

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} outside of the block that has the device")

    def tolist(self):
        return self.inner.tolist()


class Elsewhere(TorchDispatchMode):
    """A block in which there is the device.

    Attributes:
        messages: for each collective, whether it carried tensors of the device.
    """

    def __init__(self):
        super().__init__()
        self.messages = []
        self._plain = operator._PLAIN

    @classmethod
    def _should_skip_dynamo(cls):
        # Nothing is compiled here: without this, torch loads its compiler to say so.
        return False

    def __enter__(self):
        # A GPU's tensors are torch's own: they take the short way through operators.
        operator._PLAIN = (*self._plain, There)
        return super().__enter__()

    def __exit__(self, *error):
        operator._PLAIN = self._plain
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket._qualified_op_name
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        there = any(isinstance(t, There) for t in tensors)
        # A number may be on the CPU, as for GPUs.
        here = any(not isinstance(t, There) and t.ndim for t in tensors)
        if there and here and name not in _COPIES:
            raise RuntimeError(f"{name} of tensors on both devices")
        if name.startswith("c10d::"):
            self.messages.append(there)
        target = kwargs.get("device")
        if target is not None:
            there = torch.device(target) == DEVICE
            kwargs = {**kwargs, "device": torch.device("cpu")}
        elif name == "aten::copy_":
            there = isinstance(args[0], There)
        inner = pytree.tree_map_only(There, lambda t: t.inner, (args, kwargs))
        out = func(*inner[0], **inner[1])
        if not there:
            return args[0] if name == "aten::copy_" else out
        out = pytree.tree_map_only(torch.Tensor, There, out)
        return return_and_correct_aliasing(func, args, kwargs, out)
