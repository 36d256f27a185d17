"""Score lines, continue prompts, and record attention with a trained language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import ops, progress
from regard.data.lines import single_line
from regard.data.running_text import pad_rows
from regard.data.vocabulary import BOS, EOS, PAD, UNK
from regard.decoding import DecodingOptions, Hypothesis, SamplingOptions
from regard.errors import ConfigError, DataError, NoAttentionError
from regard.flags import takes_flags
from regard.tasks.argument_types import takes_inputs
from regard.tasks.explained_records import token_alternatives
from regard.tasks.language_training import CHUNK, LanguageRun, open_language_run
from regard.tasks.predict import Generation, Predictor, hypotheses_json, longest_first, predict
from regard.tasks.run_folder import device_of
from regard.viewer import AttentionMap, AttentionRecord, Tokens
from regard.viewer.items import kind_marks

# Rows of logits alive at a time.
BATCH_ROWS = 512
# Maximum prompt tokens (the last ones): each takes a step.
MAX_PROMPT = 512
# Maximum tokens of an attention record: pages with more weights open slowly.
MAX_RECORD_TOKENS = 2048


class LineScore(NamedTuple):
    """Score of a line.

    Attributes:
        line: the line.
        pieces: its tokens as text, "</s>" for its end last.
        log_probs: of each of them after those before it, nats.
    """

    line: str
    pieces: list[str]
    log_probs: list[float]

    @property
    def total(self) -> float:
        """The log-probability of the line, its end included."""
        return sum(self.log_probs)

    @property
    def mean(self) -> float:
        """The log-probability per token."""
        return self.total / len(self.log_probs)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as a JSON value."""
        figures = {"log_prob": self.total, "log_prob_per_token": self.mean}
        return {"text": self.line, **figures, "tokens": self.pieces, "log_probs": self.log_probs}


class Continuation(NamedTuple):
    """Continuations of a prompt.

    Attributes:
        prompt: the prompt, one line.
        texts: per hypothesis, best first, the prompt and its continuation to the end of the line.
        hypotheses: their tokens, those of the prompt included, scores and log-probabilities.
        truncated: number of tokens cut off at the beginning of the prompt.
    """

    prompt: str
    texts: list[str]
    hypotheses: list[Hypothesis]
    truncated: int

    @property
    def text(self) -> str:
        """The best."""
        return self.texts[0]

    def to_json(self) -> dict[str, Any]:
        """Return texts and scores as a JSON value."""
        return {"prompt": self.prompt, "text": self.text, "hypotheses": hypotheses_json(self.texts, self.hypotheses)}


