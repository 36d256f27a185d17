"""Exceptions for users.

Every error that a user can cause is a `RegardError`; the command line prints its message as one line and exits with `exit_code`: 2 if the
call is wrong or a file or folder cannot be read or written, 1 if the work itself failed or is incomplete. A message names what was found
and what was expected: both shapes and the axis, or the file and line. Refused values are shortened by `shown`.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable
from pathlib import Path

LONGEST_SHOWN = 80
"""Max characters of a refused value in a message."""
LONGEST_MESSAGE = 1000
"""Max characters of a message."""
MAX_LISTED = 20


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = LONGEST_SHOWN

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to format an integer of more than 4300 digits.
        return repr(x) if x.bit_length() <= 128 else f"<an integer of {x.bit_length()} bits>"


_SHORT = _Short()


def shown(value: object, *, longest: int = LONGEST_SHOWN) -> str:
    """Return a refused value for a message: its `repr`, shortened in the middle if long.

    Args:
        value: anything; long strings, huge integers and deeply nested lists take no time.
        longest: max characters.

    Example:
        >>> shown("gru"), shown(10**5000), len(shown("x" * 50_000))
        ("'gru'", '<an integer of 16610 bits>', 80)
    """
    return shortened(_SHORT.repr(value[: 2 * longest] if isinstance(value, str) else value), longest)


def listed(names: Iterable[object], *, most: int = MAX_LISTED) -> str:
    """Return names for a message, separated by commas: the first ones, and the number of others.

    Example:
        >>> listed(["a", "b"]), listed(range(5), most=2)
        ('a, b', '0, 1 and 3 more')
    """
    found = [shortened(str(name), LONGEST_SHOWN // 2) for name in names]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def counted(number: int, one: str, many: str = "", *, form: str = "") -> str:
    """Return a number and what it counts, in the singular or plural, for a message.

    Args:
        number: how many.
        one: the noun for 1.
        many: the noun for other numbers; "" adds an s.
        form: format of the number, such as ",".

    Example:
        >>> counted(1, "column"), counted(2000, "line", form=","), counted(2, "process", "processes")
        ('1 column', '2,000 lines', '2 processes')
    """
    return f"{number:{form}} {one if number == 1 else many or one + 's'}"


def shortened(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Return a text, shortened in the middle if longer than this.

    Example:
        >>> shortened("abcdefghijklm", 10)
        'abcdef...m'
    """
    head = (2 * longest) // 3
    return text if len(text) <= longest else f"{text[:head]}...{text[len(text) - (longest - head - 3) :]}"


class RegardError(Exception):
    """Base of all errors for users; `exit_code` is the exit code of the command line."""

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(str(message), LONGEST_MESSAGE))


class ShapeError(RegardError, ValueError):
    """Raised for incompatible tensor shapes; the message holds both shapes and the axis."""


class RangeError(RegardError, IndexError):
    """Raised for an index or id out of range; the message holds the argument, the number and the range."""


class ConfigError(RegardError, ValueError):
    """Raised for an invalid configuration; the message holds the key path and the allowed values."""


class NoAttentionError(ConfigError):
    """Raised where attention of a model without any is asked for; the message names the run."""


class DataError(RegardError, ValueError):
    """Raised for invalid input; the message holds the file, the line and what was expected."""


class CheckpointError(RegardError):
    """Raised for a run folder or checkpoint that is missing, damaged or does not fit; the message names the file."""


class TrainingError(RegardError):
    """Raised when work fails or stays incomplete (a non-finite loss, failed runs); the message names step and batch, or what is missing."""

    exit_code = 1


class WriteError(TrainingError):
    """Raised when a training cannot write to its folder (a full disk, no permission); the message names the file and the reason."""

    exit_code = 2


class OtherNameError(RegardError, ImportError):
    """Raised for an alias of a name; the message holds Regard's name."""


class MissingExtraError(RegardError, ImportError):
    """Raised when an optional dependency is needed but absent; the message holds the install command."""


def missing_extra(need: str, extra: str) -> MissingExtraError:
    """Build the error for a missing package; the hint names files, because an index may hold another package of this name.

    Example:
        >>> print(missing_extra("serving needs uvicorn", "serve"))
        serving needs uvicorn: pip install '.[serve]' in the clone of Regard, or 'FILE.whl[serve]' with its wheel
    """
    return MissingExtraError(f"{need}: pip install '.[{extra}]' in the clone of Regard, or 'FILE.whl[{extra}]' with its wheel")


def os_reason(path: str | os.PathLike[str], error: OSError) -> str:
    """Return why a file or folder cannot be read or written; where a file stands in the place of a folder, the message names it.

    Example:
        >>> os_reason(f"{os.devnull}/a", NotADirectoryError(20, "Not a directory"))
        '/dev/null is not a folder'
    """
    if isinstance(error, FileExistsError | NotADirectoryError):
        for part in (Path(path), *Path(path).parents):
            if os.path.lexists(part):
                if not part.is_dir():
                    return f"{part} is not a folder"
                break
    return error.strerror or str(error)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory: Python's own, or one of torch's, which differ in type and wording by device.

    Example:
        >>> out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")), out_of_memory(RuntimeError("no such file"))
        (True, False)
    """
    signs = ("out of memory", "not enough memory", "allocate memory", "alloc_failed")
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in signs)
