"""Calls that are wrong, of every operation with a kernel: the error that each must get, by whatever way it would be computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard import ops
from regard.errors import ConfigError, RangeError, ShapeError
from regard.ops import mods
from regard.ops.kernels import native
from regard.ops.kernels.beam_cpu import BeamCandidates, keep
from regard.ops.kernels.decoder_cpu import DecoderLayerWeights, DecoderMemory, DecoderPlan
from regard.ops.kernels.encoder_cpu import EncoderPlan
from regard.ops.kernels.greedy_cpu import GreedyRules, search
from regard.ops.kernels.panels import Affine
from regard.ops.kernels.recurrent_cpu import CellWeights, Hypotheses, RecurrentPlan, RecurrentWeights, Sources
from regard.ops.kernels.vocabulary_cpu import OutputPlan, RunningTotals
from regard.ops.recurrent_layer import run_layer

Call = tuple[Callable[[], Any], type[Exception], str]
LONG = torch.long


def grad(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def table(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


def layer(projected: Tensor, weight: Tensor, bias: Tensor | None, states: int) -> Any:
    return run_layer(projected, weight, bias, tuple(grad(2, 3) for _ in range(states)), None, backward=False)


def indexed(**changes: Any) -> Call | Any:
    """Attention of 2 groups of 3 queries, 2 heads of 5 numbers, to 2 of 7 items each."""
    given = {
        "query": torch.randn(2, 3, 2, 5),
        "keys": torch.randn(7, 2, 5),
        "values": torch.randn(7, 2, 5),
        "places": table([0, 6], [1, 2]),
    }
    given |= changes
    return ops.cached_attention(**given)


def loss(**changes: Any) -> Any:
    """Of 3 rows of 5 numbers, 11 classes."""
    given = {"hidden": grad(3, 5), "weight": grad(11, 5), "bias": grad(11), "target": torch.tensor([0, 10, 4])} | changes
    return ops.linear_cross_entropy(**given)


def pair(**changes: Any) -> Any:
    """Two passes of 3 rows of 5 numbers, 11 classes."""
    given = {"first": grad(3, 5), "second": grad(3, 5), "weight": grad(11, 5), "bias": grad(11), "target": torch.tensor([0, 10, 4])}
    return ops.consistent_cross_entropy(**given | {"consistency": 5.0} | changes)


def eq9(**changes: Any) -> Any:
    """Area attention with learned keys, 16 features."""
    x = grad(1, 1, 3, 16)
    weights = {"height": grad(1, 8), "width": grad(2, 8), "hidden": grad(16, 48), "output": grad(16, 16)} | changes
    return ops.area_attention(x, x, x, max_area=2, key_mode="features", key_weights=ops.AreaWeights(**weights))


def area(**changes: Any) -> Any:
    """Area attention of 3 queries to 5 keys in 2 heads."""
    given = {"query": grad(2, 2, 3, 4), "key": grad(2, 2, 5, 4), "value": grad(2, 2, 5, 7), "max_area": 2} | changes
    return ops.area_attention(**given)


def flex(**changes: Any) -> Any:
    """Attention of 3 queries to 5 keys in 2 heads, with functions of indices."""
    given = {"query": grad(2, 2, 3, 4), "key": grad(2, 2, 5, 4), "value": grad(2, 2, 5, 7)} | changes
    return ops.attention(**given)


def past(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def residual(*changed: Any, **options: Any) -> Any:
    given = [grad(3, 5), grad(3, 5), grad(5), grad(5)]
    return ops.residual(*(changed + tuple(given[len(changed) :])), **options)


X, W = torch.randn(3, 5), torch.randn(5)
OPERATIONS: dict[str, Call] = {
    "residual, bias of another dtype": (
        lambda: residual(grad(3, 5), X, W, W.double()),
        ShapeError,
        "bias must be torch.float32, the dtype of weight",
    ),
    "residual, bias too short": (lambda: residual(grad(3, 5), X, W, W[1:]), ShapeError, r"residual: expected .* found .*bias \(4,\)"),
    "residual, bias of two axes": (lambda: residual(grad(3, 5), X, W, X), ShapeError, "residual: expected"),
    "residual, weight of no floating dtype": (
        lambda: residual(grad(3, 5), X, W.long(), W.long()),
        ShapeError,
        "weight must hold floating-point",
    ),
    "residual, bias without weight": (lambda: residual(grad(3, 5), X, None, W), ShapeError, "bias without a weight"),
    "residual, other change": (lambda: residual(grad(3, 5), grad(5)), ShapeError, "residual: expected"),
    "residual, no axis": (lambda: residual(grad(1)[0], grad(1)[0]), ShapeError, "residual: expected"),
    "residual, change of whole numbers": (lambda: residual(grad(3, 5), X.long()), ShapeError, "change must hold floating-point"),
    "residual, all is dropped": (lambda: residual(dropout=1.0), ConfigError, "dropout must be at least 0 and less than 1"),
    "residual, NaN is dropped": (lambda: residual(dropout=float("nan")), ConfigError, "dropout must be at least 0"),
    "Dropout, all is dropped": (lambda: ops.Dropout(1.0), ConfigError, "Dropout: p must be at least 0 and less than 1"),
    "dropout, below 0": (lambda: ops.dropout(grad(3), -0.1), ConfigError, "probability must be at least 0"),
    "cached_attention, place above": (
        lambda: indexed(places=table([0, 7], [1, 2])),
        RangeError,
        r"places\[0, 1\] is 7; allowed .* 0 to 6",
    ),
    "cached_attention, place below": (lambda: indexed(places=table([0, 6], [-1, 2])), RangeError, r"places\[1, 0\] is -1"),
    "cached_attention, place far away": (lambda: indexed(places=table([0, 6], [1, 2**62])), RangeError, r"places\[1, 1\] is 4611"),
    "cached_attention, no items": (
        lambda: indexed(keys=torch.ones(0, 2, 5), values=torch.ones(0, 2, 5)),
        RangeError,
        r"places\[0, 0\] is 0",
    ),
    "cached_attention, int32 places": (
        lambda: indexed(places=table([0, 6], [1, 2]).int()),
        ShapeError,
        "places must be torch.int64, found torch.int32",
    ),
    "cached_attention, float places": (lambda: indexed(places=table([0, 6], [1, 2]).float()), ShapeError, "places must be torch.int64"),
    "cached_attention, boolean places": (lambda: indexed(places=table([0, 1], [1, 0]).bool()), ShapeError, "places must be torch.int64"),
    "cached_attention, int32 lengths": (
        lambda: indexed(lengths=torch.tensor([1, 2], dtype=torch.int32)),
        ShapeError,
        "lengths must be torch.int64",
    ),
    "cached_attention, negative length": (
        lambda: indexed(lengths=torch.tensor([-1, 2])),
        RangeError,
        r"lengths\[0\] is -1; allowed .* 0 to 2",
    ),
    "cached_attention, long length": (lambda: indexed(lengths=torch.tensor([1, 3])), RangeError, r"lengths\[1\] is 3"),
    "cached_attention, one length": (lambda: indexed(lengths=torch.tensor([1])), ShapeError, "cached_attention: expected"),
    "cached_attention, other values": (lambda: indexed(values=torch.randn(6, 2, 5)), ShapeError, "cached_attention: expected"),
    "cached_attention, values in double": (
        lambda: indexed(values=torch.randn(7, 2, 5).double()),
        ShapeError,
        "values must be torch.float32, the dtype of query",
    ),
    "cached_attention, query of 3 axes": (lambda: indexed(query=torch.randn(2, 3, 10)), ShapeError, "cached_attention: expected"),
    "cached_attention, no area": (lambda: indexed(max_area=0), ConfigError, "max_area"),
    "cached_attention, half an area": (lambda: indexed(max_area=1.5), ConfigError, "max_area"),
    "linear_cross_entropy, int32 targets": (
        lambda: loss(target=torch.tensor([0, 10, 4], dtype=torch.int32)),
        ShapeError,
        "target must be torch.int64, found torch.int32",
    ),
    "linear_cross_entropy, float targets": (lambda: loss(target=torch.tensor([0.0, 10, 4])), ShapeError, "target must be torch.int64"),
    "linear_cross_entropy, target above": (
        lambda: loss(target=torch.tensor([0, 11, 4])),
        RangeError,
        r"target\[1\] is 11; allowed .* 0 to 10",
    ),
    "linear_cross_entropy, target below": (lambda: loss(target=torch.tensor([0, 1, -100])), RangeError, r"target\[2\] is -100"),
    "linear_cross_entropy, short bias": (lambda: loss(bias=grad(10)), ShapeError, "linear_cross_entropy: expected"),
    "linear_cross_entropy, few targets": (lambda: loss(target=torch.tensor([0, 1])), ShapeError, "linear_cross_entropy: expected"),
    "linear_cross_entropy, weight of 3 axes": (lambda: loss(weight=grad(11, 1, 5)), ShapeError, "linear_cross_entropy: expected"),
    "linear_cross_entropy, smoothing of 1": (lambda: loss(label_smoothing=1.0), ConfigError, "label_smoothing must be"),
    "consistent_cross_entropy, target above": (
        lambda: pair(target=torch.tensor([0, 11, 4])),
        RangeError,
        r"target\[1\] is 11; allowed .* 0 to 10",
    ),
    "consistent_cross_entropy, a shorter pass": (lambda: pair(second=grad(2, 5)), ShapeError, "consistent_cross_entropy: expected"),
    "consistent_cross_entropy, float targets": (lambda: pair(target=torch.tensor([0.0, 10, 4])), ShapeError, "must be torch.int64"),
    "consistent_cross_entropy, smoothing of 1": (lambda: pair(label_smoothing=1.0), ConfigError, "label_smoothing must be"),
    "consistent_cross_entropy, negative alpha": (lambda: pair(consistency=-1.0), ConfigError, "a number from 0 to 1000, found -1.0"),
    "consistent_cross_entropy, endless alpha": (lambda: pair(consistency=float("inf")), ConfigError, "from 0 to 1000, found inf"),
    "consistent_cross_entropy, alpha as text": (lambda: pair(consistency="5"), ConfigError, "from 0 to 1000, found '5'"),
    "consistent_cross_entropy, alpha as a list": (lambda: pair(consistency=[5.0]), ConfigError, "from 0 to 1000, found \\[5.0"),
    "consistent_cross_entropy, alpha as a tensor": (lambda: pair(consistency=torch.ones(2)), ConfigError, "from 0 to 1000, found tensor"),
    "consistent_cross_entropy, smoothing as text": (lambda: pair(label_smoothing="0.1"), ConfigError, "label_smoothing must be"),
    "consistent_cross_entropy, an array": (
        lambda: pair(first=grad(3, 5).detach().numpy()),
        ShapeError,
        "first must be a tensor, found ndarray",
    ),
    "area_attention, few rows of W": (lambda: eq9(hidden=grad(8, 48)), ShapeError, r"area keys: expected .*hidden \(8, 48\)"),
    "area_attention, many rows of W": (lambda: eq9(hidden=grad(32, 48)), ShapeError, "area keys: expected"),
    "area_attention, two columns of W": (lambda: eq9(hidden=grad(16, 32)), ShapeError, r"takes hidden \(D, 3 D\)"),
    "area_attention, other W_d": (lambda: eq9(output=grad(16, 15)), ShapeError, "area keys: expected"),
    "area_attention, few widths": (lambda: eq9(width=grad(1, 8)), ShapeError, "embeddings for areas up to"),
    "area_attention, narrow widths": (lambda: eq9(width=grad(2, 7)), ShapeError, "tables of height and width with D features"),
    "area_attention, W of whole numbers": (
        lambda: eq9(hidden=torch.ones(16, 48, dtype=LONG)),
        ShapeError,
        "hidden must hold floating-point",
    ),
    "area_attention, long bias": (lambda: eq9(hidden_bias=grad(17)), ShapeError, "area keys: expected"),
    "area_attention, other key": (lambda: area(key=grad(2, 2, 5, 3)), ShapeError, "D of query and key differs"),
    "area_attention, other batch": (lambda: area(value=grad(1, 2, 5, 7)), ShapeError, "the axes B and H differ"),
    "area_attention, short value": (lambda: area(value=grad(2, 2, 4, 7)), ShapeError, "the length S"),
    "area_attention, value in double": (lambda: area(value=grad(2, 2, 5, 7).double()), ShapeError, "one floating dtype"),
    "area_attention, value elsewhere": (lambda: area(value=torch.ones(2, 2, 5, 7, device="meta")), ShapeError, "on different devices"),
    "area_attention, mask elsewhere": (
        lambda: area(mask=torch.ones(1, 1, 3, 5, dtype=torch.bool, device="meta")),
        ShapeError,
        "on different devices",
    ),
    "area_attention, mask of numbers": (lambda: area(mask=torch.ones(1, 1, 3, 5)), ShapeError, "the mask must be boolean"),
    "area_attention, short mask": (lambda: area(mask=torch.ones(1, 1, 3, 4, dtype=torch.bool)), ShapeError, "does not broadcast"),
    "area_attention, no temperature": (lambda: area(temperature=0.0), ConfigError, "temperature must be above 0"),
    "area_attention, all is dropped": (lambda: area(dropout=1.5), ConfigError, "dropout must be at least 0"),
    "area_attention, no area": (lambda: area(max_area=0), ConfigError, "max_area"),
    "area_attention, no best": (lambda: area(top_k=0), ConfigError, "top_k must be a whole number of at least 1"),
    "area_attention, other weights": (lambda: area(need_weights="x"), ConfigError, "need_weights may be True, False or 'areas'"),
    "area_attention, true areas": (lambda: area(max_area=True), ConfigError, "max_area: a whole number for a sequence"),
    **{
        f"area_attention, grid {grid}": (lambda grid=grid: area(max_area=(2, 2), grid=grid), ConfigError, "grid")
        for grid in ((-1, -5), (5.0, 1.0), (True, 5), (1, 5, 1), 5)
    },
    **{
        f"area_attention, areas {sides}": (lambda sides=sides: area(max_area=sides, grid=(1, 5)), ConfigError, "max_area")
        for sides in ((1.5, 2), (), (1, 2, 3), (0, 2))
    },
    "attention, other key": (lambda: flex(key=grad(2, 2, 5, 3)), ShapeError, "attention: the feature axis D of query and key differs"),
    "attention, other batch": (lambda: flex(value=grad(1, 2, 5, 7)), ShapeError, "the axes B and H differ"),
    "attention, fewer heads of keys": (
        lambda: flex(query=grad(2, 4, 3, 4)),
        ShapeError,
        "the axis H differs; enable_gqa=True shares heads of keys",
    ),
    "attention, uneven groups": (lambda: flex(query=grad(2, 3, 3, 4), enable_gqa=True), ShapeError, "must be a multiple"),
    "attention, short value": (lambda: flex(value=grad(2, 2, 4, 7)), ShapeError, "the length S"),
    "attention, query of 3 axes": (lambda: flex(query=grad(2, 3, 4)), ShapeError, r"must be \(B, H, length, D\)"),
    "attention, value in double": (lambda: flex(value=grad(2, 2, 5, 7).double()), ShapeError, "one floating dtype"),
    "attention, value elsewhere": (lambda: flex(value=torch.ones(2, 2, 5, 7, device="meta")), ShapeError, "on different devices"),
    "attention, a mask for a function": (lambda: flex(mask_mod=X), ConfigError, "mask_mod must be a function .* found Tensor"),
    "attention, a bias for a function": (lambda: flex(score_mod=X), ConfigError, "score_mod must be a function .* found Tensor"),
    "attention, a mask of numbers": (
        lambda: flex(mask_mod=lambda b, h, q, kv: q - kv),
        ShapeError,
        "the result of mask_mod must be boolean",
    ),
    "attention, a branch on an index": (
        lambda: flex(score_mod=lambda s, b, h, q, kv: s if q > kv else -s),
        ConfigError,
        "score_mod fails on tensors of indices: .*use torch.where",
    ),
    "attention, a mask for a change of scores": (
        lambda: flex(score_mod=mods.causal()),
        ConfigError,
        r"this is a mask \(b, h, q_idx, kv_idx\), pass it as mask_mod=",
    ),
    "attention, a change of scores for a mask": (
        lambda: flex(mask_mod=mods.relative_bias(torch.ones(2, 3))),
        ConfigError,
        "this changes scores .*, pass it as score_mod",
    ),
    "attention_blocks, a change of scores for a mask": (
        lambda: ops.attention_blocks(mods.soft_cap(3.0), 1, 1, 3, 5),
        ConfigError,
        "attention_blocks: mask_mod takes 5 arguments",
    ),
    "attention, a change of scores that is a number": (
        lambda: flex(score_mod=lambda s, b, h, q, kv: 2.5),
        ConfigError,
        "must return a tensor, not a number of Python",
    ),
    "attention, a mask that branches": (
        lambda: flex(mask_mod=lambda b, h, q, kv: q > 1 and kv > 1),
        ConfigError,
        "mask_mod fails on tensors of indices: .*use torch.where",
    ),
    "attention, two masks": (
        lambda: flex(mask_mod=past, block_mask=ops.attention_blocks(past, 1, 1, 3, 5)),
        ConfigError,
        "give block_mask or mask_mod, not both",
    ),
    "attention, a tensor for blocks": (lambda: flex(block_mask=X), ConfigError, "block_mask must be a BlockMask.* found Tensor"),
    "attention, blocks of other lengths": (
        lambda: flex(block_mask=ops.attention_blocks(past, 1, 1, 5, 5)),
        ShapeError,
        r"the block mask is for .* \(1, 1, 5, 5\), found .* \(2, 2, 3, 5\)",
    ),
    "attention, no area": (lambda: flex(max_area=0), ConfigError, "max_area"),
    "attention, log-sum-exp of areas": (lambda: flex(max_area=2, return_lse=True), ConfigError, "return_lse is for keys"),
    "attention_blocks, no heads": (
        lambda: ops.attention_blocks(past, 1, 0, 3, 5),
        ConfigError,
        "sizes must be whole numbers",
    ),
    "additive_scores, vector of two axes": (
        lambda: ops.additive_scores(grad(2, 5), grad(3, 5), X),
        ShapeError,
        "additive_scores: expected",
    ),
    "additive_scores, long vector": (lambda: ops.additive_scores(grad(2, 5), grad(3, 5), grad(6)), ShapeError, "additive_scores: expected"),
    "additive_scores, query of one axis": (lambda: ops.additive_scores(grad(5), grad(3, 5), W), ShapeError, "additive_scores: expected"),
    "additive_scores, key of whole numbers": (
        lambda: ops.additive_scores(grad(2, 5), X.long(), W),
        ShapeError,
        "key must hold floating-point",
    ),
    "top_log_probs, none": (lambda: ops.top_log_probs(X, 0), ConfigError, "count must be a whole number of at least 1"),
    "top_log_probs, no axis": (lambda: ops.top_log_probs(X[0, 0], 1), ShapeError, "top_log_probs: expected"),
    "top_log_probs, no entries": (lambda: ops.top_log_probs(X[:, :0], 1), ShapeError, "nothing to choose from"),
    "top_log_probs, whole numbers": (lambda: ops.top_log_probs(X.long(), 1), ShapeError, "logits must hold floating-point"),
    "top_tokens, double": (lambda: ops.top_tokens(-X.double().abs(), 1), ShapeError, "log_probs must be torch.float32"),
    "linear, long bias": (lambda: ops.linear(grad(2, 5), grad(3, 5), grad(4)), ShapeError, "linear: expected"),
    "linear, short bias": (lambda: ops.linear(grad(2, 5), grad(3, 5), grad(2)), ShapeError, "linear: expected"),
    "linear, weight of one axis": (lambda: ops.linear(grad(2, 5), grad(5)), ShapeError, "linear: expected"),
    "gru_gates, few gates": (lambda: ops.gru_gates(grad(2, 8), grad(2, 8), grad(3), grad(2, 3)), ShapeError, "gru_gates: gates"),
    "gru_gates, short bias": (lambda: ops.gru_gates(grad(2, 9), grad(2, 9), grad(1), grad(2, 3)), ShapeError, "gru_gates: expected"),
    "lstm_gates, few gates": (lambda: ops.lstm_gates(grad(2, 9), grad(2, 3)), ShapeError, "lstm_gates: gates"),
    "recurrent layer, few gates": (lambda: layer(grad(2, 4, 9), grad(9, 3), None, 2), ShapeError, "recurrent layer: a GRU has"),
    "recurrent layer, one state": (lambda: layer(grad(2, 4, 12), grad(12, 3), None, 1), ShapeError, "recurrent layer: a GRU has"),
    "recurrent layer, two states": (lambda: layer(grad(2, 4, 9), grad(9, 3), grad(3), 2), ShapeError, "recurrent layer: a GRU has"),
    "recurrent layer, short bias": (lambda: layer(grad(2, 4, 9), grad(9, 3), grad(2), 1), ShapeError, "recurrent layer: expected"),
    "recurrent layer, wide weight": (lambda: layer(grad(2, 4, 9), grad(12, 3), grad(3), 1), ShapeError, "recurrent layer: expected"),
    "recurrent layer, other batch": (lambda: layer(grad(3, 4, 9), grad(9, 3), grad(3), 1), ShapeError, "recurrent layer: expected"),
}


def one(*shape: int) -> Affine:
    return Affine(torch.randn(shape), torch.randn(shape[:1]))


def recurrent_plan(**changes: Any) -> RecurrentPlan:
    """Hidden states of 2, 5 words, readouts of 7."""
    layer = CellWeights(one(6, 3), Affine(torch.randn(6, 2), None), torch.randn(2))
    weights = {
        "table": torch.randn(5, 3),
        "scale": 1.0,
        "layers": [layer],
        "extra": None,
        "query": None,
        "vector": None,
        "score_scale": 1.0,
    }
    weights |= {"readout": (one(7, 2), None, Affine(torch.randn(7, 2), None)), "attend_first": False, "deep": False}
    return RecurrentPlan(RecurrentWeights(**{name: changes.get(name, part) for name, part in weights.items()}))


def recurrent(**changes: Any) -> Any:
    """A step of 2 sentences with 3 hypotheses each."""
    given = {
        "tokens": table([0, 1, 2], [4, 3, 0]),
        "past": torch.randn(6, 2),
        "parents": table([0, 1, 2], [3, 4, 5]),
        "sentences": torch.tensor([0, 1]),
    }
    given |= {"keys": torch.randn(2, 11, 2), "values": torch.randn(2, 11, 2), "lengths": torch.tensor([11, 4])}
    plan = recurrent_plan(**changes)
    given |= {name: part for name, part in changes.items() if name in given}
    return plan.step(Hypotheses(*list(given.values())[:4]), Sources(*list(given.values())[4:]))


def decoder(*, layer: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A step of 2 rows of 4 features in 2 heads, with a past of 3 items and sources of 5."""
    norm = (one(4, 4)[1], one(4, 4)[1])
    weights: dict[str, Any] = {"project": (one(4, 4),) * 3, **{name: one(4, 4) for name in ("join", "ask", "answer")}}
    weights |= {"hidden": one(7, 4), "output": one(4, 7), "norms": (Affine(*norm),) * 3} | (layer or {})  # type: ignore[arg-type]
    memory: dict[str, Any] = {"key": torch.randn(5, 2, 2), "value": torch.randn(5, 2, 2), "area_key": None, "area_value": None}
    memory |= {"source_key": torch.randn(9, 2, 2), "source_value": torch.randn(9, 2, 2), "places": table([0, 8, 1], [2, 3, 4])}
    memory |= {"lengths": torch.tensor([3, 1])}
    plan = DecoderPlan([DecoderLayerWeights(**weights)], None, heads=2, pre=False, eps=1e-5, shown=0)
    memory |= {name: part for name, part in changes.items() if name in memory}
    x, past = changes.get("x", torch.randn(2, 4)), changes.get("past", table([0, 3], [1, 4]))
    return plan.step(x, [DecoderMemory(**memory)], past, changes.get("first", 3))


