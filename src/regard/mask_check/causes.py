"""Derives the most likely cause of a leak from the module where it begins and from which positions depend on which."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from regard.mask_check.adapter import BATCH
from regard.mask_check.automatic import is_mask
from regard.mask_check.dependence import Dependence, Module, dependence, module_of
from regard.mask_check.evidence import approximates, attends, draws_by, reduces_by
from regard.mask_check.layout import PLAIN, spread
from regard.mask_check.locate import Origin
from regard.mask_check.probes import Probe
from regard.mask_check.recording import Key, tensors_of
from regard.mask_check.report import places
from regard.mask_check.survey import Place, Survey

NORMS = (nn.LayerNorm, nn.GroupNorm, _InstanceNorm, nn.RMSNorm)
EXPERTS = re.compile(r"M[oO]E|Moe|Expert|Router|SparseM|Switch(F|MLP)")
"""Class names of mixture-of-experts layers."""
MASK_WORDS = ("mask", "length")
WEAK = -50.0
"""Largest value of an additive mask that still hides a score; scores differ by a few tens."""


def cause_of(survey: Survey, probe: Probe, origin: Origin) -> str:
    """Return the most likely cause of a leak in one or two sentences."""
    kind = survey.runs.model.get_submodule(origin.module)
    if probe.check == "repeated run":
        return _random(survey, probe, origin)
    if probe.check == "labels":
        return "the outputs depend on the labels they are to predict; labels belong into the loss alone"
    if probe.check == "other documents":
        return _documents(survey, probe)
    if probe.check == "number of later tokens":
        return of_experts(origin) or NUMBER
    known = _by_kind(probe, kind, survey.views[Place(origin.event.key, origin.tensor)].dim())
    if known:
        return known
    if routed := of_experts(origin):
        return routed
    module = module_of(survey, origin, probe)
    if probe.sequence is None:
        return _across_rows(origin, module)
    row = _row(survey, probe)
    found = None if module is None else _dependence(module, probe.sequence, row, origin.tensor)
    if probe.name.endswith(f"future tokens{_suffix(probe)}"):
        return _future(survey, probe, origin, module, found)
    return _padding(survey, probe, origin, module, found)


def _suffix(probe: Probe) -> str:
    return probe.name[probe.name.index(":") :] if ":" in probe.name else ""


def _dependence(module: Module, sequence: str, row: int, tensor: str) -> Dependence | None:
    try:
        return dependence(module, sequence, row, tensor)
    except Exception:  # a module that cannot be called with other values only gives less evidence
        return None


def _row(survey: Survey, probe: Probe) -> int:
    if "future" in probe.name:
        return probe.match.rows[0][0]
    lengths = [len(at) for at in survey.base.positions[probe.sequence or survey.template.sequences[-1].name]]
    return lengths.index(min(lengths))


def of_experts(origin: Origin | None) -> str:
    """Return the cause of a leak that begins in a mixture of experts; "" if it begins elsewhere."""
    if origin is None or not EXPERTS.search(origin.kind):
        return ""
    return "an expert takes a limited number of tokens, and which ones it drops depends on the others: give it room for all in evaluation"


def _documents(survey: Survey, probe: Probe) -> str:
    key = next(sequence.documents for sequence in survey.template.sequences if sequence.name == probe.sequence) or ""
    numbers = survey.base.inputs[key]
    changed = survey.runs.run(survey.base._replace(inputs=survey.base.inputs | {key: torch.zeros_like(numbers)}))
    read = any(not torch.equal(changed[name], tensor) for name, tensor in survey.base_outputs(train=False).items() if name in changed)
    state = f"{key} is read, but hides nothing here" if read else f"nothing depends on {key}"
    return f"documents of a row see each other: {state}; the mask must hide other documents, as {key}[:, :, None] == {key}[:, None]"


def _random(survey: Survey, probe: Probe, origin: Origin) -> str:
    one = survey.runs.run(survey.base, seed=1)
    if probe.between is not None:
        survey.runs.run(probe.between)
    two = survey.runs.run(survey.base, seed=1)
    if any((one[name] != two[name]).any() for name in one):
        return "the model keeps something from one call to the next, such as a cache or a counter, and does not start anew"
    if isinstance(survey.runs.model.get_submodule(origin.module), _DropoutNd):
        return "this dropout stays active in evaluation; model.eval() must reach it"
    if function := draws_by(module_of(survey, origin, probe)):
        return f"{function} draws at random in evaluation; draw in training alone (self.training), or from a generator of fixed seed"
    return "something is drawn at random in evaluation: most often F.dropout without training=self.training"


def _by_kind(probe: Probe, module: nn.Module, dims: int) -> str:
    """Return the known cause for a module type of torch, whose output has this number of axes; "" for another."""
    future = "future" in probe.name
    rows = probe.sequence is None
    if isinstance(module, _BatchNorm):
        what = "its padding" if not future and not rows else "other rows" if rows else "later positions"
        return f"batch norm takes its mean and variance over {what}, too; use a layer norm, or statistics of real positions alone"
    if isinstance(module, NORMS):
        what = "later positions" if future else "padding" if not rows else "other rows"
        return f"the norm takes its mean and variance over {what}, too; it must normalize over features alone"
    if isinstance(module, nn.RNNBase):
        if future:
            return "it reads the sequence backwards, too (bidirectional=True)" if module.bidirectional else _recurrent(module)
        if not rows:
            way = "its backward direction begins in the padding" if module.bidirectional else "its last state comes after the padding"
            return f"{way}; pack the sequence (pack_padded_sequence)"
        return _recurrent(module)
    if isinstance(module, _ConvNd):
        reach = max(int(d) * (int(k) - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True))
        if future:
            return f"the convolution is padded on both sides; pad {reach} (dilation * (kernel_size - 1)) on the left only"
        if not rows:
            return "the convolution reads padding; set it to zero before each convolution"
    if isinstance(module, nn.Softmax | nn.LogSoftmax) and module.dim is not None and module.dim % dims != dims - 1:
        return f"the softmax runs over axis {module.dim}, which is not the key axis"
    return ""


def _recurrent(module: nn.RNNBase) -> str:
    first = "(B, T, E)" if module.batch_first else "(T, B, E)"
    return f"it takes another axis for time: with batch_first={module.batch_first} it expects {first}{TIME_FIRST}"


TIME_FIRST = "; if the batch is meant to be (T, B), say so with Sequence(..., time_first=True)"


def _across_rows(origin: Origin, module: Module | None) -> str:
    if origin.kind == "MultiheadAttention" and module is not None and getattr(module.module, "batch_first", False):
        return f"rows attend to each other: it gets (T, B, E) although batch_first=True, or the mask of another row{TIME_FIRST}"
    if origin.kind == "MultiheadAttention":
        return f"rows attend to each other: it takes the batch axis for time; set batch_first=True or give it (T, B, E){TIME_FIRST}"
    if function := reduces_by(module):
        return f"{function} without dim= runs over all rows of the batch here; give it the axes of one row"
    return "the rows of the batch are mixed: a softmax, a mean or a reshape over the wrong axis, or a mask of another row"


def _future(survey: Survey, probe: Probe, origin: Origin, module: Module | None, found: Dependence | None) -> str:
    sequence = next(s for s in survey.template.sequences if s.name == probe.sequence)
    pattern = ""
    if found is not None and found.positional and len(found.matrix) == found.matrix.shape[1]:
        pattern = _pattern(found.among, strict=sequence.causal == "strict")
    compared = origin.found.positions
    limit = survey.limit_at(Place(origin.event.key, origin.tensor))
    seeing = [column for column, size in compared.items() if size > limit]
    if not _attends(origin) and attends(module, survey.widths[sequence.name]) is False:
        return _without_attention(pattern, seeing if len(seeing) < len(compared) else [])
    if not pattern.endswith(OFF_BY_ONE) and _attends(origin) and approximates(module, survey.widths[sequence.name], survey.widths.values()):
        return SUMMED
    wrong = _sums(module, sequence.name) if pattern in (ALL, INVERTED) and module is not None else ""
    if wrong and not (pattern == INVERTED and wrong == NOT_ONE):  # the last row of an inverted mask has no key: its weights may sum to 0
        return f"the weights of a position do not add up to 1: {wrong}"
    if pattern.endswith(RESHAPED) and origin.found.size < LITTLE * spread(survey.views[Place(origin.event.key, origin.tensor)]):
        return SOFT
    if pattern and pattern != ALL:
        return pattern
    if not pattern and sequence.causal is True and len(seeing) < len(compared):
        return f"later tokens are seen at {places(seeing)} alone, of those before them: {HOLE}, or the diagonal is off by one"
    mask = _mask_state(module, probe.sequence, found)
    absent = f" ({mask})" if mask.startswith("no mask") else ""
    more = "" if _attends(origin) else f"; or {OVER_ALL}"
    every = pattern or "every position sees later ones"
    why = f"there is no causal mask here{absent}, or one that excludes nothing; it must set scores to -inf before the softmax"
    return f"{every}: {why}{more}"


def _without_attention(pattern: str, seeing: list[int]) -> str:
    """Describe a leak in a module that computes no attention, and so has no mask; `seeing`: the positions that see later ones."""
    if pattern.endswith(OFF_BY_ONE):
        return "off by one: position t sees t + 1; something here is shifted, or looks one position ahead"
    if pattern == INVERTED:
        return "positions see later ones and no earlier ones: something here runs backwards"
    if HOLE in pattern:
        return f"{pattern.partition(':')[0]}: {GROUPED}"
    if not pattern and seeing:
        return f"later tokens are seen at {places(seeing)} alone, of those before them: {GROUPED}"
    return f"{ALL}: {OVER_ALL}" if pattern in (ALL, "") else pattern


ALL = "every position sees all later ones"
OVER_ALL = "something here runs over all positions, as a mean, a norm or a sort"
OFF_BY_ONE = "as with tril(diagonal=1) or triu(diagonal=2)"
SUMMED = (
    "its attention has no weight for each pair of query and key, as linear, random-feature, low-rank and landmark attention, so no mask "
    "can hide later keys: linear attention must sum keys and values up to each position (cumsum); low-rank projections and landmarks "
    "(Linformer, Nyström) cannot be causal"
)
SUMMED_PADDING = "its attention sums keys and values without a weight for each pair: set those of the padding to zero before"


def _pattern(matrix: Tensor, *, strict: bool) -> str:
    """Describe which positions see others that they must not; (T, T) bool, row t for what position t depends on. "" if nothing leaks."""
    length = len(matrix)
    above, below = matrix.triu(1), matrix.tril(-1)
    if not above.any():
        return "the input is not shifted: output t sees token t, which it is to predict" if strict and matrix.diagonal().any() else ""
    ahead = max(int(k - q) for q, k in above.nonzero().tolist())
    band = all(bool(matrix.diagonal(step).all()) for step in range(1, ahead + 1))
    if band and ahead == 1:
        return f"the diagonal of the causal mask is off by one: position t attends to t + 1, {OFF_BY_ONE}"
    seeing = sorted(set(above.nonzero()[:, 0].tolist()))
    if seeing == [0] and below[1:].any() and above[0, 1:].all():
        return (
            "position 0 alone sees all later ones: it has nothing to attend to and attends to everything, for the mask leaves out its own "
            f"diagonal, as tril(diagonal=-1) does, or {WRAPS}"
        )
    # The last position has no later ones: with nothing left to attend to, it attends to everything.
    if band and ahead == length - 1:
        return INVERTED if not below[:-1].any() else ALL
    if band:
        return f"position t sees up to {ahead} positions ahead"
    if not below[:-1].any() and above.sum() > length * (length - 1) / 4:  # some weights may be too small to show
        return INVERTED
    return MIXED if len(seeing) == length - 1 else f"later tokens are seen at {places(seeing)} alone: {HOLE}, or {RESHAPED}"


RESHAPED = "a view or reshape stands where a transpose is needed"
WRAPS = "something wraps around, as torch.roll does"
GROUPED = f"tokens are shifted, sorted or grouped, or {WRAPS}"
HOLE = f"the mask has a hole there, as at the border of a block or window, tokens are sorted or grouped, or {WRAPS}"
NUMBER = (
    "outputs depend on how many tokens follow, not on which: positions are counted from the end, or something is divided by, or scaled "
    "with, the length of the row"
)
MIXED = f"positions are mixed in a way that no mask explains: perhaps {RESHAPED}"
LITTLE = 0.05
"""Largest leak, relative to the standard deviation, that a too weak mask value explains."""
SOFT = (
    f"masked positions remain slightly visible: scores are filled with too weak a value, such as -10 instead of -inf, {RESHAPED}, or "
    "there is no mask and what is attended to is scaled down, as by LayerScale"
)
INVERTED = "the causal mask is inverted: positions attend to what they should not, and to nothing else"


AFTER = "the mask is applied after the softmax; it must set scores to -inf before"
OVER_QUERIES = "the softmax runs over the queries, not over the keys"
NOT_ONE = f"{OVER_QUERIES}, or a mask is applied after it, or {RESHAPED}"


def _sums(module: Module, sequence: str) -> str:
    """Explain attention weights that do not sum to 1, measured with equal values at all positions; "" if they do."""
    values, limit = _of_equal_positions(module, sequence)
    if values is None or not values.isfinite().all() or (values - values[-1]).abs().max() <= limit:
        return ""
    count = len(values)
    places = torch.arange(1, count + 1, dtype=values.dtype, device=values.device)
    # Sum of weights per position: 1/T for each visible key, or 1 divided by the number of queries that see the key.
    for why, sums in ((AFTER, places / count), (OVER_QUERIES, (1 / places.flip(0)).cumsum(0))):
        share = ((sums - sums[0]) / (sums[-1] - sums[0])).unsqueeze(1)
        if (values - values[0] - share * (values[-1] - values[0])).abs().max() <= 4 * limit:
            return why
    return NOT_ONE


def _of_equal_positions(module: Module, sequence: str) -> tuple[Tensor | None, float]:
    """Return a module's output (T, N) for the first example with equal values at all positions, and its rounding error."""
    if module.call is None:
        return None, 0.0
    changed = [False]

    def level(path: str, tensor: Tensor) -> Tensor:
        axis = module._axis(path, tensor, sequence)
        if axis is not None:
            changed[0] = True
            return tensor.select(axis, 0).unsqueeze(axis).expand_as(tensor).clone()
        return tensor

    try:
        output = module.again(level)
    except Exception:  # a module that cannot be called with other values only gives less evidence
        return None, 0.0
    for name, layout in module.output_layouts().items():
        labels = [axis.label for axis in layout]
        if changed[0] and sequence in labels and BATCH in labels:
            values = output[name].movedim((labels.index(BATCH), labels.index(sequence)), (0, 1))[0]
            return values.reshape(len(values), -1), module.limit(name)
    return None, 0.0


