r"""What a large parallel text costs before the first update, beside JoeyNMT and eole: seconds, and memory of all processes.

    python benchmarks/corpus_peers.py --folder /scratch/corpus --joeynmt-python joey/bin/python --eole-python eole/bin/python \
        --pairs 20000 200000 2000000 --limit 240 --out docs/results/corpus_peers.json

Takes the generated text of corpus.py, raw, and each program's own way from there: Regard learns sub-words (8,000 per side), the peers
count words and keep 8,000, which is less work. Models of one size: bidirectional GRU 256, decoder 512, embeddings 256. Memory is the peak
of the proportional set size, summed over the processes. A program that takes longer than the limit is stopped. See rnn_peers.py for how
to install the peers.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import yaml
from corpus import write_text
from harness import MEBIBYTE, Table, machine, options, tree_memory

WORDS, EMBED, ENCODER, DECODER = 8000, 256, 256, 512


class Contender(NamedTuple):
    """Commands to run one after another; the last one is stopped once its log holds the mark of its first update.

    Attributes:
        commands: the words of each command.
        mark: what stands in the log after the first update.
        log: the file of the log; None: what the command prints.
    """

    commands: list[list[str]]
    mark: str
    log: Path | None = None


def regard(files: tuple[str, str], work: Path) -> Contender:
    """Return Regard's command."""
    sizes = [f"model.embed_dim={EMBED}", f"model.encoder_dim={ENCODER}", f"model.decoder_dim={DECODER}"]
    words = ["train", "translation", "--source", files[0], "--target", files[1], "--out", str(work / "run")]
    settings = ["recipe=none", f"vocabulary.size={WORDS}", "training.log_every=1", *sizes]
    return Contender([[sys.executable, "-m", "regard", *words, *settings]], '"event": "train"', work / "run" / "log.jsonl")


