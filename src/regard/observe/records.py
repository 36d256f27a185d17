"""Builds viewer records from attention maps and tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from regard.errors import DataError
from regard.observe.call import AttentionCall
from regard.observe.images import Patches, images_of, patch_places, read_image
from regard.viewer import AttentionMap, AttentionRecord, Grid, Tokens

NEGLIGIBLE = 1e-6
"""Largest weight on padding in a record that omits padding."""
Items = Tokens | Grid
Side = Literal["key", "query"]


class _Place(NamedTuple):
    """A map of a record: its name, its index among maps of its kind, the item lists of its queries and keys, and the number of keys per run
    of its layer.
    """

    call: AttentionCall
    name: str
    layer: int
    query: Side
    key: Side
    runs: tuple[int, ...]


def make_records(
    maps: Sequence[AttentionCall], tokens: tuple[Any, Any], *, image: Any, patches: Patches, names: tuple[str, str]
) -> list[AttentionRecord]:
    """Build one record per example of the batch.

    Args:
        maps: as `Recording.maps` returns them.
        tokens: of keys and queries, see `Recording.records`.
        image: one or several, or None.
        patches: layout of their patches.
        names: of the model and the examples.

    Raises:
        DataError: nothing was recorded, or tokens or image do not fit.
    """
    if not maps:
        raise DataError("nothing was recorded: call the model inside the block of regard.watch")
    batch = max(len(call.weights) for call in maps)
    if image is not None:
        return _image_records(maps, images_of(image), patches, names, batch)
    keys, queries = (_examples(given, batch, name) for given, name in zip(tokens, ("key_tokens", "query_tokens"), strict=True))
    if keys is None:
        raise DataError("tokens are missing: regard.view(seen, tokens), with query_tokens= where another sequence attends")
    places = _places(maps, None if queries is None else (len(keys[0]), len(queries[0])))
    longest: dict[Side, int] = {"key": max(map(len, keys)), "query": max(map(len, keys if queries is None else queries))}
    records = []
    for example in range(batch):
        sides: dict[Side, Items] = {"key": keys[example], "query": keys[example] if queries is None else queries[example]}
        labels: dict[Side, str] = {"key": "tokens", "query": "tokens"} if queries is None else {"key": "source", "query": "target"}
        items = {labels[side]: sides[side] for side in ("key", "query")}
        found = [
            AttentionMap(
                place.name,
                place.call.kind,
                labels[place.query],
                labels[place.key],
                _cut(place, example * len(place.call.weights) // batch, sides, longest),
                layer=place.layer,
                heads=_heads(place.call),
            )
            for place in places
        ]
        records.append(AttentionRecord(items, found, model=names[0], title=names[1]))
    return records


def _examples(given: Any, batch: int, name: str) -> list[Items] | None:
    """Return the items of each example, or None."""
    if given is None:
        return None
    if isinstance(given, str):
        raise DataError(f"{name}: expected a list of texts, found a string; split it into tokens")
    first = next(iter(given), None) if isinstance(given, list | tuple) else None
    if isinstance(first, int) or (isinstance(first, list | tuple) and first and isinstance(first[0], int)):
        raise DataError(f"{name}: expected texts, found numbers; give the text of each token, as tokenizer.convert_ids_to_tokens does")
    several = isinstance(given, list | tuple) and len(given) > 0 and not isinstance(given[0], str)
    lists = list(given) if several else [given]
    if len(lists) != batch:
        raise DataError(f"{name}: expected a list of tokens for each of the {batch} examples of the batch, found {len(lists)}")
    return [each if isinstance(each, Tokens | Grid) else Tokens(list(each)) for each in lists]


def _places(maps: Sequence[AttentionCall], lengths: tuple[int, int] | None) -> list[_Place]:
    """Name and number the maps and assign item lists to each; `lengths` of (keys, queries) if there are two sequences."""
    if lengths is None and (crossed := next((call for call in maps if call.kind == "cross"), None)) is not None:
        raise DataError(f"{crossed.layer} attends to another sequence: say regard.view(seen, key_tokens=..., query_tokens=...)")
    often = Counter(call.layer for call in maps)
    runs = {layer: tuple(call.weights.shape[3] for call in maps if call.layer == layer) for layer in often}
    seen: Counter[str] = Counter()
    numbers: Counter[tuple[str, Side, Side]] = Counter()
    crosses = [call.layer for call in maps if call.kind == "cross"]
    found = []
    for call in maps:
        seen[call.layer] += 1
        name = f"{call.layer} #{seen[call.layer]}" if often[call.layer] > 1 else call.layer
        query, key = _sides(call, lengths, crosses)
        found.append(_Place(call, name, numbers[call.kind, query, key], query, key, runs[call.layer]))
        numbers[call.kind, query, key] += 1
    return found


def _sides(call: AttentionCall, lengths: tuple[int, int] | None, crosses: Sequence[str]) -> tuple[Side, Side]:
    if lengths is None:
        return "key", "key"
    if call.kind == "cross":
        return "query", "key"
    fits_keys, fits_queries = (count == call.weights.shape[3] for count in lengths)
    if fits_keys != fits_queries:
        return ("key", "key") if fits_keys else ("query", "query")
    # Both lists fit: next to a cross-attention in the same block it is the query sequence.
    own = any(_block(call.layer, other) for other in crosses)
    return ("query", "query") if own else ("key", "key")


def _block(one: str, other: str) -> bool:
    """Return whether two modules are in the same numbered block."""
    shared = []
    for left, right in zip(one.split("."), other.split("."), strict=False):
        if left != right:
            break
        shared.append(left)
    return any(part.isdigit() for part in shared)


def _cut(place: _Place, example: int, sides: dict[Side, Items], longest: dict[Side, int]) -> Any:
    """Return the weights (H, T, S) of one example without padding."""
    weights = place.call.weights[example]
    rows, columns = len(sides[place.query]), len(sides[place.key])
    for side, count, there in ((place.key, columns, weights.shape[2]), (place.query, rows, weights.shape[1])):
        if count > there:
            both = place.query == place.key and sides["query"] is not sides["key"]  # neither list fits this self-attention
            given = f"{len(sides['key'])} key_tokens and {len(sides['query'])} query_tokens" if both else f"{count} {side}_tokens"
            raise DataError(f"{place.name}: {given}, but the model attended with {there}{_hint(place, count, there)}")
    if weights.isnan().any():
        raise DataError(f"{place.name}: the weights are NaN, from here on or from an earlier layer; regard.check names the module")
    if (weights < 0).any():
        raise DataError(f"{place.name}: negative weights (signed attention) cannot be shown; `maps()` of the recording has them")
    rest = weights[:, : rows if longest[place.key] == weights.shape[2] else None, columns:]  # a causal mask hides keys from the first rows
    if rest.numel() and rest.max() > NEGLIGIBLE:
        raise DataError(
            f"{place.name}: {columns} {place.key}_tokens for {weights.shape[2]} keys, and the others are attended to, too "
            f"(weight {rest.max():.3g}); give a token for each, padding and learned keys included"
        )
    return weights[:, :rows, :columns].numpy()


def _hint(place: _Place, count: int, there: int) -> str:
    if len(set(place.runs)) > 1:
        ran = ", ".join(map(str, place.runs[:4])) + (", ..." if len(place.runs) > 4 else "")
        return (
            f"; the layer ran {len(place.runs)} times, with {ran} keys: show one of `maps()`, watch a single pass over the finished text, "
            "or generate with use_cache=True"
        )
    if count == there + 1:
        return "; the last token of a generation attends to nothing any more: leave it out"
    return ""


def _heads(call: AttentionCall) -> list[str]:
    return [] if call.heads is None else [f"head {head + 1}" for head in call.heads]


def _image_records(
    maps: Sequence[AttentionCall], images: Sequence[Any], patches: Patches, names: tuple[str, str], batch: int
) -> list[AttentionRecord]:
    if len(images) != batch:
        raise DataError(f"image: expected one for each of the {batch} examples of the batch, found {len(images)}")
    if patches.grid is None:
        raise DataError("grid: expected (rows, columns) of the image's patches, which this model does not tell")
    places = _places([call._replace(kind="self") for call in maps], None)
    records = []
    for example, image in enumerate(images):
        items: dict[str, Any] = {}
        found = []
        for place in places:
            weights = place.call.weights[example * len(place.call.weights) // batch]
            keys = patch_places(weights.shape[2], patches)
            items.setdefault("image", read_image(image, patches.grid))
            square = weights.shape[1] == weights.shape[2]
            asks = "patches" if square else f"queries of {place.name}"
            items[asks] = _labels(items["image"], keys, weights.shape[2]) if square else _numbered("query", range(weights.shape[1]))
            shown = weights[:, :, keys].numpy()
            found.append(AttentionMap(place.name, "image", asks, "image", shown, layer=place.layer, heads=_heads(place.call)))
        records.append(AttentionRecord(items, found, model=names[0], title=names[1]))
    return records


def _labels(image: Grid, patches: slice, count: int) -> list[str]:
    return _numbered("token", range(patches.start)) + image.labels + _numbered("token", range(patches.stop, count))


def _numbered(name: str, numbers: range) -> list[str]:
    return [f"{name} {number + 1}" for number in numbers]
