"""Run the demonstration in an empty folder and write what it reached to docs/results/demo.json.

python benchmarks/demo.py --out docs/results/demo.json
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness import Table, machine, options, read, regard


def main() -> None:
    arguments = options(__doc__).parse_args()
    note = (
        "`python benchmarks/demo.py`. Pointing: of the digits, how many attend most to a character that decides them (the year's, the "
        f"month's or the day's). {machine()}."
    )
    with tempfile.TemporaryDirectory() as folder:
        regard("demo", "--out", folder)
        found = read(Path(folder, "result.json"))
    row = [round(found["exact_match"], 2), round(100 - found["alignment_error_rate"], 1), found["updates"], round(found["seconds"])]
    Table(arguments.out, ["exact match, %", "pointing, %", "updates", "seconds"], note, key=0).add(row)


if __name__ == "__main__":
    main()
