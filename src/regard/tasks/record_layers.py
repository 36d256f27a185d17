"""Attention of all layers, heads, areas and hypotheses of one example, as parts of a record."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from regard import ops
from regard.data.batching import collate
from regard.data.vocabulary import EOS, Vocabulary
from regard.decoding import Hypothesis
from regard.errors import DataError
from regard.models import LayerAttention
from regard.tasks.explained_records import token_alternatives
from regard.tasks.run_folder import device_of
from regard.tasks.translation_run import TranslationRun
from regard.tasks.word_links import read_choice
from regard.viewer import AreaMap, AttentionMap, AttentionRecord, Grid, Tokens
from regard.viewer import HypothesisRecord as Shown

# Pages with more weights open slowly; the record's facts list omissions.
MAX_WEIGHTS = 4_194_304
WRITTEN = "written"
# Kinds of two inputs with one attention to both: the alignment shows how it divides itself. A hierarchical model has weights for that.
DIVIDING = ("joined", "flat")
# What the items of a sentence and an image are called.
PICTURE_NAMES = {"first": "source", "second": "image"}


def add_layers(
    run: TranslationRun,
    record: AttentionRecord,
    source: Sequence[int],
    target: Sequence[int],
    *,
    max_weights: int | None = None,
    found: Sequence[LayerAttention] | None = None,
) -> AttentionRecord:
    """Add the attention of every layer and head to the record of an alignment.

    In a decoder's self-attention the current token attends to the tokens before it, so its keys are separate items named "written": BOS,
    then the target without its last token.

    Args:
        run: the run that made the record.
        record: with items "source" and "target", EOS included.
        source: its ids, without EOS.
        target: its ids, without EOS.
        max_weights: max number of weights in all maps, without areas; None: 4,194,304.
        found: the maps of these ids, if known.

    Returns:
        The record with the run's name as `model`, and all maps after its own; maps beyond `max_weights` are omitted and counted in `meta`.
    """
    max_weights = MAX_WEIGHTS if max_weights is None else max_weights
    rows = len(record.items["target"])
    record = replace(record, model=run.folder.name)
    if not rows:
        return record
    if found is None:
        batch = collate([list(source)], [list(target)[: rows - 1]], (0,)).to(device_of(run.model))
        found = run.model.attention_maps(batch.source, batch.source_lengths, batch.target_input, areas=True)
    names = map_names(found)
    maps, total, left_out = [], sum(each.weights.size for each in record.maps), 0
    written = ["<s>", *record.items["target"].tokens][:rows]
    second = run.config.model.second
    grid = None if second is None or second.image is None else second.image.grid
    for name, layer in zip(names, found, strict=True):
        if layer.kind == "alignment" and layer.weights.shape[1] == 1 and layer.area_weights is None:
            continue  # the record's own
        total += math.prod(layer.weights.shape)
        if total > max_weights:
            left_out += 1
            continue
        maps.append(_map(name, layer, grid))
    items: dict[str, Any] = dict(record.items)
    if any(each.key == WRITTEN for each in maps):
        items[WRITTEN] = Tokens(written, marks=record.items["target"].marks)
    if EOS in source:  # two inputs
        end, read = source.index(EOS) + 1, record.items["source"]
        texts = read.text.partition("\t")
        items |= {"first": Tokens(read.tokens[:end], texts[0], read.marks), "second": Tokens(read.tokens[end:], texts[2], read.marks)}
        if second is not None and second.kind in DIVIDING and record.maps:
            maps.append(_division(record.maps[0], end))
    if any(each.key == "inputs" for each in maps):
        items["inputs"] = Tokens(["first", "second"])
    meta = {**record.meta, "left out": f"{left_out} of {len(found)} maps, too large for one page"} if left_out else dict(record.meta)
    meta |= _linking(run, dict(zip((layer.name for layer in found), names, strict=True)))
    maps = [*record.maps, *maps]
    if run.vocabularies.images is not None and EOS in source:
        items, maps = _with_picture(run, items, maps, source)
    return replace(record, items=items, maps=maps, meta=meta)


def _linking(run: TranslationRun, names: Mapping[str, str]) -> dict[str, str]:
    # The attention that word links come from, if it is not the mean that the alignment shows.
    choice = read_choice(run)
    if choice is None or choice.name not in names:
        return {}
    head = "mean of the heads" if choice.head is None else f"head {choice.head + 1}"
    return {"word links": f"{names[choice.name]}, {head}, of the step that {choice.step} the token"}


def _division(alignment: AttentionMap, end: int) -> AttentionMap:
    weights = np.asarray(alignment.weights)
    parts = np.stack([weights[..., :end].sum(-1), weights[..., end:].sum(-1)], -1)
    return AttentionMap("division between inputs", "cross", "target", "inputs", parts)


def _with_picture(
    run: TranslationRun, found: Mapping[str, Any], maps: Sequence[AttentionMap], source: Sequence[int]
) -> tuple[dict[str, Any], list[AttentionMap]]:
    """Show the cells of a second input as image cells: "source" is the sentence alone, "image" the grid.

    Attention to the image's EOS is not shown, nor is the self-attention over both as one sequence.
    """
    second, images = run.config.second, run.vocabularies.images
    assert images is not None
    assert second is not None
    assert second.image is not None
    end = source.index(EOS) + 1
    cells = images.cells if len(source) > end else 0
    items = {name: own for name, own in found.items() if name not in PICTURE_NAMES}
    read = found["source"]
    items["source"] = Tokens(read.tokens[:end], read.text.partition("\t")[0], read.marks)
    if "inputs" in items:
        items["inputs"] = Tokens(["sentence", "image"])
    if cells:
        items["image"] = drawn_over(second.image.grid, images.pixels(source[end]))
    return items, [own for each in maps for own in _picture_maps(each, end, cells)]


def _picture_maps(found: AttentionMap, end: int, cells: int) -> list[AttentionMap]:
    """Return a map as maps of the sentence, of `end` tokens, and of the cells, if there are any."""
    query, keys = PICTURE_NAMES.get(found.query, found.query), [(PICTURE_NAMES.get(found.key, found.key), 0)]
    if found.query == "source" or (not cells and "image" in (query, keys[0][0])):
        return []
    if found.key == "source":
        keys = [("source", 0), ("image", end)] if cells else keys
    rows = cells if query == "image" else None
    weights, areas = np.asarray(found.weights)[:, :rows], found.areas
    if areas is not None:
        areas = AreaMap(areas.extents, areas.weights[:, :rows])
    maps = []
    for key, start in keys:
        stop = start + cells if key == "image" else end if key == "source" else None
        kind = "image" if (query, key) == ("target", "image") else found.kind
        name = f"{found.name}, image" if len(keys) > 1 and key == "image" else found.name.replace("second input", "image")
        maps.append(replace(found, name=name, kind=kind, query=query, key=key, weights=weights[..., start:stop], areas=areas))
    return maps


def drawn_over(grid: tuple[int, int], pixels: np.ndarray) -> Grid:
    """Return the cells of a grid over an image, uint8 (H, W, 3).

    Raises:
        DataError: `pixels` have another type or shape.

    Example:
        >>> drawn_over((2, 3), np.zeros((8, 8, 3), np.uint8)).size
        (8, 8)
    """
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3 or not pixels.size:
        found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DataError(f"pixels: expected an array uint8 (H, W, 3), found {found}")
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    address = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return Grid(*grid, image=address, size=(pixels.shape[1], pixels.shape[0]))


def add_alternatives(run: TranslationRun, record: AttentionRecord, source: Sequence[int], target: Sequence[int]) -> AttentionRecord:
    """Add the most probable tokens at the position of each target token; see `add_layers` for the arguments."""
    rows = len(record.items["target"])
    batch = collate([list(source)], [list(target)[: rows - 1]], (0,)).to(device_of(run.model))
    with torch.inference_mode():
        readout = run.model.decode(batch.source, batch.source_lengths, batch.target_input, need_weights=False).readout[0, :rows]
    copied = record.items["source"].tokens
    return replace(record, alternatives={"target": token_alternatives(run.model, readout, run.vocabularies.target, copied=copied)})


def hypothesis_records(
    vocabulary: Vocabulary,
    hypotheses: Sequence[Hypothesis],
    texts: Sequence[str],
    *,
    key: str = "source",
    columns: int | None = None,
    words: Mapping[int, str] | None = None,
) -> list[Shown]:
    """Return the hypotheses of a search as parts of a record; empty for a single one.

    Args:
        vocabulary: target vocabulary.
        hypotheses: the hypotheses.
        texts: their texts.
        key: name of the items they attend to.
        columns: number of these items; None: all.
        words: texts of unknown words that were copied, by id.
    """
    shown = []
    for found, text in zip(hypotheses, texts, strict=True) if len(hypotheses) > 1 else ():
        pieces = vocabulary.pieces([token for token in found.tokens if token != EOS], words)
        weights = None if found.attention is None else found.attention[:, :columns]
        tokens = [*pieces, "</s>"][: len(found.tokens)]
        shown.append(Shown(tokens, found.score, text, found.log_probs[: len(tokens)], key, weights))
    return shown


def layer_areas(layer: LayerAttention, keys: int | tuple[int, int]) -> AreaMap | None:
    """Return a layer's areas over this many keys or a grid; None without areas."""
    if layer.area_weights is None or layer.max_area is None:
        return None
    return AreaMap(ops.area_spans(keys, layer.max_area), layer.area_weights[0].cpu())


