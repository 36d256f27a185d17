"""Progress reports of long operations, for the library and the command line.

An operation opens a `stage` and counts; a listener receives events. The default listener is the logger "regard" (silent below WARNING);
`set_listener` sets your function, and `show` the display of the command line: a bar on a terminal, periodic lines elsewhere. torch and rich
are imported lazily.
"""

from regard.progress.display import Display, hide, quiet, redirected, show
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
    "quiet",
    "redirected",
    "set_listener",
    "show",
    "stage",
    "track",
]


def __dir__() -> list[str]:
    return sorted(__all__)
