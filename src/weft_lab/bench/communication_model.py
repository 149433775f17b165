"""Case: bytes by the cost model's formulas beside those of the literature."""

from __future__ import annotations

from weft.parallel.cost_model import NETWORKS, Machine, Problem, estimate_published
from weft.parallel.grid import grid_of
from weft.parallel.traffic_formulas import reduced_words
from weft_lab.bench.result import CaseResult, Contender
from weft_lab.studies.communication_ranks import grid_label

_RANKS = 64
# The Amazon graph of Tripathy, Yelick and Buluç (2020) with the widths that they trained.
_AMAZON = Problem(nodes=14_249_639, edges=230_788_269, widths=(300, 16, 24))
# GB that a rank receives in an epoch, by grid and replication.
_PUBLISHED = {("1d", None): 20.0, ("1.5d", 4): 7.0, ("1.5d", 8): 7.0, ("2d", None): 9.0}
_REDUCED = 1.8
_MOST = 0.03


def model_case() -> CaseResult:
    """Bytes received by each of 64 ranks on the Amazon graph, f² terms dropped."""
    machine = Machine(name="any", link=NETWORKS["infiniband-100"])
    found = {}
    for (name, replication), expected in _PUBLISHED.items():
        grid = grid_of(name, _RANKS, replication)
        label = f"weft {grid_label(grid)}: published"
        found[label] = (estimate_published(_AMAZON, grid, machine).bytes, expected)
    words = reduced_words(grid_of("1d", _RANKS), _AMAZON.widths, nodes=_AMAZON.nodes)
    found["weft 1d: reductions"] = (words * _AMAZON.item, _REDUCED)
    contenders, missed = {}, []
    for label, (received, expected) in found.items():
        apart = received / 1e9 / expected - 1
        contenders[label] = Contender(
            samples=[received / 1e9],
            figures={"GB": received / 1e9, "expected": expected, "% apart": 100 * apart},
        )
        if abs(apart) > _MOST:
            missed.append(f"{label} is {100 * apart:.1f} % from {expected} GB, not within 3 %.")
    nodes, edges = _AMAZON.nodes, _AMAZON.edges
    return CaseResult(
        case="model",
        what=f"received by a rank in an epoch, by formula: {nodes:,} nodes, {edges:,} nonzeros, "
        f"GCN {'-'.join(map(str, _AMAZON.widths))}, P = {_RANKS}",
        unit="GB",
        contenders=contenders,
        missed=missed,
    )