def _map(name: str, layer: LayerAttention, grid: tuple[int, int] | None) -> AttentionMap:
    key = WRITTEN if layer.query == layer.key == "target" else layer.key
    areas = layer_areas(layer, grid if grid is not None and isinstance(layer.max_area, tuple) else layer.weights.shape[3])
    return AttentionMap(name, layer.kind, layer.query, key, layer.weights[0], layer=layer.layer, areas=areas)


def map_names(layers: Sequence[LayerAttention]) -> list[str]:
    """Return a unique, readable name for each attention; the layers' weights are not used."""
    names = []
    for found in layers:
        parts = found.name.split(".")
        side = {"left": "left ", "right": "right "}.get(parts[-1], "")
        # With two inputs the names contain items and queries.
        if found.kind == "cross" and found.key in ("first", "second", "inputs"):
            divided = "division between inputs, " if parts[-1] == "share" else "contribution of each input, "
            side = {"inputs": divided}.get(found.key, f"{found.key} input, ")
        elif found.kind == "self" and found.key in ("first", "second"):
            side = f"{found.key} input, "
        stack = {"self": "decoder self" if found.query == "target" else "encoder self", "alignment": "alignment by head"}
        name = side + stack.get(found.kind, found.kind) + ("" if found.layer is None else f" {found.layer + 1}")
        model = f"model {int(parts[1]) + 1}: " if parts[0] == "models" else ""
        names.append(model + name)
    # A duplicate keeps its module name.
    return [found.name if names.count(name) > 1 else name for name, found in zip(names, layers, strict=True)]
