"""Arguments of predictors: any iterable of inputs is a list of them, and what is none is named by every method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import regard
from regard.decoding import SamplingOptions
from regard.errors import CheckpointError, ConfigError, RegardError
from regard.tasks import Captioner, Classifier, Entailer, LanguageModel, Translator
from tests.tasks import tiny_captions
from tests.tasks.tiny import translator
from tests.tasks.tiny_language import language_model
from tests.tasks.tiny_sentences import untrained

LINES = ["ein Hund", "bellt der Hund ?"]
IN_LINES = ("translate", "translate_tagged", "classify", "score", "generate")
PICTURE = torch.zeros(1, 3, 32, 32)
TAKING = (*IN_LINES, "label", "entail", "caption")


class Tools(NamedTuple):
    """A predictor of each task, with random weights or nearly so."""

    translator: Translator
    language: LanguageModel
    classifier: Classifier
    entailer: Entailer
    captioner: Captioner
    image: Path

    def method(self, name: str) -> Callable[..., Any]:
        return next(getattr(tool, name) for tool in self[:5] if hasattr(tool, name))


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    folder = tmp_path_factory.mktemp("tools")
    runs = untrained(folder / "c"), untrained(folder / "e", task="entailment")
    captioner = Captioner.open(tiny_captions.trained(folder / "k"))
    image = next((folder / "k").rglob("*.png"))
    return Tools(translator(), language_model(), Classifier(runs[0]), Entailer(runs[1]), captioner, image)


def given(tools: Tools, name: str) -> list[Any]:
    """Return two inputs of a method."""
    several = {"label": [[line] for line in LINES], "entail": [(line, line) for line in LINES], "caption": [tools.image] * 2}
    return several.get(name, LINES)


@pytest.mark.parametrize("name", TAKING)
def test_an_iterable_is_the_list_of_its_items(tools: Tools, name: str) -> None:
    call, items = tools.method(name), given(tools, name)
    expected = str(call(items))
    for same in ((item for item in items), iter(items), tuple(items), dict(enumerate(items)).values(), map(lambda item: item, items)):
        assert str(call(same)) == expected
    assert call([]) == call(iter([])) == []


@pytest.mark.parametrize("name", IN_LINES)
def test_an_open_file_or_an_array_is_its_lines_without_their_ends(tools: Tools, name: str, tmp_path: Path) -> None:
    call = tools.method(name)
    expected = str(call(LINES))
    (tmp_path / "lines").write_bytes("\r\n".join(LINES).encode() + b"\n")
    for newline in (None, ""):
        with (tmp_path / "lines").open(newline=newline, encoding="utf-8") as file:
            assert str(call(file)) == expected
    assert str(call(np.array(LINES))) == expected


NO_LISTS = {"none": None, "a number": 5, "bytes": b"ab", "a mapping": {"a": 1}, "a set": {"a"}, "an object": object()}
NO_ITEMS = {"none": None, "a number": 5, "a tensor": torch.ones(2), "bytes": b"a", "a mapping": {"a": 1}}


@pytest.mark.parametrize("what", NO_LISTS)
@pytest.mark.parametrize("name", TAKING)
def test_what_is_no_list_is_refused(tools: Tools, name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: \w+: expected a list of .*, found "):
        tools.method(name)(NO_LISTS[what])


@pytest.mark.parametrize("what", NO_ITEMS)
@pytest.mark.parametrize("name", TAKING)
def test_what_is_no_item_is_named_by_its_index(tools: Tools, name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: \w+\[2\](\[0\])?: expected an? .*, found "):
        tools.method(name)([*given(tools, name), NO_ITEMS[what]])


@pytest.mark.parametrize("name", TAKING)
def test_one_text_is_no_list_of_letters(tools: Tools, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: \w+: expected a list of .*, found one text; write \["):
        tools.method(name)("a b")


@pytest.mark.parametrize(
    ("name", "examples", "message"),
    [
        ("label", ["this film is bad"], r'label: examples\[0\]: expected a list of texts, found one text; write \["\.\.\."\]'),
        ("label", [[""], []], r"label: examples\[1\]: expected 1 text, found 0"),
        ("label", [["a", "b"]], r"label: examples\[0\]: expected 1 text, found 2"),
        ("entail", ["a b"], r'entail: pairs\[0\]: expected a pair of texts, found one text; write \("\.\.\.", "\.\.\."\)'),
        ("entail", [("a",)], r"entail: pairs\[0\]: expected a pair of texts, found 1 text"),
    ],
    ids=["a text", "no text", "two texts", "a text for a pair", "half a pair"],
)
def test_an_example_is_a_list_of_its_texts(tools: Tools, name: str, examples: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tools.method(name)(examples)
    assert tools.classifier.label([[""]])[0].label == ""


def test_an_example_of_a_pair_is_labelled_by_an_entailer(tools: Tools) -> None:
    assert tools.entailer.label([["a dog", "a cat"]]) == tools.entailer.entail([("a dog", "a cat")])
    with pytest.raises(ConfigError, match=r"label: examples\[0\]: expected 2 texts, found 1"):
        tools.entailer.label([["a dog"]])


def test_one_image_is_no_list_and_a_stream_is_checked_as_it_comes(tools: Tools) -> None:
    with pytest.raises(ConfigError, match=r'caption: images: expected a list of image files, found one item; write \["\.\.\."\]'):
        tools.captioner.caption(tools.image)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="stream: images: expected a list of image files, found one text"):
        tools.captioner.stream("x.jpg")
    images = tools.captioner.stream(iter([tools.image] * 4 + [None]))  # type: ignore[list-item]
    assert next(images).text
    with pytest.raises(ConfigError, match=r"stream: images\[4\]: expected an image file, found None"):
        list(images)


SETTINGS: dict[str, tuple[str, str, list[Any]]] = {
    "decoding of translate": ("translate", "decoding", ["x", 5, {}, {"beam_size": 1}]),
    "decoding of translate_tagged": ("translate_tagged", "decoding", ["x", {}]),
    "decoding of caption": ("caption", "decoding", ["x", 5, {}]),
    "sampling of translate": ("translate", "sampling", ["x", 5, {}]),
    "sampling of generate": ("generate", "sampling", ["x", 5, {}]),
    "sampling of caption": ("caption", "sampling", ["x", 5, {}]),
    "n_best of translate": ("translate", "n_best", ["2", None, 2.5, 0, True]),
    "n_best of generate": ("generate", "n_best", ["2", None, 2.5, 0, True]),
    "n_best of caption": ("caption", "n_best", ["2", None, 2.5, 0, True]),
    "beam_size of generate": ("generate", "beam_size", ["2", None, 2.5, 0, True]),
    "batch_size of score": ("score", "batch_size", ["2", None, 2.5, 0, True]),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_setting_of_another_type_is_named(tools: Tools, case: str) -> None:
    name, setting, values = SETTINGS[case]
    for value in values:
        with pytest.raises(
            ConfigError, match=rf"^{name}: {setting}: expected (DecodingConfig|SamplingOptions|a whole number of 1 or more), found "
        ):
            tools.method(name)(given(tools, name), **{setting: value})


ONE: dict[str, tuple[Callable[[Tools], Any], str]] = {
    "a line to align": (lambda of: of.translator.align(None, "x"), "align: line: expected a text, found None"),  # type: ignore[arg-type]
    "a target": (lambda of: of.translator.align("x", 5), "align: target: expected a text, found 5"),  # type: ignore[arg-type]
    "a line with layers": (lambda of: of.translator.align_layers(5, "x"), "align_layers: line: expected a text, found 5"),  # type: ignore[arg-type]
    "a number of weights": (
        lambda of: of.translator.align_layers("x", "x", max_weights="x"),  # type: ignore[arg-type]
        "align_layers: max_weights: expected a whole number of 0 or more, found 'x'",
    ),
    "a number of samples": (
        lambda of: of.translator.translate(["x"], n_best=4, sampling=SamplingOptions(num_samples=2)),
        "n_best: 4 hypotheses, and sampling of 2; give it num_samples=4",
    ),
    "many hypotheses": (
        lambda of: of.translator.translate(["x"], n_best=10**8),
        "n_best: expected at most 10,000 hypotheses, found 100,000,000",
    ),
    "many samples": (
        lambda of: of.translator.translate(["x"], sampling=SamplingOptions(num_samples=10**8)),
        "n_best: expected at most 10,000 hypotheses, found 100,000,000",
    ),
    "a translation": (lambda of: of.translator.record("x", None), "record: translation: expected Translation, found None"),  # type: ignore[arg-type]
    "a rank": (
        lambda of: of.translator.record("x", of.translator.translate(["x"])[0], "0"),  # type: ignore[arg-type]
        "record: rank: expected a whole number of 0 or more, found '0'",
    ),
    "a line of a language model": (lambda of: of.language.record(None), "record: line: expected a text, found None"),  # type: ignore[arg-type]
    "an image": (lambda of: of.captioner.record(None), "record: image: expected an image file, found None"),  # type: ignore[arg-type]
    "methods": (lambda of: of.captioner.record(of.image, methods="weights"), "record: methods: expected a list of texts, found one text"),
    "no pictures": (lambda of: of.captioner.describe(None), "describe: pictures: expected IndexedImages or Tensor, found None"),  # type: ignore[arg-type]
    "no picture": (lambda of: of.captioner.align(None, [4]), "align: picture: expected Tensor, found None"),  # type: ignore[arg-type]
    "whole pictures": (
        lambda of: of.captioner.align(PICTURE.long(), [4]),
        "align: picture must hold floating-point numbers, found torch.int64",
    ),
    "two pictures": (
        lambda of: of.captioner.align(PICTURE.repeat(2, 1, 1, 1), [4]),
        "align: picture has shape \\(2, 3, 32, 32\\), expected one",
    ),
    "tokens as text": (lambda of: of.captioner.align(PICTURE, "a dog"), "align: ids: expected a list of whole numbers, found one text"),  # type: ignore[arg-type]
    "a token as text": (
        lambda of: of.captioner.align(PICTURE, [4, "5"]),  # type: ignore[list-item]
        "align: ids\\[1\\]: expected a whole number of 1 or more, found '5'",
    ),
    "an unknown token": (
        lambda of: of.captioner.align(PICTURE, [4, 10**6]),
        "align: ids: found 1000000, the vocabulary has [0-9]+ entries",
    ),
    "other pixels": (
        lambda of: of.captioner.align(PICTURE, [4], pixels=np.zeros((8, 8))),
        "pixels: expected an array uint8 \\(H, W, 3\\), found float64 \\(8, 8\\)",
    ),
    "a list of pictures": (lambda of: of.captioner.describe([1]), r"describe: pictures: expected a tensor \(n, ...\), found list"),  # type: ignore[arg-type]
    "whole numbers as pictures": (
        lambda of: of.captioner.describe(torch.ones(1, 3, 32, 32, dtype=torch.long)),
        "describe: pictures must hold floating-point numbers, found torch.int64",
    ),
    "a folder of images": (lambda of: of.translator.use_images(5), "use_images: folder: expected str or Path, found 5"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", ONE)
def test_a_single_argument_of_another_type_is_named(tools: Tools, case: str) -> None:
    call, message = ONE[case]
    with pytest.raises(RegardError, match=f"^{message}"):
        call(tools)


@pytest.mark.parametrize("folder", [None, 5, b"run", ["run"]], ids=["none", "a number", "bytes", "a list"])
@pytest.mark.parametrize("kind", [regard, Translator, LanguageModel, Classifier, Entailer, Captioner], ids=lambda kind: kind.__name__)
def test_what_is_no_path_is_not_opened(kind: Any, folder: Any) -> None:
    with pytest.raises(CheckpointError, match="open: folder: expected the path of a run folder, found "):
        kind.open(folder)


def test_python_reports_what_is_missing(tools: Tools) -> None:
    with pytest.raises(TypeError, match=r"Translator.translate\(\) missing 1 required positional argument: 'lines'"):
        tools.translator.translate()  # type: ignore[call-arg]
