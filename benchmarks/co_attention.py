"""Non-local co-attention between the words of a sentence and the cells of a picture: its four forms beside other ways to join both.

    python benchmarks/co_attention.py

Trains readers of generated scenes with a sentence (`regard generate scene-sentences`), of which neither the picture nor the sentence alone
tells the two blanked words. All have the layers of a crossed co-attention network (Li et al. 2019), in which words attend to cells and
cells to words; they differ in the attention alone. A non-local operation has one head where multi-head attention has four, of the same
sizes of query, key, value and output. Writes co_attention.json after every run, with what each got right; runs that it holds from the same
machine and settings are not trained again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from harness import COMPARED, RESULTS, compare_runs, comparison_cells, machine, options, read, spread, write
from torch import Tensor, nn

from regard.attention import AttentionOutput, CrossedAttention, MultiHeadAttention, NonLocal
from regard.config.captioning import SmallCNNConfig
from regard.config.images import NonLocalForm
from regard.data.synthetic.scene_sentences import BLANK, SceneSentence, generate_scene_sentences
from regard.metrics.seeds import RunScore, run_score
from regard.models import CrossedEncoder, CrossedEncoderLayer, FeedForward
from regard.models.embedding import sinusoidal_positions
from regard.models.image_encoder import SmallCNN

DIM, HEADS, LAYERS, BATCH, RATE, WARM_UP = 64, 4, 2, 100, 0.002, 100
MEAN, CROSSED = "mean of the other input", "multi-head, 4 heads"
FORMS = {f"non-local {form.replace('_', ' ')}": form for form in get_args(NonLocalForm)}
VARIANTS = [MEAN, CROSSED, *FORMS]
COLUMNS = ["attention", "both words right, %", *COMPARED, "parameters", "seeds"]


class Mean(nn.Module):
    """No attention: every query gets the mean of the other input."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, key_mask: Tensor | None = None, **_: object) -> AttentionOutput:
        """Return the mean of the values that may be attended, for each query."""
        shown = torch.ones(key.shape[:2]) if key_mask is None else key_mask.to(value)
        mean = torch.einsum("bs,bsd->bd", shown, value) / shown.sum(1, keepdim=True)
        return AttentionOutput(mean.unsqueeze(1).expand(-1, query.shape[1], -1), None)


class Asked(nn.Module):
    """A non-local operation whose keys and values are the other input."""

    def __init__(self, form: NonLocalForm) -> None:
        super().__init__()
        self.block = NonLocal(DIM, DIM, form=form, residual=False, other_dim=DIM)  # the layer adds what it was asked for

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, key_mask: Tensor | None = None, **_: object) -> AttentionOutput:
        """Attend from the queries to the other input."""
        return self.block(query, key, key_mask=key_mask)


def attention(name: str) -> nn.Module:
    """Return one of two attentions of a layer."""
    return Mean() if name == MEAN else MultiHeadAttention(DIM, HEADS) if name == CROSSED else Asked(FORMS[name])


class Reader(nn.Module):
    """Reads a picture and a sentence, and answers with a word for each blank."""

    def __init__(self, name: str, words: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, DIM)
        self.image = SmallCNN(SmallCNNConfig(channels=[16, 32, DIM]), size)
        layers = [
            CrossedEncoderLayer(
                CrossedAttention(attention(name), attention(name)),
                FeedForward(DIM, 2 * DIM),
                FeedForward(DIM, 2 * DIM),
                pre=True,
                dropout=0.0,
                residual="asking",
            )
            for _ in range(LAYERS)
        ]
        self.encoder = CrossedEncoder(layers, (nn.LayerNorm(DIM), nn.LayerNorm(DIM)))
        self.output = nn.Linear(DIM, words)

    def forward(self, images: Tensor, words: Tensor, blanks: Tensor) -> Tensor:
        """Map images (B, 3, H, W), words (B, T), 0 is padding, and the places of blanks (B, 2) to scores (B, 2, V)."""
        placed = self.embedding(words) + sinusoidal_positions(torch.arange(words.shape[1]), DIM)
        _, sentence = self.encoder(self.image(images), placed, None, words > 0)
        return self.output(sentence.states[torch.arange(len(words))[:, None], blanks])


