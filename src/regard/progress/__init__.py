"""What long work says of itself: one mechanism for the library and the command line.

Whoever does the work opens a `stage` and counts; a listener is told. From the start that is the logger "regard" (silent below WARNING, as
any library); `set_listener` takes a function of yours, and `show` gives what the command line shows: a bar on a terminal, a line now and
then elsewhere. Neither torch nor rich is imported before it is needed.
"""

from regard.progress.display import Display, hide, show
from regard.progress.stages import (
    Event,
    Stage,
    clock,
    current_listener,
    listening,
    log_events,
    message,
    set_listener,
    stage,
    track,
)

__all__ = [
    "Display",
    "Event",
    "Stage",
    "clock",
    "current_listener",
    "hide",
    "listening",
    "log_events",
    "message",
    "set_listener",
    "show",
    "stage",
    "track",
]


def __dir__() -> list[str]:
    return sorted(__all__)
