"""Runs of every task behind the same gate: what they answer is what the command line writes, and nothing a client sends breaks them."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from regard.config import ClassificationConfig, load_config
from regard.config.captioning import FeaturesConfig
from regard.errors import ConfigError
from regard.serve.endpoints import DecodingRequest, ServedModel
from regard.serve.examples import starting_points
from regard.serve.http_errors import HTTPError
from regard.serve.json_schema import CHECKED, TELLING
from regard.serve.limits import Limits
from regard.serve.openapi import STATUSES, describe_api
from regard.serve.routes import TASKS, endpoints, open_models
from regard.tasks import Translator, generate, train_translation
from regard.tasks.attention_records import attention_records
from regard.tasks.captioning_prediction import Captioner
from regard.tasks.classification_data import read_parts
from regard.tasks.classification_prediction import Classifier, Entailer
from regard.viewer import AttentionRecord, page_records
from tests.serve.driver import JSON, Site
from tests.serve.test_json_schema import keywords
from tests.tasks.test_image_inputs import lines_of, settings
from tests.tasks.test_two_inputs import CROSSED, SECOND, two
from tests.tasks.test_two_inputs import LINES as LINES_OF_TWO
from tests.tasks.tiny import TEXTS, trained, translator
from tests.tasks.tiny_language import language_model
from tests.tasks.tiny_sentences import pairs, sentences, untrained

LINES = [text for _, text in sentences(11, 7)]
PAIRS = [(premise, hypothesis) for _, premise, hypothesis in pairs(11, 7)]


@pytest.fixture(scope="module")
def classifying(classifier_folder: Path) -> Site:
    return Site(Classifier.open(classifier_folder), max_lines=13)


@pytest.fixture(scope="module")
def entailing(entailer_folder: Path) -> Site:
    return Site(Entailer.open(entailer_folder))


@pytest.fixture(scope="module")
def captioner(captioner_folder: Path) -> Captioner:
    return Captioner.open(captioner_folder)


@pytest.fixture(scope="module")
def captioning(captioner: Captioner) -> Site:
    return Site(captioner, max_image=20_000, max_pixels=400_000)


@pytest.fixture(scope="module")
def scoring() -> Site:
    return Site(language_model(), language_model(model={"attention": "none"}))


def images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.parent.rglob("*.png") if folder not in path.parents)[:5]


def sent(data: bytes) -> str:
    return base64.b64encode(data).decode()


def encoded(form: str, size: tuple[int, int] = (9, 7), **settings: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (200, 30, 10)).save(buffer, form, **settings)
    return buffer.getvalue()


def shown(record: AttentionRecord, **changes: Any) -> Any:
    return json.loads(json.dumps(page_records([replace(record, model="model0", **changes)])[0]))


def test_labels_are_those_of_the_command_line(classifying: Site, classifier_folder: Path, call: Callable[..., Any]) -> None:
    lines = [*LINES, " ", " ".join(["joy"] * 29)]
    done = call("classify", classifier_folder, "--json", stdin="".join(line + "\n" for line in lines).encode())
    expected = [json.loads(line) for line in done.out.splitlines()]
    answer = classifying.post("/classify", {"text": lines})
    assert answer.status == 200
    assert [item["label"] for item in answer.json["labels"]] == [item["label"] for item in expected]
    for found, known in zip(answer.json["labels"], expected, strict=True):
        assert found["probabilities"] == pytest.approx(known["probabilities"], abs=3e-6)
    assert len({item["probabilities"].get("good") for item in expected}) == 13
    assert [item["truncated"] for item in answer.json["labels"]] == [0] * 12 + [6]
    assert classifying.post("/classify", {"text": lines[0]}).json["labels"][0]["label"] == expected[0]["label"]


def test_labels_of_pairs_are_those_of_the_command_line(entailing: Site, entailer_folder: Path, call: Callable[..., Any]) -> None:
    done = call("entail", entailer_folder, "--json", stdin="".join(f"{one}\t{two}\n" for one, two in [*PAIRS, ("a", " ")]).encode())
    expected = [json.loads(line) for line in done.out.splitlines()]
    given = [{"premise": one, "hypothesis": two} for one, two in [*PAIRS, ("a", " ")]]
    answer = entailing.post("/classify", {"pair": given})
    assert [item["label"] for item in answer.json["labels"]] == [item["label"] for item in expected]
    for found, known in zip(answer.json["labels"], expected, strict=True):
        assert found["probabilities"] == pytest.approx(known["probabilities"], abs=3e-6)
    assert answer.json["labels"][-1] == {"label": None, "probabilities": {}, "truncated": 0}
    # A tab divides nothing here: the texts come apart.
    one = entailing.post("/classify", {"pair": {"premise": "a\tdog", "hypothesis": "the dog"}})
    assert (one.status, one.json["labels"][0]["label"] in ("yes", "no")) == (200, True)


def test_captions_are_those_of_the_command_line(captioning: Site, captioner_folder: Path, call: Callable[..., Any]) -> None:
    files = images(captioner_folder)
    for words, changes in (([], {}), (["--beam-size", 1, "--max-length", 3], {"beam_size": 1, "max_length": 3})):
        done = call("caption", captioner_folder, *files, "--json", *words)
        expected = [json.loads(line) for line in done.out.splitlines()]
        answers = [captioning.post("/caption", {"image": sent(path.read_bytes()), **changes}) for path in files]
        assert [answer.status for answer in answers] == [200] * 5
        found = [answer.json["captions"][0] for answer in answers]
        assert [item["text"] for item in found] == [item["text"] for item in expected]
        assert [item["score"] for item in found] == pytest.approx([item["hypotheses"][0]["score"] for item in expected], rel=1e-4)
        assert len({f"{item['score']:.6g}" for item in found}) == 5


def test_scores_of_lines_are_those_of_the_language_model(scoring: Site) -> None:
    expected = [item.to_json() for item in language_model().score(TEXTS)]
    answer = scoring.post("/score", {"text": TEXTS})
    assert [item["text"] for item in answer.json["scores"]] == TEXTS
    for found, known in zip(answer.json["scores"], expected, strict=True):
        assert found["tokens"] == known["tokens"]
        assert found["log_probs"] == pytest.approx(known["log_probs"], rel=1e-4)


def test_what_labelled_texts_attend_to_is_as_the_viewer_records_it(classifying: Site, entailing: Site, classifier_folder: Path) -> None:
    answer = classifying.post("/attention", {"text": [LINES[0], " ", LINES[1]]})
    expected = [shown(record) for record in attention_records(classifier_folder, LINES[:2])]
    assert [item["items"] for item in answer.json["records"]] == [item["items"] for item in expected]
    for found, known in zip(answer.json["records"], expected, strict=True):
        assert found["maps"][0]["weights"]["numbers"] == pytest.approx(known["maps"][0]["weights"]["numbers"], abs=3e-6)
        assert found["prediction"]["label"] == known["prediction"]["label"]
    (record,) = entailing.post("/attention", {"pair": {"premise": PAIRS[0][0], "hypothesis": PAIRS[0][1]}}).json["records"]
    assert [name for name in record["items"] if name != "hops"] == ["premise", "hypothesis"]
    assert entailing.post("/attention", {"pair": {"premise": " ", "hypothesis": "a"}}).json == {"records": []}


def test_where_a_captioner_looks_is_as_the_viewer_records_it(captioning: Site, captioner: Captioner, captioner_folder: Path) -> None:
    path = images(captioner_folder)[0]
    (record,) = captioning.post("/attention", {"image": sent(path.read_bytes()), "beam_size": 2}).json["records"]
    decoding = captioner.run.config.decoding.model_copy(update={"beam_size": 2})
    assert record == shown(captioner.record(path, decoding=decoding), title="")
    assert len(record["hypotheses"]) == 2


def test_a_method_of_explanation_is_added_where_it_is_asked_for(
    classifying: Site, scoring: Site, captioning: Site, captioner: Captioner, classifier_folder: Path, captioner_folder: Path
) -> None:
    def methods(record: Any) -> list[str]:
        return [found["method"] for found in record["maps"] if found["method"]]

    def scores(record: Any) -> list[float]:
        return record["maps"][-1]["weights"]["numbers"]

    answer = classifying.post("/attention", {"text": LINES[0], "method": "leave-one-out"})
    assert answer.status == 200, answer.json
    (record,) = answer.json["records"]
    (known,) = attention_records(classifier_folder, LINES[:1], methods=["leave-one-out"])
    assert methods(record) == ["leave-one-out"]
    assert scores(record) == pytest.approx(scores(shown(known)), abs=1e-5)
    path = images(captioner_folder)[0]
    (record,) = captioning.post("/attention", {"image": sent(path.read_bytes()), "method": "leave-one-out"}).json["records"]
    assert scores(record) == pytest.approx(scores(shown(captioner.record(path, methods=["leave-one-out"]))), abs=1e-5)
    assert len(scores(record)) == len(record["items"]["caption"]["labels"]) * len(record["items"]["image"]["labels"])
    for site, body in ((Site(), {"text": TEXTS[0]}), (scoring, {"text": TEXTS[0]})):
        (record,) = site.post("/attention", {**body, "method": "integrated-gradients"}).json["records"]
        assert methods(record) == ["integrated-gradients"]
    refused = classifying.post("/attention", {"text": LINES[0], "method": "rollout"})
    assert (refused.status, refused.json["error"][:24]) == (422, "method: rollout: Sentenc")
    assert classifying.post("/attention", {"text": LINES[0], "method": "flow"}).status == 422
    assert classifying.post("/classify", {"text": LINES[0], "method": "rollout"}).status == 422


def test_long_texts_are_not_explained_and_no_batch_explains_two() -> None:
    for worker in (translator(), language_model()):
        site = Site(worker, max_explained=20)
        answer = site.post("/attention", {"text": "a b c " * 20, "method": "leave-one-out"})
        assert (answer.status, re.sub(r"\d+ tokens", "N tokens", answer.error)) == (422, "method: N tokens, expected at most 20")
        assert site.post("/attention", {"text": "a b", "method": "leave-one-out"}).status == 200
    alone = endpoints([ServedModel("a", translator())], Limits())[1]
    (line,) = alone.plan({"text": "a"})[1]
    widths = [alone.width(DecodingRequest(0, None, method), line) for method in (None, "leave-one-out")]
    assert widths == [1, Limits().batch_characters]


def test_long_pairs_are_not_linked_by_leaving_out_and_no_batch_links_two_so() -> None:
    site, text = Site(translator(), max_explained=5), "a b c " * 10
    for source, target in ((text, "a"), ("a", text)):
        answer = site.post("/align", {"pair": {"source": source, "target": target}, "method": "leave-one-out"})
        assert (answer.status, re.sub(r"\d+ tokens", "N tokens", answer.error)) == (422, "method: N tokens, expected at most 5")
        assert site.post("/align", {"pair": {"source": source, "target": target}}).status == 200
    assert site.post("/align", {"pair": {"source": "a", "target": "a"}, "method": "leave-one-out"}).status == 200
    cut = Site(translator(data={"max_length": 5}), max_explained=5)  # what is not read does not count
    assert cut.post("/align", {"pair": {"source": text, "target": text}, "method": "leave-one-out"}).status == 200
    aligning = next(each for each in endpoints([ServedModel("a", translator())], Limits()) if each.path == "/align")
    items = aligning.plan({"pair": [{"source": "a", "target": "a"}], "method": "leave-one-out"})[1]
    assert aligning.width(DecodingRequest(0, None, None), items[0]) > Limits().batch_characters


def test_an_empty_line_has_no_explanation(scoring: Site) -> None:
    records = scoring.post("/attention", {"text": [TEXTS[0], ""], "method": "leave-one-out"}).json["records"]
    assert [[found["method"] for found in record["maps"] if found["method"]] for record in records] == [["leave-one-out"], []]


def test_every_hypothesis_of_a_translation_is_shown(scoring: Site) -> None:
    (record,) = Site().post("/attention", {"text": TEXTS[0], "beam_size": 4}).json["records"]
    assert len(record["hypotheses"]) == 4
    (own,) = scoring.post("/attention", {"text": TEXTS[0]}).json["records"]
    assert own["maps"] == shown(language_model().record(TEXTS[0]))["maps"]  # pyright: ignore[reportArgumentType]
    refused = scoring.post("/attention", {"text": "a", "model": 1})
    assert (refused.status, refused.error) == (422, "model: model1 has no attention to show")


@pytest.mark.parametrize(
    ("model", "attends"),
    [
        ({"pooling": "last"}, False),
        ({"pooling": "max"}, True),
        ({"pooling": "last", "encoder": {"type": "transformer", "num_heads": 2, "ff_dim": 13}}, True),
    ],
)
def test_a_classifier_with_nothing_to_look_at_says_so(model: Any, attends: bool, tmp_path: Path) -> None:
    site = Site(Classifier(untrained(tmp_path, model=model)))
    assert site.ask("GET", "/health").json["models"] == [{"name": "model0", "task": "classification", "attends": attends}]
    answer = site.post("/attention", {"text": LINES[0]})
    assert answer.status == (200 if attends else 422)
    assert len(answer.json["records"]) == 1 if attends else answer.error == "model: model0 has no attention to show"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int) -> bytes:
    """Return a small file that says it is large."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")


