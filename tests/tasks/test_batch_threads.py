"""Batches side by side give what they give one after another."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
import torch

from regard.cores import current_threads, torch_threads
from regard.data.running_text import encode_text
from regard.tasks.batch_threads import cut_batches, map_batches
from regard.tasks.explained_examples import explain_batches
from regard.tasks.language_training import text_likelihood
from tests.tasks import tiny_language
from tests.tasks.test_creation import in_child

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_and_the_threads_are_given_back() -> None:
    seen = []

    def work(item: int) -> int:
        seen.append((threading.get_ident(), torch.get_num_threads()))
        return item * item

    assert map_batches(work, list(range(7)), device=CPU) == [item * item for item in range(7)]
    assert {count for _, count in seen} == {1}
    assert threading.get_ident() not in {ident for ident, _ in seen}
    assert torch.get_num_threads() == 2


def test_two_are_under_way_at_a_time() -> None:
    both = threading.Barrier(2, timeout=30)
    map_batches(lambda item: both.wait(), [1, 2], device=CPU)


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 1), (7, 1), (8, 2)])
@pytest.mark.parametrize("items", [1, 5])
def test_each_item_has_few_threads(count: int, expected: int, items: int) -> None:
    torch.set_num_threads(count)
    assert map_batches(lambda item: torch.get_num_threads(), [1] * items, device=CPU) == [expected] * items
    assert torch.get_num_threads() == count
    assert map_batches(lambda item: item, [], device=CPU) == []


def test_overlapping_requests_give_torch_its_threads_back() -> None:
    seen, started = list[int](), threading.Barrier(8, timeout=30)

    def request() -> None:
        started.wait()
        for size in (1, 3):
            map_batches(lambda item: time.sleep(0.002), [1] * size, device=CPU)
        seen.append(torch.get_num_threads())

    requests = [threading.Thread(target=request) for _ in range(8)]
    for each in requests:
        each.start()
    for each in requests:
        each.join()
    assert seen == [2] * 8
    assert torch.get_num_threads() == 2
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen[-1] == 2, "what a new thread takes over"


def test_a_fork_forgets_the_blocks_of_other_threads() -> None:
    inside, leave = threading.Event(), threading.Event()

    def block() -> None:
        with torch_threads(1):
            inside.set()
            leave.wait(30)

    other = threading.Thread(target=block)
    other.start()
    inside.wait(30)

    def count() -> None:
        torch.set_num_threads(1)
        if current_threads() != 1:
            os._exit(1)

    assert in_child(count) == 0
    leave.set()
    other.join()
    assert current_threads() == 2


def test_explanations_have_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("regard.tasks.explained_examples.finite_scores", lambda item, method: seen.append(torch.get_num_threads()))
    with pytest.raises(AttributeError):  # there are no scores
        explain_batches([None], ["gradient"])  # type: ignore[list-item]
    assert seen == [1]
    assert torch.get_num_threads() == 2


def test_an_error_and_a_wish_to_leave_come_through() -> None:
    def fail(item: int) -> int:
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 1"):
        map_batches(fail, [1, 2, 3], device=CPU)

    calls = []

    def poll() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        map_batches(lambda item: item, [1, 2, 3, 4], device=CPU, poll=poll)
    assert len(calls) == 3
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("rows", "size", "device", "expected"),
    [
        (100, 64, "cpu", [50, 50]),
        (300, 64, "cpu", [64, 64, 64, 64, 44]),
        (11, 64, "cpu", [8, 3]),
        (7, 64, "cpu", [7]),
        (7, 2, "cpu", [2, 2, 2, 1]),
        (0, 64, "cpu", []),
        (100, 64, "cuda", [64, 36]),
    ],
)
def test_rows_are_cut_so_that_every_thread_has_a_batch(rows: int, size: int, device: str, expected: list[int]) -> None:
    batches = cut_batches(list(range(rows)), size, device=torch.device(device))
    assert [len(batch) for batch in batches] == expected
    assert [row for batch in batches for row in batch] == list(range(rows))


@pytest.mark.parametrize("lines", ["running", "separate"])
def test_a_text_measures_the_same_with_any_number_of_threads(lines: Any) -> None:
    model = tiny_language.language_model().run
    text = encode_text(tiny_language.TEXTS * 9, model.vocabulary)
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(text_likelihood(model.model, text, lines=lines, streams=5))
    assert found[0] == found[1]
