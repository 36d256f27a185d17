"""Word links from a trained model, and the selection of the best attention for them."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard import ops, progress
from regard.data.batching import SequenceBatch, collate
from regard.data.lines import write_files
from regard.data.markup import word_spans
from regard.data.parallel import SentencePair
from regard.data.vocabulary import EOS, TokenizedText
from regard.errors import CheckpointError, ConfigError, DataError, counted, shown
from regard.metrics import links_from_weights
from regard.metrics.alignment import Links
from regard.models import LayerAttention
from regard.strict_json import parse_json
from regard.tasks.batch_threads import map_batches
from regard.tasks.long_lines import divide_line, first_words
from regard.tasks.pair_scores import target_log_probs
from regard.tasks.run_folder import device_of
from regard.tasks.translation_run import TranslationRun

FILE = "alignment.json"
# Pairs for the selection, and tokens of each: leave-one-out takes one forward pass per token.
MAX_PAIRS = 64
MAX_TOKENS = 40
_LINKED_TOGETHER = 64

LinkUnit = Literal["word", "character"]
MarkupUnit = Literal["markup"]
"""The words that tags can enclose, see `regard.data.markup.word_spans`."""
LinkMethod = Literal["attention", "leave-one-out"]


class LinkAttention(NamedTuple):
    """The attention used for the links of a run.

    Attributes:
        name: module name, such as "decoder.layers.2.cross_attention.attention".
        head: from 0; None: the mean over heads.
        step: whose attention counts for a target token: "predicts", the step that predicts it, or "reads", the next one, which reads it.
        effect: log-probability that a target token loses without the linked source token, relative to the max loss over source tokens; mean
            over the tokens of `pairs` pairs.
        pairs: sentence pairs it was measured on.
    """

    name: str
    head: int | None
    step: Literal["predicts", "reads"]
    effect: float
    pairs: int

    def __str__(self) -> str:
        head = "mean of the heads" if self.head is None else f"head {self.head + 1}"
        return f"{self.name}, {head}, of the step that {self.step} the token"


def find_links(
    run: TranslationRun,
    pairs: Sequence[SentencePair],
    *,
    unit: LinkUnit | MarkupUnit = "word",
    method: LinkMethod = "attention",
    poll: Callable[[], None] | None = None,
) -> list[Links]:
    """Link each target word to the source word it comes from.

    "attention" links to the word with the most attention, using the attention of `read_choice`, else the model's own alignment (the mean
    over heads); an ensemble uses the mean over its runs. A source word has the sum of its tokens, a target word the mean. "leave-one-out"
    links to the word whose tokens, removed one at a time, cost the target word most log-probability; one forward pass per source token.

    Args:
        run: a loaded run.
        pairs: (source, target). Both are cut to `data.max_length` tokens; the rest has no links.
        unit: what the numbers count: words (what white space separates) or characters.
        method: "attention" or "leave-one-out".
        poll: called before each sentence; may raise to stop.

    Returns:
        For each pair a set of (target, source) indices; at most one link per target word, none for an empty side.

    Raises:
        ConfigError: "attention" for a model without attention.
        CheckpointError: the stored choice is damaged or does not fit the model.

    Example:
        >>> from regard.tasks.translation_run import open_translation_run
        >>> def links(folder, source, target):
        ...     return find_links(open_translation_run(folder), [(source, target)])[0]
        >>> links("no-such-run", "ein Hund", "a dog")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    if method == "attention" and not run.model.attends:
        raise ConfigError("links: this model has no attention over the source; the method leave-one-out needs none")
    choices = _choices(run) if method == "attention" else []

    @torch.inference_mode()
    def find(pair: SentencePair) -> Links:
        sides = [_encode(run, number, text) for number, text in enumerate(pair)]
        if not all(side.ids for side in sides):
            return set()
        source, target = sides
        if method == "leave-one-out":
            weights = leave_one_out(run, source.ids, target.ids)
        else:
            (weights,) = _attention(choices, [source], [target])
        return _unit_links(pair, (source, target), weights, unit)

    stage = progress.stage("Aligning", total=len(pairs), unit="sentences")
    with ops.packed_weights():
        return map_batches(find, pairs, device=device_of(run.model), poll=poll, stage=stage)


