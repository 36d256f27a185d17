"""Recurrent encoders: source tokens to source states."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Dropout, Size, checked
from regard.errors import ConfigError
from regard.models.rnn_cells import CellKind, GateInput, RecurrentCell
from regard.models.rnn_native_step import plan_of_cell


class EncoderOutput(NamedTuple):
    """Output of an encoder.

    Attributes:
        states: (B, S, C) states, zeros at padding; C counts both directions.
        lengths: (B,), EOS included, also where the states of an image's cells have none.
        final: last states, in the order layer 0 forward, layer 0 backward, layer 1 forward ...: tuples of (B, H) parts (hidden, and cell
            for an LSTM).
        second: states of a second input, for a decoder with two attentions; `final` then covers both inputs.
    """

    states: Tensor
    lengths: Tensor
    final: list[tuple[Tensor, ...]]
    second: EncoderOutput | None = None


class RecurrentEncoder(nn.Module):
    """Encode a source with stacked recurrent layers, in one or both directions.

        h_j = [forward_j; backward_j]

    Bahdanau et al. 2015, section 3.2 and A.2.1 (bidirectional); Luong et al. 2015, section 2 (stacked, one direction). Padding does not
    change the states.

    Args:
        kind: cell.
        input_dim: E.
        hidden_size: H of each direction.
        num_layers: stacked layers.
        bidirectional: use both directions.
        dropout: between layers.
        reverse: the only direction is the backward one (Sutskever et al. 2014 reverse the source; so do Luong et al. 2015). States keep the
            order of the source.

    Raises:
        ConfigError: `reverse` with both directions.

    Example:
        >>> encoder = RecurrentEncoder("gru", 3, 5, num_layers=2, bidirectional=True, dropout=0.0)
        >>> encoder(torch.ones(2, 7, 3), torch.tensor([7, 4])).states.shape
        torch.Size([2, 7, 10])
    """

    @checked
    def __init__(
        self,
        kind: CellKind,
        input_dim: Size,
        hidden_size: Size,
        *,
        num_layers: Size,
        bidirectional: bool,
        dropout: Dropout,
        reverse: bool = False,
    ) -> None:
        super().__init__()
        if bidirectional and reverse:
            raise ConfigError("RecurrentEncoder: reverse=True needs bidirectional=False, both directions read the source either way")
        self.reverse = reverse
        self.directions = 2 if bidirectional else 1
        self.output_dim = hidden_size * self.directions
        layers, directions = range(num_layers), range(self.directions)
        self.inputs = nn.ModuleList(
            GateInput(self.output_dim if layer else input_dim, kind, hidden_size) for layer in layers for _ in directions
        )
        self.cells = nn.ModuleList(RecurrentCell(kind, hidden_size) for _ in layers for _ in directions)
        self.dropout = ops.Dropout(dropout)

    def forward(self, embedded: Tensor, lengths: Tensor) -> EncoderOutput:
        """Encode (B, S, E) of the given lengths (B,)."""
        mask = ops.length_mask(lengths, embedded.shape[1])
        states, final = embedded, []
        for index in range(0, len(self.cells), self.directions):
            states = states if index == 0 else self.dropout(states)
            outputs = []
            for direction in range(self.directions):
                cell, projected = self.cells[index + direction], self.inputs[index + direction](states)
                assert isinstance(cell, RecurrentCell)
                backward = direction == 1 or self.reverse
                plan = ops.cached_by_owner(cell, lambda dtype, cell=cell: plan_of_cell(cell, dtype))
                if plan is None:
                    output, last = _run(cell, projected, mask, backward=backward)
                else:
                    output = projected.new_empty(*projected.shape[:2], cell.hidden_size)
                    last = plan.run(projected, lengths, output, backward=backward)
                outputs.append(output)
                final.append(last)
            states = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        return EncoderOutput(states, lengths, final)


def _run(cell: RecurrentCell, projected: Tensor, mask: Tensor, *, backward: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    # Padded positions keep the state: forward, it ends as the last real one; backward, it is still zero at the sentence's end.
    steps = projected.unbind(1)
    size = len(steps)
    full = mask.all(0).tolist()
    keep = mask.unsqueeze(-1).unbind(1)
    state = cell.initial(projected.shape[0])
    outputs: list[Tensor] = [state[0]] * size
    with ops.recurrent_steps():
        for position in reversed(range(size)) if backward else range(size):
            new = cell(steps[position], state)
            if full[position]:
                state = new
                outputs[position] = new[0]
            else:
                state = tuple(torch.where(keep[position], n, s) for n, s in zip(new, state, strict=True))
                outputs[position] = new[0].masked_fill(~keep[position], 0.0)
    stacked = torch.stack(outputs, 1) if size else projected.new_zeros(projected.shape[0], 0, cell.hidden_size)
    return stacked, state
