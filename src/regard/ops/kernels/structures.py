"""The structures of native calls, as `csrc/calls.h` defines them. Written by `python -m tests.ops.c_structures`; a test compares.

A pointer to numbers is an address, one to structures an array of them.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

ADDRESS, REAL = ctypes.c_void_p, ctypes.c_double
INT32, INT64, UINT64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64


def _of(kind: Any, names: str) -> Iterator[tuple[str, Any]]:
    return ((name, kind) for name in names.split())


class AdditiveCall(ctypes.Structure):
    """AdditiveCall of csrc."""

    _fields_ = [
        *_of(ADDRESS, "query key vector scores query_grad key_grad vector_grad"),
        *_of(INT64, "batch targets sources width threads"),
    ]


class AreaFeatures(ctypes.Structure):
    """AreaFeatures of csrc."""

    _fields_ = [
        *_of(ADDRESS, "mean mean_turned deviation deviation_turned output shape grad_mean grad_deviation grad_output"),
        *_of(ADDRESS, "grad_shape"),
        *_of(REAL, "epsilon"),
    ]


class AreaView(ctypes.Structure):
    """AreaView of csrc."""

    _fields_ = [
        *_of(ADDRESS, "data"),
        *_of(INT64, "batch head row"),
    ]


class AreaMask(ctypes.Structure):
    """AreaMask of csrc."""

    _fields_ = [
        *_of(ADDRESS, "data"),
        *_of(INT64, "batch head key query"),
    ]


class AreaCall(ctypes.Structure):
    """AreaCall of csrc."""

    _fields_ = [
        *_of(AreaView, "query key value output grad_output grad_query grad_key grad_value"),
        *_of(AreaMask, "mask"),
        *_of(ADDRESS, "sums"),
        *_of(INT64, "batch heads queries keys key_size value_size grid_height grid_width area_height area_width"),
        *_of(REAL, "scale"),
        *_of(INT32, "causal mean_values storage threads"),
        *_of(ctypes.POINTER(AreaFeatures), "features"),
    ]


class BeamCall(ctypes.Structure):
    """BeamCall of csrc."""

    _fields_ = [
        *_of(ADDRESS, "rows max_length ceiling totals log_probs tokens scores count states alphabet following missing"),
        *_of(ADDRESS, "follow end_rows end_places end_nodes end_tokens end_scores end_log_probs kept kept_scores kept_count"),
        *_of(ADDRESS, "going_totals going_log_probs going_tokens going_beams going_nodes going_states"),
        *_of(INT64, "sentences hypotheses width beam going best all phrases letters known entries vocabulary length eos"),
        *_of(REAL, "enough penalty"),
        *_of(INT64, "ended left bad"),
    ]


class BestCall(ctypes.Structure):
    """BestCall of csrc."""

    _fields_ = [
        *_of(ADDRESS, "logits values places"),
        *_of(INT64, "rows size count threads"),
    ]


class PanelLinear(ctypes.Structure):
    """PanelLinear of csrc."""

    _fields_ = [
        *_of(ADDRESS, "panels bias bytes scales offsets"),
        *_of(INT64, "inputs outputs"),
    ]


class PackCall(ctypes.Structure):
    """PackCall of csrc."""

    _fields_ = [
        *_of(ADDRESS, "weight panels"),
        *_of(INT64, "inputs outputs"),
    ]


class PackBytesCall(ctypes.Structure):
    """PackBytesCall of csrc."""

    _fields_ = [
        *_of(ADDRESS, "weight bytes scales offsets"),
        *_of(INT64, "inputs outputs"),
    ]


class RowsCall(ctypes.Structure):
    """RowsCall of csrc."""

    _fields_ = [
        *_of(PanelLinear, "layer"),
        *_of(ADDRESS, "x y"),
        *_of(INT64, "rows inputs panels threads"),
    ]


class DecoderNorm(ctypes.Structure):
    """DecoderNorm of csrc."""

    _fields_ = [
        *_of(ADDRESS, "weight bias"),
    ]


class DecoderKeys(ctypes.Structure):
    """DecoderKeys of csrc."""

    _fields_ = [
        *_of(PanelLinear, "moments output"),
        *_of(ADDRESS, "shape"),
    ]


class DecoderLayer(ctypes.Structure):
    """DecoderLayer of csrc."""

    _fields_ = [
        *_of(PanelLinear, "project join ask answer hidden output"),
        *_of(DecoderNorm * 3, "norms"),
        *_of(ADDRESS, "keys values area_keys area_values source_keys source_values source_places source_lengths"),
        *_of(INT64, "sources source_items source_key_row source_value_row items areas source_areas"),
        *_of(DecoderKeys, "learned"),
    ]


class DecoderCall(ctypes.Structure):
    """DecoderCall of csrc."""

    _fields_ = [
        *_of(ctypes.POINTER(DecoderLayer), "layers"),
        *_of(DecoderNorm, "norm"),
        *_of(ADDRESS, "x out weights places"),
        *_of(INT64, "count shown rows share width heads wide steps first pre"),
        *_of(REAL, "eps"),
        *_of(INT64, "threads"),
    ]


class EncoderCall(ctypes.Structure):
    """EncoderCall of csrc."""

    _fields_ = [
        *_of(PanelLinear, "recurrent"),
        *_of(ADDRESS, "bias gates lengths states final"),
        *_of(INT64, "batch sources hidden state_row backward threads"),
    ]


class IndexedCall(ctypes.Structure):
    """IndexedCall of csrc."""

    _fields_ = [
        *_of(ADDRESS, "query keys values places lengths context weights"),
        *_of(REAL, "scale"),
        *_of(INT64, "groups share heads size length items areas key_row value_row threads"),
    ]


class LossCall(ctypes.Structure):
    """LossCall of csrc."""

    _fields_ = [
        *_of(ADDRESS, "logits half target nll uniform correct"),
        *_of(REAL, "smoothing"),
        *_of(INT64, "rows size gradient threads"),
    ]


class LossPairCall(ctypes.Structure):
    """LossPairCall of csrc."""

    _fields_ = [
        *_of(ADDRESS, "logits half target nll uniform correct divergence"),
        *_of(REAL, "smoothing alpha"),
        *_of(INT64, "rows size threads"),
    ]


class RecurrentLayer(ctypes.Structure):
    """RecurrentLayer of csrc."""

    _fields_ = [
        *_of(PanelLinear, "input recurrent"),
        *_of(ADDRESS, "bias"),
    ]


class RecurrentCall(ctypes.Structure):
    """RecurrentCall of csrc."""

    _fields_ = [
        *_of(ctypes.POINTER(RecurrentLayer), "layers"),
        *_of(PanelLinear, "extra query state word context"),
        *_of(ADDRESS, "vector table word_gates word_known keys values past next readout weights tokens parents sentences"),
        *_of(ADDRESS, "lengths"),
        *_of(INT64, "count hidden embedded attended depth read vocabulary rows share sources width states batch first fed"),
        *_of(INT64, "deep"),
        *_of(REAL, "embedding_scale score_scale"),
        *_of(INT64, "threads"),
    ]


class GatesCall(ctypes.Structure):
    """GatesCall of csrc."""

    _fields_ = [
        *_of(ADDRESS, "projected recurrent bias kept hidden cell next_hidden next_cell half_hidden output active"),
        *_of(ADDRESS, "grad_output grad_hidden grad_cell grad_projected grad_recurrent"),
        *_of(INT64, "projected_row output_row rows size half threads"),
    ]


class ResidualCall(ctypes.Structure):
    """ResidualCall of csrc."""

    _fields_ = [
        *_of(ADDRESS, "x change weight bias sum out stats grad sum_grad change_grad parts"),
        *_of(UINT64, "seed"),
        *_of(REAL, "dropout eps"),
        *_of(INT64, "rows size threads"),
    ]


class VocabularyCall(ctypes.Structure):
    """VocabularyCall of csrc."""

    _fields_ = [
        *_of(PanelLinear, "output"),
        *_of(ADDRESS, "x forbidden log_probs places"),
        *_of(INT64, "rows width count forbidden_count instead"),
        *_of(REAL, "least"),
        *_of(ADDRESS, "totals"),
        *_of(INT64, "share need threads"),
    ]


class GreedyCall(ctypes.Structure):
    """GreedyCall of csrc."""

    _fields_ = [
        *_of(ctypes.POINTER(DecoderCall), "decoder"),
        *_of(ctypes.POINTER(RecurrentCall), "recurrent"),
        *_of(ctypes.POINTER(VocabularyCall), "output"),
        *_of(ADDRESS, "table positions x places"),
        *_of(REAL, "scale"),
        *_of(ADDRESS, "names limits live last kept tokens log_probs totals lengths now"),
        *_of(INT64, "sentences most width vocabulary forbidden min_length turns"),
    ]