class Scenes(NamedTuple):
    """Scenes with a sentence as tensors: images (N, 3, H, W) in -1 to 1, words (N, T), places of the blanks (N, 2), answers (N, 2)."""

    images: Tensor
    words: Tensor
    blanks: Tensor
    answers: Tensor


def tensors(items: Sequence[SceneSentence], vocabulary: dict[str, int]) -> Scenes:
    """Return scenes as tensors; words that the vocabulary lacks are added to it."""
    rows = [[vocabulary.setdefault(word, len(vocabulary) + 1) for word in item.sentence.split()] for item in items]
    answers = [[vocabulary.setdefault(word, len(vocabulary) + 1) for word in item.answer.split()] for item in items]
    blank = vocabulary[BLANK]
    return Scenes(
        torch.from_numpy(np.stack([item.scene.image() for item in items])).permute(0, 3, 1, 2) / 127.5 - 1,
        nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True),
        torch.tensor([[place for place, word in enumerate(row) if word == blank] for row in rows]),
        torch.tensor(answers),
    )


def answered(name: str, seed: int, updates: int, train: Scenes, test: Scenes, words: int) -> tuple[list[int], int]:
    """Train a reader; return for each test scene whether both its words are right, and the number of parameters."""
    torch.manual_seed(seed)
    model = Reader(name, words, train.images.shape[-1])
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + float(np.cos(np.pi * step / updates)))
    )
    rows = torch.cat([torch.randperm(len(train.words)) for _ in range(-(-updates * BATCH // len(train.words)))])
    for step, batch in enumerate(rows.split(BATCH)[:updates], start=1):
        loss = nn.functional.cross_entropy(
            model(train.images[batch], train.words[batch], train.blanks[batch]).flatten(0, 1), train.answers[batch].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"{name} {seed}: {step} of {updates} updates, loss {loss.item():.3f}", flush=True)
    with torch.inference_mode():
        found = model.eval()(test.images, test.words, test.blanks).argmax(-1)
    return (found == test.answers).all(1).int().tolist(), sum(parameter.numel() for parameter in model.parameters())


def table(runs: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Return a row for each attention that was measured; differences are from multi-head attention."""
    scores: dict[str, list[RunScore]] = {}
    for run in runs:
        counts = np.array([[100.0 * int(right), 1.0] for right in run["right"]])
        scores.setdefault(run["attention"], []).append(run_score("mean", counts))
    compared = comparison_cells(
        {name: compare_runs(own, scores[CROSSED]) for name, own in scores.items() if name != CROSSED and CROSSED in scores}, 1
    )
    rows = []
    for name, own in scores.items():
        parameters = next(run["parameters"] for run in runs if run["attention"] == name)
        shown = spread([run.score for run in own], 1, "{} [{}, {}]")
        rows.append([name, shown, *compared.get(name, [None] * len(COMPARED)), f"{parameters:,}", len(own)])
    return rows


def main() -> None:
    """Train what is not there yet, and write the table after each run."""
    parser = options(__doc__, out=RESULTS / "co_attention.json", train=10_000, test=1000, updates=1500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    given = parser.parse_args()
    torch.set_num_threads(1)
    note = (
        f"`python benchmarks/co_attention.py`: {given.test:,} new scenes with a sentence, after {given.updates:,} updates with {BATCH} of "
        f"{given.train:,} scenes; median [min, max] over the seeds. Difference: of the means, from multi-head attention; p is corrected "
        f"for the comparisons of the table (Holm). {machine(1)}."
    )
    held = read(given.out)
    runs: list[dict[str, Any]] = held["runs"] if held.get("note") == note else []
    vocabulary: dict[str, int] = {}
    train = tensors(generate_scene_sentences(given.train, seed=1), vocabulary)
    test = tensors(generate_scene_sentences(given.test, seed=1, start=10_000_000), vocabulary)
    for seed in given.seeds:
        for name in VARIANTS:
            if any((run["attention"], run["seed"]) == (name, seed) for run in runs):
                continue
            right, parameters = answered(name, seed, given.updates, train, test, len(vocabulary) + 1)
            runs.append({"attention": name, "seed": seed, "parameters": parameters, "right": "".join(map(str, right))})
            write(given.out, COLUMNS, table(runs), note, runs=runs)


if __name__ == "__main__":
    main()
