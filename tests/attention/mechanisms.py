"""One table of every mechanism: how to build it, how to call it, what to compare it with, and what holds for it.

All are called in one form, `f(query, key, value, mask, need_weights) -> (context, weights)`; `Uniform` is a module of that form. Sizes are
distinct primes, but for the sources that fill a grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import (
    AdditiveScore,
    Areas,
    Attention,
    ConcatScore,
    CosineScore,
    CrossedAttention,
    DotScore,
    GeneralScore,
    HardChoice,
    KeyValueAttention,
    LocationScore,
    MonotonicWindow,
    MultiHeadAttention,
    NonLocal,
    PredictiveWindow,
    StructuredAttention,
)
from regard.ops.sparsemax import Normalizer
from tests.reference import hard, key_value, nonlocal_op
from tests.reference import mechanisms as reference

B, T, S = 3, 5, 7
DQ, DK, DV, A = 11, 13, 17, 19  # sizes of a query, a key and a value; width of a score
H, D = 2, 3  # heads, and the size of one
RADIUS, REACH, HOPS, WINDOW = 2, 5, 2, 3  # of windows; of a location score; of structured and key-value attention
GRID, MAX_AREA, MAX_GRID_AREA = (2, 5), 2, (2, 3)


@dataclass(frozen=True)
class Mechanism:
    """A row of the table.

    Attributes:
        build: makes the module; for a pure function, an empty one.
        call: the uniform form, with the module in front.
        reference: float64 loops for one sentence: (weights, query, key, value, mask (T, S)) -> context, weights; None: nothing to compare,
            for the places are drawn.
        sizes: of a query, a key and a value. The size of a value is 0 where the keys are the values, that of a query where keys ask.
        source: S. target: T; None: as many as keys.
        padding_only: takes masks of keys only, (B, 1, S).
        sums: what a row of weights adds up to: "one"; "some", one or nothing; "below", at most one; "areas": weights of areas add up to
            one, those of items to the mean size of an area; "free".
        reach: (T, S) where weight can fall at all, of its own accord; None: everywhere, or where it alone knows.
        ordered: the order of the keys matters.
        fixed: the number of keys cannot change.
        offset: the parameter that is the context of an empty row; None: zeros.
        step: all queries one after the other on a cache: (module, query, key, value, mask (B, 1, S)) -> context, weights.
        rough: the result jumps where half precision rounds (a choice, the edge of a predicted window): comparing it with float64 means
            nothing.
    """

    build: Callable[[], nn.Module]
    call: Callable[..., tuple[Tensor, Tensor | None]]
    reference: Callable[..., tuple[np.ndarray, np.ndarray]] | None
    sizes: tuple[int, int, int] = (DQ, DK, DV)
    source: int = S
    target: int | None = T
    padding_only: bool = False
    sums: str = "one"
    reach: Callable[[int, int], Tensor] | None = None
    ordered: bool = False
    fixed: bool = False
    offset: str | None = None
    step: Callable[..., tuple[Tensor, Tensor]] | None = None
    rough: bool = False

    @property
    def shared(self) -> bool:
        """Whether the keys are the values."""
        return self.sizes[2] == 0

    @property
    def alone(self) -> bool:
        """Whether the keys are the queries too."""
        return self.sizes[0] == 0


class Uniform(nn.Module):
    """A mechanism under the uniform form."""

    def __init__(self, module: nn.Module, call: Callable[..., tuple[Tensor, Tensor | None]]) -> None:
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, need_weights: Any = False):
        return self.call(self.module, query, key, value, mask, need_weights)


def build(mechanism: Mechanism, dtype: torch.dtype = torch.float64) -> Uniform:
    """Make a mechanism with no parameter at zero, the same at every call; ready to be used, not to be trained."""
    torch.default_generator.manual_seed(29)
    module = mechanism.build()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    return Uniform(module, mechanism.call).to(dtype).eval()


def inputs(mechanism: Mechanism, dtype: torch.dtype = torch.float64, sizes: tuple[int, int, int] | None = None) -> tuple[Tensor, ...]:
    """Draw query, key and value for (B, T, S), the same at every call up to the rounding of the dtype."""
    batch, target, source = sizes or (B, mechanism.target or mechanism.source, mechanism.source)
    generator = torch.Generator().manual_seed(31)
    shapes = zip((target, source, source), mechanism.sizes, strict=True)
    return tuple(torch.randn(batch, n, d, generator=generator, dtype=torch.float64).to(dtype) for n, d in shapes)


def expected(mechanism: Mechanism, module: Uniform, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """What the loops make of a batch: context and weights in float64; allowed is (B, T, S)."""
    assert mechanism.reference is not None
    weights = {name: parameter.detach().double().numpy() for name, parameter in module.module.named_parameters()}
    q, k, v, m = query.double().numpy(), key.double().numpy(), value.double().numpy(), allowed.numpy()
    found = [mechanism.reference(weights, q[b], k[b], v[b], m[b]) for b in range(len(q))]
    context, table = (torch.from_numpy(np.stack(part)) for part in zip(*found, strict=True))
    return context, table


# Calls in the uniform form.


def _attention(module, query, key, value, mask, need):
    position = torch.arange(query.shape[1], device=query.device)
    output = module(query, key, value, mask=mask, position=position, need_weights=need)
    return output.context, output.weights


def _pair(module, query, key, value, mask, need):
    return tuple(module(query, key, value, mask=mask, need_weights=need))


def _keys_mask(mask):
    return None if mask is None else mask[:, 0]


def _states(module, query, key, value, mask, need):
    return tuple(module(key, key_mask=_keys_mask(mask), need_weights=need))


def _nonlocal(module, query, key, value, mask, need):
    return tuple(module(query, key, key_mask=_keys_mask(mask), need_weights=need))


def _left(module, query, key, value, mask, need):
    return tuple(module(key, query, first_key_mask=_keys_mask(mask), need_weights=need).left)


def _right(module, query, key, value, mask, need):
    return tuple(module(query, key, second_key_mask=_keys_mask(mask), need_weights=need).right)


def _itself(module, query, key, value, mask, need):
    return tuple(module(key, key, first_key_mask=_keys_mask(mask), second_key_mask=_keys_mask(mask), need_weights=need).left)


def _nonlocal_op(form, normalizer="softmax"):
    def call(module, query, key, value, mask, need):
        vector = torch.linspace(-1, 1, 2 * key.shape[-1], dtype=key.dtype, device=key.device) if form == "concat" else None
        return tuple(ops.nonlocal_attention(query, key, value, vector, form=form, mask=mask, normalizer=normalizer, need_weights=need))

    return call


def _area_op(max_area, grid, normalizer="softmax"):
    def call(module, query, key, value, mask, need):
        query, key, value = (x.unflatten(-1, (H, x.shape[-1] // H)).transpose(1, 2) for x in (query, key, value))
        mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
        settings = {"max_area": max_area, "grid": grid, "normalizer": normalizer}
        found = ops.area_attention(query, key, value, mask=mask, need_weights=need, **settings)
        context, weights = found if need else (found, None)
        return context.transpose(1, 2).flatten(2), weights

    return call


# Step by step.


def _attention_step(module, query, key, value, mask):
    memory = module.memory(key, value, key_mask=_keys_mask(mask))
    outputs = [module.attend(query[:, t : t + 1], memory, position=t, need_weights=True) for t in range(query.shape[1])]
    return tuple(torch.cat([output[i] for output in outputs], 1) for i in range(2))


def _multi_head_step(module, query, key, value, mask):
    """The memory grows key by key; all queries look at the whole of it."""
    memory = module.memory(key[:, :1], value[:, :1], key_mask=mask[:, 0, :1])
    for s in range(1, key.shape[1]):
        memory = memory.append(module.memory(key[:, s : s + 1], value[:, s : s + 1], key_mask=mask[:, 0, s : s + 1]))
    outputs = [module.attend(query[:, t : t + 1], memory, need_weights=True) for t in range(query.shape[1])]
    return torch.cat([output.context for output in outputs], 1), torch.cat([output.weights for output in outputs], 2)


def _key_value_step(module, query, key, value, mask):
    memory, contexts, size = module.memory(key[:, :0]), [], key.shape[1]
    weights = key.new_zeros(key.shape[0], size, size)
    for t in range(size):
        output, memory = module.step(key[:, t : t + 1], memory, key_mask=mask[:, 0, t : t + 1], need_weights=True)
        contexts.append(output.context)
        first = max(0, t - WINDOW)
        weights[:, t, first:t] = output.weights[:, 0, WINDOW - (t - first) : WINDOW]
    return torch.cat(contexts, 1), weights


# References that need the letters of a paper.


def _attend(score, **settings):
    return lambda weights, q, k, v, m: reference.attend(q, k, v, m, weights, score=score, **settings)


def _multi_head(**settings):
    return lambda weights, q, k, v, m: reference.multi_head(q, k, v, m, weights, heads=H, **settings)


def _structured(normalizer="softmax"):
    return lambda weights, q, k, v, m: hard.structured(k, int(m[0].sum()), weights["first.weight"], weights["second.weight"], normalizer)


def _key_value(parts, normalizer="softmax"):
    letters = {"W_Y": "key.weight", "W_h": "query.weight", "w": "vector", "W_r": "read.weight", "W_x": "predict.weight"}
    return lambda weights, q, k, v, m: key_value.attend(k, m[0], parts, WINDOW, {a: weights[b] for a, b in letters.items()}, normalizer)


def _nonlocal_block(form, alone=False, normalizer="softmax"):
    letters = {"theta": "query.weight", "phi": "key.weight", "g": "value.weight", "W_z": "output.weight", "w_f": "vector"}

    def block(weights, q, k, v, m):
        own = {letter: weights[name] for letter, name in letters.items() if name in weights}
        return nonlocal_op.block(np.where(m[0][:, None], k, 0) if alone else q, k, form, m[0], own, False, normalizer)

    return block


def _nonlocal_op_reference(form, normalizer="softmax"):
    vector = np.linspace(-1, 1, 2 * DQ) if form == "concat" else None
    return lambda weights, q, k, v, m: nonlocal_op.operation(q, k, v, form, m, vector, normalizer)


def _area_op_reference(settings, normalizer="softmax"):
    def attend(weights, q, k, v, m):
        heads = zip(*(np.split(x, H, axis=1) for x in (q, k, v)), strict=True)
        found = [reference.attend(*head, m, {}, score="scaled_dot", areas=settings, normalizer=normalizer) for head in heads]
        return np.concatenate([context for context, _ in found], 1), np.array([table for _, table in found])

    return attend


def _branch(score, side, normalizer="softmax"):
    """One branch of crossed co-attention: the keys are the values."""

    def attend(weights, q, k, v, m):
        own = {name.removeprefix(f"{side}."): weight for name, weight in weights.items() if name.startswith(f"{side}.")}
        return reference.attend(q, k, k, m, own, score=score, normalizer=normalizer)

    return attend


def _crossed_itself(weights, q, k, v, m):
    asked = np.where(m[0][:, None], k, 0)  # a masked place is read as zeros where it asks
    return _branch("general", "left")(weights, asked, k, v, m)


# Where weight can fall.


def _local(target, source):
    return ops.window_mask(torch.arange(target), source, RADIUS)


def _location(target, source):
    return (torch.arange(source) < REACH).expand(target, source)


def _recent(target, source):
    ahead = torch.arange(target).unsqueeze(1) - torch.arange(source)
    return (ahead > 0) & (ahead <= WINDOW)


# The table.

SAME = (DQ, DQ, DV)  # keys that a query can be multiplied with
LINE, PLANE = {"max_area": MAX_AREA}, {"max_area": MAX_GRID_AREA, "grid": GRID}
SCORES: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "dot": (DotScore, SAME),
    "scaled_dot": (lambda: DotScore(scaled=True), SAME),
    "general": (lambda: GeneralScore(DQ, DK), (DQ, DK, DV)),
    "additive": (lambda: AdditiveScore(DQ, DK, A), (DQ, DK, DV)),
    "concat": (lambda: ConcatScore(DQ, DK, A), (DQ, DK, DV)),
    "cosine": (CosineScore, SAME),
    "location": (lambda: LocationScore(DQ, REACH), (DQ, DK, DV)),
}


def attention(score: str, *, window=None, areas=None, choice=None, normalizer: Normalizer = "softmax", **fields: Any) -> Mechanism:
    """Put an `Attention` in the form of the table. window, areas and choice are as in `tests.reference.mechanisms.attend`."""

    def make() -> Attention:
        parts: dict[str, Any] = {"normalizer": normalizer}
        if window is not None:
            parts["window"] = MonotonicWindow(window[1]) if window[0] == "monotonic" else PredictiveWindow(DQ, window[1])
        if areas is not None:
            learned = {"dim": SCORES[score][1][1]} if areas.get("key_mode", "mean") not in ("mean", "max", "sample") else {}
            parts["areas"] = Areas(**areas, **learned)
        if choice is not None:
            parts["choice"] = HardChoice(choice)
        return Attention(SCORES[score][0](), **parts)

    fields.setdefault("reference", _attend(score, window=window, areas=areas, choice=choice, normalizer=normalizer))
    fields.setdefault("ordered", window is not None or areas is not None or score == "location")
    fields.setdefault("step", _attention_step)
    return Mechanism(make, _attention, sizes=SCORES[score][1], **fields)


def _heads(settings: dict[str, Any], make: Callable[[], dict[str, Any]] = dict, **fields: Any) -> Mechanism:
    width = (DQ, DK, DK)
    make_all = lambda: MultiHeadAttention(DQ, H, head_dim=D, memory_dim=DK, **make())  # noqa: E731
    fields.setdefault("step", _multi_head_step)
    return Mechanism(make_all, _pair, _multi_head(**settings), sizes=width, offset="output.bias", **fields)


def _block(form: str) -> Mechanism:
    width = DQ if form == "gaussian" else DK
    make = lambda: NonLocal(DQ, 5, form=form, residual=False, other_dim=width)  # noqa: E731  # pyright: ignore[reportArgumentType]
    sums = "one" if "gaussian" in form else "free"
    return Mechanism(make, _nonlocal, _nonlocal_block(form), sizes=(DQ, width, 0), padding_only=True, sums=sums)


def _operation(form: str) -> Mechanism:
    sums = "one" if "gaussian" in form else "free"
    return Mechanism(nn.Identity, _nonlocal_op(form), _nonlocal_op_reference(form), sizes=SAME, sums=sums)


_OWN: dict[str, Any] = {"target": None, "padding_only": True}

MECHANISMS: dict[str, Mechanism] = {
    **{score: attention(score) for score in SCORES if score != "location"},
    "location": attention("location", reach=_location),
    "local_m": attention("general", window=("monotonic", RADIUS), reach=_local),
    "local_p": attention("concat", window=("predictive", RADIUS), sums="below", rough=True),
    "areas": attention("scaled_dot", areas=LINE, sums="areas"),
    "areas_mean": attention("cosine", areas=LINE | {"value_mode": "mean", "key_mode": "max"}),
    "areas_features": attention("additive", areas=LINE | {"key_mode": "features"}, sums="areas"),
    "areas_grid": attention("general", areas=PLANE, sums="areas", source=10, fixed=True),
    "areas_local_p": attention("general", window=("predictive", RADIUS), areas=LINE | {"value_mode": "mean"}, sums="below", rough=True),
    "hard_argmax": attention("additive", choice="argmax", rough=True),
    "hard_expected": attention("dot", window=("predictive", RADIUS), choice="expected", sums="some", rough=True),
    "hard_sample": attention("general", choice="sample", reference=None, ordered=True, step=None, rough=True),
    "multi_head": _heads({}),
    "multi_head_scores": _heads({"score": ["additive", "scaled_dot"]}, lambda: {"score": [AdditiveScore(D, D, A), DotScore(scaled=True)]}),
    "multi_head_areas": _heads({"areas": LINE}, lambda: {"areas": Areas(MAX_AREA)}, sums="areas", ordered=True),
    "multi_head_features": _heads(
        {"areas": LINE | {"key_mode": "features"}},
        lambda: {"areas": Areas(MAX_AREA, key_mode="features", dim=D)},
        sums="areas",
        ordered=True,
    ),
    "structured": Mechanism(
        lambda: StructuredAttention(DK, A, HOPS), _states, _structured(), sizes=(0, DK, 0), target=HOPS, padding_only=True
    ),
    "key_value": Mechanism(
        lambda: KeyValueAttention(2 * DK, WINDOW),
        _states,
        _key_value(2),
        sizes=(0, 2 * DK, 0),
        reach=_recent,
        ordered=True,
        step=_key_value_step,
        **_OWN,
    ),
    "key_value_predict": Mechanism(
        lambda: KeyValueAttention(3 * DK, WINDOW, parts=3),
        _states,
        _key_value(3),
        sizes=(0, 3 * DK, 0),
        reach=_recent,
        ordered=True,
        step=_key_value_step,
        **_OWN,
    ),
    **{f"nonlocal_{form}": _block(form) for form in ("gaussian", "embedded_gaussian", "dot", "concat")},
    "nonlocal_self": Mechanism(
        lambda: NonLocal(DK, 5, residual=False), _states, _nonlocal_block("embedded_gaussian", alone=True), sizes=(0, DK, 0), **_OWN
    ),
    "crossed_left": Mechanism(
        lambda: CrossedAttention(Attention(GeneralScore(DQ, DK)), Attention(GeneralScore(DK, DQ))),
        _left,
        _branch("general", "left"),
        sizes=(DQ, DK, 0),
        padding_only=True,
    ),
    "crossed_right": Mechanism(
        lambda: CrossedAttention(Attention(GeneralScore(DK, DQ)), Attention(AdditiveScore(DQ, DK, A))),
        _right,
        _branch("additive", "right"),
        sizes=(DQ, DK, 0),
        padding_only=True,
    ),
    "crossed_itself": Mechanism(
        lambda: CrossedAttention(Attention(GeneralScore(DK, DK)), Attention(DotScore())), _itself, _crossed_itself, sizes=(0, DK, 0), **_OWN
    ),
    **{f"nonlocal_op_{form}": _operation(form) for form in ("gaussian", "dot", "concat")},
    "sparsemax": attention("general", normalizer="sparsemax"),
    "sparsemax_local_m": attention("additive", window=("monotonic", RADIUS), reach=_local, normalizer="sparsemax"),
    "sparsemax_areas_grid": attention("dot", areas=PLANE, sums="areas", source=10, fixed=True, normalizer="sparsemax"),
    "sparsemax_hard_argmax": attention("additive", choice="argmax", rough=True, normalizer="sparsemax"),
    "sparsemax_heads": _heads({"normalizer": "sparsemax"}, lambda: {"normalizer": "sparsemax"}),
    "sparsemax_structured": Mechanism(
        lambda: StructuredAttention(DK, A, HOPS, normalizer="sparsemax"),
        _states,
        _structured("sparsemax"),
        sizes=(0, DK, 0),
        target=HOPS,
        padding_only=True,
    ),
    "sparsemax_crossed": Mechanism(
        lambda: CrossedAttention(Attention(GeneralScore(DQ, DK), normalizer="sparsemax"), Attention(GeneralScore(DK, DQ))),
        _left,
        _branch("general", "left", "sparsemax"),
        sizes=(DQ, DK, 0),
        padding_only=True,
    ),
    "entmax15": attention("additive", normalizer="entmax15"),
    "entmax15_areas": attention("general", areas=LINE, sums="areas", normalizer="entmax15"),
    "entmax15_heads_areas": _heads(
        {"areas": LINE, "normalizer": "entmax15"},
        lambda: {"areas": Areas(MAX_AREA), "normalizer": "entmax15"},
        sums="areas",
        ordered=True,
    ),
    "entmax15_key_value": Mechanism(
        lambda: KeyValueAttention(2 * DK, WINDOW, normalizer="entmax15"),
        _states,
        _key_value(2, "entmax15"),
        sizes=(0, 2 * DK, 0),
        reach=_recent,
        ordered=True,
        step=_key_value_step,
        **_OWN,
    ),
    "entmax15_nonlocal": Mechanism(
        lambda: NonLocal(DQ, 5, residual=False, other_dim=DK, normalizer="entmax15"),
        _nonlocal,
        _nonlocal_block("embedded_gaussian", normalizer="entmax15"),
        sizes=(DQ, DK, 0),
        padding_only=True,
    ),
    "entmax15_nonlocal_op": Mechanism(
        nn.Identity, _nonlocal_op("gaussian", "entmax15"), _nonlocal_op_reference("gaussian", "entmax15"), sizes=SAME
    ),
    "entmax15_area_op": Mechanism(
        nn.Identity,
        _area_op(MAX_AREA, None, "entmax15"),
        _area_op_reference(LINE, "entmax15"),
        sizes=(H * D, H * D, H * 5),
        sums="areas",
        ordered=True,
    ),
    "area_op": Mechanism(
        nn.Identity, _area_op(MAX_AREA, None), _area_op_reference(LINE), sizes=(H * D, H * D, H * 5), sums="areas", ordered=True
    ),
    "area_op_grid": Mechanism(
        nn.Identity,
        _area_op(MAX_GRID_AREA, GRID),
        _area_op_reference(PLANE),
        sizes=(H * D, H * D, H * 5),
        source=10,
        sums="areas",
        ordered=True,
        fixed=True,
    ),
}
