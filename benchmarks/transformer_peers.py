r"""Regard's Transformer beside eole, Hugging Face and CTranslate2: training target tokens/s, validation loss, decoding sentences/s.

    python benchmarks/transformer_peers.py --multi30k DATA --eole-python eole/bin/python --rounds 7
    python benchmarks/transformer_peers.py --multi30k DATA --eole-python eole/bin/python --loss 400
    python benchmarks/transformer_peers.py --multi30k DATA --model RUN --decoding-rounds 7
    python benchmarks/transformer_peers.py --size base --multi30k DATA --eole-python eole/bin/python --rounds 3 --warmup 1 \
        --updates regard=3,regard-bf16=3,eole=2,marian=2,marian-bf16=2 --out docs/results/transformer_speed_base.json

Run it with Regard's own Python, which has transformers and ctranslate2, too, on a machine that does nothing else. Every contender runs in
a process of its own, with the same threads and the same environment, interleaved (A B C A B C ...); the first updates of a training window
are not counted. Each call measures the parts asked for and keeps the others that the result file holds.

The peers (torch pinned in the same command):
    pip install torch==2.13.0 eole==0.6.4 aiohttp                  in an environment of its own
    pip install torch==2.13.0 ctranslate2==4.8.5 transformers      in Regard's
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import Any

from harness import RESULTS, interleaved, options, read
from peers import DATA, Amount, Setting, describe, ensure_data, ratio, spread, updates_of, write_result
from transformer_contenders import DECODERS, SIZES, TRAINERS, Decoding

PARTS = ("training", "loss", "decoding")
NAMES = {
    "regard": "Regard float32",
    "regard-bf16": "Regard bfloat16",
    "eole": "eole float32",
    "marian": "Hugging Face float32",
    "marian-bf16": "Hugging Face bfloat16",
    "regard-warm": "Regard float32, warm",
    "regard-warm-bf16": "Regard bfloat16, warm",
    "ctranslate2": "CTranslate2 float32",
    "ctranslate2-workers": "CTranslate2 float32, two workers",
    "ctranslate2-int8": "CTranslate2 int8",
}
# What stands over what in the tables: ours, the peer.
TRAINING_PAIRS = [("regard", "eole"), ("regard", "marian"), ("regard-bf16", "marian-bf16"), ("regard-bf16", "eole")]
DECODING_PAIRS = [
    *((ours, peer) for ours in ("regard", "regard-warm") for peer in ("ctranslate2", "ctranslate2-workers", "marian")),
    *((ours, peer) for ours in ("regard-bf16", "regard-warm-bf16") for peer in ("ctranslate2", "ctranslate2-workers", "ctranslate2-int8")),
]


def ratios(rates: dict[str, list[float]], pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return our rates over the peers', round by round, for the pairs that were measured."""
    there = [(ours, theirs) for ours, theirs in pairs if ours in rates and theirs in rates]
    return [{"ours": ours, "peer": theirs, **ratio(rates[ours], rates[theirs])} for ours, theirs in there]


