"""From an OPUS-MT folder to one's own documents: import, BLEU, training on 3,000 own pairs, BLEU, raw text and a document in and out.

    python benchmarks/opus.py --data FOLDER --work FOLDER
    python benchmarks/fill_tables.py

FOLDER of --data holds `multi30k/task1/raw`. No published model can be had without a download, so this trains a small one with Hugging
Face's classes on pairs of Multi30k without a word of sports, and writes it in the layout of OPUS-MT (opus_folder.py). The own pairs are
3,000 with such words; both kinds are tested on pairs that nothing was trained on. What --work holds is kept. Writes opus.json (BLEU),
opus_import.json (outputs and log-probabilities beside Hugging Face's `generate`) and opus_text.json (a document, before and after).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import opus_folder
import torch
from harness import RESULTS, machine, options, read, regard, write

from regard.data.parallel import SentencePair, read_pairs
from regard.metrics import bleu
from regard.tasks import Translator

OWN, GENERAL, TEST = 3_000, 15_000, 1_000
SPORTS = re.compile(
    r"\b(soccer|football|baseball|basketball|tennis|hockey|rugby|volleyball|golf|cricket|players?|teams?|games?|balls?|bicycles?|bik(es?|ers?)"
    r"|cyclists?|motorcycles?|rac(es?|ers?|ing)|skateboard(s|ers?|ing)?|surf(ers?|ing|boards?)?|ski(s|ers?|ing)?|snowboard(ers?|ing)?"
    r"|swim(mers?|ming)?|climb(s|ers?|ing)?|gymnasts?|karate|wrestling|boxing|athletes?|runners?)\b",
    re.IGNORECASE,
)
PIECES = 1_500
SIZES = {"dim": 128, "hidden": 256, "layers": 2, "heads": 4}
RATES = (0.0001, 0.001)
BEAM = 4
DOCUMENT = """# A day of sports

A man in a **blue shirt** is riding a bike. Two young girls are playing soccer in the sand.

- A baseball player throws the ball.
- Three people sit at a table, and a woman reads a book.
"""


def make_folder(folder: Path, pairs: list[SentencePair], epochs: int) -> None:
    """Train a Marian model with Hugging Face's classes and write it as OPUS-MT models are published; a finished folder is kept."""
    if (folder / "config.json").exists():
        return
    torch.manual_seed(1)
    config = opus_folder.published_config(opus_folder.write_tokenizer(folder, pairs, PIECES), **SIZES, beam_size=BEAM)
    model = opus_folder.new_model(config, dropout=0.2)
    opus_folder.train(model, opus_folder.encode(folder, pairs), epochs=epochs, tokens=1500, rate=2e-3, warm_up=200)
    opus_folder.write_model(folder, model, config)


def compare(folder: Path, run: Path, lines: list[str]) -> list[list[Any]]:
    """Compare the outputs and log-probabilities of both, greedy and with a beam; return a row for each."""
    rows, translator = [], Translator.open(run)
    for beam_size in (1, BEAM):
        theirs = opus_folder.generate(folder, lines, beam_size=beam_size)
        decoding = translator.run.config.decoding.model_copy(update={"beam_size": beam_size, "length_penalty": 0.0})
        ours = translator.translate(lines, decoding=decoding)
        same = [(own, other) for own, other in zip(ours, theirs, strict=True) if own.text == other.text]
        most = max(abs(own.hypotheses[0].score - other.score) for own, other in same)
        rows.append(["greedy" if beam_size == 1 else f"beam of {beam_size}", len(lines), len(same), f"{most:.1e}"])
        print(*rows[-1], flush=True)
    return rows


def evaluate(run: Path, work: Path, kind: str, *more: str) -> tuple[float, str | None]:
    """Evaluate a run on a test set; return BLEU, and with a baseline the gain over it with its interval."""
    report = work / f"{run.name}-{kind}.json"
    regard("evaluate", str(run), "--source", f"{work}/{kind}.en", "--target", f"{work}/{kind}.de", "--json", str(report), *more)
    found = read(report)
    score = next(score["value"] for score in found["scores"] if score["name"] == "BLEU")
    against = found.get("against")
    return round(score, 2), None if against is None else "{:+.2f} [{:+.2f}, {:+.2f}]".format(against["difference"], *against["interval"])


def tune(work: Path, rate: float) -> Path:
    """Train the imported run on the own pairs; a finished run is kept."""
    run = work / f"tuned-{rate}"
    files = ["--source", f"{work}/own.en", "--target", f"{work}/own.de"]
    regard("train", "translation", "--from", f"{work}/general", "--out", str(run), *files, f"training.learning_rate={rate}")
    return run


