"""Which explanation is true of the model: every method on every kind of model, faithfulness beside known links and regions.

    python benchmarks/explain.py --work FOLDER --out docs/results/explain.json --data DATA [--sets reverse dates ...] [--updates 2000]
    python benchmarks/explain.py --work FOLDER --out docs/results/explain.json --data DATA --measured   only what FOLDER holds, no training
    python benchmarks/explain.py --work FOLDER --out docs/results/explain.json --data DATA --alone      also measure the seconds
    python benchmarks/fill_tables.py

Trains small models, and explains test examples by every method. Links are known for the generated sets `reverse` and `dates` (10,000
pairs), regions for generated scenes (10,000 images of three objects); DATA holds `multi30k` and `sentclass`. All runs of one seed come
before those of the next. Each run is trained and measured once: what FOLDER or OUT holds is kept, so that machines can take turns. The
table has only seconds measured with `--alone`, in the runs of FOLDER. Both tables are written as each run ends: OUT, and the best methods
in a file with `_best` in its name.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import scenes
import torch
from harness import ROOT, machine, options, write

from regard.config import load_config
from regard.config.captioning import CaptioningConfig
from regard.config.classification import ClassificationConfig
from regard.data.captions import read_captions
from regard.data.parallel import read_pairs
from regard.data.synthetic.scene_files import read_scenes
from regard.errors import ConfigError
from regard.explanations import METHODS, explain
from regard.tasks import (
    Captioner,
    Translator,
    evaluate_translation,
    generate,
    open_translation_run,
    train_captioning,
    train_classification,
    train_translation,
)
from regard.tasks.captioning_run import open_caption_run
from regard.tasks.classification_data import read_labelled_file
from regard.tasks.classification_evaluation import evaluate_labels
from regard.tasks.classification_run import open_sentence_run
from regard.tasks.explained_examples import ExplainedBatch, caption_batches, label_batches, translation_batches
from regard.tasks.method_faithfulness import GREEDY, RANDOM, measure_methods
from regard.tasks.translation_evaluation import KnownLinks, read_links
from regard.training import TrainResult

# Highest alignment error of the best method, in percent.
TARGET = 2.0
NOT_RECORDED = "not recorded"
# How many test examples tell whether a model is right.
JUDGED = 500
TITLES = {"multi30k": "Multi30k", "sst2": "SST-2"}
LAYERS = ["model.num_heads=4", "model.encoder_layers=2", "model.decoder_layers=2", "model.norm=pre"]
SMALL = ["model.embed_dim=64", "model.ff_dim=128", *LAYERS]
LARGER = ["model.embed_dim=128", "model.ff_dim=256", *LAYERS]
SMALL_RECURRENT = ["model.embed_dim=48", "model.encoder_dim=64", "model.decoder_dim=96", "model.readout_dim=48"]
LARGER_RECURRENT = ["model.embed_dim=128", "model.encoder_dim=128", "model.decoder_dim=256", "model.readout_dim=128"]


class Trained(NamedTuple):
    """Settings of a model, and its number of updates; None: as many as `--updates` says."""

    settings: Sequence[str]
    updates: int | None = None


def translation_models(recurrent: Sequence[str], transformer: Sequence[str], updates: tuple[int, int | None]) -> dict[str, Trained]:
    """Return the five models; `updates`: of recurrent models, and of the others."""
    feeding = ("model.attention.score=general", "model.attention.query_state=current", "model.attention.input_feeding=true")
    return {
        "Bahdanau": Trained([*recurrent, "model.attention.score=additive", "model.attention.attention_dim=48"], updates[0]),
        "Luong": Trained([*recurrent, *feeding], updates[0]),
        "Transformer": Trained(["model.type=transformer", *transformer], updates[1]),
        "areas": Trained(["model.type=transformer", *transformer, "model.area.max_area=3"], updates[1]),
        "crossed": Trained(["model.type=crossed", "model.swap_probability=0.1", *transformer], updates[1]),
    }


class Pairs:
    """Sentence pairs, generated ones with links.

    Args:
        name: of the set.
        models: trained on it.
        settings: of all of them.
    """

    right = "exact match"
    count = 60
    common = (
        *("recipe=none", "data.valid_size=300", "training.batch_tokens=3000", "training.learning_rate=0.003", "training.schedule=cosine"),
        *("training.warmup_updates=100", "training.metric=loss", "training.evaluate_every=200", "training.keep_checkpoints=1"),
        *("training.epochs=1000", "training.workers=1", "decoding.beam_size=1", "decoding.max_length=40"),
    )

    def __init__(self, name: Any, models: dict[str, Trained], settings: Sequence[str]) -> None:
        self.name, self.models, self.settings = name, models, settings

    def files(self, part: str, work: Path, data: Path | None) -> tuple[Path, Path]:
        """Return sources and targets, after writing them where they are missing."""
        folder = work / self.name
        if not (folder / "test.links").exists():
            generate(self.name, folder, train=10_000, test=1_000, seed=1)
        return folder / f"{part}.source", folder / f"{part}.target"

    def train(self, settings: Sequence[str], folder: Path, work: Path, data: Path | None) -> TrainResult:
        """Train a run, or resume it."""
        source, target = self.files("train", work, data)
        files = [f"data.source={source}", f"data.target={target}"]
        return train_translation(load_config(None, [*files, *self.settings, *self.common, *settings]), folder)

    def links(self, work: Path) -> KnownLinks | None:
        """Return the known links."""
        known = read_links(work / self.name / "test.links", "character")
        return KnownLinks(known.sure[: self.count], known.possible[: self.count], "character")

    def batches(self, folder: Path, work: Path, data: Path | None) -> list[ExplainedBatch]:
        """Return what is explained."""
        return translation_batches(open_translation_run(folder), read_pairs(*self.files("test", work, data))[: self.count])

    def judge(self, folder: Path, work: Path, data: Path | None) -> float:
        """Return how many percent are right."""
        pairs = read_pairs(*self.files("test", work, data))[:JUDGED]
        return next(score.value for score in evaluate_translation(Translator.open(folder), pairs).scores if score.name == self.right)


class Multi30k(Pairs):
    """English to German; no links are known."""

    right = "token accuracy"
    count = 16

    def files(self, part: str, work: Path, data: Path | None) -> tuple[Path, Path]:
        """Return sources and targets.

        Raises:
            ConfigError: no data folder was given.
        """
        raw = _given(data) / "multi30k" / "task1" / "raw"
        name = {"train": "train", "test": "test_2016_flickr"}[part]
        return raw / f"{name}.en.gz", raw / f"{name}.de.gz"

    def links(self, work: Path) -> KnownLinks | None:
        """Return nothing."""
        return None


class Scenes:
    """Images of three objects with captions, as in `scenes.py`; the cells of colour and shape words are known."""

    right = "true captions"
    count = 24
    models = {  # noqa: RUF012 - never changed
        "soft": Trained(scenes.MODELS["soft"][1], 1500),
        "hard": Trained(scenes.MODELS["hard"][1], 2000),
    }

    def files(self, part: str, work: Path, data: Path | None) -> tuple[Path, Path]:
        """Return captions and regions, after writing them where they are missing."""
        folder = work / "scenes"
        captions = scenes.write_set(folder, part, *{"train": (10_000, 0), "test": (JUDGED, 10_000_000)}[part], "convention")
        return captions, folder / f"{part}.regions.jsonl"

    def train(self, settings: Sequence[str], folder: Path, work: Path, data: Path | None) -> TrainResult:
        """Train a run, or resume it."""
        captions = self.files("train", work, data)[0]
        own = [f"data.captions={captions}", f"data.cache={work}/scenes", "training.epochs=1000", "training.evaluate_every=500"]
        return train_captioning(load_config(None, [*scenes.COMMON, *own, *settings], kind=CaptioningConfig), folder)

    def links(self, work: Path) -> KnownLinks | None:
        """Return nothing: regions are part of the batches."""
        return None

    def batches(self, folder: Path, work: Path, data: Path | None) -> list[ExplainedBatch]:
        """Return what is explained."""
        captions, regions = self.files("test", work, data)
        return caption_batches(open_caption_run(folder), read_captions(captions, regions=regions)[: self.count])

    def judge(self, folder: Path, work: Path, data: Path | None) -> float:
        """Return how many percent of the model's captions are true."""
        captions, regions = self.files("test", work, data)
        images = [work / "scenes" / line.partition("\t")[0] for line in captions.read_text(encoding="utf-8").splitlines()]
        told = Captioner.open(folder).caption(images)
        return 100 * statistics.mean(scene.is_true(one.text) for one, scene in zip(told, read_scenes(regions), strict=True))


