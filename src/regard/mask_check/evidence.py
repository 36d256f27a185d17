"""Functions that a module calls, as evidence for the cause of a leak."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.mask_check.dependence import Module
from regard.mask_check.survey import Survey

RANDOM = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "multinomial", "poisson"),
    *("uniform_", "normal_", "bernoulli_", "exponential_", "cauchy_", "geometric_", "log_normal_", "random_", "gumbel_softmax", "rrelu"),
}
"""Functions that draw at random, besides dropout."""
REDUCE = {"max", "min", "amax", "amin", "mean", "sum", "norm", "vector_norm", "std", "var", "median", "quantile"}
MULTIPLY = {"mul", "__mul__", "multiply"}
PRODUCT = {"matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum", "mm"}
SOFTMAX = {"softmax", "special_softmax"}
EXP = {"exp", "exp_"}
FUSED = {"scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention"}


class _Calls(TorchFunctionMode):
    """Notes the functions that are called while it is active.

    Attributes:
        names: of all functions.
        whole: functions that reduced a floating tensor of several axes to one number.
        products: shapes of the operands and results of matrix products.
        made: shapes of all results.
        softmaxes: shapes of the results of softmaxes and exponentials.
        weighs: whether one of these was of products of activations, as scores of queries and keys are, not those of a gate or router.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.whole: list[str] = []
        self.products: list[tuple[int, ...]] = []
        self.made: set[tuple[int, ...]] = set()
        self.softmaxes: list[tuple[int, ...]] = []
        self.weighs = False
        self._scores: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").partition(".")[0].removeprefix("linalg_")
        out = func(*args, **(kwargs or {}))
        self.names.append(name)
        if isinstance(out, Tensor):
            self.made.add(tuple(out.shape))
        given = [part for arg in args for part in (arg if isinstance(arg, list | tuple) else (arg,)) if isinstance(part, Tensor)]
        scores = any(id(tensor) in self._scores for tensor in given)
        if name in REDUCE and isinstance(out, Tensor) and not out.ndim and given and given[0].is_floating_point() and given[0].ndim > 1:
            self.whole.append(name)
        if name in PRODUCT:
            self.products += [tuple(tensor.shape) for tensor in (*given, out) if isinstance(tensor, Tensor)]
        if name in PRODUCT or name == "linear":
            scores = sum(not _is_learned(tensor) for tensor in given) > 1
        elif name in MULTIPLY:  # the products of entries, which a sum may follow
            scores |= sum(tensor.dim() > 1 and not _is_learned(tensor) for tensor in given) > 1
        if name in SOFTMAX | EXP and isinstance(out, Tensor):
            self.softmaxes.append(tuple(out.shape))
            self.weighs |= scores
        if scores:
            self._scores |= {id(part): part for part in (out if isinstance(out, tuple) else (out,)) if isinstance(part, Tensor)}
        return out


def _is_learned(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


def _calls(module: Module) -> _Calls | None:
    if not module.named:
        return None
    try:
        with _Calls() as calls:
            module.again()
    except Exception:  # a module that cannot be called alone only gives less evidence
        return None
    return calls


def draws_by(module: Module | None) -> str:
    """Return the function by which a module draws at random, other than dropout; "" if none."""
    calls = None if module is None else _calls(module)
    return "" if calls is None else next((name for name in calls.names if name in RANDOM), "")


def reduces_by(module: Module | None) -> str:
    """Return the function by which a module reduces all rows of the batch to one number; "" if none."""
    calls = None if module is None else _calls(module)
    return "" if calls is None else next(iter(calls.whole), "")


def attends(module: Module | None, length: int) -> bool | None:
    """Return whether a module computes a softmax of scores, or a number for each pair of `length` positions; None if that is unknown."""
    calls = None if module is None else _calls(module)
    return None if calls is None else calls.weighs or bool(FUSED & {*calls.names}) or any(shape.count(length) > 1 for shape in calls.made)


def computes_softmax(survey: Survey, module: Module | None) -> bool:
    """Return whether a module computes a softmax, or exponentials of scores; without a module that is known, whether the model does."""
    calls = None if module is None else _calls(module)
    if calls is None:
        with _Calls() as calls:
            survey.runs.run(survey.base)
    return calls.weighs or not (FUSED | SOFTMAX).isdisjoint(calls.names)


def approximates(module: Module | None, length: int, widths: Collection[int] = ()) -> bool:
    """Return whether a module attends without a weight for each pair of query and key.

    Linear and random-feature attention sum keys and values first; low-rank and landmark attention compute weights of fewer keys. Attention
    in windows computes weights of short blocks alone and is not meant.

    Args:
        module: the module, with the inputs of its call.
        length: that of the keys.
        widths: lengths of all sequences, one of which may be that of the queries.
    """
    calls = None if module is None else _calls(module)
    if calls is None or FUSED & set(calls.names):
        return False
    shapes = [*calls.products, *calls.softmaxes]
    sizes = {size for shape in shapes for size in shape if size >= length}
    span = length if length in sizes else min(sizes, default=0)  # padded to a multiple
    if any(shape.count(span) > 1 or (span in shape[-2:] and {*shape[-2:]} & ({*widths} - {span})) for shape in shapes):
        return False
    return bool(calls.products) and (not calls.softmaxes or any(max(shape[-2:], default=0) >= length for shape in calls.softmaxes))
