"""Labelled sentences and sentence pairs: reading, hold-out split, and batches."""

from __future__ import annotations

import codecs
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from regard.data.batching import BatchPlan, plan_batches
from regard.data.encodings import SAMPLE, all_utf8, refuse_binary
from regard.data.labelled_examples import ExampleList, LabelledExample
from regard.data.lines import stream_bytes, stream_lines, whole_characters
from regard.data.tables import ENDINGS, as_json, ending_of, find_key, is_csv, names_columns, read_table, refuse_empty, tell_others
from regard.data.vocabulary import PAD
from regard.errors import ConfigError, DataError, counted, listed, shown
from regard.progress import message, stage
from regard.strict_json import kind_of

Encoding = Literal["utf-8", "latin-1"]

# Column names and keys of GLUE, SICK, SNLI and MultiNLI.
LABELS = ("label", "gold_label", "entailment_judgment", "class", "category")
TEXTS = (("text", "sentence"),)
PAIRS = (("premise", "sentence1", "sentence_A"), ("hypothesis", "sentence2", "sentence_B"))
# Labels of SNLI and MultiNLI, as text and as numbers (Hugging Face's export), and that of pairs without agreement among annotators.
OFFICIAL = {"-": {"entailment", "neutral", "contradiction"}, "-1": {"0", "1", "2"}}


class LabelledFile(NamedTuple):
    """Examples of a file, and the number of dropped pairs without annotator agreement."""

    path: str
    examples: Sequence[LabelledExample]
    dropped: int


def read_sentences(path: str | Path, *, encoding: Encoding = "utf-8") -> LabelledFile:
    r"""Read labelled sentences.

    By file extension, optionally with `.gz`:

    - `.jsonl`: objects with "label" (text or a whole number) and "text" or "sentence"; other keys are ignored.
    - `.tsv`: a label, a tab, a text; or, when the first line names its columns ("label" and "text" or "sentence", in any order, among
      others), those columns.
    - `.csv`: columns that the first line names so; see `regard.data.tables.read_table`.
    - any other: lines of a label, a space, and a text, as SST, TREC, MR and their like are passed around.

    Lines as in `regard.data.lines.read_lines`; none is skipped. A text may be empty.

    Args:
        path: the file.
        encoding: text encoding.

    Returns:
        The examples, at least one.

    Raises:
        DataError: the file cannot be read, has no example, or a line does not match the format.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.tsv").write_text("good\ta joy to watch\n")
        ...     list(read_sentences(Path(folder, "a.tsv")).examples)
        [LabelledExample(label='good', texts=('a joy to watch',), line=1)]
    """
    return _read(path, encoding, TEXTS, _from_words)


def read_entailment(path: str | Path, *, encoding: Encoding = "utf-8") -> LabelledFile:
    r"""Read labelled pairs of a premise and a hypothesis.

    - `.jsonl`: the official files of SNLI and MultiNLI ("gold_label", "sentence1", "sentence2"), or "label", "premise", "hypothesis".
    - `.csv`: columns that the first line names, as below; see `regard.data.tables.read_table`.
    - any other: columns with tabs between them, without quoting. When the first line names its columns, as in the files of SICK
      ("entailment_judgment", "sentence_A", "sentence_B"), of SNLI and MultiNLI, or by the names above, those; else three: label, premise,
      hypothesis.

    Pairs labelled "-" (no agreement) are dropped and counted, where the other labels are those of SNLI and MultiNLI; so are pairs labelled
    -1, where the others are 0, 1 and 2.

    Args:
        path: the file; its name may end in `.gz`.
        encoding: text encoding.

    Raises:
        DataError: see `read_sentences`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.tsv").write_text("neutral\ta dog\tan old dog\n-\ta dog\ta cat\n")
        ...     file = read_entailment(Path(folder, "a.tsv"))
        >>> file.examples[0].texts, file.dropped
        (('a dog', 'an old dog'), 1)
    """
    file = _read(path, encoding, PAIRS, None)
    examples = ExampleList.of(file.examples)
    names = {name.lower() for name in examples.names}
    missing = next((name for name, others in OFFICIAL.items() if name in names <= {name, *others}), None)
    kept = examples.codes != (-1 if missing is None else examples.names.index(missing))
    if not kept.any():
        raise DataError(f"{path}: every pair is labelled {missing!r}, expected at least one with a label")
    return file._replace(examples=examples.chosen(kept), dropped=len(kept) - int(kept.sum()))


