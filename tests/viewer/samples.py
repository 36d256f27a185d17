"""One small record of every kind, with weights that a test can work out again."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from regard.viewer import AreaMap, AttentionMap, AttentionRecord, Grid, HypothesisRecord, PredictionRecord, Tokens

SOURCE = ["Der", " große", " Hund", " schläft", "."]
TARGET = ["The", " big", " dog", " sleeps", " .", "</s>"]


def rows_of(rows: int, columns: int, seed: int, *, sharp: float = 3.0) -> np.ndarray:
    """Rows that add up to 1, (rows, columns)."""
    scores = np.random.default_rng(seed).normal(size=(rows, columns)) * sharp
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def heads_of(heads: int, rows: int, columns: int, seed: int) -> np.ndarray:
    return np.stack([rows_of(rows, columns, 100 * seed + head) for head in range(heads)])


def picture(width: int, height: int) -> str:
    """A PNG as a data address: a soft gradient with a disc in it."""
    y, x = np.mgrid[0:height, 0:width]
    red = 60 + 150 * x / width
    green = 90 + 120 * y / height
    disc = (x - 0.68 * width) ** 2 + (y - 0.42 * height) ** 2 < (0.2 * height) ** 2
    pixels = np.stack([np.where(disc, 235, red), np.where(disc, 190, green), np.where(disc, 70, 150)], -1).astype(np.uint8)
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(whole).decode("ascii")


def alignment() -> AttentionRecord:
    weights = 0.82 * np.eye(6, 5) + 0.18 * rows_of(6, 5, 1)
    weights[5] = [0.02, 0.03, 0.05, 0.1, 0.8]
    scores = [-0.05, -0.4, -0.1, -0.2, -0.01, -0.01]
    texts = ("Der große Hund schläft.", "The big dog sleeps.")
    return AttentionRecord.alignment(SOURCE, TARGET, weights, texts=texts, scores=scores, title="Additive attention")


def transformer(layers: int = 6, heads: int = 8, model: str = "base", seed: int = 2) -> AttentionRecord:
    items = {"source": Tokens(SOURCE, "Der große Hund schläft."), "target": Tokens(TARGET, "The big dog sleeps.")}
    maps = [
        AttentionMap(f"cross {layer + 1}", "cross", "target", "source", heads_of(heads, 6, 5, seed + layer), layer=layer)
        for layer in range(layers)
    ]
    maps += [
        AttentionMap(f"encoder self {layer + 1}", "self", "source", "source", heads_of(heads, 5, 5, seed + 50 + layer), layer=layer)
        for layer in range(layers)
    ]
    return AttentionRecord(items, maps, model=model, title=f"Transformer {model}")


def spans(length: int, longest: int) -> list[list[int]]:
    return [[start, size] for size in range(1, longest + 1) for start in range(length - size + 1)]


PIECES = ["Der", " gro", "ße", " Hund", " schläft", "."]
WRITTEN = ["The", " big", " dog", " sl", "eeps", ".", "</s>"]


def explained() -> AttentionRecord:
    """An alignment of sub-words with the scores of two methods, one of them below 0, too, and with alternatives."""
    weights = rows_of(7, 6, 60)
    effects = np.random.default_rng(61).normal(size=(7, 6))
    maps = [
        AttentionMap("alignment", "alignment", "target", "source", weights),
        AttentionMap("cross 1", "cross", "target", "source", heads_of(3, 7, 6, 62), layer=0),
        AttentionMap("alti", "alignment", "target", "source", rows_of(7, 6, 63), method="alti"),
        AttentionMap("leave-one-out", "alignment", "target", "source", effects, method="leave-one-out"),
    ]
    items = {"source": Tokens(PIECES, "Der große Hund schläft."), "target": Tokens(WRITTEN, "The big dog sleeps.")}
    scores = {"target": [-0.1, -0.7, -0.2, -0.3, -0.4, -0.05, -0.01]}
    alternatives = {"target": [[(token, 0.6), (f"{token}?", 0.25), (" <b>", 0.125)] for token in WRITTEN]}
    return AttentionRecord(items, maps, scores=scores, alternatives=alternatives, title="Explained")


def areas() -> AttentionRecord:
    extents = spans(5, 3)
    found = AttentionMap("area cross", "cross", "target", "source", areas=AreaMap(extents, rows_of(6, len(extents), 3)[None]))
    return AttentionRecord({"source": SOURCE, "target": TARGET}, [found], title="Areas of a sentence")


def boxes(rows: int, columns: int, tallest: int, widest: int) -> list[list[int]]:
    return [
        [top, left, height, width]
        for height in range(1, tallest + 1)
        for width in range(1, widest + 1)
        for top in range(rows - height + 1)
        for left in range(columns - width + 1)
    ]


CAPTION = ["a", "sun", "over", "the", "sea"]


def image_areas() -> AttentionRecord:
    extents = boxes(5, 7, 2, 3)
    found = AttentionMap("areas", "image", "caption", "image", areas=AreaMap(extents, rows_of(5, len(extents), 4, sharp=2.5)[None]))
    items = {"image": Grid(5, 7, picture(350, 250), (350, 250)), "caption": Tokens(CAPTION, "a sun over the sea")}
    return AttentionRecord(items, [found], title="Areas of an image")


def image() -> AttentionRecord:
    y, x = np.mgrid[0:5, 0:7]
    centers = [(1, 1), (2, 4.6), (3, 3), (4, 1), (4, 5)]
    weights = np.stack([np.exp(-((y - top) ** 2 + (x - left) ** 2) / 1.5).ravel() for top, left in centers])
    found = AttentionMap("caption over image", "image", "caption", "image", weights / weights.sum(-1, keepdims=True))
    items = {"image": Grid(5, 7, picture(350, 250), (350, 250)), "caption": Tokens(CAPTION, "a sun over the sea")}
    return AttentionRecord(items, [found], title="A caption")


def two_inputs(*, photograph: bool = True) -> AttentionRecord:
    """A sentence and an image, both attended to by one output."""
    text = alignment()
    over = AttentionMap("alignment, image", "image", "target", "image", rows_of(6, 35, 9))
    grid = Grid(5, 7, picture(350, 250), (350, 250)) if photograph else Grid(5, 7)
    return AttentionRecord({**text.items, "image": grid}, [*text.maps, over], title="A sentence and an image")


REVIEW = ["the", "plot", "is", "thin", ",", "but", "the", "actors", "are", "a", "joy", "to", "watch"]


def hops() -> AttentionRecord:
    items = {"text": Tokens(REVIEW, " ".join(REVIEW)), "hops": Tokens([f"hop {hop}" for hop in (1, 2, 3)])}
    found = AttentionMap("hops", "hops", "hops", "text", rows_of(3, len(REVIEW), 5))
    return AttentionRecord(
        items, [found], prediction=PredictionRecord("positive", {"negative": 0.125, "positive": 0.875}), title="A review"
    )


def both_ways() -> AttentionRecord:
    items = {"premise": ["a", "man", "plays", "guitar"], "hypothesis": ["someone", "makes", "music"]}
    maps = [
        AttentionMap("premise to hypothesis", "co-attention", "premise", "hypothesis", rows_of(4, 3, 6)),
        AttentionMap("hypothesis to premise", "co-attention", "hypothesis", "premise", rows_of(3, 4, 7)),
    ]
    prediction = PredictionRecord("entailment", {"entailment": 0.75, "neutral": 0.2, "contradiction": 0.05})
    return AttentionRecord(items, maps, prediction=prediction, title="Co-attention")


def beam() -> AttentionRecord:
    outputs = [
        ("The big dog sleeps . </s>", -0.83),
        ("The big dog is asleep . </s>", -1.21),
        ("The large dog sleeps . </s>", -1.54),
        ("A big dog sleeps . </s>", -2.07),
    ]
    hypotheses = []
    for place, (text, score) in enumerate(outputs):
        tokens = text.split()
        log_probs = np.linspace(-0.05, -0.4, len(tokens))
        weights = rows_of(len(tokens), 5, 10 + place)
        hypotheses.append(HypothesisRecord(tokens, score, text.removesuffix(" </s>"), log_probs.tolist(), weights=weights))
    first = hypotheses[0]
    found = AttentionMap("alignment", "alignment", "target", "source", first.weights)
    items = {"source": Tokens(SOURCE, "Der große Hund schläft."), "target": Tokens(first.tokens, first.text)}
    return AttentionRecord(items, [found], hypotheses=hypotheses, title="A search")


SCRIPTS = ["שלום", "عالم", "東京都", "한국어", "e\u0301", "👩\u200d👩\u200d👧", "🇫🇷", "ไทย", "\t", " "]


def scripts() -> AttentionRecord:
    return AttentionRecord.alignment(SCRIPTS, SCRIPTS[:7], rows_of(7, len(SCRIPTS), 8), texts=("שלום عالم", "東京都"), title="Scripts")


def large(rows: int = 2000, columns: int = 2000) -> AttentionRecord:
    y, x = np.mgrid[0:rows, 0:columns].astype(np.float32)
    weights = np.exp(-(((x * rows / columns) - y) ** 2) / 200) + 0.05 * np.exp(-(((x * rows / columns) - 0.5 * y) ** 2) / 50)
    weights /= weights.sum(-1, keepdims=True)
    source, target = [f"s{i}" for i in range(columns)], [f"t{i}" for i in range(rows)]
    return AttentionRecord.alignment(source, target, weights, title="Large")


def everything() -> list[AttentionRecord]:
    """One of each but `large`, in the order of `ORDER`."""
    return [
        *(alignment(), transformer(), transformer(2, 8, "small", 30), areas(), image_areas(), image()),
        *(hops(), both_ways(), beam(), scripts()),
    ]


ORDER = ("alignment", "transformer", "small", "areas", "image areas", "image", "hops", "both", "beam", "scripts")
