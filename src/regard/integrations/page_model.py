"""Exports a run as one HTML file that contains the model: the viewer's page, with a script engine that runs the run's graphs.

No server, no Python, no request: `engine.js` computes the operators of `regard.integrations.graph` on typed arrays, `tokenizer.js` and
`search.js` follow `regard.data` and `regard.decoding`, and `model.js` builds the records that the page draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from regard.attention.areas import Areas
from regard.config import CaptioningConfig, ClassificationConfig, EntailmentConfig, TranslationConfig
from regard.config.captioning import FeaturesConfig
from regard.config.models import CrossedInputConfig, RecurrentSecondConfig
from regard.data.vocabulary import Vocabulary
from regard.errors import ConfigError, DataError
from regard.integrations.graph import Graph, ModelGraphs
from regard.integrations.graph_models import model_graphs
from regard.integrations.portable_run import OpenedRun, check_weights, describe, open_run, shortlist_of, vocabulary_entries
from regard.models.attention_maps import AttentionSide, LayerAttention, attention_site
from regard.models.captioning import CaptionTransformer, ShowAttendTell
from regard.strict_json import parse_json
from regard.tasks.captioning_prediction import shown_as
from regard.tasks.explained_records import ALTERNATIVES
from regard.tasks.hop_attention import HOPS, hop_names, layer_sites
from regard.tasks.language_prediction import MAX_RECORD_TOKENS
from regard.tasks.record_layers import DIVIDING, WRITTEN, map_names
from regard.viewer.atomic_write import write_atomically
from regard.viewer.maps import KINDS as KINDS_OF_MAPS
from regard.viewer.page import EmbeddedModel, render_page

__all__ = ["export_page", "page_model"]

SCRIPTS = ("engine", "tokenizer", "search", "lines", "labels", "images", "pairs", "model")
# Vocabulary kinds that the page can tokenize with.
KINDS = ("bpe", "unigram", "word", "character")
LARGEST_INTEGER = 2**31 - 1
PageWeights = Literal["float32", "float16"]


def export_page(run: str | Path, path: str | Path, *, weights: PageWeights = "float32") -> None:
    """Write a trained run as a page that runs it in the browser.

    Args:
        run: a run folder of any task.
        path: the file; an existing one is replaced.
        weights: storage of matrices; float16 halves the file and occasionally changes a word.

    Raises:
        CheckpointError: the run cannot be opened.
        ConfigError: the page cannot run it; the message names the setting.
        DataError: the file cannot be written; the message names it.

    Example:
        >>> export_page("no-such-run", "model.html")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    opened, path = open_run(Path(run)), Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise DataError(f"{path}: expected a name ending in .html or .htm")
    embedded = page_model(opened, weights=weights)
    page = render_page([], live=True, models=[opened.folder.resolve().name], task=asked_for(opened), embedded=embedded)
    write_atomically(path, page.encode("utf-8"))


def asked_for(run: OpenedRun) -> str:
    """Return what a page asks a visitor for: the `task` of `regard.viewer.page.render_page`.

    Args:
        run: from `regard.integrations.portable_run.open_run`.
    """
    second = _second(run)
    return run.config.task if second is None else "two inputs" if second.image is None else "sentence and image"


