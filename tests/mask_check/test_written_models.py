"""Models as tutorials write them, each with one fault that was once placed or named wrongly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

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
