"""Records a running model: hooks track the active module, and a mode intercepts the functions it calls."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportPrivateUsage]
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode

from regard.attention.recorder import RecordedWeights, recording
from regard.errors import ConfigError
from regard.observe.byhand import FOLLOWED, Follower
from regard.observe.call import AttentionCall
from regard.observe.functions import EXP, SOFTMAX
from regard.observe.fused import FUSED, Packed, fast_path_kept, names_of_weights, open_multi_head
from regard.observe.hooks import Hooks, methods_told
from regard.observe.scopes import (
    Kind,
    Scope,
    batches_of,
    have_own_keys,
    in_backward,
    in_blocks,
    in_blocks_of,
    in_fragments,
    is_one_head,
    kind_of,
    order_of,
    parts_of_batch,
    query_axis,
    states_of,
)
from regard.observe.transformers_patches import layouts_told, removals_told
from regard.observe.weights import attention_weights, check_heads, nested_attention_weights
from regard.ops import attention as flex_attention

SEEN = {"scaled_dot_product_attention", *SOFTMAX, *EXP, *FUSED}
"""Torch functions that attend."""
# Regard's own modules report their attention; functions called inside them are not recorded again.
OWN = ("regard.attention.", "regard.integrations.calls")
UNCLEAR = "its first axis may count heads or examples; watch a batch (B, T, D), or another number of tokens than of heads"
UNCLEAR_QUERIES = "which of its axes counts queries, and which heads that share keys, does not show; run another number of tokens"
# Code between a torch function and the module that called it.
BETWEEN = ("torch.", "regard.ops.", "regard.observe.", "regard.flags.")

_active: list[Observer] = []


class _Mode(TorchFunctionMode):
    """Intercepts every torch function call."""

    def __init__(self, see: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()
        self._see = see

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():  # the compiler also passes here, and must see the plain call
            return func(*args, **(kwargs or {}))
        return self._see(func, args, kwargs or {})


class _Work(threading.local):
    """Active modules of a thread, innermost last, and the softmaxes that they computed."""

    def __init__(
        self,
        record: Callable[[Scope, Tensor], AttentionCall | None],
        retract: Callable[[AttentionCall], None],
        lose: Callable[[Scope], None],
    ) -> None:
        self.scopes: list[Scope] = []
        self.follower = Follower(record, retract, lose, lambda: not _called_by_regard())


class Observer:
    """Records the attention calls of some modules of a model between `start` and `stop`.

    Args:
        model: the model.
        names: names of the wanted modules, by identity.
        heads: head indices; None: all.
        areas: whether to keep the weights of areas.

    Attributes:
        calls: the recorded calls, in order.
        removals: numbers of calls before each removal of tokens from a cache.
        reached: whether a wanted module was called.
    """

    def __init__(self, model: nn.Module, names: dict[int, str], *, heads: Sequence[int] | None, areas: bool) -> None:
        self.calls: list[AttentionCall] = []
        self.removals: list[int] = []
        self.reached = False
        self._model, self._names, self._heads, self._areas = model, names, heads, areas
        self._wanted = set(names.values())
        self._weights: dict[int, list[str]] = {}  # of the outermost call that is running
        self._turns: Counter[tuple[int, str]] = Counter()
        self._left: list[Scope] = []
        self._elsewhere = frozenset[threading.Thread]()
        self._work = _Work(self._by_hand, self._retract, self._left.append)
        self._mode = _Mode(self._see)
        self._hooks = Hooks(model, names, self._enter, self._leave)
        self._stack = ExitStack()

    @property
    def ran(self) -> bool:
        """Whether the model, or a wanted part of it, was called."""
        return self._hooks.ran or self.reached

    @property
    def missed(self) -> list[Scope]:
        """Calls of modules that attend by their class name, or that lost a softmax factor, without a record."""
        return [scope for scope in self._left if scope.missed or not scope.seen]

    def start(self) -> None:
        """Start recording.

        Raises:
            ConfigError: the model or a part of it is already being recorded.
        """
        if any(self._names.keys() & other._names.keys() for other in _active):
            raise ConfigError(f"watch: {type(self._model).__name__} is being watched already; use what that block records")
        # What ran before goes on with other work; threads that start in the block belong to it.
        self._elsewhere = frozenset(threading.enumerate()) - {threading.current_thread()}
        with ExitStack() as stack:
            _active.append(self)
            stack.callback(_active.remove, self)
            stack.callback(self._abandon, len(_get_current_function_mode_stack()))
            stack.enter_context(fast_path_kept(_Mode))
            stack.enter_context(layouts_told(self._layout))
            stack.enter_context(removals_told(self._removed))
            stack.enter_context(recording(self._own, areas=self._areas, wanted=self._wants))
            stack.enter_context(self._hooks)
            modules = [module for module in self._model.modules() if id(module) in self._names]
            stack.enter_context(methods_told(modules, self._method))
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """Stop recording."""
        self._stack.close()

    def _abandon(self, modes: int) -> None:
        # After a KeyboardInterrupt no hook ran: scope and mode are still active.
        interrupted = bool(self._work.scopes)
        self._work = _Work(self._by_hand, self._retract, self._left.append)
        while interrupted and len(_get_current_function_mode_stack()) > modes:
            _pop_mode()

    def __deepcopy__(self, memo: object) -> Observer:
        return self  # a copy of the model is another model and not watched

    def __reduce__(self) -> Any:
        raise ConfigError(f"watch: {type(self._model).__name__} cannot be saved whole while it is watched; save its state_dict, or later")

    def _method(self, own: FunctionType, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method other than `forward` as a call of its module, unless the module is already active."""
        scopes = self._work.scopes
        given = any(isinstance(value, Tensor) for value in (*args, *kwargs.values()))
        if not given or self._is_elsewhere() or any(scope.module is module for scope in scopes):
            return own(module, *args, **kwargs)
        self._enter(self._names[id(module)], module, args, kwargs)
        scopes[-1].method = True
        try:
            return own(module, *args, **kwargs)
        finally:
            self._leave(module)

    def _enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_elsewhere():
            return
        self.reached = True
        self._work.scopes.append(Scope(name, module, args, kwargs))
        if len(self._work.scopes) == 1:  # nothing is slowed down if nothing is watched
            self._mode.__enter__()

    def _is_elsewhere(self) -> bool:
        """Whether a call is not one of the watched block: the compiler's, one of a backward pass, or another thread's."""
        return torch.compiler.is_compiling() or in_backward() or threading.current_thread() in self._elsewhere

    def _leave(self, module: nn.Module) -> None:
        work = self._work
        if torch.compiler.is_compiling() or not work.scopes or work.scopes[-1].module is not module:
            return
        scope = work.scopes.pop()
        if in_fragments(scope):
            self._lose(scope, f"it computes its attention in {len(scope.calls)} parts, which make no map")
        if self._heads is None and is_one_head(scope):
            self._join(scope, turned=True)
        parts = parts_of_batch(scope)
        if parts == "examples":
            self._join(scope)
        elif parts == "unclear":
            self._lose(scope, "it loops over heads or examples, which cannot be told apart; run another number of examples, or one alone")
        scope.args, scope.kwargs = (), {}
        if scope.missed or (not scope.seen and (scope.windows or (scope.attends and not scope.method))):
            self._left.append(scope)
        work.follower.leave(len(work.scopes) + 1)
        if not work.scopes:
            work.follower.clear()
            self._turns.clear()
            self._weights = {}
            self._mode.__exit__(None, None, None)

    def _lose(self, scope: Scope, why: str) -> None:
        """Discard what was recorded of a module call."""
        self.calls[:] = [call for call in self.calls if not any(call is part for part in scope.calls)]
        scope.lost, scope.seen, scope.missed = why, False, True

    def _join(self, scope: Scope, *, turned: bool = False) -> None:
        """Merge the calls of a module that loops over the examples of its batch, or exchange the first two axes."""
        parts = [call.weights for call in scope.calls]
        with torch._C.DisableTorchFunction():
            whole = scope.calls[0]._replace(weights=torch.cat([part.transpose(0, 1) for part in parts] if scope.three or turned else parts))
        first, *others = scope.calls
        self.calls[:] = [whole if call is first else call for call in self.calls if not any(call is other for other in others)]

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "").partition(".")[0]  # an operator of torch.ops ends in its overload's name
        work = self._work
        if not work.scopes:
            return func(*args, **kwargs)
        if name == "multi_head_attention_forward":
            return self._multi_head(func, args, kwargs)
        if func is flex_attention:
            return self._flex(args, kwargs)
        if name == "__get__":  # a property of a tensor
            name = getattr(func.__self__, "__name__", name)
        wanted = work.scopes[-1].name in self._wanted
        follow = (bool(work.follower) or (wanted and name in FOLLOWED)) and name not in SEEN
        if not follow and name not in SEEN:
            return func(*args, **kwargs)
        scopes = work.scopes if wanted else None
        if follow:
            with torch._C.DisableTorchFunction():  # other modes see the model's calls only
                work.follower.before(name, args, kwargs, scopes)
        if name in SEEN and wanted:
            with torch._C.DisableTorchFunction():
                _check_numbers([*args, *kwargs.values()], work.scopes[-1].name)
        out = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            if follow:
                work.follower.after(func, name, out, (args, kwargs), scopes)
            elif name in FUSED:
                self._fused(FUSED[name](*args, **kwargs))
            elif wanted and not _called_by_regard():
                if name in SOFTMAX or name in EXP:
                    work.follower.begin(out, work.scopes, _softmax_axis(name, args, kwargs), exponents=name in EXP)
                else:
                    self._dot_product(out, *args, **kwargs)
        return out

    def _dot_product(
        self,
        out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> None:
        scope = self._work.scopes[-1]
        kind = kind_of(self._work.scopes)
        given = {"mask": attn_mask, "causal": is_causal, "scale": more.get("scale")}
        if query.is_nested or key.is_nested:
            self._take(scope.name, kind, nested_attention_weights(query, key, causal=is_causal, scale=given["scale"], heads=self._heads))
            return
        if query.dim() == 3 and scope.layout is None:  # the first axis counts examples, heads, or both
            weights = attention_weights(query, key, **given).squeeze(1)
            self._work.follower.multiplied(weights, out, self._work.scopes)
            return
        if query.dim() > 4 and scope.layout is None:
            weights = attention_weights(query, key, **given)
            weights = weights.unflatten(0, torch.broadcast_shapes(query.shape[:-3], key.shape[:-3]))
            self._work.follower.multiplied(weights, out, self._work.scopes)
            return
        if query.dim() == 4 and scope.layout is None:
            scope.states = states_of(self._work.scopes)
            if order_of(scope, (*query.shape[:3], key.shape[2])) != "examples":
                self._work.follower.multiplied(attention_weights(query, key, **given), out, self._work.scopes)
                return
            if in_blocks([scope], (*query.shape[:3], key.shape[2]), out.shape):
                scope.windows, scope.lost = True, in_blocks_of((*query.shape[:3], key.shape[2]))
                return
        if scope.layout is None or scope.layout == tuple(query.shape[1:3]):
            self._take(scope.name, kind, attention_weights(query, key, **given, heads=self._heads))
            return
        # One query of many heads, folded into several queries of the heads that share keys.
        weights = attention_weights(query, key, **given)
        self._take(scope.name, kind, self._chosen(weights.reshape(weights.shape[0], *scope.layout, weights.shape[-1])))

    def _fused(self, packed: Packed) -> None:
        layer = self._layer_of([packed.weight], "")
        if layer not in self._wanted:
            return
        weights = packed.weights(self._heads)
        encoder = next((scope for scope in reversed(self._work.scopes) if isinstance(scope.module, nn.TransformerEncoder)), None)
        if packed.states.is_nested and encoder is not None:
            # The encoder removed padding: rows and columns as in its input.
            given = encoder.args[0] if encoder.args else encoder.kwargs["src"]
            missing = given.shape[1] - weights.shape[-1]
            weights = F.pad(weights, (0, missing, 0, missing))
        self._take(layer, "self" if packed.keys is packed.states else "cross", weights)

    def _layer_of(self, given: Sequence[Any], otherwise: str) -> str:
        """Return the name of the module that passed one of these weights, or `otherwise` if that cannot be told.

        Modules that share a weight take turns, within the innermost active one.
        """
        if not any(id(arg) in self._weights for arg in given):  # torch.func.functional_call puts other weights in their place
            self._weights = names_of_weights(self._model, self._names)
        known = self._weights
        weight = next((id(arg) for arg in given if id(arg) in known), None)
        if weight is None:
            return otherwise
        around = self._work.scopes[-1].name
        names = [name for name in known[weight] if f"{name}.".startswith(f"{around}.")] or known[weight]
        turn = self._turns[weight, around]
        self._turns[weight, around] += 1
        return names[turn % len(names)]

    def _multi_head(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {**dict(zip(("query", "key", "value", "embed_dim_to_check", "num_heads"), args, strict=False)), **kwargs}
        around = self._work.scopes[-1]
        name = around.name
        if not isinstance(around.module, nn.MultiheadAttention):  # an encoder layer has no hooks: its calls are identified by its weights
            name = self._layer_of([*args, *kwargs.values()], name)
        if name not in self._wanted:
            return func(*args, **kwargs)
        kind: Kind = "self" if given["key"] is given["query"] else "cross"
        scopes = self._work.scopes
        scopes.append(Scope(name, around.module, kind=kind, num_heads=given["num_heads"]))
        try:
            with self._mode:
                return open_multi_head()(*args, **kwargs)
        finally:
            scopes.pop()

    def _flex(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = flex_attention(*args, **kwargs)  # the mode is off meanwhile: a tile is not a call of its own
        scope = self._work.scopes[-1]
        if scope.name in self._wanted:
            with torch.no_grad():
                weights = flex_attention(*args, **{**kwargs, "need_weights": True, "return_lse": False})[1]
            self._take(scope.name, kind_of(self._work.scopes), _copied(self._chosen(weights)))
        return out

    def _retract(self, call: AttentionCall) -> None:
        """Discard a recorded call of which more follows."""
        for calls in (self.calls, *(scope.calls for scope in self._work.scopes)):
            calls[:] = [each for each in calls if each is not call]

    def _by_hand(self, scope: Scope, weights: Tensor) -> AttentionCall | None:
        weights = weights.detach()
        order = order_of(scope, weights.shape) if weights.dim() in (3, 4) else "examples"
        axis = query_axis(scope, weights.shape) if weights.dim() > 4 and len(scope.lacking) > 1 else -2
        if axis is None or (order == "unclear" and weights.dim() == 3):
            scope.lost, scope.missed = UNCLEAR if axis else UNCLEAR_QUERIES, True
            self._left.append(scope)
            return None
        if have_own_keys(self._work.scopes, weights.shape, scope.lacking, scope.product):
            scope.windows, scope.lost = True, "each of its queries has keys of its own, as in a window, which make no map"
            return None
        if axis != -2:
            weights = weights.movedim(axis, -2)
        if weights.dim() == 3:
            alone = weights.unsqueeze(0) if order == "heads" else weights.unsqueeze(1)
            weights = alone if scope.num_heads is None else weights.unflatten(0, (-1, scope.num_heads))
        elif order == "heads":
            weights = weights.transpose(0, 1)
        elif weights.dim() > 4 and (len(scope.lacking) > 1 or weights.shape[0] in batches_of(scope, weights.shape)):
            weights = weights.flatten(1, -3)  # grouped queries: the axes between count heads
        while weights.dim() < 4:
            weights = weights.unsqueeze(0)
        weights = weights.flatten(0, -4)
        if in_blocks(self._work.scopes[-1:], weights.shape, scope.product):
            scope.windows, scope.lost = True, in_blocks_of(weights.shape)
            return None
        scope.seen = True  # also if the product comes after the module
        return self._take(scope.name, scope.kind or "self", _copied(self._chosen(weights)))

    def _wants(self, attention: nn.Module) -> bool:
        from regard.models.cross_attention import SourcePairAttention

        # A pair of attentions records what each contributes, which are no attention weights.
        return id(attention) in self._names and not isinstance(attention, SourcePairAttention) and not in_backward()

    def _own(self, recorded: RecordedWeights) -> None:
        """Record a call of one of Regard's own modules."""
        name = self._names[id(recorded.attention)]
        areas = None if recorded.area_weights is None else _copied(self._chosen(recorded.area_weights))
        self._take(name, _own_kind(name, self._work.scopes), _copied(self._chosen(recorded.weights)), areas)

    def _removed(self) -> None:
        if not self._is_elsewhere():
            self.removals.append(len(self.calls))

    def _layout(self, layout: tuple[int, int] | None) -> None:
        if self._work.scopes:
            self._work.scopes[-1].layout = layout

    def _chosen(self, weights: Tensor) -> Tensor:
        heads = check_heads(self._heads, weights.shape[1])
        return weights if heads is None else weights[:, list(heads)]

    def _take(self, layer: str, kind: Kind, weights: Tensor, areas: Tensor | None = None) -> AttentionCall:
        for scope in self._work.scopes:
            scope.seen = True
        heads = None if self._heads is None else tuple(self._heads)
        call = AttentionCall(layer, kind, weights, areas, heads)
        self.calls.append(call)
        for scope in self._work.scopes[-1:]:
            if scope.name == layer:
                scope.calls.append(call)
        return call


def _softmax_axis(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    place = 4 if name == "gumbel_softmax" else 1
    axis = None if name in EXP else kwargs.get("dim", args[place] if len(args) > place else None)
    if isinstance(axis, int) or name in EXP or name == "gumbel_softmax":
        return axis if isinstance(axis, int) else -1
    count = (args[0] if args else kwargs["input"]).dim()
    return 0 if count in (0, 1, 3) else 1  # as F.softmax does silently


def _check_numbers(given: Sequence[Any], layer: str) -> None:
    if any(isinstance(x, Tensor) and (x.is_meta or type(x).__name__ == "FakeTensor") for x in given):
        raise ConfigError(f"watch: {layer} ran on tensors that hold no numbers (meta device); run the model on a device")
    if peek_interpreter_stack() is not None:
        raise ConfigError(f"watch: {layer} ran inside a transform of torch.func, such as vmap; call the model itself on the whole batch")


def _copied(weights: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return weights.detach().to("cpu", torch.float32, copy=True)


def _called_by_regard() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "") + "."
        if not name.startswith(BETWEEN):
            return name.startswith(OWN)
        frame = frame.f_back
    return False


def _own_kind(name: str, scopes: Sequence[Scope]) -> Kind:
    from regard.models.attention_maps import attention_site

    parts = name.split(".")
    for start in range(len(parts)):  # a Regard model may be part of another model
        try:
            return "self" if attention_site(".".join(parts[start:])).kind == "self" else "cross"
        except ConfigError:
            continue
    return kind_of(scopes)