HOSTILE = {
    b"": "image: empty file, expected an image",
    b"no image": "image: not an image, expected",
    b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>": "image: not an image, expected",
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n": "image: not an image, expected",
    png(60_000, 60_000): "image: too many pixels, expected at most",
    png(2001, 200): "image: 2001 x 200 pixels, expected at most 400000",
    png(7, 5): "image: damaged or truncated PNG image",
    encoded("PNG", (70, 50))[:60]: "image: damaged or truncated PNG image",
    encoded("JPEG", (700, 500), quality=95)[:-200]: "image: damaged or truncated JPEG image",
    encoded("TIFF")[:30]: "image: not an image",
}


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: ascii(data[:24]))
@pytest.mark.parametrize("path", ["/caption", "/attention"])
def test_an_image_that_cannot_be_read_is_refused_in_one_line(captioning: Site, path: str, data: bytes) -> None:
    answer = captioning.post(path, {"image": sent(data)})
    assert answer.status == 422
    assert answer.error.startswith(HOSTILE[data])
    assert "\n" not in answer.error


def test_the_example_of_the_description_is_an_image(captioning: Site) -> None:
    described = captioning.ask("GET", "/openapi.json").json["paths"]["/caption"]["post"]["requestBody"]["content"]["application/json"]
    (example,) = described["schema"]["properties"]["image"]["examples"]
    assert captioning.post("/caption", {"image": example}).status == 200


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_every_format_is_read(captioning: Site, form: str) -> None:
    assert captioning.post("/caption", {"image": sent(encoded(form))}).status == 200


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "image: missing"),
        ({"image": ["AAAA"]}, "image: expected text, found a list"),
        ({"image": "AAA"}, "image: expected base64"),
        ({"image": "AA\n="}, "image: expected base64"),
        ({"image": "data:image/png;base64,AAAA"}, "image: expected base64"),
        ({"image": "\u00e9\u00e9\u00e9\u00e9"}, "image: expected base64"),
        ({"image": "A" * 26_672}, "image: expected at most 26668 characters, found 26672"),
        ({"image": "AAAA", "text": "a"}, "text: unknown field; known ones: image, model, beam_size, length_penalty, max_length"),
        ({"image": "AAAA", "beam_size": 11}, "beam_size: expected a whole number from 1 to 10, found 11"),
    ],
)
def test_a_body_without_an_image_is_refused(captioning: Site, body: Any, error: str) -> None:
    answer = captioning.post("/caption", body)
    assert (answer.status, answer.error) == (422, error)