class Sentences:
    """Sentences of SST-2 with labels; nothing is known of their words."""

    right = "accuracy"
    count = 200
    models = {  # noqa: RUF012 - never changed
        "structured self-attention": Trained([], 1600),
        "mean-pooling": Trained(["model.pooling=mean"], 1600),
    }

    def train(self, settings: Sequence[str], folder: Path, work: Path, data: Path | None) -> TrainResult:
        """Train a run, or resume it."""
        files = [f"data.{part}={_given(data)}/sentclass/stsa.binary.{name}" for part, name in (("train", "train"), ("valid", "dev"))]
        return train_classification(load_config(ROOT / "configs" / "sst2.yaml", [*files, *settings], kind=ClassificationConfig), folder)

    def links(self, work: Path) -> KnownLinks | None:
        """Return nothing."""
        return None

    def batches(self, folder: Path, work: Path, data: Path | None) -> list[ExplainedBatch]:
        """Return what is explained."""
        run = open_sentence_run(folder)
        examples = read_labelled_file(run.config, _given(data) / "sentclass" / "stsa.binary.test").examples
        return label_batches(run, [each.texts for each in examples[: self.count]])

    def judge(self, folder: Path, work: Path, data: Path | None) -> float:
        """Return how many percent of the labels are right."""
        run = open_sentence_run(folder)
        file = read_labelled_file(run.config, _given(data) / "sentclass" / "stsa.binary.test")
        return next(score.value for score in evaluate_labels(run, file).scores if score.name == self.right)


