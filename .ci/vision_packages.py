"""Print the packages of the extra `vision` that the environment lacks, each with its version, for the torch that it holds."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with tempfile.TemporaryDirectory() as folder:
        pins, report = Path(folder, "pins.txt"), Path(folder, "report.json")
        pins.write_text(f"torch=={version('torch')}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--report", str(report), "-c", str(pins)]
        subprocess.run([*command, *project["optional-dependencies"]["vision"]], check=True, stdout=sys.stderr)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    print(*(f"{each['metadata']['name']}=={each['metadata']['version']}" for each in found))


if __name__ == "__main__":
    main()
