"""Exports beside the runs that they are made of, for every kind of model: outputs and logits of ONNX, outputs of the page.

    python benchmarks/export_families.py --folder FOLDER --onnx docs/results/onnx_families.json
    python benchmarks/export_families.py --folder FOLDER --page docs/results/page_families.json

FOLDER: data and runs of families.py, which are trained where they are not there. ONNX: onnxruntime computes every step of greedy decoding
and of a beam of 5 over 1,000 inputs; Regard computes the logits of the same steps. Continuations of language models begin with half of a
line. Page: headless Chromium opens it from its file, with every request refused, and is given 200 inputs. Its outputs are compared with
those of the run, and with those of the run with the page's weights: what differs there is an error of the page, not of float16. Nothing
here is a speed.
"""

from __future__ import annotations

import base64
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from families import Family, families
from harness import Table, options, versions
from torch import Tensor
from view_pictures import browser

from regard import ops
from regard.config import DecodingConfig
from regard.cores import processor
from regard.integrations.onnx import OnnxModel, export_run
from regard.integrations.page_model import export_page
from regard.models.image_embedding import ImageEmbedding
from regard.models.input_rows import split_inputs
from regard.tasks import Captioner, LanguageModel, Translator, open_any
from regard.tasks.classification_prediction import encode_example, label_texts

BATCH = 64
ONNX_COLUMNS = ["task", "model", "decoding", "inputs", "same output", "largest difference of logits"]
PAGE_COLUMNS = [
    *("task", "model", "parameters", "weights", "page, MB", "without weights, MB", "inputs", "same output"),
    "same output, run with these weights",
]


class Both(NamedTuple):
    """The states of the same hypotheses in the run's own model and in its export."""

    own: Any
    there: Any

    def select(self, rows: Tensor, beams: Tensor) -> Both:
        """Keep sentences and continue hypotheses in both."""
        return Both(self.own.select(rows, beams), self.there.select(rows, beams))


class Beside:
    """An exported generator in the place of a run's own model, which computes the same steps; everything else is that of the run.

    Attributes:
        worst: largest difference of logits so far.
    """

    def __init__(self, own: Any, folder: Path) -> None:
        self._own, self._there, self.worst = own, OnnxModel(folder), 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def start(self, *given: Any) -> Both:
        """Start both models from the arguments of the run's own."""
        return Both(self._own.start(*given), self._there.start(**self._inputs(*given)))

    def _inputs(self, first: Tensor | int, lengths: Tensor | None = None) -> dict[str, Tensor]:
        names = [port["name"] for port in self._there.interface["graphs"]["encoder"]["inputs"]]
        if names == ["batch"]:
            return {"batch": torch.tensor([first])}
        assert isinstance(first, Tensor)
        assert lengths is not None
        if names == ["images"]:
            return {"images": first}
        if names == ["tokens", "lengths"]:
            return {"tokens": first, "lengths": lengths}
        inputs = split_inputs(first, lengths)
        found = {"tokens": inputs.first, "lengths": inputs.first_lengths, "second.lengths": inputs.second_lengths}
        if "second.tokens" in names:
            return found | {"second.tokens": inputs.second}
        (embedding,) = (module for module in self._own.modules() if isinstance(module, ImageEmbedding))
        return found | {"second.images": embedding.images(inputs.second[:, 0].tolist())}

    def step(self, tokens: Tensor, state: Both) -> tuple[Tensor, Tensor | None, Both]:
        """Take a step in both; return that of the export."""
        own = getattr(self._own, "decoding_step", self._own.step)
        expected, _, mine = own(tokens, state.own)
        logits, weights, there = self._there.step(tokens, state.there)
        logits_here = expected.read() if isinstance(expected, ops.LazyLogits) else expected
        self.worst = max(self.worst, float((logits - logits_here).abs().max()))
        return logits, weights, Both(mine, there)

    decoding_step = step

    def greedy(self, *_: Any) -> None:
        """Offer no search in native code, where the steps would not be compared."""


