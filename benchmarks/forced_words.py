"""What forced words cost and bring: sentences a second and BLEU with terms taken from the reference.

    python benchmarks/forced_words.py --run RUN --source test.en --target test.de
    python benchmarks/fill_tables.py

Asks for 0, 1 and 3 words of each reference, drawn at random but for the first word of a line, as Post and Vilar (2018) do. All are
measured interleaved, on one thread, with a beam of 5. Writes forced_words.json.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import torch
from harness import RESULTS, Table, interleaved, machine, median, options, ratio, seconds

from regard.data.parallel import read_pairs
from regard.metrics import bleu
from regard.tasks import Translation, Translator
from regard.tasks.forced_text import Glossary, Term

WORD = re.compile(r"\w+")
COUNTS = (0, 1, 3)
COLUMNS = ["terms per line", "BLEU", "lines/s", "time over none", "terms", "placed"]


def glossaries(pairs: list[tuple[str, str]], count: int) -> list[Glossary]:
    """Return for each pair so many words of its target, each as the translation of some word of its source."""
    chance = random.Random(1)
    found: list[Glossary] = []
    for source, target in pairs:
        wanted = list(dict.fromkeys(WORD.findall(target)[1:]))
        chance.shuffle(wanted)
        found.append(Glossary([Term(word, want) for word, want in zip(dict.fromkeys(WORD.findall(source)), wanted[:count], strict=False)]))
    return found


def main() -> None:
    """Measure all, and write the table."""
    parser = options(__doc__, out=RESULTS / "forced_words.json", rounds=5)
    for name in ("run", "source", "target"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    translator, pairs = Translator.open(given.run), read_pairs(given.source, given.target)
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    decoding = translator.run.config.decoding.model_copy(update={"beam_size": 5})
    terms = {count: glossaries(pairs, count) for count in COUNTS}
    outputs: dict[int, list[Translation]] = {}

    def measure(count: int) -> float:
        def work() -> None:
            outputs[count] = translator.translate(sources, decoding=decoding, terms=terms[count])

        return seconds(work)

    contenders = {str(count): lambda _, count=count: measure(count) for count in COUNTS}
    times = interleaved(contenders, given.rounds, warm_up=1)
    note = f"`python benchmarks/forced_words.py`: {len(pairs)} lines, beam 5, one thread, median of {given.rounds} rounds; {machine()}."
    table = Table(given.out, COLUMNS, note, key=1)
    for count in COUNTS:
        asked = sum(len(own.find(line)) for own, line in zip(terms[count], sources, strict=True))
        placed = asked - sum(len(item.unplaced) for item in outputs[count])
        score = round(bleu([item.text for item in outputs[count]], targets).value, 1)
        slower = ratio(times[str(count)], times["0"])
        rate = round(len(pairs) / median(times[str(count)], 4), 1)
        table.add([count, score, rate, f"{slower.median} ({slower.least} to {slower.most})", asked, placed], {"seconds": times[str(count)]})


if __name__ == "__main__":
    main()
