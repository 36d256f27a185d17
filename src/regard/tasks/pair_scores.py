"""Log-probabilities of given sentence pairs, per sentence and token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import ops, progress
from regard.data.batching import SequenceBatch, collate
from regard.data.parallel import SentencePair
from regard.data.vocabulary import TokenizedText
from regard.models import EncoderDecoder
from regard.tasks.predict import predict
from regard.tasks.run_folder import device_of
from regard.tasks.translation_run import TranslationRun

# Rows of logits alive at a time.
BATCH_ROWS = 512


class PairScore(NamedTuple):
    """Score of a target given its source.

    Attributes:
        source: the source.
        target: the target.
        pieces: the target's tokens as text, "</s>" for its end last.
        log_probs: of each of them after those before it, nats.
        truncated: source and target tokens that were cut off (`data.max_length`). A target that is cut off has no end.
    """

    source: str
    target: str
    pieces: list[str]
    log_probs: list[float]
    truncated: tuple[int, int]

    @property
    def total(self) -> float:
        """The log-probability of the target, its end included."""
        return sum(self.log_probs)

    @property
    def mean(self) -> float:
        """The log-probability per token."""
        return self.total / len(self.log_probs)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as a JSON value."""
        figures = {"log_prob": self.total, "log_prob_per_token": self.mean}
        cut = {"truncated": list(self.truncated)} if any(self.truncated) else {}
        return {"source": self.source, "target": self.target, **figures, "tokens": self.pieces, "log_probs": self.log_probs, **cut}


def score_pairs(
    run: TranslationRun, pairs: Sequence[SentencePair], *, batch_size: int = 64, poll: Callable[[], None] | None = None
) -> list[PairScore]:
    """Return how likely targets are, given their sources; the score of one pair does not depend on the others.

    Args:
        run: an opened run, or several (`regard.tasks.translation_run.open_ensemble`).
        pairs: (source, target). Both are cut to `data.max_length` tokens.
        batch_size: pairs per batch.
        poll: called before each batch; may raise to stop.

    Returns:
        One `PairScore` per pair, in order.

    Raises:
        ConfigError: `batch_size` is no whole number of 1 or more.

    Example:
        >>> from regard.tasks.translation_run import open_translation_run
        >>> def total(folder, source, target):
        ...     return score_pairs(open_translation_run(folder), [(source, target)])[0].total
        >>> total("no-such-run", "ein Hund", "a dog")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    limit, device = run.config.data.max_length, device_of(run.model)
    whole = [run.vocabularies.source.encode_ids([source for source, _ in pairs])]
    whole.append(run.vocabularies.target.encode_ids([target for _, target in pairs]))
    sources, targets = ([TokenizedText(ids, [], []).first(limit).ids for ids in side] for side in whole)
    order = sorted(range(len(pairs)), key=lambda i: (-len(targets[i]), -len(sources[i]), i))

    @torch.inference_mode()
    def score(rows: list[int]) -> list[list[float]]:
        found = target_log_probs(run.model, collate(sources, targets, rows).to(device)).tolist()
        return [own[: len(targets[i]) + 1] for i, own in zip(rows, found, strict=True)]

    stage = progress.stage("Scoring", total=len(order), unit="pairs")
    log_probs = predict(run.model, score, order, batch_size, stage=stage, poll=poll)
    scores = []
    for i, (source, target) in enumerate(pairs):
        cut = (len(whole[0][i]) - len(sources[i]), len(whole[1][i]) - len(targets[i]))
        pieces = run.vocabularies.target.pieces(targets[i])
        # The end of a target that was cut off is not the end of the target.
        ended = [] if cut[1] else ["</s>"]
        scores.append(PairScore(source, target, [*pieces, *ended], log_probs[i][: len(pieces) + len(ended)], cut))
    return scores


def target_log_probs(model: EncoderDecoder[Any], batch: SequenceBatch) -> Tensor:
    """Return the log-probability of each target token of a batch, EOS included: (B, T), nats, 0 at padding."""
    readout = model.decode(batch.source, batch.source_lengths, batch.target_input, need_weights=False).readout
    real = ops.length_mask(batch.target_lengths, batch.target_output.shape[1])
    rows, goals = readout[real], model.goals(batch.target_output, batch.source)[real]
    found = [
        model.logits(some).log_softmax(-1).gather(-1, goal.unsqueeze(-1)).squeeze(-1)
        for some, goal in zip(rows.split(BATCH_ROWS), goals.split(BATCH_ROWS), strict=True)
    ]
    log_probs = torch.cat(found)
    return log_probs.new_zeros(real.shape).masked_scatter(real, log_probs)
