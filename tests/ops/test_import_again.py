"""An import that was interrupted can be repeated: operators are registered anew, not refused as registered."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import importlib
import torch
from regard.ops.kernels import {module}

importlib.reload({module})
from regard import ops

x = torch.randn(1, 2, 5, 16, requires_grad=True)
plain = ops.area_attention(x, x, x, max_area=3)
traced = torch.compile(lambda x: ops.area_attention(x, x, x, max_area=3), backend="aot_eager")(x)
assert torch.equal(plain, traced)
assert all(map(torch.equal, torch.autograd.grad(plain.sum(), x), torch.autograd.grad(traced.sum(), x)))
"""


def test_a_module_of_operators_can_be_imported_again() -> None:
    for module in ("area_op", "additive_cpu"):
        done = subprocess.run([sys.executable, "-c", CODE.format(module=module)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
