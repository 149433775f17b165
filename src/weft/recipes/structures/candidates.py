"""Ways to train on molecules and crystals: batching, threads, compile modes, ranks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Generator, Sequence

from weft.batching import POLICIES, GraphSampler
from weft.batching.epoch_plan import BatchStatistics
from weft.graphs import Array, GraphTable
from weft.planning.candidate import PROCESSES, Candidate, applied
from weft.planning.plan import Measured, Plan
from weft.planning.task import PlanTask, best_of, content_of, thread_counts
from weft.recipes.structures.config import StructuresConfig
from weft.recipes.structures.training import prepare_structures, split_of, train_prepared
from weft.recipes.table_training import TableWork, planned_steps
from weft.sources.atoms import ISOLATED
from weft.training.compilation import Compilation, why_not_inductor
from weft.training.hardware import cores

_POLICY = "batching.policy"
# Policies that code is made for.
_KEPT = 2


class StructuresTask(PlanTask):
    """`weft train molecules` or `crystals`."""

    config: StructuresConfig
    planned = (_POLICY, "compile")
    idle = (
        *("data", "validation_file", "test_file", "atom_energies"),
        *("energy_weight", "force_weight", "stress_weight", "per_atom", "swap", "huber_delta"),
        *(
            "learning_rate",
            "weight_decay",
            "momentum",
            "schedule",
            "epochs",
            "max_steps",
            "patience",
        ),
        *("checkpoint_every", "seed", "batching.seed", "monitor", "clip_norm", "ema"),
    )

    def __init__(self, name: str, table: GraphTable, config: StructuresConfig) -> None:
        work = TableWork(
            table=table,
            config=config,
            units="structures",
            prepare=prepare_structures,
            train_prepared=train_prepared,
        )
        super().__init__(name, config, work, content_of(table, without=ISOLATED))
        self._table = table
        self._found: dict[str, BatchStatistics] = {}

    @property
    def steps(self) -> int:
        """Of the run that is requested."""
        return planned_steps(self.config, self.batches(self.config.batching.policy).batches)

    @property
    def step_units(self) -> float:
        """Structures in a step, as requested."""
        return self.batches(self.config.batching.policy).graphs_per_batch

    def waves(self) -> Generator[Sequence[Candidate], Sequence[Measured], None]:
        """Threads first, as they decide most; then policies; then compilers for the best of them.

        Other threads for the best policy, too, come last: most often they change nothing. So do
        ranks with a share of the cores each, which pay where a step has too little for threads.
        """
        asked, counts = self.config.batching.policy, thread_counts()
        results = yield [_candidate(asked, "eager", count) for count in counts]
        settled = best_of(results, "threads")
        if not settled:
            return
        (threads,) = settled
        policies = [policy for policy in POLICIES if self._is_possible(policy, threads)]
        results = yield [_candidate(policy, "eager", threads) for policy in policies]
        best = best_of(results, _POLICY, len(policies))
        last = [_candidate(best[0], "eager", count) for count in counts]
        last += [_shared(best[0], ranks) for ranks in _numbers_of_ranks()]
        if not self.config.learns_derivatives:
            last += self._compiled(best, threads)
        yield last

    def explain(self, plan: Plan) -> list[str]:
        """How full the batches of each policy are."""
        policies = dict.fromkeys(each.settings[_POLICY] for each in plan.measured if each.median)
        fills = [(policy, self.batches(policy)) for policy in policies]
        listed = ", ".join(f"{p} {b.node_fill:.0%} and {b.edge_fill:.0%}" for p, b in fills)
        reasons = [f"real rows of nodes and of edges, the others being padding: {listed}"]
        if self.config.learns_derivatives:
            reasons.append("forces are learned from, and torch cannot compile such a model")
        return [*reasons, *_ranks_beside_threads(plan)]

    def batches(self, policy: str) -> BatchStatistics:
        """Of an epoch with this policy.

        Raises:
            ValueError: the policy does not go with the other settings, or with the structures.
        """
        if policy not in self._found:
            batching = applied(self.config.batching, {"policy": policy})
            sizes = (self._table.num_nodes, self._table.num_edges)
            with warnings.catch_warnings():
                # Graphs that are skipped are told of when they are trained on.
                warnings.simplefilter("ignore")
                sampler = GraphSampler(*sizes, batching, graphs=self._training)
            self._found[policy] = sampler.statistics()
        return self._found[policy]

    @functools.cached_property
    def _training(self) -> Array:
        return split_of(self._table, self.config)[1]["train"]

    def _is_possible(self, policy: str, threads: int) -> bool:
        try:
            self.batches(policy)
        except ValueError as error:
            self.note(_candidate(policy, "eager", threads), f"not tried: {error}")
            return False
        return True

    def _compiled(self, policies: list[str], threads: int) -> list[Candidate]:
        """Code for the one shape of a policy, or one code for all shapes; the best come first."""
        missing = why_not_inductor()
        if missing is not None:
            self.note(_candidate(policies[0], "static", threads), f"not tried: {missing}")
            return []
        found = []
        limit = Compilation("static").limit
        for policy in policies[:_KEPT]:
            shapes = self.batches(policy).distinct_shapes
            static = _candidate(policy, "static", threads)
            if shapes == 1:
                found.append(static)
            elif shapes > limit:
                self.note(static, "recompile limit", f", {shapes:,} shapes of {limit} at most")
            else:
                self.note(static, f"not tried: {shapes} shapes, each compiled by itself")
        many = [policy for policy in policies if self.batches(policy).distinct_shapes > 1]
        return found + [_candidate(policy, "dynamic", threads) for policy in many[:1]]


def _numbers_of_ranks() -> list[int]:
    """Ranks worth a try: one for each core, and one for each two."""
    every = cores()
    return sorted({count for count in (every, every // 2) if count > 1})


def _shared(policy: str, ranks: int) -> Candidate:
    """Ranks with the threads that the launcher gives them."""
    share = _candidate(policy, "eager", max(1, cores() // ranks))
    return share.but(**{PROCESSES: ranks})


def _ranks_beside_threads(plan: Plan) -> list[str]:
    """How the fastest ranks compare with one process and its threads."""
    timed = [each for each in plan.measured if each.median and not each.candidate.compiles]
    ranks = [each for each in timed if each.settings.get(PROCESSES, 1) > 1]
    alone = [each for each in timed if each.settings.get(PROCESSES, 1) == 1]
    if not ranks or not alone:
        return []
    best, single = (min(group, key=_seconds) for group in (ranks, alone))
    ratio = _seconds(best) / _seconds(single)
    return [
        f"ranks that share every batch take {ratio:.2f} times what threads of one process do "
        f"({best.label}; {single.label})"
    ]


def _seconds(measured: Measured) -> float:
    assert measured.median is not None
    return measured.median


def _candidate(policy: str, mode: str, threads: int) -> Candidate:
    return Candidate({_POLICY: policy, "compile": mode, "threads": threads})
