"""The report of a check: a table with one line per check, and a paragraph per leak."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from regard.errors import ConfigError, listed, shown

Verdict = Literal["ok", "leak", "blind", "error", "not checked"]
COLUMNS = ("check", "result", "first module", "change", "limit")


@dataclass(frozen=True)
class Result:
    """Result of one check.

    Attributes:
        check: one of `regard.mask_check.CHECKS`.
        name: its name in the table, with the sequence if there are several.
        verdict: "ok", "leak", "blind" if outputs do not depend on what they should, "error" if the model failed, or "not checked".
        says: what was changed and what had to stay equal.
        module: the first module that leaks or fails, "" for the model itself; None if there is none.
        kind: its class.
        output: the output that changed most; "" if there is only one.
        change: its change relative to the standard deviation of its values.
        limit: largest relative change that counts as rounding.
        reaches: relative change of the output, if later layers scale the leak down and `change` is that of the state where it begins.
        positions: the positions of the output that changed; empty if it has none.
        between: the calls of the module between which the leak begins.
        lines: their file and lines.
        cause: the most likely cause; or why the check was skipped, or what an "ok" does not cover.
    """

    check: str
    name: str
    verdict: Verdict
    says: str = ""
    module: str | None = None
    kind: str = ""
    output: str = ""
    change: float = 0.0
    limit: float = 0.0
    reaches: float = 0.0
    positions: tuple[int, ...] = ()
    between: str = ""
    lines: str = ""
    cause: str = ""

    @property
    def bad(self) -> bool:
        """Whether it is a leak, a mask that hides too much, or a failure."""
        return self.verdict in ("leak", "blind", "error")

    def __str__(self) -> str:
        return "\n".join(self.paragraph()) if self.bad else f"{self.name}: {self.cause or self.verdict}"

    def paragraph(self) -> Iterator[str]:
        """Return the lines that describe a leak in full."""
        yield f"{self.name}: {self.says}."
        if self.verdict == "blind":
            yield "  follows    nothing"
        elif self.verdict == "leak":
            named = f"output {self.output}" if self.output[:1].isdigit() else self.output
            which = "the state there" if self.reaches else named or "the output"
            at = f" at {places(self.positions)}" if self.positions else ""
            if self.limit or self.change:
                down = f"; scaled down behind it, of the output {_share(self.reaches)}" if self.reaches else ""
                yield f"  changes    {which}{at}, {_by(self.change)}{down}"
        else:
            yield "  fails      the model cannot run what was changed"
        if self.module is not None:
            between = f", {self.between}" if self.between else ""
            yield f"  begins in  {self.module or '(the model itself)'} ({self.kind}){between}"
        if self.lines:
            yield f"  at         {self.lines}"
        for number, line in enumerate(textwrap.wrap(self.cause, 105)):
            yield f"  {'cause' if number == 0 else '':<11}{line}"


@dataclass(frozen=True)
class Report:
    """Result of `regard.check`. As text it is the table.

    Attributes:
        model: its class.
        results: one per check, in order.
        sizes: number of examples, and positions per sequence, of the checked batch.
        dtype: precision of the computation.
        passes: number of forward passes.
        seconds: duration.
        filled: number of parameters that were zero everywhere and were filled with noise.

    Example:
        >>> results = (Result("future tokens", "future tokens", "ok", limit=1e-6),)
        >>> report = Report("GPT", results, {"batch": 3, "tokens": 8}, "float64", passes=9, seconds=0.1, filled=0)
        >>> report.ok, len(report.leaks)
        (True, 0)
    """

    model: str
    results: tuple[Result, ...]
    sizes: dict[str, int]
    dtype: str
    passes: int
    seconds: float
    filled: int

    @property
    def ok(self) -> bool:
        """Whether nothing leaks, no mask hides too much and nothing failed."""
        return not self.leaks

    @property
    def leaks(self) -> tuple[Result, ...]:
        """The failed results: leaks, masks that hide too much, and checks in which the model failed."""
        return tuple(result for result in self.results if result.bad)

    def __getitem__(self, name: str) -> Result:
        """Return the result of a check by its name in the table.

        Raises:
            ConfigError: there is none of this name.
        """
        results = {result.name: result for result in self.results}
        if name not in results:
            raise ConfigError(f"no check {shown(name)}; there are {listed(list(results), most=len(results))}")
        return results[name]

    def lines(self) -> Iterator[str]:
        """Return the lines of the report: a headline, the table, and a paragraph per leak."""
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes.items())
        made = sum(result.verdict != "not checked" for result in self.results)
        verdicts = {one.verdict for one in self.leaks}
        kind = "fail" if verdicts == {"error"} else "find a mask that hides too much" if verdicts == {"blind"} else "find a leak"
        found = f"{len(self.leaks)} of {made} checks {kind}" if self.leaks else f"no leak in {made} checks"
        yield f"{self.model}: {found} ({f'{sizes}; ' if sizes else ''}{self.dtype}, {self.passes} passes)"
        if self.filled:
            yield f"{self.filled} parameters that are zero everywhere were filled with noise, so that they hide nothing"
        yield ""
        rows = [(r.name, r.verdict.upper() if r.bad else r.verdict, *_cells(r)) for r in self.results if r.verdict != "not checked"]
        widths = [max(len(row[at]) for row in (COLUMNS, *rows)) for at in range(len(COLUMNS))]
        for row in (COLUMNS, *rows):
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for result, *same in self._grouped():
            yield ""
            yield from result.paragraph()
            if same:
                yield f"  found by   {'; '.join(other.name for other in (result, *same))}"
        missing = [result for result in self.results if result.verdict == "not checked"]
        if missing:
            yield ""
        for result in missing:
            yield f"not checked: {result.name} ({result.cause})"
        for result in self.results:
            if result.verdict == "ok" and result.cause:
                yield f"cannot be told: {result.name} ({result.cause})"

    def _grouped(self) -> list[list[Result]]:
        """Return the leaks, those with the same origin and cause together."""
        groups: dict[tuple[str | None, str, str], list[Result]] = {}
        for result in self.leaks:
            groups.setdefault((result.module, result.between, result.cause), []).append(result)
        return list(groups.values())

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values; a non-finite change is a string."""
        results = []
        for result in self.results:
            values = asdict(result) | {"positions": list(result.positions)}
            results.append({key: str(value) if value == float("inf") else value for key, value in values.items()})
        return {
            "model": self.model,
            "ok": self.ok,
            "sizes": self.sizes,
            "dtype": self.dtype,
            "passes": self.passes,
            "seconds": round(self.seconds, 3),
            "results": results,
        }


def _cells(result: Result) -> tuple[str, str, str]:
    module = "" if result.module is None else result.module or "(model)"
    if result.verdict == "error" or not result.limit:  # nothing was measured
        return module, "", ""
    return module, _share(result.change), _share(result.limit)


def _by(change: float) -> str:
    return "not a number" if change == float("inf") else f"by {_share(change)} of its deviation"


def _share(value: float) -> str:
    if value == float("inf"):
        return "not finite"
    if value == 0:
        return "0"
    return f"{100 * value:.2g} %" if 1e-3 <= value < 1 else f"{100 * value:.0f} %" if value >= 1 else f"{100 * value:.0e} %"


def places(positions: Iterable[int]) -> str:
    """Return positions in words.

    Example:
        >>> places([3, 5, 6, 7]), places([2])
        ('positions 3, 5 to 7', 'position 2')
    """
    positions = sorted(positions)
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    return f"position{'s' if len(positions) > 1 else ''} {', '.join(parts)}"
