"""Step functions for tests, whose logits and attention depend on the sentence and on every token so far; and slow oracles.

A wrong reordering anywhere gives other numbers: the state records what each hypothesis has read, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.decoding import DecodingOptions, Hypothesis

BOS, EOS = 0, 3
PLACES = 1009  # rows of the tables: histories fall on them by a hash


@dataclass(frozen=True)
class Read:
    """What the hypotheses have read: sentences (B,), tokens (B, K, t)."""

    sentences: Tensor
    tokens: Tensor

    def select(self, rows: Tensor, beams: Tensor) -> Read:
        return Read(self.sentences[rows], self.tokens[rows[:, None], beams])


@dataclass
class HistoryStep:
    """Logits and attention looked up by a hash of the sentence and all tokens read; remembers the shapes it was given."""

    vocabulary: int = 4
    seed: int = 0
    source_lengths: Sequence[int] = (5,)
    end_bonus: float = 0.0
    device: str = "cpu"
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.logits = (2 * torch.randn(PLACES, self.vocabulary, generator=generator)).to(self.device)
        self.logits[:, EOS] += self.end_bonus
        self.scores = torch.randn(PLACES, max(self.source_lengths), generator=generator).to(self.device)
        self.lengths = torch.tensor(self.source_lengths, device=self.device)

    def start(self, sentences: Sequence[int]) -> Read:
        rows = torch.tensor(sentences, dtype=torch.long, device=self.device)
        return Read(rows, rows.new_zeros(len(sentences), 1, 0))

    def __call__(self, tokens: Tensor, state: Read) -> tuple[Tensor, Tensor | None, Read]:
        assert tokens.shape == state.tokens.shape[:2]
        self.shapes.append(tuple(tokens.shape))
        read = torch.cat([state.tokens, tokens[..., None]], -1)
        place = (state.sentences * 7 + 1)[:, None].expand_as(tokens)
        for token in read.unbind(-1):
            place = (place * 31 + token + 1) % PLACES
        lengths = self.lengths[state.sentences % len(self.lengths)]
        width = int(lengths.max())  # padded to the longest source of the batch, as a model does
        outside = torch.arange(width, device=self.device) >= lengths[:, None, None]
        attention = self.scores[place][..., :width].masked_fill(outside, -torch.inf).softmax(-1)
        return self.logits[place], attention, Read(state.sentences, read)


def read_alone(step: HistoryStep, sentence: int, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (T + 1, V) and attention (T + 1, S), in float64, of one hypothesis read by itself."""
    state = step.start([sentence])
    rows, weights = [], []
    for token in [BOS, *tokens]:
        logits, attention, state = step(torch.tensor([[token]]), state)
        assert attention is not None
        rows.append(logits[0, 0].double().log_softmax(-1))
        weights.append(attention[0, 0].double())
    return torch.stack(rows), torch.stack(weights)


def score_of(step: HistoryStep, sentence: int, tokens: Sequence[int], options: DecodingOptions) -> float:
    """Return the GNMT score of a finished hypothesis, written from the paper."""
    log_probs, attention = read_alone(step, sentence, tokens[:-1])
    total = sum(log_probs[i, token].item() for i, token in enumerate(tokens))
    score = total / ((5 + len(tokens)) ** options.length_penalty / 6**options.length_penalty)
    for j in range(step.source_lengths[sentence % len(step.source_lengths)]):
        covered = sum(attention[i, j].item() for i in range(len(tokens)))
        score += options.coverage_penalty * math.log(max(min(covered, 1.0), 1e-6))
    return score


def allowed(tokens: tuple[int, ...], sentence: int, options: DecodingOptions, vocabulary: int) -> list[int]:
    """Return the tokens that may come next."""
    prefix = (options.prefix[sentence] if options.prefix else None) or ()
    if len(tokens) < len(prefix):
        return [prefix[len(tokens)]]
    size = options.no_repeat_ngram_size
    seen = {tokens[i : i + size] for i in range(len(tokens) - size + 1)} if size else set()
    last = tokens[len(tokens) - size + 1 :] if size else ()
    rest = [
        token
        for token in range(vocabulary)
        if token not in options.banned and (token != EOS or len(tokens) >= options.min_length) and (*last, token) not in seen
    ]
    return rest or [EOS]


def every_hypothesis(options: DecodingOptions, sentence: int, vocabulary: int, tokens: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield all that a search may return."""
    assert isinstance(options.max_length, int)
    for token in allowed(tokens, sentence, options, vocabulary):
        longer = (*tokens, token)
        if token == EOS or len(longer) == options.max_length:
            yield longer
        else:
            yield from every_hypothesis(options, sentence, vocabulary, longer)


def exhaustive(step: HistoryStep, sentence: int, options: DecodingOptions) -> list[tuple[float, list[int]]]:
    """Return the n best (score, tokens) of all there are."""
    found = ((score_of(step, sentence, tokens, options), list(tokens)) for tokens in every_hypothesis(options, sentence, step.vocabulary))
    return sorted(found, key=lambda pair: -pair[0])[: options.n_best]


def same(left: Hypothesis, right: Hypothesis) -> bool:
    """Say whether two hypotheses are bit for bit the same; the narrower attention may lack padding."""
    if left[:3] != right[:3] or (left.attention is None) != (right.attention is None):
        return False
    if left.attention is None or right.attention is None:
        return True
    width = min(left.attention.size(1), right.attention.size(1))
    parts = (left.attention[:, width:], right.attention[:, width:])
    return bool((left.attention[:, :width] == right.attention[:, :width]).all()) and not any(bool(part.any()) for part in parts)