def _given(data: Path | None) -> Path:
    if data is None:
        raise ConfigError("--data: Multi30k and SST-2 need the folder that holds multi30k and sentclass")
    return data


GENERATED = translation_models(SMALL_RECURRENT, SMALL, (400, None))  # by then recurrent models have learned both sets
SETS = {
    "reverse": Pairs("reverse", GENERATED, ["vocabulary.kind=word", "vocabulary.shared=true", "model.dropout=0.1"]),
    "dates": Pairs("dates", GENERATED, ["vocabulary.kind=character", "vocabulary.shared=false", "model.dropout=0.1"]),
    "multi30k": Multi30k(
        "multi30k",
        translation_models(LARGER_RECURRENT, LARGER, (700, 700)),
        ["vocabulary.kind=bpe", "vocabulary.size=4000", "vocabulary.shared=true", "model.dropout=0.2"],
    ),
    "scenes": Scenes(),
    "sst2": Sentences(),
}

# Runs ------------------------------------------------------------------------------------------------------------------


MEASURES = (
    ("alignment_error", "AER, %", 1, 1),
    ("pointing", "pointing, %", 100, 0),
    ("comprehensiveness", "comprehensiveness", 1, 2),
    ("sufficiency", "sufficiency", 1, 2),
    ("random_weights", "with shuffled weights", 1, 2),
    ("seconds", "ms per example", 1000, 1),
)


class Run(NamedTuple):
    """One training: its place in the table, and its folder."""

    data: str
    model: str
    seed: int
    folder: Path