def page_model(run: OpenedRun, *, weights: PageWeights = "float32") -> EmbeddedModel:
    """Collect what the page needs of a run; arguments and errors as in `export_page`.

    Args:
        run: from `regard.integrations.portable_run.open_run`.
        weights: see `export_page`.
    """
    _check(run)
    graphs = model_graphs(run.model, maps=True)
    check_weights(graphs, weights)
    manifest, content = _packed(graphs, halved=weights == "float16")
    described = describe(run, graphs)
    if (shortlist := shortlist_of(run)) is not None:
        described["shortlist"] = {"always": shortlist.always, "tokens": shortlist.tokens}
    described["graphs"] = {name: {"nodes": _nodes(graph)} for name, graph in graphs.graphs.items()}
    described |= {
        "name": run.folder.resolve().name,
        **(_label_maps(run, graphs) if "model" in graphs.graphs else _search_maps(run, graphs)),
        "entries": {name: _entries(run.folder / name) for name in set(run.vocabularies.values())},
        "alternatives": ALTERNATIVES,
        "weights": manifest,
    }
    folder = resources.files("regard.integrations").joinpath("page")
    parts = [folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    # In a separate scope: it sees the page's names and redefines none.
    script = "\n".join(["answerAbout = (() => {", *parts, "return answer;", "})();"])
    return EmbeddedModel(script, described, content)


def _check(run: OpenedRun) -> None:
    config: Any = run.config
    if config.vocabulary.kind not in KINDS:
        raise ConfigError(f"vocabulary.kind: {config.vocabulary.kind}, but the page divides text by {', '.join(KINDS)}")
    if isinstance(config, CaptioningConfig) and isinstance(config.model.encoder, FeaturesConfig):
        raise ConfigError("model.encoder.type: features, but the page reads images; --format onnx exports this model")
    if not config.model.attends:
        labels = isinstance(config, ClassificationConfig | EntailmentConfig)
        name = f"pooling: {config.model.pooling}" if labels else f"attention: {getattr(config.model, 'attention', None) or 'null'}"
        raise ConfigError(f"model.{name}, so there is no attention for the page to show; --format onnx exports this model")
    for name in set(run.vocabularies.values()):
        if parse_json((run.folder / name).read_bytes())["kind"] not in KINDS:
            raise ConfigError(f"{run.folder / name}: an imported vocabulary, whose rules the page does not know")


def _nodes(graph: Graph) -> list[list[Any]]:
    return [[node.operator, list(node.inputs), list(node.outputs), dict(node.attributes)] for node in graph.nodes]


def _packed(graphs: ModelGraphs, *, halved: bool) -> tuple[list[list[Any]], bytes]:
    # All tensors concatenated, and for each its name, dtype, shape and first byte.
    manifest, content = list[list[Any]](), bytearray()
    for name, tensor in graphs.weights.tensors.items():
        kind = "int32" if tensor.dtype == torch.int64 else "float16" if halved and tensor.dim() > 1 else "float32"
        manifest.append([name, kind, list(tensor.shape), len(content)])
        content += _array(tensor, kind).tobytes()
        content += bytes(-len(content) % 4)
    return manifest, bytes(content)


def _array(tensor: Tensor, kind: str) -> np.ndarray:
    if kind == "int32":
        return tensor.clamp(-LARGEST_INTEGER, LARGEST_INTEGER).numpy().astype("<i4")
    return tensor.contiguous().numpy().astype("<f2" if kind == "float16" else "<f4")


def _search_maps(run: OpenedRun, graphs: ModelGraphs) -> dict[str, Any]:
    """Describe each attention map, in the order and with the names of `regard view`, and say whether a step has weights."""
    if run.config.task == "lm":
        return {"attends": True, "maps": [], "longest": MAX_RECORD_TOKENS}
    found, described = _attentions(run, graphs), dict[str, Any]()
    described["attends"] = any(port.name == "weights" for port in graphs.graphs["step"].outputs)
    if isinstance(run.config, CaptioningConfig):
        maps = [{**shown_as(layer)._asdict(), "layer": layer.layer, **more} for layer, more in found]
        return {**described, "maps": maps, "grid": cast(ShowAttendTell | CaptionTransformer, run.model).grid}
    if second := _second(run):
        cells = {} if second.image is None else {"cells": second.image.cells, "grid": second.image.grid}
        described["second"] = {"divides": second.kind in DIVIDING, "optional": second.drop > 0, **cells}
    names = map_names([layer for layer, _ in found])
    maps = [{**_between(layer), **more, "name": name} for (layer, more), name in zip(found, names, strict=True)]
    return {**described, "maps": maps}


def _second(run: OpenedRun) -> RecurrentSecondConfig | CrossedInputConfig | None:
    return run.config.model.second if isinstance(run.config, TranslationConfig) else None


def _attentions(run: OpenedRun, graphs: ModelGraphs) -> list[tuple[LayerAttention, dict[str, Any]]]:
    """Return where each attention of a generator is, without weights, and the outputs of the graphs that hold them."""
    modules, empty = {id(module): name for name, module in run.model.named_modules()}, torch.empty(0)
    sides: tuple[AttentionSide, AttentionSide] = ("source", "source") if _second(run) is None else ("first", "second")
    found = list[tuple[LayerAttention, dict[str, Any]]]()
    for graph_name, graph in graphs.graphs.items():
        for outputs in graph.attended:
            name, areas = modules[id(outputs.module)], getattr(outputs.module, "areas", None)
            single = not hasattr(outputs.module, "num_heads")
            site = attention_site(name, sides)
            if site.kind == "alignment" and single and outputs.areas is None:
                continue  # the map of the output itself
            layer = LayerAttention(name, *site, empty, None, None)
            more = {"graph": graph_name, "items": outputs.items, "areas": outputs.areas, "single": single}
            more |= {"max_area": areas.max_area, "grid": areas.grid} if isinstance(areas, Areas) else {"max_area": None, "grid": None}
            found.append((layer, more))
    places = {name: place for place, name in enumerate(modules.values())}
    return sorted(found, key=lambda pair: places[pair[0].name])


def _label_maps(run: OpenedRun, graphs: ModelGraphs) -> dict[str, Any]:
    """Describe a classifier, with the names of its texts and of its hops; `main` is the map to show first."""
    assert isinstance(run.config, ClassificationConfig | EntailmentConfig)
    texts = ("text",) if run.config.task == "classification" else ("premise", "hypothesis")
    graph, pooling = graphs.graphs["model"], run.config.model.pooling
    maps = list[dict[str, Any]]()
    for name, module in run.model.named_modules():
        seen = [outputs.items for outputs in graph.attended if outputs.module is module]
        if sites := layer_sites(name, len(seen), texts) if seen else []:
            maps += [{**site._asdict(), "items": items} for site, items in zip(sites, seen, strict=True)]
    pooled = [port.name for port in graph.outputs if port.name.endswith("weights")]
    for text, items in zip(texts, pooled, strict=False):
        name = HOPS if len(texts) == 1 else f"{HOPS} on the {text}"
        maps.append({"name": name, "kind": HOPS, "query": HOPS, "key": text, "layer": None, "items": items})
    hops = hop_names(pooling, run.config.model.hops if pooling == "structured" else 1) if pooled else []
    main = min(range(len(maps)), key=lambda place: KINDS_OF_MAPS.index(maps[place]["kind"]))
    return {"texts": texts, "hops": hops, "maps": maps, "main": main}


def _between(layer: LayerAttention) -> dict[str, Any]:
    key = WRITTEN if layer.query == layer.key == "target" else layer.key
    return {"kind": layer.kind, "query": layer.query, "key": key, "layer": layer.layer}


def _entries(path: Path) -> dict[str, Any]:
    vocabulary, content = Vocabulary.load(path), parse_json(path.read_bytes())
    model: Mapping[str, Any] = content["tokenizer"]["model"]
    tokens = vocabulary_entries(path)
    found: dict[str, Any] = {"kind": content["kind"], "tokens": tokens, "pieces": vocabulary.pieces(range(len(tokens)))}
    if content["kind"] == "bpe":
        found["merges"] = [_pair(merge) for merge in model["merges"]]
    if content["kind"] == "unigram":
        found["scores"] = [score for _, score in model["vocab"]]
    return found


def _pair(merge: str | Sequence[str]) -> str:
    # Older releases of the tokenizers library store a merge as one string.
    return merge if isinstance(merge, str) else " ".join(merge)
