"""Measure a finished run on its test set, including its attention."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard import progress
from regard.config import ClassificationConfig, EntailmentConfig, RunConfig, TranslationConfig
from regard.config.study import METRICS
from regard.data.captions import read_captions
from regard.data.image_features import FeatureFile
from regard.data.lines import read_lines
from regard.data.parallel import SentencePair, read_pairs
from regard.data.running_text import encode_text, text_size
from regard.errors import ConfigError, DataError, NoAttentionError
from regard.metrics import Score, bleu, chrf, exact_match
from regard.metrics.caption import caption_bleu_counts
from regard.metrics.classification import macro_f1_counts
from regard.metrics.significance import item_counts
from regard.tasks.attention_records import attention_records
from regard.tasks.captioning_data import read_caption_set
from regard.tasks.captioning_evaluation import evaluate_captioning
from regard.tasks.captioning_prediction import Captioner
from regard.tasks.classification_data import read_labelled_file
from regard.tasks.classification_evaluation import evaluate_labels
from regard.tasks.classification_run import open_sentence_run
from regard.tasks.language_prediction import LanguageModel
from regard.tasks.language_training import open_language_run
from regard.tasks.run_folder import read_config
from regard.tasks.translation_evaluation import KnownLinks, LinkUnit, evaluate_translation, read_links
from regard.tasks.translation_prediction import Translator
from regard.training.atomic_folder import read_state
from regard.training.checkpoint import list_checkpoints, load_weights
from regard.viewer import AttentionRecord

# Test examples for attention figures: the mean of a few hundred rows is close to that of all.
MAX_ATTENTION_EXAMPLES = 64
# Far above the logarithm of any vocabulary's size, which is the loss of a model that has learned nothing.
MOST_NATS = 50


class RunMeasures(NamedTuple):
    """Test results of a run.

    Attributes:
        scores: with their signatures.
        metric: metric of the main score, see `regard.metrics.significance.score_of_counts`.
        main: the name of the main score.
        counts: (N, D) its counts per test item.
        seconds: decoding time.
        lines: number of outputs.
        by_length: translations only: (words of the source, sentences, BLEU), see `regard.tasks.translation_evaluation.Evaluation`.
    """

    scores: Sequence[Score]
    metric: str
    main: str
    counts: np.ndarray
    seconds: float
    lines: int
    by_length: tuple[tuple[str, int, float], ...] = ()


def measure_run(task: str, run: Path, test: Mapping[str, str], *, metric: str | None = None) -> RunMeasures:
    """Measure a run of any task on a test set.

    Args:
        task: task of the run.
        run: its folder.
        test: the files, named as in `regard.config.study.TEST_FILES`.
        metric: the main score, one of `regard.config.study.METRICS`; None: the first of the task's.

    Raises:
        RegardError: a damaged run, bad data, a score that is not finite.

    Example:
        >>> measure_run("lm", Path("no-such-run"), {"text": "a.txt"})
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    measures: dict[str, Callable[[Path, Mapping[str, str], str], RunMeasures]] = {
        "translation": _translation,
        "captioning": _captioning,
        "classification": _labels,
        "entailment": _labels,
        "lm": _language,
    }
    found = measures[task](run, test, METRICS[task][0] if metric is None else metric)
    for score in found.scores:
        if not math.isfinite(score.value):
            raise DataError(f"{run}: {score.name} is {score.value} on the test set; the training has diverged")
    return found


def _translation(run: Path, test: Mapping[str, str], metric: str) -> RunMeasures:
    translator = Translator.open(run)
    translator.use_images(None, names=test.get("second_source"))
    pairs = pairs_of(translator.run.config, test)
    links = known_links(test) if translator.run.config.model.attends else None
    found = evaluate_translation(translator, pairs, links=links)
    translator.run.vocabularies.tell_missing_images()
    references = [pair[1] for pair in pairs]
    if metric == "exact match":
        kind, counts = "mean", _percent([output == reference for output, reference in zip(found.outputs, references, strict=True)])
    else:
        kind = "bleu" if metric == "BLEU" else "chrf"
        counts = item_counts(kind, found.outputs, references)
    return RunMeasures(found.scores, kind, metric, counts, found.seconds, len(pairs), tuple(found.by_length))


