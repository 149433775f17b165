"""A device that is not the CPU, for machines without one: real numbers that the CPU cannot reach.

Its tensors say `meta` and keep their numbers in a tensor on the CPU. As on a GPU, an operation on
tensors of both devices is an error, numpy cannot read them, and only copies move them. Memory can
be page-locked for it, and it notes what a GPU would make the CPU wait for.
"""

from __future__ import annotations

import contextlib
from unittest import mock

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from weft.kernels import custom_op as operator

DEVICE = torch.device("meta")
_COPIES = ("aten::_to_copy", "aten::copy_")
# Their results, or the shapes of these, are known on a GPU alone.
_READS = {
    *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount"),
    *("_unique2", "unique_dim", "unique_consecutive", "multinomial", "histc"),
}


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
        Elsewhere.present.waits.append("tolist")
        return self.inner.tolist()


class Elsewhere(TorchDispatchMode):
    """A block in which there is the device.

    Attributes:
        messages: for each collective, whether it carried tensors of the device.
        waits: names of the operations so far for which the CPU has waited for the device: what
            reads a number or has a shape that depends on one, and copies that are not queued from
            page-locked memory.
        done: names, shapes and dtypes of the operations so far on the device, of copies from the
            CPU the address too; None, which is the default, leaves them out.
    """

    present = None

    def __init__(self):
        super().__init__()
        self.messages = []
        self.waits = []
        self.done = None
        self._around = contextlib.ExitStack()

    @classmethod
    def _should_skip_dynamo(cls):
        # Nothing is compiled here: without this, torch loads its compiler to say so.
        return False

    def __enter__(self):
        def waits(device=None):
            self.waits.append("synchronize")

        around = self._around
        # A GPU's tensors are torch's own: they take the short way through operators.
        around.enter_context(mock.patch.object(operator, "_PLAIN", (*operator._PLAIN, There)))
        around.enter_context(mock.patch.object(Elsewhere, "present", self))
        for name, value in {
            "torch.accelerator.current_accelerator": lambda check_available=False: DEVICE,
            "torch.accelerator.synchronize": waits,
            "torch.optim.optimizer._get_fused_kernels_supported_devices": lambda: ["meta"],
            "torch.cuda.synchronize": waits,
            # Not among the operations below: loaders lock memory in a thread of their own.
            "torch.Tensor.pin_memory": _pinned,
        }.items():
            around.enter_context(mock.patch(name, value))
        return super().__enter__()

    def __exit__(self, *error):
        self._around.close()
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket._qualified_op_name
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        there = any(isinstance(t, There) for t in tensors)
        # A number may be on the CPU, as for GPUs.
        here = any(not isinstance(t, There) and t.ndim for t in tensors)
        # What torch.tensor(..., device=) makes: it never came by here.
        lost = any(not isinstance(t, There) and t.device == DEVICE for t in tensors)
        if lost or (there and here and name not in _COPIES):
            raise RuntimeError(f"{name} of tensors on both devices")
        if name.startswith("c10d::"):
            self.messages.append(there)
        if there and _waits(func, name.removeprefix("aten::"), args, kwargs):
            self.waits.append(name)
        target = kwargs.get("device")
        if target is not None:
            was, there = there, torch.device(target) == DEVICE
            if name == "aten::_to_copy" and was != there and not _queued(args[0], kwargs):
                self.waits.append(f"{name} to {target}")
            kwargs = {**kwargs, "device": torch.device("cpu")}
        elif name == "aten::copy_":
            there = isinstance(args[0], There)
            queued = {"non_blocking": kwargs.get("non_blocking", len(args) > 2 and args[2])}
            if there != isinstance(args[1], There) and not _queued(args[1], queued):
                self.waits.append(name)
        inner = pytree.tree_map_only(There, lambda t: t.inner, (args, kwargs))
        out = func(*inner[0], **inner[1])
        if self.done is not None and there:
            self._write_down(func, name, tensors)
        if not there:
            return args[0] if name == "aten::copy_" else out
        out = pytree.tree_map_only(torch.Tensor, There, out)
        return return_and_correct_aliasing(func, args, kwargs, out)

    def _write_down(self, func, name, tensors):
        shapes = [(tuple(t.shape), t.dtype) for t in tensors]
        if name in _COPIES and not isinstance(tensors[-1], There):
            to = tensors[0].inner.data_ptr() if name == "aten::copy_" else None
            self.done.append((f"{'moved' if to is None else 'copied'} from the CPU", to, *shapes))
        else:
            self.done.append((str(func), *shapes))


def _pinned(tensor):
    copy = tensor.clone()
    copy.is_locked = True
    return copy


def _queued(source, kwargs):
    """Whether a copy between the devices is done later, as the CPU goes on."""
    to_device = not isinstance(source, There)
    return kwargs.get("non_blocking") and to_device and getattr(source, "is_locked", False)


def _waits(func, name, args, kwargs):
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        chosen = [t for t in args[1] if t is not None]
        return any(t.dtype in (torch.bool, torch.uint8) for t in chosen)
    return name in _READS