def runs_of(names: Sequence[str], work: Path, seeds: int, updates: int) -> list[Run]:
    """Return all runs, those of one seed before those of the next."""
    found = []
    for seed in range(1, seeds + 1):
        for name in names:
            for model, trained in SETS[name].models.items():
                folder = work / f"{name}-{model.replace(' ', '-')}-{trained.updates or updates}-{seed}"
                found.append(Run(name, model, seed, folder))
    return found


def own_figures(run: Run, figures: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of one run by measure and method, without intervals."""
    found: dict[str, Any] = {"run": run.folder.name, "examples": SETS[run.data].count}
    found |= {name: figures[name] for name in ("data", "model", "seed", "right", "alone", "machine")}
    for name, *_ in MEASURES:
        each = {method["method"]: method[name] for method in figures["methods"] if method[name] is not None}
        found[name] = {method: round(one if name == "seconds" else one["value"], 5) for method, one in each.items()}
    return found


def kept_figures(out: Path | None) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the figures of the runs that a table of this program holds, by run and number of examples."""
    kept = json.loads(out.read_text(encoding="utf-8"))["runs"] if out is not None and out.exists() else []
    return {(run["run"], run["examples"]): run for run in kept}


def measure(run: Run, work: Path, data: Path | None, *, alone: bool) -> dict[str, Any]:
    """Return `own_figures` of one run; those that its folder holds are kept, seconds measured alone in place of others."""
    some, count = SETS[run.data], SETS[run.data].count
    path = run.folder / f"explained-{count}.json"
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"methods": []}
    if not {*METHODS} <= {method["method"] for method in figures["methods"]}:
        table = measure_methods(some.batches(run.folder, work, data), links=some.links(work), outputs=2, seed=run.seed)
        found = {"data": run.data, "model": run.model, "seed": run.seed, "right": some.judge(run.folder, work, data), "alone": False}
        figures = {**found, "machine": machine(1), **table.to_json()}
    if alone and not figures["alone"]:
        batches = some.batches(run.folder, work, data)
        for method in figures["methods"]:
            if method["method"] in METHODS and method["refused"] is None:
                begun = time.perf_counter()
                for item in batches:
                    explain(item.batch, method["method"])
                method["seconds"] = (time.perf_counter() - begun) / figures["examples"]
        figures |= {"alone": True, "machine": machine(1)}
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return own_figures(run, figures)


# Tables ----------------------------------------------------------------------------------------------------------------

COLUMNS = ["data", "model", "figure", *METHODS, RANDOM, GREEDY]
BEST = [
    *("data", "model", "seeds", "right, %", "known", "weights", "best method", "its figure"),
    *("target", "most comprehensive method", "its area", "greedy order"),
]


