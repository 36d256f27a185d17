"""Checks of a batch where a user makes it; copies that methods make of it are not checked again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.models import Ensemble, PointerGenerator
from regard.ops.tensor_checks import check_floating, check_range

UNKNOWN = 2**63 - 1
"""Number of ids that a module of another library knows."""


def type_name(value: object) -> str:
    """Return the name of a value's type for a message; of None its own.

    Example:
        >>> type_name(None), type_name(3)
        ('None', 'int')
    """
    return "None" if value is None else type(value).__name__


def check_model(batch: str, model: object, kind: type[nn.Module]) -> None:
    """Refuse a model of another kind, without a single forward pass, or with a random one.

    Args:
        batch: name of the batch, for messages.
        model: the model; may be compiled.
        kind: class that it has to be of.

    Raises:
        ConfigError: another kind of model, an ensemble, a pointer-generator, or a model in training mode.

    Example:
        >>> check_model("LabelBatch", nn.Linear(3, 2), nn.Linear)
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: LabelBatch: Linear is in training mode, with random dropout; call model.eval()
    """
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, kind):
        raise ConfigError(f"{batch}: model must be of the class {kind.__name__}, found {type_name(model)}")
    if isinstance(model, Ensemble):
        raise ConfigError(f"{batch}: several models that decode together have no forward pass of their own; explain each of them")
    if isinstance(model, PointerGenerator):
        raise ConfigError(f"{batch}: a copied word has no path through the output layer to explain; explain a model without copying")
    if model.training:
        raise ConfigError(f"{batch}: {type(model).__name__} is in training mode, with random dropout; call model.eval()")


def known_ids(module: object) -> int:
    """Return the number of ids that an embedding or an output layer knows.

    Example:
        >>> known_ids(nn.Embedding(5, 3)), known_ids(nn.Linear(3, 7))
        (5, 7)
    """
    weight = getattr(module, "weight", None)
    return weight.shape[0] if isinstance(weight, Tensor) and weight.ndim == 2 else UNKNOWN


class BatchChecks:
    """Checks of the tensors of one batch: axes of one letter have one size, that of the first tensor with it; a number is a size.

    Only shapes, dtypes and devices are compared on a GPU, which no check waits for.

    Args:
        batch: name of the batch, for messages.
        model: its model, on whose device the tensors have to be.

    Example:
        >>> import torch
        >>> checks = BatchChecks("LabelBatch", nn.Linear(3, 2))
        >>> checks.whole("tokens", torch.tensor([[4, 5]]), "B S", high=10)
        >>> checks.whole("lengths", torch.tensor([2, 2]), "B", high=2)
        Traceback (most recent call last):
            ...
        regard.errors.ShapeError: LabelBatch: lengths must be (B,) with B = 1, found (2,)
    """

    def __init__(self, batch: str, model: nn.Module) -> None:
        self.batch, self.model, self.sizes = batch, model, dict[str, int]()
        self.device = next((parameter.device for parameter in model.parameters()), None)

    def whole(self, name: str, numbers: Any, axes: str, *, low: int = 0, high: int) -> None:
        """Check whole numbers of `low` to `high`.

        Raises:
            ShapeError: no tensor, other axes, not int64 or int32, or on another device than the model.
            RangeError: on a CPU, a number is out of range.
        """
        self._shape(name, numbers, axes)
        if numbers.dtype not in (torch.int64, torch.int32):  # those that index an embedding
            raise ShapeError(f"{self.batch}: {name} must be int64 or int32, found {numbers.dtype}; convert it with {name}.to(torch.int64)")
        check_range(self.batch, name, numbers, low, high)

    def floating(self, name: str, numbers: Any, axes: str) -> None:
        """Check floating-point numbers.

        Raises:
            ShapeError: no tensor, other axes, not of floating-point numbers, or on another device than the model.
        """
        self._shape(name, numbers, axes)
        check_floating(self.batch, **{name: numbers})

    def target(self, target_input: Any, target_output: Any, lengths: Any) -> None:
        """Check a target, (B, T) as it is read and written, and its lengths (B,), EOS included, as `whole` does."""
        size = known_ids(getattr(self.model, "output", None))
        self.whole("target_input", target_input, "B T", high=size - 1)
        self.whole("target_output", target_output, "B T", high=size - 1)
        self.whole("target_lengths", lengths, "B", low=1, high=target_output.shape[1])

    def _shape(self, name: str, tensor: Any, axes: str) -> None:
        letters = axes.split()
        expected = f"({', '.join(letters)}{',' * (len(letters) == 1)})"
        if not isinstance(tensor, Tensor):
            raise ShapeError(f"{self.batch}: {name} must be a tensor {expected}, found {type_name(tensor)}")
        self.sizes |= {letter: int(letter) for letter in letters if letter.isdigit()}
        sizes = {letter: self.sizes[letter] for letter in letters if letter in self.sizes}
        fits = tensor.ndim == len(letters) and all(
            sizes.get(letter, size) == size for letter, size in zip(letters, tensor.shape, strict=True)
        )
        if not fits:
            known = " and ".join(f"{letter} = {size}" for letter, size in sizes.items() if not letter.isdigit())
            raise ShapeError(f"{self.batch}: {name} must be {expected}{f' with {known}' if known else ''}, found {tuple(tensor.shape)}")
        if self.device is not None and tensor.device != self.device:
            raise ShapeError(f"{self.batch}: {name} is on {tensor.device}, the model on {self.device}; move them to one device")
        self.sizes |= dict(zip(letters, tensor.shape, strict=True))