CARRIES = (nn.RNNBase, nn.ZeroPad2d, nn.ZeroPad1d, _ConvNd)
CARRIED = (
    "earlier positions are carried on, by a shift, a convolution or a recurrence, and no mask keeps the padding out; set it to zero there, "
    "or pad on the right"
)
FROM_FIRST = "positions are counted from the first column, padding included; count real tokens: (mask.cumsum(-1) - 1).clamp(min=0)"


def _padding(survey: Survey, probe: Probe, origin: Origin, module: Module | None, found: Dependence | None) -> str:
    pooled = _pooled(survey, probe, origin)
    if pooled:
        return pooled
    mask = _mask_state(module, probe.sequence, found)
    blind = found is not None and found.positional and bool(found.of_padding.numel()) and not found.of_padding.any()
    # Padding on the left moves real tokens to other columns, and with them position ids that count columns.
    moved = probe.check == "left padding" or (probe.check != "padding content" and survey.template.side == "left")
    if moved and (blind or (found is None and not _attends(origin))):
        if module is not None and isinstance(module.module, CARRIES):
            return CARRIED
        return "its positions do not follow the padding" if _attends(origin) else FROM_FIRST
    if blind and "padding content" not in probe.name:
        return (
            "real positions do not depend on the content of the padding, but on its amount: something is divided by, or "
            "counted from, the width of the batch"
        )
    if found is not None and found.positional:
        itself = torch.eye(len(found.real), dtype=torch.bool)
        if found.of_padding.numel() and found.of_padding.all() and not (found.among & ~itself).any():
            return "the padding mask is inverted: real positions attend to padding, and to nothing else"
    convolves = module is not None and any(isinstance(part, _ConvNd | nn.Unfold) for part in module.module.modules())
    if convolves and found is not None and found.positional and _is_band(found):
        return "positions next to the padding see it through a convolution: set padding to zero before that"
    if _attends(origin) and probe.sequence is not None and approximates(module, survey.widths[probe.sequence], survey.widths.values()):
        return f"real positions see padding: {mask or 'no padding mask is applied here'}; {SUMMED_PADDING}"
    if mask:
        return f"real positions see padding: {mask}"
    if origin.kind.lower().find("conv") >= 0:
        return "the convolution reads padding; set it to zero before each convolution"
    return "real positions see padding: no padding mask is applied here"


