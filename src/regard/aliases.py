"""Names of other libraries and papers: an error names Regard's own."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence

from regard.errors import OtherNameError
from regard.mechanisms import MECHANISMS, Mechanism

# Words that do not tell which attention is meant.
FILLERS = ("attention", "score", "product", "layer", "block", "module", "op")


def unknown_name(module: str, name: str, known: Sequence[str]) -> AttributeError | OtherNameError:
    """Build the error for a name that a module does not have.

    Args:
        module: the module.
        name: the requested name.
        known: its names.

    Returns:
        For a known alias an error with Regard's name, otherwise with the closest name. An AttributeError, so that `hasattr` and `getattr`
        with a default work; inside an import statement, which would swallow its message, `OtherNameError`.

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
    # `from regard import X` calls the module's `__getattr__`.
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