def encoder(**changes: Any) -> Any:
    """Two sources of 3 items, hidden states of 2."""
    given = {"gates": torch.randn(2, 3, 6), "lengths": torch.tensor([3, 1]), "states": torch.empty(2, 3, 2)} | changes
    return EncoderPlan(changes.get("weight", torch.randn(6, 2)), torch.randn(2)).run(
        given["gates"], given["lengths"], given["states"], backward=False
    )


def output(
    hidden: Tensor | None = None, count: int = 2, forbidden: Tensor | None = None, instead: int = 3, sums: RunningTotals | None = None
) -> Any:
    """The best of 7 outputs, hidden states of 5."""
    forbidden = torch.tensor([0]) if forbidden is None else forbidden
    hidden = torch.randn(2, 3, 5) if hidden is None else hidden
    return OutputPlan(one(7, 5)).best(hidden, count, forbidden, instead=instead, least=-9.0, sums=sums)


def greedy(
    bos: int = 1, limits: Tensor | None = None, early: Tensor | None = None, lengths: Tensor | None = None, vocabulary: int = 5
) -> Any:
    """A greedy search of 2 sentences, of up to 23 and 3 tokens."""
    limits, early = torch.tensor([23, 3]) if limits is None else limits, torch.tensor([0, 3]) if early is None else early
    sources = Sources(torch.randn(2, 11, 2), torch.randn(2, 11, 2), torch.tensor([11, 4]) if lengths is None else lengths)
    start = Hypotheses(table([0], [0]), torch.randn(2, 2), table([0], [1]), torch.arange(2))
    plan = recurrent_plan()  # whose weights the call points to
    step, hidden = plan.prepared(start, sources)
    rules = GreedyRules(limits, bos, early, min_length=1, least=-9.0, highest=int(early.max()))
    return search(step, hidden, OutputPlan(one(vocabulary, 7)), rules, words=None, kept=torch.arange(2))


