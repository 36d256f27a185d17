"""Draw what each mechanism of `regard list` attends to, on one example, into docs/pictures/NAME.svg.

    python benchmarks/mechanism_pictures.py                 write them all
    python benchmarks/mechanism_pictures.py --out FOLDER    write them there

The example is a sentence of 9 words and its translation of 7 with known links, or a dog, a sofa and a wall on a grid of 5 x 5. Nothing is
trained: vectors and weights are set by hand, so that a mechanism finds the links as far as its equation lets it. Nothing is random but the
draw of hard attention. The files are plain SVG written here, a few kilobytes each: the viewer's own pictures are drawn by matplotlib, five
times as large and different with each of its versions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from heat_map import Panel, Picture, draw
from torch import Tensor

from regard import ops
from regard.attention import (
    AdditiveScore,
    Areas,
    Attention,
    AttentionOutput,
    ConcatScore,
    CosineScore,
    CrossedAttention,
    DotScore,
    GeneralScore,
    HardChoice,
    KeyValueAttention,
    LocationScore,
    MonotonicWindow,
    MultiHeadAttention,
    NonLocal,
    PredictiveWindow,
    StructuredAttention,
)
from regard.attention.base import NeedWeights
from regard.mechanisms import MECHANISMS
from regard.ops.nonlocal_attention import NonLocalForm
from regard.ops.sparsemax import Normalizer

ROOT = Path(__file__).resolve().parents[1]

SOURCE = ["we", "have", "seen", "the", "small", "dog", "in", "the", "garden"]
TARGET = ["im", "Garten", "sahen", "wir", "den", "kleinen", "Hund"]
LINKS = ((6, 7), (8,), (1, 2), (0,), (3,), (4,), (5,))
SIZE = len(SOURCE)
ONE = torch.eye(SIZE)


def _states() -> Tensor:
    # (1, 9, 9): a feature for each word, a little of its neighbours, and the two "the" are alike.
    states = ONE + 0.25 * (ONE.roll(1, 1).triu() + ONE.roll(-1, 1).tril())
    states[3, 7] = states[7, 3] = 0.35
    return states.unsqueeze(0)


def _queries() -> Tensor:
    # (1, 7, 9): each asks for the words it translates, with noise that no random generator has to repeat.
    wanted = torch.stack([ONE[list(link)].mean(0) for link in LINKS])
    steps = torch.arange(wanted.numel(), dtype=torch.float64).view_as(wanted)
    return (4.0 * wanted + 0.6 * (12.9898 * steps).sin().abs().float()).unsqueeze(0)


KEY = _states()
QUERY = _queries()
STATES = 2.2 * KEY  # for mechanisms that compare the source with itself
BEFORE = ONE.roll(1, 0).tril()  # gives a key the feature of the word after it, so that a query finds the word before its own


def matrix(output: NamedTuple) -> Tensor:
    """Return the first sentence's weights of whatever an attention returned."""
    weights = output.weights  # type: ignore[attr-defined]
    assert weights is not None
    return weights[0].detach()


def aligned(weights: Tensor, heading: str = "") -> Panel:
    return Panel(heading, TARGET, SOURCE, weights)


def over_source(weights: Tensor, heading: str = "") -> Panel:
    return Panel(heading, SOURCE, SOURCE, weights)


def look(attention: Attention, *, mask: Tensor | None = None, position: int | Tensor = 0, need_weights: NeedWeights = True) -> Tensor:
    return matrix(attention(QUERY, KEY, KEY, mask=mask, position=position, need_weights=need_weights))


def additive(query: Tensor = QUERY) -> Tensor:
    # tanh(q) + tanh(k) - tanh(q + k) is large where both are: a match, made of three hidden units a feature.
    score = AdditiveScore(SIZE, SIZE, 3 * SIZE)
    zero = torch.zeros_like(ONE)
    score.query.weight.data = 0.5 * torch.cat([ONE, ONE, zero])
    score.key.weight.data = 0.5 * torch.cat([ONE, zero, ONE])
    score.key.bias.data.zero_()
    score.vector.data = 9.0 * torch.cat([-torch.ones(SIZE), torch.ones(2 * SIZE)])
    return matrix(Attention(score)(query, KEY, KEY, need_weights=True))