def find_part_links(
    run: TranslationRun,
    pairs: Sequence[tuple[str, Sequence[str]]],
    *,
    unit: LinkUnit | MarkupUnit = "word",
    poll: Callable[[], None] | None = None,
) -> list[Links]:
    """Link the words of translations, also of lines translated in parts.

    Args:
        run: a loaded run.
        pairs: source lines, and the translations of their parts (`regard.tasks.Translation.part_texts`), which are joined by spaces.
        unit: see `find_links`.
        poll: see `find_links`.

    Returns:
        For each line a set of (target, source) numbers of the whole line.
    """
    vocabulary, limit = run.vocabularies.source, run.config.data.max_length
    parts = [[line] if len(texts) == 1 else divide_line(line, vocabulary, limit) for line, texts in pairs]
    flat = [(part.strip(), text) for own, (_, texts) in zip(parts, pairs, strict=True) for part, text in zip(own, texts, strict=True)]
    found, results = iter(find_links(run, flat, unit=unit, poll=poll)), []
    for own, (_, texts) in zip(parts, pairs, strict=True):
        links, target = set(), 0
        for text, source in zip(texts, _first_units(own, unit), strict=True):
            links |= {(word + target, linked + source) for word, linked in next(found)}
            target += len(unit_spans(text, unit))
        results.append(links)
    return results


def _first_units(parts: list[str], unit: LinkUnit | MarkupUnit) -> list[int]:
    # The number of the first unit of each part in the whole line.
    if unit == "word" or len(parts) == 1:
        return first_words(parts)
    ends = [end for _, end in unit_spans("".join(parts), unit)]
    return [bisect_right(ends, size) for size in accumulate(map(len, parts[:-1]), initial=0)]


@torch.inference_mode()
def link_pairs(run: TranslationRun, pairs: Sequence[SentencePair], *, unit: LinkUnit = "word") -> list[Links]:
    """Link pairs by attention as `find_links` does, many in a batch: faster for a whole corpus.

    Args:
        run: a loaded run with attention.
        pairs: (source, target), cut to `data.max_length` tokens.
        unit: what the numbers count.

    Raises:
        ConfigError: the model has no attention.
        CheckpointError: the stored choice is damaged or does not fit the model.
    """
    if not run.model.attends:
        raise ConfigError(f"{run.folder}: this model has no attention over the source to link words by")
    choices, encoded = _choices(run), [[_encode(run, side, text) for side, text in enumerate(pair)] for pair in pairs]
    found: list[Links] = [set() for _ in pairs]
    usable = [number for number, sides in enumerate(encoded) if all(side.ids for side in sides)]
    usable.sort(key=lambda number: [len(side.ids) for side in encoded[number]])
    for start in range(0, len(usable), _LINKED_TOGETHER):
        numbers = usable[start : start + _LINKED_TOGETHER]
        sources, targets = zip(*(encoded[number] for number in numbers), strict=True)
        for number, weights in zip(numbers, _attention(choices, sources, targets), strict=True):
            found[number] = _unit_links(pairs[number], encoded[number], weights, unit)
    return found


