"""Translation: training on parallel text."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard import progress
from regard.config import RECIPES, ModelConfig, RNNConfig, TransformerConfig, TranslationConfig, with_recipe
from regard.data.batching import PlannedBatch, SequenceBatch
from regard.data.token_cache import TOKENS
from regard.data.vocabulary import IMPORTED
from regard.errors import ConfigError, counted
from regard.metrics import bleu, chrf, exact_match
from regard.models import EncoderDecoder, build
from regard.models.loss_guides import LinkGuide, RDrop, TaughtHead
from regard.ops import SequenceLoss
from regard.tasks.batch_threads import map_batches
from regard.tasks.confidence import FILE as CONFIDENCE
from regard.tasks.confidence import MAX_PAIRS, MIN_PAIRS, write_calibration
from regard.tasks.confidence_training import calibrate_on
from regard.tasks.fine_tuning import report_unknown
from regard.tasks.run_folder import CONFIG, check_metric, device_of, on_first_process, read_config
from regard.tasks.train import TaskTraining, report_left_out, train_task
from regard.tasks.training_links import FOLDER as LINKS
from regard.tasks.translation_data import Corpus, TrainingText, encode_corpus, open_corpus, training_images, validation_pairs
from regard.tasks.translation_prediction import Translator, check_decoding
from regard.tasks.translation_run import (
    TranslationRun,
    load_vocabularies,
    make_vocabularies,
    open_translation_run,
    run_files,
    vocabulary_files,
)
from regard.tasks.watched_examples import MAX_WEIGHTS, check_watch
from regard.tasks.word_links import FILE as ALIGNMENT
from regard.tasks.word_links import choose_attention, write_choice
from regard.training import TrainResult
from regard.training.memory_check import check_memory
from regard.viewer import AttentionRecord

_OF_TRANSLATIONS = {"bleu": bleu, "chrf": chrf, "exact_match": exact_match}
IMAGES = "images"
"""Folder of a run for its decoded images."""
METRICS = ("loss", "perplexity", "token_accuracy", *_OF_TRANSLATIONS)
"""Values of `training.metric` and `training.eval_metrics`."""


def train_translation(config: TranslationConfig, folder: str | Path, *, on_event: Callable[[str], None] | None = None) -> TrainResult:
    """Train a translation model, or resume the run in `folder`: `regard.tasks.train.train_task`; `data.source` must be set.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> from regard.tasks import generate
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     source, target, *_ = generate("copy", folder, train=40, test=1, seed=1)
        ...     settings = [f"data.source={source}", f"data.target={target}", "vocabulary.kind=word", "training.max_updates=2"]
        ...     settings += ["model.embed_dim=4", "model.encoder_dim=4", "model.decoder_dim=8", "model.readout_dim=4"]
        ...     result = train_translation(load_config(None, settings), Path(folder, "run"))
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    return train_task(TranslationTraining, config, folder, on_event=on_event)


def check_translation_settings(config: TranslationConfig) -> None:
    """Check the settings before reading or writing anything.

    Raises:
        ConfigError: incompatible settings.

    Example:
        >>> check_translation_settings(TranslationConfig())
    """
    # An imported model may split each side with its own model, and share the entries.
    if config.model.share_embeddings and not config.vocabulary.shared and config.vocabulary.kind != IMPORTED:
        raise ConfigError("model.share_embeddings: needs vocabulary.shared true, a row of the table is one entry of both sides")
    if config.model.copy_attention and not config.vocabulary.shared:
        raise ConfigError("model.copy_attention: needs vocabulary.shared true, so that a copied word is the same word on both sides")
    _check_inputs(config)
    _check_links(config)
    check_decoding(config, config.decoding)
    check_watch(config.training, config.model.attends, "model.attention null")
    check_metric(config, METRICS)
    check_memory(lambda: build(config.model, source_size=8, target_size=8))