def concat() -> Tensor:
    score = ConcatScore(SIZE, SIZE, 3 * SIZE)
    zero = torch.zeros_like(ONE)
    score.weight.data = 0.5 * torch.cat([torch.cat([ONE, ONE, zero]), torch.cat([ONE, zero, ONE])], 1)
    score.vector.data = 9.0 * torch.cat([-torch.ones(SIZE), torch.ones(2 * SIZE)])
    return look(Attention(score))


def general() -> Tensor:
    score = GeneralScore(SIZE, SIZE)
    score.key.weight.data = BEFORE.clone()
    return look(Attention(score))


def location() -> Tensor:
    score = LocationScore(SIZE, SIZE - 2)
    score.query.weight.data = ONE[: SIZE - 2]
    return look(Attention(score))


def predictive() -> Tensor:
    # v . tanh(W q) is the logit of the wanted place, if q asks for one word only.
    window = PredictiveWindow(SIZE, 2)
    window.hidden.weight.data = ONE.clone()
    window.position.weight.data = torch.logit((torch.arange(SIZE) + 0.5) / SIZE).unsqueeze(0)
    return look(Attention(DotScore(scaled=True), window=window))


def hard() -> Picture:
    soft = look(Attention(DotScore(scaled=True)))
    chosen = HardChoice("sample").eval()(soft.unsqueeze(0), torch.Generator().manual_seed(5)).weights[0]
    panels = [aligned(soft, "the distribution"), aligned(chosen, "one position sampled per row")]
    return Picture("seven rows of weights, and the one source word sampled from each", panels)


def normalizers(name: str) -> Picture:
    which: Normalizer = "sparsemax" if name == "sparsemax" else "entmax15"
    panels = [aligned(look(Attention(DotScore(scaled=True))), "softmax")]
    panels.append(aligned(look(Attention(DotScore(scaled=True), normalizer=which)), which))
    return Picture("seven target words over nine source words, with a softmax, and with many weights of exactly zero", panels)


def coverage() -> Picture:
    # The same query at every step: without coverage the same weights, with it each step moves on.
    score = AdditiveScore(SIZE, SIZE, SIZE, coverage=True)
    assert score.coverage is not None
    score.query.weight.data.zero_()
    score.key.weight.data = ONE.clone()
    score.key.bias.data.zero_()
    score.vector.data = torch.full((SIZE,), 3.0)
    score.coverage.data.fill_(-1.0)
    attention = Attention(score)
    memory, total, rows = attention.memory(KEY), torch.zeros(1, SIZE), []
    for step in QUERY.split(1, 1):
        covered = memory._replace(key=score.covered(memory.key, total))
        rows.append(matrix(attention.attend(step, covered, need_weights=True)))
        total = total + rows[-1]
    plain = look(attention)
    panels = [aligned(plain, "without coverage"), aligned(torch.cat(rows), "with coverage")]
    return Picture("seven steps that ask for the same: with coverage each turns to words attended less so far", panels)


def pointer() -> Picture:
    weights = look(Attention(DotScore(scaled=True), normalizer="entmax15")).unsqueeze(0)
    gate = torch.tensor([[-4.0, -4.0, 4.0, 4.0, 4.0, -4.0, 4.0]])
    places = ops.copy_places(torch.arange(SIZE).unsqueeze(0), 0)
    mixed = ops.copy_log_probs(torch.zeros(1, len(TARGET), 1), gate, weights, places + 1).exp()[0]
    what = "seven steps, each with the probability of generating (first column) and of copying each of nine source words"
    return Picture(what, [Panel("", TARGET, ["generate", *SOURCE], mixed)])


def masks(name: str) -> Picture:
    allowed: dict[str, Tensor]
    if name == "causal mask":
        allowed, what = {"mask": ops.causal_mask(SIZE, SIZE)[None]}, "each word attends to itself and the words before it"
    elif name == "length mask":
        allowed, what = (
            {"key_mask": ops.length_mask(torch.tensor([6]), SIZE)},
            "all attend to the first six words only, the rest is padding",
        )
    else:
        blocks = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2, 2]])
        allowed, what = {"mask": ops.block_mask(blocks, blocks)}, "words attend to words of their own block, three blocks of three"
    weights = matrix(Attention(DotScore(scaled=True))(STATES, STATES, STATES, **allowed, need_weights=True))
    return Picture(f"nine source words over themselves: {what}", [over_source(weights)])


