"""The trust tier: every check counts its cases, how often its fault really happened, and what failed.

`make test` runs a slice of each check, `make trust` all of it (REGARD_TRUST=full) and writes the table of docs/trust.md. A test asks for
`check`, names what it checks, and tells it of every case; a check whose fault did not happen as often as it should has failed.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import regard

FULL = os.environ.get("REGARD_TRUST") == "full"
KEY = "trust"


class Check:
    """One row of the table.

    Args:
        group: of the table, such as "files".
        what: is checked, in a few words.
        cases: how many there must be in a full run.
        quick: how many in a slice.
    """

    def __init__(self, group: str, what: str, *, cases: int, quick: int) -> None:
        self.group, self.what, self.full = group, what, cases
        self.wanted = cases if FULL else quick
        self.cases = 0
        self.failures: list[str] = []
        self.notes: list[str] = []
        self.start = time.perf_counter()

    def case(self, name: str, *, happened: bool = True, wrong: str | None = None) -> None:
        """Count a case.

        Args:
            name: of the case, for the list of failures.
            happened: whether the fault was really there (the process was killed, the bit was flipped); if not, the case has failed.
            wrong: what was not as promised; None: all was.
        """
        self.cases += 1
        if not happened:
            self.failures.append(_printable(f"{name}: the fault did not happen"))
        elif wrong is not None:
            self.failures.append(_printable(f"{name}: {wrong}"))

    def note(self, text: str) -> None:
        """Add a figure to the row, such as the longest time seen."""
        self.notes.append(text)

    def row(self) -> dict[str, Any]:
        """Return the row of the table."""
        return {
            "group": self.group,
            "check": self.what,
            "wanted": self.wanted,
            "cases": self.cases,
            "failures": self.failures[:20],
            "failed": len(self.failures),
            "notes": self.notes,
            "seconds": round(time.perf_counter() - self.start, 1),
        }


def _printable(text: str) -> str:
    # Hostile input may be in it, and half a character passes through no pipe.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Iterator[Callable[..., Check]]:
    """Return a maker of checks; at the end of the test each must have had all of its cases, and none may have failed."""
    made: list[Check] = []

    def make(group: str, what: str, *, cases: int, quick: int) -> Check:
        made.append(Check(group, what, cases=cases, quick=quick))
        return made[-1]

    yield make
    for each in made:
        if each.cases < each.wanted:
            each.failures.append(f"{each.cases} cases of {each.wanted}")
        request.node.user_properties.append((KEY, each.row()))
    assert made, "a test of trust makes a check"
    for each in made:
        assert not each.failures, f"{each.what}: {len(each.failures)} of {each.cases} failed: {'; '.join(each.failures[:5])}"


class Table:
    """Collects the rows of a session, those of other processes too; prints them, and writes them as a table of the documents.

    What fails is printed at once: the whole takes most of an hour.
    """

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self.path, self.config = path, config
        self.rows: list[dict[str, Any]] = []
        self.broken: list[str] = []
        self.skipped: dict[str, str] = {}
        self.start = time.perf_counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # The last phase has all that was told; a test that failed elsewhere than in its checks is named, too.
        if report.when == "teardown":
            made: list[dict[str, Any]] = [value for name, value in report.user_properties if name == KEY]  # type: ignore[misc]
            self.rows += made
            self.tell(f"FAILED {row['check']}: {failure}" for row in made for failure in row["failures"])
        if report.failed and (report.when == "call" or not any(name == KEY for name, _ in report.user_properties)):
            self.broken.append(report.nodeid)
            self.tell([f"FAILED {report.nodeid}"])
        if report.skipped and isinstance(report.longrepr, tuple):
            self.skipped[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    def tell(self, lines: Iterable[str]) -> None:
        """Write lines among the dots of the tests."""
        for line in lines:
            self.config.get_terminal_writer().line(f"\n{line}", flush=True)

    def lines(self) -> list[list[Any]]:
        """Return the rows of the table: those of checks, of tests that failed without one, and of what was not run."""
        rows: list[list[Any]] = [
            [row["group"], row["check"], row["cases"], row["failed"], row["seconds"], "; ".join(row["notes"])]
            for row in sorted(self.rows, key=lambda row: (row["group"], row["check"]))
        ]
        rows += [["", name, None, 1, None, "failed before its checks"] for name in sorted(set(self.broken))]
        return rows + [["", name, None, None, None, f"not run: {why}"] for name, why in sorted(self.skipped.items())]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        columns = ["group", "check", "cases", "failed", "seconds", "remarks"]
        for row in [columns, *self.lines()]:
            group, check, cases, failed, seconds, remarks = ("" if cell is None else str(cell) for cell in row)
            terminalreporter.write_line(f"{group:<11}{check:<90} {cases:>8} {failed:>7} {seconds:>8}  {remarks}")
        cases, failed = sum(row["cases"] for row in self.rows), sum(row["failed"] for row in self.rows) + len(set(self.broken))
        minutes = (time.perf_counter() - self.start) / 60
        note = (
            f"`make trust`: {len(self.rows)} checks, {cases:,} cases, {failed} failed, {minutes:.0f} minutes; {os.cpu_count()} cores, "
            f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, regard {regard.__version__}."
        )
        if not FULL:
            note = f"A slice only. {note}"
        text = json.dumps({"columns": columns, "rows": self.lines(), "note": note}, indent=1, ensure_ascii=False)
        self.path.write_text(text + "\n", encoding="utf-8")
        terminalreporter.write_line(note)


def pytest_configure(config: pytest.Config) -> None:
    wanted = os.environ.get("REGARD_TRUST_TABLE")
    if wanted and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(Path(wanted), config), "trust-table")
