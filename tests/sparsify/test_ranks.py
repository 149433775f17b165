"""Sparse training under DistributedDataParallel: the same masks on every rank, as on one."""

import torch
from rank_processes import results_of
from sparse_ranks import all_runs


def test_masks_are_the_same_on_every_rank_and_as_on_one():
    first, second = results_of(2, all_runs)
    alone = all_runs()
    assert len(alone) == 8
    for key, (patterns, weights) in alone.items():
        assert torch.equal(first[key][0], second[key][0]), key
        assert torch.equal(first[key][0], patterns), key
        assert not torch.equal(patterns[0], patterns[-1]), key
        for name, weight in weights.items():
            assert torch.equal(first[key][1][name], second[key][1][name]), (key, name)
            torch.testing.assert_close(first[key][1][name], weight, rtol=1e-6, atol=1e-9)
