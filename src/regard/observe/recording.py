"""A recording: the calls, their maps, and the records that the viewer shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from torch import Tensor

from regard.errors import ConfigError, counted, listed, shown
from regard.observe.call import AttentionCall, Unseen
from regard.observe.images import Patches
from regard.observe.records import make_records
from regard.observe.stitch import of_beams, stitched
from regard.viewer import AttentionRecord


class Recording(Sequence[AttentionCall]):
    """The attention calls recorded by `regard.watch`, in order; it grows while the block runs.

    Args:
        model: class name of the model.
        calls: in order.
        patches: layout of image patches, if the model declares it.
        removals: numbers of calls before each removal of tokens from a cache.

    Attributes:
        model: as passed.
        calls: as passed.
        patches: as passed.
        removals: as passed.
        unseen: modules that attend but were not recorded; complete when the block ends.

    Example:
        >>> import torch
        >>> from regard import watch
        >>> attention, states = torch.nn.MultiheadAttention(4, 2, batch_first=True), torch.ones(1, 3, 4)
        >>> with watch(attention) as seen:
        ...     output, _ = attention(states, states, states)
        >>> seen
        <1 call of MultiheadAttention in 1 layer>
    """

    def __init__(
        self, model: str, calls: list[AttentionCall], *, patches: Patches | None = None, removals: list[int] | None = None
    ) -> None:
        self.model, self.calls, self.patches = model, calls, patches or Patches(None)
        self.removals = [] if removals is None else removals
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
        """Return a call by index, several by a slice, or the map of a layer by name, as `map` does."""
        if isinstance(index, str):
            return self.map(index)
        return self.calls[index]

    def __iter__(self) -> Iterator[AttentionCall]:
        return iter(self.calls)

    def __repr__(self) -> str:
        more = f", {len(self.unseen)} not seen" if self.unseen else ""
        return f"<{counted(len(self), 'call')} of {self.model} in {counted(len(self.layers), 'layer')}{more}>"

    @property
    def layers(self) -> list[str]:
        """Names of the layers, in order of their first call."""
        return list(dict.fromkeys(call.layer for call in self.calls))

    def maps(self) -> list[AttentionCall]:
        """Return one map per layer; the steps of a generation are joined.

        A layer called in several forward passes has one map for each. For a generation without a cache, which recomputes earlier steps, the
        last step is the map.

        Returns:
            Calls with weights (B, H, T, S) over all T queries of a generation; see `regard.observe.stitched`.

        Raises:
            ConfigError: a generation removed tokens from its cache, as speculative decoding does: its steps form no map.
        """
        if any(self.removals):  # a removal before the first call removes nothing that was recorded
            raise ConfigError(
                "maps: the generation removed tokens from its cache that it had read, as speculative decoding (assistant_model, "
                "prompt_lookup_num_tokens) does, so its steps form no map; watch one forward pass on the output, or generate without"
            )
        return stitched(self.calls)

    def map(self, layer: str) -> AttentionCall:
        """Return the map of one layer.

        Raises:
            ConfigError: the layer does not exist, or ran several times; the message lists the layers or the count.
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
            beams: (B', steps): the row of each step's batch that holds the output's hypothesis, negative after its end; the `beam_indices`
                of `generate(..., num_beams=4, return_dict_in_generate=True)` in Hugging Face.

        Raises:
            ShapeError: fewer steps than a layer ran; the message holds both numbers.
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
        """Build one viewer record per example of the batch; called by `regard.view`.

        Args:
            key_tokens: texts of the S attended tokens: a list, or for a batch a list of lists. Fewer than S only if nothing attends to the
                rest, such as padding.
            query_tokens: texts of the T attending tokens; None: `key_tokens`. If both are given, self-attention uses the list of its
                length.
            image: input of a vision model instead of tokens: a file, a Pillow image, an array or a tensor, or a list of these.
            grid: (rows, columns) of its patches; None: from the model.
            title: a name for the examples.

        Raises:
            DataError: nothing was recorded, or tokens or image do not fit; the message names the layer and both numbers.
        """
        patches = self.patches if grid is None else self.patches._replace(grid=grid)
        return make_records(self.maps(), (key_tokens, query_tokens), image=image, patches=patches, names=(self.model, title))
