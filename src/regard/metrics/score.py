"""A score with name, unit and the settings that determine it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A metric value.

    Attributes:
        name: name of the metric ("BLEU", "chrF2", "exact match").
        value: the number.
        unit: "0-100" for BLEU and chrF, "0-1" and "0-10" for caption scores, "%" for shares (0 to 100), "" for a bare number.
        signature: every setting the value depends on, as `key:value` parts joined by `|`.

    Example:
        >>> print(Score("BLEU", 23.456, "0-100", "nrefs:1|tok:13a"))
        BLEU 23.46 [nrefs:1|tok:13a]
    """

    name: str
    value: float
    unit: str
    signature: str

    def __float__(self) -> float:
        return self.value

    @property
    def number(self) -> str:
        """The value with the decimals of its unit."""
        digits = 4 if self.unit in ("0-1", "0-10") else 2
        return format(self.value, f".{digits}f" if abs(self.value) < 1e9 else ".4g")  # a perplexity has no bound

    def __str__(self) -> str:
        percent = " %" if self.unit == "%" else ""
        return f"{self.name} {self.number}{percent} [{self.signature}]"
