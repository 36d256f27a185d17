"""What a block recorded: calls, the maps they make, and the records that the viewer shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from torch import Tensor

from regard.errors import ConfigError, listed, shown
from regard.observe.call import AttentionCall, Unseen
from regard.observe.images import Patches
from regard.observe.records import make_records
from regard.observe.stitch import of_beams, stitched
from regard.viewer import AttentionRecord


class Recording(Sequence[AttentionCall]):
    """The calls of attention that `regard.watch` recorded, in their order; it grows while the block lasts.

    Args:
        model: the name of the model's class.
        calls: in their order.
        patches: how the patches of an image lie, as far as the model tells.

    Attributes:
        model: see above.
        calls: see above.
        patches: see above.
        unseen: modules that attend and were not seen to, as far as the block allowed that; complete at its end.

    Example:
        >>> import torch
        >>> from regard import watch
        >>> attention, states = torch.nn.MultiheadAttention(4, 2, batch_first=True), torch.ones(1, 3, 4)
        >>> with watch(attention) as seen:
        ...     output, _ = attention(states, states, states)
        >>> seen
        <1 call of MultiheadAttention in 1 layer>
    """

    def __init__(self, model: str, calls: list[AttentionCall], *, patches: Patches | None = None) -> None:
        self.model, self.calls, self.patches = model, calls, patches or Patches(None)
        self.unseen: list[Unseen] = []

    def __len__(self) -> int:
        return len(self.calls)

    @overload
    def __getitem__(self, index: int) -> AttentionCall: ...
    @overload
    def __getitem__(self, index: slice) -> list[AttentionCall]: ...
    @overload
    def __getitem__(self, index: str) -> AttentionCall: ...
    def __getitem__(self, index: int | slice | str) -> AttentionCall | list[AttentionCall]:
        """Return a call by its number, several by a slice, or the map of a layer by its name, as `map` does."""
        if isinstance(index, str):
            return self.map(index)
        return self.calls[index]

    def __iter__(self) -> Iterator[AttentionCall]:
        return iter(self.calls)

    def __repr__(self) -> str:
        layers = len(self.layers)
        more = f", {len(self.unseen)} not seen" if self.unseen else ""
        return f"<{len(self)} call{'s' * (len(self) != 1)} of {self.model} in {layers} layer{'s' * (layers != 1)}{more}>"

    @property
    def layers(self) -> list[str]:
        """The names of the layers, in the order in which they were first called."""
        return list(dict.fromkeys(call.layer for call in self.calls))

    def maps(self) -> list[AttentionCall]:
        """Return one map for each layer: the steps of a generation are put together.

        A layer that ran several times, as in several forward passes, has one map for each. Of a generation without a cache, whose steps
        compute again what came before, the last step has it all.

        Returns:
            Calls with weights (B, H, T, S) of all T queries that followed one another; see `regard.observe.stitched`.
        """
        return stitched(self.calls)

    def map(self, layer: str) -> AttentionCall:
        """Return the map of one layer.

        Raises:
            ConfigError: no such layer, or it ran several times; the message holds those there are, or how often.
        """
        found = [call for call in self.maps() if call.layer == layer]
        if not found:
            raise ConfigError(f"layer {shown(layer)}: not recorded; recorded ones: {listed(self.layers) or 'none'}")
        if len(found) > 1:
            raise ConfigError(f"layer {shown(layer)}: it ran {len(found)} times; choose among its `maps()`")
        return found[0]

    def of_beams(self, beams: Tensor) -> Recording:
        """Return the maps of the outputs of a beam search, each row from the hypothesis that became the output.

        Args:
            beams: (B', steps): the row of each step's batch that an output was in, below 0 behind its end; `beam_indices` of what
                `generate(..., num_beams=4, return_dict_in_generate=True)` of Hugging Face returns.

        Raises:
            ShapeError: fewer steps than a layer ran; the message holds both.
            ConfigError: the search ran without a cache.
        """
        found = Recording(self.model, of_beams(self.calls, beams), patches=self.patches)
        found.unseen = list(self.unseen)
        return found

    def records(
        self,
        key_tokens: Any = None,
        query_tokens: Any = None,
        *,
        image: Any = None,
        grid: tuple[int, int] | None = None,
        title: str = "",
    ) -> list[AttentionRecord]:
        """Make the records that the viewer shows and writes, one for each example of the batch; `regard.view` calls it.

        Args:
            key_tokens: the S tokens that are attended to, text of each: a list, or for a batch a list of lists. Fewer than S only where
                nothing attends to the rest, as to padding.
            query_tokens: the T tokens that attend, likewise; None: the same. With both, self-attention is that of the list that fits.
            image: what a vision model was given, in place of tokens: a file, a picture of Pillow, an array or a tensor, or a list of them.
            grid: (rows, columns) of its patches; None: as the model tells.
            title: a name for the examples.

        Raises:
            DataError: nothing was recorded, or tokens or image do not fit; the message names the layer and both numbers.
        """
        patches = self.patches if grid is None else self.patches._replace(grid=grid)
        return make_records(self.maps(), (key_tokens, query_tokens), image=image, patches=patches, names=(self.model, title))