def _check_inputs(config: TranslationConfig) -> None:
    data, two, kind = config.data, config.second is not None, "crossed" if config.model.type == "crossed" else "flat"
    for name in ("second_source", "valid_second_source"):
        if getattr(data, name) is not None and not two:
            raise ConfigError(f"data.{name}: needs a model of two inputs, such as model.second.kind={kind}")
    image = None if config.second is None else config.second.image
    if data.images is not None and image is None:
        raise ConfigError("data.images: needs a model that reads images, such as model.second.image.size=64")
    if image is not None and data.longest_trained < image.cells:
        raise ConfigError(f"data.max_length: {data.longest_trained}, but an image of {image.size} pixels has {image.cells} cells")
    # Settings without files are possible, such as for `--print-config`.
    if two and data.source is not None and data.second_source is None:
        raise ConfigError("model.second: needs data.second_source (--second-source FILE), line by line with the sources")
    if two and data.valid_source is not None and data.valid_second_source is None:
        raise ConfigError("model.second: needs data.valid_second_source (--valid-second-source FILE), line by line with data.valid_source")
    if data.valid_second_source is not None and data.valid_source is None:
        raise ConfigError("data.valid_second_source: given without data.valid_source")


def _check_links(config: TranslationConfig) -> None:
    training, model = config.training, config.model
    if not training.guided:
        return
    name = "links" if training.links is not None else "links_from"
    if config.second is not None:
        raise ConfigError(f"training.{name}: needs a model of one input, not model.second")
    if not model.attends:
        raise ConfigError(f"training.{name}: this model has no attention to learn links")
    if model.copy_attention:
        raise ConfigError(f"training.{name}: not with model.copy_attention, whose attention learns to copy")
    heads = {"links_layer": training.links_layer, "links_head": training.links_head}
    limits: dict[str, int] = {}
    if not isinstance(model, RNNConfig) and model.decoder_attentions:
        limits = {"links_layer": model.decoder_layers, "links_head": model.num_heads}
    for setting, number in heads.items():
        if number is not None and not limits:
            raise ConfigError(f"training.{setting}: {number}, but a recurrent decoder has one attention; leave it null")
        if number is not None and number > limits[setting]:
            what = "decoder_layers" if setting == "links_layer" else "num_heads"
            raise ConfigError(f"training.{setting}: {number}, but model.{what} is {limits[setting]}")


def _has_heads(model: ModelConfig) -> bool:
    # Of a recurrent decoder's attention.
    recurrent = model.recurrent if isinstance(model, TransformerConfig) and model.decoder == "recurrent" else model
    attention = getattr(recurrent, "attention", None)
    return attention is not None and (attention.num_heads or 1) > 1


def taught_head(config: TranslationConfig) -> TaughtHead:
    """Return the attention that learns the links of a configuration.

    Example:
        >>> from regard.config import load_config
        >>> taught_head(load_config(None, ["model.type=transformer", "model.decoder_layers=4"])).layer
        2
    """
    training = config.training
    layer = max(0, config.model.decoder_attentions - 2) if training.links_layer is None else training.links_layer - 1
    return TaughtHead(layer, (training.links_head or 1) - 1, training.links_step, training.links_weight)


def resolve_recipe(config: TranslationConfig, folder: Path, pairs: int) -> TranslationConfig:
    """Complete unset settings from the recipe `config.recipe`.

    Args:
        config: the requested configuration.
        folder: the run folder. For an existing run, "auto" means its recipe.
        pairs: sentence pairs to train on.

    Raises:
        ConfigError: see `regard.config.with_recipe`.
        CheckpointError: the run's configuration is damaged, or of another task.
    """
    if config.recipe == "auto" and (folder / CONFIG).exists():
        config = config.model_copy(update={"recipe": read_config(folder, TranslationConfig).recipe})
    return with_recipe(config, pairs)


def settle_recipe(config: TranslationConfig) -> TranslationConfig:
    """Complete unset settings as a new run would: count the training pairs, and apply the recipe.

    Args:
        config: with the training files.

    Raises:
        ConfigError: see `regard.config.with_recipe`.
        DataError: the files are not usable.
    """
    with tempfile.TemporaryDirectory() as folder:
        return with_recipe(config, TrainingText(config, Path(folder)).size)


