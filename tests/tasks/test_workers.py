"""Batches side by side give what they give one after another."""

from __future__ import annotations

import threading

import pytest
import torch

from regard.tasks.workers import map_batches

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


def test_one_item_keeps_all_threads() -> None:
    assert map_batches(lambda item: torch.get_num_threads(), [1], device=CPU) == [2]
    assert map_batches(lambda item: item, [], device=CPU) == []


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
