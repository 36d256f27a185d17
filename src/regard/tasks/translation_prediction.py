"""Using a trained run: text in, text out, one line for each line, with what was attended to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import ops, progress
from regard.config import DecodingConfig, TranslationConfig
from regard.data.batching import collate
from regard.data.lines import single_line
from regard.data.vocabulary import BOS, EOS, PAD, UNK, TokenizedText, Vocabulary
from regard.decoding import DecodingOptions, Hypothesis, SamplingOptions, beam_search, greedy_search, sample
from regard.errors import ConfigError
from regard.tasks.batch_threads import cut_batches, map_batches
from regard.tasks.chunking import in_chunks
from regard.tasks.record_layers import add_hypotheses, add_layers
from regard.tasks.run_folder import device_of
from regard.tasks.translation_run import TranslationRun, open_ensemble
from regard.viewer import AttentionRecord


class Translation(NamedTuple):
    """What became of one line.

    Attributes:
        text: the best translation, one line; empty for an empty or blank line.
        texts: the texts of all hypotheses returned, best first.
        hypotheses: their tokens, scores and attention.
        source: the tokens that were read.
        truncated: how many source tokens were cut off.
    """

    text: str
    texts: list[str]
    hypotheses: list[Hypothesis]
    source: TokenizedText
    truncated: int

    def to_json(self) -> dict[str, Any]:
        """Return the texts with what they were chosen by, ready for JSON."""
        hypotheses = [
            {"text": text, "score": found.score, "tokens": found.tokens, "log_probs": found.log_probs}
            for text, found in zip(self.texts, self.hypotheses, strict=True)
        ]
        return {"text": self.text, "hypotheses": hypotheses}


class Translator:
    """Translate with a trained run, or with several at once.

    Args:
        run: an opened run; `regard.tasks.translation_run.open_ensemble` makes one of several.
        poll: called before each batch; may raise to leave.

    Example:
        >>> Translator.open("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """

    def __init__(self, run: TranslationRun, *, poll: Callable[[], None] | None = None) -> None:
        self.run = run
        self._poll = poll

    @classmethod
    def open(cls, folder: str | Path, *others: str | Path) -> Translator:
        """Open a run folder; with others, whose vocabularies must be the same, the mean of what all expect decides.

        Raises:
            CheckpointError: see `regard.tasks.translation_run.open_translation_run`.
            ConfigError: see `regard.tasks.translation_run.open_ensemble`.
        """
        return cls(open_ensemble([folder, *others]))

    def translate(
        self,
        lines: Sequence[str],
        *,
        decoding: DecodingConfig | None = None,
        n_best: int = 1,
        sampling: SamplingOptions | None = None,
        prefixes: Sequence[str] | None = None,
        need_attention: bool = False,
    ) -> list[Translation]:
        """Translate lines; the result of one does not depend on the others.

        Args:
            lines: one sentence each.
            decoding: how to search; None takes the run's own settings.
            n_best: hypotheses for each line; with sampling, see `SamplingOptions.num_samples`.
            sampling: draw instead of search.
            prefixes: for each line, text its translation must begin with; "" for none.
            need_attention: return attention with the hypotheses.

        Returns:
            One `Translation` a line, in order.

        Raises:
            ConfigError: settings that do not fit the model.
        """
        decoding = decoding or self.run.config.decoding
        check_decoding(self.run.config, decoding, attends=self.run.model.attends)
        encoded, cut = self._encode(lines)
        target = self.run.vocabularies.target
        forced = [target.encode(prefix).ids for prefix in prefixes] if prefixes is not None else [[] for _ in lines]
        # A source of chance for each line, so that what is drawn for one does not depend on the batch it is in.
        seeds = torch.randint(2**62, (len(lines),)).tolist() if sampling is not None else []
        # Like lengths together: little padding. Longest first, so that too large a batch fails at once.
        order = sorted((i for i, item in enumerate(encoded) if item.ids), key=lambda i: (-len(encoded[i].ids), i))

        def search(rows: list[int]) -> list[list[Hypothesis]]:
            return self._search(
                [encoded[i].ids for i in rows],
                [forced[i] for i in rows],
                decoding,
                n_best=n_best,
                sampling=sampling,
                need_attention=need_attention or decoding.replace_unknown,
                generators=[torch.Generator().manual_seed(seeds[i]) for i in rows] if sampling is not None else None,
            )

        batches = cut_batches(order, decoding.batch_size, device=device_of(self.run.model))
        stage = progress.stage("Translating", total=len(order), unit="sentences")
        with ops.packed_weights(getattr(torch, decoding.precision)):
            results = map_batches(search, batches, device=device_of(self.run.model), poll=self._poll, stage=stage)
        found: list[list[Hypothesis]] = [[] for _ in lines]
        for rows, hypotheses in zip(batches, results, strict=True):
            for row, own in zip(rows, hypotheses, strict=True):
                found[row] = own
        translations = []
        for line, item, truncated, hypotheses in zip(lines, encoded, cut, found, strict=True):
            texts = [self._text(hypothesis, item, line, decoding.replace_unknown) for hypothesis in hypotheses]
            translations.append(Translation(texts[0] if texts else "", texts, hypotheses, item, truncated))
        return translations

    def stream(
        self, lines: Iterable[str], *, decoding: DecodingConfig | None = None, n_best: int = 1, sampling: SamplingOptions | None = None
    ) -> Iterator[Translation]:
        """Translate any number of lines in constant memory, a chunk at a time; in order, one result a line."""
        for chunk in in_chunks(lines, len):
            yield from self.translate(chunk, decoding=decoding, n_best=n_best, sampling=sampling)

    def align(self, line: str, target: str) -> AttentionRecord | None:
        """Return what the model attends to when it is made to produce `target`; None without attention or without tokens.

        Both are cut to `data.max_length` tokens, as for translation.
        """
        limit = self.run.config.data.max_length
        source, forced = (
            vocabulary.encode(text).first(limit) for vocabulary, text in zip(self.run.vocabularies, (line, target), strict=True)
        )
        if not source.ids or not forced.ids:
            return None
        batch = collate([source.ids], [forced.ids], (0,)).to(device_of(self.run.model))
        with torch.inference_mode():
            weights = self.run.model.decode(batch.source, batch.source_lengths, batch.target_input).weights
        if weights is None:
            return None
        return _record(source.pieces, forced.pieces, weights[0], source_text=line, target_text=target)

    def align_layers(self, line: str, target: str, *, max_weights: int | None = None) -> AttentionRecord | None:
        """Return the record of `align` with the attention of every layer and head, up to so many weights."""
        record = self.align(line, target)
        if record is None:
            return None
        limit = self.run.config.data.max_length
        source, forced = (
            vocabulary.encode(text).first(limit).ids for vocabulary, text in zip(self.run.vocabularies, (line, target), strict=True)
        )
        return add_layers(self.run, record, source, forced, max_weights=max_weights)

    def record(self, line: str, translation: Translation, rank: int = 0) -> AttentionRecord | None:
        """Return what was attended to for one hypothesis, to look at; None without attention or hypotheses.

        The alignment comes first, then every layer and head with its areas, and all hypotheses of the search.
        """
        if rank >= len(translation.hypotheses) or translation.hypotheses[rank].attention is None:
            return None
        hypothesis = translation.hypotheses[rank]
        ids = [token for token in hypothesis.tokens if token != EOS]
        pieces = self.run.vocabularies.target.pieces(ids)
        assert hypothesis.attention is not None
        found = _record(
            translation.source.pieces,
            pieces,
            hypothesis.attention,
            source_text=line,
            target_text=translation.texts[rank],
            scores=hypothesis.log_probs[: len(pieces) + 1],
        )
        found = add_layers(self.run, found, translation.source.ids, ids)
        return add_hypotheses(self.run, found, translation.hypotheses, translation.texts)

    def _search(
        self,
        sources: list[list[int]],
        prefixes: list[list[int]],
        decoding: DecodingConfig,
        *,
        n_best: int,
        sampling: SamplingOptions | None,
        need_attention: bool,
        generators: list[torch.Generator] | None,
    ) -> list[list[Hypothesis]]:
        model, device = self.run.model, device_of(self.run.model)
        batch = collate(sources, [[] for _ in sources], tuple(range(len(sources)))).to(device)
        options = DecodingOptions(
            bos=BOS,
            eos=EOS,
            pad=PAD,
            beam_size=max(decoding.beam_size, n_best) if sampling is None else 1,
            n_best=n_best if sampling is None else 1,
            # Room for a translation twice as long as its source; what runs on past that has lost its way.
            max_length=[min(decoding.max_length, 2 * len(ids) + 30) + len(prefix) for ids, prefix in zip(sources, prefixes, strict=True)],
            min_length=decoding.min_length,
            length_penalty=decoding.length_penalty,
            coverage_penalty=decoding.coverage_penalty,
            no_repeat_ngram_size=decoding.no_repeat_ngram_size,
            banned=(PAD, BOS),
            prefix=prefixes if any(prefixes) else None,
            source_lengths=batch.source_lengths.tolist(),
            need_attention=need_attention and self.run.model.attends,
        )
        # On a CPU the packed weights have the precision.
        half = device.type == "cuda" and decoding.precision == "bfloat16"
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=half):
            state, step = model.start(batch.source, batch.source_lengths), model.decoding_step
            if sampling is not None:
                count = len(sources)
                return sample(step, state, batch_size=count, options=options, sampling=sampling, generator=generators, device=device)
            search = greedy_search if options.beam_size == 1 else beam_search
            return search(step, state, batch_size=len(sources), options=options, device=device)

    def _encode(self, lines: Sequence[str]) -> tuple[list[TokenizedText], list[int]]:
        # The model was never shown a longer source; the rest of one is cut off, and the caller told. One line at a time: the
        # tokens of a line of a megabyte take a hundred times its size.
        encoded, cut = [], []
        for line in lines:
            whole = self.run.vocabularies.source.encode(line if line.strip() else "")
            encoded.append(whole.first(self.run.config.data.max_length))
            cut.append(len(whole.ids) - len(encoded[-1].ids))
        return encoded, cut

    def _text(self, hypothesis: Hypothesis, source: TokenizedText, line: str, replace: bool) -> str:
        target: Vocabulary = self.run.vocabularies.target
        ids = [token for token in hypothesis.tokens if token != EOS]
        if not replace or UNK not in ids:
            return target.decode(ids)
        assert hypothesis.attention is not None
        looked = hypothesis.attention[: len(ids), : len(source.ids)].argmax(-1).tolist()
        pieces = target.pieces(ids)
        words = (line[slice(*source.offsets[at])] if token == UNK else piece for token, piece, at in zip(ids, pieces, looked, strict=True))
        return single_line(" ".join(words))


