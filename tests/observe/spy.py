"""What the functions of torch were called with and returned, told by a mode that knows nothing of Regard's."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Seen(NamedTuple):
    """One call: a kernel's values (B, H, S, D) and output, or a product's, with the weights it was given after dropout."""

    value: Tensor
    output: Tensor
    dropped: Tensor | None
    dropout: float
    state: Tensor | None


class Spy(TorchFunctionMode):
    """Notes each kernel, and each product that comes behind a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Seen] = []
        self._softmax = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        state = torch.get_rng_state()
        out = func(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            query, _, value = args[:3]
            p = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
            self.calls.append(Seen(value.detach(), out.detach(), None, p, state))
        elif name == "softmax":
            self._softmax = True
        elif name in ("matmul", "bmm") and self._softmax:
            self._softmax = False
            self.calls.append(Seen(args[1].detach(), out.detach(), args[0].detach(), 0.0, None))
        return out


def assert_explained(weights: Tensor, seen: Seen, dropout: float) -> None:
    """Assert that weights times values are the output: exactly so, or with the weights that dropout took away."""
    if seen.dropped is not None and dropout:
        kept = seen.dropped != 0
        assert 0 < kept.sum() < (weights > 0).sum()
        torch.testing.assert_close(seen.dropped, torch.where(kept, weights / (1 - dropout), 0.0), atol=1e-6, rtol=1e-6)
    largest = max(1.0, seen.value.abs().max().item())  # sums of so large numbers are rounded so much more
    torch.testing.assert_close(explained(weights, seen, dropout), seen.output, atol=1e-6 * largest, rtol=1e-6)


def explained(weights: Tensor, seen: Seen, dropout: float) -> Tensor:
    """Return weights times values, with the dropout of the call."""
    if seen.dropped is not None and dropout:
        weights = seen.dropped
    elif seen.dropout:
        assert seen.state is not None
        after = torch.get_rng_state()
        torch.set_rng_state(seen.state)
        weights = F.dropout(weights, seen.dropout)
        torch.set_rng_state(after)
    return weights @ seen.value
