"""Attention of a classifier's hops: in one sentence, over all sentences of a label, and its overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard import progress
from regard.attention import record_weights
from regard.config import EntailmentConfig
from regard.data.labelled import pad_tokens
from regard.errors import DataError, NoAttentionError, counted, listed
from regard.tasks.classification_prediction import (
    DIGITS,
    LabelPrediction,
    encode_example,
    label_texts,
    predict_labels,
    split_pair,
    tell_unknown_words,
    token_texts,
)
from regard.tasks.classification_run import SentenceRun, open_sentence_run
from regard.tasks.run_folder import device_of
from regard.viewer import AttentionMap, AttentionRecord, PredictionRecord, Tokens
from regard.viewer.items import kind_marks

HOPS = "hops"
# Rarer words describe a sentence, not its label.
MIN_OCCURRENCES = 5
MAX_WORDS = 10


class HopOverlap(NamedTuple):
    """Overlap of hops: means of A A^T (R, R) over texts.

    Attributes:
        overlap: mean off the diagonal: 0 for hops without common words, 1 for hops on the same single word.
        focus: mean of the diagonal: 1 for a hop on a single word, 1 / S for uniform attention.
        cosine: mean cosine between two hops' weights: overlap independent of focus; 1 for equal hops.
        texts: number of measured texts.
        hops: R.
        matrix: (R, R), mean of A A^T.
    """

    overlap: float
    focus: float
    cosine: float
    texts: int
    hops: int
    matrix: list[list[float]]


def hop_overlap(labellings: Sequence[LabelPrediction]) -> HopOverlap:
    """Measure the overlap between the hops of a run.

    Args:
        labellings: with weights of at least two hops; empty texts are skipped.

    Raises:
        DataError: no weights of two hops or more.

    Example:
        >>> apart, alike = np.eye(2, 3), np.full((2, 4), 0.25)
        >>> hop_overlap([LabelPrediction("a", {}, (apart,), 0)]).overlap, hop_overlap([LabelPrediction("a", {}, (alike,), 0)]).overlap
        (0.0, 0.25)
    """
    products = [weights @ weights.T for item in labellings for weights in item.weights or ()]
    if not products or len(products[0]) < 2:
        raise DataError("hop overlap: expected texts with the weights of at least 2 hops")
    hops = len(products[0])
    apart = ~np.eye(hops, dtype=bool)
    lengths = [np.sqrt(np.diag(product)) for product in products]
    cosines = [(product / np.outer(size, size))[apart].mean() for product, size in zip(products, lengths, strict=True)]
    mean: np.ndarray = np.stack(products).astype(np.float64).mean(axis=0)
    matrix: list[list[float]] = mean.round(DIGITS).tolist()
    return HopOverlap(float(mean[apart].mean()), float(np.diag(mean).mean()), float(np.mean(cosines)), len(products), hops, matrix)


class HopWords(NamedTuple):
    """Most attended words of one hop in the texts of one label.

    Attributes:
        label: the predicted label.
        hop: from 0.
        words: top words by mean weight: (word, mean weight, count).
    """

    label: str
    hop: int
    words: list[tuple[str, float, int]]


def words_by_label(
    run: SentenceRun,
    examples: Sequence[Sequence[str]],
    labellings: Sequence[LabelPrediction],
    *,
    top: int = MAX_WORDS,
    least: int = MIN_OCCURRENCES,
) -> list[HopWords]:
    """Return the most attended words per label and hop, by mean weight.

    Args:
        run: that labelled them.
        examples: texts or pairs; the words of both sides of a pair are counted together.
        labellings: of these examples, with weights.
        top: maximum words per label and hop.
        least: minimum count of a word in the texts of a label.
    """
    found: dict[str, dict[str, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
    for texts, item in zip(examples, labellings, strict=True):
        for text, weights in zip(texts, item.weights or (), strict=False):
            for word, column in zip(token_texts(run, text), weights.T, strict=True):
                found[item.label][word.lower()].append(column)
    rows = []
    for label in run.labels:
        means = {word: (np.mean(seen, axis=0), len(seen)) for word, seen in found[label].items() if len(seen) >= least}
        hops = len(next(iter(means.values()))[0]) if means else 0
        for hop in range(hops):
            best = sorted(means, key=lambda word: (-means[word][0][hop], word))[:top]
            rows.append(HopWords(label, hop, [(word, round(float(means[word][0][hop]), DIGITS), means[word][1]) for word in best]))
    return rows


def label_records(run: SentenceRun, examples: Sequence[Sequence[str]], labellings: Sequence[LabelPrediction]) -> list[AttentionRecord]:
    """Return a record per label: its most attended words and their mean weight per hop."""
    rows, records = words_by_label(run, examples, labellings), []
    for label in run.labels:
        own = [row for row in rows if row.label == label]
        words = list(dict.fromkeys(word for row in own for word, _, _ in row.words))
        if not words:
            continue
        table = np.zeros((len(own), len(words)), np.float32)
        for row in own:
            for word, weight, _ in row.words:
                table[row.hop, words.index(word)] = weight
        count = sum(item.label == label for item in labellings)
        items = {"words": Tokens(words, marks="none"), HOPS: Tokens(hop_names(run.config.model.pooling, len(own)))}
        meta = {"texts": str(count), "weights": "mean where the word stands; the words of other hops' lists count as 0"}
        found = AttentionMap(HOPS, "hops", HOPS, "words", table)
        records.append(AttentionRecord(items, [found], model=run.folder.name, title=f"texts predicted as {label}", meta=meta))
    return records


def example_record(run: SentenceRun, texts: Sequence[str], labelling: LabelPrediction, *, title: str = "") -> AttentionRecord | None:
    """Return the attention of hops and Transformer layers in one example; None without attention.

    Args:
        run: that labelled it.
        texts: the text, or premise and hypothesis.
        labelling: of these, with weights.
        title: a name for the example.
    """
    if not labelling.label:
        return None
    names = ("premise", "hypothesis") if isinstance(run.config, EntailmentConfig) else ("text",)
    marks = kind_marks(run.vocabulary.kind)
    items: dict[str, Any] = {name: Tokens(token_texts(run, text), text, marks) for name, text in zip(names, texts, strict=True)}
    maps = _layer_maps(run, texts, names)
    if labelling.weights is not None:
        items[HOPS] = Tokens(hop_names(run.config.model.pooling, len(labelling.weights[0])))
        for name, weights in zip(names, labelling.weights, strict=True):
            maps.append(AttentionMap(HOPS if len(names) == 1 else f"hops on the {name}", "hops", HOPS, name, weights))
    if not maps:
        return None
    prediction = PredictionRecord(labelling.label, labelling.probabilities)
    return AttentionRecord(items, maps, prediction=prediction, model=run.folder.name, title=title)


def attention_record(run: SentenceRun, texts: Sequence[str]) -> AttentionRecord | None:
    """Label one example and return its attention; see `example_record`."""
    ids, cut = encode_example(run, texts)
    (scores,) = predict_labels(run, [ids], need_weights=True)
    label = run.labels[int(scores.probabilities.argmax())]
    probabilities = dict(zip(run.labels, scores.probabilities.tolist(), strict=True))
    return example_record(run, texts, LabelPrediction(label, probabilities, scores.weights, cut))


def example_records(run: SentenceRun, examples: Sequence[Sequence[str]]) -> list[AttentionRecord]:
    """Label examples and return their attention, without empty texts.

    Raises:
        DataError: no example has text.
        NoAttentionError: the run's pooling has no weights.
    """
    labellings = label_texts(run, examples, need_weights=True)
    records = [example_record(run, texts, item) for texts, item in zip(examples, labellings, strict=True)]
    if any(item.label for item in labellings) and not any(records):
        raise NoAttentionError(f"{run.folder}: this model has no attention to show (model.pooling {run.config.model.pooling})")
    return without_empty(records)


def without_empty(records: Sequence[AttentionRecord | None]) -> list[AttentionRecord]:
    """Return the records of lines with text, and warn of lines without.

    Args:
        records: of each line; None: it has no text.

    Raises:
        DataError: no line has text.

    Example:
        >>> with progress.listening(lambda event: print(event.text)):
        ...     [record.title for record in without_empty([None, AttentionRecord({}, title="a"), None])]
        lines 1, 3: empty, so not shown
        ['a']
    """
    found = [record for record in records if record is not None]
    if not found:
        raise DataError("no attention to show: the input holds no text")
    if empty := [number for number, record in enumerate(records, start=1) if record is None]:
        progress.message(f"{'lines' if len(empty) > 1 else 'line'} {listed(empty)}: empty, so not shown", warning=True)
    return found


def line_records(folder: str | Path, lines: Sequence[str]) -> list[AttentionRecord]:
    """Load a run, label lines and return their attention: sentences, or for entailment a premise, a tab and a hypothesis.

    Args:
        folder: a run of either task.
        lines: as `regard classify` or `regard entail` reads them; blank ones give no record.

    Raises:
        DataError: a line is no pair, or no line has text.
        NoAttentionError: the run's pooling has no weights.
        CheckpointError: see `regard.tasks.classification_run.open_sentence_run`.

    Example:
        >>> line_records("no-such-run", ["a joy"])
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    run = open_sentence_run(folder)
    examples: list[tuple[str, ...]] = [(line,) for line in lines]
    if isinstance(run.config, EntailmentConfig):
        examples = [_pair(number, line) for number, line in enumerate(lines, start=1)]
    tell_unknown_words(run, examples)
    return example_records(run, examples)