def leave_one_out(run: TranslationRun, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """Return the log-probability that each target token loses without each source token.

    Args:
        run: a loaded run.
        source: S token ids, without EOS.
        target: T token ids, without EOS.

    Returns:
        (T, S), nats; positive if the source token helped.
    """
    # Keep the EOS between two inputs, which separates them.
    variants = [list(source), *([*source[:left], *source[left + int(source[left] != EOS) :]] for left in range(len(source)))]
    batch = collate(variants, [list(target)] * len(variants), range(len(variants))).to(device_of(run.model))
    log_probs = target_log_probs(run.model, batch)[:, : len(target)]
    return (log_probs[:1] - log_probs[1:]).T


def choose_attention(
    run: TranslationRun,
    pairs: Iterable[SentencePair],
    *,
    taught: tuple[str, int | None, str] | None = None,
    poll: Callable[[], None] | None = None,
) -> LinkAttention | None:
    """Select the attention whose links agree best with leave-one-out, among all cross-attention layers and heads.

    For each target token a candidate selects its most attended source token. The measure is the summed loss of log-probability without
    those tokens, relative to the summed max loss. It needs no known links. Models differ in whether the step that predicts a token or the
    one that reads it carries the alignment (Chen et al. 2020, arXiv:2004.14837), so both are tried.

    Args:
        run: a loaded run.
        pairs: sentence pairs, such as the validation set; the first 64 of at most 40 tokens per side are used.
        taught: name, head and step of the only candidate, an attention that learned links (`regard.models.loss_guides.LinkGuide`).
        poll: called before each sentence; may raise to stop.

    Returns:
        The best, the first of ties. None without candidates or pairs.
    """
    encoded = ([_encode(run, number, text) for number, text in enumerate(pair)] for pair in pairs)
    usable = ((source, target) for source, target in encoded if all(0 < len(side.ids) <= MAX_TOKENS for side in (source, target)))
    used = list(islice(usable, MAX_PAIRS))

    @torch.inference_mode()
    def agreement(pair: tuple[TokenizedText, TokenizedText]) -> tuple[float, dict[tuple[str, int | None, str], float]]:
        source, target = pair
        effect = leave_one_out(run, source.ids, target.ids).clamp(min=0)
        found: dict[tuple[str, int | None, str], float] = {}
        for layer in _source_attention(run, [source], [target]):
            for head in (None, *range(layer.weights.shape[1])) if layer.weights.shape[1] > 1 else (None,):
                for step in ("predicts", "reads"):
                    key = (layer.name, head, step)
                    if taught in (None, key):
                        linked = _token_weights(layer, 0, head, step, len(source.ids), len(target.ids)).argmax(1, keepdim=True)
                        found[key] = effect.gather(1, linked).sum().item()
        return effect.max(1).values.sum().item(), found

    stage = progress.stage("Choosing the attention for links", total=len(used), unit="sentences")
    measured = map_batches(agreement, used, device=device_of(run.model), poll=poll, stage=stage)
    most = sum(own for own, _ in measured)
    totals: dict[tuple[str, int | None, str], float] = {}
    for _, found in measured:
        for key, value in found.items():
            totals[key] = totals.get(key, 0.0) + value
    if not totals or (most == 0 and taught is None):
        return None
    (name, head, step), total = max(totals.items(), key=lambda item: item[1])
    return LinkAttention(name, head, "reads" if step == "reads" else "predicts", round(total / most if most else 0.0, 4), len(used))


def write_choice(folder: Path, choice: LinkAttention) -> None:
    """Store the selected attention of a run."""
    write_files({folder / FILE: (json.dumps(choice._asdict(), indent=1) + "\n").encode()})


def read_choice(run: TranslationRun) -> LinkAttention | None:
    """Return the stored choice of a run; None if nothing is stored, and for an ensemble, whose `members` have their own.

    Raises:
        CheckpointError: it is damaged.
    """
    path = run.folder / FILE
    if run.members or not path.exists():
        return None
    try:
        found = LinkAttention(**parse_json(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged ({shown(str(error))}); remove it, or choose again with `regard align --choose`") from error
    types = isinstance(found.name, str) and (found.head is None or type(found.head) is int) and found.step in ("predicts", "reads")
    if not types:
        raise CheckpointError(f"{path}: damaged; remove it, or choose again with `regard align --choose`")
    return found


def unit_spans(text: str, unit: LinkUnit | MarkupUnit) -> list[tuple[int, int]]:
    """Return the character spans that link numbers count: words (what white space separates) or characters.

    Example:
        >>> unit_spans("ab c", "word"), len(unit_spans("ab c", "character"))
        ([(0, 2), (3, 4)], 4)
    """
    if unit == "markup":
        return word_spans(text)
    return [match.span() for match in re.finditer(r"\S+" if unit == "word" else r"(?s:.)", text)]


def judged_links(found: Links, possible: Links, unit: LinkUnit) -> Links:
    """Return the found links that count for the alignment error: of words all, of characters those with any known source.

    A character without one, such as the hyphen of a date, may be linked to anything.

    Example:
        >>> sorted(judged_links({(0, 0), (1, 2)}, {(0, 1)}, "character"))
        [(0, 0)]
    """
    known = {target for target, _ in possible}
    return {link for link in found if link[0] in known} if unit == "character" else found


def check_links(
    links: Iterable[tuple[int, int]], pair: SentencePair, unit: LinkUnit, where: str, *, setting: str | None = "--link-unit "
) -> None:
    """Check that known links stay within their pair.

    Args:
        links: (target, source) numbers of units.
        pair: (source, target).
        unit: what the numbers count.
        where: file and line, for errors.
        setting: the option for the unit, to be followed by its value; None: there is none.

    Raises:
        DataError: a number is outside the pair, as those of characters often are where words are counted.

    Example:
        >>> check_links([(0, 5)], ("ab cd", "x"), "word", "test.links, line 1")
        Traceback (most recent call last):
            ...
        regard.errors.DataError: test.links, line 1: 5-0, but the source has 2 words, numbered from 0; for characters: --link-unit character
    """
    counts = [len(unit_spans(text, unit)) for text in reversed(pair)]
    for link in sorted(links):
        for place, side, count in zip(link, ("target", "source"), counts, strict=True):
            if place >= count:
                other = f"; for characters: {setting}character" if unit == "word" and setting else ""
                raise DataError(f"{where}: {link[1]}-{link[0]}, but the {side} has {counted(count, unit)}, numbered from 0{other}")


def linked_tokens(pair: SentencePair, links: Links, sides: Sequence[TokenizedText], unit: LinkUnit = "word") -> np.ndarray:
    """Convert links of words or characters to links of tokens: each token has the links of what it overlaps.

    Args:
        pair: (source, target).
        links: (target, source) numbers of units.
        sides: the tokens of source and target.
        unit: what the numbers count.

    Returns:
        (L, 2) target and source tokens, ascending.

    Example:
        >>> tokens = TokenizedText([7, 8, 9], ["a", "b", "c"], [(0, 1), (1, 2), (3, 4)])
        >>> linked_tokens(("ab c", "ab c"), {(0, 1)}, (tokens, tokens)).tolist()
        [[0, 2], [1, 2]]
    """
    source, target = (overlap_shares(unit_spans(text, unit), side.offsets) > 0 for text, side in zip(pair, sides, strict=True))
    linked = np.zeros((target.shape[1], source.shape[1]), bool)
    for row, column in links:
        linked |= target[row][:, None] & source[column]
    return np.argwhere(linked)


def regroup_weights(weights: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Convert token attention to larger or smaller units.

    A source unit gets the sum over its tokens, a target unit the mean over its tokens.

    Args:
        weights: (T, S) token weights.
        rows: (target units, T), share of each target token in each unit (`overlap_shares`).
        columns: (source units, S), likewise.

    Returns:
        (target units, source units).
    """
    total = rows.sum(1, keepdims=True)
    return (rows / np.where(total > 0, total, 1.0)) @ weights @ columns.T


def overlap_shares(units: Sequence[tuple[int, int]], tokens: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the share of each token's characters in each unit: (units, tokens), 0 to 1.

    Example:
        >>> overlap_shares([(0, 2), (3, 4)], [(0, 1), (2, 4)]).tolist()
        [[1.0, 0.0], [0.0, 0.5]]
    """
    first, last = np.array(units, dtype=np.int64).reshape(-1, 2, 1).transpose(1, 0, 2)
    start, end = np.array(tokens, dtype=np.int64).reshape(-1, 2).T
    return np.maximum(0, np.minimum(end, last) - np.maximum(start, first)) / np.maximum(1, end - start)


def _encode(run: TranslationRun, side: int, text: str) -> TokenizedText:
    return run.vocabularies[side].encode(text if text.strip() else "").first(run.config.data.max_length)


def _unit_shares(text: str, tokens: TokenizedText, unit: LinkUnit | MarkupUnit) -> np.ndarray:
    # Only units of the untruncated text: a line of a million characters has a million others.
    return overlap_shares(unit_spans(text[: tokens.offsets[-1][1]], unit), tokens.offsets)


def _unit_links(pair: SentencePair, sides: Sequence[TokenizedText], weights: Tensor, unit: LinkUnit | MarkupUnit) -> Links:
    rows, columns = (_unit_shares(text, side, unit) for text, side in zip(reversed(pair), reversed(sides), strict=True))
    return links_from_weights(regroup_weights(weights.double().cpu().numpy(), rows, columns))


def _choices(run: TranslationRun) -> list[tuple[TranslationRun, LinkAttention | None]]:
    return [(member, read_choice(member)) for member in run.members or (run,)]


def _attention(
    choices: Sequence[tuple[TranslationRun, LinkAttention | None]], sources: Sequence[TokenizedText], targets: Sequence[TokenizedText]
) -> list[Tensor]:
    """Return the weights (T, S) of each pair, without EOS: the mean over the runs."""
    found = [_attention_of(run, choice, sources, targets) for run, choice in choices]
    return [torch.stack(own).mean(0) for own in zip(*found, strict=True)]


def _attention_of(
    run: TranslationRun, choice: LinkAttention | None, sources: Sequence[TokenizedText], targets: Sequence[TokenizedText]
) -> list[Tensor]:
    sizes = [(len(target.ids), len(source.ids)) for source, target in zip(sources, targets, strict=True)]
    if choice is None:
        batch = _collated(run, sources, targets)
        weights = run.model.decode(batch.source, batch.source_lengths, batch.target_input).weights
        assert weights is not None
        return [weights[number, :rows, :columns] for number, (rows, columns) in enumerate(sizes)]
    for found in _source_attention(run, sources, targets):
        if found.name == choice.name and (choice.head is None or 0 <= choice.head < found.weights.shape[1]):
            return [_token_weights(found, number, choice.head, choice.step, columns, rows) for number, (rows, columns) in enumerate(sizes)]
    raise CheckpointError(f"{run.folder / FILE}: the model has no attention like {choice}; remove the file")


def _collated(run: TranslationRun, sources: Sequence[TokenizedText], targets: Sequence[TokenizedText]) -> SequenceBatch:
    source_ids, target_ids = ([text.ids for text in side] for side in (sources, targets))
    return collate(source_ids, target_ids, range(len(sources))).to(device_of(run.model))


def _source_attention(run: TranslationRun, sources: Sequence[TokenizedText], targets: Sequence[TokenizedText]) -> list[LayerAttention]:
    batch = _collated(run, sources, targets)
    maps = run.model.attention_maps(batch.source, batch.source_lengths, batch.target_input)
    return [found for found in maps if (found.query, found.key) == ("target", "source")]


def _token_weights(found: LayerAttention, number: int, head: int | None, step: str, columns: int, rows: int) -> Tensor:
    weights = found.weights[number].mean(0) if head is None else found.weights[number, head]
    first = int(step == "reads")
    return weights[first : first + rows, :columns]
