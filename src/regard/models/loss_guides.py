"""What the loss of translation can learn besides the targets: word links, with the attention that learns them, or R-Drop."""

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


class RDrop(NamedTuple):
    """Two passes with different dropout that shall predict the same: `regard.ops.consistent_cross_entropy`.

    Attributes:
        alpha: weight of their divergence.
    """

    alpha: float


def refuse_guide(guide: LinkGuide | RDrop | None, model: str) -> None:
    """Refuse a guide for a model without one.

    Raises:
        ConfigError: there is a guide.
    """
    if guide is not None:
        what = "is not trained with R-Drop" if isinstance(guide, RDrop) else "its attention cannot learn word links"
        raise ConfigError(f"{model}: {what}")


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