def test_an_image_too_large_is_refused_before_it_is_read(captioning: Site) -> None:
    answer = captioning.post("/caption", {"image": "A" * 60_000})
    assert (answer.status, answer.error) == (413, f"body: expected at most {Limits(max_image=20_000).max_image_body} bytes")
    # Bytes as they are, and a form's, are not read: another site could send them.
    assert captioning.ask("POST", "/caption", encoded("PNG"), {"Content-Type": "image/png"}).status == 415
    assert captioning.ask("POST", "/caption", b'{"image": "AAAA"}', {**JSON, "Origin": "http://evil.com"}).status == 403


def test_an_image_that_cannot_be_read_costs_the_others_of_its_batch_nothing(captioner: Captioner, captioner_folder: Path) -> None:
    good = [path.read_bytes() for path in images(captioner_folder)[:2]]
    job = endpoints([ServedModel("a", captioner)], Limits())[0]
    answers = job.compute(DecodingRequest(0, captioner.run.config.decoding), [b"no", good[0], png(60_000, 60_000), good[1], b""])
    assert [isinstance(answer, HTTPError) for answer in answers] == [True, False, True, False, True]
    alone = [job.compute(DecodingRequest(0, captioner.run.config.decoding), [data])[0] for data in good]
    texts = [json.loads(str(answer))["text"] for answer in (answers[1], answers[3], *alone)]
    assert texts[:2] == texts[2:]


