"""Settings of the recipe for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from weft.errors import check_choices, check_least
from weft.layout import LayoutConfig
from weft.models import GGNNConfig
from weft.recipes.structures.config import check_split
from weft.training.config import (
    BatchOptions,
    CompileMode,
    FitConfig,
    OptimizerOptions,
    ScheduleConfig,
)

PolicyName = Literal["packed", "dynamic"]
Target = Literal["misuse", "slot"]


@dataclass(frozen=True, kw_only=True)
class ProgramsConfig(BatchOptions, OptimizerOptions):
    """A gated graph network that finds misused variables, or chooses the variable of a slot.

    Attributes:
        data: python (the standard library of this Python), folders of .py files, several of these,
            or a file of samples, .jsonl.gz.
        target: What is learned from .py files: misuse, which use of a function is wrong and what
            belongs there, or slot, which variable belongs in one place. Files of samples have
            slots.
        hidden: features of a node.
        steps: rounds of messages.
        start: a node begins as its subtokens and role, or as bits: its role alone.
        dropout: Dropout of the messages.
        recompute: Use less memory and take more time.
        smoothing: Label smoothing: probability taken from the right candidate and shared among all.
        layout: how the edges of a supergraph are multiplied: csr, or banded blocks.
        nodes: Nodes of a supergraph, one of them padding; larger graphs are left out of training,
            never of evaluation. It must be a multiple of the layout's block, if that is given. 0
            measures which size from 1,024 to 16,384 takes the least time per sample.
        policy: supergraphs are packed as full as possible, or filled in order (dynamic).
        supergraphs_per_step: supergraphs, over all ranks, in a step; the learning rate is
            multiplied by it, so use a warm-up.
        precision: float32, or bf16: bfloat16 products in training, while weights and evaluation
            stay float32; needs layout banded or dense.
        compile: eager, or static: torch.compile for the one shape of all supergraphs, which needs
            the layout banded, with its block, and nothing spilled.
        split: fractions for training, validation and test, in whole files.
        split_seed: Seed of the split, and of what --limit draws.
        limit: use only this many samples, drawn at random.
        learning_rate: Learning rate, for one supergraph per step.
        schedule: how the learning rate moves; the warm-up is cut to a fifth of a short run.
        epochs: passes over the training samples, at most.
        max_steps: Stop after this many optimizer steps.
        patience: stop after this many epochs without a better validation accuracy.
        checkpoint_every: steps from one checkpoint to the next; 0 for every 30 seconds.
        seed: Seed of the weights, the supergraphs and the dropout.
    """

    data: str | tuple[str, ...] = "python"
    target: Target = "misuse"
    hidden: int = 64
    steps: int = 6
    start: Literal["subtokens", "bits"] = "subtokens"
    dropout: float = 0.1
    recompute: bool = False
    smoothing: float = 0.0
    layout: LayoutConfig = field(default_factory=lambda: LayoutConfig(form="csr"))
    nodes: int = 4096
    policy: PolicyName = "packed"
    supergraphs_per_step: int = 1
    compile: CompileMode = "eager"
    split: tuple[float, float, float] = (0.8, 0.1, 0.1)
    split_seed: int = 0
    limit: int | None = None
    learning_rate: float = 1e-3
    schedule: ScheduleConfig = field(
        default_factory=lambda: ScheduleConfig(shape="cosine", warmup=100, floor=0.05)
    )
    clip_norm: float | None = 1.0
    epochs: int = 5
    max_steps: int | None = None
    patience: int | None = None
    checkpoint_every: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_optimizer()
        self.fit_config(quiet=True)
        self.model_config(num_types=1, vocabulary=2)
        check_split(self.split)
        if abs(sum(self.split) - 1) > 1e-6:
            raise ValueError(f"split is {self.split}; the three fractions must add up to 1")
        check_choices(self, policy=PolicyName, target=Target)
        check_least(self, learning_rate=0, split_seed=0, seed=0)
        check_least(self, steps=1, supergraphs_per_step=1, limit=2)
        if self.nodes < 2 and self.nodes != 0:
            raise ValueError(f"nodes is {self.nodes}; it must be at least 2, or 0 to measure")
        for name in ("dropout", "smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it is from 0 to below 1")
        self._check_layout()

    def _check_layout(self) -> None:
        form, block, outside = self.layout.form, self.layout.block, self.layout.outside
        if form == "banded" and block is not None and self.nodes % block:
            raise ValueError(
                f"nodes is {self.nodes}, not a multiple of the block {block}; take "
                f"{-(-self.nodes // block) * block}"
            )
        if self.compile == "dynamic":
            raise ValueError("compile is 'dynamic'; supergraphs have one shape, take static")
        if self.compile == "static" and (form != "banded" or block is None or outside == "spill"):
            raise ValueError(
                f"compile is 'static' and the layout is {form}, block {block}, outside {outside}: "
                "only the banded form with a block and outside raise or drop has one shape; take "
                "--layout.form banded --layout.block 128 --layout.outside drop, or compile eager"
            )
        if self.precision == "bf16" and form not in ("banded", "dense"):
            raise ValueError(
                f"precision is bf16, for products of dense blocks, and the layout is {form}; take "
                "--layout.form banded"
            )

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that `data` names, one or several."""
        return (self.data,) if isinstance(self.data, str) else self.data

    def model_config(self, *, num_types: int, vocabulary: int) -> GGNNConfig:
        """The network, for so many types of edges and subtokens."""
        return GGNNConfig(
            hidden=self.hidden,
            steps=self.steps,
            num_types=num_types,
            vocabulary=vocabulary,
            start=self.start,
            dropout=self.dropout,
            recompute=self.recompute,
        )

    def fit_config(self, *, quiet: bool) -> FitConfig:
        """The settings of the training loop."""
        return FitConfig(
            epochs=self.epochs,
            max_steps=self.max_steps,
            monitor="validation_accuracy",
            mode="max",
            patience=self.patience,
            checkpoint_every=self.checkpoint_every,
            clip_norm=self.clip_norm,
            ema=self.ema,
            counts="samples",
            quiet=quiet,
        )
