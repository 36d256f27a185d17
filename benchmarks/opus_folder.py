"""A small Marian model in the layout of OPUS-MT, trained with Hugging Face's classes; used by opus.py.

What a published folder has and a plain `save_pretrained` of a new model has not: two SentencePiece models with one list of entries,
`</s>` first and `<pad>` last; `<pad>` as the decoder's first input, with an embedding of zeros and a logit of 0, because Marian has no such
entry; sines for positions; swish; scaled and shared embeddings; and the keys of config.json that newer versions no longer write.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import random
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

Pair = tuple[str, str]
SPM = {"character_coverage": 1.0, "hard_vocab_limit": False, "model_type": "unigram", "minloglevel": 2, "num_threads": 1}


def write_tokenizer(folder: Path, pairs: Sequence[Pair], size: int, codes: Sequence[str] = ()) -> int:
    """Write source.spm, target.spm, vocab.json and tokenizer_config.json; return the number of entries.

    The entries are the pieces that occur in the pairs, as Marian counts them, then the language codes.
    """
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    for name, lines in zip(("source", "target"), map(list, zip(*pairs, strict=True)), strict=True):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, vocab_size=size, **SPM)
        (folder / f"{name}.spm").write_bytes(out.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
        counts.update(piece for line in lines for piece in processor.encode(line, out_type=str))
    pieces = [piece for piece, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if piece not in ("</s>", "<unk>")]
    words = ["</s>", "<unk>", *pieces, *codes, "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}, indent=2), encoding="utf-8")
    languages = {"source_lang": "en", "target_lang": "de"}
    (folder / "tokenizer_config.json").write_text(json.dumps(languages) + "\n", encoding="utf-8")
    return len(words)


def published_config(size: int, *, dim: int, hidden: int, layers: int, heads: int, beam_size: int = 4) -> dict[str, Any]:
    """Return config.json with the keys that published OPUS-MT models have."""
    pad = size - 1
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in _sizes(hidden, layers, heads).items()}
    return {
        **{"architectures": ["MarianMTModel"], "model_type": "marian", "is_encoder_decoder": True, "transformers_version": "4.22.0.dev0"},
        **{"activation_function": "swish", "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0, "classifier_dropout": 0.0},
        **{"add_bias_logits": False, "add_final_layer_norm": False, "normalize_before": False, "normalize_embedding": False},
        **{"static_position_embeddings": True, "scale_embedding": True, "share_encoder_decoder_embeddings": True},
        **{"d_model": dim, "num_hidden_layers": layers, "init_std": 0.02, **sides},
        **{"vocab_size": size, "decoder_vocab_size": size, "pad_token_id": pad, "decoder_start_token_id": pad},
        **{"bos_token_id": 0, "eos_token_id": 0, "forced_eos_token_id": 0, "bad_words_ids": [[pad]]},
        **{"max_length": 512, "max_position_embeddings": 512, "num_beams": beam_size, "use_cache": True},
    }


def _sizes(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {"ffn_dim": hidden, "layers": layers, "attention_heads": heads, "layerdrop": 0.0}


def new_model(config: dict[str, Any], *, dropout: float = 0.1) -> Any:
    """Return a Marian model of Hugging Face with random weights, its `<pad>` of zeros."""
    from transformers import MarianConfig, MarianMTModel

    kept = {name: value for name, value in config.items() if name not in ("architectures", "model_type", "transformers_version")}
    # Settings of decoding are not taken from here: newer versions refuse them.
    generation = ("bad_words_ids", "max_length", "num_beams", "forced_eos_token_id")
    settings = {name: value for name, value in kept.items() if name not in generation}
    return MarianMTModel(MarianConfig(**{**settings, "dropout": dropout, "forced_eos_token_id": 0}))


def write_model(folder: Path, model: Any, config: dict[str, Any]) -> None:
    """Write weights, config.json and generation_config.json as they are published."""
    from safetensors.torch import save_file

    # A file without the tied copies, as `save_pretrained` makes it.
    tied = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    state = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    names = ("bad_words_ids", "bos_token_id", "decoder_start_token_id", "eos_token_id", "forced_eos_token_id", "max_length", "num_beams")
    settings = {name: config[name] for name in (*names, "pad_token_id", "transformers_version")} | {"renormalize_logits": True}
    (folder / "generation_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def entries(folder: Path) -> int:
    """Return the number of entries of a folder."""
    return len(json.loads((folder / "vocab.json").read_text(encoding="utf-8")))


def weights(folder: Path) -> int:
    """Return the number of weights of a folder."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - it is no mapping


