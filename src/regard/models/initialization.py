"""The initialisations of the papers, by name."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from regard.attention import AdditiveScore, ConcatScore
from regard.models.image_embedding import ImageEmbedding
from regard.models.rnn_cells import RecurrentCell

Init = Literal["scaled", "bahdanau", "luong"]


@torch.no_grad()
def initialize(model: nn.Module, how: Init) -> None:
    """Initialise a recurrent model as in a paper; "scaled" keeps each module's own initialisation.

    Args:
        model: built by `regard.models.build`, which multiplies embeddings by sqrt(E) for "scaled" only. The papers' two use unscaled
            embeddings.
        how: "bahdanau": recurrent matrices orthogonal, the additive score's W and U from N(0, 0.001^2), its v and all biases zero, other
            weights, embeddings among them, from N(0, 0.01^2) (Bahdanau et al. 2015, B.1). "luong": every parameter uniform in [-0.1, 0.1]
            (Luong et al. 2015, section 4.1). "scaled": orthogonal recurrent matrices, embedded words of variance 1; learned fastest here.
            Networks for images keep their own.

    Example:
        >>> from regard.config import RNNConfig
        >>> from regard.models import build
        >>> model = build(RNNConfig(init="luong"), source_size=11, target_size=13)
        >>> bool(model.decoder.embedding(torch.arange(13)).abs().max() <= 0.1)
        True
    """
    if how == "scaled":
        return
    images = {part for module in model.modules() if isinstance(module, ImageEmbedding) for part in module.parameters()}
    parameters = [part for part in model.parameters() if part not in images]
    match how:
        case "luong":
            for parameter in parameters:
                nn.init.uniform_(parameter, -0.1, 0.1)
        case "bahdanau":
            for parameter in parameters:
                nn.init.normal_(parameter, std=0.01) if parameter.dim() > 1 else nn.init.zeros_(parameter)
            for module in model.modules():
                if isinstance(module, RecurrentCell):
                    for gate in module.weight.split(module.hidden_size):
                        nn.init.orthogonal_(gate)
                elif isinstance(module, AdditiveScore):
                    nn.init.normal_(module.query.weight, std=0.001)
                    nn.init.normal_(module.key.weight, std=0.001)
                elif isinstance(module, ConcatScore):
                    nn.init.normal_(module.weight, std=0.001)