class TranslationTraining(TaskTraining[TranslationConfig]):
    """The training of a translation model."""

    watched = "validation sentence"
    check = staticmethod(check_translation_settings)
    folders = (TOKENS, IMAGES, LINKS)
    corpus: Corpus

    def read(self) -> None:
        """Count the training text, which determines the recipe."""
        self._text: list[TrainingText] = []  # in the first process

        def read() -> int:
            self._text.append(TrainingText(self.config, self.folder))
            return self._text[0].size

        self.config = resolve_recipe(self.config, self.folder, on_first_process(self.world, read))
        check_translation_settings(self.config)
        self.digests = self._text[0].digests if self.world.main else {}
        self.files = run_files(self.config)

    def make(self) -> dict[str, bytes]:
        """Train the vocabularies."""
        return make_vocabularies(self.config, self._text[0].sample, self._text[0].size)

    def encode(self) -> None:
        """Encode the text; validation files first, to fail early if they are unusable."""
        config, folder = self.config, self.folder
        self.vocabularies = load_vocabularies(folder, config)
        if (images := self.vocabularies.images) is not None:
            files = training_images(config)
            on_first_process(self.world, lambda: images.keep(files, folder / IMAGES))
            images.keep(files, folder / IMAGES)
        held = self._validation() if config.data.valid_source is not None else None

        def encode() -> None:
            for number, (side, vocabulary) in enumerate(self.vocabularies.named.items()):
                report_unknown(config, vocabulary, self._text[0].sample(number, config.vocabulary.sample), name=f"{side} vocabulary")
            self._text[0].encode(self.vocabularies, [folder / name for name in vocabulary_files(config)])

        on_first_process(self.world, encode)
        self.corpus = open_corpus(config, folder)
        self.held = held or self._validation()

    def _validation(self) -> Corpus:
        pairs, limit = validation_pairs(self.config, self.folder), self.config.data.max_length
        return encode_corpus(pairs, self.vocabularies, max_length=limit, name="validation data")

    def network(self) -> EncoderDecoder[Any]:
        """Build the model."""
        return self.vocabularies.connect(build(self.config.model, **self.vocabularies.sizes))

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of pairs to train and to validate on."""
        return self.corpus.size, self.held.size

    def report(self, model: nn.Module) -> None:
        """Report the recipe, the numbers of pairs, and unknown tokens."""
        config = self.config
        if chosen := [recipe.evidence for recipe in RECIPES if recipe.name == config.recipe]:
            progress.message(f"recipe {config.recipe} (from {chosen[0]}) fills in the settings you did not give; recipe=none turns it off")
        sizes = (counted(size, f"{name} pair") for size, name in zip(self.sizes, ("training", "validation"), strict=True))
        progress.message(f"{time.strftime('%H:%M:%S')} {', '.join(sizes)}")
        report_left_out(self.corpus.left_out, "training pairs")
        report_left_out(self.held.left_out, "validation pairs")
        if config.second is not None and config.second.drop:
            for name, corpus in (("training", self.corpus), ("validation", self.held)):
                first, second = corpus.one_input()
                if first or second:
                    progress.message(f"{name} pairs without the first input: {first:,}, without the second: {second:,}")
        rated = config.vocabulary.kind in ("word", "character", IMPORTED)
        sources, targets = zip(*self.held.pairs, strict=True)
        texts = {"source": sources, "target": targets}
        if config.second is not None:
            texts |= {name: [line.split("\t")[side] for line in sources] for side, name in enumerate(("source", "second source"))}
        for side, vocabulary in self.vocabularies.named.items():
            rate = vocabulary.unknown_rate(texts[side]) if rated else 0
            unknown = f"; unknown in validation text: {rate:.2%}" if rated else ""
            progress.message(f"{side} vocabulary: {len(vocabulary)} entries{unknown}")

    def loss(self, model: nn.Module, batch: SequenceBatch) -> SequenceLoss:
        """Return the sums over a batch, with the loss of the links if an attention learns them, or of R-Drop."""
        training = self.config.training
        guide = RDrop(training.r_drop) if training.r_drop else None
        if batch.links is not None:
            guide = LinkGuide(batch.links, taught_head(self.config))
        return model(*batch[:5], label_smoothing=training.label_smoothing, guide=guide)

    def evaluate(self, model: EncoderDecoder[Any]) -> dict[str, float]:
        """Evaluate the references and, if configured, greedy translations."""
        figures = translation_likelihood(model, self.held, poll=self.stop.poll)
        if scores := {name: score for name, score in _OF_TRANSLATIONS.items() if name in self.config.training.measured}:
            translator, greedy = self._translator(model), self.config.decoding.model_copy(update={"beam_size": 1})
            outputs = [item.text for item in translator.translate([pair[0] for pair in self.held.pairs], decoding=greedy)]
            references = [pair[1] for pair in self.held.pairs]
            figures |= {name: score(outputs, references).value for name, score in scores.items()}
        return figures

    def _translator(self, model: EncoderDecoder[Any]) -> Translator:
        return Translator(TranslationRun(self.folder, self.config, self.vocabularies, model, self.folder), poll=self.stop.poll)

    def lengths(self) -> list[int]:
        """Return the tokens of each validation pair's longer side."""
        return np.maximum(*self.held.lengths(0)).tolist()

    def record(self, model: EncoderDecoder[Any], number: int) -> AttentionRecord | None:
        """Record the attention for the reference, so that updates are comparable."""
        return self._translator(model).align_layers(*self.held.pairs[number][:2], max_weights=MAX_WEIGHTS)

    def finish(self, result: TrainResult) -> None:
        """Choose the attention that gives word links, and calibrate the confidence, in the first process."""
        on_first_process(self.world, lambda: self._measure(result))

    def _measure(self, result: TrainResult) -> None:
        self._choose_links(result)
        self._calibrate(result)

    def _choose_links(self, result: TrainResult) -> None:
        if result.model is None or (self.folder / ALIGNMENT).exists():
            return
        run = open_translation_run(self.folder)
        run = run._replace(vocabularies=self.vocabularies, model=self.vocabularies.connect(run.model))
        taught = None
        if run.config.training.guided:
            head = taught_head(run.config)
            # The heads of a recurrent decoder learn links together.
            alone = not run.config.model.decoder_attentions or getattr(run.config.model, "num_heads", 1) == 1
            taught = run.model.taught_name(head), None if alone else head.head, head.step
        # An attention with one head uses its own alignment, of the predicting step.
        if taught is None and not run.config.model.decoder_attentions and not _has_heads(run.config.model):
            return
        if (choice := choose_attention(run, self.held.pairs, taught=taught, poll=self.stop.poll_alone)) is not None:
            write_choice(self.folder, choice)

    def _calibrate(self, result: TrainResult) -> None:
        if result.model is None or (self.folder / CONFIDENCE).exists() or self.held.size < MIN_PAIRS:
            return
        pairs = [pair[:2] for pair in self.held.pairs[:MAX_PAIRS]]
        found = calibrate_on(Translator(open_translation_run(self.folder), poll=self.stop.poll_alone), pairs)
        if found is not None:
            write_calibration(self.folder, found)


def translation_likelihood(
    model: EncoderDecoder[Any], corpus: Corpus, *, poll: Callable[[], None] | None = None, batch_tokens: int = 4096
) -> dict[str, float]:
    """Compute loss, perplexity and accuracy of given targets.

    Returns:
        loss (nats per target token, EOS included, not smoothed), perplexity, and token_accuracy (0 to 1).
    """
    device = device_of(model)

    @torch.no_grad()
    def measure(planned: PlannedBatch) -> tuple[float, float]:
        sums = model(*corpus.batch(planned).to(device)[:5])
        return sums.nll.item(), sums.correct.item()

    plan = corpus.plan(batch_tokens=batch_tokens, seed=0, epoch=0)
    stage = progress.stage("Predicting the references", total=len(plan), unit="batches")
    found = map_batches(measure, plan, device=device, poll=poll, stage=stage)
    nll, correct = map(sum, zip(*found, strict=True))
    tokens = sum(planned.tokens for planned in plan)
    loss = nll / tokens
    return {"loss": loss, "perplexity": math.exp(loss) if loss < 700 else math.inf, "token_accuracy": correct / tokens}
