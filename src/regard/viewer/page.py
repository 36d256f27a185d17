"""The self-contained page: records, script and style in a single HTML file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.arguments import takes_arguments
from regard.viewer.atomic_write import write_atomically
from regard.viewer.items import Tokens
from regard.viewer.maps import AttentionMap
from regard.viewer.outputs import HypothesisRecord
from regard.viewer.record import AttentionRecord, record_list
from regard.viewer.text import visible

DATA_MARK = "@@REGARD_DATA@@"
POLICY_MARK = "@@REGARD_POLICY@@"
STYLE_MARK = "@@REGARD_STYLE@@"
SCRIPT_MARK = "@@REGARD_SCRIPT@@"
MODEL_MARK = "@@REGARD_MODEL@@\n"
# In the order in which they are concatenated: all share one scope, and the last one starts the page.
SCRIPTS = (
    *("base", "colors", "data", "words", "state", "history", "grid", "canvas", "focus", "shelf"),
    *("matrix", "flow", "heads", "areas", "image", "text", "both", "beam", "compare", "table"),
    *("export", "link", "leave", "live", "main"),
)
# Characters that could end the data block or start markup, and the line terminators of older JavaScript.
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
DECIMALS = 6
# Numbers below this keep four digits, so that scores of 1e-7 differ.
SMALL = 1e-3
# Maps of up to this many numbers are written as decimals, larger ones as float16 (3 digits); if a page has more of those than the second
# bound, in 255 steps, so that the layers and heads of a base-sized model stay below 10 MB.
PLAIN, HALF = 4_000, 4_194_304
LARGEST_HALF = 1024.0


class EmbeddedModel(NamedTuple):
    """A model inside the page, which answers instead of a server.

    Attributes:
        script: defines `answerAbout`, called with the body of a request; returns the records of its response.
        description: JSON description of the model for the script.
        weights: its weights.
    """

    script: str
    description: dict[str, Any]
    weights: bytes


class StartingPoint(NamedTuple):
    """An example that an empty live page offers.

    Attributes:
        texts: the input: one text, or for entailment a premise and a hypothesis.
        image: for captioning, instead of texts, a `data:` URL; see `Grid.image`.
        name: name of the image.
    """

    texts: tuple[str, ...] = ()
    image: str = ""
    name: str = ""


@takes_arguments
def render_page(
    records: Iterable[AttentionRecord],
    *,
    live: bool = False,
    models: Sequence[str] = (),
    task: str = "translation",
    largest: int = 0,
    examples: Sequence[StartingPoint] = (),
    embedded: EmbeddedModel | None = None,
    methods: Sequence[str] = (),
) -> str:
    """Return one HTML page that shows the records, without other files and without a network.

    The page holds its own style and script, allowed by their hashes; its policy forbids everything else. Tokens are escaped JSON and only
    ever set as text.

    Args:
        records: the records; an empty page says so. Maps of up to 4,000 weights keep 6 decimals, larger ones 3 digits; on a page whose
            larger maps have more than 4,194,304 weights together, 255 steps up to their maximum, finer near 0. The page names the
            precision.
        live: show an input box; its text is sent as `{"text": ..., "model": 0}` to `attention` beside the page; the response is
            `{"records": [...]}`, see `page_records`, or `{"error": "..."}` with a status of 400 or more.
        task: of a live page's models. "entailment" takes two texts, sent as `{"pair": {"premise": ..., "hypothesis": ...}, ...}`,
            "two inputs" of a translation two, sent as `{"text": ..., "second": ..., ...}`, "sentence and image" a text and an image, sent
            as `{"text": ..., "second": "<base64>", ...}`, and "captioning" an image, dropped or chosen, sent as
            `{"image": "<base64>", ...}`.
        largest: max bytes of an uploaded image; 0: no limit.
        models: names of the models of a live page; `model` is the index in this list.
        examples: starting points of a live page.
        embedded: a model that answers instead of a server; the page then makes no request.
        methods: explanation methods that a live page offers, sent as `"method"`.

    Returns:
        The HTML text, to be stored as UTF-8.

    Raises:
        DataError: see `regard.viewer.record.record_list`.

    Example:
        >>> page = render_page([AttentionRecord.alignment(["</script>"], ["b"], [[1.0]])])
        >>> page.count("</script>")
        2
    """
    folder = resources.files("regard.viewer").joinpath("page")
    template = folder.joinpath("page.html").read_text(encoding="utf-8")
    style = folder.joinpath("style.css").read_text(encoding="utf-8")
    parts = [folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    if embedded is not None:
        parts.insert(-1, embedded.script)  # before the script that starts the page
    script = "\n".join(['\n"use strict";\n(() => {', *parts, "})();\n"])
    values = {
        "records": _sharing_images(_page_records(record_list("render_page", records))),
        "live": live,
        "models": list(models),
        "task": task,
        "largest": largest,
    }
    values["methods"] = list(methods)
    values["examples"] = [each._asdict() for each in examples]
    page = template.replace(POLICY_MARK, _policy(style, script, live and embedded is None))
    page = page.replace(STYLE_MARK, style).replace(SCRIPT_MARK, script)
    # The data comes last, so that nothing inside it is taken for a placeholder.
    before, _, after = page.partition(MODEL_MARK)
    return before.replace(DATA_MARK, _safe_json(values)) + _model_blocks(embedded) + after


def _safe_json(values: dict[str, Any]) -> str:
    data = json.dumps(values, allow_nan=False, separators=(",", ":"))
    for character, escape in UNSAFE.items():
        data = data.replace(character, escape)
    return data


def _model_blocks(embedded: EmbeddedModel | None) -> str:
    if embedded is None:
        return ""
    description = f'<script type="application/json" id="regard-model">{_safe_json(embedded.description)}</script>\n'
    weights = base64.b64encode(embedded.weights).decode("ascii")
    return f'{description}<script type="text/plain" id="regard-weights">{weights}</script>\n'


def _sharing_images(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace an image that an earlier record already has by that record's index and item name."""
    known: dict[str, tuple[int, str]] = {}
    for number, record in enumerate(records):
        for name, items in record["items"].items():
            image = items.get("image")
            if image is not None and known.setdefault(image, (number, name)) != (number, name):
                items["image"] = list(known[image])
    return records


