"""Run the demonstration in an empty folder and write what it reached to docs/results/demo.json.

python benchmarks/demo.py --out docs/results/demo.json
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "regard", "demo", "--out", folder], check=True)
        found = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
    row = [round(found["exact_match"], 2), round(100 - found["alignment_error_rate"], 1), found["updates"], round(found["seconds"])]
    note = (
        "`python benchmarks/demo.py`. Pointing: of the digits, how many attend most to a character that decides them (the year's, the "
        f"month's or the day's). {platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}."
    )
    table = {"columns": ["exact match, %", "pointing, %", "updates", "seconds"], "rows": [row], "note": note}
    arguments.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
