"""Call a `score_mod` or `mask_mod` on whole tiles of index tensors, and find the tensors it captures.

FlexAttention defines `score_mod(score, b, h, q_idx, kv_idx)` on scalar tensors. Most functions give the same result on index tensors that
broadcast to a tile. This module verifies that, finds captured tensors that require gradients, and substitutes them for one call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import CellType, FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _is_tracing  # pyright: ignore[reportPrivateUsage]
from torch._C._functorch import peek_interpreter_stack
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from regard.errors import ConfigError, ShapeError
from regard.ops.masks import check_boolean
from regard.ops.mod_structure import names_in, other_values, plain_sizes, structure_of

Mod = Callable[..., Tensor]

# Sizes of the trial tile: primes, so that swapped axes show.
_TRIED = (2, 3, 5, 7)
MASK_ARGUMENTS = 4
# Structures of functions known to take whole tiles; bounded, because a program may keep defining functions.
_MAX_KNOWN = 1024
_KNOWN: dict[object, bool] = {}
LOOK_UPS = {
    *(F.embedding, torch.gather, Tensor.gather, torch.index_select, Tensor.index_select),
    *(torch.take, Tensor.take, torch.take_along_dim, Tensor.take_along_dim),
}
"""Functions beside `table[index]` whose gradient is a sum over all entries that are looked up."""
# Modules whose functions pass their indices on unchanged.
COMBINING = ("regard.ops.mods", "torch.nn.attention.flex_attention")


def index_tensors(batches: Tensor, heads: Tensor, rows: range, columns: range) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Make the indices of a tile (N, G, rows, columns), each of size 1 along axes it does not depend on.

    Example:
        >>> [tuple(x.shape) for x in index_tensors(torch.zeros(2), torch.zeros(2, 3), range(5), range(7))]
        [(2, 1, 1, 1), (2, 3, 1, 1), (1, 1, 5, 1), (1, 1, 1, 7)]
    """
    queries = torch.arange(rows.start, rows.stop, dtype=torch.int32, device=heads.device)
    keys = torch.arange(columns.start, columns.stop, dtype=torch.int32, device=heads.device)
    return batches[:, None, None, None], heads[:, :, None, None], queries[None, None, :, None], keys[None, None, None]


class Wanted(NamedTuple):
    """A tensor that a ready function indexes directly: its axes must match the call's.

    Attributes:
        operation: name of the ready function.
        name: name of the tensor.
        shape: shape of the tensor.
        axes: "B", "H", "T" or "S" per axis, or "" for any size.
    """

    operation: str
    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]


_WANTED: WeakKeyDictionary[Mod, tuple[Wanted, ...]] = WeakKeyDictionary()


def with_sizes(mod: Mod, *wanted: Wanted) -> Mod:
    """Attach to a function the sizes it was made for.

    Example:
        >>> with_sizes(lambda b, h, q, kv: kv < 2, Wanted("padding", "lengths", (3,), ("B",))).__name__
        '<lambda>'
    """
    if not torch.compiler.is_compiling():
        _WANTED[mod] = wanted
    return mod


def check_sizes(mod: Any, sizes: Sequence[int], operation: str = "attention") -> None:
    """Refuse a ready function made for other sizes: a longer table would silently be misread.

    Includes functions that `and_masks`, `or_masks` and `in_order` combine. A user's function may change the indices it passes on, so the
    functions it calls are not checked.

    Args:
        mod: a `score_mod` or `mask_mod`; None: nothing to check.
        sizes: (B, H, T, S).
        operation: name that begins the message.

    Raises:
        ShapeError: a tensor of another size.

    Example:
        >>> check_sizes(with_sizes(lambda b, h, q, kv: kv < 2, Wanted("padding", "lengths", (3,), ("B",))), (3, 1, 2, 2))
    """
    if torch.compiler.is_compiling():  # the compiler cannot read a function's cells
        return
    known = dict(zip("BHTS", sizes, strict=True))
    for made, name, shape, axes in _wanted(mod):
        wrong = [axis for axis, size in zip(axes, shape, strict=True) if axis and known[axis] != size]
        if wrong:
            own = ", ".join(f"{axis} = {known[axis]}" for axis in wrong)
            expected = tuple(known.get(axis, size) for axis, size in zip(axes, shape, strict=True))
            raise ShapeError(f"{operation}: {made} was given {name} of {shape}, but this call has {own}; expected {expected}")


