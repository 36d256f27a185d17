"""The command `regard compare`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard import progress
from regard.commands.options import Cpus, Gpus, On, Workers
from regard.commands.terminal import write_line, write_message
from regard.errors import ConfigError, DataError, counted, listed

if TYPE_CHECKING:
    from regard.config.study import StudyConfig
    from regard.study.report import Report

commands = typer.Typer()


@commands.command()
def compare(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="the study: data sets, variants, seeds, budget")],
    out: Annotated[Path | None, typer.Option(help="folder of runs and results; default: runs/NAME or runs/NAME_SCALE")] = None,
    data: Annotated[Path | None, typer.Option(envvar="REGARD_DATA", help="data folder, which replaces {data} in the study")] = None,
    scale: Annotated[str | None, typer.Option(help="one of the study's scales")] = None,
    only: Annotated[str | None, typer.Option(metavar="PATTERN", help="do only these runs, named DATA-VARIANT-SEED: '*-1'")] = None,
    estimate_only: Annotated[bool, typer.Option("--estimate", help="train nothing; print the estimated cost")] = False,
    report_only: Annotated[bool, typer.Option("--report", help="train nothing; write the report of the finished runs")] = False,
    on: On = None,
    workers: Workers = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
) -> None:
    """Train and compare the variants of a study.

    Trains every variant on every data set with every seed, and writes one report after each run. Prints a table, and a sentence for each
    hypothesis, at the end.

    The same command resumes a study; if a test set has changed, it measures the finished runs again. With --workers or --on several runs
    are trained at a time, here or on the machines of a cluster.
    """
    from regard.config.study import load_study
    from regard.config.unused import unused_in_study
    from regard.jobs import open_pool
    from regard.study.cost import ESTIMATE_NOTE, estimate
    from regard.study.explained import check_methods
    from regard.study.grid import check_study, run_study
    from regard.study.report import build_report
    from regard.study.report_files import write_report
    from regard.study.results import Outdated
    from regard.viewer.text import aligned

    if report_only and only is not None:
        raise ConfigError("compare: --only chooses the runs to do, and --report does none")
    found = load_study(study, data=data, scale=scale)
    if estimate_only:
        check_methods(found)
        with progress.stage("Estimating"):
            costs = estimate(found, beside=study.parent, only=only)
        for line in (*aligned(*costs), "", ESTIMATE_NOTE):
            write_line(line)
        return
    for note in unused_in_study(found, beside=study.parent):
        write_message(note)
    folder = out if out is not None else Path("runs") / (found.name if scale is None else f"{found.name}_{scale}")

    written: list[Callable[[], None]] = []  # prints the latest report

    def report() -> None:
        with progress.stage("Writing the report"):
            built = build_report(found, folder)
            paths = write_report(built, folder)
        written[:] = [partial(_show, found, built, paths)]

    if report_only:
        check_study(found, folder, beside=study.parent)
        with suppress(DataError, OSError):  # the test sets may be elsewhere
            Outdated(found, folder, beside=study.parent).warn()
        report()
        written[0]()
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError("compare: torchrun starts it several times; give it --workers N instead")
    where = {"on": on, "workers": workers, "cpus": cpus, "gpus": gpus}
    pool = open_pool(["regard.study.worker"], **where) if any(value is not None for value in where.values()) else None
    try:
        ended = run_study(found, folder, beside=study.parent, only=only, on_result=report, pool=pool)
        if not ended and not written:  # all runs were done; the last report may be missing, if the command was killed
            report()
    finally:
        for show in written:
            show()
    if ended:
        write_message(f"stopped by signal {ended}; the same command resumes it")
        raise typer.Exit(128 + ended)


def _show(study: StudyConfig, report: Report, paths: Sequence[Path]) -> None:
    """Print a report: its table, its methods and its conclusions."""
    from regard.study.explained import method_table
    from regard.study.report_files import conclusions, table
    from regard.study.results import other_results
    from regard.viewer.text import aligned

    methods = method_table(study, report.runs)
    shown = [] if methods is None else ["", *aligned(*methods)]
    for line in (*aligned(*table(report)), *shown, "", *conclusions(report), ", ".join(map(str, paths))):
        write_line(line)
    if left := other_results(study, paths[0].parent):
        runs = counted(len(left), "finished run is", "finished runs are")
        write_message(f"{runs} not in the report, as the study no longer has them: {listed(left, most=3)}")
