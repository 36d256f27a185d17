"""The page with the model inside: its outputs beside those of the command line, its size, and its time for a sentence in a browser.

    python benchmarks/page_model.py --multi30k DATA --runs RUN ... --out docs/results/page_model.json
    python benchmarks/page_model.py --families FOLDER --out docs/results/page_model.json

RUN: any translation run on Multi30k English to German. FOLDER: small models of each family are trained there on generated dates, and
translate held-out dates. Headless Chromium opens each page from its file, with every request refused.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from explain import DATA, MODELS, SETTINGS
from harness import Table, machine, median, options
from peers import read_text
from view_pictures import browser

from regard.config import TranslationConfig, load_config
from regard.data.lines import read_lines
from regard.integrations.page_model import PageWeights, export_page
from regard.tasks import generate, train_translation
from regard.tasks.run_folder import read_config
from regard.tasks.translation_prediction import Translator

WEIGHTS: tuple[PageWeights, ...] = ("float32", "float16")
FAMILIES = {**MODELS, "areas, learned keys": [*MODELS["areas"], "model.area.key_mode=features"]}
UPDATES = 400
COLUMNS = [
    *("data", "model", "parameters", "weights", "page, MB", "without weights, MB", "beam", "sentences", "same text"),
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


class Case(NamedTuple):
    """A run, and the lines that it translates."""

    data: str
    name: str
    run: Path
    lines: list[str]


def families(folder: Path, count: int) -> Iterator[Case]:
    """Train a small model of each family on generated dates, where it is not there."""
    data = folder / "dates"
    if not data.exists():
        generate("dates", data, train=10_000, test=1_000, seed=1)
    for name, settings in FAMILIES.items():
        run = folder / name.replace(", ", "-").replace(" ", "-")
        if not (run / "model").exists():
            files = [f"data.source={data}/train.source", f"data.target={data}/train.target"]
            more = [*DATA["dates"], *settings, *SETTINGS, "decoding.beam_size=5", f"training.max_updates={UPDATES}"]
            train_translation(load_config(None, [*files, *more]), run)
        yield Case("dates", name, run, read_lines(data / "test.source")[:count])


def measure(driver: Any, page: Path, lines: list[str]) -> list[list[Any]]:
    """Return for each line its translation, and the milliseconds of it and of the record."""
    driver.get(page.as_uri())
    (script,) = re.findall(r"<script>(.*?)</script>", page.read_text(encoding="utf-8"), re.DOTALL)
    driver.execute_script(script.replace("return answer;", "window.door = { translate, translationRecord };\nreturn answer;"))
    driver.execute_script(LOOP, lines[:3])  # what is computed once, and the browser's compiler
    return json.loads(driver.execute_script(LOOP, lines))


def rows(driver: Any, case: Case) -> Iterator[list[Any]]:
    """Measure a run with each kind of weights."""
    translator, config = Translator.open(case.run), read_config(case.run, TranslationConfig)
    expected = [item.text for item in translator.translate(case.lines)]
    count = sum(parameter.numel() for parameter in translator.run.model.parameters())
    for weights in WEIGHTS:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "model.html"
            export_page(case.run, page, weights=weights)
            found = measure(driver, page, case.lines)
            text = page.read_text(encoding="utf-8")
        (inside,) = re.findall(r'id="regard-weights">([^<]*)<', text)
        sizes = [round(size / 1e6, 1) for size in (len(text.encode()), len(text.encode()) - len(inside))]
        same = sum(one == other for (one, _, _), other in zip(found, expected, strict=True))
        facts = [case.data, case.name, count, weights, *sizes, config.decoding.beam_size, len(case.lines), same]
        yield [*facts, *(median([each[place] for each in found], 0) for place in (1, 2))]


def main() -> None:
    """Measure every run with both kinds of weights."""
    parser = options(__doc__, threads=2, sentences=200)
    parser.add_argument("--multi30k", type=Path, help="folder with test_2016_flickr.en.gz")
    parser.add_argument("--runs", type=Path, nargs="+", default=[], help="runs on Multi30k")
    parser.add_argument("--families", type=Path, help="folder for small runs of each family")
    arguments = parser.parse_args()
    cases: list[Case] = []
    if arguments.multi30k:
        lines = read_text(arguments.multi30k / "test_2016_flickr.en.gz")[: arguments.sentences]
        cases += [Case("Multi30k", read_config(run, TranslationConfig).model.type, run, lines) for run in arguments.runs]
    if arguments.families:
        cases += families(arguments.families, arguments.sentences)
    driver: Any = browser()
    driver.set_script_timeout(600)
    chromium = driver.capabilities["browserVersion"]
    note = f"`python benchmarks/page_model.py`, medians of a sentence, headless Chromium {chromium}; {machine(1, 'selenium')}."
    table = Table(arguments.out, COLUMNS, note, key=4)
    try:
        for case in cases:
            for row in rows(driver, case):
                table.add(row)
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
