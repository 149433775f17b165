"""Which form of an operator runs, and what is said where the form that was asked for cannot."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from weft.kernels import backends, plain_torch, segment_sum
from weft.kernels import triton as kernels
from weft.kernels.backends import forms, runs_triton, use_backend
from weft.kernels.custom_op import has_loop
from weft.kernels.triton import launch


def on(device: str, dtype: torch.dtype = torch.float32, index: int | None = 0) -> SimpleNamespace:
    """What the choice reads of a tensor, for devices that are not here."""
    return SimpleNamespace(device=SimpleNamespace(type=device, index=index), dtype=dtype)


@pytest.fixture
def fresh():
    """The answers that are kept for a process are found anew, and again after the test."""
    for known in (backends.missing_triton, backends._too_old, backends._warn_once):
        known.cache_clear()
    yield
    for known in (backends.missing_triton, backends._too_old, backends._warn_once):
        known.cache_clear()


def test_tensors_of_the_cpu_have_loops_and_others_are_plain():
    x = torch.ones(2, 2)
    assert has_loop(x)
    assert not has_loop(x.half())
    assert forms(x.half()) is plain_torch
    assert forms(x.to("meta")) is plain_torch


def test_a_backend_that_was_asked_for_is_taken():
    x = torch.ones(2, 2)
    with use_backend("triton"):
        assert not has_loop(x)
        assert forms(x) is kernels
        # There is no kernel for whole numbers.
        assert forms(x.long()) is plain_torch
        with use_backend("cpu"):
            assert has_loop(x)
            assert forms(x.half()) is plain_torch
    with use_backend("plain"):
        assert not has_loop(x)
        assert forms(x) is plain_torch
    assert has_loop(x)


@pytest.mark.parametrize("name", ["cuda", "Triton"])
def test_a_backend_that_is_not_there_is_refused(name, monkeypatch):
    with pytest.raises(ValueError, match="choose from plain, triton, cpu"), use_backend(name):
        pass
    monkeypatch.setenv("WEFT_BACKEND", name)
    with pytest.raises(
        ValueError, match=f"WEFT_BACKEND is '{name}'; choose from plain, triton, cpu"
    ):
        backends._from_environment()


def test_the_environment_names_a_backend(monkeypatch):
    monkeypatch.setenv("WEFT_BACKEND", "plain")
    assert backends._from_environment() == "plain"
    monkeypatch.setenv("WEFT_BACKEND", "")
    assert backends._from_environment() is None


def test_without_the_interpreter_tensors_of_the_cpu_have_no_kernels(monkeypatch):
    monkeypatch.setattr(launch, "INTERPRETED", False)
    x, offsets = torch.ones(2, 2), torch.tensor([0, 2])
    with use_backend("triton"), pytest.raises(ValueError, match="set TRITON_INTERPRET=1"):
        segment_sum(x, offsets)


def test_no_triton_is_plain_torch_and_a_sentence(monkeypatch, fresh):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.warns(UserWarning, match=r"plain torch on this GPU.*pip install 'weft\[gpu\]'"):
        assert not runs_triton(on("cuda"))
    # It is said once.
    assert not runs_triton(on("cuda"))
    with use_backend("triton"), pytest.raises(ValueError, match=r"pip install 'weft\[gpu\]'"):
        runs_triton(torch.ones(1))


def test_an_old_triton_is_refused(monkeypatch, fresh):
    monkeypatch.setattr("triton.__version__", "3.2.0")
    with use_backend("triton"), pytest.raises(ValueError, match=r"3\.2\.0 is older than 3\.3"):
        runs_triton(torch.ones(1))


@pytest.mark.parametrize(("capability", "runs"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_an_old_gpu_runs_plain_torch(capability, runs, monkeypatch, fresh):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    if runs:
        assert runs_triton(on("cuda"))
        return
    with pytest.warns(UserWarning, match=r"a GPU has compute capability 7\.5"):
        assert not runs_triton(on("cuda"))
    with use_backend("triton"), pytest.raises(ValueError, match="WEFT_BACKEND=plain"):
        runs_triton(on("cuda"))


@pytest.mark.parametrize(("release", "runs"), [("3.7.1", False), ("3.9.0", True)])
def test_a_new_gpu_needs_a_triton_that_compiles_for_it(release, runs, monkeypatch, fresh):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (10, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    monkeypatch.setattr(sys.modules["triton"], "__version__", release)
    if runs:
        assert runs_triton(on("cuda"))
        return
    with pytest.warns(UserWarning, match=r"triton before 3\.9 compiles products .* to nothing"):
        assert not runs_triton(on("cuda"))


@pytest.mark.parametrize(("arch", "runs"), [("gfx1030", False), ("gfx942:sramecc+", True)])
def test_a_gpu_of_amd_without_a_matrix_unit_runs_plain_torch(arch, runs, monkeypatch, fresh):
    about = SimpleNamespace(gcnArchName=arch)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: about)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    if runs:
        assert runs_triton(on("cuda"))
        return
    with pytest.warns(UserWarning, match="a GPU is a gfx1030, and the kernels are for gfx90a"):
        assert not runs_triton(on("cuda"))
    with use_backend("triton"), pytest.raises(ValueError, match="WEFT_BACKEND=plain"):
        runs_triton(on("cuda"))


def test_operators_of_the_cpu_load_neither_triton_nor_a_compiler():
    code = "import sys, weft.kernels, weft.layout; "
    code += "print({'triton', 'torch._dynamo'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_device_that_triton_does_not_know_is_refused():
    assert not runs_triton(on("mps"))
    with use_backend("triton"), pytest.raises(ValueError, match="use a CUDA or ROCm one"):
        runs_triton(on("mps"))