def hold_out_labelled(examples: Sequence[LabelledExample], count: int, seed: int) -> tuple[ExampleList, ExampleList]:
    """Split off validation examples, stratified by label: at most a tenth, at least one; both parts keep the order.

    A pure function of its arguments.

    Args:
        examples: at least two.
        count: number to hold out, >= 1, capped at a tenth.
        seed: another seed holds out other examples.

    Returns:
        (training examples, held-out examples).

    Raises:
        DataError: there are fewer than two examples.
        ConfigError: `count` is below 1.

    Example:
        >>> examples = [LabelledExample("ab"[i % 2], (str(i),), i + 1) for i in range(40)]
        >>> train, held = hold_out_labelled(examples, 500, seed=1)
        >>> len(train), [sum(example.label == label for example in held) for label in "ab"]
        (36, [2, 2])
    """
    if count < 1:
        raise ConfigError(f"held_out: {count}, expected at least 1")
    if len(examples) < 2:
        raise DataError(f"{len(examples)} labelled examples: at least 2 are needed to hold one out for validation")
    packed, count = ExampleList.of(examples), max(1, min(count, len(examples) // 10))
    generator = random.Random(f"held out {seed}")
    order = np.array(generator.sample(range(len(packed)), len(packed)))
    codes, places = packed.codes[order], np.zeros(len(packed))
    for code in np.unique(codes):
        own = np.flatnonzero(codes == code)
        places[own] = (np.arange(len(own)) + 0.5) / len(own)
    # Each example's rank within its label, from 0 to 1: the first `count` are balanced over labels.
    ranks = np.argsort(np.argsort(np.array(packed.names, object), kind="stable"), kind="stable")
    first = np.lexsort((order, ranks[codes], places))[:count]
    chosen = np.zeros(len(packed), bool)
    chosen[order[first]] = True
    return packed.chosen(~chosen), packed.chosen(chosen)


def lowercase_text(text: str) -> str:
    r"""Lower-case a text character by character, keeping its length and offsets.

    Example:
        >>> lowercase_text("GR\u00dcN \u0130")
        'gr\xfcn \u0130'
    """
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)


class LabelledBatch(NamedTuple):
    """One padded batch of B examples with one or two texts.

    Attributes:
        tokens: (B, S) per text, without BOS and EOS, padded with PAD.
        lengths: (B,) per text.
        labels: (B,) class numbers.
        weights: (B,) example weights.
        indices: row indices in the data.
    """

    tokens: tuple[Tensor, ...]
    lengths: tuple[Tensor, ...]
    labels: Tensor
    weights: Tensor
    indices: tuple[int, ...]

    def to(self, device: torch.device | str) -> LabelledBatch:
        """Return the batch with its tensors on `device`."""
        move: Callable[[Tensor], Tensor] = lambda tensor: tensor.to(device, non_blocking=True)  # noqa: E731
        tokens, lengths = tuple(map(move, self.tokens)), tuple(map(move, self.lengths))
        return LabelledBatch(tokens, lengths, move(self.labels), move(self.weights), self.indices)


def plan_labelled(lengths: Sequence[Sequence[int] | np.ndarray], *, batch_tokens: int, seed: int, epoch: int) -> BatchPlan:
    """Group examples of similar length into batches, in random order; see `regard.data.batching.plan_batches`.

    Args:
        lengths: token counts of all examples, per text.
        batch_tokens: maximum padded tokens of the longer texts of a batch.
        seed: seed of the run.
        epoch: from 0.

    Returns:
        The batches; `tokens`, the loss denominator, counts examples.

    Example:
        >>> list(plan_labelled([[3, 9, 3]], batch_tokens=10, seed=1, epoch=0))
        [PlannedBatch(indices=(1,), tokens=1), PlannedBatch(indices=(0, 2), tokens=2)]
    """
    first, second = (lengths[0], [0] * len(lengths[0])) if len(lengths) == 1 else lengths
    return plan_batches(first, second, batch_tokens=batch_tokens, seed=seed, epoch=epoch).counting_rows()


def pad_tokens(rows: Sequence[Sequence[int] | np.ndarray]) -> tuple[Tensor, Tensor]:
    """Return token ids as (B, S), padded with PAD, and their lengths (B,).

    Example:
        >>> pad_tokens([[5, 6], [7]])
        (tensor([[5, 6],
                [7, 0]]), tensor([2, 1]))
    """
    counts = [len(row) for row in rows]
    padded = np.full((len(rows), max(counts, default=0)), PAD, dtype=np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(padded), torch.tensor(counts, dtype=torch.long)


def _read(
    path: str | Path, encoding: Encoding, names: Sequence[Sequence[str]], parse_line: Callable[[str, str], list[str]] | None
) -> LabelledFile:
    lines = _lines(path, encoding)
    ending = ending_of(path)

    def rows() -> Iterator[tuple[int, list[str]]]:
        tracked = reading.track(lines)
        if ending == ".json":
            raise DataError(f"{path}: expected a .jsonl file, with an object a line, or another of the formats")
        if ending == ".jsonl":
            for number, line in enumerate(tracked, 1):
                yield number, _from_json(line, f"{path}, line {number}", names, tell=number == 1)
        elif ending in ENDINGS or parse_line is None:
            yield from _from_table(tracked, str(path), names)
        else:
            for number, line in enumerate(tracked, 1):
                if number == 1 and names_columns(line, (LABELS, *names)):
                    raise DataError(f"{path}, line 1: names the columns of a table: name the file .csv")
                yield number, parse_line(line, f"{path}, line {number}")

    def examples() -> Iterator[LabelledExample]:
        for number, (label, *texts) in rows():
            if not label.strip():
                raise DataError(f"{path}, line {number}: the label is empty")
            yield LabelledExample(label.strip(), tuple(texts), number)

    with stage(f"Reading {path}", unit="lines") as reading:
        found = ExampleList.of(examples())
    if not found:
        raise DataError(f"{path}: no lines, expected at least one labelled example")
    _tell_header(path, found, names)
    if encoding == "utf-8" and any("\ufffd" in text for example in islice(found, SAMPLE) for text in example.texts):
        message(
            f"{path}: has characters U+FFFD, as where bytes are not UTF-8; an old collection may need data.encoding=latin-1", warning=True
        )
    return LabelledFile(str(path), found, 0)


def _tell_header(path: str | Path, found: ExampleList, names: Sequence[Sequence[str]]) -> None:
    """Tell of a first line that may be a header in other words: no other example has its label, and every other label has two or more."""
    counts, first = np.bincount(found.codes), found[0]
    if first.line == 1 and len(found) >= 10 and counts[found.codes[0]] == 1 and (counts == 1).sum() == 1:
        wanted = " and ".join(known[0] for known in (LABELS, *names))
        message(
            f"{path}, line 1: no other line has its label, {shown(first.label)}; if it is a header, name the columns {wanted}", warning=True
        )


def _lines(path: str | Path, encoding: Encoding) -> Iterator[str]:
    if encoding == "utf-8":
        return stream_lines(path)
    lines = stream_bytes(path, mark=False)
    sample = list(islice(lines, SAMPLE))
    refuse_binary(sample, str(path))
    if all_utf8(sample) or (sample[:1] and sample[0].startswith(codecs.BOM_UTF8)):
        message(f"{path}: is UTF-8, and read so, despite data.encoding={encoding}", warning=True)
        return stream_lines(path)
    return (line.decode(encoding) for line in chain(sample, lines))


def _from_table(lines: Iterator[str], path: str, names: Sequence[Sequence[str]]) -> Iterator[tuple[int, list[str]]]:
    table = read_table(lines, path, (LABELS, *names), quoted=is_csv(path))
    count = 1 + len(names)
    for number, row in table.rows:
        if len(row) != count:
            refuse_empty("".join(cell or "" for cell in row), f"{path}, line {number}")
            expected = "the label, a tab, the text" if count == 2 else "the label, the premise, the hypothesis, with tabs between them"
            raise DataError(f"{path}, line {number}: {counted(len(row), 'column')}, expected {count}: {expected}")
        yield number, cast(list[str], row)


def _from_words(line: str, where: str) -> list[str]:
    refuse_empty(line, where)
    label, space, text = line.partition(" ")
    if not label or not space or "\t" in label:
        advice = "; a file of columns with tabs between them is named .tsv" if "\t" in label else ""
        raise DataError(f"{where}: expected a label, a space and a text{advice}")
    return [label, text]


def _from_json(line: str, where: str, names: Sequence[Sequence[str]], *, tell: bool) -> list[str]:
    refuse_empty(line, where)
    item = as_json(line, where, "an object with a label and texts")
    if not isinstance(item, Mapping):
        raise DataError(f"{where}: expected an object with a label and texts, found {kind_of(item)}")
    if tell:
        found = [find_key(item, known, where) for known in (LABELS, *names)]
        tell_others([*item], (LABELS, *names), [None if key is None else [*item].index(key) for key in found], where)
    label = _value(item, LABELS, where)
    if isinstance(label, bool) or not isinstance(label, str | int):
        raise DataError(f"{where}: expected a label that is text or a whole number, found {kind_of(label)}")
    texts = []
    for known in names:
        text = _value(item, known, where)
        if not isinstance(text, str):
            raise DataError(f"{where}: expected text, found {kind_of(text)}")
        texts.append(whole_characters(text))
    return [whole_characters(str(label)), *texts]


def _value(item: Mapping[str, Any], known: Sequence[str], where: str) -> Any:
    key = find_key(item, known, where)
    if key is None:
        raise DataError(f"{where}: expected one of the keys {', '.join(known)}, found {listed(item) or 'none'}")
    return item[key]