def known_links(test: Mapping[str, str]) -> KnownLinks | None:
    """Return the links of a test set; None without."""
    unit: LinkUnit = "character" if test.get("link_unit") == "character" else "word"
    return read_links(test["links"], unit, setting="link_unit: ") if "links" in test else None


def pairs_of(config: TranslationConfig, test: Mapping[str, str]) -> list[SentencePair]:
    """Return the pairs of a test set, which serves runs of one input, too."""
    second = None if config.second is None else test.get("second_source")
    return read_pairs(test["source"], test.get("target"), second, languages=config.data.languages)


def seen_items(config: RunConfig, test: Mapping[str, str]) -> int | None:
    """Count the test items whose input is that of a training item, letter by letter; their targets or labels may differ.

    Args:
        config: configuration of the run.
        test: the files, named as in `regard.config.study.TEST_FILES`.

    Returns:
        Their number; None for captions and language models, whose items have no text as input, and where the training file is gone.

    Raises:
        DataError: a file cannot be read.

    Example:
        >>> from regard.config import LanguageConfig
        >>> seen_items(LanguageConfig(), {"text": "a.txt"})
    """
    trained: Sequence[Hashable]
    tested: Sequence[Hashable]
    training = getattr(config.data, "source" if isinstance(config, TranslationConfig) else "train", None)
    if training is None or not Path(training).is_file():
        return None
    if isinstance(config, TranslationConfig):
        data = config.data
        pairs = read_pairs(training, data.target, data.second_source, columns=config.pair_columns, languages=data.languages)
        trained, tested = ([source for source, _ in each] for each in (pairs, pairs_of(config, test)))
    elif isinstance(config, ClassificationConfig | EntailmentConfig):
        files = (read_labelled_file(config, path) for path in (training, test["examples"]))
        trained, tested = ([each.texts for each in file.examples] for file in files)
    else:
        return None
    known = set(tested) & set(trained)
    return sum(each in known for each in tested)


