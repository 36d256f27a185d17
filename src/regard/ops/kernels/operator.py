"""Differentiable operators for native operations, with one registered operator for traced programs.

Untraced calls bypass PyTorch's dispatcher, which takes longer than a small operation: ARCHITECTURE.md has the measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels.second_order import differentiable_gradients
from regard.ops.tensor_checks import is_tracing

_LIBRARIES: dict[str, torch.library.Library] = {}
"""One library per operator, so that an import that was interrupted and starts again can register its operator again."""


class Forms(NamedTuple):
    """The functions of an operation.

    Attributes:
        forward: native forward pass: inputs to the result, and the additional tensors for `backward`.
        backward: native backward pass: gradient of the result, the result, the list of the other tensors of `forward`, and the inputs, to
            the gradients of the inputs that are not None.
        plain: the result in PyTorch operations, used for second derivatives.
        shapes: returns tensors like those of `forward` from the inputs.
        room: returns a tensor like an input's gradient.
        keeps_result: whether `backward` needs the result; if not, it gets None.
    """

    forward: Callable[..., tuple[Tensor, ...]]
    backward: Callable[..., Sequence[Tensor]]
    plain: Callable[..., Tensor]
    shapes: Callable[..., tuple[Tensor, ...]]
    room: Callable[[Tensor], Tensor]
    keeps_result: Callable[[tuple[Tensor, ...]], bool] = lambda _: False


class Operator:
    """A differentiable operation with a native and a PyTorch form.

    Args:
        name: name of the operator, `regard::name`.
        schema: its inputs: tensors first, starting with those that have gradients.
        forms: its functions.
        results: number of tensors that `forms.forward` returns.
        gradients: number of inputs with gradients.

    Example:
        >>> forms = Forms(
        ...     lambda x: (x * x,), lambda grad, result, others, x: [2 * x * grad], torch.square, lambda x: (x.clone(),), torch.empty_like
        ... )
        >>> square = Operator("square_of_the_example", "Tensor x", forms, results=1, gradients=1)
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> torch.autograd.grad(square(x), x)[0].item()
        6.0
    """

    def __init__(self, name: str, schema: str, forms: Forms, *, results: int, gradients: int) -> None:
        self.forms, self.gradients = forms, gradients
        self.tensors = sum(part.startswith("Tensor") for part in schema.split(", "))

        def one_or_all(found: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
            return found[0] if results == 1 else found

        def like(grad: Tensor, result: Tensor | None, others: list[Tensor], *inputs: Any) -> list[Tensor]:
            return [forms.room(part) for part in inputs[:gradients] if part is not None]

        def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor | tuple[Tensor, ...]) -> None:
            found = (output,) if isinstance(output, Tensor) else output
            self.keep(ctx, inputs, found)
            ctx.mark_non_differentiable(*found[1:])

        def differentiate(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
            return self.differentiate(ctx, ctx.needs_input_grad, grad, getattr(torch.ops.regard, f"{name}_backward"))

        if name in _LIBRARIES:
            _LIBRARIES[name]._destroy()  # pyright: ignore[reportPrivateUsage] - torch has no public name for it
        library = _LIBRARIES[name] = torch.library.Library("regard", "FRAGMENT")
        whole = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
        reverse = f"Tensor grad, Tensor? result, Tensor[] others, {schema}"
        for each, takes, returns, compute, fake in (
            (name, schema, whole, lambda *inputs: one_or_all(forms.forward(*inputs)), lambda *inputs: one_or_all(forms.shapes(*inputs))),
            (f"{name}_backward", reverse, "Tensor[]", lambda *inputs: list(forms.backward(*inputs)), like),
        ):
            library.define(f"{each}({takes}) -> {returns}", tags=(torch.Tag.pt2_compliant_tag,))
            library.impl(each, compute, "CompositeExplicitAutograd")
            torch.library.register_fake(f"regard::{each}", fake, lib=library)
        torch.library.register_autograd(f"regard::{name}", differentiate, setup_context=keep, lib=library)
        self.traced = getattr(torch.ops.regard, name).default

    def __call__(self, *inputs: Any) -> Tensor:
        """Compute the result, for plain or traced tensors; see `regard.ops.tensor_checks`."""
        tensors = inputs[: self.tensors]
        if is_tracing(*tensors):
            found = self.traced(*inputs)
            return found if isinstance(found, Tensor) else found[0]
        if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in tensors):
            return _Direct.apply(self, inputs[self.tensors :], *tensors)
        return self.forms.forward(*inputs)[0]

    def keep(self, ctx: Any, inputs: tuple[Any, ...], found: tuple[Tensor, ...]) -> None:
        """Save tensors for `differentiate`."""
        result = found[0] if self.forms.keeps_result(found) else None
        ctx.save_for_backward(*inputs[: self.tensors], result, *found[1:])
        ctx.settings = inputs[self.tensors :]

    def differentiate(self, ctx: Any, needed: Sequence[bool], grad: Tensor, backward: Callable[..., Any]) -> tuple[Tensor | None, ...]:
        """Return the gradient of each input, by `backward` or, for second derivatives, by the plain form."""
        saved = ctx.saved_tensors  # once: activation checkpointing recomputes them, and refuses to do so twice
        tensors, (result, *others) = saved[: self.tensors], saved[self.tensors :]
        first, inputs = tensors[: self.gradients], (*tensors, *ctx.settings)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            found = differentiable_gradients(
                lambda *parts: self.forms.plain(*parts, *inputs[self.gradients :]), first, needed[: self.gradients], grad
            )
        else:
            given = iter(backward(grad, result, others, *inputs))
            found = tuple(None if part is None else next(given) for part in first)
        return *found, *[None] * (len(inputs) - self.gradients)


class _Direct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Operator, settings: tuple[Any, ...], *tensors: Tensor | None) -> Tensor:
        inputs = (*tensors, *settings)
        found = operator.forms.forward(*inputs)
        operator.keep(ctx, inputs, found)
        ctx.operator = operator
        return found[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        operator: Operator = ctx.operator
        found = operator.differentiate(ctx, ctx.needs_input_grad[2:], grad, operator.forms.backward)
        return None, None, *found[: operator.tensors]