Outputs = tuple[list[str], list[str]]


def generated(worker: Any, other: Any, inputs: Sequence[str], beam_size: int) -> Outputs:
    """Return the outputs of the run and of its export."""
    if isinstance(worker, LanguageModel):
        prompts = [line[: len(line) // 2] for line in inputs]
        one, two = ([item.text for item in each.generate(prompts, max_length=20, beam_size=beam_size)] for each in (worker, other))
        return one, two
    decoding: DecodingConfig = worker.run.config.decoding.model_copy(update={"beam_size": beam_size})
    name = "caption" if isinstance(worker, Captioner) else "translate"
    one, two = ([item.text for item in getattr(each, name)(inputs, decoding=decoding)] for each in (worker, other))
    return one, two


def labelled(worker: Any, folder: Path, inputs: Sequence[str]) -> tuple[Outputs, float]:
    """Return the labels of the run and of its export, and the largest difference of their logits."""
    run, there, worst = worker.run, OnnxModel(folder), 0.0
    found, expected = list[str](), list[str]()
    for start in range(0, len(inputs), BATCH):
        examples = [line.split("\t") for line in inputs[start : start + BATCH]]
        sides = list(zip(*(encode_example(run, texts)[0] for texts in examples), strict=True))
        lengths = [torch.tensor([len(ids) for ids in side]) for side in sides]
        tokens = [torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in side], batch_first=True) for side in sides]
        names = ["premise.", "hypothesis."] if len(sides) > 1 else [""]
        given = {f"{name}tokens": each.numpy() for name, each in zip(names, tokens, strict=True)}
        given |= {f"{name}lengths": each.numpy() for name, each in zip(names, lengths, strict=True)}
        logits = torch.from_numpy(there.run("model", given, ["logits"])["logits"])
        with torch.inference_mode():
            worst = max(worst, float((logits - run.model.classify(tokens, lengths).logits).abs().max()))
        found += [run.labels[place] for place in logits.argmax(1).tolist()]
        expected += [item.label for item in label_texts(run, examples)]
    return (expected, found), worst


def same(outputs: Outputs) -> int:
    """Return how many outputs are equal."""
    return sum(one == other for one, other in zip(*outputs, strict=True))


def onnx_rows(family: Family) -> Iterator[list[Any]]:
    """Compare a run with its ONNX export, in greedy decoding and beam search."""
    worker = open_any(family.run)
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder) / "onnx"
        export_run(family.run, export)
        if family.task in ("classification", "entailment"):
            outputs, worst = labelled(worker, export, family.inputs)
            yield [family.task, family.name, "", len(family.inputs), same(outputs), f"{worst:.1e}"]
            return
        for search, beam_size in (("greedy", 1), ("beam 5", 5)):
            beside = Beside(worker.run.model, export)
            other = type(worker)(worker.run._replace(model=beside))  # pyright: ignore[reportArgumentType]
            outputs = generated(worker, other, family.inputs, beam_size)
            yield [family.task, family.name, search, len(family.inputs), same(outputs), f"{beside.worst:.1e}"]


def expected_of(worker: Any, inputs: Sequence[str]) -> list[str]:
    """Return what the commands say of inputs: a text, a label, or the log-probability of a line to four decimals."""
    match worker:
        case Translator():
            return [item.text for item in worker.translate(inputs)]
        case Captioner():
            return [item.text for item in worker.caption(inputs)]
        case LanguageModel():
            return [f"{item.total:.3f}" for item in worker.score(inputs)]
        case _:
            return [item.label for item in label_texts(worker.run, [line.split("\t") for line in inputs])]


SAID = """const [given, done] = arguments;
door(given).then((records) => {
  const [{ prediction, scores, items }] = records;
  if (prediction) return prediction.label;
  if (scores.text) return scores.text.reduce((sum, score) => sum + score, 0).toFixed(3);
  return items.caption ? items.caption.text : records.map((part) => part.items.target.text).join(" ");
}).then(done, (error) => done(`error: ${error.message}`));"""


