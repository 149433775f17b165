import torch
from rank_processes import results_of
from slr_ranks import run


def test_every_rank_decides_the_same_and_as_one():
    first, second = results_of(2, run)
    weights, masks, conditions = run()
    assert first[2] == second[2] == conditions
    assert {held for held, _ in conditions[2:10]} == {True, False}
    for name, mask in masks.items():
        assert torch.equal(first[1][name], mask)
        assert torch.equal(second[1][name], mask)
    for name, weight in weights.items():
        assert torch.equal(first[0][name], second[0][name])
        torch.testing.assert_close(first[0][name], weight, rtol=1e-9, atol=1e-12)
