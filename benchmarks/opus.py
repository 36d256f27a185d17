"""From an OPUS-MT folder to one's own documents: import, BLEU, training on 3,000 own pairs, BLEU, raw text and a document in and out.

    python benchmarks/opus.py --data FOLDER --work FOLDER
    python benchmarks/fill_tables.py

FOLDER of --data holds `multi30k/task1/raw`. No published model can be had without a download, so this trains a small one with Hugging
Face's classes, on pairs 3,001 to 11,000 of Multi30k, and writes it in the layout of OPUS-MT (opus_folder.py). The own pairs are the first
3,000. What --work holds is kept. Writes opus.json (BLEU), opus_import.json (outputs and log-probabilities beside Hugging Face's
`generate`) and opus_text.json (a document, before and after).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import opus_folder
import torch
from harness import RESULTS, machine, options, read, regard, write

from regard.data.parallel import SentencePair, read_pairs
from regard.metrics import bleu, chrf
from regard.tasks import Translator

OWN, GENERAL = 3_000, 8_000
PIECES = 1_500
SIZES = {"dim": 128, "hidden": 256, "layers": 2, "heads": 4}
RATES = (0.0001, 0.001)
BEAM = 4
DOCUMENT = """# A day at the beach

A man in a **blue shirt** is standing on the beach. Two young girls are playing in the sand.

- A brown dog runs through the water.
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


def evaluate(run: Path, work: Path, *more: str) -> dict[str, Any]:
    """Evaluate a run on the test set; return what the command reports."""
    report = run.with_suffix(".json")
    regard("evaluate", str(run), "--source", f"{work}/test.en", "--target", f"{work}/test.de", "--json", str(report), *more)
    return read(report)


def tune(work: Path, rate: float) -> Path:
    """Train the imported run on the own pairs; a finished run is kept."""
    run = work / f"tuned-{rate}"
    files = ["--source", f"{work}/own.en", "--target", f"{work}/own.de"]
    regard("train", "translation", "--from", f"{work}/general", "--out", str(run), *files, f"training.learning_rate={rate}")
    return run


def score_rows(work: Path, pairs: list[SentencePair]) -> list[list[Any]]:
    """Return BLEU and chrF of the folder in Hugging Face, of the import, and of the runs trained on own pairs."""
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    theirs = [item.text for item in opus_folder.generate(work / "opus-mt-en-de", sources, beam_size=BEAM, length_penalty=1.0)]
    rows = [["the folder, in Hugging Face", round(bleu(theirs, targets).value, 2), round(chrf(theirs, targets).value, 2), None]]
    for title, run in [("imported", work / "general")] + [
        (f"trained on own pairs, learning rate {rate}", tune(work, rate)) for rate in RATES
    ]:
        report = evaluate(run, work, *(["--baseline", f"{work}/general"] if title != "imported" else []))
        scores = {score["name"]: score["value"] for score in report["scores"] if "value" in score}
        against = report.get("against")
        gain = None if against is None else "{:+.2f} [{:+.2f}, {:+.2f}]".format(against["difference"], *against["interval"])
        rows.append([title, round(scores["BLEU"], 2), round(scores["chrF2"], 2), gain])
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


def prepare(work: Path, pairs: list[SentencePair], test: list[SentencePair], epochs: int) -> str:
    """Make the folder, the files and the imported run; return what the model is."""
    folder = work / "opus-mt-en-de"
    make_folder(folder, pairs[OWN : OWN + GENERAL], epochs)
    for name, some in (("own", pairs[:OWN]), ("test", test)):
        for side, language in enumerate(("en", "de")):
            (work / f"{name}.{language}").write_text("".join(pair[side] + "\n" for pair in some), encoding="utf-8")
    (work / "letter.md").write_text(DOCUMENT, encoding="utf-8")
    if not (work / "general").exists():
        regard("import", str(folder), "--from", "marian", "--out", f"{work}/general")
    size = f"{opus_folder.weights(folder) / 1e6:.1f} million weights and {opus_folder.entries(folder):,} entries"
    return (
        f"`python benchmarks/opus.py`: no published model, but one of {size}, trained with Hugging Face's classes for {epochs} epochs on "
        f"{GENERAL:,} pairs of Multi30k en-de, in the layout of OPUS-MT."
    )


def main() -> None:
    parser = options(__doc__, out=RESULTS, epochs=12, lines=1000)
    parser.add_argument("--data", type=Path, required=True, help="holds multi30k/task1/raw")
    parser.add_argument("--work", type=Path, required=True, help="for the folder, the runs and the files")
    given = parser.parse_args()
    torch.set_num_threads(1)
    work, raw = given.work, given.data / "multi30k" / "task1" / "raw"
    pairs, test = (read_pairs(raw / f"{name}.en.gz", raw / f"{name}.de.gz") for name in ("train", "test_2016_flickr"))
    test = test[: given.lines]
    about = prepare(work, pairs, test, given.epochs)
    rows = compare(work / "opus-mt-en-de", work / "general", [source for source, _ in test])
    columns = ["decoding", "lines", "same translation", "largest difference of log-probability, nats"]
    note = f"{about} test_2016_flickr, no length penalty: `generate` against `regard translate`; {machine(1, 'transformers')}."
    write(given.out / "opus_import.json", columns, rows, note)
    note = (
        f"{about} Own pairs: {OWN:,} others of Multi30k, one run for each learning rate. test_2016_flickr, raw text, beam {BEAM}. The gain "
        f"over the import has its 95 % interval by paired bootstrap; {machine(1, 'transformers', 'sacrebleu')}."
    )
    write(given.out / "opus.json", ["model", "BLEU", "chrF", "gain in BLEU"], score_rows(work, test), note)
    write(given.out / "opus_text.json", ["letter.md", "imported", f"trained, learning rate {RATES[-1]}"], text_rows(work), about)


if __name__ == "__main__":
    main()
