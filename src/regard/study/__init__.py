"""Studies: a grid of runs under one budget, spread over processes and machines, and the report of what came of them."""

from regard.study.grid import run_study
from regard.study.locks import hold_lock
from regard.study.report import Report, build_report
from regard.study.report_files import write_report

__all__ = ["Report", "build_report", "hold_lock", "run_study", "write_report"]


def __dir__() -> list[str]:
    return sorted(__all__)
