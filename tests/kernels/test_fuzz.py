"""No arguments make an operator crash or answer with other memory; see fuzz_operators.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Loads all that torch.ops.weft has.
import weft.kernels.painn_mixing
import weft.kernels.sparse_linear  # noqa: F401
from weft.kernels.sparse_linear import pattern_of


def test_ten_thousand_random_calls_give_an_error_or_the_right_answer():
    program = Path(__file__).with_name("fuzz_operators.py")
    command = [sys.executable, "-W", "error", str(program), "10000", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"exit code {ended.returncode}\n{ended.stdout}{ended.stderr}"
    assert "10000 cases, 20 operators" in ended.stdout
    # Neither all right nor all refused, or nothing would have been tried.
    counts = dict(part.split()[::-1] for part in ended.stdout.split(": ")[-1].split(", "))
    assert min(int(counts["right"]), int(counts["refused"])) > 3000


def ones(*shape):
    return torch.ones(*shape, dtype=torch.float64)


def whole(*values):
    return torch.tensor(values, dtype=torch.int32)


PATTERN = pattern_of(torch.tensor([0, 3]), 2, 2)

# The operators behind the functions, whose callers are right: torch.ops reaches them all the same.
RAW = {
    "softplus_backward": (ones(5), ones(3)),
    "pass_positive": (ones(5, 2), ones(3, 2), 1.0),
    "dropout": (ones(5, 2), torch.empty(0, dtype=torch.int64), 0.5, False, None, 0),
    "gru": (ones(5, 2), ones(5, 3), ones(9, 2), ones(9, 3), ones(9), ones(3)),
    "gru_backward": (
        ones(5, 2), ones(5, 3), ones(9, 2), ones(9, 3), ones(4, 12), ones(5, 3), True,
    ),
    "gaussian_product": (ones(5), ones(0, 2), 0.5, 1.0),
    "gaussian_product_transposed": (ones(5), ones(3, 2), 4, 0.5, 1.0),
    "radial_filters": (ones(5), ones(4, 3), None, ones(1, 2, 2), None, 0.5, 1.0, False),
    "radial_filters_backward": (
        ones(5), ones(1, 2, 2), ones(5, 2), [ones(5, 2)], [ones(4, 2)], 3, 0.5, 1.0, True, False,
    ),
    "painn_invariants_backward": (
        ones(5, 4), ones(5, 2), ones(5, 3, 2), ones(4, 3, 4), ones(5, 4),
    ),
    "painn_update_backward": (ones(5, 2), ones(5, 3, 2), ones(5, 6), ones(4, 2), ones(5, 3, 2)),
    "sparse_linear": (ones(5, 2), ones(2), None, PATTERN + 1, 2, False),
    "sparse_linear_backward": (ones(4, 2), ones(5, 2), ones(2), PATTERN, None, True),
    "sparse_input_linear": (ones(2), ones(2), None, whole(0, 2), whole(0, 2), PATTERN, 2),
    "sparse_input_linear_backward": (ones(2, 2), ones(2), whole(0, 1), whole(0, 2), PATTERN, 2),
    "row_sums": (ones(2, 1), whole(0, 1), whole(2), whole(0, 1, 1), whole(0)),
    "pair_sums": (ones(2, 1), whole(0), whole(2), whole(0, 0)),
    "pair_rows": (ones(1, 1), whole(0), whole(1), whole(0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", RAW)
def test_the_operators_themselves_check_what_they_are_given(name):
    with pytest.raises(ValueError, match=r"shapes|there are \d+ rows|make no basis"):
        getattr(torch.ops.weft, name)(*RAW[name])
