"""`regard.check` as an assertion in a test."""

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
    """Assert that `regard.check` finds no leak; takes the same arguments.

    Returns:
        The report, for further assertions.

    Raises:
        AssertionError: something leaks; the message is the report.

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
