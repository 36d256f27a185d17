"""Each case on the CPU and on the far device: `main` prints what differs as JSON. Import it after `tests.far.device.install`."""

from __future__ import annotations

import copy
import functools
import json
import math
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from regard.data import collate
from regard.decoding import DecodingOptions, SamplingOptions, beam_search, greedy_search, sample
from regard.errors import ConfigError
from regard.explanations import METHODS, explain
from regard.tasks.captioning_prediction import Captioner
from regard.tasks.captioning_run import CaptionRun
from regard.tasks.classification_prediction import encode_example, predict_labels
from regard.tasks.pair_scores import score_pairs
from regard.tasks.word_links import link_pairs
from regard.viewer import AttentionRecord
from tests.decoding.history import BOS, EOS, HistoryStep
from tests.explanations.models import batch_of
from tests.far.device import far_device, near
from tests.tasks import tiny, tiny_captions, tiny_language, tiny_sentences

Case = Callable[[torch.device], Any]
SOURCES = [5, 2, 3, 7, 1]
PLAIN: dict[str, Any] = {"bos": BOS, "eos": EOS, "beam_size": 4, "n_best": 2, "max_length": [11, 7, 13, 0, 5], "banned": (BOS,)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "attention": {"need_attention": True},
    "prefix": {"prefix": [None, [1], None, None, [2, 4]], "min_length": 3},
    "repeats": {"no_repeat_ngram_size": 2},
    "coverage": {"coverage_penalty": 0.3, "source_lengths": SOURCES, "need_attention": True},
}


def shown(record: AttentionRecord | None) -> Any:
    """Return the weights and scores of a record."""
    return record and ([each.weights for each in record.maps], list(record.scores.values()))


def search(kind: str, options: DecodingOptions) -> Case:
    """Return a search."""

    def run(device: torch.device) -> Any:
        step = HistoryStep(seed=1, vocabulary=107, source_lengths=SOURCES, end_bonus=4.0, device=str(device))
        more: Any = {"batch_size": 5, "options": options, "device": device}
        if kind == "sample":
            more |= {"sampling": SamplingOptions(num_samples=3, top_p=0.9), "generator": torch.Generator().manual_seed(1)}
        found = {"beam": beam_search, "greedy": greedy_search, "sample": sample}[kind](step, step.start(range(5)), **more)
        return [(one.tokens, one.score, one.log_probs, one.attention) for each in found for one in each]

    return run


def translation(family: dict[str, Any]) -> Case:
    """Return translations, their records, scores and links, and the gradients of the loss."""

    def run(device: torch.device) -> Any:
        translator = tiny.translator(model=family)
        run, lines = translator.run, tiny.TEXTS[:3]
        run.model.to(device)
        found = translator.translate(lines)
        records = [translator.record(line, item) for line, item in zip(lines, found, strict=True)]
        scores = score_pairs(run, list(zip(lines, tiny.TEXTS[2:], strict=True)))
        links = [sorted(each) for each in link_pairs(run, list(zip(lines, lines, strict=True)))] if run.model.attends else []
        batch = collate([[5, 6, 7], [8, 9]], [[4, 5], [6, 7, 8]], (0, 1)).to(device)
        sums = run.model.double()(*batch[:5], label_smoothing=0.1)  # in single precision gradients of such weights are rough
        sums.loss.backward()
        gradients = [each.grad for each in run.model.parameters() if each.grad is not None]
        return [item.texts for item in found], [shown(record) for record in records], scores, links, sums.loss, gradients

    return run


@functools.cache
def trained(name: str) -> CaptionRun:
    """Return a run of captions; the far device comes second, and so trains nothing."""
    with tempfile.TemporaryDirectory() as folder:
        return Captioner.open(tiny_captions.trained(Path(folder), tiny_captions.FAMILIES[name])).run


def captions(name: str) -> Case:
    """Return captions and their attention."""

    def run(device: torch.device) -> Any:
        captioner = Captioner(copy.deepcopy(trained(name)))
        captioner.run.model.to(device)
        pictures = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        found = captioner.describe(pictures, need_attention=True)
        return [(item.texts, [(one.score, one.attention) for one in item.hypotheses]) for item in found]

    return run