def _is_band(found: Dependence) -> bool:
    """Return whether real positions see only padding that is near to them."""
    padding = torch.tensor([column for column in range(found.matrix.shape[1]) if column not in found.real.tolist()], dtype=torch.long)
    distance = (found.real.unsqueeze(1) - padding).abs()
    seen = found.of_padding
    return bool(seen.any()) and not seen.all() and torch.equal(seen, distance <= distance[seen].max())


def _attends(origin: Origin) -> bool:
    return any(word in origin.kind.lower() for word in ("attention", "attn"))


def _mask_state(module: Module | None, sequence: str | None, found: Dependence | None) -> str:
    """Describe how the masks reach a module; "" if unknown."""
    if module is None or not module.named:
        return ""
    named = {name: value for name, value in module.named.items() if _masks(name, value)}
    masks = {name: tensor for key, value in named.items() for name, tensor in tensors_of(value, key)}
    absent = [name for name, value in named.items() if value is None]
    if not masks:
        return f"no mask arrives, {', '.join(f'{name}=None' for name in absent)}" if absent and module.call is not None else ""
    name, mask = next(iter(masks.items()))
    if module.call is None and _has_effect(module, name):
        return ""  # somewhere in the model, not necessarily here
    kind = f"{name}, {str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
    if mask.is_floating_point() and (added := _added(mask, kind)):
        return added
    rows = len(module.batch.examples)
    if mask.ndim > 1 and mask.shape[0] == 1 < rows:
        return f"one mask arrives ({kind}) for all {rows} rows and cannot hold the padding of each, as with mask[:1]"
    if not mask.is_floating_point() and len(values := mask.unique()) == 1:
        why = f"it is {values.item()} everywhere, as with a wrong pad token, or the mask of a row without padding"
        return f"a mask arrives ({kind}) but marks nothing as padding: {why}"
    if mask.ndim > 1 and mask.shape[-1] == 1 < mask.shape[-2]:
        return f"the mask lies along the queries ({kind}); it must lie along the keys, as (B, 1, 1, S) does"
    if not _has_effect(module, name):
        return f"a mask arrives ({kind}) and is not used"
    if found is not None and not mask.is_floating_point():
        why = "it is added where it must be filled in, applied after the softmax, inverted, or of the wrong axis"
        return f"a mask arrives ({kind}) but does not exclude what it should: {why}"
    return f"a mask arrives ({kind}) but does not exclude what it should"


