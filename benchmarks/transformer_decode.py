"""Decode a file with CTranslate2, onnxruntime, `generate` of Hugging Face, or with Regard itself, on the weights of a Regard run.

For `transformer_peers.py`:

    python benchmarks/transformer_decode.py ctranslate2 RUN SOURCE OUTPUT --export FOLDER --beam-size 5 --workers 1 --threads 2
    python benchmarks/transformer_decode.py onnx RUN SOURCE OUTPUT --export FOLDER --beam-size 5
    python benchmarks/transformer_decode.py marian RUN SOURCE OUTPUT --beam-size 5
    python benchmarks/transformer_decode.py regard RUN SOURCE OUTPUT --beam-size 5

FOLDER is what `regard export RUN --format ctranslate2 --out FOLDER` wrote, or with `onnx`. The clock starts after one sentence of warm-up
and runs from lists of tokens to lists of tokens, with Regard from text to text: no start, no loading. What takes less than two seconds is
done again; the time is the mean. Hypotheses are chosen by their sum of
log-probabilities, as by Regard with `--length-penalty 0`, and the search ends when as many have ended as the beam is wide. The last line
printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from regard.config import TransformerConfig, TranslationConfig
from regard.data import BOS, EOS, PAD, collate, read_lines
from regard.decoding import DecodingOptions, beam_search, greedy_search
from regard.models import Transformer
from regard.tasks.batch_threads import cut_batches, map_batches
from regard.tasks.run_folder import read_config
from regard.tasks.translation_prediction import Translator
from regard.tasks.translation_run import SHARED, SOURCE, TARGET, load_vocabularies, open_translation_run

Decode = Callable[[list[list[int]]], list[list[int]]]
LEAST = 2.0
"""Seconds: a shorter measurement depends on what else the machine does in it."""


def ctranslate2_decoder(arguments: argparse.Namespace, shared: bool) -> Decode:
    """Return CTranslate2's search."""
    import ctranslate2

    from regard.integrations.ctranslate2 import vocabulary_entries

    source, target = [vocabulary_entries(arguments.run / name) for name in ([SHARED, SHARED] if shared else [SOURCE, TARGET])]
    numbers = {token: number for number, token in enumerate(target)}
    threads = {"inter_threads": arguments.workers, "intra_threads": arguments.threads}
    translator = ctranslate2.Translator(str(arguments.export), device="cpu", compute_type=arguments.compute_type, **threads)

    def search(sentences: list[list[str]]) -> Any:
        return translator.translate_batch(
            sentences,
            max_batch_size=arguments.batch_size,
            batch_type="examples",
            beam_size=arguments.beam_size,
            length_penalty=1e-9,  # changes no score; with 0 it would stop by another rule
            max_decoding_length=arguments.max_length,
            min_decoding_length=0,
            use_vmap=bool(arguments.shortlist),
        )

    def decode(ids: list[list[int]]) -> list[list[int]]:
        found = search([[source[number] for number in sentence] for sentence in ids])
        return [[numbers[token] for token in result.hypotheses[0]] for result in found]

    return decode


def onnx_decoder(arguments: argparse.Namespace) -> Decode:
    """Return Regard's search over the steps of onnxruntime, one batch of similar lengths per thread, as Regard's own."""
    from regard.integrations.onnx import OnnxModel

    model, device = OnnxModel(arguments.export), torch.device("cpu")
    search = greedy_search if arguments.beam_size == 1 else beam_search

    def decode_batch(sources: list[list[int]]) -> list[list[int]]:
        batch = collate(sources, [[] for _ in sources], range(len(sources)))
        limits = [min(arguments.max_length, 2 * len(source) + 30) for source in sources]
        names = {"bos": BOS, "eos": EOS, "pad": PAD, "banned": (PAD, BOS)}
        options = DecodingOptions(**names, beam_size=arguments.beam_size, max_length=limits, length_penalty=0.0, need_attention=False)
        state = model.start(tokens=batch.source, lengths=batch.source_lengths)
        best = search(model.step, state, batch_size=len(sources), options=options)
        return [[token for token in each[0].tokens if token != EOS] for each in best]

    def decode(ids: list[list[int]]) -> list[list[int]]:
        order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
        batches = cut_batches(order, arguments.batch_size, device=device)
        results = map_batches(lambda rows: decode_batch([ids[row] for row in rows]), batches, device=device)
        found = {row: tokens for rows, each in zip(batches, results, strict=True) for row, tokens in zip(rows, each, strict=True)}
        return [found[row] for row in range(len(ids))]

    return decode


