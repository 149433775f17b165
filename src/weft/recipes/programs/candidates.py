"""Ways to train on programs: the form of their edges, batching, threads, compile modes."""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence

from weft.errors import DataError
from weft.graphs import GraphTable, assemble
from weft.layout import band_statistics
from weft.layout.config import LayoutConfig
from weft.layout.layout_choice import Figure, estimates
from weft.planning.candidate import Candidate, applied
from weft.planning.plan import Measured, Plan
from weft.planning.task import PlanTask, best_of, content_of, thread_counts
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.programs.data import has_misuses
from weft.recipes.programs.training import (
    PreparedPrograms,
    prepare_programs,
    train_prepared_programs,
)
from weft.recipes.table_training import TableWork, planned_steps
from weft.training.compilation import why_not_inductor

_FORM, _BLOCK = "layout.form", "layout.block"
# Estimates are within about a factor of two; what is this much slower than the best is not tried.
_RULED_OUT = 4.0


class ProgramsTask(PlanTask):
    """`weft train programs`, in one process."""

    config: ProgramsConfig
    idle = (
        *(
            "data",
            "target",
            "smoothing",
            "learning_rate",
            "schedule",
            "clip_norm",
            "epochs",
            "max_steps",
        ),
        *("weight_decay", "momentum", "ema", "patience", "checkpoint_every", "seed"),
    )

    def __init__(self, table: GraphTable, config: ProgramsConfig) -> None:
        work = TableWork(
            table=table,
            config=config,
            units="samples",
            prepare=prepare_programs,
            train_prepared=train_prepared_programs,
        )
        super().__init__("programs", config, work, content_of(table))
        self._table = table
        self.planned = (_FORM, "policy", "compile")
        # What is given is not decided.
        if config.layout.block is None:
            self.planned += (_BLOCK,)
        if config.nodes == 0:
            self.planned += ("nodes",)

    @functools.cached_property
    def _prepared(self) -> PreparedPrograms:
        """The programs with supergraphs of a settled size, their edges in the sparse form."""
        config, form = self.config, {_FORM: "csr", _BLOCK: None, "compile": "eager"}
        form["precision"] = "float32"
        if config.nodes == 0:
            # Which size is fastest depends on the form: measured with the one that is requested.
            config = prepare_programs(self._table, config).config
        return prepare_programs(self._table, applied(config, form))

    @property
    def steps(self) -> int:
        """Of the run that is requested."""
        supergraphs = self._prepared.sampler.statistics().batches
        return planned_steps(self.config, -(-supergraphs // self.config.supergraphs_per_step))

    @property
    def step_units(self) -> float:
        """Samples in a step, as requested."""
        found = self._prepared.sampler.statistics()
        return found.graphs_per_batch * min(self.config.supergraphs_per_step, found.batches)

    def waves(self) -> Generator[Sequence[Candidate], Sequence[Measured], None]:
        """Threads first, as they decide most; then forms and policies; then what compiling gives.

        A form is estimated first and not tried where it cannot hold the supergraphs, or would be
        far slower than another.
        """
        counts = thread_counts()
        forms = self._forms(counts[0])
        asked = forms.get(self.config.layout.form) or next(iter(forms.values()))
        results = yield [asked.but(threads=count) for count in counts]
        settled = best_of(results, "threads")
        if not settled:
            return
        (threads,) = settled
        forms = {form: candidate.but(threads=threads) for form, candidate in forms.items()}
        results = yield [*forms.values(), asked.but(threads=threads, policy="dynamic")]
        (form,), (policy,) = best_of(results, _FORM), best_of(results, "policy")
        best = forms[form].but(policy=policy)
        last = [best.but(threads=count) for count in counts]
        if "banded" in forms:
            last += self._compiled(forms["banded"].but(policy=policy, compile="static"))
        yield last

    def explain(self, plan: Plan) -> list[str]:
        """How full the supergraphs are, and how far the edges are from the diagonal."""
        found = self._prepared.sampler.statistics()
        widest = int(band_statistics(self._table).bandwidth.max(initial=0))
        return [
            f"a supergraph of {self._prepared.config.nodes:,} nodes holds "
            f"{found.graphs_per_batch:.0f} samples, and {found.node_fill:.0%} of its nodes are "
            f"real; no edge is more than {widest} places from the diagonal"
        ]

    def _forms(self, threads: int) -> dict[str, Candidate]:
        """The best block of each form that can hold the supergraphs, in the order of estimates."""
        prepared = self._prepared
        planned = prepared.sampler.plan()[0]
        batch = assemble(prepared.table, planned.graphs, planned.budget)
        widest = int(band_statistics(self._table).bandwidth.max(initial=0))
        asked = self.config.layout
        layout = LayoutConfig(
            block=None if asked.form == "csr" else asked.block,
            outside=asked.outside,
            memory_gb=asked.memory_gb,
            hidden=self.config.hidden,
        )
        figures = estimates(batch, prepared.num_types, layout, bandwidth=widest)
        chosen = [
            min(own, key=lambda f: (bool(f.reason), f.estimated))
            for form in ("csr", "banded", "dense")
            if (own := [f for f in figures if f.form == form and self._divides(f)])
        ]
        least = min(f.estimated for f in chosen if not f.reason)
        found: dict[str, Candidate] = {}
        for figure in sorted(chosen, key=lambda f: f.estimated):
            candidate = self._candidate(figure, threads)
            reason = figure.reason
            if not reason and figure.estimated > _RULED_OUT * least:
                reason = f"estimated {figure.estimated / least:.0f} times as slow as the best"
            try:
                applied(self.config, candidate.settings)
            except (DataError, ValueError) as error:
                reason = str(error)
            if reason:
                self.note(candidate, f"not tried: {reason}")
            else:
                found[figure.form] = candidate
        return found

    def _compiled(self, candidate: Candidate) -> list[Candidate]:
        if has_misuses(self._table):
            self.note(candidate, "not tried: the number of misuses varies between supergraphs")
            return []
        missing = why_not_inductor()
        if missing is not None:
            self.note(candidate, f"not tried: {missing}")
            return []
        if self.config.layout.outside == "spill":
            self.note(candidate, "not tried: supergraphs with spilled edges have no single shape")
            return []
        return [candidate]

    def _divides(self, figure: Figure) -> bool:
        return figure.form != "banded" or self._prepared.config.nodes % (figure.block or 1) == 0

    def _candidate(self, figure: Figure, threads: int) -> Candidate:
        # The blocks of a dense form are as large as the largest graph of each supergraph.
        block = self.config.layout.block if figure.form == "dense" else figure.block
        size = {} if self.config.nodes else {"nodes": self._prepared.config.nodes}
        return Candidate(
            {
                _FORM: figure.form,
                _BLOCK: None if figure.form == "csr" else block,
                **size,
                "policy": "packed",
                "compile": "eager",
                "threads": threads,
            }
        )
