"""What `need_weights` may be."""

from __future__ import annotations

import pytest
import torch

from regard.attention import Areas, Attention, DotScore, MultiHeadAttention
from regard.errors import ConfigError


@pytest.mark.parametrize("areas", [None, Areas(2)])
@pytest.mark.parametrize("asked", ["area", "Areas", ""])
def test_a_misspelt_word_is_refused(areas: Areas | None, asked: str) -> None:
    x = torch.ones(1, 3, 6)
    for attention in (Attention(DotScore(), areas=areas), MultiHeadAttention(6, 2, areas=areas)):
        with pytest.raises(ConfigError, match=f"need_weights may be True, False or 'areas', found '{asked}'"):
            attention(x, x, x, need_weights=asked)  # type: ignore[arg-type]
