"""Try `regard.check`, `regard.watch` and `ops.attention` on the models of their tests, and write four tables without times.

    python benchmarks/any_model.py --out docs/results
    python benchmarks/any_model.py --out docs/results --only zoo

- zoo: docs/results/zoo_faults.json and zoo_right.json, every planted fault and every right model of tests/mask_check/zoo.py;
- families: docs/results/watch_families.json, the models of tests/observe/families.py in training and evaluation;
- functions: docs/results/score_functions.json, the nine score and mask functions of tests/ops/test_flex_attention.py.

Models of timm are included if timm is installed.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from harness import ROOT, Table, options, versions
from torch import Tensor

import regard
from regard import ops


def place(module: str) -> str:
    """Name a module in a table."""
    return f"`{module}`" if module else "(the model itself)"


def zoo(folder: Path | None) -> None:
    """Check every model of the zoo."""
    cases = importlib.import_module("tests.mask_check.zoo")
    note = f"`python benchmarks/any_model.py --only zoo`, {versions()}."
    wrong = Table(folder and folder / "zoo_faults.json", ["planted fault", "found by", "module named", "right module", "cause named"], note)
    for name, case in cases.FAULTS.items():
        report = regard.check(case.build(), case.batch(), **case.options)
        found = {result.name: result for result in report.leaks}.get(case.check)
        named = ["not found", "", ""] if found is None else [found.name, place(found.module), found.cause]
        wrong.add([name, *named[:2], place(case.module), named[2]])
    right = Table(folder and folder / "zoo_right.json", ["right model", "checks made", "false alarms"], note)
    for name, case in cases.RIGHT.items():
        report = regard.check(case.build(), case.batch(), **case.options)
        right.add([name, sum(result.verdict != "not checked" for result in report.results), len(report.leaks)])


def families(folder: Path | None) -> None:
    """Watch every family in training and evaluation."""
    models, spy = importlib.import_module("tests.observe.families"), importlib.import_module("tests.observe.spy")
    columns = ["model", "mode", "calls seen", "largest difference of weights times values", "output the same, bit for bit"]
    packages = ["transformers", *(["timm"] if models.timm_works() else [])]
    note = (
        "`python benchmarks/any_model.py --only families`: random weights. The difference is that from each call's output, over the "
        f"largest value if that exceeds 1. {versions(*packages)}."
    )
    table = Table(folder and folder / "watch_families.json", columns, note, key=2)
    for name, build in models.FAMILIES.items():
        if name.startswith("timm") and not models.timm_works():
            continue
        for training in (True, False):
            torch.manual_seed(5)
            family = build()
            family.model.train(training)
            table.add([name, "train" if training else "eval", *watched(family, spy, models.DROPOUT if training else 0.0)])


def watched(family: Any, spy: Any, dropout: float) -> list[Any]:
    """Return the calls seen, the largest difference from their outputs, and whether the output is that of the unwatched model."""
    outputs = []
    # The spy is a mode, which keeps torch off its fast path: the outputs are compared without it.
    for modes in ([], [regard.watch(family.model)], [spy.Spy(), regard.watch(family.model)]):
        torch.manual_seed(7)
        with ExitStack() as stack, torch.no_grad():
            entered = [stack.enter_context(mode) for mode in modes]
            outputs.append(family())
    told, seen = entered
    largest = 0.0
    for call, one in zip(seen, told.calls, strict=True):
        gap = (spy.explained(call.weights, one, dropout) - one.output).abs().max()
        largest = max(largest, gap.item() / max(1.0, one.value.abs().max().item()))
    return [f"{len(seen)} of {len(family.calls)}", f"{largest:.0e}", "yes" if torch.equal(*outputs[:2]) else "no"]


def functions(folder: Path | None) -> None:
    """Compare `ops.attention` with FlexAttention, and its gradients with numerical ones."""
    module = importlib.import_module("tests.ops.test_flex_attention")
    columns = ["function", "largest difference from FlexAttention, float32", "the same with a block mask", "gradients equal numerical ones"]
    sizes = f"{module.T} queries and {module.S} keys; `torch.autograd.gradcheck` of a random direction, in float64"
    table = Table(
        folder and folder / "score_functions.json", columns, f"`python benchmarks/any_model.py --only functions`: {sizes}. {versions()}."
    )
    for name, (mod, mask) in module.NINE.items():
        parts = module.heads(torch.float32)
        expected = module.by_torch(*parts, mod, mask)
        blocks = None if mask is None else ops.attention_blocks(mask, module.B, module.H, module.T, module.S)
        found = [ops.attention(*parts, mod, mask_mod=mask), ops.attention(*parts, mod, blocks)]
        gaps = [f"{(each - expected).abs().max().item():.0e}" for each in found]
        table.add([name, *gaps, "yes" if differentiable(module.heads(), mod, mask) else "no"])


def differentiable(parts: list[Tensor], mod: Any, mask: Any) -> bool:
    """Return whether the gradients of queries, keys and values are numerical ones."""
    leaves = [part.requires_grad_() for part in parts]
    return torch.autograd.gradcheck(lambda *given: ops.attention(*given, mod, mask_mod=mask), leaves, fast_mode=True, raise_exception=False)


TABLES = {"zoo": zoo, "families": families, "functions": functions}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES), help="tables")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    for name in arguments.only:
        TABLES[name](arguments.out)


if __name__ == "__main__":
    main()
