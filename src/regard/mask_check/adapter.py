"""How a model is called, and which tensors of a batch and which outputs belong to which positions."""

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
"""The label of the axis whose entries are the examples of a batch."""
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
    "left padding",
    "other rows",
    "row order",
    "row alone",
    "cache",
    "training mode",
    "sees context",
)
"""What `regard.check` changes, in the order in which it does."""


@dataclass(frozen=True)
class Sequence:
    """One sequence of a batch: where its tokens and masks are, and who may see whom.

    Attributes:
        name: key of the tokens (B, T) or features (B, T, F) in the batch.
        mask: keys of its padding masks (B, T), axes of one between or not, as in (B, 1, 1, T): boolean, 0 and 1, or additive. Which value
            marks padding is read from the batch.
        lengths: key of its lengths (B,), or None.
        pad: the token that fills up shorter rows, or None. Where there is neither mask nor lengths, padding is found by it.
        causal: True: output t may depend on tokens 0 to t. "strict": on those before t alone, as where output t predicts token t and the
            model shifts its input itself. False: on all.
        labels: key of the tokens (B, T) that the outputs predict, which no output may depend on, or None.
        companions: keys of further tensors with one value per position, such as token types.
        documents: key of the numbers (B, T) of documents packed into a row, which must not see each other, or None.
        time_first: whether its tensors are (T, B, ...); its masks are (B, T) or (T, B).

    Raises:
        ConfigError: `causal` is none of the three.

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

    @property
    def paddable(self) -> bool:
        """Whether the model is told what is padding."""
        return bool(self.mask) or self.lengths is not None or self.pad is not None

    @property
    def told(self) -> bool:
        """Whether it is told beside the tokens, so that what fills the padding means nothing."""
        return bool(self.mask) or self.lengths is not None

    @property
    def along(self) -> tuple[str, ...]:
        """Keys of the tensors that have one value per position, beside the sequence itself."""
        return (*self.companions, *(key for key in (self.labels, self.documents) if key is not None))


@dataclass(frozen=True)
class Adapter:
    """How a model is called, and which input and output belongs to which position.

    `regard.check` makes one itself for Hugging Face models, models of Regard, `nn.Transformer` and its parts, and plain calls; one of
    your own says what it cannot know.

    Attributes:
        sequences: the sequences of a batch.
        call: `call(model, inputs)` runs the model, which it must take from its argument, on a batch as a dictionary of tensors. It returns
            a tensor, or tensors in dictionaries, tuples or dataclasses. None: `model(**inputs)`.
        start: `start(model, inputs)` returns the state before the first token of the last sequence; needed to check a cache.
        step: `step(model, tokens, state)` reads the next token (B, 1) and returns the output of that position and the new state.
        chunked: whether `step` also reads several tokens (B, n) and returns the outputs of those positions. Then the cache is checked
            with a prompt that is read in chunks, too.
        window: how many positions the cache keeps, where it forgets; None: all.
        outputs: the axes of each output by name: "batch", a sequence's name, or None for any other; a name of "" is the only output.
            None: found by changing the sizes of the batch.
        sides: on which sides the model is padded: ("right",), ("left",), or both.
        skip: names of checks to leave out, see `regard.mask_check.CHECKS`.

    Raises:
        ConfigError: there is no sequence, or a name in `sides` or `skip` is unknown.

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
        for name, given, known in (("sides", self.sides, ("left", "right")), ("skip", self.skip, CHECKS)):
            for one in given:
                if one not in known:
                    raise ConfigError(f"Adapter.{name}: expected some of {listed(known)}, found {shown(one)}")
        if not self.sides:
            raise ConfigError("Adapter.sides: expected left, right or both, found none")
        if (self.start is None) != (self.step is None):
            raise ConfigError("Adapter: start and step go together; give both or neither")
        if self.chunked and self.step is None:
            raise ConfigError("Adapter.chunked: says how step reads; give start and step")

    def run(self, model: nn.Module, inputs: Inputs) -> Any:
        """Call the model on a batch."""
        return model(**inputs) if self.call is None else self.call(model, inputs)
