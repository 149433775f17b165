from __future__ import annotations

from weft_lab.results import machine


def test_says_what_it_is_and_how_fast() -> None:
    about = machine()
    assert set(about) == {
        "cpu",
        "cores",
        "memory_gib",
        "system",
        "gemm_gflop_per_s",
        "copy_gb_per_s",
    }
    assert about["cpu"]
    assert about["cores"] >= 1
    for name in ("memory_gib", "gemm_gflop_per_s", "copy_gb_per_s"):
        assert about[name] > 0
