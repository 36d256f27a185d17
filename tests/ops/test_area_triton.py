"""The Triton kernels of area attention: under Triton's interpreter, through its compiler without a GPU, and on a GPU where there is one.

The interpreter must be chosen before triton is imported, and what it patches must not reach other tests: the cases of a group run in a
process of their own, `python test_area_triton.py interpret GROUP`, which prints what went wrong by case; so does `compile TARGET`.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from regard import ops
from regard.errors import ConfigError, ShapeError
from regard.ops import reference
from regard.ops.kernels import area_triton
from regard.ops.materialized_areas import AreaWeights
from tests.ops.error_rule import FLOOR, Errors, assert_rule

triton = pytest.importorskip("triton", reason="the package triton is not installed")

recent = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 9)
HALVES = (torch.float16, torch.bfloat16)


class Case(NamedTuple):
    """One input: sizes (B, H, T, S, D, Dv), the areas, what is hidden, and how the kernels cut it (None: as they would themselves)."""

    sizes: tuple[int, int, int, int, int, int]
    area: int | tuple[int, int]
    grid: tuple[int, int] | None = None
    mask: str = ""
    causal: bool = False
    dtype: torch.dtype = torch.float32
    cut: tuple[int, ...] | None = (4, 4, 1, 2, 1, 1)
    scale: float = 0.37
    layout: str = ""

    @property
    def name(self) -> str:
        """Say it in one word."""
        parts = [
            *self.sizes,
            self.area,
            self.grid,
            self.mask,
            "causal" * self.causal,
            str(self.dtype)[6:],
            self.layout,
            self.scale,
            self.cut,
        ]
        return "-".join(str(part).replace(" ", "") for part in parts if part not in ("", None))


def spans(case: Case) -> list[list[int]]:
    """Return the items of every area."""
    if case.grid is None:
        assert isinstance(case.area, int)
        return [list(range(i, i + s)) for s in range(1, case.area + 1) for i in range(case.sizes[3] - s + 1)]
    assert not isinstance(case.area, int)
    (rows, columns), (high, wide) = case.grid, case.area
    corners = [
        (y, x, h, w) for h in range(1, high + 1) for w in range(1, wide + 1) for y in range(rows - h + 1) for x in range(columns - w + 1)
    ]
    return [[r * columns + c for r in range(y, y + h) for c in range(x, x + w)] for y, x, h, w in corners]


def plain(inputs: tuple[Tensor, ...], allowed: Tensor, case: Case) -> tuple[Tensor, Tensor]:
    """Attend to every area, each with a key and a value of its own, in the dtype of the inputs: context and log-sum-exp."""
    query, key, value = inputs
    holds = query.new_zeros(len(spans(case)), case.sizes[3])
    for row, items in zip(holds, spans(case), strict=True):
        row[items] = 1
    keys, values = (holds @ key) / holds.sum(1, keepdim=True), holds @ value
    area_allowed = (~allowed).to(query.dtype) @ holds.t() == 0
    scores = (query @ keys.transpose(-1, -2)) * case.scale
    scores = scores.masked_fill(~area_allowed, torch.finfo(query.dtype).min)
    weights = scores.softmax(-1) * area_allowed
    lse = scores.masked_fill(~area_allowed, -math.inf).logsumexp(-1)
    return weights @ values, lse


def draw(case: Case, seed: int, device: str) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor]:
    """Return query, key, value; the mask; the context's gradient."""
    b, h, t, s, d, e = case.sizes
    generator = torch.Generator().manual_seed(seed)

    def normal(length: int, width: int) -> Tensor:
        shape = (b, length, h, width) if case.layout == "heads last" else (b, h, length, width)
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(case.dtype).to(device)
        if case.layout == "strided":  # not even the features stand side by side
            x = x.transpose(-1, -2).contiguous().transpose(-1, -2)
        return x.transpose(1, 2) if case.layout == "heads last" else x

    shapes = {
        "": None,
        "keys": (b, 1, 1, s),
        "rows": (1, 1, t, s),
        "full": (b, h, t, s),
        "heads": (1, h, t, 1),
        "turned": (b, 1, s, t),
        "empty": (1, 1, t, s),
        "late": (1, 1, t, s),
    }
    shape = shapes[case.mask]
    mask = None if shape is None else (torch.rand(shape, generator=generator) < 0.8).to(device)
    if mask is not None and case.mask == "turned":
        mask = mask.transpose(-1, -2)
    if mask is not None and case.mask == "empty":
        mask[:, :, ::2] = False
    if mask is not None and case.mask == "late":  # whole tiles without anything, before the first that has
        mask[..., : 2 * s // 3] = False
    return (normal(t, d), normal(s, d), normal(s, e)), mask, normal(t, e)


def full_mask(case: Case, mask: Tensor | None, device: str) -> Tensor:
    b, h, t, s = case.sizes[:4]
    allowed = torch.ones(b, h, t, s, dtype=torch.bool, device=device)
    if mask is not None:
        allowed = allowed & mask
    return allowed.tril(s - t) if case.causal else allowed


def attend(case: Case, inputs: tuple[Tensor, ...], mask: Tensor | None, grad: Tensor) -> dict[str, Tensor]:
    """Run the kernels, forward and backward."""
    settings: dict[str, Any] = {"max_area": case.area, "grid": case.grid, "mask": mask, "causal": case.causal, "scale": case.scale}
    query, key, value = inputs
    context, lse = area_triton.area_attention_triton(query, key, value, **settings)
    gradients = area_triton.area_attention_triton_backward(grad, query, key, value, context, lse, **settings)
    return dict(zip(("context", "lse", "query", "key", "value"), (context, lse, *gradients), strict=True))


def expected(case: Case, inputs: tuple[Tensor, ...], allowed: Tensor, grad: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    inputs = tuple(x.detach().to(dtype).requires_grad_() for x in inputs)
    context, lse = plain(inputs, allowed, case)
    gradients = torch.autograd.grad(context, inputs, grad.to(dtype))
    return dict(zip(("context", "lse", "query", "key", "value"), (context, lse, *gradients), strict=True))


def largest(x: Tensor) -> float:
    return x.abs().max().item() if x.numel() else 0.0


def check_error(case: Case, seed: int = 0, device: str = "cpu") -> None:
    """The error against float64 is at most twice that of the plain form in the same dtype, three times for gradients."""
    inputs, mask, grad = draw(case, seed, device)
    allowed = full_mask(case, mask, device)
    found = attend(case, inputs, mask, grad)
    exact, rough = (expected(case, inputs, allowed, grad, dtype) for dtype in (torch.float64, case.dtype))
    assert found["context"].dtype == case.dtype
    assert found["lse"].dtype == torch.float32
    # Weights made again from a log-sum-exp in float32 are off by its rounding; gradients of scores are differences of products. Where a
    # softmax is saturated, the plain form has neither error.
    off = 1 + largest(exact["lse"][exact["lse"].isfinite()])
    terms = {"value": off * largest(grad)}
    terms["query"] = off * abs(case.scale) * largest((grad.double() @ inputs[2].double().transpose(-1, -2))[allowed]) * largest(inputs[1])
    terms["key"] = terms["query"] / max(largest(inputs[1]), 1e-9) * largest(inputs[0])
    for name, x in found.items():
        assert x.shape == exact[name].shape
        both = exact[name].isfinite()  # log-sum-exp is -inf where nothing may be attended
        assert torch.equal(both, x.isfinite()), f"{name}: {x}"
        error, other = (largest((y.double() - exact[name])[both]) for y in (x, rough[name].double()))
        # On few numbers the plain form may be right by luck: a rounding of the largest number met is always allowed, in float32 a few.
        room = torch.finfo(case.dtype).eps * largest(exact[name][both]) * (0.5 if case.dtype in HALVES else 4.0)
        room += torch.finfo(torch.float32).eps * terms.get(name, 0.0)
        bound = (2.0 if name in ("context", "lse") else 3.0) * other + room
        assert error <= bound, f"{name}: error {error:.3g}, of the plain form {other:.3g}, bound {bound:.3g}"
    nothing = ~allowed.any(-1)
    assert largest(found["context"][nothing]) == largest(found["query"][nothing]) == 0.0
    unseen = ~allowed.any(-2)
    assert largest(found["key"][unseen]) == largest(found["value"][unseen]) == 0.0


def check_hidden(case: Case, seed: int = 0, device: str = "cpu") -> None:
    """What stands in an item or query that sees nothing changes no bit elsewhere; whoever may attend what is not finite gets NaN."""
    inputs, mask, grad = draw(case, seed, device)
    allowed = full_mask(case, mask, device)
    clean = attend(case, inputs, mask, grad)
    item = case.sizes[3] // 2
    huge = torch.finfo(case.dtype).max  # with it, a hidden product is not finite
    for bad, which in itertools.product((math.nan, math.inf, -math.inf, huge), (0, 1, 2)):
        spoiled = [x.clone() for x in inputs]
        if which == 0:
            spoiled[0][~allowed.any(-1)] = bad
            loud = torch.zeros_like(allowed[..., 0])
        else:
            spoiled[which][..., item, :] = bad
            loud = allowed[..., item]
        found = attend(case, tuple(spoiled), mask, grad)
        touched = (allowed & loud.unsqueeze(-1)).any(-2)
        for name, where in (("context", loud), ("lse", loud), ("query", loud), ("key", touched), ("value", touched)):
            assert torch.equal(found[name][~where], clean[name][~where]), (bad, which, name)
            assert bad == huge or found[name][where].isnan().all(), (bad, which, name)


def check_loud_gradient(case: Case, seed: int = 0, device: str = "cpu") -> None:
    """A gradient that is not finite reaches all that its query may attend, and nothing else."""
    inputs, mask, grad = draw(case, seed, device)
    allowed = full_mask(case, mask, device)
    clean = attend(case, inputs, mask, grad)
    for bad in (math.nan, math.inf):
        spoiled = grad.clone()
        spoiled[..., case.sizes[2] // 2, 0] = bad
        found = attend(case, inputs, mask, spoiled)
        loud = torch.zeros_like(allowed[..., 0])
        loud[..., case.sizes[2] // 2] = allowed[..., case.sizes[2] // 2, :].any(-1)
        touched = (allowed & loud.unsqueeze(-1)).any(-2)
        for name, where in (("query", loud), ("key", touched), ("value", touched)):
            assert not found[name][where].isfinite().all(-1).any()
            if mask is not None or case.causal:
                assert torch.equal(found[name][~where], clean[name][~where])


def check_repeats(case: Case, seed: int = 0, device: str = "cpu") -> None:
    """The same input gives the same bits."""
    inputs, mask, grad = draw(case, seed, device)
    first, second = (attend(case, inputs, mask, grad) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def check_tiles(case: Case, seed: int = 0, device: str = "cpu") -> None:
    """However the work is cut, the result is the same to within rounding."""
    inputs, mask, grad = draw(case, seed, device)
    results = [attend(case, inputs, mask, grad)]
    with cutting((8, 2, 1 if case.grid is None else 2, 3, 1, 1)):
        results.append(attend(case, inputs, mask, grad))
    for name, x in results[0].items():
        torch.testing.assert_close(x, results[1][name], rtol=1e-5, atol=1e-5)


def draw_weights(case: Case, seed: int, device: str) -> tuple[Tensor, ...]:
    """Return weights of Eq. 9, of which about half of the hidden units are above 0."""
    generator = torch.Generator().manual_seed(1000 + seed)
    d, (high, wide) = case.sizes[4], (1, case.area) if isinstance(case.area, int) else case.area
    shapes = (high, d // 2), (wide, d - d // 2), (d, 3 * d), (d, d)
    return tuple((torch.randn(shape, generator=generator) * 1.3 / math.sqrt(d)).to(case.dtype).to(device) for shape in shapes)


NAMES = ("query", "key", "value", "height", "width", "hidden", "output")


def by_features(
    case: Case, inputs: tuple[Tensor, ...], mask: Tensor | None, grad: Tensor, dtype: torch.dtype, kernels: bool
) -> dict[str, Tensor]:
    """Attend by Eq. 9 with the kernels, or with the keys of all areas, forward and backward."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    settings: dict[str, Any] = {"max_area": case.area, "grid": case.grid, "mask": mask, "causal": case.causal, "scale": case.scale}
    settings |= {"key_mode": "features", "key_weights": AreaWeights(*leaves[3:])}
    if kernels:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REGARD_KERNELS", "triton")
            context = ops.area_attention(*leaves[:3], **settings)
    else:
        context = reference.area_attention(*leaves[:3], **settings).context
    assert isinstance(context, Tensor)
    return {"context": context.detach(), **dict(zip(NAMES, torch.autograd.grad(context, leaves, grad.to(dtype)), strict=True))}


def check_features(case: Case, seed: int = 0, device: str = "cpu") -> None:
    """The error rule, with the keys of Eq. 9."""
    inputs, mask, grad = draw(case, seed, device)
    inputs = (*inputs, *draw_weights(case, seed, device))
    allowed = full_mask(case, mask, device)

    def errors(longer: float) -> list[Errors]:
        changed = (inputs[0] * longer, inputs[1] * longer, *inputs[2:])
        found = by_features(case, changed, mask, grad, case.dtype, kernels=True)
        assert largest(found["context"][~allowed.any(-1)]) == largest(found["query"][~allowed.any(-1)]) == 0.0
        assert largest(found["key"][~allowed.any(-2)]) == largest(found["value"][~allowed.any(-2)]) == 0.0
        assert {x.dtype for x in found.values()} == {case.dtype}
        exact, rough = (by_features(case, changed, mask, grad, dtype, kernels=False) for dtype in (torch.float64, case.dtype))
        unit = FLOOR * torch.finfo(case.dtype).eps
        return [
            Errors(largest(x.double() - exact[name]), largest(rough[name].double() - exact[name]), unit * max(1.0, largest(exact[name])))
            for name, x in found.items()
        ]

    assert_rule(errors, 1.0, (1 + n / 64 for n in range(1, 9)))


def check_hidden_features(case: Case, seed: int = 0, device: str = "cpu") -> None:
    """With the keys of Eq. 9, an item that is hidden changes no bit elsewhere; whoever may attend one that is not finite gets NaN."""
    inputs, mask, grad = draw(case, seed, device)
    inputs = (*inputs, *draw_weights(case, seed, device))
    allowed = full_mask(case, mask, device)
    item = case.sizes[3] // 2
    loud = allowed[..., item]
    grad = grad.masked_fill(loud.unsqueeze(-1), 0.0)
    inputs[1][..., item, :] = inputs[2][..., item, :] = 0.0
    clean = by_features(case, inputs, mask, grad, case.dtype, kernels=True)
    for bad, which in itertools.product((math.nan, math.inf, torch.finfo(case.dtype).max), (1, 2)):
        spoiled = [x.clone() for x in inputs]
        spoiled[which][..., item, :] = bad
        found = by_features(case, tuple(spoiled), mask, grad, case.dtype, kernels=True)
        assert torch.equal(found["context"][~loud], clean["context"][~loud])
        assert math.isfinite(bad) or found["context"][loud].isnan().all()
        if not loud.any():
            assert all(torch.equal(found[name], clean[name]) for name in NAMES)


class cutting:
    """Have the kernels cut their work in this way."""

    def __init__(self, cut: tuple[int, ...] | None) -> None:
        self.cut = cut

    def __enter__(self) -> None:
        self.before = area_triton.tiles
        if self.cut is not None:
            chosen = area_triton.Tiles(*self.cut)
            area_triton.tiles = lambda *_: chosen

    def __exit__(self, *_: object) -> None:
        area_triton.tiles = self.before


def line(area: int, targets: int, items: int, **more: Any) -> Case:
    return Case((1, 1, targets, items, 5, 3), area, **more)


CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__: check
    for check in (check_error, check_features, check_hidden, check_hidden_features, check_loud_gradient, check_repeats, check_tiles)
}
GROUPS: dict[str, list[tuple[str, Case]]] = {
    "sizes": [
        *(("check_error", line(area, 5, 11)) for area in (1, 2, 3, 4, 5, 6, 7, 8)),
        *(("check_error", line(area, 5, 11, causal=True)) for area in (1, 2, 3, 5, 8)),
        ("check_error", Case((1, 1, 3, 19, 5, 3), 16, cut=(4, 4, 1, 4, 1, 1))),
        ("check_error", Case((1, 1, 3, 37, 5, 3), 16, cut=(4, 4, 1, 2, 1, 1), causal=True)),
        *(("check_error", line(3, 1, items)) for items in (1, 2, 3, 7)),
        *(("check_error", line(3, targets, items, causal=True)) for targets, items in ((1, 7), (7, 1), (2, 13), (13, 3), (7, 7), (5, 2))),
        *(("check_error", Case((1, 1, 5, 7, d, e), 3)) for d, e in ((1, 1), (16, 17), (23, 31), (37, 2))),
        ("check_error", Case((3, 2, 5, 7, 5, 3), 3)),
    ],
    "masks": [
        *(
            ("check_error", line(3, 5, 11, mask=mask, causal=causal))
            for mask in ("keys", "rows", "full", "heads", "turned", "empty")
            for causal in (False, True)
        ),
        *(("check_error", line(3, 5, 7, mask="rows", layout=layout)) for layout in ("heads last", "strided")),
        *(("check_error", line(3, 5, 7, scale=scale, mask=mask)) for scale in (1e3, -2.0, 1e-3) for mask in ("", "rows")),
        ("check_error", Case((2, 3, 5, 7, 5, 3), 2, mask="full", layout="heads last")),
        ("check_error", line(3, 5, 19, mask="late")),
        *(("check_hidden", Case((1, 1, 4, 7, 3, 2), 3, mask=mask, cut=(4, 4, 1, 2, 1, 1))) for mask in ("rows", "empty")),
        ("check_hidden", Case((1, 1, 5, 7, 3, 2), 2, causal=True, cut=(8, 4, 1, 2, 1, 1))),
        ("check_loud_gradient", Case((1, 1, 4, 7, 3, 2), 3, mask="rows", cut=(4, 4, 1, 2, 1, 1))),
        ("check_loud_gradient", Case((1, 1, 4, 7, 3, 2), 3, mask="empty", cut=(4, 4, 1, 2, 1, 1))),
        ("check_loud_gradient", Case((1, 1, 4, 7, 3, 2), 2, cut=(4, 4, 1, 2, 1, 1))),
        ("check_repeats", line(3, 5, 7, mask="rows")),
        ("check_tiles", line(3, 5, 13, mask="rows")),
    ],
    "grids": [
        *(
            ("check_error", Case((1, 1, 3, math.prod(grid), 5, 3), area, grid=grid, cut=cut))
            for area, grid, cut in (
                ((3, 3), (5, 7), (4, 4, 2, 2, 1, 1)),
                ((2, 3), (3, 7), (4, 4, 1, 3, 1, 1)),
                ((3, 2), (5, 3), (4, 4, 2, 1, 1, 1)),
                ((1, 3), (3, 7), (4, 2, 1, 4, 1, 1)),
                ((3, 1), (5, 3), (4, 2, 2, 3, 1, 1)),
            )
        ),
        *(("check_error", Case((1, 2, 3, 15, 5, 3), (2, 2), grid=(3, 5), cut=(4, 4, 2, 2, 1, 1), mask=mask)) for mask in ("rows", "keys")),
        *(
            ("check_error", Case((1, 1, 7, 15, 5, 3), (2, 2), grid=(3, 5), cut=(4, 4, high, 2, 1, 1), causal=True, mask=mask))
            for high in (1, 2)
            for mask in ("", "rows")
        ),
        ("check_error", Case((1, 1, 3, 7, 5, 3), (3, 3), grid=(1, 7), cut=(4, 2, 2, 2, 1, 1))),
        ("check_error", Case((1, 1, 3, 7, 5, 3), (3, 3), grid=(7, 1), cut=(4, 2, 2, 2, 1, 1))),
        ("check_hidden", Case((1, 1, 3, 6, 3, 2), (2, 2), grid=(2, 3), cut=(4, 4, 2, 2, 1, 1), mask="rows")),
        ("check_tiles", Case((1, 1, 3, 15, 5, 3), (2, 2), grid=(3, 5), cut=(4, 2, 1, 2, 1, 1))),
    ],
    # Tiles where nothing is hidden, and others; keys and values kept, and not.
    "steps": [
        *(
            ("check_error", Case((1, 2, targets, items, 5, 3), area, causal=causal, cut=(4, 4, 1, 2, 1, stages)))
            for area in (1, 2, 3, 5)
            for causal, targets, items in ((False, 7, 29), (True, 29, 29), (True, 13, 31), (True, 31, 13))
            for stages in (1, 2)
        ),
        *(("check_hidden", Case((1, 1, 29, 29, 3, 2), 2, causal=True, cut=(8, 4, 1, 2, 1, stages))) for stages in (1, 2)),
        *(("check_error", line(3, 5, 11, mask=mask, causal=True, cut=(4, 4, 1, 2, 1, 2))) for mask in ("rows", "empty")),
        ("check_loud_gradient", Case((1, 1, 29, 29, 3, 2), 3, causal=True, cut=(4, 4, 1, 2, 1, 2))),
        ("check_repeats", Case((1, 1, 29, 29, 3, 2), 3, causal=True, cut=(4, 4, 1, 2, 1, 2))),
        ("check_tiles", Case((1, 1, 29, 29, 3, 2), 3, causal=True, cut=(4, 4, 1, 2, 1, 2))),
    ],
    "halves": [
        ("check_error", Case((1, 2, 13, 29, d, 19), area, dtype=dtype, cut=(16, 4, 1, 4, 1, 1), causal=causal, mask=mask))
        for dtype in HALVES
        for area, d, causal, mask in ((1, 17, False, ""), (3, 16, True, ""), (5, 16, False, "rows"), (2, 31, True, "rows"))
    ],
}


GROUPS["features"] = [
    *(
        ("check_features", line(area, 5, 11, causal=causal, mask=mask))
        for area, causal, mask in ((1, False, ""), (3, True, ""), (5, True, "keys"))
    ),
    *(("check_features", line(3, 5, 11, mask=mask)) for mask in ("", "keys", "rows", "full", "empty", "late")),
    *(("check_features", line(5, targets, items, causal=True)) for targets, items in ((1, 7), (7, 3), (2, 9), (9, 2))),
    *(("check_features", Case((1, 2, 4, 7, 6, 3), 3, mask="full", dtype=dtype, causal=True, cut=(16, 4, 1, 2, 1, 1))) for dtype in HALVES),
    *(
        ("check_features", Case((1, 1, 5, 15, 5, 3), (2, 2), grid=(3, 5), causal=causal, mask=mask))
        for causal, mask in ((False, ""), (True, ""), (False, "keys"), (True, "rows"))
    ),
    ("check_hidden_features", Case((1, 1, 5, 7, 4, 2), 3, mask="rows")),
    ("check_hidden_features", Case((1, 1, 5, 7, 4, 2), 3, causal=True)),
    ("check_hidden_features", Case((1, 1, 3, 7, 4, 2), 3, mask="late")),
]


def correct_interpreter() -> None:
    """Mend what the interpreter cannot do (products and roundings of bfloat16), and have it watch every address."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    executor: Any = interpreter.GridExecutor
    dot, cast, read, write = builder.create_dot, builder.cast_impl, builder.create_masked_load, builder.create_masked_store
    ranges: list[tuple[int, int]] = []

    def wide(x: Any) -> Any:
        return (
            interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32) if x.dtype.scalar == tl.bfloat16 else x
        )

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, wide(a), wide(b), *rest)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if target.scalar == tl.bfloat16:
            rounded = torch.from_numpy(np.array(wide(source).data, dtype=np.float32)).bfloat16().view(torch.int16).numpy().view(np.uint16)
            return interpreter.TensorHandle(rounded, tl.bfloat16)
        return cast(self, wide(source), target) if source.dtype.scalar == tl.bfloat16 else cast(self, source, target)

    def watch(pointers: Any, mask: Any) -> None:
        addresses = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
        inside = np.zeros(addresses.shape, bool)
        for low, high in ranges:
            inside |= (addresses >= low) & (addresses < high)
        assert inside.all(), "an address outside of the tensors"

    def create_masked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        watch(pointers, mask)
        return read(self, pointers, mask, *rest)

    def create_masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        watch(pointers, mask)
        return write(self, pointers, value, mask, *rest)

    # A launch has replaced the language already; to do it again at every call takes a third of the time.
    call = interpreter.InterpretedFunction.__call__

    def call_again(self: Any, *arguments: Any, **named: Any) -> Any:
        ours = self.fn.__module__.startswith("regard")
        return self.rewrite()(*arguments, **named) if ours else call(self, *arguments, **named)

    interpreter.InterpretedFunction.__call__ = call_again
    start = executor._init_args_hst

    def collect(self: Any, arguments: Any, named: Any) -> Any:
        result = start(self, arguments, named)
        ranges.clear()
        for x in result[0][0]:
            low = x.untyped_storage().data_ptr()
            ranges.append((low, low + x.untyped_storage().nbytes()))
        return result

    builder.create_dot, builder.cast_impl, builder.create_fp_to_fp = create_dot, cast_impl, lambda self, x, t, _: cast_impl(self, x, t)
    builder.create_masked_load, builder.create_masked_store = create_masked_load, create_masked_store
    executor._init_args_hst = collect
    area_triton.INTERPRETED = (*area_triton.INTERPRETED, torch.bfloat16)


def interpret(group: str) -> dict[str, str]:
    """Run a group of cases; return what went wrong by name."""
    correct_interpreter()
    failures = {}
    for check, case in GROUPS[group]:
        try:
            with cutting(case.cut):
                CHECKS[check](case)
            failures[f"{check}-{case.name}"] = ""
        except Exception:
            failures[f"{check}-{case.name}"] = traceback.format_exc()
    return failures


def compiled(capability: int) -> dict[str, str]:
    """Compile both passes for a GPU that need not be there, with the launcher's own arguments; return what is wrong with each kernel."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class Driver:  # what a launch asks of a GPU before it compiles
        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

    fake: Any = Driver()
    driver.set_active(fake)
    run: Any = JITFunction.run
    found: dict[str, str] = {}
    kernels: set[str] = set()

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        kernel = run(self, *arguments, grid=grid, warmup=True, **named)
        shared = kernel.metadata.shared
        good = f".target sm_{capability}" in kernel.asm["ptx"] and shared < 99 * 1024 and "cubin" in kernel.asm  # 99 KiB: sm_86 and sm_89
        found[f"{self.__name__}-{label}"] = "" if good else f"{shared} bytes of shared memory, {list(kernel.asm)}"
        kernels.add(kernel.hash)

    JITFunction.run = compile_only
    area_triton.supports = lambda *_, **__: (True, "")
    cases = [
        Case((1, 2, 64, 64, 24, 16), 2, mask="rows", causal=True, dtype=torch.bfloat16, layout="heads last", cut=(16, 16, 1, 1, 1, 2)),
        Case((1, 2, 64, 35, 16, 16), (2, 2), grid=(5, 7), dtype=torch.float16, cut=(16, 16, 1, 1, 1, 1)),
        Case((1, 2, 64, 64, 16, 16), 2, mask="keys", cut=(16, 16, 1, 1, 1, 1)),
        Case((3, 1, 37, 101, 16, 16), 2, mask="keys", cut=(16, 16, 1, 1, 1, 1)),  # other lengths are no other kernels
    ]
    for case in cases:
        label = case.name
        inputs, mask, grad = draw(case, 0, "cpu")
        with cutting(case.cut):
            attend(case, inputs, mask, grad)
    found["kernels"] = "" if len(kernels) == 15 else f"{len(kernels)} different ones"
    return found


@functools.cache
def outcome(mode: str, what: str) -> dict[str, str]:
    """Run this file in a process of its own."""
    # NaN and infinity are part of the cases; numpy, which interprets the kernels, would warn of them.
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", __file__, mode, what]
    with tempfile.TemporaryDirectory() as cache:
        paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        chosen = {
            "PYTHONPATH": paths,
            "TRITON_INTERPRET": "1" if mode == "interpret" else "0",
            "TRITON_CACHE_DIR": cache,
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **chosen}, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.timeout(1200)  # the first of a group waits for all of it: half a minute of a processor that may be shared
@pytest.mark.skipif(not recent, reason="the interpreter of this triton does not run on this numpy")
@pytest.mark.parametrize(("group", "name"), [(group, f"{check}-{case.name}") for group, cases in GROUPS.items() for check, case in cases])
def test_the_interpreted_kernels_are_right(group: str, name: str) -> None:
    assert outcome("interpret", group)[name] == ""


@pytest.mark.parametrize("capability", ["80", "90"])
def test_both_passes_compile_for_the_processor(capability: str) -> None:
    found = outcome("compile", capability)
    assert len(found) == 20
    assert set(found.values()) == {""}


def test_without_triton_the_kernels_are_not_there_and_say_so() -> None:
    code = (
        "import sys, torch; sys.modules['triton'] = None; from regard.ops.kernels.area_triton import supports; x = torch.ones(1, 1, 2, 4); "
        "print(supports(x, x, x, max_area=2, grid=None))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(False, 'the package triton is not installed')"


@pytest.mark.parametrize("sizes", [(0, 2, 3, 5, 4, 3), (2, 0, 3, 5, 4, 3), (2, 3, 0, 5, 4, 3), (2, 3, 5, 0, 4, 3)])
def test_an_empty_axis_gives_zeros(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(area_triton, "supports", lambda *_, **__: (True, ""))
    b, h, t, s, d, e = sizes
    inputs = torch.ones(b, h, t, d), torch.ones(b, h, s, d), torch.ones(b, h, s, e)
    context, lse = area_triton.area_attention_triton(*inputs, max_area=3, scale=1.0)
    assert torch.equal(context, torch.zeros(b, h, t, e))
    assert torch.equal(lse, torch.full((b, h, t), -torch.inf))
    gradients = area_triton.area_attention_triton_backward(context, *inputs, context, lse, max_area=3, scale=1.0)
    assert all(torch.equal(found, torch.zeros_like(x)) for found, x in zip(gradients, inputs, strict=True))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float64}, "float64"),
        ({"dtype": torch.bfloat16}, "no bfloat16"),
        ({"max_area": 17}, "up to 16 items, found 17"),
        ({"max_area": (5, 4), "grid": (1, 6)}, "up to 16 items, found 20"),
        ({"width": 129}, "head sizes from 1 to 128"),
        ({"width": 0}, "head sizes from 1 to 128"),
        ({"interpret": "0"}, "for CUDA"),
    ],
)
def test_what_the_kernels_do_not_take_is_said(change: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"dtype": torch.float32, "max_area": 3, "grid": None, "width": 4, "interpret": "1", **change}
    monkeypatch.setenv("TRITON_INTERPRET", settings["interpret"])
    x = torch.ones(1, 1, 6, settings["width"], dtype=settings["dtype"])
    able, said = area_triton.supports(x, x, x, max_area=settings["max_area"], grid=settings["grid"])
    assert not able
    assert reason in said
    with pytest.raises(ShapeError, match=reason):
        area_triton.area_attention_triton(x, x, x, max_area=settings["max_area"], grid=settings["grid"], scale=1.0)


def test_area_features_take_the_kernels_with_sums_and_means_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("REGARD_KERNELS", "triton")
    x = torch.ones(1, 1, 35, 4)
    for mode in ("sum", "mean"):  # areas of any number of items: each is one key
        assert ops.area_path(x, x, x, max_area=(5, 7), grid=(5, 7), modes=("features", mode))[0] == "triton"
    with pytest.raises(ConfigError, match="take sum values with mean keys, not 'mean'"):
        ops.area_path(x, x, x, max_area=2, modes=("mean", "mean"))


def test_a_grid_that_does_not_hold_the_items_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    x = torch.ones(1, 1, 6, 4)
    with pytest.raises(ShapeError, match=r"grid \(2, 2\) .* S = 6"):
        area_triton.area_attention_triton(x, x, x, max_area=(2, 2), grid=(2, 2), scale=1.0)


# What kernels are compiled for, which takes up to a minute and a half: dtype, area, mask, causal, long. Every two values of two meet, but
# for some with areas of 2 x 2.
COMPILED: list[tuple[torch.dtype, int | tuple[int, int], bool, bool, bool]] = [
    (torch.float32, (3, 3), False, False, True),
    (torch.float32, (2, 2), True, True, False),
    (torch.bfloat16, (3, 3), False, False, True),
    (torch.bfloat16, (3, 3), True, False, False),
    (torch.float16, (3, 3), False, True, True),
    (torch.float16, (2, 2), True, True, False),
    (torch.float16, 5, True, True, True),
    (torch.float16, 5, False, True, False),
    (torch.float16, 2, True, False, True),
    (torch.float16, 2, False, False, False),
    (torch.float32, 5, False, True, True),
    (torch.float32, 5, True, True, False),
    (torch.float32, 5, True, False, True),
    (torch.float32, 2, False, False, True),
    (torch.float32, 2, True, False, False),
    (torch.bfloat16, 5, False, True, True),
    (torch.bfloat16, 5, True, False, True),
    (torch.bfloat16, 5, False, False, False),
    (torch.bfloat16, 2, True, True, True),
    (torch.bfloat16, 2, False, True, False),
]


def any_case(seed: int) -> Case:
    """Draw a case of the size of real ones, for the kernels of `COMPILED[seed % len(COMPILED)]`."""
    generator = torch.Generator().manual_seed(seed)

    def pick(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    dtype, area, masked, causal, long = COMPILED[seed % len(COMPILED)]
    grid = None if isinstance(area, int) else pick((14, 14), (5, 11), (3, 23))
    odd = dtype == torch.float16 and area == 5  # rows of 37 values: strides that are multiples of 16 by chance would be other kernels
    b, h, t = pick(1, 2, 3), pick(1, 3, 5), pick(64 - odd, 113, 257) if long else pick(1, 7, 16 - odd)
    s = math.prod(grid) if grid else pick(1, 5, 29, 64 - odd, 127, 331)
    d, e = (48, 37 if odd else 32) if dtype == torch.float16 else (64, 64)
    mask = pick("keys", "rows", "full", "heads", "turned", "empty") if masked else ""
    scale = pick(1.0, 10.0, 1e3) / math.sqrt(d)
    return Case((b, h, t, s, d, e), area, grid, mask, causal, dtype, None, scale, pick("", "heads last", "strided"))


def grouped(seed: int) -> Any:
    """Return the parameter, with one process for all cases that share kernels, so that none is compiled twice."""
    return pytest.param(seed, marks=pytest.mark.xdist_group(f"kernels {seed % len(COMPILED)}"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # the first product of a process may be one of the backward pass
@pytest.mark.timeout(3600)  # the first of a group compiles its kernels
@pytest.mark.parametrize("seed", [grouped(seed) for seed in range(600)])
def test_the_kernels_keep_the_error_rule_on_a_gpu(seed: int) -> None:
    check_error(any_case(seed), seed, "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.xdist_group(f"features {seed % 12}")) for seed in range(60)])
def test_area_features_keep_the_error_rule_on_a_gpu(seed: int) -> None:
    dtype, masked, causal = (torch.float32, *HALVES)[seed % 3], seed % 12 < 6, seed % 2 == 0
    generator = torch.Generator().manual_seed(seed)

    def pick(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    grid = pick(None, None, (14, 14), (5, 11))
    targets, items = pick(1, 16, 113, 257), math.prod(grid) if grid else pick(5, 29, 127, 331)
    area = pick(2, 5) if grid is None else pick((2, 2), (3, 3))
    mask = pick("keys", "rows", "full", "heads", "empty") if masked else ""
    check_features(Case((2, 3, targets, items, 64, 64), area, grid, mask, causal, dtype, None, 0.125, pick("", "heads last")), seed, "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_on_a_gpu_hidden_items_change_no_bit_and_250_repeats_are_equal(dtype: torch.dtype) -> None:
    case = Case((2, 3, 113, 127, 64, 64), 5, mask="empty", dtype=dtype, cut=None)
    check_hidden(case, 0, "cuda")
    check_loud_gradient(case, 0, "cuda")
    for _ in range(250):
        check_repeats(case, 0, "cuda")


if __name__ == "__main__":
    print(json.dumps(interpret(sys.argv[2]) if sys.argv[1] == "interpret" else compiled(int(sys.argv[2]))))
