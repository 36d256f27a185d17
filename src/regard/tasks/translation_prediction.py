"""Translate text with a trained run, line by line, with attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard import progress
from regard.config import DecodingConfig, TranslationConfig
from regard.data.batching import collate
from regard.data.lines import single_line
from regard.data.markup import split_markup
from regard.data.markup_placement import place_markup
from regard.data.shortlist import Shortlist
from regard.data.vocabulary import EOS, NAMES, UNK, TokenizedText, Vocabulary
from regard.decoding import ForcedPhrases, Hypothesis, Phrase, SamplingOptions
from regard.errors import ConfigError, DataError, RangeError
from regard.ops import OutputShortlist
from regard.tasks.argument_types import takes_inputs
from regard.tasks.confidence import Calibration, read_calibration
from regard.tasks.forced_text import ForcedText, Glossary, Terms, check_forced
from regard.tasks.long_lines import divide_line, joined_hypothesis, joined_source, surely_long
from regard.tasks.predict import Generation, Predictor, collector_paused, hypotheses_json, longest_first, predict
from regard.tasks.run_folder import device_of
from regard.tasks.translation_run import TranslationRun, open_ensemble

if TYPE_CHECKING:
    from regard.viewer import AttentionRecord


class Translation(NamedTuple):
    """Result for one line.

    Attributes:
        text: the best translation, one line; empty for an empty or blank line.
        texts: the texts of all hypotheses returned, best first.
        hypotheses: their tokens, scores and attention.
        source: source tokens.
        truncated: number of source tokens cut off; 0 for a line that is translated in parts.
        unplaced: requested prefixes and terms that the text lacks.
        confidence: expected chrF of `text`, 0 to 100; None without a calibration, or for a line without text.
        parts: the translations of the parts of a line longer than `data.max_length`; empty for others. See
            `regard.tasks.long_lines.divide_line`.
    """

    text: str
    texts: list[str]
    hypotheses: list[Hypothesis]
    source: TokenizedText
    truncated: int
    unplaced: list[str] = []  # noqa: RUF012 - a field of a tuple; nobody adds to it
    confidence: float | None = None
    parts: list[Translation] = []  # noqa: RUF012 - as above

    @classmethod
    def joined(cls, parts: Sequence[Translation], lines: Sequence[str]) -> Translation:
        """Return the translation of a line from those of its parts, or of the only one.

        Tokens and log-probabilities are those of all parts, EOS included; scores are sums. The confidence is the mean, weighted by tokens.

        Args:
            parts: one or more.
            lines: their sources; joined, the line.
        """
        if len(parts) == 1:
            return parts[0]
        read = [part for part in parts if part.hypotheses] or parts[:1]
        ranks = range(min(len(part.hypotheses) for part in read))
        texts = [" ".join(part.texts[rank] for part in read) for rank in ranks]
        hypotheses = [joined_hypothesis([part.hypotheses[rank] for part in read]) for rank in ranks]
        found = [(part.confidence, len(part.hypotheses[0].tokens)) for part in read if part.confidence is not None]
        confidence = sum(one * size for one, size in found) / sum(size for _, size in found) if len(found) == len(read) else None
        unplaced = list(dict.fromkeys(text for part in parts for text in part.unplaced))
        source = joined_source([part.source for part in parts], lines)
        return cls(texts[0] if texts else "", texts, hypotheses, source, 0, unplaced, confidence, [*parts])

    def part_texts(self, rank: int = 0) -> list[str]:
        """Return the texts of the parts of a hypothesis; of a line translated whole the one text."""
        return [part.texts[rank] if part.texts else "" for part in self.parts] or [self.texts[rank] if self.texts else ""]

    def to_json(self) -> dict[str, Any]:
        """Return texts and scores as a JSON value, with `unplaced`, `confidence` and the number of `parts` if any."""
        unplaced = {"unplaced": self.unplaced} if self.unplaced else {}
        confidence = {} if self.confidence is None else {"confidence": round(self.confidence, 2)}
        parts = {"parts": len(self.parts)} if self.parts else {}
        return {"text": self.text, "hypotheses": hypotheses_json(self.texts, self.hypotheses), **confidence, **unplaced, **parts}


class Translator(Predictor[TranslationRun]):
    """Translate with a trained run, or an ensemble.

    Args:
        run: an opened run; `regard.tasks.translation_run.open_ensemble` makes one of several.
        poll: called before each batch; may raise to stop.

    Example:
        >>> Translator.open("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """

    @classmethod
    def open(cls, folder: str | Path, *others: str | Path) -> Translator:
        """Load a run folder, or several with equal vocabularies as an ensemble.

        Raises:
            CheckpointError: see `regard.tasks.translation_run.open_translation_run`.
            ConfigError: see `regard.tasks.translation_run.open_ensemble`.
        """
        return cls(open_ensemble([folder, *others]))

    @takes_inputs
    def use_images(self, folder: str | Path | None, *, names: str | Path | None = None) -> None:
        """Say where the images are that second inputs name; without this, they are where the training images were.

        Args:
            folder: of the images; None: that of `names`.
            names: the file with the names; None: the current folder.

        Raises:
            ConfigError: a folder is given, but the model reads no images; or there is no such folder.
        """
        images = self.run.vocabularies.images
        if images is None and folder is not None:
            raise ConfigError(f"--images: {self.run.folder} reads no images")
        if folder is not None and not Path(folder).is_dir():
            raise ConfigError(f"--images: {folder}: no such folder")
        if images is not None:
            images.folder = Path(folder) if folder is not None else Path() if names in (None, "-") else Path(names).parent

    @takes_inputs
    @collector_paused()
    def translate(
        self,
        lines: Sequence[str],
        *,
        decoding: DecodingConfig | None = None,
        n_best: int = 1,
        sampling: SamplingOptions | None = None,
        prefixes: Sequence[str] | None = None,
        terms: Terms = None,
        need_attention: bool = False,
    ) -> list[Translation]:
        """Translate lines; results do not depend on the other items, except with `decoding.shortlist`, which serves a batch.

        Scores may differ by rounding, because other items change the shapes of matrix products.

        A line longer than `data.max_length` is translated in parts, see `Translation.joined`. It is cut if attention is needed, or for a
        model of two inputs.

        Args:
            lines: one sentence each; for a model of two inputs both, with a tab between them (`regard.data.parallel.join_inputs`). An
                image is given by its name, see `use_images`, or as a `data:image/...;base64,` address.
            decoding: decoding settings; None: the run's.
            n_best: hypotheses per line; with sampling, see `SamplingOptions.num_samples`.
            sampling: sample instead of beam search.
            prefixes: forced beginning of each translation, "" for none.
            terms: forced translations of words, for all lines or per line.
            need_attention: return attention with the hypotheses.

        Returns:
            One `Translation` per line, in order.

        Raises:
            ConfigError: settings that do not fit the model, or an argument of another type.
            DataError: a line lacks an input.
        """
        check_forced(len(lines), prefixes, terms)
        decoding = decoding or self.run.config.decoding
        check_decoding(self.run.config, decoding, attends=self.run.model.attends)
        if decoding.shortlist:
            _ = self.shortlist  # before the work begins: there may be none
        divisible = self.run.config.second is None and not need_attention
        # The beginning of a line that will be divided is enough for now.
        encoded, cut = self._encode([line[: self._limit] if divisible and surely_long(line, self._limit) else line for line in lines])
        parts = self._divide(lines, cut) if divisible else []
        if parts:
            lines, prefixes, terms = _of_parts(parts, prefixes, terms)
            encoded, cut = self._encode(lines)
        forced = self._forced(encoded, lines, prefixes, terms, decoding.max_length)
        follow = self.run.vocabularies.target.may_follow_word() if any(own.phrases for own in forced) else []
        generation, model = Generation.of(sampling, len(lines), decoding.precision), self.run.model
        beams = [each.beam(decoding.beam_size) for each in forced]

        def search(rows: list[int]) -> list[list[Hypothesis]]:
            sources, own = [encoded[row].ids for row in rows], [forced[row] for row in rows]
            batch = collate(sources, [[] for _ in rows], tuple(range(len(rows)))).to(device_of(model))
            # At most twice the source length; longer translations are degenerate.
            room = [min(decoding.max_length, 2 * len(ids) + 30 + each.room) for ids, each in zip(sources, own, strict=True)]
            copied = [True] * batch.source.shape[1] if self.run.config.model.copy_attention else []  # entries of source words
            options = generation.options(
                decoding.model_copy(update={"beam_size": beams[rows[0]]}),
                n_best,
                max_length=[limit + len(each.prefix) for limit, each in zip(room, own, strict=True)],
                prefix=[each.prefix for each in own] if any(each.prefix for each in own) else None,
                phrases=ForcedPhrases(wanted, follow + copied) if (wanted := [_phrases(each) for each in own])[0] else None,
                source_lengths=batch.source_lengths.tolist(),
                need_attention=(need_attention or decoding.replace_unknown) and model.attends,
            )
            start = partial(model.start, batch.source, batch.source_lengths)
            step, at_once = model.decoding_step, model.greedy
            if decoding.shortlist:
                shortlist = self._shortlist_of(sources, own)
                step, at_once = partial(step, shortlist=shortlist), partial(at_once, shortlist=shortlist)
            found = generation.run(start, step, rows, options, device=device_of(model), at_once=at_once)
            return self._named(found, sources)

        rows = [row for row in longest_first([len(item.ids) for item in encoded]) if encoded[row].ids]
        found: dict[int, list[Hypothesis]] = {}
        # Lines with terms are in separate batches, those of one beam together, so that they do not affect the others.
        kinds = [(bool(each.phrases), beam) for each, beam in zip(forced, beams, strict=True)]
        for kind in sorted({kinds[row] for row in rows}):
            group = [row for row in rows if kinds[row] == kind]
            stage = progress.stage("Translating", total=len(group), unit="sentences")
            found |= predict(model, search, group, decoding.batch_size, stage=stage, poll=self._poll, precision=decoding.precision)
        seen = {row: (found[row][0].log_probs, len(encoded[row].ids)) for row in rows if found[row]}
        expected = dict(zip(seen, self.calibration.expect([*seen.values()]), strict=True)) if self.calibration else {}
        translations = []
        for row, (line, item, truncated) in enumerate(zip(lines, encoded, cut, strict=True)):
            hypotheses = found.get(row, [])
            texts = [self._text(hypothesis, item, line, decoding.replace_unknown) for hypothesis in hypotheses]
            known = [UNK if token >= NAMES else token for token in hypotheses[0].tokens] if hypotheses else []
            unplaced = forced[row].missed(known, follow)
            translations.append(Translation(texts[0] if texts else "", texts, hypotheses, item, truncated, unplaced, expected.get(row)))
        left = iter(translations)
        return [Translation.joined([next(left) for _ in own], own) for own in parts] if parts else translations

    def _divide(self, lines: Sequence[str], cut: Sequence[int]) -> list[list[str]]:
        # The parts of each line, of which `cut` tokens are too many; none if no line can be divided.
        vocabulary, limit = self.run.vocabularies.source, self._limit
        parts = [
            divide_line(line, vocabulary, limit) if more or surely_long(line, limit) else [line]
            for line, more in zip(lines, cut, strict=True)
        ]
        return parts if any(len(own) > 1 for own in parts) else []

    def _named(self, found: list[list[Hypothesis]], sources: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        # A model that copies numbers an unknown word by its position in the source; give it the word's own id.
        if not self.run.config.model.copy_attention:
            return found
        size = len(self.run.vocabularies.target)

        def named(one: Hypothesis, source: Sequence[int]) -> Hypothesis:
            return one._replace(tokens=[token if token < size else source[token - size] for token in one.tokens])

        return [[named(one, source) for one in own] for own, source in zip(found, sources, strict=True)]

    @property
    def _limit(self) -> int:
        return self.run.config.data.max_length

    @cached_property
    def calibration(self) -> Calibration | None:
        """Calibration of the confidence; None if the run has none or is an ensemble."""
        return None if hasattr(self.run.model, "models") else read_calibration(self.run.folder)

    @cached_property
    def shortlist(self) -> Shortlist:
        """The run's shortlist.

        Raises:
            ConfigError: there is none, or the run is an ensemble.
            CheckpointError: it is damaged.
        """
        from regard.tasks.shortlist import read_shortlist

        return read_shortlist(self.run)

    def _shortlist_of(self, sources: Sequence[Sequence[int]], forced: Sequence[ForcedText]) -> OutputShortlist:
        rows = [row for text in forced for row in (text.prefix, *(row for _, phrase in text.phrases for row in phrase.rows))]
        more = [token for row in rows for token in row]
        tokens = torch.from_numpy(self.shortlist.candidates(sources, more)).to(device_of(self.run.model))
        return OutputShortlist.of(self.run.model.output, tokens)

    @takes_inputs
    def translate_tagged(
        self,
        lines: Sequence[str],
        *,
        decoding: DecodingConfig | None = None,
        n_best: int = 1,
        sampling: SamplingOptions | None = None,
        prefixes: Sequence[str] | None = None,
        terms: Terms = None,
    ) -> list[Translation]:
        """Translate lines without their tags, and place these by word links; see `regard.data.markup`.

        A line without markup is translated as by `translate`, whose arguments these are. The texts have the tags; tokens, scores and
        attention are those of the lines without.

        Raises:
            ConfigError: the model has no attention, which gives the links, or reads two inputs; or see `translate`.
        """
        from regard.tasks.word_links import find_part_links

        if self.run.config.second is not None:
            raise ConfigError("keep tags: not with a model of two inputs, whose tags would be those of both")
        if not self.run.model.attends:
            raise ConfigError("keep tags: this model has no attention over the source to place them by")
        check_forced(len(lines), prefixes, terms)
        marked = [split_markup(line) for line in lines]
        plain = [line.plain for line in marked]
        prefixes = prefixes and [split_markup(text).plain for text in prefixes]  # their tags come with the line's
        found = self.translate(plain, decoding=decoding, n_best=n_best, sampling=sampling, prefixes=prefixes, terms=terms)
        places = [(row, rank) for row, line in enumerate(marked) if line.marked for rank in range(len(found[row].texts))]
        pairs = [(marked[row].plain, found[row].part_texts(rank)) for row, rank in places]
        for (row, rank), links in zip(places, find_part_links(self.run, pairs, unit="markup", poll=self._poll), strict=True):
            found[row].texts[rank] = place_markup(marked[row], found[row].texts[rank], links)
        return [
            item._replace(text=item.texts[0] if item.texts else place_markup(line, "", set()))
            for line, item in zip(marked, found, strict=True)
        ]

    @takes_inputs
    def align(self, line: str, target: str) -> AttentionRecord | None:
        """Return the attention for a given `target`; None without attention or tokens.

        Both are cut to `data.max_length` tokens, as for translation.
        """
        source, forced = self._encode_pair(line, target)
        if not source.ids or not forced.ids:
            return None
        batch = collate([source.ids], [forced.ids], (0,)).to(device_of(self.run.model))
        with torch.inference_mode():
            weights = self.run.model.decode(batch.source, batch.source_lengths, batch.target_input).weights
        if weights is None:
            return None
        return self._alignment(source.pieces, forced.pieces, weights[0], texts=(line, target))

    @takes_inputs
    def align_layers(self, line: str, target: str, *, max_weights: int | None = None) -> AttentionRecord | None:
        """Return the record of `align` with the attention of every layer and head, up to so many weights; without such a bound with the
        alternatives of each token."""
        from regard.tasks.record_layers import add_alternatives, add_layers  # not for translation alone

        source, forced = self._encode_pair(line, target)
        if not source.ids or not forced.ids:
            return None
        batch = collate([source.ids], [forced.ids], (0,)).to(device_of(self.run.model))
        weights, maps = self.run.model.alignment_and_maps(batch.source, batch.source_lengths, batch.target_input)
        if weights is None:
            return None
        record = self._alignment(source.pieces, forced.pieces, weights[0], texts=(line, target))
        if max_weights is None:
            record = add_alternatives(self.run, record, source.ids, forced.ids)
        return add_layers(self.run, record, source.ids, forced.ids, max_weights=max_weights, found=maps)

    @takes_inputs
    def record(self, line: str, translation: Translation, rank: int = 0) -> AttentionRecord | None:
        """Return the attention record of one hypothesis; None without attention or hypotheses.

        The alignment comes first, then every layer and head with its areas; then the alternatives of each token and all hypotheses.

        Raises:
            RangeError: a line with hypotheses has none of this rank.
        """
        from regard.tasks.record_layers import add_alternatives, add_layers, hypothesis_records

        if rank >= len(translation.hypotheses) > 0:
            raise RangeError(f"record: rank: expected 0 to {len(translation.hypotheses) - 1}, found {rank}")
        hypothesis = translation.hypotheses[rank] if translation.hypotheses else None
        if hypothesis is None or hypothesis.attention is None:
            return None
        ids = [token for token in hypothesis.tokens if token != EOS]
        pieces = self.run.vocabularies.target.pieces(ids, translation.source.words())
        texts, scores = (line, translation.texts[rank]), hypothesis.log_probs[: len(pieces) + 1]
        found = self._alignment(translation.source.pieces, pieces, hypothesis.attention, texts=texts, scores=scores)
        found = add_layers(self.run, found, translation.source.ids, ids)
        if found.items["target"].tokens:
            found = add_alternatives(self.run, found, translation.source.ids, ids)
        vocabulary, columns = self.run.vocabularies.target, len(found.items["source"])
        told = {} if translation.confidence is None or rank else {"confidence": f"{translation.confidence:.0f} (expected chrF)"}
        told |= {"could not be placed": ", ".join(translation.unplaced)} if translation.unplaced else {}
        shown = hypothesis_records(vocabulary, translation.hypotheses, translation.texts, columns=columns, words=translation.source.words())
        return replace(found, hypotheses=shown, meta={**found.meta, **told})

    def _alignment(
        self, source: list[str], target: list[str], weights: Tensor, *, texts: tuple[str, str], scores: list[float] | None = None
    ) -> AttentionRecord:
        from regard.viewer import AttentionRecord
        from regard.viewer.items import kind_marks

        # The end of sentence is part of what was read and written, and often where the attention rests.
        rows = weights.shape[0]
        return AttentionRecord.alignment(
            source=[*source, "</s>"],
            target=[*target, "</s>"][:rows],
            weights=weights[:, : len(source) + 1],
            texts=texts,
            marks=kind_marks(self.run.vocabularies.target.kind),
            scores=None if scores is None else scores[:rows],
        )

    def _encode_pair(self, line: str, target: str) -> list[TokenizedText]:
        texts, limit = zip(self.run.vocabularies, (line, target), strict=True), self.run.config.data.max_length
        return [vocabulary.encode(text).first(limit) for vocabulary, text in texts]

    def _encode(self, lines: Sequence[str]) -> tuple[list[TokenizedText], list[int]]:
        # The model was never shown a longer source; the rest of one is cut off, and the caller told. One line at a time: the
        # tokens of a line of a megabyte take a hundred times its size.
        encoded, cut = [], []
        for number, line in enumerate(lines, start=1):
            if missing := self.run.vocabularies.source.missing(line):
                raise DataError(f"line {number}: {missing}")
            try:
                whole = self.run.vocabularies.source.encode(line if line.strip() else "")
            except DataError as error:
                raise DataError(f"line {number}: {error}") from error
            encoded.append(whole.first(self.run.config.data.max_length))
            cut.append(len(whole.ids) - len(encoded[-1].ids))
        return encoded, cut

    def _forced(
        self,
        encoded: Sequence[TokenizedText],
        lines: Sequence[str],
        prefixes: Sequence[str] | None,
        terms: Glossary | Sequence[Glossary] | None,
        most: int,
    ) -> list[ForcedText]:
        vocabulary, empty = self.run.vocabularies.target, Glossary([])
        glossaries = [terms or empty] * len(lines) if terms is None or isinstance(terms, Glossary) else terms
        # Terms in the truncated part are ignored.
        read = (line[: item.offsets[-1][1]] if item.ids else "" for line, item in zip(lines, encoded, strict=True))
        asked = zip([""] * len(lines) if prefixes is None else prefixes, glossaries, read, strict=True)
        return [ForcedText.of(vocabulary, prefix, glossary.find(line), most=most) for prefix, glossary, line in asked]

    def _text(self, hypothesis: Hypothesis, source: TokenizedText, line: str, replace: bool) -> str:
        target: Vocabulary = self.run.vocabularies.target
        ids = [token for token in hypothesis.tokens if token != EOS]
        if not replace or UNK not in ids:
            return target.decode(ids, source.words())
        assert hypothesis.attention is not None
        looked = hypothesis.attention[: len(ids), : len(source.ids)]
        # The EOS between two inputs cannot replace an unknown word, nor can an image.
        end = source.ids.index(EOS) if EOS in source.ids else len(source.ids)
        words_end = end if self.run.vocabularies.images is not None else len(source.ids)
        unusable = torch.tensor([at == end or at >= words_end for at in range(len(source.ids))])
        looked = looked.masked_fill(unusable, -1).argmax(-1).tolist()
        pieces = target.pieces(ids, source.words())
        words = (line[slice(*source.offsets[at])] if token == UNK else piece for token, piece, at in zip(ids, pieces, looked, strict=True))
        return single_line(" ".join(words))


def _of_parts(parts: Sequence[Sequence[str]], prefixes: Sequence[str] | None, terms: Terms) -> tuple[list[str], list[str] | None, Terms]:
    # The parts of all lines; a prefix is that of the first part, terms count in all.
    lines = [part.strip() if len(own) > 1 else part for own in parts for part in own]
    if prefixes is not None:
        prefixes = [text for own, begin in zip(parts, prefixes, strict=True) for text in (begin, *[""] * (len(own) - 1))]
    if terms is not None and not isinstance(terms, Glossary):
        terms = [glossary for own, glossary in zip(parts, terms, strict=True) for _ in own]
    return lines, prefixes, terms


def _phrases(forced: ForcedText) -> list[Phrase]:
    return [phrase for _, phrase in forced.phrases]


def check_decoding(config: TranslationConfig, decoding: DecodingConfig, *, attends: bool | None = None) -> None:
    """Check decoding settings against a run's model and vocabulary.

    Args:
        config: configuration of the run.
        decoding: decoding settings.
        attends: whether there is an attention over the source; None: as the configuration says.

    Raises:
        ConfigError: incompatible settings.

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
    if decoding.shortlist and config.model.copy_attention:
        raise ConfigError("decoding.shortlist: not with model.copy_attention, which needs the probabilities of all tokens")
