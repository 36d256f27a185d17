"""Models as tutorials write them, each with one fault that was once placed or named wrongly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ConfigError, DataError
from regard.mask_check import Adapter, Sequence, check

V, E = 29, 18


class TutorialModel(nn.Module):
    """The language model of PyTorch's Transformer tutorial: (T, B), large embeddings, an additive mask."""

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.transposed = nn.Embedding(V, E), transposed
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, 3, 31, 0.2), 2, enable_nested_tensor=False)
        self.linear = nn.Linear(E, V)

    def forward(self, src: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(len(src))
        return self.linear(self.encoder(self.embedding(src) * math.sqrt(E), mask.mT if self.transposed else mask))


def test_a_transposed_mask_is_inverted_even_where_some_weights_vanish() -> None:
    tokens = torch.randint(1, V, (11, 4), generator=torch.Generator().manual_seed(1))
    adapter = Adapter((Sequence("src", causal=True, time_first=True),), call=lambda model, batch: model(batch["src"]))
    assert check(TutorialModel(transposed=False), {"src": tokens}, adapter=adapter).ok
    found = check(TutorialModel(transposed=True), {"src": tokens}, adapter=adapter)["future tokens"]
    assert (found.verdict, found.module) == ("leak", "encoder.layers.0.self_attn")
    assert found.cause.startswith("the causal mask is inverted")


class AdditiveAttention(nn.Module):
    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        self.query, self.key, self.score, self.masked = nn.Linear(E, E), nn.Linear(E, E), nn.Linear(E, 1), masked

    def forward(self, hidden: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        scores = self.score(torch.tanh(self.query(hidden).unsqueeze(1) + self.key(states))).squeeze(2)
        return (scores.masked_fill(~mask, -1e10) if self.masked else scores).softmax(1)


class Translator(nn.Module):
    """A recurrent decoder that runs its attention, its cell and its output layer once per target token (Bahdanau et al. 2015)."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.source, self.target, self.encoder = nn.Embedding(V, E), nn.Embedding(V, E), nn.Linear(E, E)
        self.attention = AdditiveAttention(masked=masked)
        self.cell, self.out = nn.GRUCell(2 * E, E), nn.Linear(2 * E, V)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        mask, states = src != 0, self.encoder(self.source(src)).tanh()
        hidden, found = states.new_zeros(len(src), E), []
        for token in tgt.unbind(1):
            context = (self.attention(hidden, states, mask).unsqueeze(1) @ states).squeeze(1)
            hidden = self.cell(torch.cat([self.target(token), context], 1), hidden)
            found.append(self.out(torch.cat([hidden, context], 1)))
        return torch.stack(found, 1)


@pytest.mark.parametrize("masked", [True, False])
def test_a_leak_inside_a_loop_is_placed_in_the_module_of_its_first_step(masked: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(1, V, (4, 11), generator=generator) * (torch.arange(11) < torch.tensor([[11], [9], [7], [5]]))
    report = check(Translator(masked=masked), {"src": source, "tgt": torch.randint(1, V, (4, 7), generator=generator)}, pad=0)
    assert report.ok == masked, str(report)
    assert masked or report["padding amount: src"].module == "attention"


class _BatchFirstTagger(nn.Module):
    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.embedding, self.own = nn.Embedding(20, 8), own
        self.layer = nn.Identity() if own else nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.embedding(tokens)
        if not self.own:
            return self.layer(states, src_key_padding_mask=mask == 0)
        scores = (states @ states.mT).masked_fill(mask[:, None] == 0, -torch.inf)
        return scores.softmax(-1).nan_to_num() @ states


@pytest.mark.parametrize("own", [False, True])
def test_a_row_of_padding_alone_is_not_read_as_time_first(own: bool) -> None:
    mask = torch.ones(6, 5).long()
    mask[5] = 0
    with pytest.raises(DataError, match=r"batch\['tokens'\]: row 5 is padding alone"):
        check(_BatchFirstTagger(own=own).eval(), {"tokens": torch.randint(1, 20, mask.shape) * mask, "mask": mask}, causal=False)


def test_a_hole_in_a_mask_is_not_read_as_time_first() -> None:
    mask = torch.ones(6, 5).long()
    mask[0, 2] = 0
    batch = {"tokens": torch.randint(1, 20, mask.shape) * mask, "mask": mask}
    with pytest.raises(
        ConfigError, match=r"'mask' \(6, 5\) is \(T, B\), or hides a position within a row; give a batch whose rows only end"
    ):
        check(_BatchFirstTagger(own=True).eval(), batch, causal=False)
    with pytest.raises(ConfigError, match="it disagrees with the tokens about what is padding"):
        check(_BatchFirstTagger(own=False).eval(), batch, causal=False)


def test_lengths_of_as_many_rows_as_positions_do_not_turn_a_batch() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.layer = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True)

        def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True, total_length=tokens.shape[1])[0]

    lengths = torch.tensor([6, 3, 5, 4, 6, 2])
    report = check(Packed().eval(), {"tokens": torch.randint(1, 20, (6, 6)), "lengths": lengths}, causal=True)
    assert report.ok, report
