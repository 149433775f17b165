"""Smaller models: masks on weights, sparse training, pruning."""

from weft.sparsify.accelerate import Acceleration, accelerate
from weft.sparsify.admm import ADMM
from weft.sparsify.compaction import CompactedLayer, compact
from weft.sparsify.densities import erk, layer_nnz, nnz_of, uniform
from weft.sparsify.drop_and_grow import DropAndGrow
from weft.sparsify.export import export_program, load_csr, save_csr, save_onnx
from weft.sparsify.flop_counter import FlopCount, WeightFlops, count_flops
from weft.sparsify.gradual import GradualPruning
from weft.sparsify.layers import SparseLinear, to_dense
from weft.sparsify.lottery import Ticket, lottery_ticket
from weft.sparsify.masks import Masks
from weft.sparsify.paper_formulas import (
    TableIIRow,
    first_layer_share,
    inference_flops,
    input_share,
    propagated_share,
    rigl_step_flops,
    slr_training_share,
    sparse_training_share,
    table_ii,
    training_flops,
)
from weft.sparsify.schedules import CubicSchedule, DropSchedule
from weft.sparsify.scores import (
    grasp_masks,
    keep_top,
    magnitude_masks,
    random_masks,
    snip_masks,
    synflow_masks,
)
from weft.sparsify.slr import SLR
from weft.sparsify.ugs import UGS

__all__ = [
    "ADMM",
    "SLR",
    "UGS",
    "Acceleration",
    "CompactedLayer",
    "CubicSchedule",
    "DropAndGrow",
    "DropSchedule",
    "FlopCount",
    "GradualPruning",
    "Masks",
    "SparseLinear",
    "TableIIRow",
    "Ticket",
    "WeightFlops",
    "accelerate",
    "compact",
    "count_flops",
    "erk",
    "export_program",
    "first_layer_share",
    "grasp_masks",
    "inference_flops",
    "input_share",
    "keep_top",
    "layer_nnz",
    "load_csr",
    "lottery_ticket",
    "magnitude_masks",
    "nnz_of",
    "propagated_share",
    "random_masks",
    "rigl_step_flops",
    "save_csr",
    "save_onnx",
    "slr_training_share",
    "snip_masks",
    "sparse_training_share",
    "synflow_masks",
    "table_ii",
    "to_dense",
    "training_flops",
    "uniform",
]