def beam(**changes: Any) -> Any:
    """A step of 2 sentences, 3 hypotheses of each, 4 candidates of those."""
    given: dict[str, Any] = {
        "rows": torch.tensor([0, 2]),
        "max_length": torch.tensor([9, 9, 9]),
        "ceiling": torch.ones(3),
        "totals": torch.zeros(2, 3),
    }
    given |= {
        "log_probs": -torch.rand(2, 3, 4),
        "tokens": torch.ones(2, 3, 4, dtype=LONG),
        "scores": torch.zeros(2, 1),
        "ended": torch.tensor([0, 0]),
    }
    options = {"beam": 3, "length": 1, "eos": 3, "enough": 5.0, "penalty": 1.0}
    options |= {name: part for name, part in changes.items() if name in options}
    return keep(BeamCandidates(**(given | {name: part for name, part in changes.items() if name in given})), **options)


# Steps of models: native or nothing.
STEPS: dict[str, Call] = {
    "recurrent, token": (lambda: recurrent(tokens=table([0, 1, 5], [4, 3, 0])), RangeError, r"tokens\[0, 2\] is 5; allowed .* 0 to 4"),
    "recurrent, parent": (lambda: recurrent(parents=table([0, 1, 2], [3, 4, 6])), RangeError, r"parents\[1, 2\] is 6"),
    "recurrent, sentence": (lambda: recurrent(sentences=torch.tensor([0, -1])), RangeError, r"sentences\[1\] is -1"),
    "recurrent, length": (lambda: recurrent(lengths=torch.tensor([12, 4])), RangeError, r"lengths\[0\] is 12"),
    "recurrent, int32 tokens": (lambda: recurrent(tokens=torch.zeros(2, 3, dtype=torch.int32)), ShapeError, "tokens must be torch.int64"),
    "recurrent, int32 lengths": (
        lambda: recurrent(lengths=torch.tensor([11, 4], dtype=torch.int32)),
        ShapeError,
        "lengths must be torch.int64",
    ),
    "recurrent, keys": (lambda: recurrent(keys=torch.randn(2, 11, 3)), ShapeError, "recurrent step: the weights ask for"),
    "recurrent, double": (lambda: recurrent(past=torch.randn(6, 2).double()), ShapeError, "past must be torch.float32"),
    "recurrent, states": (lambda: recurrent(past=torch.randn(6, 3)), ShapeError, "recurrent step: the weights ask for"),
    "recurrent, table": (lambda: recurrent(table=torch.randn(5, 4)), ShapeError, "recurrent decoder: expected"),
    "recurrent, readout": (lambda: recurrent(readout=(one(7, 3), None, None)), ShapeError, "recurrent decoder: expected"),
    "decoder, place": (lambda: decoder(past=table([0, 5], [1, 4])), RangeError, r"places\[0, 1\] is 5; allowed .* 0 to 4"),
    "decoder, place of the source": (lambda: decoder(places=table([0, 9, 1], [2, 3, 4])), RangeError, r"places of the source\[0, 1\] is 9"),
    "decoder, length of the source": (lambda: decoder(lengths=torch.tensor([4, 1])), RangeError, r"lengths of the source\[0\] is 4"),
    "decoder, no room": (lambda: decoder(first=4), RangeError, "current step needs slots 4 to 5, but the cache has 5"),
    "decoder, int32 places": (lambda: decoder(past=table([0, 3], [1, 4]).int()), ShapeError, "places must be torch.int64"),
    "decoder, keys": (lambda: decoder(key=torch.randn(5, 1, 4)), ShapeError, "decoder step: expected"),
    "decoder, width": (lambda: decoder(x=torch.randn(2, 5)), ShapeError, "decoder step: x"),
    "decoder, weights": (lambda: decoder(layer={"hidden": one(7, 5)}), ShapeError, "decoder layer: expected"),
    "decoder, bias": (lambda: decoder(layer={"join": Affine(torch.randn(4, 4), torch.randn(3))}), ShapeError, "packed weights: expected"),
    "encoder, length": (lambda: encoder(lengths=torch.tensor([4, 1])), RangeError, r"lengths\[0\] is 4"),
    "encoder, negative length": (lambda: encoder(lengths=torch.tensor([3, -1])), RangeError, r"lengths\[1\] is -1"),
    "encoder, gates": (lambda: encoder(gates=torch.randn(2, 3, 8)), ShapeError, "encoder: expected gates"),
    "encoder, states": (lambda: encoder(states=torch.empty(2, 4, 2)), ShapeError, "encoder: expected"),
    "encoder, weight": (lambda: encoder(weight=torch.randn(8, 2)), ShapeError, "encoder: a recurrent weight"),
    "output, width": (lambda: output(torch.randn(2, 3, 4)), ShapeError, "output layer takes hidden"),
    "output, double": (lambda: output(torch.randn(2, 3, 5).double()), ShapeError, "x must be torch.float32"),
    "output, count": (lambda: output(count=8), RangeError, "the best 8 were requested"),
    "output, instead": (lambda: output(instead=7), RangeError, "or 7 instead"),
    "output, int32": (lambda: output(forbidden=torch.tensor([0], dtype=torch.int32)), ShapeError, "forbidden must be torch.int64"),
    "output, sums": (lambda: output(sums=RunningTotals(torch.zeros(2, 4), 1)), ShapeError, "expected totals"),
    "output, no sums": (lambda: output(sums=RunningTotals(torch.zeros(2, 3), 0)), ShapeError, "expected totals"),
    "greedy, first token": (lambda: greedy(bos=5), RangeError, "greedy search: a token, slot or length is out of range, after 0 steps"),
    "greedy, token outside the table": (lambda: greedy(vocabulary=997), RangeError, "greedy search: a token"),
    "greedy, length of the source": (lambda: greedy(lengths=torch.tensor([12, 4])), RangeError, "greedy search: a token, slot or length"),
    "greedy, negative limit": (lambda: greedy(limits=torch.tensor([3, -1])), RangeError, "greedy search: a token, slot or length"),
    "greedy, int32 limits": (
        lambda: greedy(limits=torch.tensor([3, 2], dtype=torch.int32)),
        ShapeError,
        "limits must be torch.int64",
    ),
    "beam, row": (lambda: beam(rows=torch.tensor([0, 3])), RangeError, r"rows\[1\] is 3; allowed .* 0 to 2"),
    "beam, ceiling": (lambda: beam(ceiling=torch.ones(2)), ShapeError, "beam search: expected"),
    "beam, totals": (lambda: beam(totals=torch.zeros(2, 2)), ShapeError, "beam search: expected"),
    "beam, int32 tokens": (lambda: beam(tokens=torch.ones(2, 3, 4, dtype=torch.int32)), ShapeError, "tokens must be torch.int64"),
    "beam, nothing kept": (lambda: beam(scores=torch.zeros(2, 0)), ShapeError, "at least 1 of each"),
    "beam, no beam": (lambda: beam(beam=0), ShapeError, "at least 1 of each"),
}
VALID: dict[str, Callable[[], Any]] = {
    function.__name__: function for function in (residual, indexed, loss, eq9, area, recurrent, decoder, encoder, output, greedy, beam)
}
HAS_LIBRARY = native.library() is not None
