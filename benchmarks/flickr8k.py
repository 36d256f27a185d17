"""The captioners on Flickr8k, each beside its image-blind control, and the papers' tables: what two studies have reached.

    regard train captioning --config configs/flickr8k_words.yaml ... --out runs/flickr8k_words
    regard compare studies/xu2015.yaml --data FOLDER --out runs/xu2015
    regard compare studies/li2018_captions.yaml --data FOLDER --out runs/li2018_captions
    python benchmarks/flickr8k.py --runs runs --data FOLDER

A control is the same model trained with every image's captions beside another image: what it scores can be had without looking. Writes
flickr8k.json, and flickr8k_published.json with Table 1 of Xu et al. 2015 and Table 5 of Li et al. 2018. With --data captions are made anew:
for METEOR, which needs Java and `pip install '.[coco]'`, and of the first ten images of coco_mini, to look at (coco_mini.json).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import RESULTS, machine, options, read, training_of, write

from regard.data.captions import read_captions
from regard.tasks.captioning_evaluation import evaluate_captioning
from regard.tasks.captioning_prediction import Captioner

MODELS = {
    ("xu2015", "soft"): "Show, Attend and Tell, soft",
    ("xu2015", "hard"): "Show, Attend and Tell, hard",
    ("li2018_captions", "regular"): "Transformer",
    ("li2018_captions", "area_2x2"): "Transformer, areas of 2 x 2",
    ("li2018_captions", "area_3x3"): "Transformer, areas of 3 x 3",
    ("li2018_captions", "area_3x3_features"): "Transformer, areas of 3 x 3, Eq. 9",
}
EXAMPLES = [("xu2015", "soft"), ("xu2015", "hard"), ("li2018_captions", "regular"), ("li2018_captions", "area_3x3")]
SHOWN = ("CIDEr-D", "BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "METEOR")
VGG = "VGG, ImageNet, 14 x 14"
INCEPTION = "Inception-ResNet, ImageNet"
TRAINED_BY_XU = ["Flickr8k, 6,000 images", VGG, "not stated; on COCO under 3 days of a Titan Black"]
TRAINED_BY_LI = ["COCO, 82,000 images", INCEPTION, "time not stated; 10 GPUs"]
OUT_OF_DOMAIN = "Flickr 1K, out of domain"
IN_DOMAIN = "COCO40, in domain"
# Of the papers: source, model, training images, encoder, budget, test images; CIDEr, BLEU-1..4, ROUGE-L, METEOR times 100, None where
# none is given.
PUBLISHED: list[list[Any]] = [
    ["Xu 2015", "soft", *TRAINED_BY_XU, "Flickr8k", None, 67.0, 44.8, 29.9, 19.5, None, 18.93],
    ["Xu 2015", "hard", *TRAINED_BY_XU, "Flickr8k", None, 67.0, 45.7, 31.4, 21.3, None, 20.30],
    ["Li 2018", "regular, replicated", *TRAINED_BY_LI, IN_DOMAIN, 103.4, None, None, None, None, 70.1, None],
    ["Li 2018", "areas of 2 x 2", *TRAINED_BY_LI, IN_DOMAIN, 106.0, None, None, None, None, 70.4, None],
    ["Li 2018", "areas of 3 x 3", *TRAINED_BY_LI, IN_DOMAIN, 106.0, None, None, None, None, 70.6, None],
    ["Li 2018", "areas of 3 x 3, Eq. 9", *TRAINED_BY_LI, IN_DOMAIN, 104.5, None, None, None, None, 70.7, None],
    ["Li 2018", "regular, replicated", *TRAINED_BY_LI, OUT_OF_DOMAIN, 35.5, None, None, None, None, 40.9, None],
    ["Li 2018", "areas of 2 x 2", *TRAINED_BY_LI, OUT_OF_DOMAIN, 36.4, None, None, None, None, 42.0, None],
    ["Li 2018", "areas of 3 x 3", *TRAINED_BY_LI, OUT_OF_DOMAIN, 37.7, None, None, None, None, 41.9, None],
    ["Li 2018", "areas of 3 x 3, Eq. 9", *TRAINED_BY_LI, OUT_OF_DOMAIN, 37.2, None, None, None, None, 42.0, None],
]


def rows_of(runs: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of both studies' reports, by study and variant.

    Raises:
        SystemExit: a study has no report yet; names the command that makes it.
    """
    found = {}
    for study in dict.fromkeys(study for study, _ in MODELS):
        path = runs / study / "report.json"
        if not path.exists():
            raise SystemExit(f"{path}: not there; first: regard compare studies/{study}.yaml --data FOLDER --out {runs / study}")
        for row in read(path)["rows"]:
            found[study, row["variant"]] = row
    return found


