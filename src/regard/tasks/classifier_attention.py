"""Attention of a classifier over many examples: words of each label, overlap of hops, and faithfulness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from regard import progress
from regard.errors import counted
from regard.tasks.classification_data import read_labelled_file
from regard.tasks.classification_prediction import label_texts
from regard.tasks.classification_run import open_sentence_run
from regard.tasks.classifier_faithfulness import Faithfulness, FaithfulnessPoint, measure_faithfulness
from regard.tasks.hop_attention import HopOverlap, HopWords, hop_overlap, label_records, words_by_label
from regard.viewer import AttentionRecord


class Explanation(NamedTuple):
    """Attention summary of a run.

    Attributes:
        words: the most attended words per label and hop.
        overlap: of the hops; None with fewer than two.
        faithfulness: effect of removing words.
        records: one per label, for the viewer.
    """

    words: list[HopWords]
    overlap: HopOverlap | None
    faithfulness: Faithfulness
    records: list[AttentionRecord]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON value."""
        words = [{**row._asdict(), "words": [{"word": w, "weight": x, "count": n} for w, x, n in row.words]} for row in self.words]
        overlap = None if self.overlap is None else self.overlap._asdict()
        return {"overlap": overlap, "faithfulness": self.faithfulness.to_json(), "words": words}


def explain_run(folder: str | Path, examples: str | Path, *, max_words: int = 5, random_draws: int = 5, seed: int = 1) -> Explanation:
    """Summarise the attention of a classification or entailment run on the examples of a file.

    Raises:
        RegardError: see `regard.tasks.classification_run.open_sentence_run`, `read_labelled_file` and `measure_faithfulness`.

    Example:
        >>> explain_run("no-such-run", "test.tsv")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    run = open_sentence_run(folder)
    texts = [example.texts for example in read_labelled_file(run.config, examples).examples]
    with progress.stage("Measuring faithfulness"):
        faithfulness = measure_faithfulness(run, texts, max_words=max_words, random_draws=random_draws, seed=seed)
    labellings = label_texts(run, texts, need_weights=True)
    several = any(item.weights is not None and len(item.weights[0]) > 1 for item in labellings)
    overlap = hop_overlap(labellings) if several else None
    return Explanation(words_by_label(run, texts, labellings), overlap, faithfulness, label_records(run, texts, labellings))


def describe_explanation(found: Explanation, say: Callable[[str], None]) -> None:
    """Report the most attended words of each label, the overlap of hops, and the faithfulness curve."""
    if found.words:
        say("most attended words by predicted label, with their mean weights where they stand")
    for row in found.words:
        say(f"{row.label}, hop {row.hop + 1}: " + ", ".join(f"{word} {weight:.2f}" for word, weight, _ in row.words))
    if found.overlap is not None:
        overlap, focus, cosine, texts, hops, _ = found.overlap
        values = f"overlap {overlap:.4f} (0: on different words), focus {focus:.4f} (1: on one word each), cosine {cosine:.4f} (1: alike)"
        say(f"{hops} hops, {texts} texts: {values}")
    curve = found.faithfulness
    few = (
        f" ({counted(curve.left_out, 'other has', 'others have')} {len(curve.points)} words or fewer; --max-words)"
        if curve.left_out
        else ""
    )
    say(f"faithfulness, over {counted(curve.examples, 'example')}{few}: probability of the predicted label that is lost without the k most")
    say("attended words (faithful: much), by how much it changes, how often the label does, what those alone lose (faithful: little)")
    say("in brackets: the same for k random words")
    for p in curve.points:
        without = f"without {p.comprehensiveness:+.3f} ({p.comprehensiveness_random:+.3f})"
        change = f"changed by {p.change:.3f} ({p.change_random:.3f}), other label {p.flips:.1%} ({p.flips_random:.1%})"
        say(f"k = {p.removed}: {without}, {change}; only {p.sufficiency:+.3f} ({p.sufficiency_random:+.3f})")
    if curve.points:
        say(conclusion(curve))


def conclusion(curve: Faithfulness) -> str:
    """Return in a sentence whether the most attended words decide more than random ones, by both measures, as means over k.

    Example:
        >>> point = FaithfulnessPoint(1, 0.3, 0.1, 0.3, 0.1, 0.2, 0.1, 0.4, 0.5)
        >>> conclusion(Faithfulness([point], 9, 0, 5, 1))
        'on these examples the most attended words decide more than random ones'
    """
    means = {name: fmean(getattr(point, name) for point in curve.points) for name in FaithfulnessPoint._fields[1:]}
    found = (means["comprehensiveness"] > means["comprehensiveness_random"], means["sufficiency"] < means["sufficiency_random"])
    if all(found):
        return "on these examples the most attended words decide more than random ones"
    if any(found):
        return "on these examples one of the two measures only is better for the most attended words than for random ones"
    return "on these examples the most attended words decide no more than random ones: do not read them as reasons"
