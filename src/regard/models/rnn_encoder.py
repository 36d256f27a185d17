"""Recurrent encoders: source tokens to source states."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Dropout, Size, checked
from regard.errors import ConfigError, ShapeError
from regard.models.rnn_cells import CellKind, GateInput, RecurrentCell
from regard.models.rnn_native_step import plan_of_cell
from regard.ops.call_checks import takes_tensors
from regard.ops.tensor_checks import may_need_gradients


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

    @takes_tensors
    def forward(self, embedded: Tensor, lengths: Tensor) -> EncoderOutput:
        """Encode (B, S, E) of the given lengths (B,).

        Raises:
            ShapeError: they do not fit each other or the encoder.
            RangeError: on a CPU, a length is not 0 to S.
        """
        if embedded.dim() != 3 or lengths.shape != embedded.shape[:1]:
            raise ShapeError(
                f"RecurrentEncoder: expected embedded (B, S, E) and lengths (B,), found {tuple(embedded.shape)} and {tuple(lengths.shape)}"
            )
        mask = ops.length_mask(lengths, embedded.shape[1])
        if may_need_gradients():  # a gradient of 0 times what may stand in padding is not always 0
            embedded = embedded.masked_fill(~mask.unsqueeze(-1), 0.0)
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
                    output, last = cell.run(projected, cell.initial(projected.shape[0]), mask=mask, backward=backward)
                else:
                    output = projected.new_empty(*projected.shape[:2], cell.hidden_size)
                    last = plan.run(projected, lengths, output, backward=backward)
                outputs.append(output)
                final.append(last)
            states = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        return EncoderOutput(states, lengths, final)
