"""Area settings and learned area features as a module."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Size, SizeOrPair, checked
from regard.errors import ConfigError
from regard.ops.area_windows import check_areas
from regard.ops.call_checks import takes_tensors
from regard.ops.materialized_areas import KEY_MODES, LEARNED_KEY_MODES, VALUE_MODES, AreaWeights, check_mode, hidden_parts
from regard.ops.number_checks import LARGEST_SCALE, LEAST_TEMPERATURE, check_scale, check_share
from regard.ops.reference import AreaResult, area_attention
from regard.ops.sparsemax import Normalizer

Temperature = Annotated[float, Ge(LEAST_TEMPERATURE), Le(LARGEST_SCALE)]


class Areas(nn.Module):
    """Settings of area attention: attend to runs of adjacent items, or rectangles of a grid, instead of single items.

    Li et al. 2018, "Area Attention" (arXiv:1810.10126). Converts keys, values and masks of items to areas, for any score. All heads of a
    multi-head attention share one `Areas`.

    Differs from the paper: see `regard.ops.area_windows`. With `key_mode="features"` (Eq. 9) and a sequence, the height is always 1, and
    e^h is one learned vector that every area shares.

    Parameters, with learned key modes only: width (A_w, D - D // 2), height (A_h, D // 2), hidden.weight (D, F), output.weight (D, D).
    F is 3 D for "features" (columns [W_mu, W_sigma, W_e]) and "concat", 2 D for "max_concat" and "sample_concat", D for "sum" and
    "sample_sum". All but "features" also have hidden.bias (D,) and output.bias (D,).

    Args:
        max_area: maximum area length; with a grid, maximum (height, width). Clipped to the memory.
        grid: (rows, columns) of a memory in raster order; None for a sequence.
        key_mode: see `regard.ops.area_keys`.
        value_mode: "sum", "mean" or "max".
        dim: D, key size (per head in multi-head attention); for learned key modes only.
        top_k: attend to the k best areas of each query only; None: to all.
        temperature: divides the scores.

    Raises:
        ConfigError: an invalid setting.

    Example:
        >>> areas = Areas(3, key_mode="features", dim=5)
        >>> areas.keys(torch.ones(2, 7, 5)).shape, areas.mask(torch.ones(2, 7, dtype=torch.bool)).shape
        (torch.Size([2, 18, 5]), torch.Size([2, 18]))
    """

    @checked
    def __init__(
        self,
        max_area: SizeOrPair,
        grid: tuple[Size, Size] | None = None,
        *,
        key_mode: str = "mean",
        value_mode: str = "sum",
        dim: Size | None = None,
        top_k: Size | None = None,
        temperature: Temperature = 1.0,
    ) -> None:
        super().__init__()
        check_areas(max_area, grid)
        check_mode("key_mode", key_mode, KEY_MODES)
        check_mode("value_mode", value_mode, VALUE_MODES)
        self.max_area, self.grid = max_area, grid
        self.key_mode, self.value_mode = key_mode, value_mode
        self.top_k, self.temperature = top_k, temperature
        self.learned = key_mode in LEARNED_KEY_MODES
        if not self.learned:
            return
        if dim is None:
            raise ConfigError(f"dim: key_mode {key_mode!r} has learned weights and needs the size of a key")
        height, width = (1, max_area) if isinstance(max_area, int) else max_area
        bias = key_mode != "features"
        self.width = nn.Parameter(torch.empty(width, dim - dim // 2))
        self.height = nn.Parameter(torch.empty(height, dim // 2))
        self.hidden = ops.Linear(dim * hidden_parts(key_mode), dim, bias=bias)
        self.output = ops.Linear(dim, dim, bias=bias)
        nn.init.normal_(self.width)
        nn.init.normal_(self.height)

    @property
    def fused(self) -> bool:
        """Whether `regard.ops.area_attention` supports these settings: mean keys, sum or mean values, all areas."""
        return self.key_mode == "mean" and self.value_mode in ("sum", "mean") and self.top_k is None

    @property
    def direct(self) -> bool:
        """Whether `regard.ops.area_attention` needs no area keys: mean keys or those of Eq. 9, sum or mean values."""
        return self.key_mode in ("mean", "features") and self.value_mode in ("sum", "mean")

    @property
    def key_weights(self) -> AreaWeights | None:
        """The learned weights for `regard.ops.area_keys`, or None."""
        if not self.learned:
            return None
        return AreaWeights(self.height, self.width, self.hidden.weight, self.output.weight, self.hidden.bias, self.output.bias)

    def keys(self, key: Tensor, *, starts: int | None = None) -> Tensor:
        """Compute area keys (..., N, D) from item keys (..., S, D); `starts` as in `regard.ops.area_keys`."""
        weights, training = self.key_weights, self.training
        return ops.area_keys(key, self.max_area, self.grid, mode=self.key_mode, weights=weights, training=training, starts=starts)

    def values(self, value: Tensor, *, starts: int | None = None) -> Tensor:
        """Compute area values (..., N, Dv) from item values (..., S, Dv); `starts` as in `regard.ops.area_values`."""
        return ops.area_values(value, self.max_area, self.grid, mode=self.value_mode, starts=starts)

    def mask(self, mask: Tensor) -> Tensor:
        """Allow the areas whose items are all allowed: (..., S) bool to (..., N) bool."""
        return ops.area_mask(mask, self.max_area, self.grid)

    def weights(self, scores: Tensor, mask: Tensor | None = None, *, normalizer: Normalizer = "softmax") -> Tensor:
        """Normalize area scores (..., T, N) under the area mask, with this module's top_k and temperature."""
        return ops.area_softmax(scores, mask, top_k=self.top_k, temperature=self.temperature, normalizer=normalizer)

    def project(self, area_weights: Tensor) -> Tensor:
        """Distribute area weights (..., T, N) to items (..., T, S); see `regard.ops.item_weights`."""
        return ops.item_weights(area_weights, self.max_area, self.grid, value_mode=self.value_mode)

    def count(self, size: int) -> int:
        """Count the areas of a memory of `size` items."""
        return ops.area_count(size if self.grid is None else self.grid, self.max_area)

    def center(self, size: int, device: torch.device | str | None = None) -> Tensor:
        """Return the centres (N,) of the areas in item positions from 0, halves included.

        Raises:
            ConfigError: the memory is a grid.
        """
        if self.grid is not None:
            raise ConfigError(f"center: the areas of a grid {self.grid} have no position on a line; windows need a sequence")
        spans = ops.area_spans(size, self.max_area, device=device)
        return spans[:, 0] + (spans[:, 1] - 1) / 2

    @takes_tensors
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> AreaResult:
        """Attend by scaled dot product with these settings: `regard.ops.reference.area_attention`.

        Raises:
            ConfigError: a scale that is no finite number, or a dropout outside of 0 <= p < 1.
            ShapeError: incompatible shapes.
        """
        check_share("Areas", "dropout", dropout)
        check_scale("Areas", 1.0 if scale is None else scale)
        return area_attention(
            query,
            key,
            value,
            max_area=self.max_area,
            grid=self.grid,
            mask=mask,
            causal=causal,
            key_mode=self.key_mode,
            value_mode=self.value_mode,
            top_k=self.top_k,
            temperature=self.temperature,
            scale=scale,
            dropout=dropout,
            key_weights=self.key_weights,
            training=self.training,
        )

    def extra_repr(self) -> str:
        """Show the settings."""
        shown = f"max_area={self.max_area}, grid={self.grid}, key_mode={self.key_mode!r}, value_mode={self.value_mode!r}"
        return f"{shown}, top_k={self.top_k}, temperature={self.temperature:g}"


def scored_area_length(areas: Areas | None) -> int | None:
    """Return the maximum area length if item scores and values suffice; None if areas must be materialized.

    Items suffice for mean keys, value sums and all areas of a sequence, and without areas (length 1).

    Example:
        >>> scored_area_length(Areas(5)), scored_area_length(None), scored_area_length(Areas(5, key_mode="max"))
        (5, 1, None)
    """
    if areas is None:
        return 1
    return areas.max_area if areas.fused and areas.value_mode == "sum" and isinstance(areas.max_area, int) else None
