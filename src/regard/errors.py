"""The exceptions people see.

Every error a user can cause is a `RegardError`; the command line prints its message as one line and leaves with
`exit_code`. A message names what was found and what was expected: both shapes and the axis, or the file and line.
"""


class RegardError(Exception):
    """Base of every error raised on purpose; `exit_code` is what the command line returns."""

    exit_code = 2


class ShapeError(RegardError, ValueError):
    """Raised when tensor shapes do not fit together; the message holds both shapes and the axis."""


class ConfigError(RegardError, ValueError):
    """Raised for a configuration that cannot be used; the message holds the key path and what it may be."""


class DataError(RegardError, ValueError):
    """Raised for input that cannot be read; the message holds the file, the line and what was expected there."""


class CheckpointError(RegardError):
    """Raised for a run folder or checkpoint that is missing, damaged or does not fit; the message names the file."""


class TrainingError(RegardError):
    """Raised when training cannot go on (a non-finite loss, a full disk); the message names step and batch."""

    exit_code = 1


class MissingExtraError(RegardError, ImportError):
    """Raised when an optional dependency is needed but absent; the message holds the install command."""


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out: Python's own, or one of torch's, which differ in type and wording by device.

    Example:
        >>> out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")), out_of_memory(RuntimeError("no such file"))
        (True, False)
    """
    signs = ("out of memory", "not enough memory", "allocate memory", "alloc_failed")
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in signs)