def of_model(runs: list[dict[str, Any]]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """Return the runs of each set and model."""
    places = dict.fromkeys((run["data"], run["model"]) for run in runs)
    order = sorted(places, key=lambda place: [*SETS].index(place[0]))
    return [(*place, [run for run in runs if (run["data"], run["model"]) == place]) for place in order]


def values(found: list[dict[str, Any]], measure: str, method: str) -> list[float]:
    """Return the figures of a method in each run that has it; seconds of a busy machine say nothing."""
    return [run[measure][method] for run in found if method in run[measure] and (run["alone"] or measure != "seconds")]


def shown(numbers: list[float], factor: float, digits: int) -> str | None:
    """Return the mean and the standard deviation over seeds."""
    scaled = [factor * number for number in numbers]
    if not scaled:
        return None
    middle = f"{statistics.mean(scaled):.{digits}f}"
    return middle if len(scaled) == 1 else f"{middle} ± {statistics.stdev(scaled):.{digits}f}"


def rows_of(runs: list[dict[str, Any]]) -> list[list[Any]]:
    """Return a row for each set, model and figure, with a column for each method."""
    rows = []
    for data, model, found in of_model(runs):
        for name, title, factor, digits in MEASURES:
            cells = [shown(values(found, name, method), factor, digits) for method in (*METHODS, RANDOM, GREEDY)]
            if any(cells):
                rows.append([TITLES.get(data, data), model, title, *cells])
    return rows


def best_of(found: list[dict[str, Any]], measure: str, sign: int) -> str | None:
    """Return the method of the lowest mean, with a sign of -1 the highest; the first of equals."""
    means = {name: sign * statistics.mean(each) for name in METHODS if (each := values(found, measure, name))}
    return min(means, key=lambda name: round(means[name], 6)) if means else None


def best_rows(runs: list[dict[str, Any]]) -> list[list[Any]]:
    """Return a row for each set and model: the method nearest to what is known, and the most comprehensive one."""
    rows = []
    for data, model, found in of_model(runs):
        name, title, factor, digits = next(each for each in MEASURES if each[0] == ("pointing" if data == "scenes" else "alignment_error"))
        best = best_of(found, name, -1 if name == "pointing" else 1)
        row = [TITLES.get(data, data), model, len(found), shown([run["right"] for run in found], 1, 1), title if best else None]
        row += [shown(values(found, name, method), factor, digits) if method else None for method in ("weights", best)]
        row.insert(6, best)
        error = statistics.mean(values(found, name, best)) if best else 0.0
        row.append(None if name == "pointing" or best is None else "met" if error <= TARGET else "missed")
        area = best_of(found, "comprehensiveness", -1)
        rows.append([*row, area, *(shown(values(found, "comprehensiveness", method), 1, 2) for method in (area or "", GREEDY))])
    return rows


def write_tables(out: Path | None, runs: list[dict[str, Any]], total: int, updates: int) -> None:
    """Write both tables of the runs so far."""
    counts = ", ".join(f"{each.count} of {TITLES.get(name, name)}" for name, each in SETS.items())
    alone = sum(run["alone"] for run in runs)
    told = Counter(run.get("machine", NOT_RECORDED) for run in runs)
    machines = "; ".join(f"{name} ({count} runs)" for name, count in told.most_common())
    note = (
        f"`python benchmarks/explain.py`: test examples per run: {counts}; two outputs of each for the areas. Mean ± standard deviation "
        f"over the seeds; {len(runs)} of {total} runs are measured. Milliseconds are for all outputs of an example, of {alone} runs "
        f"measured alone. Measured on: {machines}."
    )
    right = ", ".join(f"{TITLES.get(name, name)} {each.right}" for name, each in SETS.items())
    best = (
        f"`python benchmarks/explain.py`. Right, on {JUDGED} test examples: {right}. Transformers have {updates} updates on reverse and "
        f"dates. {len(runs)} of {total} runs are measured."
    )
    write(out, COLUMNS, rows_of(runs), note, runs=runs)
    write(out and out.with_name(f"{out.stem}_best.json"), BEST, best_rows(runs), best)


def main() -> None:
    """Train and measure, and write the tables as each run ends."""
    parser = options(__doc__, seeds=3, updates=2000)
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--data", type=Path, help="folder that holds multi30k and sentclass")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), help="train and measure only these")
    parser.add_argument("--measured", action="store_true", help="train nothing: only runs that are there")
    parser.add_argument("--alone", action="store_true", help="nothing else runs here: measure the seconds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    runs, kept = runs_of([*SETS], given.work, given.seeds, given.updates), kept_figures(given.out)
    found = {run: kept.get((run.folder.name, SETS[run.data].count)) for run in runs}
    for run in runs:
        trained, there = SETS[run.data].models[run.model], (run.folder / "model").exists()
        if run.data not in given.sets or (not there and (given.measured or found[run] is not None)):
            continue
        if not there:
            settings = [*trained.settings, f"training.seed={run.seed}", f"training.max_updates={trained.updates or given.updates}"]
            if SETS[run.data].train(settings, run.folder, given.work, given.data).reason == "interrupted":
                return
        found[run] = measure(run, given.work, given.data, alone=given.alone)
        write_tables(given.out, [figures for figures in found.values() if figures is not None], len(runs), given.updates)
        print(run.data, run.model, run.seed, flush=True)


if __name__ == "__main__":
    main()
