"""How far back a language model attends: its mean weight on the state 1, 2 ... L steps before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard import progress
from regard.data.running_text import TextStreams, encode_text
from regard.errors import DataError
from regard.tasks.language_training import CHUNK, LanguageRun
from regard.tasks.run_folder import device_of


def weights_by_distance(weights: Tensor, window: int) -> Tensor:
    """Pick the weights of the last L states, the nearest first.

    Args:
        weights: (B, T, L + T), as of `RecurrentLanguageModel.decode`: over the L states before a chunk and the chunk's own.
        window: L.

    Returns:
        (B, T, L).

    Example:
        >>> weights_by_distance(torch.tensor([[[0.1, 0.9, 0.0, 0.0], [0.0, 0.2, 0.8, 0.0]]]), 2).tolist()
        [[[0.8999999761581421, 0.10000000149011612], [0.800000011920929, 0.20000000298023224]]]
    """
    steps = torch.arange(weights.shape[1], device=weights.device).unsqueeze(1)
    places = steps + window - torch.arange(1, window + 1, device=weights.device)
    return weights.gather(2, places.expand(weights.shape[0], -1, -1))


def attention_by_distance(run: LanguageRun, lines: Sequence[str]) -> list[float] | None:
    """Return the mean attention weight by distance over a text that is read as one stream. Daniluk et al. 2017, section 4.

    Only tokens with L states before them count, so the weights sum to 1.

    Args:
        run: a language model.
        lines: the text.

    Returns:
        L weights, of the state one step back first; None without attention, or if no token has L states before it.

    Raises:
        DataError: there are no lines.
    """
    if run.model.attention is None:
        return None
    text = encode_text(lines, run.vocabulary)
    if not len(text.tokens):
        raise DataError("the text has no lines")
    chunks, window, device = TextStreams(text, streams=1, chunk=CHUNK), run.model.attention.window, device_of(run.model)
    total, count, past, seen = torch.zeros(window, dtype=torch.float64), 0, None, 0
    with torch.no_grad(), progress.stage("Measuring attention by distance", total=len(chunks.plan(0)), unit="chunks") as stage:
        for planned in chunks.plan(0):
            batch = chunks.batch(planned).to(device)
            found = run.model.decode(batch[0], past, need_weights=True)
            assert found.weights is not None
            # The first L tokens of the text have a shorter window.
            full = weights_by_distance(found.weights, window)[0, max(0, window - seen) :]
            total += full.double().sum(0).cpu()
            past, seen, count = found.past, seen + batch[0].shape[1], count + len(full)
            stage.advance()
    return (total / count).tolist() if count else None
