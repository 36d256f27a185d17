"""The exceptions people see.

Every error a user can cause is a `RegardError`; the command line prints its message as one line and leaves with
`exit_code`. A message names what was found and what was expected: both shapes and the axis, or the file and line.
A value that is refused is shown by `shown`, which is short whatever the value is.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

LONGEST_SHOWN = 80
"""Characters of a refused value in a message, at most."""
LONGEST_MESSAGE = 1000
"""Characters of a message, at most: whatever a file or a command line holds, it is not printed back at length."""
MAX_LISTED = 20


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = LONGEST_SHOWN

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write out an integer of more than 4300 digits.
        return repr(x) if x.bit_length() <= 128 else f"<an integer of {x.bit_length()} bits>"


_SHORT = _Short()


def shown(value: object, *, longest: int = LONGEST_SHOWN) -> str:
    """Return a refused value as a message shows it: its `repr`, without the middle where that is long.

    Args:
        value: anything; a long string, a huge integer or a deeply nested list takes no time.
        longest: characters at most.

    Example:
        >>> shown("gru"), shown(10**5000), len(shown("x" * 50_000))
        ("'gru'", '<an integer of 16610 bits>', 80)
    """
    return shortened(_SHORT.repr(value[: 2 * longest] if isinstance(value, str) else value), longest)


def listed(names: Iterable[object], *, most: int = MAX_LISTED) -> str:
    """Return the names that a message offers, as a list with commas: the first so many, and how many more there are.

    Example:
        >>> listed(["a", "b"]), listed(range(5), most=2)
        ('a, b', '0, 1 and 3 more')
    """
    found = [shortened(str(name), LONGEST_SHOWN // 2) for name in names]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def shortened(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Return a text without its middle where it is longer than so many characters.

    Example:
        >>> shortened("abcdefghijklm", 10)
        'abcdef...m'
    """
    head = (2 * longest) // 3
    return text if len(text) <= longest else f"{text[:head]}...{text[len(text) - (longest - head - 3) :]}"


class RegardError(Exception):
    """Base of every error raised on purpose; `exit_code` is what the command line returns."""

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(str(message), LONGEST_MESSAGE))


class ShapeError(RegardError, ValueError):
    """Raised when tensor shapes do not fit together; the message holds both shapes and the axis."""


class RangeError(RegardError, IndexError):
    """Raised for a whole number in a tensor that names nothing; the message holds the argument, the number and the range."""


class ConfigError(RegardError, ValueError):
    """Raised for a configuration that cannot be used; the message holds the key path and what it may be."""


class DataError(RegardError, ValueError):
    """Raised for input that cannot be read; the message holds the file, the line and what was expected there."""


class CheckpointError(RegardError):
    """Raised for a run folder or checkpoint that is missing, damaged or does not fit; the message names the file."""


class TrainingError(RegardError):
    """Raised when training cannot go on (a non-finite loss, a full disk); the message names step and batch."""

    exit_code = 1


class OtherNameError(RegardError, ImportError):
    """Raised for a name that something here has elsewhere; the message holds the name it has here."""


class MissingExtraError(RegardError, ImportError):
    """Raised when an optional dependency is needed but absent; the message holds the install command."""


def missing_extra(need: str, extra: str) -> MissingExtraError:
    """Make the error for a package that an extra brings; the hint is for a clone, for an index may hold another package of this name.

    Example:
        >>> print(missing_extra("serving needs uvicorn", "serve"))
        serving needs uvicorn: pip install '.[serve]' in the clone of Regard
    """
    return MissingExtraError(f"{need}: pip install '.[{extra}]' in the clone of Regard")


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out: Python's own, or one of torch's, which differ in type and wording by device.

    Example:
        >>> out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")), out_of_memory(RuntimeError("no such file"))
        (True, False)
    """
    signs = ("out of memory", "not enough memory", "allocate memory", "alloc_failed")
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in signs)
