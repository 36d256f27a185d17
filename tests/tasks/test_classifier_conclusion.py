"""The sentence that ends the explanation of a classifier."""

from __future__ import annotations

import pytest

from regard.tasks.classifier_attention import conclusion
from regard.tasks.classifier_faithfulness import Faithfulness, FaithfulnessPoint


def curve(*pairs: tuple[float, float]) -> Faithfulness:
    """Comprehensiveness and sufficiency at each k; random words have 0.2 of both."""
    points = [FaithfulnessPoint(k, lost, 0.2, lost, 0.2, 0.0, 0.0, alone, 0.2) for k, (lost, alone) in enumerate(pairs, 1)]
    return Faithfulness(points, examples=9, left_out=0, random_draws=5, seed=1)


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([(0.3, 0.1)], "decide more than random ones"),
        ([(0.1, 0.1), (0.4, 0.1)], "decide more than random ones"),
        ([(0.2, 0.2)], "decide no more than random ones: do not read them as reasons"),
        ([(0.1, 0.3)], "decide no more than random ones"),
        ([(0.3, 0.3)], "one of the two measures only"),
        ([(0.1, 0.1)], "one of the two measures only"),
    ],
)
def test_the_conclusion_is_that_of_both_measures(pairs: list[tuple[float, float]], said: str) -> None:
    assert said in conclusion(curve(*pairs))