def labels(task: str, model: dict[str, Any]) -> Case:
    """Return labels of sentences, or of pairs."""

    def run(device: torch.device) -> Any:
        with tempfile.TemporaryDirectory() as name:
            opened = tiny_sentences.untrained(Path(name), task=task, model=model)
        opened.model.to(device)
        texts = [("the film is a joy", "a dog is seen"), ("a bore", "one cat and one axe")]
        sides = 1 if task == "classification" else 2
        examples = [encode_example(opened, each[:sides])[0] for each in texts]
        return [(found.probabilities, found.weights) for found in predict_labels(opened, examples, need_weights=True)]

    return run


def language(attention: str) -> Case:
    """Return scores of lines, a continuation, and a record."""

    def run(device: torch.device) -> Any:
        model = tiny_language.language_model(model={"attention": attention})
        model.run.model.to(device)
        record = model.record("ein Hund")
        generated = [each.text for each in model.generate(["ein", ""])]
        return [each.log_probs for each in model.score(["ein Hund", "Haus"])], generated, shown(record)

    return run


def explanations(name: str) -> Case:
    """Return every explanation of a batch; the error where there is none."""

    def run(device: torch.device) -> Any:
        batch = copy.copy(batch_of(name))
        for key, value in vars(batch).items():
            if isinstance(value, torch.nn.Module):
                value.to(device)
            else:
                vars(batch)[key] = tree_map_only(Tensor, lambda tensor: tensor.to(device), value)
        found: list[Any] = []
        for method in METHODS:
            try:
                found.append(explain(batch, method))
            except ConfigError as error:
                found.append(str(error))
        return found

    return run


_FURTHER = ("key max", "value max", "gelu", "local m", "location", "window of areas", "reversed")
_FAMILIES = {**tiny.FAMILIES, **{name: tiny.FURTHER[name] for name in _FURTHER}}
_EXPLAINED = ("transformer", "area features", "label lstm", "entailment crossed", "language", "show soft")
_KINDS = ("greedy", "beam", "sample")
CASES: dict[str, Case] = {
    **{f"search, {kind}, {name}": search(kind, DecodingOptions(**PLAIN, **more)) for kind in _KINDS for name, more in OPTIONS.items()},
    **{f"translation, {name}": translation(family) for name, family in _FAMILIES.items()},
    **{f"captions, {name}": captions(name) for name in tiny_captions.FAMILIES},
    **{f"classification, {name}": labels("classification", model) for name, model in tiny_sentences.CLASSIFIERS.items()},
    **{f"entailment, {name}": labels("entailment", model) for name, model in tiny_sentences.ENTAILERS.items()},
    **{f"language, {name}": language(name) for name in tiny_language.ATTENTIONS},
    **{f"explanations, {name}": explanations(name) for name in _EXPLAINED},
}


def difference(found: Any, expected: Any) -> str:
    """Return where two results differ by more than rounding; "" if nowhere."""
    left, right = tree_leaves(near(found)), tree_leaves(near(expected))
    if len(left) != len(right):
        return f"{len(left)} values, expected {len(right)}"
    for one, other in zip(left, right, strict=True):
        if isinstance(other, Tensor | np.ndarray):
            torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), rtol=1e-3, atol=1e-5)
        elif isinstance(other, float):
            if not math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-5):
                return f"{one}, expected {other}"
        elif str(one) != str(other):
            return f"{one}, expected {other}"
    return ""


def main() -> None:
    """Print what was wrong with each case, "" for nothing; only with cases whose name holds one of the words."""
    wrong: dict[str, str] = {}
    for name, case in CASES.items():
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        try:
            torch.manual_seed(1)
            expected = case(torch.device("cpu"))
            torch.manual_seed(1)
            with far_device() as device:
                found = case(device)
            wrong[name] = difference(found, expected)
        except Exception:
            wrong[name] = traceback.format_exc()
    print(json.dumps(wrong))
