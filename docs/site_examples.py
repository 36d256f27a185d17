"""Lets the API pages show what stands under `Example:` in a docstring as the code it is; griffe knows the plural only."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Read `Example:` as `Examples:`."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change an object's docstring before it is parsed."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