def score_rows(work: Path, tests: dict[str, list[SentencePair]]) -> list[list[Any]]:
    """Return BLEU on both test sets of the folder in Hugging Face, of the import, and of the runs trained on own pairs."""
    theirs = []
    for pairs in tests.values():
        sources, targets = (list(side) for side in zip(*pairs, strict=True))
        outputs = opus_folder.generate(work / "opus-mt-en-de", sources, beam_size=BEAM, length_penalty=1.0)
        theirs += [round(bleu([item.text for item in outputs], targets).value, 2), None]
    rows: list[list[Any]] = [["the folder, in Hugging Face", *theirs]]
    rows.append(["imported", *(cell for kind in tests for cell in evaluate(work / "general", work, kind))])
    for rate in RATES:
        run, baseline = tune(work, rate), ("--baseline", f"{work}/general")
        rows.append(
            [f"trained on own pairs, learning rate {rate}", *(cell for kind in tests for cell in evaluate(run, work, kind, *baseline))]
        )
        print(*rows[-1], flush=True)
    return rows


def translated(run: Path, document: Path) -> list[str]:
    """Return the lines of a translated document."""
    command = [sys.executable, "-m", "regard", "translate", str(run), "--document", str(document)]
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout.splitlines()


def text_rows(work: Path) -> list[list[str]]:
    """Return the lines of the document, as it is, translated by the import and by the run that learned fastest."""
    texts = [DOCUMENT.splitlines(), *(translated(run, work / "letter.md") for run in (work / "general", work / f"tuned-{RATES[-1]}"))]
    return [[f"`{line}`" for line in lines] for lines in zip(*texts, strict=True) if lines[0]]


def prepare(work: Path, pairs: list[SentencePair], lines: int, epochs: int) -> tuple[dict[str, list[SentencePair]], str]:
    """Make the folder, the files and the imported run; return the test sets and what the model is."""
    folder = work / "opus-mt-en-de"
    sports = [pair for pair in pairs if SPORTS.search(pair[0])]
    others = [pair for pair in pairs if not SPORTS.search(pair[0])]
    make_folder(folder, others[:GENERAL], epochs)
    tests = {"sports": sports[OWN : OWN + lines], "others": others[GENERAL : GENERAL + lines]}
    for name, some in {"own": sports[:OWN], **tests}.items():
        for side, language in enumerate(("en", "de")):
            (work / f"{name}.{language}").write_text("".join(pair[side] + "\n" for pair in some), encoding="utf-8")
    (work / "letter.md").write_text(DOCUMENT, encoding="utf-8")
    if not (work / "general").exists():
        regard("import", str(folder), "--from", "marian", "--out", f"{work}/general")
    size = f"{opus_folder.weights(folder) / 1e6:.1f} million weights and {opus_folder.entries(folder):,} entries"
    return tests, (
        f"`python benchmarks/opus.py`: no published model, but one of {size}, trained with Hugging Face's classes for {epochs} epochs on "
        f"{GENERAL:,} pairs of Multi30k en-de without a word of sports, in the layout of OPUS-MT."
    )


def main() -> None:
    parser = options(__doc__, out=RESULTS, epochs=12, lines=TEST)
    parser.add_argument("--data", type=Path, required=True, help="holds multi30k/task1/raw")
    parser.add_argument("--work", type=Path, required=True, help="for the folder, the runs and the files")
    given = parser.parse_args()
    torch.set_num_threads(1)
    work, raw = given.work, given.data / "multi30k" / "task1" / "raw"
    tests, about = prepare(work, read_pairs(raw / "train.en.gz", raw / "train.de.gz"), given.lines, given.epochs)
    rows = compare(work / "opus-mt-en-de", work / "general", [source for source, _ in tests["others"]])
    columns = ["decoding", "lines", "same translation", "largest difference of log-probability, nats"]
    note = f"{about} Pairs without sports, no length penalty: `generate` against `regard translate`; {machine(1, 'transformers')}."
    write(given.out / "opus_import.json", columns, rows, note)
    note = (
        f"{about} Own pairs: {OWN:,} with such a word, one run for each learning rate. Tested on {given.lines:,} other pairs of each kind, "
        f"raw text, beam {BEAM}. Gains over the import have their 95 % interval by paired bootstrap; "
        f"{machine(1, 'transformers', 'sacrebleu')}."
    )
    columns = ["model", "BLEU, sports", "gain, sports", "BLEU, no sports", "gain, no sports"]
    write(given.out / "opus.json", columns, score_rows(work, tests), note)
    write(given.out / "opus_text.json", ["letter.md", "imported", f"trained, learning rate {RATES[-1]}"], text_rows(work), about)


if __name__ == "__main__":
    main()
