"""Hugging Face's Marian model in a plain training loop, for `transformer_peers.py`; and Regard's weights as such a model.

    python benchmarks/marian_loop.py DATA --updates 20 --warmup 3 [--bf16] [--evaluate]

It runs in Regard's environment, which has transformers, too. It takes Regard's batches (length buckets of 4,096 padded tokens) and starts
from the weights that Regard starts from with this seed; model, loss, optimizer and loop are those of transformers and torch. The last line
it prints is JSON: counted target tokens, seconds, and the validation loss if asked for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from regard.config import TransformerConfig
from regard.data import SequenceBatch, Vocabulary, read_pairs
from regard.data.vocabulary import BOS, EOS, PAD
from regard.integrations.migrate import NAMINGS
from regard.models import Transformer, build
from regard.tasks.translation_run import Vocabularies
from regard.tasks.translation_training import Corpus, encode_corpus

POSITIONS = 512


def marian_config(config: TransformerConfig, size: int) -> MarianConfig:
    """Return the same sizes as transformers' configuration; refuse what its model cannot be."""
    if config.norm != "post" or config.positions != "paper" or config.area or config.output_bias or not config.tie_embeddings:
        raise SystemExit("Marian needs post-norm, positions of the paper, tied embeddings, no areas and no bias of the output")
    sizes: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": getattr(config, f"{side}_layers"), f"{side}_ffn_dim": config.ff_dim}
        sizes |= {f"{side}_attention_heads": config.num_heads}
    special = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS, "forced_eos_token_id": None}
    return MarianConfig(
        vocab_size=size,
        d_model=config.embed_dim,
        max_position_embeddings=POSITIONS,
        activation_function={"swish": "swish", "relu": "relu", "gelu": "gelu"}[config.activation],
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        scale_embedding=True,
        share_encoder_decoder_embeddings=config.share_embeddings,
        tie_word_embeddings=True,
        **sizes,
        **special,
    )


def to_marian(model: Transformer, config: TransformerConfig) -> MarianMTModel:
    """Return the same function as a model of transformers, in training mode.

    Marian puts all sines of a position before all cosines, we put them in turn: the E numbers of a state change places in all weights.
    """
    weights: Mapping[str, Tensor] = model.state_dict()
    size, dim = weights["target_embedding.weight"].shape
    places = torch.arange(dim).view(2, dim // 2).t().flatten().argsort()

    def moved(name: str) -> Tensor:
        if name.rpartition(".")[0].endswith(("norm", ".output")):  # makes a state
            return weights[name][places]
        return weights[name][:, places] if name.endswith(".weight") else weights[name]

    naming = NAMINGS["marian"]
    state: dict[str, Tensor] = dict.fromkeys(
        ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
        moved("target_embedding.weight"),
    )
    parts = (("encoder", config.encoder_layers, naming.encoder_layer), ("decoder", config.decoder_layers, naming.decoder_layer))
    for side, layers, names in parts:
        for number, (ours, theirs), end in itertools.product(range(layers), names.items(), ("weight", "bias")):
            state[f"model.{side}.layers.{number}.{theirs}.{end}"] = moved(f"{side}.layers.{number}.{ours}.{end}")
    marian = MarianMTModel(marian_config(config, size))
    missing, unexpected = marian.load_state_dict(state, strict=False)
    # Positions are computed, and the bias is all zeros.
    if unexpected or any(not name.endswith(("embed_positions.weight", "final_logits_bias")) for name in missing):
        raise SystemExit(f"Marian's weights have other names: missing {missing}, unexpected {unexpected}")
    return marian


def logits_of(marian: MarianMTModel, batch: SequenceBatch) -> Tensor:
    """Run Marian over given targets: (B, T, V)."""
    mask = (batch.source != PAD).long()
    return marian(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.target_input, use_cache=False).logits


def batches(corpus: Corpus, batch_tokens: int, seed: int) -> Iterator[tuple[SequenceBatch, int]]:
    """Yield Regard's batches in its order, epoch after epoch, each with its target tokens."""
    for epoch in itertools.count():
        for planned in corpus.plan(batch_tokens=batch_tokens, seed=seed, epoch=epoch):
            yield corpus.batch(planned), planned.tokens


def train(model: MarianMTModel, corpus: Corpus, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train; return the counted target tokens and their seconds."""
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.learning_rate, fused=True)
    model.train()
    start, counted = time.perf_counter(), 0
    stream = batches(corpus, arguments.batch_tokens, arguments.seed)
    for step, (batch, tokens) in enumerate(itertools.islice(stream, arguments.warmup + arguments.updates), start=1):
        ramp = arguments.schedule_warmup
        optimizer.param_groups[0]["lr"] = arguments.learning_rate * (step / ramp if step < ramp else math.sqrt(max(ramp, 1) / step))
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            logits = logits_of(model, batch)
        flat = logits.flatten(0, 1).float()
        loss = F.cross_entropy(flat, batch.target_output.flatten(), ignore_index=PAD, label_smoothing=arguments.label_smoothing)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), arguments.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step <= arguments.warmup:
            start = time.perf_counter()
        else:
            counted += tokens
    return {"tokens": counted, "seconds": time.perf_counter() - start, "updates": arguments.updates}


@torch.no_grad()
def evaluate(model: MarianMTModel, corpus: Corpus, batch_tokens: int) -> dict[str, Any]:
    """Return nats per target token, end of sentence counted and padding not, not smoothed; and the tokens."""
    model.eval()
    nll, tokens = 0.0, 0
    for planned in corpus.plan(batch_tokens=batch_tokens, seed=0, epoch=0):
        batch = corpus.batch(planned)
        logits = logits_of(model, batch).flatten(0, 1)
        nll += F.cross_entropy(logits, batch.target_output.flatten(), ignore_index=PAD, reduction="sum").item()
        tokens += planned.tokens
    return {"loss": nll / tokens, "loss_tokens": tokens}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path, help="folder with train.en, train.de, dev.en, dev.de")
    parser.add_argument("--model", type=json.loads, default={}, help="JSON of Regard's `model` settings")
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--warmup", type=int, default=0, help="updates before those, not counted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--schedule-warmup", type=int, default=200, help="updates of linear warm-up before the inverse square root")
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--bf16", action="store_true", help="under bf16 autocast")
    parser.add_argument("--evaluate", action="store_true", help="measure the validation loss at the end")
    return parser.parse_args()


def main() -> None:
    """Train and print what was measured."""
    arguments = parse()
    pairs = read_pairs(arguments.data / "train.en", arguments.data / "train.de")
    vocabulary = Vocabulary.train((text for pair in pairs for text in pair), kind="word", size=8000)
    both = Vocabularies(vocabulary, vocabulary)
    corpus = encode_corpus(pairs, both, max_length=1000, name="training data")
    torch.manual_seed(arguments.seed)
    config = TransformerConfig.model_validate(arguments.model)
    model = to_marian(build(config, source_size=len(vocabulary), target_size=len(vocabulary)), config)
    result = train(model, corpus, arguments)
    if arguments.evaluate:
        held = encode_corpus(
            read_pairs(arguments.data / "dev.en", arguments.data / "dev.de"), both, max_length=1000, name="validation data"
        )
        result |= evaluate(model, held, arguments.batch_tokens)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
