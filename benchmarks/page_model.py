"""The page with the model inside: its outputs beside those of the command line, its size, and its time for a sentence in a browser.

    python benchmarks/page_model.py --multi30k DATA --runs RUN ... --out docs/results/page_model.json

RUN: any translation run on Multi30k English to German. Headless Chromium opens each page from its file, with every request refused.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from harness import Table, machine, median, options
from peers import read_text

from regard.config import TranslationConfig
from regard.integrations.page_model import PageWeights, export_page
from regard.tasks.run_folder import read_config
from regard.tasks.translation_prediction import Translator

WEIGHTS: tuple[PageWeights, ...] = ("float32", "float16")
COLUMNS = ["run", "model", "parameters", "weights", "page, MB", "beam", "sentences", "same text", "translation, ms", "with all views, ms"]
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND")
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


def main() -> None:
    """Measure every run with both kinds of weights."""
    from selenium import webdriver

    parser = options(__doc__, rounds=1, threads=2)
    parser.add_argument("--multi30k", type=Path, required=True, help="folder with test_2016_flickr.en.gz")
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    parser.add_argument("--sentences", type=int, default=200)
    arguments = parser.parse_args()
    lines = read_text(arguments.multi30k / "test_2016_flickr.en.gz")[: arguments.sentences]
    settings = webdriver.ChromeOptions()
    for flag in FLAGS:
        settings.add_argument(flag)
    driver = webdriver.Chrome(options=settings)
    driver.set_script_timeout(600)
    note = (
        f"`python benchmarks/page_model.py`, medians, headless Chromium {driver.capabilities['browserVersion']}; {machine(1, 'selenium')}."
    )
    table = Table(arguments.out, COLUMNS, note, key=4)
    for run in arguments.runs:
        translator, config = Translator.open(run), read_config(run, TranslationConfig)
        expected = [item.text for item in translator.translate(lines)]
        count = sum(parameter.numel() for parameter in translator.run.model.parameters())
        for weights in WEIGHTS:
            with tempfile.TemporaryDirectory() as folder:
                page = Path(folder) / "model.html"
                export_page(run, page, weights=weights)
                found = measure(driver, page, lines)
                size = round(page.stat().st_size / 1e6, 1)
            same = sum(one == other for (one, _, _), other in zip(found, expected, strict=True))
            facts = [run.name, config.model.type, count, weights, size, config.decoding.beam_size, len(lines), same]
            table.add([*facts, *(median([each[place] for each in found], 0) for place in (1, 2))])
    driver.quit()


if __name__ == "__main__":
    main()
