"""Which sentences of a decoding state are kept."""

from __future__ import annotations

import torch
from torch import Tensor


def keeps_all(rows: Tensor, count: int) -> bool:
    """Return whether `rows` (B',) keeps all of `count` sentences where they are, so that nothing need be copied.

    Example:
        >>> keeps_all(torch.tensor([0, 1]), 2), keeps_all(torch.tensor([1, 0]), 2), keeps_all(torch.tensor([0]), 2)
        (True, False, False)
    """
    return rows.shape[0] == count and torch.equal(rows, torch.arange(count, device=rows.device))