def marian_decoder(arguments: argparse.Namespace) -> tuple[Decode, float]:
    """Return Hugging Face's search, and how far the logits of its model are from Regard's."""
    from marian_loop import logits_of, to_marian

    opened = open_translation_run(arguments.run)
    ours = cast(Transformer, opened.model)
    device = torch.device(arguments.device)
    marian = to_marian(ours.cpu(), cast(TransformerConfig, opened.config.model)).eval()
    size = len(opened.vocabularies.target)
    generator = torch.Generator().manual_seed(1)
    made = [[torch.randint(4, size, (length,), generator=generator).tolist() for length in lengths] for lengths in ((5, 11), (7, 13))]
    batch = collate(made[0], made[1], (0, 1))
    with torch.inference_mode():
        readout = ours.decode(batch.source, batch.source_lengths, batch.target_input, need_weights=False).readout
        difference = (ours.logits(readout) - logits_of(marian, batch))[batch.target_output != PAD].abs().max().item()
    if difference > 1e-4:
        raise SystemExit(f"the logits of the converted model differ by {difference:.2g}")

    marian.to(device)  # pyright: ignore[reportArgumentType]

    def search(rows: list[list[int]]) -> list[list[int]]:
        source = collate(rows, [[] for _ in rows], range(len(rows))).source.to(device)
        found = marian.generate(  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
            input_ids=source,
            attention_mask=(source != PAD).long(),
            num_beams=arguments.beam_size,
            do_sample=False,
            length_penalty=0.0,
            early_stopping=True,
            max_new_tokens=arguments.max_length,
            suppress_tokens=[PAD, BOS],
        )
        return [[*row[1:], EOS][: [*row[1:], EOS].index(EOS)] for row in found.tolist()]

    def decode(ids: list[list[int]]) -> list[list[int]]:
        with torch.inference_mode():
            size = arguments.batch_size
            return [found for start in range(0, len(ids), size) for found in search(ids[start : start + size])]

    return decode, difference


def regard_decoder(arguments: argparse.Namespace) -> Callable[[list[str]], list[str]]:
    """Return Regard's search, from text to text."""
    translator = Translator.open(arguments.run)
    translator.run.model.to(arguments.device)
    names = {"beam_size": arguments.beam_size, "batch_size": arguments.batch_size, "max_length": arguments.max_length}
    settings = {**names, "length_penalty": 0.0, "precision": arguments.compute_type, "shortlist": bool(arguments.shortlist)}
    decoding = translator.run.config.decoding.model_copy(update=settings)
    return lambda lines: [item.text for item in translator.translate(lines, decoding=decoding)]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("engine", choices=("ctranslate2", "marian", "onnx", "regard"))
    parser.add_argument("run", type=Path, help="a Regard run")
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=60)
    parser.add_argument("--export", type=Path, help="ctranslate2 and onnx: the exported folder")
    parser.add_argument("--compute-type", default="float32", help="ctranslate2: float32, int8, ...; regard: float32, bfloat16 or int8")
    parser.add_argument("--device", default="cpu", help="marian and regard: cpu or cuda")
    parser.add_argument("--workers", type=int, default=1, help="ctranslate2: inter_threads")
    parser.add_argument("--threads", type=int, default=2, help="ctranslate2: intra_threads, of each worker")
    parser.add_argument("--shortlist", type=int, choices=(0, 1), default=0, help="1: compute only the outputs of the run's shortlist")
    return parser.parse_args()


def timed(decode: Callable[[list[Any]], list[Any]], given: list[Any]) -> tuple[list[Any], float]:
    """Decode one sentence, then all, again until it has taken `LEAST` seconds; return what came out and the seconds of one pass."""
    decode(given[:1])
    start, passes = time.perf_counter(), 0
    while True:
        found, passes = decode(given), passes + 1
        if (taken := time.perf_counter() - start) >= LEAST:
            return found, taken / passes


def main() -> None:
    """Decode, write the translations, print the seconds."""
    arguments = parse()
    lines = read_lines(arguments.source)
    facts: dict[str, Any] = {}
    if arguments.engine == "regard":
        translated, facts["seconds"] = timed(regard_decoder(arguments), lines)
    else:
        config = read_config(arguments.run, TranslationConfig)
        vocabularies = load_vocabularies(arguments.run, config)
        ids = [sentence[: config.data.max_length] for sentence in vocabularies.source.encode_ids(lines)]
        if arguments.engine == "ctranslate2":
            decode = ctranslate2_decoder(arguments, config.vocabulary.shared)
        elif arguments.engine == "onnx":
            decode = onnx_decoder(arguments)
        else:
            decode, facts["logits_difference"] = marian_decoder(arguments)
        found, facts["seconds"] = timed(decode, ids)
        translated = [vocabularies.target.decode(sentence) for sentence in found]
    arguments.output.write_text("".join(f"{line}\n" for line in translated), encoding="utf-8")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
