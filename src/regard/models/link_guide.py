"""Guided alignment: which attention of a model learns word links, and its loss."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from regard import ops
from regard.errors import ConfigError


class TaughtHead(NamedTuple):
    """The attention that learns links.

    Attributes:
        layer: of a Transformer's decoder, from 0; a recurrent decoder has one attention.
        head: of this layer, from 0.
        step: whose attention links a target token: "predicts", the step that predicts it, or "reads", the next one, which reads it.
        weight: of the loss.
    """

    layer: int
    head: int
    step: Literal["predicts", "reads"]
    weight: float


def refuse_guide(guide: LinkGuide | None, model: str) -> None:
    """Refuse links for a model that cannot learn them.

    Raises:
        ConfigError: there are links.
    """
    if guide is not None:
        raise ConfigError(f"{model}: its attention cannot learn word links")


class LinkGuide(NamedTuple):
    """Links of a batch for the attention that learns them.

    Attributes:
        links: (L, 3) long: row, target token and source token, from 0.
        taught: the attention.

    Example:
        >>> import torch
        >>> guide = LinkGuide(torch.tensor([[0, 0, 1]]), TaughtHead(0, 0, "reads", 0.5))
        >>> round(guide.loss(torch.tensor([[[0.5, 0.5], [0.9, 0.1]]])).item(), 4)  # -0.5 log 0.1
        1.1513
    """

    links: Tensor
    taught: TaughtHead

    def loss(self, weights: Tensor) -> Tensor:
        """Return the weighted loss (`regard.ops.link_loss`) of attention weights (B, T, S), one row per decoder step."""
        # Step t reads BOS or target token t - 1, and predicts token t.
        return self.taught.weight * ops.link_loss(weights[:, int(self.taught.step == "reads") :], self.links)