def test_hard_attention_draws_for_each_image_as_if_it_came_alone(captioner: Captioner, captioner_folder: Path) -> None:
    model = captioner.run.config.model.model_copy(update={"attention": "hard"})
    hard = model.model_copy(update={"hard": model.hard.model_copy(update={"mode": "sample"})})  # pyright: ignore[reportAttributeAccessIssue]
    calls: list[int] = []

    class Counted(Captioner):
        def caption(self, images: Any, **settings: Any) -> Any:
            calls.append(len(images))
            return super().caption(images, **settings)

    own = Counted(captioner.run._replace(config=captioner.run.config.model_copy(update={"model": hard})))
    data = images(captioner_folder)[0].read_bytes()
    answers = endpoints([ServedModel("a", own)], Limits())[0].compute(DecodingRequest(0, own.run.config.decoding), [data] * 3)
    assert (len(set(answers)), calls) == (1, [1, 1, 1])


def test_bodies_held_at_a_time_are_bounded_but_one_alone_is_read() -> None:
    site = Site(translator(), max_body_memory=1000, max_body=5000, max_text=5000, body_timeout=0.3)
    body = json.dumps({"text": "a"}).encode().ljust(900)

    async def conversation(site: Site) -> list[Any]:
        import asyncio

        slow = asyncio.create_task(site.send("POST", "/translate", [body, b"..."], JSON))
        await asyncio.sleep(0.05)
        full = await site.send("POST", "/translate", body, JSON)
        late = await slow
        return [full, late, await site.send("POST", "/translate", body.ljust(2000), JSON)]

    full, late, alone = site.run(conversation)
    assert (full.status, full.error, full.headers["retry-after"]) == (429, "too much is being read; try again later", "1")
    assert [late.status, alone.status] == [408, 200]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "pair: missing"),
        ({"pair": {"premise": "a"}}, "pair.hypothesis: missing"),
        ({"pair": {"premise": "a", "hypothesis": 3}}, "pair.hypothesis: expected text, found a whole number"),
        ({"pair": {"premise": "a", "hypothesis": "b\nc"}}, "pair.hypothesis: expected one line of text, without a line feed"),
        ({"pair": {"premise": "a", "hypothesis": "b", "label": "c"}}, "pair.label: unknown field; known ones: premise, hypothesis"),
        ({"pair": ["a", "b"]}, "pair[0]: expected an object, found text"),
        ({"pair": []}, "pair: expected 1 to 64 items, found 0"),
    ],
)
@pytest.mark.parametrize("path", ["/classify", "/attention"])
def test_a_body_without_a_pair_is_refused(entailing: Site, path: str, body: Any, error: str) -> None:
    answer = entailing.post(path, body)
    assert (answer.status, answer.error) == (422, error)