def _wanted(mod: Any) -> Iterator[Wanted]:
    if isinstance(mod, tuple | list):
        for part in mod:
            yield from _wanted(part)
    elif isinstance(mod, FunctionType):
        yield from _WANTED.get(mod, ())
        if mod.__module__ in COMBINING:
            yield from _wanted([cell.cell_contents for cell in mod.__closure__ or ()])


def frozen(mod: Mod) -> Mod:
    """Return a function with its captured variables as they are now: the backward pass calls it after a loop may have changed them.

    Attributes of captured objects are not frozen; the backward pass compares its weights with those of the forward pass.

    Args:
        mod: a function; other callables are returned unchanged.

    Example:
        >>> later = [frozen(lambda: number) for number in (1, 2)]
        >>> [one() for one in later]
        [1, 2]
    """
    return _frozen(mod, {})


def _frozen(thing: Any, seen: dict[int, Any]) -> Any:
    if not isinstance(thing, FunctionType) or (thing.__module__ or "").split(".")[0] == "torch":
        return thing
    if id(thing) in seen:
        return seen[id(thing)]
    names = names_in(thing.__code__)
    variables = {name: value for name, value in thing.__globals__.items() if name in names or name in ("__builtins__", "__name__")}
    cells = tuple(CellType() for _ in thing.__closure__ or ())
    copy = FunctionType(thing.__code__, variables, thing.__name__, thing.__defaults__, cells)
    copy.__kwdefaults__ = thing.__kwdefaults__
    seen[id(thing)] = copy
    for cell, own in zip(thing.__closure__ or (), cells, strict=True):
        with suppress(ValueError):  # an unassigned variable
            own.cell_contents = _frozen(cell.cell_contents, seen)
    for name, value in variables.items():
        if name != "__builtins__":
            variables[name] = _frozen(value, seen)
    return copy


def check_kind(mod: object, name: str, where: str = "attention") -> None:
    """Refuse a mask passed as `score_mod`, or the reverse.

    Raises:
        ConfigError: the parameters fit the other kind only.

    Example:
        >>> check_kind(lambda b, h, q, kv: q >= kv, "score_mod")
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: attention: score_mod takes 4 arguments: this is a mask (b, h, q_idx, kv_idx), pass it as mask_mod=
    """
    if torch.compiler.is_compiling() or not isinstance(mod, FunctionType) or mod.__code__.co_flags & inspect.CO_VARARGS:
        return
    most = mod.__code__.co_argcount
    if name == "score_mod" and most == MASK_ARGUMENTS:
        raise ConfigError(f"{where}: score_mod takes {most} arguments: this is a mask (b, h, q_idx, kv_idx), pass it as mask_mod=")
    if name == "mask_mod" and most - len(mod.__defaults__ or ()) == MASK_ARGUMENTS + 1:
        raise ConfigError(
            f"{where}: mask_mod takes {most} arguments: this changes scores (score, b, h, q_idx, kv_idx), pass it as score_mod"
        )


