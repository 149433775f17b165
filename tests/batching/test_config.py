from __future__ import annotations

from typing import Any

import pytest

from weft.batching import POLICIES, BatchingConfig
from weft.graphs import Budget

ROOM = Budget(nodes=100, edges=100, graphs=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "greedy"}, "'greedy'; it must be one of dynamic, static-64"),
        ({"oversize": "drop"}, "'drop'; it must be one of raise, skip, alone"),
        ({"batch_size": 1}, "batch_size is 1; policy dynamic needs at least 2"),
        ({"policy": "unpadded", "batch_size": 0}, "needs at least 1"),
        ({"seed": -1}, "seed is -1"),
        ({"paper": "aflow"}, "paper is 'aflow'"),
        ({"policy": "packed", "paper": True}, "not for packed"),
        ({"policy": "static-64", "budget": ROOM}, "a budget is for dynamic and packed"),
        ({"paper": True, "budget": ROOM}, "choose one"),
        ({"budget": Budget(nodes=1, edges=5, graphs=5)}, "no room for a graph"),
    ],
)
def test_impossible_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchingConfig(**{"policy": "dynamic", "batch_size": 16, **options})


def test_every_policy_is_named_in_the_documentation_of_the_option() -> None:
    assert all(f"`{name}`" in (BatchingConfig.__doc__ or "") for name in POLICIES)