def orders(name: str) -> Picture:
    # States that a decoder could have: before word t is read, the state still holds what word t - 1 asked for.
    attention = Attention(DotScore(scaled=True))
    before = torch.cat([torch.zeros_like(QUERY[:, :1]), QUERY[:, :-1]], 1)
    if name == "attend before the cell":
        weights, what = matrix(attention(before, KEY, KEY, need_weights=True)), "with the previous state: one step behind, until trained"
    elif name == "attend after the cell":
        weights, what = look(attention), "with its own state"
    else:
        feed, rows = torch.zeros_like(QUERY[:, :1]), []
        for step in QUERY.split(1, 1):
            output = attention(step + 0.6 * feed, KEY, KEY, need_weights=True)
            rows.append(matrix(output))
            feed = torch.tanh(output.context + step)  # h~
        weights, what = (
            torch.cat(rows),
            "with its own state and the last attentional state: a little weight stays where the last word attended",
        )
    return Picture(f"seven target words over nine source words, each attending {what}", [aligned(weights)])


def none() -> Picture:
    weights = torch.zeros(len(TARGET), SIZE)
    weights[:, [0, -1]] = 0.5
    what = "origin of the fixed context, instead of weights: the states at the two ends, the same for all seven target words"
    return Picture(what, [aligned(weights)])


def heads(areas: Areas | None = None) -> tuple[MultiHeadAttention, Tensor]:
    # Two heads: the first asks for the words meant, the second for the words before them.
    attention = MultiHeadAttention(SIZE, 2, head_dim=SIZE, bias=False, areas=areas)
    attention.query.weight.data = torch.cat([ONE, ONE])
    attention.key.weight.data = torch.cat([ONE, BEFORE])
    attention.value.weight.data = torch.cat([ONE, ONE])
    return attention, matrix(attention(QUERY, KEY, KEY, need_weights=True))


def multihead(areas: Areas | None = None) -> Picture:
    weights = heads(areas)[1]
    kind = "areas of up to two words" if areas else "one word"
    panels = [aligned(weights[0], "head 1"), aligned(weights[1], "head 2")]
    return Picture(f"two heads over {kind}: the first finds the words meant, the second the words before them", panels)


def self_attention() -> Picture:
    attention, _ = heads()
    weights = matrix(attention(STATES, STATES, STATES, need_weights=True))
    what = "nine source words over themselves in two heads: the first finds the word itself and similar words, the second the word before"
    return Picture(what, [over_source(weights[0], "head 1"), over_source(weights[1], "head 2")])


def structured() -> Picture:
    attention = StructuredAttention(SIZE, SIZE, 3)
    attention.first.weight.data = ONE.clone()
    kinds = torch.tensor([[0, 0, 0, 0, 0, 1, 0, 0, 1], [0, 1, 1, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0.6, 1, 0, 0.9, 0.6, 0]])
    attention.second.weight.data = 6.0 * kinds
    weights = matrix(attention(KEY, need_weights=True))
    what = "three hops over nine words: the first on nouns, the second on verbs, the third on the rest"
    return Picture(what, [Panel("", ["hop 1", "hop 2", "hop 3"], SOURCE, weights)])


def key_value(parts: int) -> Picture:
    attention = KeyValueAttention(parts * SIZE, window=4, parts=parts)
    likes = torch.tensor([0.2, 0.2, 0.8, 0.1, 0.6, 1.0, 0.1, 0.1, 1.0])
    attention.key.weight.data = torch.diag(2.0 * likes)
    attention.query.weight.data = 0.5 * ONE
    attention.vector.data.fill_(3.0)
    weights = matrix(attention(KEY.repeat(1, 1, parts), need_weights=True))
    what = "nine source words over the four words before each: the first attends to nothing, nouns and verbs get the most weight"
    return Picture(what, [over_source(weights)])


def ngram() -> Picture:
    parts = 3
    states = torch.eye(SIZE).repeat(1, parts).unsqueeze(0)  # the part of a state says whose it is
    taken = ops.ngram_parts(states, torch.zeros(1, parts - 1, parts * SIZE)).view(SIZE, parts, SIZE)
    what = "nine source words: each output takes a part of the word itself, of the one before and of the one before that, at fixed weights"
    return Picture(what, [over_source(taken.sum(1) / parts)])


