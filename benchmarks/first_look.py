"""Time a user's way from a wheel to the attention over a sentence of one's own, and to a model that runs where there is no Python.

    python benchmarks/first_look.py --out docs/results/first_look.json

Builds the wheel, makes an empty environment, types the commands of the table below into it, and opens the page of the view in a headless
Chromium without a network, where it reads back the sentence and finds cells. Then it copies the page with the model inside into an empty
folder, opens it there, types the sentence, and compares the output with that of `regard translate`. The time of `pip install` is that of
this machine's package index, too.
"""

from __future__ import annotations

import os
import shlex
import shutil
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
COMMANDS = (
    "pip wheel --no-deps --wheel-dir . {root}",
    "pip install {wheel}",
    "regard demo --out runs/demo",
    f'regard view runs/demo/run --text "{SENTENCE}" -o page.html',
    "regard export runs/demo/run --format html -o model.html",
)
READ = """const text = document.getElementById('main').innerText, tabs = document.querySelectorAll('[role=tab]').length;
          return {text, tabs, cells: document.querySelectorAll('#view rect, #view td, #view canvas').length}"""
TYPE = """const [sentence, done] = arguments, live = document.getElementById('live');
          document.getElementById('text').value = sentence;
          document.getElementById('ask').click();
          const wait = () => (live.getAttribute('aria-busy') === 'false' ? done() : setTimeout(wait, 5));
          wait();"""


def type_in(command: str, programs: Path, folder: Path, *, given: str = "") -> tuple[float, str]:
    """Run a command of the environment in a folder; return its seconds and its output."""
    path = os.pathsep.join([str(programs), os.environ.get("PATH", "")])
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    print("$", command, flush=True)
    words = shlex.split(command)
    begun = time.monotonic()
    done = subprocess.run(
        [str(programs / words[0]), *words[1:]],
        cwd=folder,
        env={**environment, "PATH": path},
        input=given,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return time.monotonic() - begun, done.stdout


def on_screen(page: Path, wanted: str, *, typed: bool = False) -> float:
    """Open the page, and type the sentence where it is not there; return the seconds until it shows what is wanted.

    Raises:
        DataError: it does not.
    """
    program: Any = browser()
    try:
        begun = time.monotonic()
        program.get(page.as_uri())
        if typed:
            program.execute_async_script(TYPE, SENTENCE)
        found = program.execute_script(READ)
        seconds = time.monotonic() - begun
        letters = "".join(found["text"].split())
        if "".join(wanted.split()) not in letters or not found["tabs"] or not found["cells"]:
            raise DataError(f"{page}: expected {wanted!r} and its attention, found {found['text'][:200]!r}")
    finally:
        program.quit()
    return seconds


def main() -> None:
    arguments = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, elsewhere = Path(name), Path(name, "elsewhere")
        venv.create(folder / "environment", with_pip=True)
        programs = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
        found = dict[str, float]()
        for command in COMMANDS:
            wheel = next((path.name for path in folder.glob("*.whl")), "")
            seconds, _ = type_in(command.format(root=ROOT, wheel=wheel), programs, folder)
            found[f"`{command.format(root='.', wheel=wheel)}`"] = seconds
        found["open `page.html` in a browser"] = on_screen(folder / "page.html", SENTENCE)
        _, output = type_in("regard translate runs/demo/run", programs, folder, given=f"{SENTENCE}\n")
        elsewhere.mkdir()
        shutil.copy(folder / "model.html", elsewhere)
        found["open `model.html` in a browser elsewhere and type the text"] = on_screen(elsewhere / "model.html", output, typed=True)
    note = (
        f"`python benchmarks/first_look.py`: an empty environment, the text {SENTENCE!r}, a browser without a network. The model in the "
        f"page and `regard translate` said the same: {output.strip()!r}. {machine(os.cpu_count())}."
    )
    table = Table(arguments.out, ["command", "seconds"], note)
    for command, seconds in {**found, "all": sum(found.values())}.items():
        table.add([command, round(seconds, 1)])


if __name__ == "__main__":
    try:
        main()
    except (DataError, subprocess.CalledProcessError) as error:
        sys.exit(f"first_look: {error}")