def over_tiles(mod: Mod, name: str, sizes: Sequence[int], device: torch.device, dtype: torch.dtype | None = None) -> Mod:
    """Return a function that computes a `score_mod` or `mask_mod` for a whole tile.

    Returns the function itself if it agrees with `torch.vmap` over single scores (tried once per function structure), otherwise its
    `torch.vmap`, which is slower.

    Args:
        mod: as in FlexAttention.
        name: "score_mod" or "mask_mod", for messages.
        sizes: (B, H, T, S), none of them 0.
        device: device of the indices.
        dtype: dtype of the scores for a `score_mod`; None for a `mask_mod`.

    Raises:
        ConfigError: neither works, such as for a function with `if` on an index.
        ShapeError: a `mask_mod` does not return booleans.

    Example:
        >>> over_tiles(lambda score, b, h, q, kv: score + q - kv, "score_mod", (1, 1, 5, 5), torch.device("cpu"), torch.float32)(
        ...     torch.zeros(()), 0, 0, torch.tensor([3]), torch.tensor([1, 2])
        ... ).tolist()
        [2.0, 1.0]
    """
    key = _key(mod, sizes, dtype)
    known = None if key is None else _KNOWN.get(key)
    if known is not None:
        return mod if known else _vmapped(mod, name)
    indices = [torch.arange(n, dtype=torch.int32, device=device) % size for n, size in zip(_TRIED, sizes, strict=True)]
    given = [part.view([-1 if n == axis else 1 for n in range(4)]) for axis, part in enumerate(indices)]
    if dtype is not None:
        given.insert(0, torch.linspace(-2, 3, 210, dtype=dtype, device=device).view(_TRIED))
    with torch.no_grad():
        right = _vmapped(mod, name)(*given)
        if dtype is None:
            check_boolean(right, "attention: the result of mask_mod")
        direct = _takes_tiles(mod, given, right)
        others = Captured(other_values(mod), None) if direct and key is not None else None
        if others is not None and others.stand_ins:
            try:
                other = functools.partial(others.run, mod)
                direct = _takes_tiles(other, given, _vmapped(other, name)(*given))
            except ConfigError:  # fails with these values; nothing is known of others
                key = None
    if key is not None:
        if len(_KNOWN) >= _MAX_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = direct
    return mod if direct else _vmapped(mod, name)


def _takes_tiles(mod: Mod, given: Sequence[Tensor], right: Tensor) -> bool:
    try:
        found = mod(*given).expand(_TRIED)
        return found.dtype == right.dtype and torch.allclose(found.double(), right.double(), rtol=1e-4, atol=1e-6, equal_nan=True)
    except Exception:  # any error on whole tiles: the function works on single scores
        return False


def over_traced_tiles(mod: Mod, name: str, sizes: Sequence[int], dtype: torch.dtype | None = None) -> Mod:
    """Return the result of `over_tiles` without a trial: while tracing, under a transform, or for a size of 0.

    Example:
        >>> over_traced_tiles(lambda b, h, q, kv: q >= kv, "mask_mod", (1, 1, 5, 5)).__name__
        'call'
    """
    # The compiler cannot both read a function's cells and call it.
    known = not torch.compiler.is_compiling() and _KNOWN.get(_key(mod, sizes, dtype), False)
    return mod if known else _vmapped(mod, name)


def _vmapped(mod: Mod, name: str) -> Mod:
    """Vectorize a function of single scores over a tile."""

    def call(*tensors: Tensor) -> Tensor:
        *scores, b, h, q, kv = tensors
        tile = torch.broadcast_shapes(*(x.shape for x in tensors))
        if 0 in tile:  # no index to call the function with
            return scores[0] if scores else torch.ones(tile, dtype=torch.bool, device=q.device)
        inputs = [*(x.expand(tile) for x in scores), b.expand(tile[0], 1, 1, 1).flatten(), h.expand(*tile[:2], 1, 1).flatten(1)]
        wrapped = mod
        # From the innermost map to the outermost: keys, queries, heads, batch.
        for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, 0, None, None)):
            wrapped = torch.vmap(wrapped, in_dims=(0,) * len(scores) + axes)
        try:
            return wrapped(*inputs, q.flatten(), kv.flatten())
        except Exception as error:  # any error of the user's function
            if _is_tracing():  # `torch.vmap` does not work here; functions tried before do not need it
                raise ConfigError(f"attention: {name} cannot be tried under torch.jit.trace; call attention with it once before") from error
            plain = "must only return Tensors" in str(error)
            hint = "it must return a tensor, not a number of Python" if plain else "use torch.where in place of `if`"
            raise ConfigError(f"attention: {name} fails on tensors of indices: {error}; {hint}") from error

    return call


def _key(mod: Mod, sizes: Sequence[int], dtype: torch.dtype | None) -> object:
    """Return a key of a function and its trial; equal keys give equal results. None if unknown."""
    structure = structure_of(mod)
    # A size of 1 hides mistakes along that axis.
    return None if structure is None else (structure, dtype, tuple(map(min, _TRIED, plain_sizes(sizes))))


