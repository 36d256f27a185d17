"""Optimizers, learning rate schedules and the moving average of the weights."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import TrainingConfig
from regard.errors import counted

FACTOR = "learning_rate_factor"
"""Attribute of a module: by what the learning rate of its parameters is multiplied."""

STATE_KEYS = {
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
    "adam": ("step", "exp_avg", "exp_avg_sq"),
    "sgd": (),
    "adadelta": ("step", "square_avg", "acc_delta"),
    "rmsprop": ("step", "square_avg"),
    "adagrad": ("step", "sum"),
}
"""Optimizer state per parameter after its first gradient."""


def build_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build the configured optimizer; every update sets its learning rate, times each group's `factor`.

    Weight decay applies to tensors of two or more dimensions (matrices and embeddings), not to biases and norms, as in most Transformer
    code. It is decoupled in `adamw` and part of the gradient in all others. `sgd` and `rmsprop` have no momentum. The fused kernels need
    one pass over memory and are deterministic; `adadelta` and `rmsprop` have none and loop over the parameters.

    Example:
        >>> optimizer = build_optimizer(nn.Linear(3, 2), TrainingConfig(optimizer="adam", weight_decay=0.1))
        >>> [(tuple(group["params"][0].shape), group["weight_decay"]) for group in optimizer.param_groups]
        [((2, 3), 0.1), ((2,), 0.0)]
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # A pretrained part of a model may have a lower learning rate.
    slower = {id(p): module.learning_rate_factor for module in model.modules() if hasattr(module, FACTOR) for p in module.parameters()}
    groups = [
        {"params": own, "weight_decay": decay, "factor": factor}
        for factor in dict.fromkeys([1.0, *slower.values()])
        for decay, wide in ((config.weight_decay, True), (0.0, False))
        if (own := [p for p in parameters if (p.ndim >= 2) == wide and slower.get(id(p), 1.0) == factor])
    ]
    rate = config.learning_rate
    match config.optimizer:
        case "sgd":
            return _SGD(groups, lr=rate, fused=True)
        case "adadelta":
            return _Adadelta(groups, lr=rate, rho=config.rho, eps=config.eps, foreach=False)
        case "rmsprop":
            return _RMSprop(groups, lr=rate, alpha=config.rho, eps=config.eps, foreach=False)
        case "adagrad":
            return _Adagrad(groups, lr=rate, eps=config.eps, fused=True)
        case "adam" | "adamw":
            kind = _AdamW if config.optimizer == "adamw" else _Adam
            return kind(groups, lr=rate, betas=config.betas, eps=config.eps, fused=True)


def _uncompiled(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of torch's optimizers without its torch.compile wrapper.

    The wrapper imports torch._dynamo: more than a second and 150 MB per training. The step is never compiled here.
    """
    return torch.no_grad()(inspect.unwrap(method))


class _Uncompiled(torch.optim.Optimizer):
    add_param_group = _uncompiled(torch.optim.Optimizer.add_param_group)
    zero_grad = _uncompiled(torch.optim.Optimizer.zero_grad)


class _SGD(_Uncompiled, torch.optim.SGD):
    step = _uncompiled(torch.optim.SGD.step)


class _Adam(_Uncompiled, torch.optim.Adam):
    step = _uncompiled(torch.optim.Adam.step)


class _AdamW(_Uncompiled, torch.optim.AdamW):
    step = _uncompiled(torch.optim.AdamW.step)


class _Adadelta(_Uncompiled, torch.optim.Adadelta):
    step = _uncompiled(torch.optim.Adadelta.step)


class _RMSprop(_Uncompiled, torch.optim.RMSprop):
    step = _uncompiled(torch.optim.RMSprop.step)


class _Adagrad(_Uncompiled, torch.optim.Adagrad):
    step = _uncompiled(torch.optim.Adagrad.step)


def learning_rate(step: int, config: TrainingConfig, *, total: int) -> float:
    """Return the learning rate of an update, a pure function of its number.

    Rises linearly to `learning_rate` over `warmup` updates. Then `constant`; `inverse_sqrt`, proportional to 1 / sqrt(step) and continuous
    with the warm-up (Vaswani et al. 2017, section 5.3); or `cosine` and `linear`, which reach `final_fraction * learning_rate` at update
    `total` and stay there; or `halving`, at the full rate for `halve_after` updates, then half of it, and half again after every
    `halve_every` updates (Luong et al. 2015, section 4.1, halve once per epoch after some epochs).

    Args:
        step: number of the update, from 1.
        config: gives schedule, learning_rate, warm-up and what the schedule needs.
        total: updates of the whole run.

    Example:
        >>> config = TrainingConfig(learning_rate=0.5, warmup_updates=4, schedule="inverse_sqrt")
        >>> [learning_rate(step, config, total=64) for step in (1, 4, 16, 64)]
        [0.125, 0.5, 0.25, 0.125]
    """
    peak, warmup = config.learning_rate, config.warmup_updates
    if step < warmup:
        return peak * step / warmup
    if config.schedule == "constant":
        return peak
    if config.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    if config.halve_after is not None and config.halve_every is not None:
        return peak * 0.5 ** max(0, 1 + (step - config.halve_after - 1) // config.halve_every)
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    left = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return peak * (config.final_fraction + (1.0 - config.final_fraction) * left)


def length_notes(config: TrainingConfig, total: int) -> list[str]:
    """Return what users should know of settings that do not fit the number of updates of the run, `total`.

    Example:
        >>> length_notes(TrainingConfig(epochs=2, max_updates=400), 80)
        ['training.max_updates=400 has no effect: training.epochs=2 ends the run after 80 updates']
    """
    there, notes = counted(total, "update", form=","), []
    if config.max_updates is not None and config.max_updates > total:
        notes.append(f"training.max_updates={config.max_updates} has no effect: training.epochs={config.epochs} ends the run after {there}")
    if config.warmup_updates >= total:
        notes.append(
            f"training.warmup_updates is {config.warmup_updates:,}, the run has {there}: its learning rate only rises; "
            "a fifth of the updates or fewer is usual"
        )
    return notes


class MovingAverage:
    """Exponential moving average of the parameters: average <- d * average + (1 - d) * parameter.

    At update n, d = min(decay, (1 + n) / (10 + n)), so that random initial weights fade early (the rule of TensorFlow's
    ExponentialMovingAverage). Buffers are not averaged.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Include the parameters after update `step` (from 1)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        parameters = [parameter.detach() for _, parameter in model.named_parameters()]
        torch._foreach_lerp_(list(self.tensors.values()), parameters, 1.0 - decay)  # pyright: ignore[reportPrivateImportUsage]

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Load the average into the model; restore its parameters on exit."""
        own = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        _assign(model, self.tensors)
        try:
            yield
        finally:
            _assign(model, own)


@torch.no_grad()
def _assign(model: nn.Module, values: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(values[name])
