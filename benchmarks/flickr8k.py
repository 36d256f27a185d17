"""Train and measure captioners on Flickr8k at 96 x 96, encoder from scratch, each beside its image-blind control.

    python benchmarks/flickr8k.py --data FOLDER --runs runs/flickr8k --out docs/results

FOLDER holds `flickr8k` with Flickr8k.token.txt, the three lists of images and flickr8k_96px.tar. Every training is a `regard` command: a
run that is there already is resumed, or measured if it is finished. A control is the same model trained with every image's captions
beside another image: what it scores can be had without looking. Writes flickr8k.json: five references of each of 1,000 test images.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import regard
from regard.data.captions import read_captions
from regard.tasks.caption import Captioner
from regard.tasks.caption_evaluate import evaluate_captioning

ROOT = Path(__file__).resolve().parents[1]
COMMON = [
    "image.size=96",
    "model.encoder.channels=[32, 64, 128]",
    "model.encoder.depth=1",
    "model.encoder.dropout=0.1",
    "vocabulary.kind=word",
    "vocabulary.min_count=5",
    "data.max_length=30",
    "data.together=5",
    "training.batch_tokens=1800",
    "training.precision=bf16",
    "training.learning_rate=0.001",
    "training.schedule=cosine",
    "training.warmup=200",
    "training.final_fraction=0.02",
    "training.metric=cider",
    "training.keep=1",
    "decoding.max_length=25",
    "decoding.beam=3",
]
SHOW = [
    "model.type=show",
    "model.embed_dim=256",
    "model.decoder_dim=384",
    "model.attention_dim=128",
    "model.feature_dim=192",
    "model.dropout=0.4",
]
HARD = ["model.attention=hard", "model.hard.reward=step", "model.hard.reward_weight=0.3", "model.hard.half_soft=0.8"]
TRANSFORMER = [
    "model.type=transformer",
    "model.embed_dim=256",
    "model.ff_dim=768",
    "model.num_heads=4",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "model.dropout=0.2",
]
MODELS: dict[str, tuple[str, list[str]]] = {
    "soft": ("Show, Attend and Tell, soft", [*SHOW, "model.doubly_stochastic=1.0", "model.penalty=mean"]),
    "hard": ("Show, Attend and Tell, hard", [*SHOW, *HARD]),
    "transformer": ("Transformer", TRANSFORMER),
    "area_2x2": ("Transformer, areas of 2 x 2", [*TRANSFORMER, "model.area.height=2", "model.area.width=2"]),
    "area_3x3": ("Transformer, areas of 3 x 3", [*TRANSFORMER, "model.area.height=3", "model.area.width=3"]),
}
SHOWN = ("CIDEr-D", "BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L")


def split(folder: Path, name: str) -> str:
    """Return the list of a split's images."""
    return str(folder / f"Flickr_8k.{name}Images.txt")


def train(run: Path, folder: Path, settings: Sequence[str], length: Sequence[str]) -> None:
    """Train, or resume, with a `regard` command; its output goes through."""
    words = ["train", "captioning", "--captions", str(folder / "Flickr8k.token.txt"), "--images", str(folder / "flickr8k_96px.tar")]
    words += ["--split", split(folder, "train"), "--valid-split", split(folder, "dev"), "--out", str(run)]
    words += [*COMMON, *settings, *length, f"data.cache={run.parent / 'images'}"]
    print("$ regard", *words, flush=True)
    subprocess.run([sys.executable, "-m", "regard", *words], check=True)


def measure(run: Path, folder: Path, limit: int | None) -> dict[str, Any]:
    """Return the scores of a finished run on the test images, with its updates and minutes."""
    report = run / ("test.json" if limit is None else f"test_{limit}.json")
    if not report.exists():
        images = str(folder / "flickr8k_96px.tar")
        examples = read_captions(folder / "Flickr8k.token.txt", images, split=split(folder, "test"))
        evaluation = evaluate_captioning(Captioner.open(run), examples if limit is None else examples[:limit])
        captions = {example.id: item.text for example, item in zip(examples, evaluation.captions, strict=False)}
        report.write_text(json.dumps({**evaluation.to_json(), "captions": captions}, indent=1) + "\n", encoding="utf-8")
    events = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    figures = {score["name"]: score["value"] for score in json.loads(report.read_text(encoding="utf-8"))["scores"]}
    figures["minutes"] = max((event["seconds"] for event in events if "seconds" in event), default=0.0) / 60
    return figures | {"updates": max(event["step"] for event in events)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/flickr8k"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--updates", type=int, help="stop each run after so many")
    parser.add_argument("--limit", type=int, help="test images; without, all")
    parser.add_argument("settings", nargs="*", help="key.sub=value, for all runs")
    arguments = parser.parse_args()
    folder = arguments.data / "flickr8k"
    length = [f"training.epochs={arguments.epochs}", *([f"training.max_updates={arguments.updates}"] if arguments.updates else [])]
    arguments.runs.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in arguments.models:
        title, settings = MODELS[name]
        found = []
        for blind in (False, True):
            run = arguments.runs / (f"{name}_blind" if blind else name)
            more = ["data.shuffle_images=true"] if blind else []
            train(run, folder, [*settings, *arguments.settings, *more], length)
            found.append(measure(run, folder, arguments.limit))
        own, control = found
        figures = [round(100 * own[key], 1) for key in SHOWN]
        gain = None if control["CIDEr-D"] == 0 else round(100 * (own["CIDEr-D"] / control["CIDEr-D"] - 1))
        rows.append([title, *figures, round(100 * control["CIDEr-D"], 1), gain, own["updates"], round(own["minutes"])])
        print(rows[-1], flush=True)
    columns = ["model", *SHOWN, "CIDEr-D of its control", "gain in %", "updates", "minutes"]
    note = (
        "`python benchmarks/flickr8k.py`: Flickr8k, images of 96 x 96, encoder from scratch, 12 x 12 cells that see 43 pixels each, beam "
        "3, five references, scores times 100. A control is the same model trained with images shuffled between examples. Minutes are the "
        f"wall time of the run that saw its images; {platform.machine()}, torch {torch.__version__}, regard {regard.__version__}."
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"columns": columns, "rows": rows, "note": note}, indent=1, ensure_ascii=False)
    (arguments.out / "flickr8k.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
