"""eole's own command with two changes, for `transformer_peers.py`; runs in eole's environment.

    EOLE_PYTHON benchmarks/transformer_eole.py train -config config.yaml

- It drops nothing inside the feed-forward layers, as the others: eole has one probability for all dropout but that of attention weights.
- The validation loss is not smoothed, as the others': eole has one criterion for training and validation. It is printed as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import eole.trainer  # pyright: ignore[reportMissingImports]
from eole.bin.main import main  # pyright: ignore[reportMissingImports]
from eole.modules.transformer_mlp import MLP  # pyright: ignore[reportMissingImports]
from eole.utils.loss import LossCompute  # pyright: ignore[reportMissingImports]
from torch import nn

make_loss, make_mlp, validate = LossCompute.from_config, MLP.__init__, eole.trainer.Trainer.validate


def loss_from_config(config: Any, model: Any, vocabs: Any, train: bool = True) -> Any:
    """Make eole's loss; that of validation is not smoothed."""
    loss = make_loss(config, model, vocabs, train=train)
    if not train:
        loss.criterion.label_smoothing = 0.0
    return loss


def plain_mlp(self: Any, *arguments: Any, **settings: Any) -> None:
    """Make eole's feed-forward layer, but without the dropout between its two products."""
    make_mlp(self, *arguments, **settings)
    self.dropout_1 = nn.Identity()


def told_validation(self: Any, *arguments: Any, **settings: Any) -> Any:
    """Validate as eole does, and print the exact figure and what it is the mean of."""
    statistics = validate(self, *arguments, **settings)
    print(json.dumps({"loss": statistics.loss / statistics.n_tokens, "loss_tokens": int(statistics.n_tokens)}), flush=True)
    return statistics


if __name__ == "__main__":
    LossCompute.from_config = staticmethod(loss_from_config)
    MLP.__init__ = plain_mlp
    eole.trainer.Trainer.validate = told_validation
    sys.exit(main())
