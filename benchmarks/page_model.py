"""The page with the model inside: its translations beside those of the command line, its size, and its time for a sentence in a browser.

    python benchmarks/page_model.py --multi30k DATA --runs RUN ... --out docs/results/page_model.json

RUN: any translation run on Multi30k English to German; `export_families.py` compares every other kind of run. Headless Chromium opens each
page from its file, with every request refused.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import Table, machine, median, options
from peers import read_text
from view_pictures import browser

from regard.integrations.page_model import PageWeights, export_page
from regard.tasks.translation_prediction import Translator

WEIGHTS: tuple[PageWeights, ...] = ("float32", "float16")
COLUMNS = [
    *("model", "parameters", "weights", "page, MB", "without weights, MB", "beam", "sentences", "same text"),
    *("translation, ms", "with all views, ms"),
]
# Each line through the page's own functions: what it says, and how long that and the whole record take.
LOOP = """const found = [];
for (const line of arguments[0]) {
  const start = performance.now();
  const text = door.translate(line).hypotheses[0].text;
  const between = performance.now();
  door.translationRecord(line);
  found.push([text, between - start, performance.now() - between]);
}
return JSON.stringify(found);"""


def measure(driver: Any, page: Path, lines: list[str]) -> list[list[Any]]:
    """Return for each line its translation, and the milliseconds of it and of the record."""
    driver.get(page.as_uri())
    (script,) = re.findall(r"<script>(.*?)</script>", page.read_text(encoding="utf-8"), re.DOTALL)
    driver.execute_script(script.replace("return answer;", "window.door = { translate, translationRecord };\nreturn answer;"))
    driver.execute_script(LOOP, lines[:3])  # what is computed once, and the browser's compiler
    return json.loads(driver.execute_script(LOOP, lines))


def rows(driver: Any, run: Path, lines: list[str]) -> Iterator[list[Any]]:
    """Measure a run with each kind of weights."""
    translator = Translator.open(run)
    config = translator.run.config
    expected = [item.text for item in translator.translate(lines)]
    count = sum(parameter.numel() for parameter in translator.run.model.parameters())
    for weights in WEIGHTS:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "model.html"
            export_page(run, page, weights=weights)
            found = measure(driver, page, lines)
            text = page.read_text(encoding="utf-8")
        (inside,) = re.findall(r'id="regard-weights">([^<]*)<', text)
        sizes = [round(size / 1e6, 1) for size in (len(text.encode()), len(text.encode()) - len(inside))]
        same = sum(one == other for (one, _, _), other in zip(found, expected, strict=True))
        facts = [config.model.type, count, weights, *sizes, config.decoding.beam_size, len(lines), same]
        yield [*facts, *(median([each[place] for each in found], 0) for place in (1, 2))]


def main() -> None:
    """Measure every run with both kinds of weights."""
    parser = options(__doc__, threads=2, sentences=200)
    parser.add_argument("--multi30k", type=Path, required=True, help="folder with test_2016_flickr.en.gz")
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="runs on Multi30k")
    arguments = parser.parse_args()
    lines = read_text(arguments.multi30k / "test_2016_flickr.en.gz")[: arguments.sentences]
    driver: Any = browser()
    driver.set_script_timeout(600)
    chromium = driver.capabilities["browserVersion"]
    note = (
        f"`python benchmarks/page_model.py`: Multi30k en-de, test_2016_flickr, medians of a sentence, headless Chromium {chromium}; "
        f"{machine(1, 'selenium')}."
    )
    table = Table(arguments.out, COLUMNS, note, key=3)
    try:
        for run in arguments.runs:
            for row in rows(driver, run, lines):
                table.add(row)
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