# The remaining script of a compact page, whose policy allows both scripts by their hashes.
LOADER = (
    '(async()=>{if(!self.DecompressionStream){document.getElementById("view").textContent='
    '"This browser is too old for a page in a notebook; page.save(path) writes one that it can show.";return}'
    'const packed=Uint8Array.from(atob("@@"),(c)=>c.charCodeAt(0));'
    'const stream=new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));'
    'const script=document.createElement("script");script.textContent=await new Response(stream).text();document.head.append(script)})()'
)


def compact_page(page: str) -> str:
    """Compress the script of a page for a notebook, which stores a page per cell: below 100 kB without the records.

    Args:
        page: the result of `render_page`.

    Example:
        >>> page = render_page([])
        >>> len(page) > 150_000, len(compact_page(page)) < 100_000
        (True, True)
    """
    head, mark, rest = page.rpartition("<script>")
    if not mark:
        return page
    script, _, tail = rest.partition("</script>")
    packed = base64.b64encode(gzip.compress(script.encode("utf-8"), 9, mtime=0)).decode("ascii")
    loader = LOADER.replace("@@", packed)
    return f"{head.replace(_hash(script), f'{_hash(script)} {_hash(loader)}', 1)}<script>{loader}</script>{tail}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


@takes_arguments
def page_records(records: Iterable[AttentionRecord]) -> list[dict[str, Any]]:
    """Return records in the format of the page's script: JSON values, large weights packed.

    Raises:
        DataError: see `regard.viewer.record.record_list`.

    Example:
        >>> page_records([AttentionRecord.alignment(["a"], ["b"], [[0.5]])])[0]["maps"][0]["weights"]
        {'numbers': [0.5]}
    """
    return _page_records(record_list("page_records", records))


def _page_records(records: Sequence[AttentionRecord]) -> list[dict[str, Any]]:
    numbers = [each for record in records for each in _numbers(record)]
    coarse = sum(each.size for each in numbers if each.size > PLAIN) > HALF
    return [_page_record(record, coarse) for record in records]