def test_a_task_has_its_own_routes_and_names_them(classifying: Site, captioning: Site) -> None:
    told = "there is nothing under this path: a run of the task {}; /openapi.json describes them"
    answer = classifying.post("/translate", {"text": "a"})
    assert (answer.status, answer.error) == (404, told.format("classification has /classify and /attention"))
    answer = captioning.post("/classify", {"text": "a"})
    assert (answer.status, answer.error) == (404, told.format("captioning has /caption and /attention"))


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_described_as_it_is_checked(
    task: str, classifying: Site, entailing: Site, captioning: Site, scoring: Site, captioner: Captioner, tmp_path: Path
) -> None:
    workers: dict[str, Any] = {"translation": translator(), "captioning": captioner, "lm": language_model()}
    workers |= {"classification": Classifier(untrained(tmp_path)), "entailment": Entailer(untrained(tmp_path, task="entailment"))}
    made = endpoints([ServedModel("a", workers[task])], Limits())
    assert [job.path for job in made][1:] == ["/attention", *(["/score", "/align"] if task == "translation" else [])]
    for job in made:
        assert keywords(job.request) - CHECKED - TELLING == set()
        assert set(describe_api(made)["paths"][job.path]["post"]["responses"]) == {"200", *map(str, STATUSES)}


def test_two_runs_of_one_task_are_served_and_of_two_are_not(classifier_folder: Path, entailer_folder: Path) -> None:
    models = open_models([classifier_folder, classifier_folder])
    site = Site(*(model.worker for model in models))
    one, two = (site.post("/classify", {"text": LINES, "model": number}).json for number in (0, 1))
    assert one == two
    message = f"{classifier_folder} of classification, {entailer_folder} of entailment: only runs of one task are served side by side"
    with pytest.raises(ConfigError) as told:
        open_models([classifier_folder, entailer_folder])
    assert str(told.value) == message


