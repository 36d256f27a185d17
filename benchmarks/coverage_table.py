"""From a coverage report to docs/results/coverage.json: which lines of the package the default tests run, by package.

    make coverage

Lines that only a process started by a test runs are not seen.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from harness import RESULTS, options, read, write


def main() -> None:
    parser = options(__doc__, out=RESULTS / "coverage.json")
    parser.add_argument("report", type=Path, help="what `coverage json` wrote")
    arguments = parser.parse_args()
    report = read(arguments.report)
    lines: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, found in report["files"].items():
        part = Path(name).parts[Path(name).parts.index("regard") + 1]
        for place, key in enumerate(("num_statements", "missing_lines")):
            lines[part][place] += found["summary"][key]
    rows = [[part, total, missed, round(100 * (1 - missed / total), 1)] for part, (total, missed) in sorted(lines.items()) if total]
    totals = report["totals"]
    rows.append(["all", totals["num_statements"], totals["missing_lines"], round(totals["percent_covered"], 1)])
    note = (
        f"`make coverage`, coverage {report['meta']['version']}, {report['meta']['timestamp'][:10]}: statements that the default tests "
        "run in their own process; the servers and trainings that they start as processes of their own are not counted."
    )
    write(arguments.out, ["package", "statements", "not run", "run, %"], rows, note)


if __name__ == "__main__":
    main()