def measure_training(settings: dict[str, Setting], updates: dict[str, int], arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the training windows interleaved; a round's seed is the same for every contender."""

    def train(name: str, turn: int) -> dict[str, Any]:
        setting = settings[name]
        return TRAINERS[name][1](setting, setting.work / "runs" / f"window-{name}", Amount(arguments.warmup, updates[name], seed=turn))

    windows = interleaved({name: functools.partial(train, name) for name in settings}, arguments.rounds, title="train")
    rates = {name: [found["tokens_per_second"] for found in each] for name, each in windows.items()}
    unit = "target tokens/s, end of sentence counted, padding not"
    return {"unit": unit, "warmup_updates": arguments.warmup, "windows": windows, **spread(rates), "ratios": ratios(rates, TRAINING_PAIRS)}


def measure_loss(settings: dict[str, Setting], updates: int, seed: int) -> dict[str, Any]:
    """Train every contender for the same number of updates; return the validation losses."""
    losses: dict[str, dict[str, Any]] = {}
    amount = Amount(updates // 2, updates - updates // 2, seed=seed)
    for name, setting in settings.items():
        losses[name] = TRAINERS[name][2](setting, setting.work / "runs" / f"loss-{name}", amount)
        print(f"loss {name:8} {losses[name]}", flush=True)
    if len({found["loss_tokens"] for found in losses.values()}) > 1:
        raise SystemExit(f"the losses are means over different tokens: {losses}")
    return {"unit": "nats per target token, end of sentence counted, padding not, not smoothed", "updates": updates, "losses": losses}


def measure_search(decoding: Decoding, names: list[str], beam_size: int, rounds: int) -> dict[str, Any]:
    """Decode the test set interleaved, all with the weights of one run."""
    contenders = {name: functools.partial(lambda name, turn: decoding.measure(name, beam_size), name) for name in names}
    windows = interleaved(contenders, rounds, title=f"decode {search_name(beam_size)}")
    rates = {name: [found["sentences_per_second"] for found in each] for name, each in windows.items()}
    part: dict[str, Any] = {"windows": windows, **spread(rates), "ratios": ratios(rates, DECODING_PAIRS)}
    if "regard" in names:  # the share of translations that are Regard's in float32, letter for letter
        ours = decoding.output("regard", beam_size)
        pairs = {name: list(zip(ours, decoding.output(name, beam_size), strict=True)) for name in names}
        part["same"] = {name: sum(a == b for a, b in each) / len(each) for name, each in pairs.items()}
    return part


def search_name(beam_size: int) -> str:
    """Return what a search is called in the tables."""
    return "greedy" if beam_size == 1 else f"beam {beam_size}"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = options(__doc__, out=RESULTS / "transformer_speed.json", threads=2)
    parser.add_argument("--multi30k", type=Path, help="folder with train.en.gz, val.de.gz, test_2016_flickr.en.gz, ... (raw text)")
    parser.add_argument("--regard-python", default=sys.executable, help="the Python that has regard, transformers and ctranslate2")
    parser.add_argument("--eole-python", help="the Python that has eole; absent: left out")
    parser.add_argument("--work", type=Path, default=Path("runs/transformer_peers"), help="folder for data, configurations, runs, logs")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the models that are trained")
    parser.add_argument("--rounds", type=int, default=0, help="training windows of each contender; 0: none")
    parser.add_argument("--warmup", type=int, default=3, help="updates of a window that are not counted, and updates between log lines")
    default = ["regard=30", "regard-bf16=45", "eole=21", "marian=21", "marian-bf16=30"]
    parser.add_argument("--updates", nargs="+", default=default, help="counted updates of a window, NAME=NUMBER")
    parser.add_argument("--trainers", nargs="+", choices=sorted(TRAINERS), default=list(TRAINERS))
    parser.add_argument(
        "--loss", type=int, default=0, metavar="UPDATES", help="compare the validation loss after so many updates; 0: do not"
    )
    parser.add_argument("--seed", type=int, default=1, help="with --loss")
    parser.add_argument("--model", type=Path, help="the Regard run to decode with")
    parser.add_argument("--decoding-rounds", type=int, default=7, help="with --model: decoding windows of each")
    parser.add_argument("--sentences", type=int, help="decode only the first so many, to try it out")
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--decoders", nargs="+", choices=sorted(DECODERS), default=list(DECODERS))
    return parser.parse_args(words)


def main() -> None:
    """Prepare what is missing, measure the parts asked for, and write the result file."""
    arguments = parse()
    arguments.work = arguments.work.resolve()
    ensure_data(arguments.multi30k, arguments.work / "data")
    updates = updates_of(arguments.updates, arguments.warmup)
    ours = arguments.regard_python
    pythons = {name: arguments.eole_python if name == "eole" else ours for name in TRAINERS}
    make = functools.partial(Setting, work=arguments.work, threads=arguments.threads, size=arguments.size)
    trainers = [name for name in TRAINERS if name in arguments.trainers and pythons[name]]
    settings = {name: make(python=pythons[name], kind=TRAINERS[name][0]) for name in trainers}
    result: dict[str, Any] = read(arguments.out)
    packages = {"regard": ours, "transformers": ours, "ctranslate2": ours}
    about = describe("transformer_peers.py", packages | ({"eole": arguments.eole_python} if arguments.eole_python else {}))
    about |= {"threads": arguments.threads}

    def keep(part: str, found: dict[str, Any]) -> None:
        result.update({"configuration": configuration(arguments.size), part: about | found})
        write_result(arguments.out, result, speed_table)
        for name, table in (("transformer_loss", loss_table), ("transformer_outputs", output_table)):
            if table(result)["rows"]:
                write_result(arguments.out.with_name(f"{name}.json"), {}, lambda _, table=table: table(result))

    if arguments.rounds:
        keep("training", measure_training(settings, updates, arguments))
    if arguments.loss:
        keep("loss", measure_loss(settings, arguments.loss, arguments.seed))
    if arguments.model:
        decoding = Decoding(make(python=ours, kind="fp32"), arguments.model.resolve(), (arguments.multi30k, arguments.sentences))
        names = [name for name in DECODERS if name in arguments.decoders]
        searches = searches_of(result.get("decoding"), about | {"model": decoding.model.name})
        for beam_size in arguments.beams:
            found = measure_search(decoding, names, beam_size, arguments.decoding_rounds)
            searches[search_name(beam_size)] = {"command": about["command"], **found}
            keep("decoding", {"unit": "sentences/s", "model": decoding.model.name, "searches": searches})


def searches_of(part: dict[str, Any] | None, about: dict[str, Any]) -> dict[str, Any]:
    """Return the searches that a result already holds of the same model, machine, packages and threads; those of another are dropped."""
    same = part is not None and all(part.get(key) == value for key, value in about.items() if key not in ("date", "command", "load_before"))
    return {title: {"command": part["command"], **found} for title, found in part["searches"].items()} if part and same else {}


def commands(result: dict[str, Any], *parts: str) -> str:
    """Return the commands that made parts of the result, each once; a search may have its own."""
    found = [
        each.get("command", result[part]["command"])
        for part in parts
        if part in result
        for each in result[part].get("searches", {"": {}}).values()
    ]
    return " and ".join(f"`{command}`" for command in dict.fromkeys(found))


def speed_table(result: dict[str, Any]) -> dict[str, Any]:
    """Return the ratios of all pairs: the median over the rounds and the ends."""
    parts = [("training, target tokens/s", result["training"]["ratios"])] if "training" in result else []
    searches = result["decoding"]["searches"] if "decoding" in result else {}
    parts += [(f"{title}, sentences/s", found["ratios"]) for title, found in searches.items()]
    rows = [
        [what, NAMES[pair["ours"]], NAMES[pair["peer"]], pair["median"], f"{pair['least']:.2f}-{pair['most']:.2f}"]
        for what, pairs in parts
        for pair in pairs
    ]
    about = next(result[part] for part in PARTS if part in result)
    texts = [result["configuration"][name] for name in ("model", "training", *(["decoding"] if searches else []))]
    note = (
        f"{commands(result, 'training', 'decoding')}: Regard over the peer, round by round in one run; {about['machine']['cpu']}, "
        f"{about['threads']} threads. {'. '.join(text[0].upper() + text[1:] for text in texts)}."
    )
    return {"columns": ["task", "Regard", "peer", "median ratio", "range"], "rows": rows, "note": note}


def loss_table(result: dict[str, Any]) -> dict[str, Any]:
    """Return the validation losses, and how far each is from Regard's in float32."""
    part = result.get("loss", {"losses": {}})
    own = part["losses"].get("regard", {}).get("loss")
    rows = [
        [NAMES[name], round(found["loss"], 4), None if own is None else f"{100 * (found['loss'] / own - 1):+.2f} %"]
        for name, found in part["losses"].items()
    ]
    if not rows:
        return {"columns": [], "rows": []}
    note = f"{commands(result, 'loss')}: {part['unit']}, after {part['updates']} updates. {result['configuration']['loss']}."
    return {"columns": ["trained with", "validation loss", "difference from Regard float32"], "rows": rows, "note": note}


def output_table(result: dict[str, Any]) -> dict[str, Any]:
    """Return what was decoded: how much of it is Regard's, letter for letter, and its BLEU."""
    searches = result["decoding"]["searches"] if "decoding" in result else {}
    rows = []
    for title, part in searches.items():
        for name, windows in part["windows"].items():
            same = part["same"].get(name) if "same" in part else None
            share = None if same is None else f"{100 * same:.1f} %"
            rows.append([title, NAMES[name], share, windows[0]["bleu"], windows[0]["mean_words"]])
    note = "BLEU and words of the translations that were timed; *same*: letter for letter."
    return {"columns": ["decoding", "engine", "same as Regard float32", "BLEU", "words per sentence"], "rows": rows, "note": note}


def configuration(size: str) -> dict[str, str]:
    """Say in words what all contenders do, with models of this size."""
    embed, feed_forward, heads, layers = SIZES[size]
    return {
        "data": DATA,
        "model": f"post-norm Transformer of {layers} + {layers} layers (eole: pre-norm, as its decoder supports nothing else), embeddings "
        f"{embed}, feed-forward {feed_forward:,}, {heads} heads, one shared table of about 8,000 entries, tied to the output",
        "training": "dropout 0.1 on embeddings and residuals, label smoothing 0.1, Adam, inverse square root from 1e-3 after 200 updates, "
        "gradient norm 1.0, own batches of 4,096 padded tokens (Hugging Face, a plain loop: Regard's batches)",
        "loss": "Regard and Hugging Face see the same batches and start from the same weights; eole has its own, and uses pre-norm",
        "decoding": "the same weights for all, batches of 64, no length penalty, at most 60 tokens, test_2016_flickr (1,000); the time of "
        "Regard's command includes tokenization and first steps, that of Regard warm tokenization, after one sentence of warm-up, "
        "those of the others neither",
    }


if __name__ == "__main__":
    main()
