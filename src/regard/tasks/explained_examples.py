"""Convert a run's examples for `regard.explanations`, and collect the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard import progress
from regard.config.captioning import FeaturesConfig
from regard.data.batching import collate
from regard.data.captions import CaptionSet, read_captions, read_regions
from regard.data.images import Box, ImageSource, Preprocessing
from regard.data.labelled import pad_tokens
from regard.data.lines import read_lines
from regard.data.parallel import SentencePair, holds_pairs, join_file, read_pairs
from regard.data.running_text import pad_rows
from regard.data.vocabulary import BOS, EOS, TokenizedText
from regard.errors import ConfigError, DataError, counted, shown
from regard.explanations import CaptionBatch, LabelBatch, LanguageBatch, ModelBatch, TranslationBatch, TwoInputBatch, explain
from regard.explanations.methods import Method
from regard.metrics.alignment import Links, links_from_weights
from regard.metrics.pointing import box_region, cell_hits
from regard.tasks.batch_threads import few_threads
from regard.tasks.captioning_data import build_preprocessing, normalize_caption
from regard.tasks.captioning_run import CaptionRun, open_caption_run
from regard.tasks.classification_data import read_labelled_file
from regard.tasks.classification_prediction import encode_example, predict_labels, split_pair, tell_unknown_words, token_texts
from regard.tasks.classification_run import SentenceRun, open_sentence_run
from regard.tasks.language_training import LanguageRun, open_language_run
from regard.tasks.run_folder import device_of, run_task
from regard.tasks.translation_prediction import Translator
from regard.tasks.translation_run import TranslationRun, check_inputs
from regard.tasks.unknown_tokens import tell_unknown_pairs
from regard.tasks.word_links import LinkUnit, overlap_shares, regroup_weights, unit_spans
from regard.viewer import Grid
from regard.viewer.text import visible

BATCH_SIZE = 16
RESOLUTION = 8
"""Pixels per cell side for rasterized boxes."""


class ExplainedBatch(NamedTuple):
    """A batch of examples to explain.

    Attributes:
        batch: input of the methods.
        inputs: input texts of each example, in column order.
        outputs: output texts of each example.
        pairs: texts and tokens of each sentence pair; empty for other tasks.
        regions: per caption, or translation of a sentence and an image, the cells, (L,) bool, of words with known regions, by position.
        numbers: of the examples among those given, from 1.
        given: the number of all sentence pairs given, those left out included; 0 for other tasks.
        starts: per example of two inputs the number of inputs of the first; empty for models of one.
        grid: rows and columns of the cells of an image, the only or the second input.
    """

    batch: ModelBatch
    inputs: list[list[str]]
    outputs: list[list[str]]
    pairs: list[tuple[SentencePair, TokenizedText, TokenizedText]]
    regions: list[dict[int, np.ndarray]] = []  # noqa: RUF012 - never changed
    numbers: Sequence[int] = ()
    given: int = 0
    starts: Sequence[int] = ()
    grid: tuple[int, int] | None = None


class ExplainedExample(NamedTuple):
    """Explanations of one example.

    Attributes:
        inputs: as text.
        outputs: as text.
        scores: (outputs, inputs) per method.
        number: among the examples given, from 1.
        after_inputs: whether output t has the inputs 1 to t only, as in a language model; input 0 begins the line.
        start: of two inputs, the number of `inputs` that are of the first; None for models of one.
        grid: rows and columns of the image whose cells are the only or the second input.
    """

    inputs: list[str]
    outputs: list[str]
    scores: dict[Method, np.ndarray]
    number: int = 1
    after_inputs: bool = False
    start: int | None = None
    grid: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the example as a JSON value; `first_inputs` is how many of the inputs are of the first of two."""
        scores = {name: found.tolist() for name, found in self.scores.items()}
        split = {} if self.start is None else {"first_inputs": self.start}
        return {"number": self.number, "inputs": self.inputs, **split, "outputs": self.outputs, "scores": scores}

    def to_line(self) -> str:
        """Return number, inputs and outputs; a bar between two inputs; the size of an image instead of its cells."""
        first, last = self.inputs[: self.start or 0], self.inputs[self.start or 0 :]
        if self.grid and last:
            last = [f"image of {self.grid[0]} x {self.grid[1]} cells, named row,column"]
        inputs = last if self.start is None else [*first, "|", *last]
        return f"{self.number}: {' '.join(inputs)} -> {' '.join(self.outputs)}"