def area_names(longest: int) -> list[str]:
    return [" ".join(SOURCE[start : start + length]) for start, length in ops.area_spans(SIZE, longest).tolist()]


def areas(settings: Areas, what: str) -> Picture:
    attention = Attention(DotScore(scaled=True), areas=settings)
    weights, names = look(attention, need_weights="areas"), area_names(2)
    panels = [aligned(look(attention), "words"), Panel("areas of one and two words", TARGET, names, weights)]
    return Picture(f"seven target words over nine source words, and over the 17 areas of one or two of them: {what}", panels)


def area_features() -> Picture:
    settings = Areas(2, key_mode="features", dim=SIZE)
    assert settings.learned
    # mu less a third of sigma, and a little for the larger width: an area of words that are alike beats one of strangers.
    settings.hidden.weight.data = torch.cat([ONE, -0.3 * ONE, ONE], 1)
    settings.output.weight.data = ONE.clone()
    settings.width.data = torch.tensor([0.0, 0.1]).unsqueeze(1).expand(2, SIZE - SIZE // 2).clone()
    settings.height.data.zero_()
    return areas(settings, "their keys computed from mean, deviation and width")


def grid() -> Picture:
    things = {"dog": (slice(1, 3), slice(0, 2)), "sofa": (slice(3, 4), slice(2, 5)), "wall": (slice(0, 1), slice(0, 5))}
    image = torch.full((5, 5, len(things)), 0.15)
    for number, place in enumerate(things.values()):
        image[..., number][place] = 1.0
    image, words = image.view(1, 25, -1), 9.0 * torch.eye(len(things)).unsqueeze(0)
    names = ["1", "2", "3", "4", "5"]
    panels = []
    for heading, largest in (("single cells", (1, 1)), ("areas of up to 2 x 3", (2, 3))):
        attention = Attention(DotScore(), areas=Areas(largest, (5, 5)))
        weights = matrix(attention(words, image, image, need_weights=True)).view(-1, 5, 5)
        weights = weights / weights.sum((1, 2), keepdim=True)
        panels += [Panel(f"{word}: {heading}", names, names, part) for word, part in zip(things, weights, strict=True)]
    what = "three words over an image of 5 x 5 cells, by single cells and by rectangles: shares of each word's weight"
    return Picture(f"{what}; with rectangles the middle of an object gains, because more rectangles contain it", panels)


def crossed() -> Picture:
    pair = CrossedAttention(Attention(DotScore(scaled=True)), Attention(DotScore(scaled=True)))
    left, right = pair(KEY, QUERY, need_weights=True)
    panels = [aligned(matrix(left), "left: target to source"), Panel("right: source to target", SOURCE, TARGET, matrix(right))]
    return Picture("both directions: seven target words over nine source words, and nine source words over seven target words", panels)


def nonlocal_weights(form: NonLocalForm, *, other: bool = False) -> Tensor:
    block = NonLocal(SIZE, SIZE, form=form)
    if block.query is not None and block.key is not None:
        block.query.weight.data, block.key.weight.data = ONE.clone(), ONE.clone()
    if block.vector is not None:  # what asks and what is asked for can only be added up
        block.vector.data = torch.cat([torch.linspace(0.0, 1.0, SIZE), torch.linspace(1.0, -1.0, SIZE)])
    found: AttentionOutput = block(QUERY, KEY, need_weights=True) if other else block(STATES, need_weights=True)
    return matrix(found)


def scores(name: str) -> Tensor:
    match name:
        case "additive score":
            return additive()
        case "concat score":
            return concat()
        case "general score":
            return general()
        case "location score":
            return location()
        case "cosine score":
            return look(Attention(CosineScore(4.0)))
        case "dot score" | "scaled dot score" | "whole source":
            return look(Attention(DotScore(scaled=name != "dot score")))
        case _:
            raise ValueError(f"{name}: no picture")


def _score(name: str, what: str) -> Callable[[], Picture]:
    return lambda: Picture(f"seven target words over nine source words: {what}", [aligned(scores(name))])


def _nonlocal(form: NonLocalForm, what: str) -> Callable[[], Picture]:
    return lambda: Picture(f"nine source words over themselves: {what}", [over_source(nonlocal_weights(form))])


def _generic() -> Picture:
    return Picture(
        "one context, the mean of all target words, over nine source words", [Panel("", ["c"], SOURCE, additive(QUERY.mean(1, True)))]
    )


def _windows() -> Picture:
    places = torch.arange(len(TARGET))
    weights = look(Attention(DotScore(scaled=True), window=MonotonicWindow(2)), position=places)
    return Picture("seven target words, each over the five source words around its own position", [aligned(weights)])


DRAWN: dict[str, Callable[[], Picture]] = {
    "additive score": _score("additive score", "most weight on the words meant"),
    "concat score": _score("concat score", "the same as the additive score with the same weights"),
    "dot score": _score("dot score", "sharp, because the scores are not scaled"),
    "scaled dot score": _score("scaled dot score", "the dot score divided by the root of the size, so softer"),
    "general score": _score("general score", "with this W, most weight on the words before those meant"),
    "location score": _score("location score", "from the query alone; no weight on the last two words, past the max position"),
    "cosine score": _score("cosine score", "independent of the lengths of the vectors"),
    "generic attention": _generic,
    "whole source": _score("whole source", "every row sums to one"),
    "hard attention": hard,
    "monotonic window": _windows,
    "predictive window": lambda: Picture(
        "seven target words over windows of five words around a predicted position", [aligned(predictive())]
    ),
    "sparsemax": lambda: normalizers("sparsemax"),
    "entmax": lambda: normalizers("entmax"),
    "length mask": lambda: masks("length mask"),
    "causal mask": lambda: masks("causal mask"),
    "block mask": lambda: masks("block mask"),
    "attend before the cell": lambda: orders("attend before the cell"),
    "attend after the cell": lambda: orders("attend after the cell"),
    "input feeding": lambda: orders("input feeding"),
    "no attention": none,
    "coverage": coverage,
    "pointer-generator": pointer,
    "multi-head attention": multihead,
    "self-attention": self_attention,
    "structured self-attention": structured,
    "key-value attention": lambda: key_value(2),
    "key-value-predict attention": lambda: key_value(3),
    "n-gram recurrent network": ngram,
    "area attention": lambda: areas(Areas(2), "two adjacent words can be attended as one"),
    "area attention on a grid": grid,
    "multi-head area attention": lambda: multihead(Areas(2)),
    "area features": area_features,
    "other area keys": lambda: areas(Areas(2, key_mode="max"), "their keys the max over the features of their words"),
    "other area values": lambda: areas(Areas(2, value_mode="mean"), "their values means, so that the weights of the words sum to one"),
    "best areas": lambda: areas(Areas(2, top_k=3, temperature=0.5), "only the three best areas of each row, at half the temperature"),
    "crossed co-attention": crossed,
    "non-local co-attention": lambda: Picture(
        "seven target words over nine source words, by the embedded Gaussian", [aligned(nonlocal_weights("embedded_gaussian", other=True))]
    ),
    "non-local gaussian": _nonlocal("gaussian", "a softmax of products of the states as they are"),
    "non-local embedded gaussian": _nonlocal("embedded_gaussian", "the same where both embeddings are the identity"),
    "non-local dot": _nonlocal("dot", "products divided by their number, rows do not sum to one"),
    "non-local concat": _nonlocal("concat", "one part of the query plus one of the key, cut off at zero"),
}


def write(folder: Path) -> list[Path]:
    """Write every picture into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for row in MECHANISMS:
        path = folder / f"{row.slug}.svg"
        with torch.random.fork_rng():  # modules are drawn at random before their weights are set
            path.write_text(draw(row.name, DRAWN[row.name]()), encoding="utf-8")
        paths.append(path)
    return paths


def main() -> None:
    """Write the pictures; the folder keeps no others."""
    parser = argparse.ArgumentParser(description="Draw what each mechanism attends to on one example.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    folder = parser.parse_args().out
    written = write(folder)
    for path in sorted(set(folder.glob("*.svg")) - set(written)):
        path.unlink()
    print(f"{len(written)} pictures in {folder}, {sum(path.stat().st_size for path in written)} bytes")


if __name__ == "__main__":
    main()
