"""Take a picture of every view of the page, from files of records, with a headless Chromium.

    python benchmarks/view_pictures.py records.json [more.json ...] --out docs/screens
    python benchmarks/view_pictures.py records.json --views matrix heads --dark
    python benchmarks/view_pictures.py records.json --views areas --at "map=9&head=2&row=5"

For each view the first record that has it is taken, or the one that `--example` names (from 1, over all files). The files come from
`regard view RUN -o records.json`, `write_records` or a server; needs selenium, chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.errors import DataError
from regard.viewer import read_records, save_page

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # without a network
)
SIZE = (1280, 860)
BOTTOM = """const all = ['#view', '#focus', '.bar'].map((name) => document.querySelector(name)).filter((node) => !node.hidden);
            return Math.ceil(Math.max(...all.map((node) => node.getBoundingClientRect().bottom)) + scrollY)"""


def browser() -> Any:
    """Start a browser that is not seen.

    Raises:
        DataError: there is none; says what to install.
    """
    from selenium import webdriver

    program, driver = (next(filter(None, map(shutil.which, names)), None) for names in (("chromium", "google-chrome"), ("chromedriver",)))
    if not program or not driver:
        raise DataError("no chromium with its chromedriver on PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--window-size={SIZE[0]},{SIZE[1]}"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))


def take(page: Any, address: str, theme: str, path: Path) -> None:
    """Write one view of one example as PNG, as tall as what it shows."""
    page.get("about:blank")
    page.get(address)
    page.set_window_size(*SIZE)
    page.execute_script("document.getElementById('theme').value = arguments[0]", theme)
    page.execute_script("document.getElementById('theme').dispatchEvent(new Event('change'))")
    # The frame after the next: a canvas has been drawn by then.
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])))")
    height = min(page.execute_script(BOTTOM) + 28, 1600)
    clip = {"x": 0, "y": 0, "width": page.execute_script("return innerWidth"), "height": height, "scale": 1}
    shot = page.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip, "captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(shot["data"]))


def main() -> None:
    """Read the files, find who has which view, and take them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("views"), help="the folder to write to")
    parser.add_argument("--views", nargs="+", help="only these; without, all there are")
    parser.add_argument("--example", type=int, help="only this example, from 1")
    parser.add_argument("--at", default="", help="what the page shows first, as it is written behind the # of its address")
    parser.add_argument("--dark", action="store_true", help="the dark page")
    given = parser.parse_args()
    records = [record for path in given.files for record in read_records(path)]
    given.out.mkdir(parents=True, exist_ok=True)
    page = browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            save_page(records, Path(folder) / "page.html")
            address = (Path(folder) / "page.html").as_uri()
            examples = range(len(records)) if given.example is None else [given.example - 1]
            for view, example in places(page, address, examples).items():
                if not given.views or view in given.views:
                    path = given.out / f"{view}{'-dark' if given.dark else ''}.png"
                    take(page, f"{address}#example={example + 1}&view={view}&{given.at}", "dark" if given.dark else "light", path)
                    print(f"{path}: example {example + 1}, {path.stat().st_size:,} bytes")
    finally:
        page.quit()


def places(page: Any, address: str, examples: Iterable[int]) -> dict[str, int]:
    """Return for each view the first example that has it."""
    found: dict[str, int] = {}
    for example in examples:
        page.get("about:blank")
        page.get(f"{address}#example={example + 1}")
        for view in page.execute_script("return [...document.querySelectorAll('[role=tab]')].map((tab) => tab.dataset.view)"):
            found.setdefault(view, example)
    return found


if __name__ == "__main__":
    try:
        main()
    except DataError as error:
        sys.exit(f"view_pictures: {error}")