def pair_batch(run: TranslationRun, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> TranslationBatch:
    """Return a batch of sentence pairs from their tokens without EOS; two inputs have one EOS between them."""
    given = collate(sources, targets, range(len(sources))).to(device_of(run.model))
    kind = TranslationBatch if run.config.second is None else TwoInputBatch
    return kind(run.model, given.source, given.source_lengths, given.target_input, given.target_output, given.target_lengths)


def translation_batches(
    run: TranslationRun, pairs: Sequence[SentencePair], *, regions: Mapping[str, Mapping[str, Sequence[Box]]] | None = None
) -> list[ExplainedBatch]:
    """Return batches of sentence pairs, in order, cut to `data.max_length` tokens; report and leave out those with an empty side.

    Args:
        run: a run.
        pairs: sources, with a tab between two inputs, and targets.
        regions: of a run that reads images, the boxes of words, of images by name.
    """
    limit, found, cut, two = run.config.data.max_length, [], 0, run.config.second is not None
    empty = list[int](), list[int]()  # sources, and targets of the others
    for start in range(0, len(pairs), BATCH_SIZE):
        encoded, numbers = list[tuple[SentencePair, TokenizedText, TokenizedText]](), list[int]()
        for number, pair in enumerate(pairs[start : start + BATCH_SIZE], start=start + 1):
            whole = run.vocabularies.source.encode(pair[0]), run.vocabularies.target.encode(pair[1])
            if (blank := not whole[0].ids or whole[0].ids == [EOS]) or not whole[1].ids:
                empty[0 if blank else 1].append(number)
                continue
            source, target = (side.first(limit) for side in whole)
            cut += (source, target) != whole
            encoded.append((pair, source, target))
            numbers.append(number)
        if not encoded:
            continue
        batch = pair_batch(run, [source.ids for _, source, _ in encoded], [target.ids for *_, target in encoded])
        inputs = [_input_texts(run, source) for _, source, _ in encoded]
        outputs = [[*target.pieces, "</s>"] for *_, target in encoded]
        starts = [source.ids.index(EOS) for _, source, _ in encoded] if two else []
        grid = run.config.second.image.grid if run.config.second and run.config.second.image else None
        named = [_named_in_image(run, *each, regions) for each in encoded] if regions else []
        found.append(ExplainedBatch(batch, inputs, outputs, encoded, named, numbers, len(pairs), starts, grid))
    report_cut(cut, limit)
    run.vocabularies.tell_missing_images()
    _report_empty(empty[0])
    _report_empty(empty[1], "with an empty target or translation")
    return found


def _input_texts(run: TranslationRun, source: TokenizedText) -> list[str]:
    # Without the EOS between two inputs; the cells of an image by place.
    if EOS not in source.ids:
        return source.pieces
    end, second = source.ids.index(EOS), run.config.second
    if second is None or second.image is None:
        return source.pieces[:end] + source.pieces[end + 1 :]
    cells = Grid(*second.image.grid).labels if len(source.ids) > end + 1 else []
    return [*source.pieces[:end], *cells]


def _named_in_image(
    run: TranslationRun,
    pair: SentencePair,
    source: TokenizedText,
    target: TokenizedText,
    regions: Mapping[str, Mapping[str, Sequence[Box]]],
) -> dict[int, np.ndarray]:
    second, images = run.config.second, run.vocabularies.images
    if second is None or second.image is None or images is None or source.ids[-1] == EOS:  # no image
        return {}
    name = pair[0].partition("\t")[2]
    return _named_cells(target.pieces, regions.get(name, {}), second.image.grid, images.preprocessing, images.folder / name)


def label_batches(run: SentenceRun, examples: Sequence[Sequence[str]]) -> list[ExplainedBatch]:
    """Return batches of texts or pairs with predicted labels; report and leave out those with an empty text."""
    whole = [(number, texts, *encode_example(run, texts)) for number, texts in enumerate(examples, start=1)]
    report_cut(sum(more > 0 for *_, more in whole), run.config.data.max_length)
    encoded = [(number, texts, ids) for number, texts, ids, _ in whole]
    usable = [(number, texts, ids) for number, texts, ids in encoded if all(ids)]
    _report_empty([number for number, _, ids in encoded if not all(ids)])
    answers = predict_labels(run, [ids for *_, ids in usable])
    found = []
    for start in range(0, len(usable), BATCH_SIZE):
        some = usable[start : start + BATCH_SIZE]
        labels = torch.tensor([int(answer.probabilities.argmax()) for answer in answers[start : start + BATCH_SIZE]])
        padded = [pad_tokens([ids[side] for *_, ids in some]) for side in range(len(some[0][2]))]
        device = device_of(run.model)
        batch = LabelBatch(run.model, [ids.to(device) for ids, _ in padded], [n.to(device) for _, n in padded], labels.to(device))
        inputs = [[piece for text in texts for piece in token_texts(run, text)] for _, texts, _ in some]
        outputs = [[run.labels[label]] for label in labels.tolist()]
        starts = [len(ids[0]) for *_, ids in some] if len(padded) > 1 else []
        found.append(ExplainedBatch(batch, inputs, outputs, [], numbers=[number for number, *_ in some], starts=starts))
    return found


def language_batches(run: LanguageRun, lines: Sequence[str], *, most: int | None = None) -> list[ExplainedBatch]:
    """Return batches of lines, each of its first `most` tokens; report and leave out empty ones."""
    numbered = list(enumerate(map(run.vocabulary.encode, lines), start=1))
    encoded, found = [(number, text) for number, text in numbered if text.ids], []
    _report_empty([number for number, text in numbered if not text.ids])
    for start in range(0, len(encoded), BATCH_SIZE):
        some = encoded[start : start + BATCH_SIZE]
        given = pad_rows([np.array([*text.ids[:most], EOS]) for _, text in some], [BOS] * len(some)).to(device_of(run.model))
        batch = LanguageBatch(run.model, given.inputs, given.goals, given.lengths)
        pieces, numbers = [text.pieces[:most] for _, text in some], [number for number, _ in some]
        found.append(ExplainedBatch(batch, [["<s>", *own] for own in pieces], [[*own, "</s>"] for own in pieces], [], numbers=numbers))
    return found


def report_cut(count: int, limit: int) -> None:
    """Tell how many examples were cut to `limit` tokens, if any."""
    if count:
        progress.message(f"{counted(count, 'example')} cut to data.max_length, {limit} tokens", warning=True)


def _report_empty(numbers: Sequence[int], which: str = "without text") -> None:
    if numbers:
        progress.message(f"{counted(len(numbers), 'example')} {which} left out, the first is number {numbers[0]}", warning=True)


def caption_batches(run: CaptionRun, examples: CaptionSet) -> list[ExplainedBatch]:
    """Return batches of images with their first captions, cut to `data.max_length` tokens.

    Raises:
        ConfigError: the run reads precomputed features.
        DataError: an image cannot be read, or a caption has no words.
    """
    config, device = run.config, device_of(run.model)
    if isinstance(config.model.encoder, FeaturesConfig):
        raise ConfigError(f"{run.folder}: reads precomputed features; explain its model from Python with regard.explanations.CaptionBatch")
    how, cells, found, cut = build_preprocessing(config.image), Grid(*run.model.grid).labels, [], 0
    for start in range(0, len(examples), BATCH_SIZE):
        some = examples[start : start + BATCH_SIZE]
        pictures = how.normalize(np.stack([how.pixels(image) for image in some.images])).to(device)
        texts = [normalize_caption(captions[0], config.data) for captions in some.references]
        whole = [run.vocabulary.encode(text) for text in texts]
        cut += sum(len(caption.ids) > config.data.max_length for caption in whole)
        captions = [caption.first(config.data.max_length) for caption in whole]
        for name, caption in zip(some.ids, captions, strict=True):
            if not caption.ids:
                raise DataError(f"{name}: its caption has no words; there is nothing to explain")
        given = collate([()] * len(some), [caption.ids for caption in captions], range(len(some))).to(device)
        batch = CaptionBatch(run.model, pictures, given.target_input, given.target_output, given.target_lengths)
        pairs = zip(captions, some, strict=True)
        regions = [_named_cells(caption.pieces, image.regions or {}, run.model.grid, how, image.image) for caption, image in pairs]
        outputs = [[*caption.pieces, "</s>"] for caption in captions]
        numbers = range(start + 1, start + 1 + len(some))
        found.append(ExplainedBatch(batch, [cells] * len(some), outputs, [], regions if any(regions) else [], numbers, grid=run.model.grid))
    report_cut(cut, config.data.max_length)
    return found


def _named_cells(
    words: Sequence[str], regions: Mapping[str, Sequence[Box]], grid: tuple[int, int], how: Preprocessing, image: ImageSource
) -> dict[int, np.ndarray]:
    """Return the hit cells of each word with boxes, with a tolerance of half a cell, as in `regard evaluate`."""
    height, width = (count * RESOLUTION for count in grid)
    named = ((place, how.visible_boxes(regions.get(word.strip(), ()), image)) for place, word in enumerate(words))
    return {place: cell_hits(box_region(boxes, height, width), grid, tolerance=RESOLUTION / 2).ravel() for place, boxes in named if boxes}


def batches_of_run(
    folder: str | Path,
    examples: str | Path,
    *,
    target: str | Path | None = None,
    second: str | Path | None = None,
    images: str | Path | None = None,
    regions: str | Path | None = None,
    languages: tuple[str, str] | None = None,
) -> list[ExplainedBatch]:
    """Read examples for the methods of a run.

    Args:
        folder: a run of any task.
        examples: for translation a file of pairs (.tsv, .csv, .jsonl), or of sources with targets in `target` or the run's own
            translations; for classifiers a file as in training; for language models lines of text; for captioners a caption file as in
            training: the first caption of each image is explained by its cells.
        target: targets, line by line with the sources.
        second: second inputs, line by line with the sources, for a translation run that reads two.
        images: folder of the images that captions or second inputs name; None: that of `examples` or `second`.
        regions: for captioners and translation of a sentence and an image, boxes of words; see `regard.data.captions.read_captions`.
        languages: columns, keys or TMX languages of pairs; None: those of the run.

    Raises:
        ConfigError: a `target`, `second`, `languages` or `images` for a run that does not read it, `regions` for one without images, or a
            captioner of precomputed features.
        CheckpointError: no run; see `regard.tasks.run_folder.run_task`.
        DataError: a file cannot be read, or holds nothing to explain.

    Example:
        >>> batches_of_run("no-such-run", "test.tsv")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    task = run_task(Path(folder))
    with_images = ("captioning", "translation")
    for name, given, tasks, what in (
        ("--target", target, ("translation",), "has no targets"),
        ("--second-source", second, ("translation",), "reads one input"),
        ("--languages", languages, ("translation",), "reads no pairs"),
        ("--images", images, with_images, "reads no images"),
        ("--regions", regions, with_images, "reads no images"),
    ):
        if given is not None and task not in tasks:
            raise ConfigError(f"{name}: {folder} is a run of the task {task}, which {what}")
    match task:
        case "translation":
            translator = Translator.open(folder)
            translator.use_images(images, names=second)
            if regions is not None and translator.run.vocabularies.images is None:
                raise ConfigError(f"--regions: {folder} reads no images")
            pairs = _pairs(translator, Path(examples), target, second, languages)
            tell_unknown_pairs(translator.run.vocabularies, pairs)
            named = {} if regions is None else read_regions(regions)
            if regions is not None and not any(source.partition("\t")[2] in named for source, _ in pairs):
                raise DataError(f"{regions}: has none of the images of {second or examples}")
            found = translation_batches(translator.run, pairs, regions=named)
        case "classification" | "entailment":
            sentences = open_sentence_run(folder)
            rows = [each.texts for each in read_labelled_file(sentences.config, examples).examples]
            tell_unknown_words(sentences, rows)
            found = label_batches(sentences, rows)
        case "lm":
            found = language_batches(open_language_run(folder), read_lines(examples))
        case _:
            found = caption_batches(open_caption_run(folder), read_captions(examples, images, regions=regions))
    if not found:
        raise DataError(f"{examples}: nothing to explain, there is no example with text")
    return found


def batches_of_texts(folder: str | Path, texts: Sequence[str], *, target: str | None = None) -> list[ExplainedBatch]:
    """Prepare texts for the methods of a run: sentences to translate, to classify or to continue, two inputs with a tab between them.

    Args:
        folder: a run of any task but captioning.
        texts: at least one.
        target: translation of the only text; None: the run's own of each.

    Raises:
        ConfigError: the run captions images; a `target` for another task, or for several texts.
        CheckpointError: no run; see `regard.tasks.run_folder.run_task`.
        DataError: a text lacks an input, or all are empty.

    Example:
        >>> batches_of_texts("no-such-run", ["a dog"])
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    task = run_task(Path(folder))
    if target is not None and task != "translation":
        raise ConfigError(f"--target: {folder} is a run of the task {task}, which has no targets")
    if target is not None and len(texts) > 1:
        raise ConfigError(f"--target: goes with one --text, found {len(texts)}")
    match task:
        case "translation":
            translator = Translator.open(folder)
            if translator.run.vocabularies.images is not None:
                translator.use_images(Path())  # names of images are paths from here
            check_inputs(translator.run, texts, "--text", None)
            targets = [found.text for found in translator.translate(texts)] if target is None else [target]
            pairs = list(zip(texts, targets, strict=True))
            tell_unknown_pairs(translator.run.vocabularies, pairs)
            found = translation_batches(translator.run, pairs)
        case "classification" | "entailment":
            rows = [split_pair(text) if task == "entailment" else (text,) for text in texts]
            if None in rows:
                raise DataError(f"--text {shown(texts[rows.index(None)])}: expected the premise, a tab, the hypothesis")
            sentences = open_sentence_run(folder)
            tell_unknown_words(sentences, list(filter(None, rows)))
            found = label_batches(sentences, list(filter(None, rows)))
        case "lm":
            found = language_batches(open_language_run(folder), texts)
        case _:
            raise ConfigError(f"--text: {folder} captions images; --examples takes a file of captions beside their images")
    if not found:
        raise DataError("--text: nothing to explain, there is no text")
    return found


def _pairs(
    translator: Translator, examples: Path, target: str | Path | None, second: str | Path | None, languages: tuple[str, str] | None
) -> list[SentencePair]:
    config = translator.run.config
    if second is not None and config.second is None:
        raise ConfigError(f"--second-source: {translator.run.folder} reads one input")
    if target is not None or holds_pairs(examples):
        columns = config.pair_columns if second is None else (2,)
        pairs = read_pairs(examples, target, second, columns=columns, languages=languages or config.data.languages)
        check_inputs(translator.run, [source for source, _ in pairs], examples, second)
        return pairs
    lines = read_lines(examples)
    if second is not None:
        lines = join_file(lines, examples, second)
    check_inputs(translator.run, lines, examples, second)
    return [(line, found.text) for line, found in zip(lines, translator.translate(lines), strict=True)]


def finite_scores(item: ExplainedBatch, method: Method) -> torch.Tensor:
    """Return the scores of a method for a batch.

    Raises:
        ConfigError: the method is not defined for the model.
        DataError: a score is NaN or infinite; the message names the example.
    """
    found = explain(item.batch, method)
    wrong = ~found.isfinite().flatten(1).all(1)
    if wrong.any():
        number = item.numbers[int(wrong.nonzero()[0])]
        raise DataError(
            f"{method}: NaN or infinite scores in example {number}; the training of this model diverged, or its weights are wrong"
        )
    return found


class ExplainedExamples(NamedTuple):
    """Explanations of examples.

    Attributes:
        examples: in order.
        refused: the methods that are not defined for the model, and why.
    """

    examples: list[ExplainedExample]
    refused: dict[Method, str]


@few_threads()
def explain_batches(batches: Sequence[ExplainedBatch], methods: Sequence[Method]) -> ExplainedExamples:
    """Explain all examples by all methods defined for the model.

    Raises:
        ConfigError: no method is defined for the model.
        DataError: a score is NaN or infinite.
    """
    found, refused = [], dict[Method, str]()
    with progress.stage("Explaining", total=len(batches) * len(methods), unit="methods of a batch") as stage:
        for item in batches:
            scores: dict[Method, np.ndarray] = {}
            for method in methods:
                try:
                    scores[method] = finite_scores(item, method).double().cpu().numpy()
                except ConfigError as error:
                    refused[method] = str(error)
                stage.advance(1)
            if not scores:
                raise ConfigError(refused[methods[-1]])
            found += _examples(item, scores)
    return ExplainedExamples(found, refused)


def _examples(item: ExplainedBatch, scores: Mapping[Method, np.ndarray]) -> Iterator[ExplainedExample]:
    columns, later = item.batch.inputs.cpu().numpy(), item.batch.attends_to_itself
    for number, (inputs, outputs, place) in enumerate(zip(item.inputs, item.outputs, item.numbers, strict=True)):
        # A language model reads BOS, which is not an input.
        kept = columns[number] | (np.arange(columns.shape[1]) < 1 if later else False)
        own: dict[Method, np.ndarray] = {name: table[number, : len(outputs)][:, kept] for name, table in scores.items()}
        start = item.starts[number] if item.starts else None
        yield ExplainedExample(inputs[: int(kept.sum())], outputs, own, place, later, start, item.grid)


def links_of_scores(item: ExplainedBatch, scores: np.ndarray, unit: LinkUnit) -> list[Links]:
    """Link each target word or character to the source unit of the highest score, (B, T, S).

    A source unit has the sum of its tokens, a target unit the mean of its tokens.
    """
    found = []
    for (pair, source, target), table in zip(item.pairs, scores, strict=True):
        rows, columns = (
            overlap_shares(unit_spans(text[: side.offsets[-1][1]], unit), side.offsets)
            for text, side in ((pair[1], target), (pair[0], source))
        )
        found.append(links_from_weights(regroup_weights(table[: len(target.ids), : len(source.ids)], rows, columns)))
    return found


def describe_example(example: ExplainedExample, say: Callable[[str], None], *, most: int = 3) -> None:
    """Report the inputs of the highest scores per method and output, and of two inputs the sum over each.

    An input text that occurs again has its position, from 1: `the #2`.
    """
    again = Counter(example.inputs)
    names = [f"{visible(text)} #{place}" if again[text] > 1 else visible(text) for place, text in enumerate(example.inputs, start=1)]
    for method, table in example.scores.items():
        for number, (output, row) in enumerate(zip(example.outputs, table, strict=True)):
            places = range(1, number + 1) if example.after_inputs else range(len(row))
            best = sorted(places, key=lambda place, scores=row: (-scores[place], place))[:most]
            sums = "" if (start := example.start) is None else f"; first {row[:start].sum():.3g}, second {row[start:].sum():.3g}"
            told = ", ".join(f"{names[place]} {row[place]:.3g}" for place in best) or "no input"
            say(f"{method}: {visible(output)} <- {told}{sums}")
