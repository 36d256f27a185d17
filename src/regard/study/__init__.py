"""Studies: a grid of runs under one budget, distributed to processes or machines, and their report."""

from regard.study.grid import run_study
from regard.study.report import Report, build_report
from regard.study.report_files import write_report

__all__ = ["Report", "build_report", "run_study", "write_report"]


def __dir__() -> list[str]:
    return sorted(__all__)