def _added(mask: Tensor, kind: str) -> str:
    """Describe what is wrong with the values of an additive mask; "" if they may be right."""
    values = set(mask.unique().tolist())
    if values <= {0.0, 1.0} and 1.0 in values:
        return f"its mask holds 0 and 1 ({kind}) and is added to the scores; one that is added holds 0 and -inf"
    if values == {0.0}:
        return f"a mask arrives ({kind}) but hides nothing: it holds 0 everywhere, as that of another row"
    if WEAK < min(values) < 0:
        return f"its mask adds {min(values):g} ({kind}), which makes padding less likely and hides none of it; add -inf"
    return ""


def _masks(name: str, value: Any) -> bool:
    return any(word in name.lower() for word in MASK_WORDS) or (isinstance(value, Tensor) and is_mask(name, value))


def _has_effect(module: Module, name: str) -> bool:
    def flipped(path: str, tensor: Tensor) -> Tensor:
        if path != name:
            return tensor
        if tensor.dtype == torch.bool:
            return ~tensor
        return tensor.roll(1, -1) if tensor.is_floating_point() else (1 - tensor if int(tensor.max()) <= 1 else tensor)

    try:
        before, after = module.again(), module.again(flipped)
    except Exception:  # a mask that cannot be another one is read
        return True
    return any(not torch.equal(before[key].nan_to_num(), after[key].nan_to_num()) for key in before)


