"""Calibrates the confidence of a run on its translations of the validation set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics.chrf import CHRF

from regard.data.parallel import SentencePair
from regard.tasks.confidence import MIN_PAIRS, Calibration, calibrate, figures
from regard.tasks.translation_prediction import Translator


def observed(translator: Translator, pairs: Sequence[SentencePair]) -> tuple[np.ndarray, np.ndarray]:
    """Translate sources with the run's settings; return the features and chrF of each non-empty translation."""
    answers = translator.translate([pair[0] for pair in pairs])
    metric = CHRF()
    rows, scores = [], []
    for item, pair in zip(answers, pairs, strict=True):
        if item.hypotheses and pair[1].strip():
            rows.append(figures(item.hypotheses[0].log_probs, len(item.source.ids)))
            scores.append(metric.sentence_score(item.text, [pair[1]]).score)
    return np.array(rows), np.array(scores)


def calibrate_on(translator: Translator, pairs: Sequence[SentencePair]) -> Calibration | None:
    """Fit the confidence of a run to pairs outside its training set; None if too few have translations."""
    rows, scores = observed(translator, pairs)
    return calibrate(rows, scores) if len(rows) >= MIN_PAIRS else None