def _pair(number: int, line: str) -> tuple[str, str]:
    pair = split_pair(line)
    if pair is None and line.strip():
        found = counted(line.count("\t") + 1, "column")
        raise DataError(f"line {number}: expected a premise, a tab and a hypothesis, found {found}")
    return pair or ("", "")


def hop_names(pooling: str, count: int) -> list[str]:
    """Return a name for each row of weights of a pooling; all but the structured one have one row, the words that features were taken from.

    Example:
        >>> hop_names("structured", 2), hop_names("max", 1)
        (['hop 1', 'hop 2'], ['max'])
    """
    return [f"hop {hop + 1}" for hop in range(count)] if pooling == "structured" else [pooling]


def _layer_maps(run: SentenceRun, texts: Sequence[str], names: Sequence[str]) -> list[AttentionMap]:
    ids, _ = encode_example(run, texts)
    device = device_of(run.model)
    padded = [pad_tokens([own]) for own in ids]
    sizes = {name: len(own) for name, own in zip(names, ids, strict=True)}
    with torch.inference_mode(), record_weights() as recorded:
        run.model.classify([tokens.to(device) for tokens, _ in padded], [count.to(device) for _, count in padded], need_weights=False)
    maps = []
    for name, module in run.model.named_modules():
        seen = [each.weights[0].float().cpu().numpy() for each in recorded if each.attention is module]
        if not seen or not (sites := layer_sites(name, len(seen), names)):
            continue
        for site, weights in zip(sites, seen, strict=True):
            own = weights[:, : sizes[site.query], : sizes[site.key]]  # without the padding of two texts to one length
            maps.append(AttentionMap(site.name, site.kind, site.query, site.key, own, layer=site.layer))
    return maps


class LayerSite(NamedTuple):
    """Location of one call of an attention in a Transformer layer; fields as of `AttentionMap`."""

    name: str
    kind: str
    query: str
    key: str
    layer: int


def layer_sites(module: str, calls: int, texts: Sequence[str]) -> list[LayerSite]:
    """Locate each call of an attention; none for the pooling attention, whose hops are separate maps.

    Args:
        module: its name in the model.
        calls: how often it is called for one example.
        texts: names of the texts of an example.

    Example:
        >>> [site.name for site in layer_sites("encoder.encoder.layers.0.attention", 2, ("premise", "hypothesis"))]
        ['premise self 1', 'hypothesis self 1']
    """
    parts = module.split(".")
    if "layers" not in parts:
        return []
    layer = int(parts[parts.index("layers") + 1])
    if parts[-1] not in ("left", "right"):
        return [LayerSite(f"{side} self {layer + 1}", "self", side, side, layer) for side in texts]
    # The left one is queried by the second text, see `CrossedAttention`; a shared one is both, the left one first.
    asked = [texts[::-1], texts] if calls == 2 else [texts[::-1] if parts[-1] == "left" else texts]
    return [LayerSite(f"{query} on {key} {layer + 1}", "co-attention", query, key, layer) for query, key in asked]
