"""Names that others give to what is here: who types one of them is told what it is called."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence

from regard.errors import OtherNameError
from regard.mechanisms import MECHANISMS, Mechanism

# Words that say nothing about which attention is meant.
FILLERS = ("attention", "score", "product", "layer", "block", "module", "op")


def unknown_name(module: str, name: str, known: Sequence[str]) -> AttributeError | OtherNameError:
    """Make the error for a name that a module has not.

    Args:
        module: that was asked.
        name: that it was asked for.
        known: the names it has.

    Returns:
        For a name by which a mechanism is known elsewhere an error that says what it is called here; for any other name one with the
        nearest name there is. An AttributeError, so that `hasattr` and `getattr` with a default work; but where an import statement asks,
        which would swallow it and its message, `OtherNameError`.

    Example:
        >>> print(unknown_name("regard", "BahdanauAttention", []))
        regard has no BahdanauAttention: additive score (Bahdanau 2015, A.1.2) is Attention(AdditiveScore(...)); see docs/mechanisms.md
    """
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    row = None if name.startswith("_") else _named().get(_key(name))
    if row is None or not name[:1].isupper():
        hint = f"; did you mean {close[0]}?" if close else ""
        return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")
    how = re.sub(r"\b(\w+Score)(\(.*?\))?", lambda found: f"Attention({found[1]}{found[2] or '(...)'})", row.where)
    text = f"{module} has no {name}: {row.name} ({row.source}) is {how}; see docs/mechanisms.md"
    # Of `from regard import X`, which asks by way of the module's `__getattr__`.
    importing = sys._getframe(2).f_code.co_name == "_handle_fromlist"
    return OtherNameError(text) if importing else AttributeError(text)


def _key(name: str) -> str:
    words = re.sub(r"[^a-z]", "", name.lower())
    for filler in FILLERS:
        words = words.replace(filler, "")
    return words


def _named() -> dict[str, Mechanism]:
    found: dict[str, Mechanism] = {}
    for row in MECHANISMS:
        for name in (row.name, *row.aliases.split(", ")):
            if key := _key(name):
                found.setdefault(key, row)
    return found
