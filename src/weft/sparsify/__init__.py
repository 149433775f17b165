"""Smaller models: masks on weights, sparse training, pruning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.sparsify.compaction import CompactedLayer as CompactedLayer
    from weft.sparsify.compaction import compact as compact
    from weft.sparsify.convert import convert as convert
    from weft.sparsify.convert import to_semi_structured as to_semi_structured
    from weft.sparsify.csr_files import load_csr as load_csr
    from weft.sparsify.csr_files import save_csr as save_csr
    from weft.sparsify.densities import erk as erk
    from weft.sparsify.densities import layer_nnz as layer_nnz
    from weft.sparsify.densities import nnz_of as nnz_of
    from weft.sparsify.densities import uniform as uniform
    from weft.sparsify.drop_and_grow import DropAndGrow as DropAndGrow
    from weft.sparsify.export import export_model as export_model
    from weft.sparsify.fan_in import FanInLinear as FanInLinear
    from weft.sparsify.flop_counter import FlopCount as FlopCount
    from weft.sparsify.flop_counter import TableIIRow as TableIIRow
    from weft.sparsify.flop_counter import WeightFlops as WeightFlops
    from weft.sparsify.flop_counter import count_flops as count_flops
    from weft.sparsify.flop_counter import first_layer_share as first_layer_share
    from weft.sparsify.flop_counter import inference_flops as inference_flops
    from weft.sparsify.flop_counter import input_share as input_share
    from weft.sparsify.flop_counter import propagated_share as propagated_share
    from weft.sparsify.flop_counter import rigl_step_flops as rigl_step_flops
    from weft.sparsify.flop_counter import slr_training_share as slr_training_share
    from weft.sparsify.flop_counter import sparse_training_share as sparse_training_share
    from weft.sparsify.flop_counter import table_ii as table_ii
    from weft.sparsify.flop_counter import training_flops as training_flops
    from weft.sparsify.magnitude_pruning import GradualPruning as GradualPruning
    from weft.sparsify.magnitude_pruning import Ticket as Ticket
    from weft.sparsify.magnitude_pruning import lottery_ticket as lottery_ticket
    from weft.sparsify.mask_schedules import CubicSchedule as CubicSchedule
    from weft.sparsify.mask_schedules import DropSchedule as DropSchedule
    from weft.sparsify.masks import Masks as Masks
    from weft.sparsify.one_shot import grasp_masks as grasp_masks
    from weft.sparsify.one_shot import keep_top as keep_top
    from weft.sparsify.one_shot import magnitude_masks as magnitude_masks
    from weft.sparsify.one_shot import random_masks as random_masks
    from weft.sparsify.one_shot import snip_masks as snip_masks
    from weft.sparsify.one_shot import synflow_masks as synflow_masks
    from weft.sparsify.sparse_layers import SparseLinear as SparseLinear
    from weft.sparsify.sparse_layers import to_dense as to_dense
    from weft.sparsify.structure import Structure as Structure
    from weft.sparsify.train_and_prune import ADMM as ADMM
    from weft.sparsify.train_and_prune import SLR as SLR
    from weft.sparsify.ugs import UGS as UGS
else:
    __all__ = lazy_names(__name__)
