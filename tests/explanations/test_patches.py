"""Explanations of one model in several threads at once, beside its own predictions."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from regard.config import ClassifierConfig
from regard.explanations import METHODS, LabelBatch, ModelBatch, explain
from regard.explanations.patches import patched
from regard.models import build_classifier


@pytest.mark.parametrize("method", ["input-gradient", "replace-one", "gradient-attention", "value-norms"])
def test_threads_that_explain_one_model_get_what_they_get_alone(method: str) -> None:
    torch.manual_seed(1)
    model = build_classifier(ClassifierConfig(), vocab_size=30, classes=3, unknown=1).eval()
    batches = [LabelBatch(model, [torch.randint(4, 30, (1, 5))], [torch.tensor([5])], torch.tensor([1])) for _ in range(3)]

    def run(batch: ModelBatch) -> Tensor:
        return explain(batch, method)

    alone = [run(batch) for batch in batches]
    plain = [batch.log_probs() for batch in batches]
    calls: list[Callable[[], Tensor]] = []
    for number in range(3):
        calls += [lambda number=number: run(batches[number]), lambda number=number: batches[number].log_probs()]
    with ThreadPoolExecutor(6) as pool:
        found = [[pool.submit(call) for call in calls] for _ in range(10)]
        for futures in found:
            for number in range(3):
                torch.testing.assert_close(futures[2 * number].result(), alone[number])
                torch.testing.assert_close(futures[2 * number + 1].result(), plain[number])
    assert method in METHODS


def test_a_method_that_was_patched_before_comes_back() -> None:
    module = torch.nn.Identity()
    module.forward = lambda x: -x  # type: ignore[method-assign]
    with patched(module, "forward", lambda original: lambda x: 2 * original(x)):
        with patched(module, "forward", lambda original: lambda x: 3 * original(x)):
            assert module(1) == -6
        assert module(1) == -2
    assert module(1) == -1


def test_a_forked_process_explains_though_a_thread_did_when_it_began() -> None:
    started, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with patched(torch.nn.Identity(), "forward", lambda original: original):
            started.set()
            ended.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    started.wait(60)
    process = multiprocessing.get_context("fork").Process(target=_explain_alone)
    process.start()
    process.join(60)
    ended.set()
    thread.join()
    assert process.exitcode == 0


def _explain_alone() -> None:
    with patched(torch.nn.Identity(), "forward", lambda original: original):
        pass