def _numbers(record: AttentionRecord) -> list[np.ndarray]:
    found = [each.weights for each in record.maps] + [each.areas.weights for each in record.maps if each.areas is not None]
    return found + [each.weights for each in record.hypotheses if each.weights is not None]


@takes_arguments
def save_page(records: Iterable[AttentionRecord], path: str | Path) -> None:
    """Write `render_page` to a file, completely or not at all.

    Args:
        records: one or more records.
        path: the file.

    Raises:
        DataError: the file cannot be written; the message names it. Or there are no records, or see `regard.viewer.record.record_list`.

    Example:
        >>> save_page([AttentionRecord.alignment(["a"], ["b"], [[1.0]])], "/no/such/folder/page.html")
        Traceback (most recent call last):
        regard.errors.DataError: /no/such/folder/page.html: cannot be written (No such file or directory)
    """
    write_atomically(path, render_page(record_list("save_page", records, some=True)).encode("utf-8"))


def _page_record(record: AttentionRecord, coarse: bool) -> dict[str, Any]:
    prediction = record.prediction
    return {
        "title": record.title,
        "model": record.model,
        "meta": record.meta,
        "point": record.point and record.point.to_json(),
        "items": {name: _page_items(record, name) for name in record.items},
        "maps": [_page_map(found, coarse) for found in record.maps],
        "main": record.maps.index(record.main) if record.main else 0,
        "scores": record.scores,
        "alternatives": {
            name: [[(visible(token), round(value, DECIMALS)) for token, value in pairs] for pairs in given]
            for name, given in record.alternatives.items()
        },
        "hypotheses": [_page_hypothesis(found, coarse) for found in record.hypotheses],
        # Pairs: an object would reorder labels that look like numbers.
        "prediction": prediction and {"label": prediction.label, "probabilities": list(prediction.probabilities.items())},
    }


def _page_items(record: AttentionRecord, name: str) -> dict[str, Any]:
    items = record.items[name]
    words = items.words if isinstance(items, Tokens) else []
    return {**items.to_json(), "labels": record.labels(name), **({"words": words} if words else {})}


def _page_map(found: AttentionMap, coarse: bool) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(found, name) for name in ("name", "kind", "query", "key", "layer", "heads", "method")}
    signed = bool((found.weights < 0).any())
    # Steps have no sign; a method's scores are few compared to the heads of all layers.
    values |= {
        "shape": list(found.weights.shape),
        "weights": _packed(found.weights, coarse and not signed),
        "signed": signed,
        "areas": None,
    }
    if found.areas is not None:
        values["areas"] = {"extents": found.areas.extents.tolist(), "weights": _packed(found.areas.weights, coarse)}
    return values


def _page_hypothesis(found: HypothesisRecord, coarse: bool) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(found, name) for name in ("labels", "score", "text", "key")}
    weights = None if found.weights is None else _packed(found.weights, coarse)
    return {**values, "logProbs": found.log_probs, "weights": weights}


def _rounded(value: float) -> float:
    # Scores of a method can be small together, as for a model that is sure of its output.
    return round(value, DECIMALS) if abs(value) >= SMALL else float(f"{value:.4g}")


def _packed(array: np.ndarray, coarse: bool) -> dict[str, Any]:
    flat = array.ravel()
    if flat.size <= PLAIN:
        return {"numbers": [_rounded(float(value)) for value in flat]}
    top = float(np.abs(flat).max())
    if not coarse:
        scale = top if top > LARGEST_HALF or 0 < top < SMALL else 1.0
        data = (flat / scale).astype("<f2")
        return {"float16": base64.b64encode(data.tobytes()).decode("ascii"), "scale": scale}
    # Squared steps: most weights are small, and stay distinguishable.
    steps = np.rint(255 * np.sqrt(flat / (top or 1.0))).astype(np.uint8)
    return {"uint8": base64.b64encode(steps.tobytes()).decode("ascii"), "scale": top or 1.0}


def _policy(style: str, script: str, live: bool) -> str:
    # data: is for images of records, and the empty icon, which keeps browsers from requesting one.
    allowed = f"style-src {_hash(style)}; script-src {_hash(script)}; img-src data:"
    connect = "; connect-src 'self'" if live else ""
    return f"default-src 'none'; {allowed}{connect}; base-uri 'none'; form-action 'none'"
