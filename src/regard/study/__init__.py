"""Studies: a grid of runs under one budget, spread over processes and machines, and the report of what came of them."""

from regard.study.claims import claim
from regard.study.report import Report, build_report
from regard.study.report_files import write_report
from regard.study.run import run_study

__all__ = ["Report", "build_report", "claim", "run_study", "write_report"]