def tokenizer_of(folder: Path) -> Any:
    """Return Hugging Face's tokenizer of a folder."""
    from transformers import MarianTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends a package for a normalization that it does not call
        return MarianTokenizer.from_pretrained(folder)


class Generated(NamedTuple):
    """A translation of Hugging Face.

    Attributes:
        ids: the tokens without the start, the end and padding.
        score: the sum of their log-probabilities, the end included, nats.
        text: the tokens as text.
    """

    ids: list[int]
    score: float
    text: str


def generate(folder: Path, lines: Sequence[str], *, beam_size: int, length_penalty: float = 0.0) -> list[Generated]:
    """Translate with Hugging Face's `generate` and the folder's settings, but for these two and the greatest length, which is Regard's."""
    from transformers import MarianMTModel

    model, tokenizer = MarianMTModel.from_pretrained(folder).eval(), tokenizer_of(folder)
    settings = model.generation_config
    settings.update(num_beams=beam_size, do_sample=False, max_length=None, forced_eos_token_id=None)
    settings.update(return_dict_in_generate=True, output_scores=True, **({"length_penalty": length_penalty} if beam_size > 1 else {}))
    rows, found = tokenizer(list(lines)).input_ids, dict[int, Generated]()
    # Lines of one length, which share the greatest length and need no padding.
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    for size, group in itertools.groupby(order, key=lambda number: len(rows[number])):
        numbers = list(group)
        settings.max_new_tokens = min(2 * (size - 1) + 30, 200)  # the default of decoding.max_length
        with torch.inference_mode():
            out = model.generate(torch.tensor([rows[number] for number in numbers]), generation_config=settings)
        for number, item in zip(numbers, _generated(model, tokenizer, out, beam_size), strict=True):
            found[number] = item
    return [found[number] for number in range(len(rows))]


def _generated(model: Any, tokenizer: Any, out: Any, beam_size: int) -> Iterator[Generated]:
    pad = model.config.pad_token_id
    if beam_size > 1:
        scores = out.sequences_scores
    else:
        steps = model.compute_transition_scores(out.sequences, out.scores)
        scores = steps.masked_fill(out.sequences[:, 1:] == pad, 0.0).sum(1)
    for ids, score in zip(out.sequences.tolist(), scores.tolist(), strict=True):
        kept = [number for number in ids if number not in (0, pad)]
        yield Generated(kept, score, tokenizer.decode(kept, use_source_tokenizer=False))


def encode(folder: Path, pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
    """Return the ids of sources and targets, each with the end."""
    tokenizer = tokenizer_of(folder)
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    return list(zip(tokenizer(sources).input_ids, tokenizer(text_target=targets).input_ids, strict=True))


def padded(rows: Iterable[Sequence[int]], pad: int) -> Tensor:
    """Return rows of one length."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad)


def batches(rows: list[tuple[list[int], list[int]]], tokens: int, chance: random.Random) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Yield the rows of an epoch in batches of rows of similar length, each of at most `tokens` target tokens."""
    order = sorted(rows, key=lambda row: len(row[1]) + chance.random())
    groups: list[list[tuple[list[int], list[int]]]] = [[]]
    for row in order:
        if (len(groups[-1]) + 1) * max(len(row[1]), *(len(each[1]) for each in groups[-1]), 1) > tokens and groups[-1]:
            groups.append([])
        groups[-1].append(row)
    chance.shuffle(groups)
    yield from groups


def loss_of(model: Any, rows: list[tuple[list[int], list[int]]], pad: int) -> Tensor:
    """Return the cross-entropy with label smoothing over all entries but `<pad>`, which Marian does not have."""
    source, target = padded((row[0] for row in rows), pad), padded((row[1] for row in rows), pad)
    start = torch.full((len(rows), 1), pad)
    inputs = torch.cat([start, target[:, :-1]], 1)
    logits = model(input_ids=source, attention_mask=(source != pad).long(), decoder_input_ids=inputs).logits[..., :pad]
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=pad, label_smoothing=0.1)


def train(model: Any, rows: list[tuple[list[int], list[int]]], *, epochs: int, tokens: int, rate: float, warm_up: int) -> None:
    """Train the model: Adam, a linear warm-up and a cosine to zero."""
    pad, chance = model.config.pad_token_id, random.Random(1)
    updates = epochs * sum(1 for _ in batches(rows, tokens, random.Random(1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98), eps=1e-9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * min(step / updates, 1.0)))
    )
    started = time.perf_counter()
    model.train()
    for epoch in range(1, epochs + 1):
        losses = []
        for batch in batches(rows, tokens, chance):
            optimizer.zero_grad()
            loss = loss_of(model, batch, pad)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}, {time.perf_counter() - started:.0f} s", flush=True)
    model.eval()
