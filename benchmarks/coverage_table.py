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
    parser.add_argument("--tests", default="the default tests", help="which tests the report is of, in words")
    parser.add_argument("--packages", nargs="*", help="only these packages; without, all")
    arguments = parser.parse_args()
    report = read(arguments.report)
    lines: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, found in report["files"].items():
        part = Path(name).parts[Path(name).parts.index("regard") + 1]
        if arguments.packages and part not in arguments.packages:
            continue
        for place, key in enumerate(("num_statements", "missing_lines")):
            lines[part][place] += found["summary"][key]
    rows = [[part, total, missed, round(100 * (1 - missed / total), 1)] for part, (total, missed) in sorted(lines.items()) if total]
    total, missed = (sum(each[place] for each in lines.values()) for place in (0, 1))
    rows.append(["all", total, missed, round(100 * (1 - missed / total), 1)])
    note = (
        f"`python benchmarks/coverage_table.py`, coverage {report['meta']['version']}, {report['meta']['timestamp'][:10]}: statements that "
        f"{arguments.tests} run in their own process; the servers and trainings that tests start as processes of their own are not counted."
    )
    write(arguments.out, ["package", "statements", "not run", "run, %"], rows, note)


if __name__ == "__main__":
    main()
