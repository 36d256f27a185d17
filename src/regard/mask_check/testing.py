"""The check as a line of a test."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.mask_check.adapter import Adapter
from regard.mask_check.automatic import Calling, Causal
from regard.mask_check.check import check
from regard.mask_check.report import Report


def assert_no_leaks(
    model: nn.Module,
    batch: Any = None,
    *,
    adapter: Adapter | None = None,
    causal: Causal = None,
    pad: int | None = None,
    call: Calling | None = None,
    dtype: torch.dtype | None = None,
) -> Report:
    """Fail a test with the whole report where `regard.check` finds a leak; the arguments are those of `regard.check`.

    Returns:
        The report, where there is none: a test can go on to ask what was checked.

    Raises:
        AssertionError: something leaks; its message is the report.

    Example:
        >>> model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
        >>> assert_no_leaks(model, torch.randint(11, (4, 7)), causal=True)["future tokens"].verdict
        'ok'
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    report = check(model, batch, adapter=adapter, causal=causal, pad=pad, call=call, dtype=dtype)
    if not report.ok:
        raise AssertionError(str(report))
    return report
