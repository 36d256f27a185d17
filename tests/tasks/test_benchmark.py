"""`regard doctor --benchmark`: every contender is measured, none is compared with another's work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard import ops
from regard.commands.info import doctor
from regard.cores import processor
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
    machine, *titles = [title for title in titles if "repeat it" not in title]
    assert machine.startswith(f"{processor()}, {torch.get_num_threads()} thread")
    assert machine.endswith(", float32; medians of 5 interleaved rounds")
    assert titles == [
        "attention, length 5, forward and backward; heads x batch 4, heads of 64, causal mask",
        "training a Transformer, 2 + 2 layers of 8, 1,472 target tokens a batch; one process, not the workers of regard train",
        "greedy decoding, the same model, 64 sentences of 23 tokens",
        "beam search, beam 5, the same model, 64 sentences of 23 tokens",
    ]
    # Each title has a contender that the second stands beside.
    assert figures.count(" of its time (") == len(titles)


@pytest.mark.parametrize(("waited", "warns"), [(0.05, False), (3.0, True)])
def test_threads_that_had_to_wait_for_a_core_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, waited: float, warns: bool) -> None:
    monkeypatch.setattr(benchmark, "LENGTHS", {})
    monkeypatch.setattr(benchmark, "_SELF", tmp_path)
    (tmp_path / "task" / "1").mkdir(parents=True)
    own = tmp_path / "task" / "1" / "schedstat"
    own.write_text("1000000000 1000000000 9\n")

    def measured(contenders: dict[str, object], rounds: int) -> dict[str, list[float]]:
        own.write_text(f"{2 * 10**9} {round(10**9 * (1 + waited))} 99\n")
        return {name: [1.0] * rounds for name in contenders}

    monkeypatch.setattr(benchmark, "interleaved", measured)
    *_, last = benchmark.measure_speed()
    assert last.startswith("the threads waited 75% of their time for a core: other programs") == warns
    assert last.endswith("repeat it with nothing else running") == warns


@pytest.mark.parametrize(("load", "said"), [(2.9, ""), (4.5, "the system's load is 4.5 on 2 cores")])
def test_where_the_system_tells_nothing_of_threads_its_load_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, load: float, said: str
) -> None:
    monkeypatch.setattr(benchmark, "_SELF", tmp_path)
    monkeypatch.setattr(benchmark, "usable_cores", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    assert benchmark._thread_seconds() is None
    assert benchmark._why_wrong(None, None) == said
