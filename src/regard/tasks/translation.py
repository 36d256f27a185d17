"""Translation: training on parallel text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.config import TranslationConfig
from regard.data.batching import PlannedBatch, SequenceBatch, collate, plan_batches
from regard.data.parallel import Pair, file_digest, hold_out, read_pairs
from regard.errors import ConfigError, DataError
from regard.metrics import bleu, chrf, exact_match
from regard.models import EncoderDecoder, build
from regard.ops import SequenceLoss
from regard.tasks.run import SHARED, SOURCE, TARGET, Run, Vocabularies, load_vocabularies, make_vocabularies, run_files
from regard.tasks.run_folder import begun, check_metric, device_of, silent
from regard.tasks.sharded import MOST_TOKENS, ShardedCorpus, ShardedText
from regard.tasks.translate import Translator, check_decoding
from regard.training import Job, TrainResult, World, processes, train

SHARDS = "shards"
"""Folder of a run for the index of a sharded text."""
METRICS = ("loss", "perplexity", "token_accuracy", "bleu", "chrf", "exact_match")
"""What `training.metric` can be."""


class Corpus(NamedTuple):
    """Encoded sentence pairs.

    Attributes:
        pairs: the texts.
        source: token ids of each source, without EOS.
        target: token ids of each target, without EOS.
        left_out: pairs that were not taken, by reason.
    """

    pairs: list[Pair]
    source: list[list[int]]
    target: list[list[int]]
    left_out: dict[str, int]

    @property
    def size(self) -> int:
        """How many pairs are taken."""
        return len(self.pairs)

    def batch(self, planned: PlannedBatch) -> SequenceBatch:
        """Return the padded batch of the planned pairs."""
        return collate(self.source, self.target, planned.indices)

    def plan(self, *, batch_tokens: int, seed: int, epoch: int) -> list[PlannedBatch]:
        """Return an epoch's batches."""
        return plan_batches(
            [len(ids) for ids in self.source], [len(ids) for ids in self.target], batch_tokens=batch_tokens, seed=seed, epoch=epoch
        )


def encode_corpus(pairs: Sequence[Pair], vocabularies: Vocabularies, *, max_length: int, name: str) -> Corpus:
    """Encode pairs, leaving out (and counting) those that cannot be trained on.

    Args:
        pairs: sentence pairs.
        vocabularies: of both sides.
        max_length: tokens of either side at most.
        name: what to call the pairs in an error.

    Raises:
        DataError: no pair is left; holds the name, and why they were left out.
    """
    sources, targets = (vocabulary.encode_ids([pair[side] for pair in pairs]) for side, vocabulary in enumerate(vocabularies))
    kept, left_out = [], {"empty": 0, "too long": 0}
    for index, (pair, source, target) in enumerate(zip(pairs, sources, targets, strict=True)):
        if not source or not target or not all(map(str.strip, pair)):  # a blank line is never translated either
            left_out["empty"] += 1
        elif max(len(source), len(target)) > max_length:
            left_out["too long"] += 1
        else:
            kept.append(index)
    if not kept:
        reasons = f"{left_out['empty']} with an empty side, {left_out['too long']} longer than data.max_length ({max_length} tokens)"
        raise DataError(f"{name}: no sentence pair can be used: {reasons}")
    return Corpus([pairs[i] for i in kept], [sources[i] for i in kept], [targets[i] for i in kept], left_out)