def request_of(family: Family, line: str) -> dict[str, Any]:
    """Return what the page's form would ask of the model inside."""
    first, _, second = line.partition("\t")
    if family.task == "captioning":
        return {"image": base64.b64encode(Path(line).read_bytes()).decode()}
    if family.task == "entailment":
        return {"pair": {"premise": first, "hypothesis": second}}
    if "image" in family.name:
        return {"text": first, "second": base64.b64encode(Path(second).read_bytes()).decode()}
    return {"text": first, "second": second} if second else {"text": line}


def close(found: str, expected: str) -> bool:
    """Compare two outputs; log-probabilities differ by rounding alone."""
    try:
        return math.isclose(float(found), float(expected), rel_tol=1e-4)
    except ValueError:
        return found == expected


def rounded(worker: Any) -> Any:
    """Round the matrices of a run that was just opened, as its page in float16 does; return it."""
    for tensor in (*worker.run.model.parameters(), *worker.run.model.buffers()):
        if tensor.dim() > 1 and tensor.dtype == torch.float32:
            tensor.data = tensor.half().float()
    return worker


def page_rows(driver: Any, family: Family) -> Iterator[list[Any]]:
    """Compare a run with its page, with each kind of weights."""
    worker: Any = open_any(family.run)
    run_outputs = expected_of(worker, family.inputs)
    own_outputs = {"float32": run_outputs, "float16": expected_of(rounded(open_any(family.run)), family.inputs)}
    parameters = sum(parameter.numel() for parameter in worker.run.model.parameters())
    for weights in ("float32", "float16"):
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "model.html"
            export_page(family.run, page, weights=weights)
            driver.get(page.as_uri())
            text = page.read_text(encoding="utf-8")
        (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
        driver.execute_script(script.replace("return answer;", "window.door = async (given) => answer(given);\nreturn answer;"))
        found = [driver.execute_async_script(SAID, request_of(family, line)) for line in family.inputs]
        counts = [sum(map(close, found, expected)) for expected in (run_outputs, own_outputs[weights])]
        (inside,) = re.findall(r'id="regard-weights">([^<]*)<', text)
        sizes = [round(size / 1e6, 2) for size in (len(text.encode()), len(text.encode()) - len(inside))]
        yield [family.task, family.name, parameters, weights, *sizes, len(found), *counts]


def main() -> None:
    """Compare every family, with what is asked for."""
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for data and runs")
    parser.add_argument("--onnx", type=Path, help="file of the results of ONNX")
    parser.add_argument("--page", type=Path, help="file of the results of the page")
    parser.add_argument("--inputs", type=int, help="default: 1,000 for ONNX, 200 for the page")
    parser.add_argument("--only", default="", help="a regular expression: only families whose task and model match, e.g. 'translation two'")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()

    def chosen(count: int) -> Iterator[Family]:
        found = families(folder, arguments.inputs or count)
        return (family for family in found if re.search(arguments.only, f"{family.task} {family.name}"))

    if arguments.onnx:
        note = f"`python benchmarks/export_families.py`: float32 on {processor()}, batches of 64; {versions('onnxruntime')}."
        table = Table(arguments.onnx, ONNX_COLUMNS, note, key=3)
        for family in chosen(1000):
            for row in onnx_rows(family):
                table.add(row)
    if arguments.page:
        driver: Any = browser()
        driver.set_script_timeout(600)
        note = (
            f"`python benchmarks/export_families.py`: headless Chromium {driver.capabilities['browserVersion']} without a network, beam 5; "
            f"of language models the log-probability of a line; {versions()}."
        )
        table = Table(arguments.page, PAGE_COLUMNS, note, key=4)
        for family in chosen(200):
            for row in page_rows(driver, family):
                table.add(row)
        driver.quit()


if __name__ == "__main__":
    main()