def _pooled(survey: Survey, probe: Probe, origin: Origin) -> str:
    """Describe how positions were pooled into one vector: mean, sum, maximum or last, padding included."""
    place = Place(origin.event.key, origin.tensor)
    vector, layout = survey.views.get(place), survey.layout(place)
    sequence = probe.sequence
    if vector is None or layout is None or any(axis.label not in (None, BATCH) for axis in layout) or vector.ndim != 2:
        return ""
    result = ""
    for earlier, tensor in _before(survey, origin.event.key):
        axes = survey.layout(earlier)
        if axes is None or tensor.ndim != 3 or [axis.label for axis in axes].count(sequence) != 1 or axes[-1] != PLAIN:
            continue
        at = next(i for i, axis in enumerate(axes) if axis.label == sequence)
        if axes[1 - at].label != BATCH or at > 1 or tensor.shape[-1] != vector.shape[-1]:
            continue
        for cause, value in _ways(tensor, at, _real(survey, sequence, tensor, at)):
            if torch.allclose(value, vector, rtol=1e-4, atol=survey.limit_at(place)):
                result = cause
    return result or "positions become one vector here, padding included; pool over real positions alone"


def _before(survey: Survey, key: Key) -> list[tuple[Place, Tensor]]:
    places = list(survey.views.items())
    end = next(i for i, (place, _) in enumerate(places) if place.key == key)
    # The module's own input comes first: a module that pools returns the result of its own call.
    return [(place, tensor) for place, tensor in places[:end] if tensor.is_floating_point()]


