"""Take the pictures of docs/screens: every view of the page, of models that the project's own commands have trained.

    python benchmarks/screens.py --runs runs
    python benchmarks/screens.py --runs runs --views areas text

RUNS holds the folders that multi30k.py, multi30k_transformer.py, sentences.py and scenes.py train into by default, and that of
`regard demo --out runs/demo`, or some of them: a view whose runs are not there is left out, and said so. Needs selenium, chromium and
chromedriver.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from view_pictures import browser, take

from regard.errors import DataError
from regard.viewer import read_records, save_page

ROOT = Path(__file__).resolve().parents[1]
SENTENCE = "Two dogs are running through the snow next to a red car."
REVIEW = "a gorgeous , witty , seductive movie that is never dull ."
PAIR = "A man is playing a guitar on the street\tA man plays an instrument outdoors"
DATE = "Friday, 3 March 2017"
SCENE = "scenes/data_convention_20000/test/000003.png"


class Screen(NamedTuple):
    """A view: of which runs, what they are given, and what the page shows first, as behind the # of its address."""

    runs: tuple[str, ...]
    given: tuple[str, ...]
    at: str = ""


SCREENS = {
    "matrix": Screen(("multi30k/multi30k_bahdanau",), ("--text", SENTENCE)),
    "flow": Screen(("multi30k/multi30k_bahdanau",), ("--text", SENTENCE)),
    "beam": Screen(("multi30k/multi30k_bahdanau",), ("--text", SENTENCE)),
    "heads": Screen(("multi30k/multi30k_transformer-1",), ("--text", SENTENCE)),
    "methods": Screen(("demo/run",), ("--text", DATE, "--method", "all"), "view=heads&map=2"),
    "areas": Screen(("multi30k/multi30k_transformer_area-1",), ("--text", SENTENCE), "map=9&head=4&row=4"),
    "compare": Screen(("multi30k/multi30k_transformer-1", "multi30k/multi30k_transformer_area-1"), ("--text", SENTENCE)),
    "table": Screen(("multi30k/multi30k_transformer_area-1",), ("--text", SENTENCE), "map=9&head=4&row=4"),
    "text": Screen(("sentences/sst2-structured-1",), ("--text", REVIEW)),
    "both": Screen(("sentences/sick_crossed-structured-1",), ("--text", PAIR)),
    "image": Screen(("scenes/scenes_area",), ("--image", SCENE), "row=2"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screens")
    parser.add_argument("--views", nargs="+", choices=SCREENS, default=list(SCREENS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    page = browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for view in arguments.views:
                runs, given, at = SCREENS[view]
                missing = [run for run in runs if not (arguments.runs / run / "model").is_dir()]
                if missing:
                    print(f"{view}: left out, there is no {arguments.runs / missing[0]}", file=sys.stderr)
                    continue
                records, html = Path(folder) / f"{view}.json", Path(folder) / f"{view}.html"
                # From there, so that a title holds no more of a path than it must.
                words = ["view", *runs, *given, "-o", str(records)]
                subprocess.run([sys.executable, "-m", "regard", *words], check=True, cwd=arguments.runs)
                save_page(read_records(records), html)
                picture = arguments.out / f"{view}.png"
                take(page, f"{html.as_uri()}#{at}&view={view}", "light", picture)
                # A page has few colours: a third of the bytes.
                Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)
                print(picture, flush=True)
    finally:
        page.quit()


if __name__ == "__main__":
    try:
        main()
    except DataError as error:
        sys.exit(f"screens: {error}")
