"""LSTM language model, optionally with attention to its last states, or an N-gram RNN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import AttentionOutput, KeyValueAttention, KeyValueMemory, NGramMemory, NGramReadout
from regard.config import LanguageModelConfig
from regard.config.language import PARTS
from regard.constructor_checks import Dropout, checked
from regard.models.embedding import ScaledEmbedding
from regard.models.encoder_decoder import unpadded_loss
from regard.models.rnn_cells import Layers, RecurrentStack


class StreamState(NamedTuple):
    """State of B text streams between chunks: plain tensors, to detach, send and save.

    Stores states instead of keys, so that the next chunk uses current weights.

    Attributes:
        hidden: (N, B, H) of N layers.
        cell: (N, B, H).
        outputs: (B, L, H) the last L states of the top layer, oldest first; 0 if none is read later.
        mask: (B, L) bool, False before the beginning of the text.
    """

    hidden: Tensor
    cell: Tensor
    outputs: Tensor
    mask: Tensor

    def rows(self, index: Tensor | slice) -> StreamState:
        """Keep only the rows `index` (B',), in that order; a slice gives views."""
        return StreamState(self.hidden[:, index], self.cell[:, index], self.outputs[index], self.mask[index])


@dataclass(frozen=True)
class LanguageModelState:
    """Decoding state of B prompts with K hypotheses each.

    Attributes:
        layers: hidden and cell, each (B, K, H), per LSTM layer.
        memory: the keys and values, or the states, of the last L steps of B K hypotheses; None if no state is read later.
    """

    layers: Layers
    memory: KeyValueMemory | NGramMemory | None

    def select(self, rows: Tensor, beams: Tensor) -> LanguageModelState:
        """Keep prompts `rows` (B',) and their hypotheses `beams` (B', K')."""
        width = self.layers[0][0].shape[1]
        flat = (rows.unsqueeze(1) * width + beams).flatten()
        layers = tuple(tuple(part[rows.unsqueeze(1), beams] for part in layer) for layer in self.layers)
        return LanguageModelState(layers, None if self.memory is None else self.memory.rows(flat))


class LanguageModelOutput(NamedTuple):
    """Output for a chunk of text.

    Attributes:
        readout: (B, T, R) input of the output layer.
        past: state for the next chunk.
        weights: (B, T, L + T) attention over the L states before the chunk and the chunk's own; None without attention or if not requested.
    """

    readout: Tensor
    past: StreamState
    weights: Tensor | None


class RecurrentLanguageModel(nn.Module):
    """Predict each token of a text from those before it.

        h_i = LSTM(E y_i, h_{i-1});  h*_i = attention(h_{i-L} .. h_i), N-gram parts, or h_i;  p(y_{i+1}) = softmax(W P h*_i + b)

    Daniluk et al. 2017 (arXiv:1702.04521), sections 2.1 to 2.4. P maps h*_i to the embedding size for a tied W (Press and Wolf 2017);
    omitted if sizes agree or W is not tied.

    Differs from the paper: W may be tied, and there is dropout on embeddings, between layers and before the output layer.

    Parameters: embedding.weight (V, E); stack.* see `RecurrentStack`; attention.* see `KeyValueAttention`; ngram.* see
    `NGramReadout`; project.weight (E, d), P;
    output.weight (V, R), output.bias (V,).

    Args:
        embedding: (V, E).
        stack: LSTM layers over it.
        readout: attention to the last states of the top layer, or their N-gram parts; None: the state itself.
        project: P, or None.
        output: readout to vocabulary; its weight may be the embedding's.
        dropout: 0 to below 1.

    Example:
        >>> model = build_language_model(LanguageModelConfig(embed_dim=8, hidden_size=6, window=3), vocab_size=11).eval()
        >>> text = torch.randint(4, 11, (2, 7))
        >>> whole = model.decode(text)
        >>> first = model.decode(text[:, :5])                          # the same in two chunks
        >>> second = model.decode(text[:, 5:], first.past)
        >>> torch.allclose(torch.cat([first.readout, second.readout], 1), whole.readout, atol=1e-6)
        True
    """

    @checked
    def __init__(
        self,
        embedding: nn.Embedding,
        stack: RecurrentStack,
        readout: KeyValueAttention | NGramReadout | None,
        project: ops.Linear | None,
        output: ops.Linear,
        *,
        dropout: Dropout,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        self.attention = readout if isinstance(readout, KeyValueAttention) else None
        self.ngram = readout if isinstance(readout, NGramReadout) else None
        self.project = project
        self.output = output
        self.dropout = ops.Dropout(dropout)

    @property
    def attends(self) -> bool:
        """Whether the model has attention."""
        return self.attention is not None

    def past(self, batch_size: int) -> StreamState:
        """Return the initial, empty state."""
        count, size, window = len(self.stack.cells), self.stack.hidden_size, self._window
        zeros = self.output.weight.new_zeros(count, batch_size, size)
        outputs = zeros.new_zeros(batch_size, window, size)
        return StreamState(zeros, zeros, outputs, torch.zeros(batch_size, window, dtype=torch.bool, device=zeros.device))

    def decode(self, inputs: Tensor, past: StreamState | None = None, *, need_weights: bool = False) -> LanguageModelOutput:
        """Process a chunk of text.

        Padding at the end of a row does not change its outputs, but its state must not be used.

        Args:
            inputs: (B, T) tokens.
            past: state of the previous chunk; None at the beginning of a text.
            need_weights: return the attention.
        """
        past = self.past(inputs.shape[0]) if past is None else past
        states = self.dropout(self.embedding(inputs))
        layers = tuple(zip(past.hidden.unbind(), past.cell.unbind(), strict=True))
        states, last = self.stack.run(self.stack.project(states), layers)
        hidden, cell = (torch.stack(parts) for parts in zip(*last, strict=True))
        left, mask = past.outputs, past.mask
        if self._window:
            left = torch.cat([past.outputs, states], 1)[:, states.shape[1] :]
            mask = torch.cat([past.mask, past.mask.new_ones(inputs.shape)], 1)[:, states.shape[1] :]
        found = self._combine(states, past, need_weights)
        return LanguageModelOutput(self._read(found.context), StreamState(hidden, cell, left, mask), found.weights)

    def forward(
        self, inputs: Tensor, goals: Tensor, lengths: Tensor, past: StreamState | None = None, *, label_smoothing: float = 0.0
    ) -> tuple[ops.SequenceLoss, StreamState]:
        """Return the summed loss of a chunk, skipping padding in the output layer, and the next state.

        Args:
            inputs: (B, T) tokens before those to predict.
            goals: (B, T) the tokens to predict.
            lengths: (B,) unpadded lengths, 0 to T.
            past: state of the previous chunk; None at the beginning of a text.
            label_smoothing: eps of the smoothed cross-entropy.
        """
        found = self.decode(inputs, past)
        return unpadded_loss(self.output, found.readout, goals, lengths, label_smoothing=label_smoothing), found.past

    def start(self, batch_size: int) -> LanguageModelState:
        """Return the initial state, one hypothesis per prompt."""
        past = self.past(batch_size)
        layers = tuple((hidden.unsqueeze(1), cell.unsqueeze(1)) for hidden, cell in zip(past.hidden, past.cell, strict=True))
        reader = self.ngram if self.attention is None else self.attention
        return LanguageModelState(layers, None if reader is None else reader.memory(past.outputs, key_mask=past.mask))

    def step(self, tokens: Tensor, state: LanguageModelState) -> tuple[Tensor, Tensor | None, LanguageModelState]:
        """Decode the last token of each hypothesis (B, K): logits (B, K, V), None, and the new state."""
        layers = self.stack(self.stack.project(self.dropout(self.embedding(tokens))), state.layers)
        top, memory = layers[-1][0], state.memory
        if memory is not None:
            new = top.flatten(0, 1).unsqueeze(1)
            if isinstance(memory, KeyValueMemory):
                assert self.attention is not None
                found, memory = self.attention.step(new, memory)
            else:
                assert self.ngram is not None
                found, memory = self.ngram.step(new, memory)
            top = found.context.view(*tokens.shape, -1)
        return self.logits(self._read(top)), None, LanguageModelState(layers, memory)

    def logits(self, readout: Tensor) -> Tensor:
        """Map readouts (..., R) to logits (..., V), in float32 at least."""
        logits = self.output(readout)
        return logits if logits.dtype == torch.float64 else logits.float()

    @property
    def _window(self) -> int:
        reader = self.ngram if self.attention is None else self.attention
        return 0 if reader is None else reader.window

    def _combine(self, states: Tensor, past: StreamState, need_weights: bool) -> AttentionOutput:
        if self.attention is not None:
            return self.attention.step(states, self.attention.memory(past.outputs, key_mask=past.mask), need_weights=need_weights)[0]
        if self.ngram is not None:
            return self.ngram.step(states, self.ngram.memory(past.outputs, key_mask=past.mask))[0]
        return AttentionOutput(states, None)

    def _read(self, states: Tensor) -> Tensor:
        return self.dropout(states if self.project is None else self.project(states))


def build_language_model(config: LanguageModelConfig, *, vocab_size: int) -> RecurrentLanguageModel:
    """Build the configured language model, with new weights.

    Args:
        config: model configuration.
        vocab_size: V.

    Example:
        >>> build_language_model(LanguageModelConfig(attention="none"), vocab_size=11).attends
        False
    """
    embedding = ScaledEmbedding(vocab_size, config.embed_dim)
    stack = RecurrentStack("lstm", config.embed_dim, config.hidden_size, num_layers=config.num_layers, extra_dim=0, dropout=config.dropout)
    readout = None
    if config.attention == "ngram":
        readout = NGramReadout(config.hidden_size, config.order)
    elif config.attends:
        parts = PARTS[config.attention]
        readout = KeyValueAttention(
            config.hidden_size, config.window, parts=parts, dropout=config.attention_dropout, normalizer=config.normalizer
        )
    size = config.hidden_size // config.parts
    project = None
    if config.tie_embeddings and size != config.embed_dim:
        project, size = ops.Linear(size, config.embed_dim, bias=False), config.embed_dim
    output = ops.Linear(size, vocab_size)
    nn.init.zeros_(output.bias)
    if config.tie_embeddings:
        output.weight = embedding.weight
    return RecurrentLanguageModel(embedding, stack, readout, project, output, dropout=config.dropout)
