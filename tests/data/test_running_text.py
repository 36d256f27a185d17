"""A text as streams: every token once, each chunk after the one before it, the same for the same settings."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.running_text import EncodedText, SeparateLines, TextStreams, encode_text, pad_rows, text_size
from regard.data.vocabulary import BOS, EOS, PAD, Vocabulary
from regard.errors import DataError


def text(lengths: list[int]) -> EncodedText:
    """Return lines of so many tokens, all different, their ends not counted."""
    numbers = iter(range(10, 10_000))
    lines = [[*(next(numbers) for _ in range(length)), EOS] for length in lengths]
    tokens = np.array([token for line in lines for token in line], dtype=np.int32)
    return EncodedText(tokens, np.concatenate([[0], np.cumsum([len(line) for line in lines])]).astype(np.int64), 7, 0)


def rows(streams: TextStreams, epoch: int, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return inputs and goals of every stream, its chunks one after the other."""
    inputs, goals = ([[] for _ in range(count)] for _ in range(2))
    for planned in streams.plan(epoch):
        batch = streams.batch(planned)
        assert int(batch.lengths.sum()) == planned.tokens
        assert (batch.stream_group, batch.first) == (planned.stream_group, planned.number == 0)
        for row, stream in enumerate(planned.indices):
            size = int(batch.lengths[row])
            assert (batch.goals[row, size:] == PAD).all()
            assert (batch.inputs[row, size:] == PAD).all()
            inputs[stream] += batch.inputs[row, :size].tolist()
            goals[stream] += batch.goals[row, :size].tolist()
    return inputs, goals


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    streams=st.integers(1, 4),
    stream_groups=st.integers(1, 3),
    chunk=st.integers(1, 7),
    shuffle=st.booleans(),
)
def test_every_token_is_read_once_and_in_order(lengths: list[int], streams: int, stream_groups: int, chunk: int, shuffle: bool) -> None:
    whole = text(lengths)
    if len(whole.tokens) < stream_groups * streams:
        with pytest.raises(DataError, match=f"has {len(whole.tokens)} tokens.*= {stream_groups * streams} streams"):
            TextStreams(whole, streams=streams, chunk=chunk, stream_groups=stream_groups)
        return
    cut = TextStreams(whole, streams=streams, chunk=chunk, stream_groups=stream_groups, shuffle=shuffle, seed=5)
    inputs, goals = rows(cut, 0, stream_groups * streams)
    joined, before = list(chain(*goals)), list(chain(*inputs))
    assert sorted(joined) == sorted(whole.tokens.tolist())
    assert before == [BOS if token == EOS else token for token in [EOS, *joined[:-1]]]
    if not shuffle:
        assert joined == whole.tokens.tolist()
    assert len(cut.plan(0)) % stream_groups == 0
    assert all(row for row in goals)


def test_an_order_depends_on_seed_and_epoch_alone() -> None:
    whole = text([3, 5, 2, 7, 4, 0, 6, 1])
    cut = TextStreams(whole, streams=2, chunk=5, shuffle=True, seed=7)
    first, second = rows(cut, 0, 2), rows(cut, 1, 2)
    assert first != second
    assert rows(cut, 0, 2) == first, "an epoch comes again as it was"
    assert rows(TextStreams(whole, streams=2, chunk=5, shuffle=True, seed=7), 1, 2) == second
    assert rows(TextStreams(whole, streams=2, chunk=5, shuffle=True, seed=8), 0, 2) != first
    lines = {tuple(whole.line(number)) for number in range(8)}
    joined = list(chain(*second[1]))
    ends = [place + 1 for place, token in enumerate(joined) if token == EOS]
    assert {tuple(joined[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)} == lines


def test_a_stream_begins_with_a_line_where_one_begins_nearby() -> None:
    inputs, _ = rows(TextStreams(text([4, 5, 4, 6, 5, 4] * 11), streams=3, chunk=5), 0, 3)
    assert [row[0] for row in inputs] == [BOS] * 3


def test_a_text_of_one_long_line_is_cut_anywhere() -> None:
    inputs, goals = rows(TextStreams(text([29]), streams=3, chunk=4), 0, 3)
    assert [len(row) for row in goals] == [10, 10, 10]
    assert inputs[1][0] == goals[0][-1]


def test_streams_are_about_equally_long() -> None:
    _, goals = rows(TextStreams(text([9, 1, 30, 2, 2, 17, 5] * 13), streams=5, chunk=11, stream_groups=2), 0, 10)
    lengths = [len(row) for row in goals]
    assert max(lengths) - min(lengths) <= 2 * 11


def test_separate_lines_each_begin_anew() -> None:
    whole = text([3, 0, 5])
    lines = SeparateLines(whole, batch_tokens=100, seed=1)
    (planned,) = lines.plan(0)
    batch = lines.batch(planned)
    assert planned.tokens == int(batch.lengths.sum()) == 11
    assert (batch.inputs[:, 0] == BOS).all()
    assert [row[:size].tolist() for row, size in zip(batch.goals, batch.lengths, strict=True)] == [
        whole.line(number).tolist() for number in planned.indices
    ]


def test_a_text_counts_its_bytes_with_its_ends_of_lines() -> None:
    vocabulary = Vocabulary.train(["Häuser\u2028 x"], kind="character", size=30)
    found = encode_text(["Häu", "", "\u2028z\ud800"], vocabulary)
    assert found.size == len("Häu\n\n\u2028z?\n".encode())
    assert found.starts.tolist() == [0, 4, 5, 9]
    assert found.unknown == 2


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character"])
def test_bytes_that_no_token_predicts_are_counted(kind: str) -> None:
    lines = ["ein Hund", "", "der  Hund ", " ein", "ein\u00a0Hund", "\u3000", "Häuser", "ein\tHund"]
    vocabulary = Vocabulary.train([*lines, *lines], kind=kind, size=400)
    found = encode_text(lines, vocabulary)
    decoded = [vocabulary.decode(found.line(number).tolist()) for number in range(len(lines))]
    assert found.unknown == 0
    assert found.lost == text_size(lines) - text_size(decoded) + (kind == "word")  # and a tab that comes back as a space
    assert bool(found.undefined) == (decoded != lines) == (kind in ("word", "unigram"))


def test_a_batch_without_tokens_still_has_a_column() -> None:
    # A network that reads nothing has no gradients to share with the other processes, which would wait for them.
    batch = pad_rows([np.zeros(0, np.int32)] * 2, [EOS, EOS])
    assert batch.inputs.shape == (2, 1)
    assert batch.lengths.tolist() == [0, 0]