def joeynmt(files: tuple[str, str], work: Path, python: str) -> Contender:
    """Return JoeyNMT's command; it makes its vocabularies when it starts."""
    side = {"max_length": 200, "level": "word", "voc_limit": WORDS}
    embeddings = {"embedding_dim": EMBED}
    recurrent = {"type": "recurrent", "rnn_type": "gru", "embeddings": embeddings, "num_layers": 1}
    prefix = files[0].removesuffix(".en")
    for name in ("dev", "test"):
        for side_name, path in zip(("en", "de"), files, strict=True):
            with open(path, encoding="utf-8") as lines:
                (work / f"{name}.{side_name}").write_text("".join(next(lines) for _ in range(10)), encoding="utf-8")
    tree = {
        "name": "corpus",
        "joeynmt_version": "2.3.0",
        "model_dir": str(work / "joeynmt"),
        "use_cuda": False,
        "num_workers": 0,
        "random_seed": 1,
        "normalization": "tokens",
        "data": {
            **{"train": prefix, "dev": str(work / "dev"), "test": str(work / "test"), "dataset_type": "plain"},
            **{"src": {"lang": "en", **side}, "trg": {"lang": "de", **side}},
        },
        "training": {
            **{"optimizer": "adam", "learning_rate": 0.001, "scheduling": "exponential", "decrease_factor": 1.0},
            **{"batch_size": 4096, "batch_type": "token", "epochs": 1000, "updates": 5, "logging_freq": 1, "validation_freq": 1000},
            **{"loss": "crossentropy", "normalization": "tokens", "learning_rate_min": 0.0, "overwrite": True},
        },
        "testing": {"beam_size": 1, "batch_size": 64, "batch_type": "sentence", "max_output_length": 30, "eval_metrics": []},
        "model": {
            "tied_embeddings": False,
            "tied_softmax": False,
            "encoder": {**recurrent, "hidden_size": ENCODER, "bidirectional": True},
            "decoder": {**recurrent, "hidden_size": DECODER, "attention": "bahdanau", "input_feeding": True, "init_hidden": "bridge"},
        },
    }
    (work / "joeynmt.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return Contender([[python, "-m", "joeynmt", "train", str(work / "joeynmt.yaml"), "--skip-test"]], "Tokens per Sec")


def eole(files: tuple[str, str], work: Path, python: str) -> Contender:
    """Return eole's two commands: its vocabularies come first."""
    recurrent = {"rnn_type": "GRU", "layers": 1, "hidden_size": DECODER}
    vocabularies = {f"{side}_vocab": str(work / f"eole.{side}") for side in ("src", "tgt")}
    tree = {
        **vocabularies,
        **{"src_vocab_size": WORDS, "tgt_vocab_size": WORDS, "overwrite": True, "report_every": 1, "save_data": str(work / "eole-data")},
        "seed": 1,
        "data": {"corpus": {"path_src": files[0], "path_tgt": files[1], "transforms": []}},
        "model": {
            "architecture": "custom",
            "input_feed": 1,
            "share_embeddings": False,
            "share_decoder_embeddings": False,
            "embeddings": {"src_word_vec_size": EMBED, "tgt_word_vec_size": EMBED, "position_encoding_type": None},
            "encoder": {"encoder_type": "brnn", **recurrent},
            "decoder": {"decoder_type": "rnn", "global_attention": "mlp", **recurrent},
        },
        "training": {
            **{"model_path": str(work / "eole-run"), "world_size": 1, "gpu_ranks": [], "num_workers": 0, "compute_dtype": "fp32"},
            **{"batch_type": "tokens", "batch_size": 4096, "accum_count": [1], "normalization": "tokens", "optim": "adam"},
            **{"learning_rate": 0.001, "decay_method": "none", "train_steps": 5, "valid_steps": 10**6, "save_checkpoint_steps": 10**6},
        },
    }
    config = work / "eole.yaml"
    config.write_text(yaml.safe_dump(tree), encoding="utf-8")
    program = [python, "-m", "eole.bin.main"]
    count = [*program, "build_vocab", "-config", str(config), "-n_sample", "-1", "-num_threads", "2"]
    return Contender([count, [*program, "train", "-config", str(config)]], "acc: ")


def measure(contender: Contender, printed: Path, limit: float) -> tuple[float | None, float]:
    """Return the seconds until the first update is told, None beyond the limit, and the most memory of all processes in megabytes."""
    begun, most = time.monotonic(), 0
    for command in contender.commands:
        print("$", *command, flush=True)
        last, log = command is contender.commands[-1], contender.log or printed
        with open(printed, "w", encoding="utf-8") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
        while process.poll() is None:
            time.sleep(0.1)
            most = max(most, tree_memory(process.pid))
            took = time.monotonic() - begun
            done = last and log.exists() and contender.mark in log.read_text(encoding="utf-8", errors="replace")
            if done or took > limit:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return took if done else None, most / MEBIBYTE
        if process.returncode or last:
            sys.exit(f"corpus_peers: {command[0]} left with {process.returncode}; see {printed}")
    raise AssertionError


def main() -> None:
    parser = options(__doc__, limit=240)
    parser.add_argument("--folder", type=Path, required=True, help="of corpus.py's text; it is written where it is not there")
    parser.add_argument("--pairs", type=int, nargs="+", default=[20_000, 200_000, 2_000_000], help="of others the results stay")
    parser.add_argument("--joeynmt-python", help="the Python that has joeynmt; absent: left out")
    parser.add_argument("--eole-python", help="the Python that has eole; absent: left out")
    arguments = parser.parse_args()
    note = (
        f"`python benchmarks/corpus_peers.py`: to the first update of a recurrent model; {machine(os.cpu_count())}, JoeyNMT 2.3.0, "
        f"eole 0.6.4. Memory is that of all processes together. A program was stopped after {arguments.limit} s."
    )
    table = Table(arguments.out, ["pairs", "program", "seconds to the first update", "peak memory, MB"], note, key=2)
    peers = {"JoeyNMT": (joeynmt, arguments.joeynmt_python), "eole": (eole, arguments.eole_python)}
    for pairs in arguments.pairs:
        files = write_text(arguments.folder, pairs)
        work = arguments.folder / "peers"
        for name in ("Regard", *(name for name, (_, python) in peers.items() if python)):
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            contender = regard(files, work) if name == "Regard" else peers[name][0](files, work, peers[name][1])
            seconds, memory = measure(contender, work / f"{name}.log", arguments.limit)
            table.add([f"{pairs:,}", name, f"more than {arguments.limit}" if seconds is None else round(seconds, 1), round(memory)])
    shutil.rmtree(arguments.folder / "peers")


if __name__ == "__main__":
    main()
