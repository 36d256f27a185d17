"""Checks whether the loss predicts the token that the model reads at the same position."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.mask_check.adapter import Inputs
from regard.mask_check.examples import collate, with_other
from regard.mask_check.layout import spread
from regard.mask_check.probes import GENERATOR
from regard.mask_check.report import Result
from regard.mask_check.survey import SAFETY, Survey

CHECK = "labels"


def shifted(survey: Survey, inputs: Inputs) -> Result | None:
    """Check that a model shifts labels that equal its tokens: its loss must not depend on the first label.

    Args:
        survey: of the model.
        inputs: the user's batch.

    Returns:
        The result; None if the labels differ from the tokens, or the model returns no loss.
    """
    sequence = next((s for s in survey.template.sequences if s.labels is not None), None)
    if sequence is None or sequence.labels is None or not torch.equal(inputs[sequence.labels], inputs[sequence.name]):
        return None
    losses = {name: tensor for name, tensor in survey.outputs.items() if tensor.ndim == 0}
    if not losses:
        return None
    generator = torch.Generator().manual_seed(GENERATOR)
    # Labels equal to the tokens, also after shortening; then with another first one.
    same = [e.along | {sequence.labels: e.sequences[sequence.name]} for e in survey.examples]
    equal = [type(e)(e.sequences, along, e.constants) for e, along in zip(survey.examples, same, strict=True)]
    changed = [with_other(survey.template, e, sequence.name, range(1), generator, sequence.labels) for e in equal]
    side = survey.template.side
    runs = [survey.runs.run(collate(survey.template, examples, survey.widths, side=side)) for examples in (equal, changed)]
    name = f"{CHECK}: shift"
    says = "the labels equal the tokens; the first label changed, which no output predicts once they are shifted; the loss must stay"
    for key, tensor in losses.items():
        gap = _gap(runs[0][key], runs[1][key])
        limit = SAFETY * survey.unit(tensor) * max(spread(tensor), 1.0)
        if gap > limit:
            cause = "output t predicts token t, which it sees: shift the labels by one, labels = tokens[:, 1:], inputs = tokens[:, :-1]"
            kind = type(survey.runs.model).__name__
            return Result(CHECK, name, "leak", says, "", kind, key, gap / max(spread(tensor), 1e-12), limit / spread(tensor), cause=cause)
    return Result(CHECK, name, "ok", says)


def _gap(one: Tensor, two: Tensor) -> float:
    return float((one - two).abs().nan_to_num(nan=float("inf")))
