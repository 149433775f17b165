"""Offline builds of the Triton kernels, and the certificate that is made of them."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch

from weft.kernels import triton as kernels
from weft.kernels import triton_certificate
from weft.kernels.triton import checks, launch
from weft.kernels.triton.builds import TARGETS, Build, distinct
from weft.kernels.triton.launch import KERNELS, recording
from weft.kernels.triton_certificate import by_kernel, certify, faults


@pytest.fixture(scope="module")
def certificate():
    """The certificate of two operators, for one GPU of each maker."""
    return certify(targets=("sm_90", "gfx942"), cases=("softplus", "PaiNN inv"))


def test_a_certificate_has_values_bytes_and_machine_code(certificate):
    assert faults(certificate) == []
    assert {row["case"] for row in certificate["values"]} == {"softplus", "PaiNN invariants"}
    assert {row["dtype"] for row in certificate["values"]} == {"float32", "bfloat16"}
    assert not certificate["complete"]
    machines = by_kernel(certificate)
    names = {"softplus_values", "softplus_gradients"}
    assert set(machines) == names | {"painn_invariants", "painn_invariants_backward"}
    for machine in machines.values():
        assert set(machine.registers) == {"sm_90", "gfx942"}
        assert all(0 < int(count) < 256 for count in machine.registers.values())
        assert 0.9 < machine.ratio < 1.3


def test_what_regresses_is_a_fault(certificate):
    worse = deepcopy(certificate)
    worse["values"][0] |= {"wrong": "hub, width 33", "error": 0.5}
    worse["values"][1]["kernels"] = []
    worse["values"][2]["raised"] = "AssertionError: softplus touches memory at random, width 1"
    worse["bytes"][0]["ratio"] = 1.4
    worse["builds"][0]["faults"] = ["8 spilled"]
    found = faults(worse)
    assert len(found) == 5
    assert "hub, width 33" in found[0]
    assert "no kernel was launched" in found[1]
    assert "touches memory at random, width 1" in found[2]
    assert "1.40 times the bytes" in found[3]
    assert "8 spilled" in found[4]


def test_a_launch_that_fails_is_a_fault(monkeypatch, capsys):
    def fail(*arguments, **options):
        raise AssertionError("softplus_values touches memory outside its tensors")

    monkeypatch.setattr(checks, "compare", fail)
    triton_certificate._values("interpreter", ["softplus"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = [record for kind, record in lines if kind == "values"]
    found = faults({"values": rows, "bytes": [], "builds": []})
    assert found[0] == (
        "softplus (float32, interpreter): AssertionError: softplus_values touches memory outside "
        "its tensors at random, width 1"
    )
    assert len(found) == len(rows) == 2


def test_machine_code_that_is_not_let_pass():
    good = {"kernel": "k", "target": "gfx942", "variant": "v", "registers": 9}
    assert Build(**good).faults == []
    assert Build(**good, dots=True, matrix=4).faults == []
    assert Build(**good, dots=True).faults == ["no matrix instruction for its products"]
    assert Build(**good, spilled=4, atomics=2).faults == ["4 spilled", "2 atomic instructions"]
    too_much = TARGETS["gfx942"].shared + 1
    assert Build(**good, shared=too_much).faults == [
        f"{too_much} bytes of shared memory, of {TARGETS['gfx942'].shared}"
    ]
    assert Build(**good, error="no such target").faults == ["not built: no such target"]


def test_launches_that_differ_in_sizes_alone_share_a_build():
    launches = []
    with recording(launches.append):
        for rows in (2, 3):
            kernels.segment_max(torch.ones(rows, 4), torch.tensor([0, 1, 2]), None)
        kernels.segment_max(torch.ones(2, 4).bfloat16(), torch.tensor([0, 1, 2]), None)
        kernels.segment_max(torch.ones(0, 4), torch.tensor([0]), None)
        for width in (1, 32):
            kernels.segment_max(torch.ones(2, width), torch.tensor([0, 1, 2]), None)
    assert len(launches) == 5
    described = distinct(launches)
    assert json.loads(json.dumps(described)) == described
    # All that a GPU may choose from.
    assert [each["warps"] for each in described] == [1, 2, 4, 8] * 4
    # Triton is told of sizes that are 1, and of those that are multiples of 16.
    told = [(each["signature"]["values"], each["signature"]["width"]) for each in described[::4]]
    assert told == [("*fp32", "i32"), ("*bf16", "i32"), ("*fp32", "constexpr"), ("*fp32", "i32")]
    assert [each["constants"].get("width") for each in described[::4]] == [None, None, 1, None]
    assert ["width" in each["aligned"] for each in described[::4]] == [False, False, False, True]
    assert all("values" in each["aligned"] for each in described)


def test_every_kernel_says_why_it_is_cut_so():
    for kernel in KERNELS.values():
        assert kernel.reason.endswith(".")
        assert len(kernel.reason) < 110


def test_a_gpu_chooses_warps_where_no_sum_depends_on_them(monkeypatch):
    def rows(x, width):
        pass

    # The interpreter has none.
    assert all(each.tuned is None for each in KERNELS.values())
    monkeypatch.setattr(launch, "INTERPRETED", False)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "KERNELS", {})
        made = launch.kernel(reason="One.", least=lambda **_: 0, tuned_by=("width",))(rows)
        assert launch.kernel(reason="Two.", least=lambda **_: 0)(lambda x: None).tuned is None
    assert made.tuned.keys == ["width"]
    assert [config.num_warps for config in made.tuned.configs] == [1, 2, 4, 8]


def test_rows_beyond_two_billion_numbers_are_found():
    # Only the pages that are written take memory.
    x = torch.empty(2**31 // 64 + 8, 64, dtype=torch.bfloat16)
    x[-1] = 3.0
    found = kernels.gather(x, torch.tensor([x.shape[0] - 1]))
    assert found.tolist() == [[3.0] * 64]
    edges, ends = x.flatten()[:, None], torch.tensor([x.numel() - 2, x.numel()])
    assert int(ends[0]) > 2**31
    assert kernels.segment_reduce(edges, ends, None, "sum").tolist() == [[6.0]]
    assert kernels.segment_max(edges, ends, None)[1].tolist() == [[x.numel() - 2]]
    last, offsets = torch.tensor([x.shape[0] - 1]), torch.tensor([0, 1])
    one = torch.ones(1, dtype=torch.bfloat16)
    sums = kernels.weighted_rows(x, one, None, last, offsets, None, 1, False)
    assert sums.tolist() == [[3.0]] * 64
    grad = torch.ones(1, 64, dtype=torch.bfloat16)
    assert kernels.weight_gradients(grad, x, one, last, offsets).tolist() == [192.0]
    scores = torch.zeros(x.shape[0], 1, dtype=torch.bfloat16)
    given = (x[:, None], scores, None, None, None, None)
    out, _ = kernels.attention(given, None, (0.2, 1.0, 1.0), (offsets, last, offsets[:1]))
    assert out.tolist() == [[[3.0] * 64]]


def test_the_command_prints_tables_and_writes_a_page(weft, tmp_path):
    out = tmp_path / "certificate.json"
    done = weft("check", "gpu", "--target", "sm_80", "--case", "softplus", "--out", str(out))
    assert done.code == 0
    assert "All is right: 2 kernels, checked, never timed." in done.out
    assert json.loads(out.read_text())["values"]
    assert "GPU kernels: checked, never timed" in out.with_suffix(".html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--target", "sm_70"), "there is no target 'sm_70'; choose from sm_80"),
        (("--case", "fft"), "no operator begins with 'fft'"),
    ],
)
def test_what_is_not_there_is_a_sentence(weft, words, message):
    done = weft("check", "gpu", *words)
    assert done.code == 2
    assert message in done.err