def test_a_captioner_that_reads_features_is_refused_at_the_start(
    captioner: Captioner, captioner_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = captioner.run.config
    model = config.model.model_copy(update={"encoder": FeaturesConfig(grid=(2, 2), dim=3)})
    own = Captioner(captioner.run._replace(config=config.model_copy(update={"model": model})))
    monkeypatch.setattr("regard.serve.routes.open_any", lambda folder: own)
    with pytest.raises(ConfigError, match="reads precomputed features; an uploaded image has none"):
        open_models([captioner_folder])


def test_all_runs_are_served_in_the_precision_that_is_given(run_folder: Path, captioner_folder: Path) -> None:
    for folder in (run_folder, captioner_folder):
        own, given = (open_models([folder, folder], precision=precision) for precision in (None, "int8"))
        assert [model.worker.run.config.decoding.precision for model in own + given] == ["float32"] * 2 + ["int8"] * 2
    whole, bytes_ = (Site(*(model.worker for model in open_models([run_folder], precision=each))) for each in ("float32", "int8"))
    one, two = (site.post("/translate", {"text": TEXTS}).json["translations"] for site in (whole, bytes_))
    assert [item["score"] for item in one] != [item["score"] for item in two]


def test_a_precision_that_cannot_be_served_is_refused_at_the_start(
    run_folder: Path, classifier_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=f"--precision: not for a run of the task classification \\({classifier_folder}\\)"):
        open_models([classifier_folder], precision="int8")
    monkeypatch.setenv("REGARD_KERNELS", "torch")
    with pytest.raises(ConfigError, match="int8: needs the native library"):
        open_models([run_folder], precision="int8")


@pytest.fixture(scope="module")
def folders_of_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of two inputs that needs both, and one that takes either."""
    folder = tmp_path_factory.mktemp("two")
    return two(folder / "both"), two(folder / "either", model={**CROSSED, "second": {"drop": 0.3}})


def test_two_inputs_are_translated_as_in_python(folders_of_two: tuple[Path, Path]) -> None:
    for folder in folders_of_two:
        translator = Translator.open(folder)
        site, expected = Site(translator), [item.text for item in translator.translate(LINES_OF_TWO)]
        answer = site.post("/translate", {"text": TEXTS, "second": SECOND})
        assert (answer.status, [item["text"] for item in answer.json["translations"]]) == (200, expected)
        (record,) = site.post("/attention", {"text": TEXTS[0], "second": SECOND[0]}).json["records"]
        assert {"first", "second"} <= set(record["items"])
        assert site.post("/attention", {"text": "", "second": " "}).json == {"records": []}
        assert '"task":"two inputs"' in site.ask("GET", "/").body.decode()


def test_a_request_for_two_inputs_must_have_both_unless_the_run_takes_either(folders_of_two: tuple[Path, Path]) -> None:
    both, either = (Translator.open(folder) for folder in folders_of_two)
    site = Site(both)
    for path in ("/translate", "/attention"):
        for body, told in (
            ({"text": TEXTS[0]}, "second"),
            ({"text": TEXTS[:3], "second": SECOND[:2]}, "second: 2 lines, but text has 3"),
            ({"text": TEXTS[0], "second": ""}, 'the second input is missing; this model reads two, "text" and "second" ('),
            ({"text": TEXTS[:2], "second": ["", SECOND[1]]}, "the second input is missing"),
            ({"text": TEXTS[0], "second": None}, "second: expected text or a list, found null"),
            ({"text": f"{TEXTS[0]}\ta", "second": SECOND[0]}, "text: expected one line of text, without a line feed or a tab"),
            ({"text": TEXTS[0], "second": f"{SECOND[0]}\ta"}, "second: expected one line of text, without a line feed or a tab"),
        ):
            answer = site.post(path, body)
            assert answer.status == 422, (path, body)
            assert told in answer.json["error"]
    answer = site.post("/translate", {"text": TEXTS[0], "second": SECOND[0], "keep_tags": True})
    assert (answer.status, answer.json["error"]) == (422, "keep_tags: this model reads two inputs")
    (alone,) = Site(either).post("/translate", {"text": TEXTS[0], "second": ""}).json["translations"]
    assert alone["text"] == either.translate(TEXTS[:1])[0].text
    described = json.dumps(describe_api(endpoints([ServedModel("a", both)], Limits())))
    assert '"required": ["text", "second"]' in described
    assert '"second"' not in json.dumps(describe_api(endpoints([ServedModel("a", translator())], Limits())))


def test_examples_to_start_from_have_both_inputs(tmp_path: Path) -> None:
    run = Translator.open(two(tmp_path, lines=[f"{text} so" for text in TEXTS] * 4)).run
    expected = [(text, f"{text} so") for text in TEXTS if len(text.split()) > 2]
    assert [example.texts for example in starting_points(run, 2)] == expected[:2]
    Path(run.config.data.second_source or "").unlink()
    assert starting_points(run, 2) == []


def test_examples_to_classify_were_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"{'ab'[number % 2]}\tthe text number {number}\n" for number in range(40)))
    config = load_config(None, [f"data.train={tmp_path / 'a.tsv'}"], kind=ClassificationConfig)
    trained_on, held = read_parts(config)
    found = {example.texts for example in starting_points(SimpleNamespace(config=config), 4)}
    assert found == {example.texts for example in held.examples}
    assert not found & {example.texts for example in trained_on.examples}


def test_examples_to_start_from_are_sources_of_any_format(tmp_path: Path) -> None:
    texts = ["ein Hund bellt laut", "eine Katze schläft nie"]
    units = "".join(f'<tu><tuv xml:lang="de"><seg>{text}</seg></tuv><tuv xml:lang="en"><seg>a b c</seg></tuv></tu>' for text in texts * 6)
    tmx = tmp_path / "a.tmx"
    tmx.write_text(f'<tmx version="1.4"><header srclang="de"/><body>{units}</body></tmx>', encoding="utf-8")
    tsv = tmp_path / "a.tsv"
    tsv.write_text("".join(f"{text}\ta b c\n" for text in texts * 6), encoding="utf-8")
    for path in (tmx, tsv):
        data = {"source": str(path), "target": None, "valid_size": 2, "languages": ["de", "en"] if path == tmx else None}
        run = Translator.open(trained(tmp_path / path.suffix[1:], kind="word", data=data)).run
        assert [example.texts for example in starting_points(run, 2)] == [(text,) for text in texts]


def test_runs_of_one_input_and_of_two_are_not_served_side_by_side(folders_of_two: tuple[Path, Path], run_folder: Path) -> None:
    assert len(open_models(folders_of_two)) == 2
    with pytest.raises(ConfigError, match="runs of one input and of two are not served side by side"):
        open_models([folders_of_two[0], run_folder])


@pytest.fixture(scope="module")
def run_of_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    generate("scene-sentences", folder, train=23, test=3, seed=3)
    train_translation(settings(folder), folder / "run")
    return folder


def test_a_sentence_with_an_image_is_translated_as_in_python(run_of_images: Path) -> None:
    translator = Translator.open(run_of_images / "run")
    lines = lines_of(run_of_images)
    expected = [item.hypotheses[0].score for item in translator.translate(lines)]
    texts, names = zip(*(line.split("\t") for line in lines), strict=True)
    images = [base64.b64encode((run_of_images / name).read_bytes()).decode() for name in names]
    site = Site(Translator.open(run_of_images / "run"))
    answer = site.post("/translate", {"text": list(texts), "second": images})
    assert [found["score"] for found in answer.json["translations"]] == pytest.approx(expected, abs=1e-5)
    (record,) = site.post("/attention", {"text": texts[0], "second": images[0]}).json["records"]
    assert {"source", "image", "target"} <= set(record["items"])
    assert images[0] not in json.dumps(record["items"]["source"])
    assert '"task":"sentence and image"' in site.ask("GET", "/").body.decode()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": "a red _", "second": "train/000001.png"}, "expected base64"),
        ({"text": "a red _\ttrain/000001.png", "second": ""}, "text: expected one line of text, without a line feed or a tab"),
        ({"text": "a red _", "second": base64.b64encode(b"no image").decode()}, "not an image"),
        ({"text": "a red _", "second": ""}, "the second input is missing"),
    ],
)
def test_no_request_names_a_file_of_the_server(run_of_images: Path, body: dict[str, Any], message: str) -> None:
    site = Site(Translator.open(run_of_images / "run"))
    answer = site.post("/translate", body)
    assert answer.status == 422
    assert message in answer.json["error"]
