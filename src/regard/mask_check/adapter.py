"""Describes how to call a model, and which tensors of a batch and which outputs belong to which positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from regard.errors import ConfigError, listed, shown

Inputs = dict[str, Any]
"""A batch: tensors by name."""
Side = Literal["left", "right"]
BATCH = "batch"
"""Label of the batch axis."""
CHECKS = (
    "batch size",
    "finite values",
    "repeated run",
    "future tokens",
    "labels",
    "other documents",
    "own token",
    "padding content",
    "padding amount",
    "number of later tokens",
    "left padding",
    "other rows",
    "row order",
    "row alone",
    "cache",
    "training mode",
    "sees context",
)
"""The checks of `regard.check`, in the order in which they run."""


@dataclass(frozen=True)
class Sequence:
    """One sequence of a batch: its tokens, its masks, and which positions may attend to which.

    Attributes:
        name: key of the tokens (B, T) or features (B, T, F) in the batch.
        mask: keys of its padding masks (B, T), singleton axes allowed, as in (B, 1, 1, T): boolean, 0 and 1, or additive. The value that
            marks padding is read from the batch.
        lengths: key of its lengths (B,), or None.
        pad: the padding token, or None. It locates the padding if there is neither a mask nor lengths.
        causal: True: output t may depend on tokens 0 to t. "strict": only on tokens before t, for a model that predicts token t and shifts
            its input itself. False: on all.
        labels: key of the target tokens (B, T), which no output may depend on, or None.
        companions: keys of further tensors with one value per position, such as token types.
        documents: key of the document ids (B, T) of packed rows, or None; documents must not see each other.
        time_first: whether its tensors are (T, B, ...); its masks may be (B, T) or (T, B).

    Raises:
        ConfigError: an attribute has another type or value.

    Example:
        >>> Sequence("source", lengths="source_lengths").paddable, Sequence("tokens", causal=True).paddable
        (True, False)
    """

    name: str
    mask: tuple[str, ...] = ()
    lengths: str | None = None
    pad: int | None = None
    causal: bool | Literal["strict"] = False
    labels: str | None = None
    companions: tuple[str, ...] = ()
    documents: str | None = None
    time_first: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.causal, bool) and self.causal != "strict":
            raise ConfigError(f"Sequence.causal: expected True, False or 'strict', found {shown(self.causal)}")
        if not isinstance(self.name, str):
            raise ConfigError(f"Sequence.name: expected a key of the batch, found {shown(self.name)}")
        for field_, key in (("lengths", self.lengths), ("labels", self.labels), ("documents", self.documents)):
            if key is not None and not isinstance(key, str):
                raise ConfigError(f"Sequence.{field_}: expected a key of the batch or None, found {shown(key)}")
        for field_, keys in (("mask", self.mask), ("companions", self.companions)):
            if not isinstance(keys, tuple | list) or not all(isinstance(key, str) for key in keys):
                raise ConfigError(f"Sequence.{field_}: expected keys of the batch, as ('mask',), found {shown(keys)}")
        if self.pad is not None and (isinstance(self.pad, bool) or not isinstance(self.pad, int)):
            raise ConfigError(f"Sequence.pad: expected the number of the padding token or None, found {shown(self.pad)}")

    @property
    def paddable(self) -> bool:
        """Whether the model is told which positions are padding."""
        return bool(self.mask) or self.lengths is not None or self.pad is not None

    @property
    def told(self) -> bool:
        """Whether a mask or lengths tell the model, so that the padding tokens themselves do not matter."""
        return bool(self.mask) or self.lengths is not None

    @property
    def along(self) -> tuple[str, ...]:
        """Keys of the other tensors with one value per position."""
        return (*self.companions, *(key for key in (self.labels, self.documents) if key is not None))


@dataclass(frozen=True)
class Adapter:
    """How to call a model, and which positions its inputs and outputs belong to.

    `regard.check` builds one for Hugging Face models, models of Regard, `nn.Transformer` and its parts, and plain calls. Pass your own for
    what it cannot infer.

    Attributes:
        sequences: the sequences of a batch.
        call: `call(model, inputs)` runs the model on a batch (a dictionary of tensors); use the model passed as argument. It returns a
            tensor, or tensors in dictionaries, tuples or dataclasses. None: `model(**inputs)`.
        start: `start(model, inputs)` returns the state before the first token of the last sequence; needed to check a cache.
        step: `step(model, tokens, state)` reads the next token (B, 1) and returns the output of that position and the new state.
        chunked: whether `step` also reads several tokens (B, n) and returns the outputs of those positions. The cache is then also checked
            with a prompt that is read in chunks.
        window: number of positions that the cache keeps; None: all.
        outputs: the axes of each output by name: "batch", a sequence's name, or None for any other; the name "" is the only output. None:
            inferred by changing the sizes of the batch.
        sides: supported padding sides: ("right",), ("left",), or both.
        skip: names of checks to skip, see `regard.mask_check.CHECKS`.

    Raises:
        ConfigError: there is no sequence, an attribute has another type, or a name in `outputs`, `sides` or `skip` is unknown.

    Example:
        >>> adapter = Adapter((Sequence("src", pad=0), Sequence("tgt", causal=True)), call=lambda model, batch: model(**batch))
        >>> [sequence.name for sequence in adapter.sequences]
        ['src', 'tgt']
    """

    sequences: tuple[Sequence, ...]
    call: Callable[[nn.Module, Inputs], Any] | None = None
    start: Callable[[nn.Module, Inputs], Any] | None = None
    step: Callable[[nn.Module, Any, Any], tuple[Any, Any]] | None = None
    chunked: bool = False
    window: int | None = None
    outputs: Mapping[str, tuple[str | None, ...]] | None = None
    sides: tuple[Side, ...] = ("right",)
    skip: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.sequences:
            raise ConfigError("Adapter.sequences: expected one Sequence or more, found none")
        if not isinstance(self.sequences, tuple | list) or not all(isinstance(each, Sequence) for each in self.sequences):
            raise ConfigError(f"Adapter.sequences: expected a tuple, as (Sequence('tokens'),), found {shown(self.sequences)}")
        for name, given, known in (("sides", self.sides, ("left", "right")), ("skip", self.skip, CHECKS)):
            for one in (given,) if isinstance(given, str) else given:
                if one not in known:
                    raise ConfigError(f"Adapter.{name}: expected some of {listed(known)}, found {shown(one)}")
        if not self.sides:
            raise ConfigError("Adapter.sides: expected left, right or both, found none")
        for name, function in (("call", self.call), ("start", self.start), ("step", self.step)):
            if function is not None and not callable(function):
                raise ConfigError(f"Adapter.{name}: expected a function, found {shown(function)}")
        if self.window is not None and (isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 1):
            raise ConfigError(f"Adapter.window: expected a number of positions of at least 1, found {shown(self.window)}")
        self._check_outputs()
        if (self.start is None) != (self.step is None):
            raise ConfigError("Adapter: start and step go together; give both or neither")
        if self.chunked and self.step is None:
            raise ConfigError("Adapter.chunked: says how step reads; give start and step")

    def _check_outputs(self) -> None:
        if self.outputs is None:
            return
        if not isinstance(self.outputs, Mapping):
            expected = "the axes by name, as {'': ('batch', 'tokens', None)}"
            raise ConfigError(f"Adapter.outputs: expected {expected}, found {shown(self.outputs)}")
        known = [BATCH, *(each.name for each in self.sequences)]
        for name, axes in self.outputs.items():
            if not isinstance(axes, tuple | list) or any(axis is not None and axis not in known for axis in axes):
                raise ConfigError(f"Adapter.outputs: {shown(name)}: expected axes among None, {listed(known)}, found {shown(axes)}")

    def run(self, model: nn.Module, inputs: Inputs) -> Any:
        """Call the model on a batch."""
        return model(**inputs) if self.call is None else self.call(model, inputs)