class _Finder(TorchFunctionMode):
    """Collects tensors that require gradients and are neither arguments nor results of a function."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()
        self.inside = {id(x): x for x in given}  # kept alive, so that no id is reused
        self.found: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and id(x) not in self.inside and x.requires_grad:
                self.found[id(x)] = x
        result = func(*args, **(kwargs or {}))
        self.inside |= {id(x): x for x in tree_leaves(result) if isinstance(x, Tensor) and id(x) not in self.found}
        return result


def captured_tensors(mod: Mod, score: Tensor, *indices: Tensor) -> tuple[Tensor, ...]:
    """Find captured tensors of a `score_mod` that require gradients: learned biases, slopes, tables.

    Raises:
        ConfigError: the result depends on such a tensor in a way that PyTorch does not expose.

    Example:
        >>> slope = torch.ones((), requires_grad=True)
        >>> indices = [torch.zeros(1, 1, 1, 1, dtype=torch.int32)] * 4
        >>> captured_tensors(lambda score, b, h, q, kv: score - slope * (q - kv), torch.zeros(1, 1, 1, 1), *indices)[0] is slope
        True
    """
    with _Finder([score, *indices]) as finder, torch.enable_grad():
        result = mod(score, *indices)
    if isinstance(result, Tensor) and result.requires_grad:
        if id(result) not in finder.inside:  # the tensor itself, without an operator
            finder.found[id(result)] = result
        with torch.enable_grad():
            again = Captured({key: x.detach() for key, x in finder.found.items()}, None).run(mod, score, *indices)
        if again.requires_grad:
            raise ConfigError(
                "attention: score_mod uses a tensor that requires grad inside a torch.autograd.Function, where it cannot be found; "
                "index or add it outside of that"
            )
    return tuple(finder.found.values())


def with_float_sums(mod: Mod, score: Tensor, *indices: Tensor) -> Mod:
    """Return an equivalent `score_mod` whose captured half-precision tensors get float32 gradient sums.

    In bfloat16 a sum of looked-up entries saturates at 256 times an entry.

    Example:
        >>> indices, mod = [torch.zeros(1, 1, 1, 1, dtype=torch.int32)] * 4, lambda score, b, h, q, kv: score - q
        >>> with_float_sums(mod, torch.zeros(1, 1, 1, 1), *indices) is mod
        True
    """
    with _Finder([score, *indices]) as finder, torch.enable_grad():
        mod(score, *indices)
    half = [x for x in finder.found.values() if x.dtype in (torch.float16, torch.bfloat16)]
    wide = Captured({id(x): x.float() for x in half}, None)

    def call(*tensors: Tensor, held: Sequence[Tensor] = half) -> Tensor:  # kept alive, so that no id is reused
        return wide.run(mod, *tensors)

    return call if half else mod


class Captured(TorchFunctionMode):
    """Runs a `score_mod` with substitutes for captured tensors, and indexes tables once per diagonal.

    An index that is constant along diagonals, as in `table[kv_idx - q_idx]`, has rows + columns - 1 distinct entries per tile instead of
    rows * columns. Looking up these and summing gradients along diagonals is ten times faster.

    Args:
        stand_ins: substitutes by the id of the replaced tensor; one of a wider dtype gets its gradient in that dtype.
        sums: gradient sums by the id of each substitute; None: autograd's gradients.

    Example:
        >>> table, places = torch.tensor([1.0, 2.0, 3.0]), torch.arange(2)
        >>> Captured({}, None).run(lambda i: table[i - i[:, None] + 1], places).tolist()
        [[2.0, 3.0], [1.0, 2.0]]
    """

    def __init__(self, stand_ins: dict[int, Tensor], sums: dict[int, Tensor] | None) -> None:
        super().__init__()
        self.stand_ins, self.sums = stand_ins, sums

    def run(self, mod: Mod, *tensors: Tensor) -> Tensor:
        """Call a function with the substitutes."""
        with self:
            return self._in_place_of(mod(*tensors))

    def _in_place_of(self, thing: Any) -> Any:
        found = self.stand_ins.get(id(thing))
        return thing if found is None else found.to(thing.dtype)

    def _as_it_is(self, thing: Any) -> Any:
        return self.stand_ins.get(id(thing), thing)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and len(args) == 2:
            # In the substitute's dtype, in which the gradients of all look-ups are summed.
            given: Tensor = args[0]
            table = self.stand_ins.get(id(given), given)
            return self._look_up(table, tree_map(self._in_place_of, args[1])).to(given.dtype)
        if self.stand_ins:
            if func in LOOK_UPS:
                table = next((x for x in (*args, *(kwargs or {}).values()) if id(x) in self.stand_ins), None)
                if table is not None:
                    args, kwargs = tree_map(self._as_it_is, (args, kwargs or {}))
                    return func(*args, **kwargs).to(table.dtype)
            args = tree_map(self._in_place_of, args)
            kwargs = tree_map(self._in_place_of, kwargs) if kwargs else kwargs
        return func(*args, **(kwargs or {}))

    def _look_up(self, table: Tensor, index: Any) -> Tensor:
        parts = index if isinstance(index, tuple) else (index,)
        whole = all(isinstance(x, Tensor) and x.dtype in (torch.int32, torch.int64) for x in parts) and len(parts) == table.dim()
        if not whole or peek_interpreter_stack() is not None:
            return table[index]
        wide = [n for n, x in enumerate(parts) if x.dim() > 1 and (x.shape[-1] > 1 or x.shape[-2] > 1)]
        twice = torch.is_grad_enabled() and self.sums is None  # the diagonal path is differentiable once
        line = None if twice or len(wide) != 1 else _diagonals(parts[wide[0]])
        if line is None:
            return self._take(table, parts)
        picked = self._take(table, tuple(line.unsqueeze(-2) if n == wide[0] else x for n, x in enumerate(parts)))
        return _Spread.apply(picked.squeeze(-2), *parts[wide[0]].shape[-2:])

    def _take(self, table: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
        total = None if self.sums is None else self.sums.get(id(table))
        return table[parts] if total is None else _Take.apply(table, total, *parts)


def _diagonals(index: Tensor) -> Tensor | None:
    """Return the entries (..., rows + columns - 1) of an index that is constant along diagonals, from bottom left to top right."""
    rows, columns = index.shape[-2:]
    if rows == 1 or columns == 1:
        return None
    line = torch.cat([index[..., 0].flip(-1), index[..., 0, 1:]], dim=-1)
    # Bytes of differences: several times as fast as torch.equal.
    differences = _spread(line, rows, columns).bitwise_xor(index).contiguous().view(torch.uint8)
    return None if differences.amax() else line


def _spread(line: Tensor, rows: int, columns: int) -> Tensor:
    """Expand diagonals (..., rows + columns - 1) to (..., rows, columns)."""
    # Not flip, whose result is transposed in memory.
    return line.unfold(-1, columns, 1).index_select(-2, torch.arange(rows - 1, -1, -1))


class _Spread(torch.autograd.Function):
    """Expands diagonals; sums the gradient along them."""

    @staticmethod
    def forward(ctx: Any, line: Tensor, rows: int, columns: int) -> Tensor:
        ctx.rows, ctx.size = rows, rows + columns - 1
        return _spread(line, rows, columns)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Rows one longer than the diagonals, viewed without the extra entry, shift by one position each.
        upright = F.pad(grads[0].index_select(-2, torch.arange(ctx.rows - 1, -1, -1)), (0, ctx.rows))
        moved = upright.flatten(-2)[..., : ctx.rows * ctx.size].unflatten(-1, (ctx.rows, ctx.size))
        return moved.sum(-2), None, None


class _Take(torch.autograd.Function):
    """Indexes a table and adds the gradient in place: autograd would allocate a table-sized gradient per tile."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, total: Tensor, *index: Tensor) -> Tensor:
        ctx.total, ctx.index = total, index
        return table[index]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        ctx.total.index_put_(ctx.index, grads[0].to(ctx.total.dtype), accumulate=True)
        return (None,) * (2 + len(ctx.index))
