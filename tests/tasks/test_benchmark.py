"""`regard doctor --benchmark`: every contender is measured, none is compared with another's work."""

from __future__ import annotations

import pytest
import torch

from regard import ops
from regard.commands.info import doctor
from regard.tasks import benchmark


def test_contenders_take_turns_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "MIN_SECONDS", 0.0)
    calls: list[str] = []
    times = benchmark.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert calls == ["a", "b"] * 4
    assert [len(values) for values in times.values()] == [3, 3]


def test_a_short_call_is_repeated_until_the_clock_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "MIN_SECONDS", 0.01)
    calls: list[int] = []
    (times,) = benchmark.interleaved({"a": lambda: calls.append(1)}, 1).values()
    assert len(calls) > 4
    assert times[0] < 0.005


def test_both_contenders_compute_gradients_of_the_same_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    # With areas of one item the two are the same function.
    attend = ops.area_attention
    monkeypatch.setattr(ops, "area_attention", lambda *args, max_area, **options: attend(*args, max_area=1, **options))
    theirs, ours = benchmark._attention(8, 7).values()
    for mine, other in zip(ours(), theirs(), strict=True):
        torch.testing.assert_close(mine, other)


def test_the_command_prints_the_figures_below_the_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(benchmark, "LENGTHS", {5: 4})
    monkeypatch.setattr(benchmark, "SIZES", {"embed_dim": 8, "ff_dim": 8, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2})
    monkeypatch.setattr(benchmark, "VOCABULARY", 41)
    monkeypatch.setattr(benchmark, "MIN_SECONDS", 0.0)
    doctor(benchmark=True)
    report, figures = capsys.readouterr().out.split("\n\n")
    assert report.startswith("regard ")
    titles = [line for line in figures.splitlines() if not line.startswith(" ")]
    assert titles == ["attention, length 5, forward and backward", "training a Transformer", "greedy decoding", "beam search, beam 5"]
    # Each title has a contender that the second stands beside.
    assert figures.count(" of its time (") == len(titles)
