"""The demonstration: train a small attention model on dates, and draw its attention."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard import progress
from regard.config import TranslationConfig, load_config
from regard.data.lines import write_files
from regard.data.parallel import read_pairs
from regard.errors import TrainingError
from regard.tasks.synthetic_data import generate
from regard.tasks.translation_evaluation import evaluate_translation, read_links
from regard.tasks.translation_prediction import Translator
from regard.tasks.translation_training import train_translation
from regard.viewer import render_alignment, save_page, save_picture

SHOWN = 12


def demo_config(folder: Path) -> TranslationConfig:
    """Return the configuration of the demonstration: additive attention over the characters of a written date."""
    settings = ["vocabulary.kind=character", "vocabulary.size=1000", "vocabulary.shared=false", "data.valid_size=500"]
    settings += ["model.embed_dim=48", "model.encoder_dim=64", "model.decoder_dim=128", "model.readout_dim=96", "model.dropout=0.1"]
    settings += ["model.attention.score=additive", "model.attention.attention_dim=64", "decoding.beam_size=1", "decoding.batch_size=200"]
    settings += ["training.epochs=5", "training.batch_tokens=7000", "training.metric=exact_match", "training.log_every=100"]
    settings += ["training.learning_rate=0.004", "training.schedule=cosine", "training.warmup_updates=100"]
    return load_config(None, settings, base={"data": {side: str(folder / f"train.{side}") for side in ("source", "target")}})


def run_demo(folder: str | Path, *, say: Callable[[str], None] = print, color: bool = False, width: int = 100) -> dict[str, Any]:
    """Generate dates, train on them, score the held-out ones, and write an alignment as text, picture and page.

    Args:
        folder: everything goes there: data/, run/, alignment.png, alignment.svg, page.html, result.json.
        say: takes a line of the results at a time.
        color: use colours in the drawn alignment.
        width: columns of the terminal.

    Returns:
        What `result.json` holds: scores on 2,000 held-out dates and the seconds taken.

    Raises:
        TrainingError: training was interrupted.
        RegardError: the folder cannot be written, or holds another run.
    """
    folder = Path(folder)
    started = time.perf_counter()
    progress.message("generating 30,000 training dates in 24 locales, and 2,000 held-out dates")
    with progress.stage("Generating dates"):
        generate("dates", folder / "data", train=30_000, test=2_000, seed=1)
    config = demo_config(folder / "data")
    result = train_translation(config, folder / "run")
    if result.interrupted:
        error = TrainingError("interrupted; the same command resumes it")
        error.exit_code = 128 + result.interrupted
        raise error
    translator = Translator.open(folder / "run")
    pairs = read_pairs(folder / "data" / "test.source", folder / "data" / "test.target")
    evaluation = evaluate_translation(translator, pairs, links=read_links(folder / "data" / "test.links", "character"))
    figures = {score.name: score for score in evaluation.scores}
    sources = [pair[0] for pair in pairs[:SHOWN]]
    translations = translator.translate(sources, need_attention=True)
    records = [record for line, item in zip(sources, translations, strict=True) if (record := translator.record(line, item)) is not None]
    say("")
    say(render_alignment(records[0], width=width, color=color))
    with progress.stage("Writing the pictures and the page"):
        save_picture(records[0], folder / "alignment.png")
        save_picture(records[0], folder / "alignment.svg")
        save_page(records, folder / "page.html")
    seconds = time.perf_counter() - started
    exact, error = figures["exact match"], figures["AER"]
    say("")
    say(f"exact match on {len(pairs):,} held-out dates: {exact.value:.2f} %")
    say(f"attention on the characters that decide: {100 - error.value:.1f} % of the digits")
    say(f"{seconds:.0f} seconds; look at {folder / 'page.html'} in a browser, or {folder / 'alignment.png'}")
    summary = {"exact_match": exact.value, "alignment_error_rate": error.value, "seconds": seconds, "updates": result.step}
    write_files({folder / "result.json": (json.dumps(summary, indent=1) + "\n").encode()})
    return summary
