"""Everything native once more in a process of its own, with a library that watches every address and every overflow.

python -m tests.trust.sanitized FOLDER [PART ...]   (the library lies there; LD_PRELOAD names libasan)

First what is wrong (`tests.ops.invalid`), then what is right: every operation on odd shapes and layouts, forward and backward, with each
optional argument left out; then whole decodings of every kind of model.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import ops
from regard.ops.kernels import native, structures


def use(folder: Path) -> None:
    """Take the library of a folder from now on."""
    native._LIBRARY, native._REASON = native.load(folder)
    if native._LIBRARY is None:
        raise SystemExit(native._REASON)


def refused() -> int:
    """Make every wrong call; returns how many."""
    from tests.ops.invalid import OPERATIONS, STEPS

    for call, error, _ in (*OPERATIONS.values(), *STEPS.values()):
        try:
            call()
        except error:
            continue
        raise SystemExit("a wrong call was not refused")
    return len(OPERATIONS) + len(STEPS)


def both_ways(function: Callable[..., Any], *leaves: Tensor) -> None:
    """Compute, and differentiate if that can be."""
    asked = [leaf.clone().requires_grad_() for leaf in leaves]
    out = function(*asked)
    parts = [part for part in ([out] if isinstance(out, Tensor) else out) if isinstance(part, Tensor) and part.requires_grad]
    if parts:
        torch.autograd.grad(parts, asked, [torch.ones_like(part) for part in parts], allow_unused=True)
    with torch.inference_mode():
        function(*leaves)


def odd(*shape: int) -> Tensor:
    """Numbers that begin where no vector does, and end where their memory ends."""
    return torch.randn(torch.Size(shape).numel() + 1)[1:].view(shape)


def operations() -> int:
    """Do every operation that has a kernel; returns how often."""
    from tests.ops.invalid import VALID

    count = 0
    for size in (1, 3, 16, 17, 67):
        for x in (odd(3, size), odd(0, size), odd(17, size).t().contiguous().t()):
            for weight, bias in ((None, None), (odd(size), None), (odd(size), odd(size))):
                for dropout in (0.0, 0.3):
                    given = [x, x.clone(), *(part for part in (weight, bias) if part is not None)]
                    both_ways(lambda *parts, dropout=dropout: ops.residual(*parts, dropout=dropout), *given)
                    count += 1
        for bias in ([], [odd(131)]):
            target = torch.randint(131, (7,))
            both_ways(lambda h, w, *b, t=target: ops.linear_cross_entropy(h, w, *(b or (None,)), t)[0], odd(7, size), odd(131, size), *bias)
        both_ways(ops.additive_scores, odd(2, 3, size), odd(2, 5, size), odd(size))
        ops.top_log_probs(odd(3, size) * 1e4, 3)
        count += 4
        for longest in (1, 2, 5, 2**40):
            for lengths in (None, torch.tensor([0, 7, 3])):
                store = odd(11, 2, size)
                options = {"lengths": lengths, "max_area": longest, "need_weights": longest % 2 == 0}
                with torch.inference_mode():
                    ops.cached_attention(odd(3, 2, 2, size), store, odd(11, 2, size), torch.randint(11, (3, 7)), **options)
                count += 1
    for function in VALID.values():
        function()
    return count + areas()


def areas() -> int:
    """Do area attention of every kind; returns how often."""
    count = 0
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for sources, targets, size, width in ((1, 1, 1, 1), (7, 3, 5, 9), (35, 33, 16, 17), (130, 5, 32, 3)):
            q, k, v = odd(2, 2, targets, size).to(dtype), odd(2, 2, sources, size).to(dtype), odd(2, 2, sources, width).to(dtype)
            for mask in (None, torch.rand(2, 1, targets, sources) < 0.7, torch.rand(2, 1, 1, sources) < 0.7):
                for causal in (False, True):
                    for longest in (1, 3, 64):
                        options = {"max_area": longest, "mask": mask, "causal": causal}
                        both_ways(lambda *parts, options=options: ops.area_attention(*parts, **options), q, k, v)
                        count += 1
                    if sources == 35:
                        grid = {"max_area": (2, 3), "grid": (5, 7), "mask": mask, "causal": causal}
                        both_ways(lambda *parts, options=grid: ops.area_attention(*parts, **options), q, k, v)
                    for places in ({"max_area": 3}, {"max_area": (2, 3), "grid": (5, 7)}):
                        if size % 16 or dtype == torch.bfloat16 or ("grid" in places and sources != 35):
                            continue
                        learned = {**places, "mask": mask, "causal": causal, "key_mode": "features"}
                        weights = [part.to(dtype) for part in (odd(2, size // 2), odd(3, size // 2), odd(size, 3 * size), odd(size, size))]
                        both_ways(
                            lambda q, k, v, *parts, options=learned: ops.area_attention(
                                q, k, v, key_weights=ops.AreaWeights(*parts), **options
                            ),
                            *(q, k, v, *weights),
                        )
    return count


def decodings() -> int:
    """Translate a few lines with every kind of model, by beam search and greedily; returns how many lines."""
    from regard.config import DecodingConfig
    from tests.tasks.tiny import FAMILIES, TEXTS, translator

    count = 0
    for model in FAMILIES.values():
        tool = translator(model=model)
        for beam_size, precision in itertools.product((1, 4), ("float32", "int8")):
            decoding = DecodingConfig(max_length=19, beam_size=beam_size, precision=precision)
            count += len(tool.translate(TEXTS, decoding=decoding, n_best=beam_size))
    return count


def least() -> int:
    """Take no instructions but those that every processor has from now on."""
    library = native.library()
    assert library is not None
    library.regard_limit(0)
    return 0


def planted() -> int:
    """Read beyond the end of a tensor, as no call may: what watches must see it."""
    logits, values, places = odd(1, 70), torch.empty(1), torch.empty(1, dtype=torch.long)
    addresses = (part.data_ptr() for part in (logits, values, places))
    call = structures.BestCall(*addresses, rows=1, size=logits.numel() + 1, count=1, threads=1)
    library = native.library()
    assert library is not None
    return library.regard_best(ctypes.byref(call))


def main() -> None:
    """Do it all, and say what was done."""
    use(Path(sys.argv[1]))
    torch.manual_seed(1)
    torch.set_num_threads(2)
    for part in sys.argv[2:] or ["refused", "operations", "decodings"]:
        print(
            part,
            {"refused": refused, "operations": operations, "decodings": decodings, "planted": planted, "least": least}[part](),
            flush=True,
        )


if __name__ == "__main__":
    main()