class LanguageModel(Predictor[LanguageRun]):
    """Score lines and continue prompts with a trained run; lines are independent.

    Args:
        run: a loaded run.
        poll: called before each batch; may raise to stop.

    Example:
        >>> LanguageModel.open("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """

    @classmethod
    def open(cls, folder: str | Path) -> LanguageModel:
        """Open a run folder.

        Raises:
            CheckpointError: see `regard.tasks.language_training.open_language_run`.
        """
        return cls(open_language_run(folder))

    @takes_inputs
    def score(
        self, lines: Sequence[str], *, batch_size: int = 64, context: Literal["separate", "continuous"] = "separate"
    ) -> list[LineScore]:
        """Return scores of lines, in order.

        Args:
            lines: an empty one is a line that ends at once.
            batch_size: lines per batch.
            context: "separate": each line is independent of the others; "continuous": each follows the one before, as in one text.

        Raises:
            ConfigError: one text instead of several, an item that is no text, another context, or a `batch_size` below 1.
        """
        if context not in ("separate", "continuous"):
            raise ConfigError(f"context: expected separate or continuous, found {context!r}")
        ids = [[*found, EOS] for found in self.run.vocabulary.encode_ids(lines)]
        texts = ids if context == "separate" else [list(chain(*ids))]
        # Longest first: active lines are always the first ones of a batch.
        rows = longest_first([len(text) for text in texts])
        stage = progress.stage("Scoring", total=len(rows), unit="lines" if context == "separate" else "texts")

        def score(rows: list[int]) -> list[list[float]]:
            return self._log_probs([texts[row] for row in rows])

        found = predict(self.run.model, score, rows, batch_size, stage=stage, poll=self._poll)
        log_probs = chain.from_iterable(found[number] for number in range(len(texts)))
        return [
            LineScore(line, [*self.run.vocabulary.pieces(own[:-1]), "</s>"], list(islice(log_probs, len(own))))
            for line, own in zip(lines, ids, strict=True)
        ]

    @takes_inputs
    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_length: int = 100,
        beam_size: int = 1,
        n_best: int = 1,
        sampling: SamplingOptions | None = None,
        batch_size: int = 64,
    ) -> list[Continuation]:
        """Continue prompts to the end of the line; results do not depend on the other items.

        Args:
            prompts: beginnings of lines, possibly empty.
            max_length: maximum generated tokens.
            beam_size: beam size; 1 is greedy decoding.
            n_best: hypotheses per prompt; with sampling, see `SamplingOptions.num_samples`.
            sampling: sample instead of beam search.
            batch_size: prompts per batch.

        Returns:
            One `Continuation` per prompt, in order.

        Raises:
            ConfigError: one text instead of several, an item that is no text, or an option of another type or out of range.
        """
        encoded = self.run.vocabulary.encode_ids(prompts)
        read = [ids[-MAX_PROMPT:] for ids in encoded]
        generation, model = Generation.of(sampling, len(prompts)), self.run.model

        def search(rows: list[int]) -> list[list[Hypothesis]]:
            options = DecodingOptions(
                bos=BOS,
                eos=EOS,
                pad=PAD,
                beam_size=beam_size if beam_size < 1 or sampling is not None else max(beam_size, n_best),
                n_best=n_best if sampling is None else 1,
                max_length=[max_length + len(read[row]) for row in rows],
                banned=(PAD, UNK, BOS),
                prefix=[read[row] for row in rows],
            )
            return generation.run(lambda: model.start(len(rows)), model.step, rows, options, device=device_of(model))

        rows = longest_first([len(ids) for ids in read])
        stage = progress.stage("Continuing", total=len(rows), unit="lines")
        found = predict(model, search, rows, batch_size, stage=stage, poll=self._poll)
        return [
            Continuation(
                single_line(prompt),
                [self._text(prompt, hypothesis.tokens[len(read[number]) :]) for hypothesis in found[number]],
                found[number],
                len(encoded[number]) - len(read[number]),
            )
            for number, prompt in enumerate(prompts)
        ]

    @takes_inputs
    def record(self, line: str) -> AttentionRecord | None:
        """Return the attention of the prediction of each token of a line, EOS included; None without attention.

        Keys are the tokens read before, as separate items: BOS, then the line without its end. The current token's state is the query and
        cannot be attended to.
        """
        if not self.run.model.attends:
            return None
        return self.record_tokens(self.run.vocabulary.encode_ids([line])[0], line, alternatives=True)

    @takes_flags
    def record_tokens(self, ids: list[int], line: str, *, alternatives: bool = False) -> AttentionRecord:
        """Return the record of a line from its tokens, without EOS, and the alternatives of each if asked for; the model attends."""
        goals = [*ids, EOS][:MAX_RECORD_TOKENS]
        pieces = self.run.vocabulary.pieces(ids[:MAX_RECORD_TOKENS])
        batch = pad_rows([torch.tensor(goals).numpy()], [EOS]).to(device_of(self.run.model))
        with torch.inference_mode():
            found = self.run.model.decode(batch.inputs, need_weights=True)
            log_probs = self._rows(found.readout[0], batch.goals[0])
        assert found.weights is not None
        weights = found.weights[0, :, -len(goals) :].float().cpu()
        marks = kind_marks(self.run.vocabulary.kind)
        items = {
            "text": Tokens([*pieces, "</s>"][: len(goals)], line, marks),
            "read": Tokens(["<s>", *pieces][: len(goals)], marks=marks),
        }
        window = AttentionMap("window", "self", "text", "read", weights)
        left = len(ids) + 1 - len(goals)
        meta = {"left out": f"the last {left} tokens, too many for one page"} if left else {}
        record = AttentionRecord(items, [window], scores={"text": log_probs.tolist()}, model=self.run.folder.name, meta=meta)
        if not alternatives:
            return record
        return replace(record, alternatives={"text": token_alternatives(self.run.model, found.readout[0], self.run.vocabulary)})

    @torch.inference_mode()
    def _log_probs(self, rows: list[list[int]]) -> list[list[float]]:
        # Rows longest first: the batch shrinks as rows end.
        model, found, past = self.run.model, [[] for _ in rows], None
        for start in range(0, max(map(len, rows), default=0), CHUNK):
            left = [torch.tensor(row[start : start + CHUNK]).numpy() for row in rows if len(row) > start]
            before = [row[start - 1] if start else EOS for row in rows[: len(left)]]
            batch = pad_rows(left, before).to(device_of(model))
            if past is not None:
                past = past.rows(torch.arange(len(left), device=batch.goals.device))
            output = model.decode(batch.inputs, past)
            past = output.past
            real = ops.length_mask(batch.lengths, batch.goals.shape[1])
            log_probs = self._rows(output.readout[real], batch.goals[real]).split(batch.lengths.tolist())
            for number, part in enumerate(log_probs):
                found[number] += part.tolist()
        return found

    def _rows(self, readout: Tensor, goals: Tensor) -> Tensor:
        # The log-probability of each goal (N,) after readouts (N, R).
        parts = []
        for rows, goal in zip(readout.split(BATCH_ROWS), goals.split(BATCH_ROWS), strict=True):
            logits = self.run.model.logits(rows)
            parts.append(-F.cross_entropy(logits, goal, reduction="none"))
        return torch.cat(parts)

    def _text(self, prompt: str, tokens: list[int]) -> str:
        # The prompt as given, even with unknown words, and its continuation.
        added = [token for token in tokens if token != EOS]
        vocabulary = self.run.vocabulary
        new, first = vocabulary.decode(added), vocabulary.pieces(added[:1])
        # A unigram piece that begins a word has a leading space, which decoding removes at the start of a text.
        apart = vocabulary.kind == "word" or (vocabulary.kind == "unigram" and first[:1] and first[0].startswith(" "))
        return single_line(prompt) + (" " if apart and prompt.strip() and new else "") + new


@takes_inputs
def language_records(folder: str | Path, lines: Sequence[str]) -> list[AttentionRecord]:
    """Record the attention of a run while predicting lines.

    Returns:
        One record per line, see `LanguageModel.record`.

    Raises:
        ConfigError: the model has no attention.
        DataError: there are no lines.
        CheckpointError: see `regard.tasks.language_training.open_language_run`.
    """
    model = LanguageModel.open(folder)
    records = [record for record in map(model.record, lines) if record is not None]
    if not model.run.model.attends:
        raise NoAttentionError(f"{folder}: this model has no attention to show")
    if not records:
        raise DataError("no attention to show: the input holds no lines")
    return records
