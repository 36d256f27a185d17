"""A server that is asked for more than it can do says so, to each its own, and stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.driver import serving
from tests.serve.load import ALLOWED, FACTOR, known_lines, overload, sources
from tests.tasks.tiny import TEXTS

LETTERS = "".join(sorted(set("".join(TEXTS))))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_times_too_much_is_refused_in_part_and_nothing_is_lost_swapped_or_kept(tmp_path: Path, run_folder: Path) -> None:
    known = known_lines(run_folder, sources(300, LETTERS))
    with serving(tmp_path, runs=[run_folder]) as server:
        figures = overload(server, known, 60)
        assert server.stop() == 0
    print(figures)
    statuses = {int(status) for status in figures["statuses"]}
    assert statuses <= ALLOWED
    assert {200, 429} <= statuses
    assert figures["offered_requests_per_second"] > 0.9 * FACTOR * figures["sustained_requests_per_second"]
    assert figures["wrong_answers"] == 0
    assert figures["accepted_p99_seconds"] < 10
    assert figures["health_worst_seconds"] < 1  # the clients are on the same processors
    assert figures["memory_growth_megabytes_per_minute"] < 5
    assert figures["descriptors_left"] <= 0