def train_translation(
    config: TranslationConfig, folder: str | Path, *, say: Callable[[str], None] = print, on_event: Callable[[str], None] | None = None
) -> TrainResult:
    """Train a translation model, or resume the run in `folder`.

    Args:
        config: what to train on what; `data.source` must be set.
        folder: the run folder.
        say: takes one line of news at a time; called by the first process only.
        on_event: told what happens, before it does; see `regard.training.Job`.

    Returns:
        How training ended (`regard.training.TrainResult`).

    Raises:
        RegardError: bad data, settings that do not fit, a damaged run; see `read_pairs`, `prepare_run` and `regard.training.train`.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> from regard.tasks import generate
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     source, target, *_ = generate("copy", folder, train=40, test=1, seed=1)
        ...     settings = [f"data.source={source}", f"data.target={target}", "vocabulary.kind=word", "training.max_updates=2"]
        ...     settings += ["model.embed_dim=4", "model.encoder_dim=4", "model.decoder_dim=8", "model.readout_dim=4"]
        ...     result = train_translation(load_config(None, settings), Path(folder, "run"), say=lambda line: None)
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    folder = Path(folder)
    check_settings(config)
    with processes() as world:
        tell = say if world.main else silent
        text, valid, digests = _read_data(config)

        def vocabulary_files() -> dict[str, bytes]:
            return make_vocabularies(config, text.sample(config.data.vocabulary_pairs) if isinstance(text, ShardedText) else text)

        with ExitStack() as leaving:
            with begun(world, folder, config, digests, vocabulary_files, (*run_files(config), SHARDS)):
                vocabularies = load_vocabularies(folder, config)
                limit = config.data.max_length
                if isinstance(text, ShardedText):
                    held = encode_corpus(valid, vocabularies, max_length=limit, name="validation data")  # before hours of counting
                    corpus = _sharded(text, config, folder, tell)
                    leaving.callback(corpus.close)
                    _count_tokens(corpus, world, tell)
                else:
                    corpus = encode_corpus(text, vocabularies, max_length=limit, name="training data")
                    held = encode_corpus(valid, vocabularies, max_length=limit, name="validation data")
            torch.manual_seed(config.training.seed)
            model = build(config.model, source_size=len(vocabularies.source), target_size=len(vocabularies.target))
            _report(tell, config, corpus, held, vocabularies, model)
            job = _job(config, folder, corpus, held, vocabularies)
            if on_event is not None:
                job = replace(job, on_event=on_event)
            return train(model, job, config=config.training, folder=folder, run_files=run_files(config))


def check_settings(config: TranslationConfig) -> None:
    """Refuse settings that do not fit together, before anything is read or written.

    Raises:
        ConfigError: names the setting and what it needs.

    Example:
        >>> check_settings(TranslationConfig())
    """
    if config.model.share_embeddings and not config.vocabulary.shared:
        raise ConfigError("model.share_embeddings: needs vocabulary.shared true, a row of the table is one entry of both sides")
    data = config.data
    if data.sharded and data.source is not None and (data.target is None or data.valid_source is None):
        missing = "data.target" if data.target is None else "data.valid_source"
        raise ConfigError(f"{missing}: needed with data.sharded, which reads two kinds of files and holds nothing out")
    if data.sharded and data.max_length > MOST_TOKENS:
        raise ConfigError(f"data.max_length: {data.max_length}; at most {MOST_TOKENS} with data.sharded")
    check_decoding(config, config.decoding)
    check_metric(config, METRICS)
    with torch.device("meta"):  # shapes without numbers: it takes neither time nor memory
        build(config.model, source_size=8, target_size=8)


def _sharded(text: ShardedText, config: TranslationConfig, folder: Path, tell: Callable[[str], None]) -> ShardedCorpus:
    names = (SHARED, SHARED) if config.vocabulary.shared else (SOURCE, TARGET)
    return ShardedCorpus(
        text,
        vocabularies=(folder / names[0], folder / names[1]),
        max_length=config.data.max_length,
        workers=config.data.workers,
        folder=folder / SHARDS,
        tell=tell,
    )


def _count_tokens(corpus: ShardedCorpus, world: World, tell: Callable[[str], None]) -> None:
    """Make the index in the first process; the others wait for a moment at a time, as long as a collective call may."""
    while left := world.on_main(lambda: corpus.advance(seconds=20)):
        tell(f"counting tokens: {left} of {len(corpus.blocks)} blocks left")
    if not world.main:
        corpus.open_index()


def _job(config: TranslationConfig, folder: Path, corpus: Corpus | ShardedCorpus, held: Corpus, vocabularies: Vocabularies) -> Job:
    training = config.training

    def loss(model: nn.Module, batch: SequenceBatch) -> SequenceLoss:
        return model(*batch[:5], label_smoothing=training.label_smoothing)

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, EncoderDecoder)
        figures = likelihood(model, held, poll=job.stop.poll)
        if training.metric in ("bleu", "chrf", "exact_match"):
            translator = Translator(Run(folder, config, vocabularies, model, folder), poll=job.stop.poll)
            greedy = config.decoding.model_copy(update={"beam": 1})
            outputs = [item.text for item in translator.translate([pair[0] for pair in held.pairs], decoding=greedy)]
            score = {"bleu": bleu, "chrf": chrf, "exact_match": exact_match}[training.metric]
            figures[training.metric] = score(outputs, [pair[1] for pair in held.pairs]).value
        return figures

    # `evaluate` polls the job's own stop signal, which is looked up when it runs.
    job = Job(
        plan=lambda epoch: corpus.plan(batch_tokens=training.batch_tokens, seed=training.seed, epoch=epoch),
        collate=corpus.batch,
        loss=loss,
        evaluate=evaluate,
    )
    return job


@torch.no_grad()
def likelihood(
    model: EncoderDecoder[Any], corpus: Corpus, *, poll: Callable[[], None] | None = None, batch_tokens: int = 4096
) -> dict[str, float]:
    """Measure how well a model predicts given targets.

    Args:
        model: in evaluation mode.
        corpus: encoded pairs.
        poll: called once a batch.
        batch_tokens: padded tokens of a batch at most.

    Returns:
        loss (nats per target token, EOS included, not smoothed), perplexity, and token_accuracy (0 to 1).
    """
    nll, correct, tokens = 0.0, 0.0, 0
    device = device_of(model)
    for planned in corpus.plan(batch_tokens=batch_tokens, seed=0, epoch=0):
        if poll is not None:
            poll()
        sums = model(*corpus.batch(planned).to(device)[:5])
        nll, correct, tokens = nll + sums.nll.item(), correct + sums.correct.item(), tokens + planned.tokens
    loss = nll / tokens
    return {"loss": loss, "perplexity": math.exp(loss) if loss < 700 else math.inf, "token_accuracy": correct / tokens}


def _read_data(config: TranslationConfig) -> tuple[list[Pair] | ShardedText, list[Pair], dict[str, str]]:
    data = config.data
    if data.source is None:
        raise DataError("data.source: no training data given (--source FILE --target FILE)")
    if data.sharded:
        assert data.target is not None
        assert data.valid_source is not None
        text = ShardedText.scan(data.source, data.target, data.block)
        files = {"valid_source": data.valid_source, "valid_target": data.valid_target}
        digests = {name: file_digest(path) for name, path in files.items() if path is not None}
        return text, read_pairs(data.valid_source, data.valid_target), {"source": text.digest, "target": text.digest, **digests}
    pairs = read_pairs(data.source, data.target)
    files = {"source": data.source, "target": data.target, "valid_source": data.valid_source, "valid_target": data.valid_target}
    digests = {name: file_digest(path) for name, path in files.items() if path is not None}
    if data.valid_source is not None:
        return pairs, read_pairs(data.valid_source, data.valid_target), digests
    if data.valid_target is not None:
        raise DataError("data.valid_target: given without data.valid_source")
    kept, held = hold_out(pairs, data.held_out, config.training.seed)
    return kept, held, digests


def _report(
    tell: Callable[[str], None],
    config: TranslationConfig,
    corpus: Corpus | ShardedCorpus,
    held: Corpus,
    vocabularies: Vocabularies,
    model: nn.Module,
) -> None:
    started = time.strftime("%H:%M:%S")
    tell(f"{started} {corpus.size} training pairs, {held.size} validation pairs")
    for left_out, name in ((corpus.left_out, "training"), (held.left_out, "validation")):
        if left := ", ".join(f"{count} {reason}" for reason, count in left_out.items() if count):
            tell(f"{name} pairs left out: {left}")
    for side, vocabulary, index in zip(("source", "target"), vocabularies, (0, 1), strict=True):
        if config.vocabulary.kind in ("word", "character"):
            rate = vocabulary.unknown_rate([pair[index] for pair in held.pairs])
            tell(f"{side} vocabulary: {len(vocabulary)} entries; unknown in validation text: {rate:.2%}")
        else:
            tell(f"{side} vocabulary: {len(vocabulary)} entries")
    tell(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
