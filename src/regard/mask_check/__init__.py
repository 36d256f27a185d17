"""Finds mask errors in PyTorch models: which positions leak, where the leak begins, and why.

`check` returns a `Report`; `assert_no_leaks` does the same in a test. An `Adapter` describes models that `check` cannot infer itself.
"""

from regard.mask_check.adapter import CHECKS, Adapter, Sequence
from regard.mask_check.check import check
from regard.mask_check.huggingface import load_folder
from regard.mask_check.report import Report, Result
from regard.mask_check.testing import assert_no_leaks

__all__ = ["CHECKS", "Adapter", "Report", "Result", "Sequence", "assert_no_leaks", "check", "load_folder"]


def __dir__() -> list[str]:
    return sorted(__all__)