def _real(survey: Survey, sequence: str | None, tensor: Tensor, at: int) -> Tensor:
    """Mark the real positions of a tensor (B, T, E) or, with `at` 0, (T, B, E)."""
    real = torch.zeros(tensor.shape[1 - at], tensor.shape[at], 1, dtype=torch.bool, device=tensor.device)
    for row, columns in enumerate(survey.base.positions[sequence or ""]):
        real[row, columns.to(tensor.device)] = True
    return real if at == 1 else real.transpose(0, 1)


def _ways(tensor: Tensor, at: int, real: Tensor) -> list[tuple[str, Any]]:
    """Return the ways in which padding can enter a pooled vector, each with its result."""
    alone = "pool over real positions alone"
    zeroed = tensor * real
    return [
        ("the maximum takes in the zeros that padding was set to; set it to -inf before", zeroed.amax(at)),
        ("the mean divides by all columns, padding included; divide by the number of real positions", zeroed.mean(at)),
        (f"the mean takes in the padding; {alone}", tensor.mean(at)),
        (f"the sum takes in the padding; {alone}", tensor.sum(at)),
        (f"the maximum takes in the padding; {alone}", tensor.amax(at)),
        (f"the last column takes in the padding; {alone}", tensor.select(at, tensor.shape[at] - 1)),
    ]