def most_frequent_class(config: RunConfig, test: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the most frequent label of a run's training file, and the accuracy of always giving it.

    Args:
        config: configuration of the run.
        test: the files, named as in `regard.config.study.TEST_FILES`.

    Returns:
        `label`, the first of the most frequent ones, and `accuracy` on the test set in percent; None for tasks without labels, and where
        the training file is gone.

    Raises:
        DataError: a file cannot be read.

    Example:
        >>> from regard.config import LanguageConfig
        >>> most_frequent_class(LanguageConfig(), {"text": "a.txt"})
    """
    if not isinstance(config, ClassificationConfig | EntailmentConfig) or not Path(config.data.train or "").is_file():
        return None
    training, tested = (
        Counter(example.label for example in read_labelled_file(config, path).examples)
        for path in (str(config.data.train), test["examples"])
    )
    [(label, _)] = training.most_common(1)
    return {"label": label, "accuracy": 100.0 * tested[label] / tested.total()}


def _captioning(run: Path, test: Mapping[str, str], metric: str) -> RunMeasures:
    captioner = Captioner.open(run)
    examples = read_caption_set(test["captions"], test.get("images"), test.get("split"), features=test.get("features"))
    features = FeatureFile(test["features"]) if "features" in test else None
    found = evaluate_captioning(captioner, examples, features=features)
    if metric == "BLEU-4":
        # The corpus value is not the mean over images.
        kind, counts = "caption-bleu", caption_bleu_counts(examples.references, [item.text for item in found.captions])
    else:
        values = np.array(found.items[metric])
        kind, counts = "mean", np.stack([values, np.ones_like(values)], 1)
    return RunMeasures(found.scores, kind, metric, counts, found.seconds, len(examples))


def _labels(run: Path, test: Mapping[str, str], metric: str) -> RunMeasures:
    opened = open_sentence_run(run)
    file = read_labelled_file(opened.config, test["examples"])
    start = time.perf_counter()
    found = evaluate_labels(opened, file)
    seconds = time.perf_counter() - start
    expected = [example.label for example in file.examples]
    if metric == "macro-F1":
        kind, counts = "macro-f1", macro_f1_counts(found.outputs, expected)
    else:
        kind, counts = "mean", _percent([output == label for output, label in zip(found.outputs, expected, strict=True)])
    return RunMeasures(found.scores, kind, metric, counts, seconds, len(counts))


def _percent(right: Sequence[bool]) -> np.ndarray:
    return np.stack([100.0 * np.array(right), np.ones(len(right))], 1)


def _language(run: Path, test: Mapping[str, str], metric: str) -> RunMeasures:
    opened, lines = open_language_run(run), list(read_lines(test["text"]))
    start = time.perf_counter()
    scored = LanguageModel(opened).score(lines, context=opened.config.data.context)
    seconds = time.perf_counter() - start
    tokens = np.array([[-line.total, len(line.log_probs)] for line in scored])
    sums = tokens.sum(0)
    used = f"lines:{len(lines)}|text:{opened.config.data.context}"
    loss = sums[0] / sums[1]
    if not loss < MOST_NATS:
        raise DataError(f"{run}: {loss:.4g} nats per token on {test['text']}, over {MOST_NATS}; the training has diverged")
    scores = [Score("perplexity", math.exp(loss), "per token", used)]
    text = encode_text(lines, opened.vocabulary)
    if not text.undefined:
        scores.append(Score("bits per byte", sums[0] / math.log(2) / text.size, "bits", f"{used}|bytes:{text.size}"))
    elif metric == "bits per byte":
        raise DataError(f"{test['text']}: {text.undefined} ({run}): bits per byte are not defined")
    if metric == "perplexity":
        return RunMeasures(scores, "perplexity", metric, tokens, seconds, len(lines))
    return RunMeasures(
        scores, "mean", metric, np.stack([tokens[:, 0] / math.log(2), [text_size([line]) for line in lines]], 1), seconds, len(lines)
    )


class CheckpointSelection(NamedTuple):
    """Test rank of the checkpoint selected by validation.

    Attributes:
        rank: its rank on the test set, 1 is the best.
        of: number of checkpoints.
        points: (update, score on the validation set, score on the test set).
    """

    rank: int
    of: int
    points: list[tuple[int, float, float]]


def checkpoint_selection(run: Path, test: Mapping[str, str], *, metric: str | None = None) -> CheckpointSelection:
    """Measure every kept checkpoint of a translation run that validation could choose. Li et al. 2019, Table 2.

    Args:
        run: its folder, with `training.keep_checkpoints` checkpoints.
        test: see `measure_run`.
        metric: see `measure_run`.

    Raises:
        ConfigError: the run has no validation files of its own.
        RegardError: a damaged run, bad data.

    Example:
        >>> checkpoint_selection(Path("no-such-run"), {"source": "a", "target": "b"})
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    translator, points = Translator.open(run), []
    data = translator.run.config.data
    if data.valid_source is None:
        raise ConfigError(f"{run}: a study of checkpoints needs data.valid_source and data.valid_target")
    valid = read_pairs(data.valid_source, data.valid_target, data.valid_second_source, languages=data.languages)
    sets = [
        (valid, None if translator.run.vocabularies.images is None else data.images, data.second_source),
        (pairs_of(translator.run.config, test), None, test.get("second_source")),
    ]
    score = {"chrF2": chrf, "exact match": exact_match}.get(metric or "", bleu)
    for path in list_checkpoints(run):
        progress = read_state(path)["progress"]
        if progress["evaluated_step"] != progress["step"]:
            continue  # saved only because of a signal
        load_weights(path, translator.run.model)
        found = []
        for pairs, images, names in sets:
            translator.use_images(images, names=names)
            outputs = [item.text for item in translator.translate([pair[0] for pair in pairs])]
            found.append(score(outputs, [pair[1] for pair in pairs]).value)
        points.append((int(path.name.removeprefix("step-")), found[0], found[1]))
    translator.run.vocabularies.tell_missing_images()
    return best_checkpoint(points)


def best_checkpoint(points: list[tuple[int, float, float]]) -> CheckpointSelection:
    """Return the checkpoint selected by validation: the first of the best.

    Args:
        points: at least one of (update, score on the validation set, score on the test set), higher is better.

    Example:
        >>> best_checkpoint([(1, 20.0, 19.0), (2, 22.0, 21.0), (3, 21.0, 23.0)])[:2]
        (2, 3)
    """
    chosen = max(points, key=lambda point: point[1])
    return CheckpointSelection(1 + sum(point[2] > chosen[2] for point in points), len(points), points)


def attention_of(task: str, run: Path, test: Mapping[str, str]) -> dict[str, Any]:
    """Return the mean attention entropy on the first test examples, in bits, and the attention mass per area size.

    Empty for models without attention, and for models of image features.
    """
    if task == "captioning":
        if "features" in test:
            return {}
        captioner, examples = Captioner.open(run), read_captions(test["captions"], test.get("images"), split=test.get("split"))
        return record_figures([captioner.record(example.image) for example in examples[:MAX_ATTENTION_EXAMPLES]])
    match task:
        case "translation":
            seen = [pair[0] for pair in pairs_of(read_config(run, TranslationConfig), test)]
        case "lm":
            seen = list(read_lines(test["text"]))
        case _:
            file = read_labelled_file(open_sentence_run(run).config, test["examples"])
            seen = ["\t".join(example.texts) for example in file.examples]
    try:
        names = test.get("second_source")
        folder = None if names is None else Path(names).parent
        with progress.listening(None):  # what it says of these examples is about no result
            records = attention_records(run, seen[:MAX_ATTENTION_EXAMPLES], images=folder)
        return record_figures(records)
    except NoAttentionError:
        return {}


def record_figures(records: Sequence[AttentionRecord]) -> dict[str, Any]:
    """Return `entropy`, in bits, the mean over rows and heads of the first map, and `areas`, the mass by size over all maps with areas.

    Example:
        >>> from regard.viewer import AttentionMap
        >>> record_figures([AttentionRecord({"s": ["a", "b"], "t": ["c"]}, [AttentionMap("m", "cross", "t", "s", [[0.5, 0.5]])])])
        {'entropy': 1.0}
    """
    entropies: list[float] = []
    mass: dict[str, float] = defaultdict(float)
    for record in records:
        if record.maps:
            weights = np.asarray(record.maps[0].weights, dtype=np.float64)
            total = weights.sum(-1, keepdims=True)
            shares = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
            terms = np.where(shares > 0, shares * np.log2(np.where(shares > 0, shares, 1.0)), 0.0)
            entropies += (-terms.sum(-1)).flatten().tolist()
        for each in record.maps:
            if each.areas is not None:
                sizes = np.prod(np.asarray(each.areas.extents)[:, -(np.asarray(each.areas.extents).shape[1] // 2) :], axis=1)
                for size, weight in zip(sizes, np.asarray(each.areas.weights).sum((0, 1)), strict=True):
                    mass[str(int(size))] += float(weight)
    found: dict[str, Any] = {"entropy": float(np.mean(entropies))} if entropies else {}
    if whole := sum(mass.values()):
        found["areas"] = {size: mass[size] / whole for size in sorted(mass, key=int)}
    return found