def check_decoding(config: TranslationConfig, decoding: DecodingConfig, *, attends: bool | None = None) -> None:
    """Refuse a way of decoding that a run's model or vocabulary cannot follow.

    Args:
        config: of the run.
        decoding: what is asked for.
        attends: whether there is an attention over the source; None: as the configuration says.

    Raises:
        ConfigError: names the setting and what it needs.

    Example:
        >>> check_decoding(TranslationConfig(), DecodingConfig(replace_unknown=True))
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: decoding.replace_unknown: needs vocabulary.kind word, this run has bpe
    """
    attends = config.model.attends if attends is None else attends
    if decoding.replace_unknown and config.vocabulary.kind != "word":
        raise ConfigError(f"decoding.replace_unknown: needs vocabulary.kind word, this run has {config.vocabulary.kind}")
    if decoding.replace_unknown and not attends:
        raise ConfigError("decoding.replace_unknown: this model has no attention to tell which source word to take")
    if decoding.coverage_penalty and not attends:
        raise ConfigError("decoding.coverage_penalty: this model has no attention, so nothing is covered")


def _record(
    source: list[str], target: list[str], weights: Tensor, *, source_text: str, target_text: str, scores: list[float] | None = None
) -> AttentionRecord:
    # The end of sentence is part of what was read and written, and often where the attention rests.
    rows = weights.shape[0]
    return AttentionRecord.alignment(
        source=[*source, "</s>"],
        target=[*target, "</s>"][:rows],
        weights=weights[:, : len(source) + 1],
        texts=(source_text, target_text),
        scores=None if scores is None else scores[:rows],
    )
