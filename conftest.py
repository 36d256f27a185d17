"""What every test and every example in a docstring runs under: no display, a terminal of known width, and a guard."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

# Before torch and matplotlib are imported, and inherited by the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["NO_COLOR"] = "1"
os.environ["COLUMNS"] = "200"
# How long something takes decides whether there is a word of it on standard error; tests of progress ask for it.
os.environ["REGARD_QUIET"] = "1"
# Not the command line's own number, which trainings change (`regard.cores.limit_products`).
os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "512"

import pytest

from regard import progress

# What decides how code under test behaves; libraries keep caches of their own in other variables.
OURS = ("REGARD_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMP_", "COLUMNS", "NO_COLOR", "LANG", "LC_", "PATH", "PYTHON")


@pytest.fixture(autouse=True)
def _leaves_the_process_as_it_was() -> Iterator[None]:
    environment, listener = dict(os.environ), progress.current_listener()
    yield
    changed = {name for name in {*environment, *os.environ} if environment.get(name) != os.environ.get(name)}
    changed = {name for name in changed if name.startswith(OURS)}
    assert not changed, f"the test has changed the environment of the tests after it: {sorted(changed)}"
    assert progress.current_listener() is listener, "the test has changed who is told of progress in the tests after it"
    logger = logging.getLogger("regard")
    heard = (logger.level, logger.disabled, logger.filters, logger.propagate, logging.root.level, logging.root.manager.disable)
    assert heard == (0, False, [], True, logging.WARNING, 0), "the test has changed who hears warnings"
