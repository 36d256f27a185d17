"""Batches side by side give what they give one after another."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from regard import cores
from regard.cores import torch_threads
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


@pytest.fixture
def other_block() -> Iterator[None]:
    """Another thread is in a block of one thread."""
    inside, leave = threading.Event(), threading.Event()

    def block() -> None:
        with torch_threads(1):
            inside.set()
            leave.wait(60)

    other = threading.Thread(target=block)
    other.start()
    inside.wait(30)
    yield
    leave.set()
    other.join()


def in_new_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


@pytest.mark.usefixtures("other_block")
def test_a_new_thread_beside_a_block_has_the_threads_of_all() -> None:
    assert in_new_thread(torch.get_num_threads) == 2
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("other_block")
def test_a_process_forked_beside_a_block_has_the_threads_of_its_parent() -> None:
    def count() -> None:
        found = [torch.get_num_threads(), *map_batches(lambda item: 7, [1], device=CPU), torch.get_num_threads()]
        os._exit(0 if found == [2, 7, 2] else 1)

    assert in_new_thread(lambda: in_child(count)) == 0


@pytest.mark.usefixtures("other_block")
def test_the_threads_that_a_thread_has_set_itself_stay() -> None:
    def own() -> list[int]:
        torch.set_num_threads(1)
        try:
            return [torch.get_num_threads(), *map_batches(lambda item: 7, [1], device=CPU), torch.get_num_threads()]
        finally:
            torch.set_num_threads(2)

    assert in_new_thread(own) == [1, 7, 1]


def test_without_functions_of_this_thread_torchs_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    cores._thread_setters.cache_clear()
    try:
        assert cores._thread_setters()[0] is torch.set_num_threads
        with torch_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        cores._thread_setters.cache_clear()


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
