"""Time a user's way from `pip install` to the attention over a sentence of one's own, on screen.

    python benchmarks/first_look.py --out docs/results/first_look.json

Makes an empty environment, types the commands of the table below into it, and opens the last one's page in a headless Chromium, where it
reads back the sentence and finds cells. The time of the first command is that of this machine's package index, too.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

from harness import ROOT, Table, machine, options
from view_pictures import browser

from regard.errors import DataError

SENTENCE = "Friday, 3 March 2017"
COMMANDS = ("pip install .", "regard demo --out runs/demo", f'regard view runs/demo/run --text "{SENTENCE}" -o page.html')
READ = """const text = document.getElementById('main').innerText, tabs = document.querySelectorAll('[role=tab]').length;
          return {text, tabs, cells: document.querySelectorAll('#view rect, #view td, #view canvas').length}"""


def type_in(command: str, programs: Path, folder: Path) -> float:
    """Run a command of the environment in a folder; return its seconds."""
    words = shlex.split(command)
    where = ROOT if words[0] == "pip" else folder
    path = os.pathsep.join([str(programs), os.environ.get("PATH", "")])
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    print("$", command, flush=True)
    begun = time.monotonic()
    subprocess.run([str(programs / words[0]), *words[1:]], cwd=where, env={**environment, "PATH": path}, check=True)
    return time.monotonic() - begun


def on_screen(page: Path) -> float:
    """Open the page; return the seconds until it shows the sentence.

    Raises:
        DataError: it does not.
    """
    program: Any = browser()
    try:
        begun = time.monotonic()
        program.get(page.as_uri())
        found = program.execute_script(READ)
        seconds = time.monotonic() - begun
        letters = "".join(found["text"].split())
        if "".join(SENTENCE.split()) not in letters or not found["tabs"] or not found["cells"]:
            raise DataError(f"{page}: expected the attention over {SENTENCE!r}, found {found['text'][:200]!r}")
    finally:
        program.quit()
    return seconds


def main() -> None:
    arguments = options(__doc__).parse_args()
    note = f"`python benchmarks/first_look.py`: an empty environment, the text {SENTENCE!r}. {machine(os.cpu_count())}."
    table = Table(arguments.out, ["command", "seconds"], note)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "environment", with_pip=True)
        programs = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
        found = {f"`{command}`": type_in(command, programs, folder) for command in COMMANDS}
        found["open `page.html` in a browser"] = on_screen(folder / "page.html")
    for command, seconds in {**found, "all": sum(found.values())}.items():
        table.add([command, round(seconds, 1)])


if __name__ == "__main__":
    try:
        main()
    except (DataError, subprocess.CalledProcessError) as error:
        sys.exit(f"first_look: {error}")
