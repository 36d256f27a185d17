"""A doctor for masks: what does a model look at that it must not, where does that begin, and why?

`check` makes the `Report`; `assert_no_leaks` is the same in a test. An `Adapter` says how a model is called where that cannot be told.
"""

from regard.mask_check.adapter import CHECKS, Adapter, Sequence
from regard.mask_check.check import check
from regard.mask_check.huggingface import load_folder
from regard.mask_check.report import Report, Result
from regard.mask_check.testing import assert_no_leaks

__all__ = ["CHECKS", "Adapter", "Report", "Result", "Sequence", "assert_no_leaks", "check", "load_folder"]


def __dir__() -> list[str]:
    return sorted(__all__)
