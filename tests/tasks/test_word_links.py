"""Word links: of the right unit, by the attention that leave-one-out confirms, stored with the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.batching import collate
from regard.data.link_lines import format_links
from regard.data.parallel import SentencePair
from regard.errors import CheckpointError, ConfigError, DataError
from regard.metrics import links_from_weights
from regard.tasks import evaluate_translation
from regard.tasks.links_file import LinksFile
from regard.tasks.translation_evaluation import KnownLinks
from regard.tasks.translation_run import TranslationRun, open_ensemble, open_translation_run
from regard.tasks.word_links import (
    FILE,
    LinkAttention,
    choose_attention,
    find_links,
    leave_one_out,
    link_pairs,
    overlap_shares,
    read_choice,
    regroup_weights,
    unit_spans,
    write_choice,
)
from tests.tasks.tiny import FAMILIES, RECURRENT, TEXTS, trained, translator

PAIRS = [(text, " ".join(text.split()[::-1])) for text in TEXTS]
ATTENTIVE = [name for name in FAMILIES if name != "no attention"]


def log_probs(run: TranslationRun, source: list[int], target: list[int]) -> list[float]:
    batch = collate([source], [target], (0,))
    with torch.no_grad():
        logits = run.model.logits(run.model.decode(batch.source, batch.source_lengths, batch.target_input).readout)
    return logits.log_softmax(-1)[0].gather(1, batch.target_output[0].unsqueeze(1)).squeeze(1).tolist()[: len(target)]


@pytest.mark.parametrize("family", FAMILIES)
def test_leave_one_out_is_a_loop_over_sources_that_lack_one_token(family: str) -> None:
    run = translator(model=FAMILIES[family]).run
    source, target = [5, 7, 6, 9, 5], [8, 4, 7]
    with torch.no_grad():
        found = leave_one_out(run, source, target)
    assert found.shape == (3, 5)
    whole = np.array(log_probs(run, source, target))
    for left in range(5):
        loss = whole - np.array(log_probs(run, source[:left] + source[left + 1 :], target))
        assert found[:, left].tolist() == pytest.approx(loss.tolist(), abs=2e-4)  # of log-probabilities as low as -60


def test_several_sentences_are_measured_at_a_time_each_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    run = translator("word").run
    alone = choose_attention(run, PAIRS)
    threads = set()

    def recorded(run: TranslationRun, source: Sequence[int], target: Sequence[int]) -> torch.Tensor:
        threads.add(torch.get_num_threads())
        return leave_one_out(run, source, target)

    monkeypatch.setattr("regard.tasks.word_links.leave_one_out", recorded)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert choose_attention(run, PAIRS) == alone
    finally:
        torch.set_num_threads(before)
    assert threads == {1}


@pytest.mark.parametrize("family", ATTENTIVE)
def test_the_chosen_attention_is_the_one_whose_links_cost_most_when_left_out(family: str) -> None:
    run = translator("word", model=FAMILIES[family]).run
    choice = choose_attention(run, PAIRS)
    assert choice is not None
    assert (choice.pairs, 0 <= choice.effect <= 1) == (5, True)
    taken: dict[Any, float] = {}
    most = 0.0
    for source, target in (
        [vocabulary.encode(text).ids for vocabulary, text in zip(run.vocabularies, pair, strict=True)] for pair in PAIRS
    ):
        with torch.no_grad():
            effect = leave_one_out(run, source, target).clamp(min=0)
        most += effect.max(1).values.sum().item()
        for name, head, step, weights in candidates(run, source, target):
            linked = [int(row[: len(source)].argmax()) for row in weights[step == "reads" :][: len(target)]]
            total = sum(effect[place, at].item() for place, at in enumerate(linked))
            taken[name, head, step] = taken.get((name, head, step), 0.0) + total
    shares = {key: total / most for key, total in taken.items()}
    best = max(shares.values())
    assert shares[choice.name, choice.head, choice.step] == pytest.approx(best, abs=1e-6)
    assert choice.effect == pytest.approx(best, abs=1e-3)


def candidates(run: TranslationRun, source: list[int], target: list[int]) -> Iterator[tuple[str, int | None, str, torch.Tensor]]:
    batch = collate([source], [target], (0,))
    for found in run.model.attention_maps(batch.source, batch.source_lengths, batch.target_input):
        if (found.query, found.key) == ("target", "source"):
            for step in ("predicts", "reads"):
                yield found.name, None, step, found.weights[0].mean(0)
                for head, weights in enumerate(found.weights[0]):
                    yield found.name, head, step, weights


def maps_of(run: TranslationRun, pair: SentencePair) -> list[Any]:
    source, target = (vocabulary.encode(text).ids for vocabulary, text in zip(run.vocabularies, pair, strict=True))
    batch = collate([source], [target], (0,))
    return run.model.attention_maps(batch.source, batch.source_lengths, batch.target_input)


def test_links_are_those_of_the_chosen_head_and_step(tmp_path: Path) -> None:
    run = translator("word", model=FAMILIES["transformer"]).run._replace(folder=tmp_path)
    source, target = PAIRS[1]
    (found,) = [layer for layer in maps_of(run, PAIRS[1]) if layer.name.startswith("decoder.layers.0.cross")]
    for head in (0, 1):
        for first, step in enumerate(("predicts", "reads")):
            write_choice(tmp_path, LinkAttention(found.name, head, step, 0.5, 3))  # type: ignore[arg-type]
            rows = found.weights[0, head, first : first + len(target.split()), : len(source.split())]
            assert find_links(run, [PAIRS[1]]) == [links_from_weights(rows)]
    (tmp_path / FILE).unlink()
    assert find_links(run, [PAIRS[1]])[0] != set()


def test_an_ensemble_links_by_the_mean_of_the_attention_that_each_run_chose(tmp_path: Path) -> None:
    folders = [trained(tmp_path / name, model=FAMILIES[name], kind="word") for name in ("transformer", "crossed", "gru")]
    write_choice(folders[0], LinkAttention("decoder.layers.0.cross_attention.attention", 1, "reads", 0.5, 3))
    write_choice(folders[1], LinkAttention("decoder.layers.0.cross_attention.left", 0, "predicts", 0.5, 3))
    alone = open_translation_run(folders[0])
    assert find_links(open_ensemble([folders[0]] * 2), PAIRS) == find_links(alone, PAIRS)
    source, target = PAIRS[1]
    rows, columns = len(target.split()), len(source.split())
    weights = []
    for run in map(open_translation_run, folders):
        choice = read_choice(run)
        found = {layer.name: layer.weights[0] for layer in maps_of(run, PAIRS[1]) if (layer.query, layer.key) == ("target", "source")}
        (own,) = found.values() if choice is None else (found[choice.name],)
        head, first = (0, 0) if choice is None else (choice.head, int(choice.step == "reads"))
        weights.append(own[head, first : first + rows, :columns])
    mean = torch.stack(weights).mean(0)
    both = open_ensemble(folders)
    assert find_links(both, [PAIRS[1]]) == link_pairs(both, [PAIRS[1]]) == [links_from_weights(mean)]


def test_evaluation_counts_the_links_that_are_found_and_says_which_attention_gave_them(tmp_path: Path) -> None:
    subject = translator("word", model=FAMILIES["transformer"])
    subject.run = subject.run._replace(folder=tmp_path)
    choice = LinkAttention("decoder.layers.0.cross_attention.attention", 1, "reads", 0.5, 3)
    write_choice(tmp_path, choice)
    links = find_links(subject.run, PAIRS)
    scores = evaluate_translation(subject, PAIRS, links=KnownLinks(list(links), list(links), "word")).scores
    assert {score.name: score.value for score in scores}["AER"] == 0.0
    assert scores[-1].signature.endswith("|attention:decoder.layers.0.cross_attention.attention, head 2, of the step that reads the token")


HEADS = {**RECURRENT, "decoder_dim": 8, "attention": {"score": "scaled_dot", "num_heads": 2, "query_state": "current"}}


@pytest.mark.parametrize("model", [FAMILIES["transformer"], HEADS], ids=["Transformer", "recurrent, two heads"])
def test_training_a_model_of_several_heads_stores_a_choice(tmp_path: Path, model: dict[str, Any]) -> None:
    run = open_translation_run(trained(tmp_path / "a", kind="word", model=model))
    choice = read_choice(run)
    assert choice is not None
    assert choice.name in {layer.name for layer in maps_of(run, PAIRS[0])}


def test_training_a_recurrent_model_of_one_head_stores_none(tmp_path: Path) -> None:
    assert not (trained(tmp_path / "b", kind="word") / FILE).exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"name": "a"}',
        '{"name": 3, "head": 0, "step": "reads", "effect": 1, "pairs": 1}',
        '{"name": "decoder", "head": 0, "step": "reads", "effect": 1, "pairs": 1}',
    ],
)
def test_a_damaged_choice_names_its_file(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    run = translator("word", model=FAMILIES["transformer"]).run._replace(folder=tmp_path)
    with pytest.raises(CheckpointError, match=FILE):
        find_links(run, PAIRS)


def test_an_empty_side_has_no_links_and_too_long_a_one_those_of_what_was_read() -> None:
    run = translator(data={"max_length": 7}).run
    found = find_links(run, [("", "Hund"), ("Hund", " "), ("Hund" * 9, "Haus" * 9)], unit="character")
    assert found[:2] == [set(), set()]
    assert max(map(max, found[2])) < 7
    assert {target for target, _ in found[2]} == set(range(7))


def test_a_model_without_attention_has_links_by_leaving_out_alone() -> None:
    run = translator("word", model=FAMILIES["no attention"]).run
    with pytest.raises(ConfigError, match="no attention over the source; the method leave-one-out"):
        find_links(run, PAIRS)
    assert choose_attention(run, PAIRS) is None
    assert all(
        len(links) == len(target.split()) for links, (_, target) in zip(find_links(run, PAIRS, method="leave-one-out"), PAIRS, strict=True)
    )


def test_a_file_of_links_cannot_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written"):
        LinksFile(tmp_path)


def test_lines_without_links_are_empty_in_their_file(tmp_path: Path) -> None:
    with LinksFile(tmp_path / "links") as links:
        links.write(3, {(0, 1)})
        assert (tmp_path / "links").read_text() == "\n\n1-0\n"
        links.write(4, {(1, 0), (0, 0)})
        links.finish(7)
    assert (tmp_path / "links").read_text() == "\n\n1-0\n0-0 0-1\n\n\n\n"


def test_links_are_written_as_fast_align_does() -> None:
    assert format_links({(1, 0), (0, 2), (10, 3)}) == "2-0 0-1 3-10"
    assert format_links(set()) == ""
    assert json.loads(json.dumps(LinkAttention("a", None, "reads", 0.5, 3)._asdict()))["head"] is None


def test_of_a_text_that_was_cut_off_only_the_units_that_were_read_are_compared() -> None:
    run = translator(data={"max_length": 31}).run
    assert len(find_links(run, [("Hund" * 3_000, "Hund" * 3_000)], unit="character")[0]) == 31


def test_units_of_a_text_are_words_or_characters() -> None:
    assert unit_spans("ein  Hund\u2028x", "word") == [(0, 3), (5, 9), (10, 11)]
    assert unit_spans("a\n\u00e9", "character") == [(0, 1), (1, 2), (2, 3)]
    assert unit_spans("", "word") == []


def test_a_unit_gets_the_sum_over_source_tokens_and_the_mean_over_target_tokens() -> None:
    weights = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    columns = overlap_shares([(0, 2), (3, 5)], [(0, 1), (1, 2), (3, 5)])  # two tokens make the first word
    rows = overlap_shares([(0, 5)], [(0, 3), (3, 5)])
    assert regroup_weights(weights, rows, columns).tolist() == [pytest.approx([0.5, 0.5])]
    assert regroup_weights(weights, np.zeros((1, 2)), columns).tolist() == [[0.0, 0.0]]


def test_a_token_of_two_words_is_shared_by_its_characters() -> None:
    assert overlap_shares([(0, 1), (1, 4)], [(0, 4)]).tolist() == [[0.25], [0.75]]
    assert overlap_shares([], [(0, 1)]).shape == (0, 1)
