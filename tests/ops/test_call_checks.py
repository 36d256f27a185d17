"""Arguments of which nothing can be computed: every public operation says which, and never in PyTorch's or Python's words alone."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from regard import ops
from regard.attention import Areas, Attention, CosineScore, DotScore, HardChoice, KeyValueAttention, MonotonicWindow, MultiHeadAttention
from regard.errors import ConfigError, RangeError, RegardError, ShapeError

Y, X = torch.randn(2, 3, 4), torch.randn(1, 2, 3, 4)
W = torch.softmax(Y, -1)
SPARSE = pytest.param(torch.eye(3).to_sparse(), id="sparse")
IDS = torch.tensor([[1, 2]])
NUMBERS = {"max_area": 2, "vocab_size": 7, "size": 3, "label_smoothing": 0.1, "probability": 0.5}
WITH_TENSORS = {
    name: function
    for name in ops.__all__
    if name not in ("native_takes_items", "lazy_logits")  # they ask whether it is one
    and inspect.isfunction(function := getattr(ops, name))
    and any(str(each.annotation) == "Tensor" for each in inspect.signature(function).parameters.values())
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("given", [None, [1.0, 2.0], "x", np.ones((2, 3)), torch.ones(2, 3, dtype=torch.complex64), SPARSE], ids=str)
@pytest.mark.parametrize("name", WITH_TENSORS)
def test_no_operation_fails_in_other_words(name: str, given: Any) -> None:
    """All tensors replaced by the same thing, of other kinds or of odd shapes; a call may succeed, as of complex linear maps."""
    function = WITH_TENSORS[name]
    asked = inspect.signature(function).parameters.values()
    call = {each.name: given for each in asked if str(each.annotation) == "Tensor"}
    call |= {each.name: NUMBERS.get(each.name, 1) for each in asked if each.default is each.empty and each.name not in call}
    with suppress(RegardError) if isinstance(given, torch.Tensor) else pytest.raises(RegardError):
        function(**call)


def copied(label_smoothing: Any, *, goal: int = 1) -> Any:
    weights, places, goals = torch.full((1, 2, 3), 1 / 3), torch.zeros(1, 3, dtype=torch.long), torch.tensor([[goal, -100]])
    real = goals > -100
    return ops.copy_loss(torch.zeros(1, 2, 5), torch.zeros(1, 2), weights, places, goals, real=real, label_smoothing=label_smoothing)


REFUSED: dict[str, tuple[Callable[[], Any], type[RegardError], str]] = {
    "None": (lambda: ops.dot_scores(None, Y), ShapeError, "dot_scores: query must be a tensor, found None"),  # type: ignore[arg-type]
    "batches that differ": (
        lambda: ops.dot_scores(Y, torch.randn(5, 3, 4)),
        ShapeError,
        r"cannot be computed of query float32 \(2",
    ),
    "no axis": (lambda: ops.dot_scores(torch.tensor(1.0), Y), ShapeError, r"dot_scores: cannot be computed of query float32 \(\)"),
    "text": (lambda: ops.item_weights(W, "2"), ConfigError, "max_area: a whole number"),  # type: ignore[arg-type]
    "a grid of one number": (lambda: ops.area_features(Y, 2, grid=0), ConfigError, "max_area: a whole number"),  # type: ignore[arg-type]
    "no memory": (
        lambda: Attention(DotScore()).attend(Y, None),  # type: ignore[arg-type]
        ShapeError,
        r"Attention.attend: cannot be computed of query float32 \(2, 3, 4\), memory None",
    ),
    "a value of another dtype": (
        lambda: Attention(DotScore())(Y, Y, Y.double()),
        ShapeError,
        "value must be torch.float32",
    ),
    "soft as a list": (lambda: HardChoice()(W, soft=[True, False]), ShapeError, "HardChoice: soft must be a tensor, found list"),  # type: ignore[arg-type]
    "sharpness": (lambda: ops.cosine_scores(Y, Y, math.nan), ConfigError, "sharpness must be a finite number of at least 0, found nan"),
    "sharpness that is true": (lambda: ops.cosine_scores(Y, Y, True), ConfigError, "sharpness must be a number or a tensor, found True"),
    "eps": (lambda: ops.residual(Y, Y, eps=-1), ConfigError, "residual: eps must be a finite number of at least 0, found -1"),
    "epsilon": (lambda: ops.window_moments(Y, 2, epsilon=math.nan), ConfigError, "epsilon must be a finite number of at least 0"),
    "epsilon of tables": (lambda: ops.area_features(Y, 2, epsilon=-1.0), ConfigError, "epsilon must be a finite number of at least 0"),
    "temperature": (
        lambda: ops.area_softmax(Y, temperature=0),
        ConfigError,
        "area_softmax: temperature must be above 0 and finite, found 0",
    ),
    "temperature that is infinite": (
        lambda: ops.area_attention(X, X, X, max_area=2, temperature=math.inf),
        ConfigError,
        "temperature must be above 0 and finite, found inf",
    ),
    "top_k": (lambda: ops.area_softmax(Y, top_k=0), ConfigError, "area_softmax: top_k must be a whole number of at least 1, found 0"),
    "weights of a loss": (
        lambda: ops.score_function_loss(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), reward_weight=math.nan),
        ConfigError,
        "reward_weight must be a finite number, found nan",
    ),
    "scale of areas": (lambda: Areas(2)(X, X, X, scale=math.nan), ConfigError, "Areas: scale must be finite in float32, found nan"),
    "dropout of areas": (lambda: Areas(2)(X, X, X, dropout=2), ConfigError, "Areas: dropout must be at least 0 and less than 1"),
    "a boolean scale": (
        lambda: ops.area_attention(X, X, X, max_area=2, scale=torch.tensor(True)),
        ShapeError,
        "scale must hold floating-point numbers, found torch.bool",
    ),
    "weights that nothing reads": (
        lambda: ops.area_attention(X, X, X, max_area=2, key_weights="foo"),  # type: ignore[arg-type]
        ConfigError,
        "key_weights: only the learned key modes have weights, found some for 'mean'",
    ),
    "weights of another kind": (
        lambda: ops.area_attention(X, X, X, max_area=2, key_mode="features", key_weights="foo"),  # type: ignore[arg-type]
        ConfigError,
        "key_weights: expected AreaWeights, found str",
    ),
    "starts": (lambda: ops.window_sums(Y, 2, starts=True), ConfigError, "starts must be a whole number of at least 1, found True"),
    "sums of bytes": (lambda: ops.area_sums(torch.ones(1, 4, 3, dtype=torch.uint8), 2), ShapeError, "items must hold floating-point"),
    "means of integers": (lambda: ops.area_keys(torch.tensor([[[1], [2]]]), 2), ShapeError, "items must hold floating-point numbers"),
    "blocks": (lambda: ops.block_mask(torch.tensor([0.5]), torch.tensor([1])), ShapeError, "target_blocks must hold whole numbers"),
    "complex centres": (lambda: ops.window_mask(torch.ones(1, dtype=torch.complex64), 3, 1), ShapeError, "center must hold real numbers"),
    "parts of two dtypes": (lambda: ops.ngram_parts(Y.half(), Y[:, :1]), ShapeError, "must have one floating dtype"),
    "an array": (lambda: ops.location_scores(np.ones((1, 3)), 2), ShapeError, "projected must be a tensor, found ndarray"),  # type: ignore[arg-type]
    "a position past the end": (lambda: ops.position_log_prob(W, torch.full((2, 3), 4)), RangeError, r"position\[0, 0\] is 4"),
    "half a position": (lambda: ops.position_log_prob(W, torch.full((2, 3), 1.5)), ShapeError, "position must hold whole numbers"),
    "a vocabulary of NaN": (lambda: ops.copy_places(IDS, math.nan), ConfigError, "vocab_size must be a whole number"),  # type: ignore[arg-type]
    "negative ids": (lambda: ops.copy_places(-IDS, 7), RangeError, r"source\[0, 0\] is -1"),
    "ids of one axis": (lambda: ops.copy_places(IDS[0], 7), ShapeError, r"copy_places: source must have two axes, \(B, S\), found \(2,\)"),
    "fractional ids": (lambda: ops.copy_goals(IDS.float(), IDS, 7, unknown=1), ShapeError, "target must hold whole numbers"),
    "a scale beyond half precision": (
        lambda: ops.area_attention(X.half(), X.half(), X.half(), max_area=2, temperature=1e-6),
        ConfigError,
        "area_attention: scale / temperature must be at most 65504 in torch.float16, found 500000",
    ),
    "a goal past the end": (lambda: copied(0.0, goal=8), RangeError, r"copy_loss: goals\[0, 0\] is 8; allowed are numbers from 0 to 7"),
    "half an unknown": (lambda: ops.copy_goals(IDS, IDS, 7, unknown=1.0), ConfigError, "unknown must be a whole number"),  # type: ignore[arg-type]
    "smoothing of copies": (
        lambda: copied(math.nan),
        ConfigError,
        "copy_loss: label_smoothing must be at least 0 and less than 1, found nan",
    ),
    "smoothing that is none": (lambda: copied(None), ConfigError, "copy_loss: label_smoothing must be"),
    "a tiny temperature": (
        lambda: ops.area_softmax(Y, temperature=1e-39),
        ConfigError,
        "temperature must be at least 2.9e-39, found 1e-39",
    ),
    "a tiny temperature of areas": (
        lambda: ops.area_attention(X, X, X, max_area=2, temperature=1e-39),
        ConfigError,
        "area_attention: temperature must be at least 2.9e-39, found 1e-39",
    ),
    "a tiny temperature of a module": (lambda: Areas(2, temperature=1e-320), ConfigError, "temperature should be greater than or equal to"),
    "half a radius": (lambda: ops.window_mask(torch.ones(1), 3, 1.5), ConfigError, "radius must be a whole number of at least 0"),  # type: ignore[arg-type]
    "half a window": (lambda: ops.gaussian_window(torch.ones(1), 3, 1.5), ConfigError, "radius must be a whole number of at least 1"),  # type: ignore[arg-type]
    "a bias in words": (lambda: ops.Linear(2, 2, bias="false"), ConfigError, "Linear: bias may be True or False, found 'false'"),  # type: ignore[arg-type]
    "a size in words": (lambda: ops.Linear("3", 2), ConfigError, "Linear: in_features must be a whole number of at least 0, found '3'"),  # type: ignore[arg-type]
    "a size that is true": (lambda: ops.Linear(2, True), ConfigError, "Linear: out_features must be a whole number"),
    "keys that are none": (lambda: ops.area_keys("x", 2), ShapeError, "^area_keys: key must be a tensor, found str"),  # type: ignore[arg-type]
    "no query beside a sharpness": (
        lambda: ops.cosine_scores(None, Y, 1.0),  # type: ignore[arg-type]
        ShapeError,
        "cosine_scores: query must be a tensor, found None",
    ),  # type: ignore[arg-type]
    "batches that differ beside a sharpness": (
        lambda: ops.cosine_scores(Y, torch.randn(5, 3, 4), 1.0),
        ShapeError,
        "cosine_scores: cannot be computed of query",
    ),
    "a mode of keys": (lambda: ops.area_keys(Y, 2, mode="x"), ConfigError, "area_keys: mode: 'x' is none of mean, max"),
    "integers to penalize": (lambda: ops.redundancy_penalty(IDS[None]), ShapeError, "weights must hold floating-point numbers"),
    "complex weights": (lambda: ops.doubly_stochastic_penalty(W.to(torch.complex64)), ShapeError, "weights must hold floating-point"),
    "integers for probabilities": (lambda: ops.score_function_loss(IDS, IDS, IDS), ShapeError, "advantage must hold floating-point"),
    "integers for scores": (lambda: ops.location_scores(IDS, 2), ShapeError, "projected must hold floating-point numbers"),
    "three parts and a half": (lambda: KeyValueAttention(6, 2, parts=1.0), ConfigError, "parts should be 1, 2 or 3, found 1.0"),  # type: ignore[arg-type]
    "a negative count of coins": (lambda: HardChoice("sample").soft_rows(-1), ConfigError, "size must be a whole number of at least 0"),
    "a position nobody reads": (
        lambda: (module := Attention(DotScore())).attend(Y, module.memory(Y), position="abc"),  # type: ignore[arg-type]
        ConfigError,
        "position must be a whole number",
    ),
    "an unknown unknown": (lambda: ops.copy_goals(IDS, IDS, 7, unknown=99), ConfigError, "unknown must be a number from 0 to 6, found 99"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused(name: str) -> None:
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("normalizer", ["softmax", "sparsemax", "entmax15"])
def test_a_small_temperature_takes_the_best(normalizer: Any, dtype: torch.dtype) -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, 9.0], [-math.inf, -2.0, -3.0, 9.0], [7.0, 7.0, 7.0, 9.0]], dtype=dtype, requires_grad=True)
    mask = torch.tensor([[True, True, True, False], [True, True, True, False], [False] * 4])
    weights = ops.area_softmax(scores, mask, temperature=1e-38, normalizer=normalizer)
    assert weights.tolist() == [[0, 1, 0, 0], [0, 1, 0, 0], [0] * 4]
    weights.sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    half = ops.area_softmax(scores, mask, temperature=0.5, normalizer=normalizer)
    torch.testing.assert_close(half, ops.normalize(scores * 2, mask, normalizer=normalizer))
    for wrong in (math.nan, math.inf):
        scores = torch.tensor([[1.0, wrong, 2.0]], dtype=dtype)
        assert ops.area_softmax(scores, temperature=0.5).isnan().all()


def test_the_best_areas_are_chosen_whatever_the_temperature() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert ops.area_softmax(scores.to(dtype), top_k=1, temperature=1e10).tolist() == [[0, 0, 1]]


def test_goals_of_padding_may_be_anything() -> None:
    assert copied(0.1).loss.isfinite()


def test_whole_numbers_of_numpy_are_sizes() -> None:
    two = np.int64(2)
    expected = ops.area_attention(X, X, X, max_area=2)
    assert torch.equal(ops.area_attention(X, X, X, max_area=two), expected)  # type: ignore[arg-type]
    grid = (np.int32(1), np.int32(3))
    assert torch.equal(ops.area_attention(X, X, X, max_area=(1, two), grid=grid), expected)  # type: ignore[arg-type]
    assert torch.equal(ops.attention(X, X, X, max_area=two), ops.attention(X, X, X, max_area=2))  # type: ignore[arg-type]
    assert ops.area_count(np.int64(5), two) == ops.area_count(5, 2)  # type: ignore[arg-type]
    assert ops.area_spans(3, two).tolist() == ops.area_spans(3, 2).tolist()  # type: ignore[arg-type]
    assert Areas(two).max_area == 2  # type: ignore[arg-type]
    assert type(MonotonicWindow(np.int64(3)).radius) is int  # type: ignore[arg-type]
    assert MultiHeadAttention(np.int64(4), num_heads=two)(Y, Y, Y).context.shape == Y.shape  # type: ignore[arg-type]


def test_other_errors_keep_their_words() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'key'"):
        ops.dot_scores(Y)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="CosineScore: sharpness should be a finite number"):
        CosineScore(math.inf)