def run_of(runs: Path, study: str, variant: str) -> Path:
    """Return the folder of a study's run."""
    return runs / study / "runs" / f"flickr8k-{variant}-1"


def write_examples(runs: Path, data: Path, out: Path) -> None:
    """Write what four of the models say of the first ten images of coco_mini, beside the first reference of each."""
    known: Any = read(data / "coco_mini" / "captions.json")
    references = {Path(item["file"]).name: item["captions"][0] for item in known}
    images = sorted((data / "coco_mini" / "images").glob("*.jpg"))[:10]
    columns = {key: Captioner.open(run_of(runs, *key)).caption(images) for key in EXAMPLES}
    rows = [
        [image.stem.lstrip("0"), references[image.name], *(captions[number].text for captions in columns.values())]
        for number, image in enumerate(images)
    ]
    note = "`python benchmarks/flickr8k.py`: the first ten images of coco_mini by name, none left out; models trained on Flickr8k, beam 3."
    write(out / "coco_mini.json", ["COCO image", "reference", *(MODELS[key] for key in EXAMPLES)], rows, note)


def meteor_of(run: Path, data: Path) -> float:
    """Return METEOR of a run's captions of Flickr8k's test images; kept beside the run, for it takes a minute."""
    kept = run.with_suffix(".meteor")
    if not kept.exists():
        folder = data / "flickr8k"
        test = read_captions(folder / "Flickr8k.token.txt", folder / "flickr8k_96px.tar", split=folder / "Flickr_8k.testImages.txt")
        scores = evaluate_captioning(Captioner.open(run), test, with_meteor=True).scores
        kept.write_text(repr(next(score.value for score in scores if score.name == "METEOR")), encoding="ascii")
    return float(kept.read_text(encoding="ascii"))


def minutes_of(run: Path) -> int:
    """Return how long a run was trained, as its log has it."""
    return round(training_of(run).seconds / 60)


def scores_of(row: dict[str, Any]) -> list[float | None]:
    """Return the shown scores of a study's row, times 100."""
    return [round(100 * row["scores"][name], 1) if name in row["scores"] else None for name in SHOWN]


def main() -> None:
    parser = options(__doc__, out=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="make captions anew; the folder with flickr8k and coco_mini")
    arguments = parser.parse_args()
    found = rows_of(arguments.runs)
    encoder = minutes_of(arguments.runs / "flickr8k_words")
    if arguments.data is not None:
        write_examples(arguments.runs, arguments.data, arguments.out)
    rows, beside = [], []
    for (study, variant), title in MODELS.items():
        own, control = found.get((study, variant)), found.get((study, f"{variant}_blind"))
        if own is None:
            continue
        if arguments.data is not None:
            own["scores"]["METEOR"] = meteor_of(run_of(arguments.runs, study, variant), arguments.data)
        blind = None if control is None else control["scores"]["CIDEr-D"]
        gain = None if not blind else round(100 * (own["scores"]["CIDEr-D"] / blind - 1))
        figures = own["figures"]
        minutes = minutes_of(run_of(arguments.runs, study, variant))
        rows.append([title, *scores_of(own), None if blind is None else round(100 * blind, 1), gain, int(figures["updates"]), minutes])
        trained = ["Flickr8k, 6,000 images of 96 x 96", "small CNN from scratch, 12 x 12", f"{encoder} + {minutes} minutes on a CPU"]
        beside.append(["ours", title, *trained, "Flickr8k", *scores_of(own)])
    columns = ["model", *SHOWN, "CIDEr-D of its control", "gain in %", "updates", "minutes"]
    note = (
        "`regard compare studies/xu2015.yaml`, `studies/li2018_captions.yaml` and `python benchmarks/flickr8k.py`: Flickr8k's 1,000 test "
        "images at 96 x 96, encoder from scratch, 12 x 12 cells that see 43 pixels each, beam 3, five references, scores times 100; one "
        f"seed. A control is the same model trained with images shuffled between examples. Minutes of training while "
        f"other programs ran, after the {encoder} of the encoder that all models start from; {machine()}."
    )
    write(arguments.out / "flickr8k.json", columns, rows, note)
    columns = ["source", "model", "trained on", "encoder", "budget", "test images", "CIDEr", *SHOWN[1:]]
    note = "Ours: CIDEr-D, one seed. Xu et al. 2015, Table 1. Li et al. 2018, Table 5; only its COCO40 rows are in domain, as ours are."
    write(arguments.out / "flickr8k_published.json", columns, [*beside, *PUBLISHED], note)


if __name__ == "__main__":
    main()
