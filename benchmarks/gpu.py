"""All that wants a CUDA device, within a few minutes: tests, area attention, training, decoding, exact resume.

    make gpu                                                       the command below, in this machine's own Python
    python benchmarks/gpu.py --minutes 8 --out docs/results [--data FOLDER]
    python benchmarks/gpu.py --rehearse --out FOLDER               the same on a CPU, small, with the Triton kernels interpreted

Each stage is a process of its own with a share of the minutes, and writes OUT/gpu_STAGE.json after every row: what fails or runs out of
time loses nothing of the others. What ran out of time says so, the tests in their table. Nothing is downloaded. A rehearsal needs the
extra `triton`. Options that cannot work end it with exit code 2 before the first stage.

- tests: the tests marked `gpu`, among them 600 cases of the error rule for the Triton kernels;
- area: `regard.ops.area_attention` beside flash `scaled_dot_product_attention` without areas and beside materialized areas;
- step: a training step of Transformer Base, without areas, with areas, and with area features (Eq. 9);
- decoding: beam search beside `generate` of Hugging Face, on the same random weights;
- resume: a short training on Multi30k (FOLDER; without it generated dates), killed and resumed, weights compared bit by bit.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import MEBIBYTE, RESULTS, ROOT, Table, machine, median, multi30k_files, options, ratio
from torch import Tensor

from regard import ops
from regard.config import TransformerConfig
from regard.data import collate
from regard.models import build
from regard.ops import reference

# Stages in order, and their shares of the time.
SHARES = {"tests": 0.3, "area": 0.3, "step": 0.1, "decoding": 0.1, "resume": 0.2}
BASE: dict[str, Any] = {"embed_dim": 512, "ff_dim": 2048, "num_heads": 8, "encoder_layers": 6, "decoder_layers": 6, "norm": "post"}
SMALL: dict[str, Any] = {"embed_dim": 32, "ff_dim": 64, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "norm": "post"}
AREAS = {"ordinary": None, "areas": {"max_area": 3}, "areas, Eq. 9": {"max_area": 3, "key_mode": "features"}}
VOCABULARY = 8000


class Stage:
    """What every stage knows: the device, whether it is a rehearsal, when it must end, and its table."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name, self.rehearse, self.data, self.until = name, arguments.rehearse, arguments.data, time.monotonic() + arguments.seconds
        self.device = torch.device("cpu" if self.rehearse else "cuda")
        self.out = arguments.out / f"gpu_{name}.json"
        self.note = f"`python benchmarks/gpu.py{' --rehearse' if self.rehearse else ''}`, stage {name}; {self.where()}."
        self.rounds = 2 if self.rehearse else 7

    def where(self) -> str:
        """Describe the machine."""
        return machine(device=self.device.type)

    def table(self, columns: Sequence[str], key: int = 1) -> Table:
        """Begin the table of the stage."""
        return Table(self.out, columns, self.note, key=key)

    def over(self) -> bool:
        """Tell whether there is no time for another row; if so, say it on standard error."""
        if over := time.monotonic() > self.until:
            print(f"== {self.name}: out of time, the other rows are missing", file=sys.stderr)
        return over

    def milliseconds(self, actions: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Time contenders, interleaved; one that has not the memory is left out."""
        found: dict[str, list[float]] = {}
        for name, action in actions.items():
            try:
                for _ in range(1 if self.rehearse else 3):
                    action()
                found[name] = []
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
        for _ in range(self.rounds):
            for name, times in found.items():
                times.append(self.once(actions[name]))
        return found

    def once(self, action: Callable[[], object]) -> float:
        """Return the milliseconds of one call."""
        if self.device.type == "cpu":
            start = time.perf_counter()
            action()
            return 1000 * (time.perf_counter() - start)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        action()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    def mebibytes(self, action: Callable[[], object]) -> int | None:
        """Return the device memory that a call needs at most over what was held; None on a CPU."""
        if self.device.type == "cpu":
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        action()
        return round((torch.cuda.max_memory_allocated() - before) / MEBIBYTE)


RULE = "error_rule"  # in the names of the random cases


def tests(stage: Stage) -> None:
    """Run the tests marked `gpu`; in a rehearsal some of the interpreted kernels."""
    table = stage.table(["tests", "passed", "failed", "skipped", "ran out of time", "first failure"])
    # Collecting all tests takes a minute.
    files = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text(encoding="utf-8"))
    words = ["tests/ops/test_area_triton.py", "-k", "interpreted and repeats"] if stage.rehearse else [*files, "-m", "gpu"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as report:
        # The kernels of a case are compiled on a processor: as many at a time as there are, all cases of a kernel in one process.
        workers = min(16, os.cpu_count() or 1)
        command = [sys.executable, "-m", "pytest", "-v", "-n", str(workers), "--dist", "loadgroup", "-p", "no:cacheprovider", *words]
        over = "no"
        with subprocess.Popen(
            command, cwd=ROOT, stdout=report, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        ) as process:
            try:
                process.wait(max(5.0, stage.until - time.monotonic()))
            except subprocess.TimeoutExpired:
                over = "yes"
                process.send_signal(signal.SIGINT)  # pytest then says why tests have failed up to now
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
        report.seek(0)
        text = report.read()
    names = {"all but the error rule": re.compile(f"(?!.*{RULE})"), "the error rule": re.compile(f".*{RULE}")}
    wrong = []
    for title, some in {"interpreted kernels": re.compile("")}.items() if stage.rehearse else names.items():
        passed, failed, skipped, first = counted(text, some)
        table.add([title, passed, failed, skipped, over, first])
        # Without pytest, or where all are skipped, nothing fails either.
        wrong += [f"{title}: {failed} failed"] if failed else [] if passed else [f"{title}: no test ran, {skipped} skipped"]
    if wrong:
        print(text[-4000:], flush=True)
        raise SystemExit("; ".join(wrong))


def counted(report: str, some: re.Pattern[str]) -> tuple[int, int, int, str | None]:
    """Return passed, failed, skipped, and the first failure of what pytest has said up to now of tests with such names."""
    found = [each for each in re.findall(r"^\[gw\d+\] \[ *\d+%\] (\w+) (.+?) *$", report, re.MULTILINE) if some.match(each[1])]
    number = Counter(outcome for outcome, _ in found)
    first = next((name.rpartition("::")[2] for outcome, name in found if outcome in ("FAILED", "ERROR")), None)
    return number["PASSED"], number["FAILED"] + number["ERROR"], number["SKIPPED"], first


def area(stage: Stage) -> None:
    """Time area attention beside attention to items and beside materialized areas."""
    columns = ["dtype", "length", "areas", "pass", "SDPA ms", "Regard / SDPA", "materialized / Regard", "Regard MiB", "materialized MiB"]
    table = stage.table(columns, key=4)
    lengths = (8, 16) if stage.rehearse else (64, 256, 1024, 4096, 8192)
    cases = [(dtype, length, kind) for length in lengths for dtype in (torch.bfloat16, torch.float32) for kind in ("mean", "Eq. 9")]
    grids = [(dtype, side**2, "grid") for side in ((4,) if stage.rehearse else (14, 32)) for dtype in (torch.bfloat16, torch.float32)]
    for dtype, length, kind in [*cases, *grids]:
        for backward in (False, True):
            if stage.over():
                return
            actions = contenders(stage, dtype, length, kind, backward)
            times = stage.milliseconds(actions)
            pairs = [("Regard", "SDPA"), ("materialized", "Regard")]
            ratios = [ratio(times[one], times[other]).median if one in times and other in times else None for one, other in pairs]
            memory = [stage.mebibytes(actions[name]) if name in times else None for name in ("Regard", "materialized")]
            first = median(times["SDPA"], 3) if "SDPA" in times else None
            what = f"{str(dtype)[6:]}", length, "3 x 3" if kind == "grid" else f"5, {kind}", "forward + backward" if backward else "forward"
            table.add([*what, first, *ratios, *memory])


def contenders(stage: Stage, dtype: torch.dtype, length: int, kind: str, backward: bool) -> dict[str, Callable[[], object]]:
    """Return one pass of each contender over random inputs; about as many tokens at every length."""
    heads, size = 16, 64
    batch = 1 if stage.rehearse else max(1, 2**14 // length)
    shape = (batch, heads if not stage.rehearse else 1, length, size)
    query, key, value = (torch.randn(shape, device=stage.device, dtype=dtype, requires_grad=backward) for _ in range(3))
    grad = torch.randn_like(query)
    settings: dict[str, Any] = {"max_area": 5, "causal": True}
    if kind == "grid":
        side = round(length**0.5)
        settings = {"max_area": (3, 3), "grid": (side, side)}
    weights = []
    if kind == "Eq. 9":
        sizes = (1, size // 2), (5, size // 2), (size, 3 * size), (size, size)
        weights = [torch.randn(each, device=stage.device, dtype=dtype).mul_(0.1).requires_grad_(backward) for each in sizes]
        settings |= {"key_mode": "features", "key_weights": ops.AreaWeights(*weights)}

    def passed(attend: Callable[[], Tensor], *inputs: Tensor) -> Callable[[], object]:
        if not backward:
            return torch.no_grad()(attend)
        return lambda: torch.autograd.grad(attend(), inputs, grad, allow_unused=True)

    kernels = "triton" if stage.rehearse and dtype == torch.float32 else ""  # the interpreter knows no bfloat16

    def ours() -> Tensor:
        with forced(kernels):
            return ops.area_attention(query, key, value, **settings)  # type: ignore[return-value]

    materialized = reference_areas(query, key, value, settings) if weights else materialized_areas(query, key, value, settings)
    return {
        "SDPA": passed(lambda: F.scaled_dot_product_attention(query, key, value, is_causal=kind != "grid"), query, key, value),
        "Regard": passed(ours, query, key, value, *weights),
        "materialized": passed(materialized, query, key, value, *weights),
    }


def reference_areas(query: Tensor, key: Tensor, value: Tensor, settings: dict[str, Any]) -> Callable[[], Tensor]:
    """Return the readable form, which makes the keys and values of all areas."""
    return lambda: reference.area_attention(query, key, value, **settings).context


def materialized_areas(query: Tensor, key: Tensor, value: Tensor, settings: dict[str, Any]) -> Callable[[], Tensor]:
    """Return attention to the keys and values of all areas, made by summed area tables, as to items."""
    size, grid, length = settings["max_area"], settings.get("grid"), key.shape[-2]
    spans = ops.area_spans(length if grid is None else grid, size)
    items = spans[:, -1] if grid is None else spans[:, 2] * spans[:, 3]
    inverse = (1 / items.float()).unsqueeze(-1).to(key)
    mask = ops.area_mask(ops.causal_mask(length, length)[None, None], size, grid).to(key.device) if grid is None else None

    def attend() -> Tensor:
        keys, values = ops.area_sums(key, size, grid) * inverse, ops.area_sums(value, size, grid)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)

    return attend


@contextmanager
def forced(way: str) -> Iterator[None]:
    """Have `regard.ops` compute in one way; "": in its own."""
    if way:
        os.environ["REGARD_KERNELS"] = way
    try:
        yield
    finally:
        os.environ.pop("REGARD_KERNELS", None)


def step(stage: Stage) -> None:
    """Time forward, backward and the optimizer's step of Transformer Base on one batch."""
    table = stage.table(["model", "tokens", "ms", "target tokens/s", "ordinary / this", "min", "max", "MiB"])
    sentences, length = (2, 5) if stage.rehearse else (128, 32)
    actions: dict[str, Callable[[], object]] = {}
    for name, areas in AREAS.items():
        torch.manual_seed(1)
        shape = SMALL if stage.rehearse else BASE
        config = TransformerConfig.model_validate({"type": "transformer", **shape, "area": areas, "dropout": 0.1})
        model = build(config, source_size=VOCABULARY, target_size=VOCABULARY).to(stage.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=stage.device.type == "cuda")
        ids = torch.randint(4, VOCABULARY, (2, sentences, length - 1)).tolist()
        batch = collate(ids[0], ids[1], tuple(range(sentences))).to(stage.device)

        def update(model: Any = model, optimizer: torch.optim.Optimizer = optimizer, batch: Any = batch) -> None:
            with torch.autocast(stage.device.type, torch.bfloat16):
                loss = model(*batch[:5], label_smoothing=0.1).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        actions[name] = update
    times = stage.milliseconds(actions)
    for name, found in times.items():
        seconds = statistics.median(found) / 1000
        row = [name, sentences * length, round(1000 * seconds, 2), round(sentences * length / seconds)]
        table.add([*row, *ratio(times["ordinary"], found), stage.mebibytes(actions[name])])


def decoding(stage: Stage) -> None:
    """Time `transformer_decode.py` with Regard and with Hugging Face on the weights of a run that has trained for one update."""
    table = stage.table(["decoding", "lines", "Regard lines/s", "Hugging Face lines/s", "Regard / Hugging Face"])
    shape = SMALL if stage.rehearse else BASE
    lines, length = (3, 5) if stage.rehearse else (256, 48)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(["generate", "dates", "--out", folder, "--count", 500, "--test", lines, "--seed", 1], stage)
        settings = [f"model.{key}={value}" for key, value in shape.items()]
        settings += ["model.type=transformer", "training.max_updates=1", "vocabulary.kind=character", "vocabulary.shared=true"]
        settings += ["model.share_embeddings=true", "model.tie_embeddings=true"]
        files = ["--source", folder / "train.source", "--target", folder / "train.target"]
        settings += ["data.valid_size=10", "training.metric=loss", "training.eval_metrics=[]"]
        run(["train", "translation", *files, "--out", folder / "run", *settings], stage)
        for beam in (1, 5):
            if stage.over():
                return
            times: dict[str, list[float]] = {"regard": [], "marian": []}
            # Half of the time for each beam: a process takes longer to start than to decode.
            until = time.monotonic() + (stage.until - time.monotonic()) / (2 if beam == 1 else 1)
            while not times["marian"] or (len(times["marian"]) < 3 and not stage.rehearse and time.monotonic() < until):
                for engine, found in times.items():
                    script = [sys.executable, ROOT / "benchmarks" / "transformer_decode.py", engine, folder / "run", folder / "test.source"]
                    more = ["--beam-size", beam, "--max-length", length, "--device", stage.device.type]
                    words = map(str, [*script, folder / "found", *more])
                    done = subprocess.run([*words], capture_output=True, text=True, check=True)
                    found.append(float(done.stdout.rpartition('"seconds": ')[2].partition("}")[0].partition(",")[0]))
            speeds = {engine: [lines / each for each in found] for engine, found in times.items()}
            both = [median(speeds[engine], 1) for engine in ("regard", "marian")]
            table.add([f"beam of {beam}" if beam > 1 else "greedy", lines, *both, ratio(speeds["regard"], speeds["marian"]).median])


def run(words: Sequence[object], stage: Stage) -> None:
    """Run a `regard` command on the stage's device."""
    environment = {**os.environ, "REGARD_DEVICE": stage.device.type, "REGARD_QUIET": "1"}
    subprocess.run([sys.executable, "-m", "regard", *map(str, words)], check=True, env=environment)


def resume(stage: Stage) -> None:
    """Train without a stop, and killed in the middle and resumed; compare all weights bit by bit."""
    table = stage.table(["data", "precision", "updates", "loss at the end", "weights after kill and resume"], key=2)
    updates = 20 if stage.rehearse else 200
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if stage.data:
            files = multi30k_files(stage.data)
        else:
            run(["generate", "dates", "--out", folder, "--count", 2000, "--test", 100, "--seed", 1], stage)
            files = ["--source", str(folder / "train.source"), "--target", str(folder / "train.target")]
        for precision in ("fp32", "bf16"):
            if stage.over():
                return
            settings = ["--config", ROOT / "configs" / "multi30k_transformer.yaml", *files, f"training.max_updates={updates}"]
            settings += [f"training.precision={precision}", f"training.save_every={updates // 4}", "training.log_every=10"]
            settings += ["training.metric=loss", "training.eval_metrics=[]"]
            settings += ["model.encoder_layers=1", "model.decoder_layers=1", "vocabulary.size=300"] if stage.rehearse else []
            whole, killed = folder / f"{precision}-whole", folder / f"{precision}-killed"
            run(["train", "translation", *settings, "--out", whole], stage)
            kill_in_training([*settings, "--out", killed], killed, updates // 2, stage)
            run(["train", "translation", *settings, "--out", killed], stage)
            same = weights(whole) == weights(killed)
            table.add(["Multi30k" if stage.data else "dates", precision, updates, last_loss(whole), "equal" if same else "different"])


def kill_in_training(settings: Sequence[object], folder: Path, update: int, stage: Stage) -> None:
    """Start a training, and kill it when its log tells of an update."""
    environment = {**os.environ, "REGARD_DEVICE": stage.device.type, "REGARD_QUIET": "1"}
    command = [sys.executable, "-m", "regard", "train", "translation", *map(str, settings)]
    with subprocess.Popen(command, env=environment) as process:
        while process.poll() is None:
            if folder.exists() and any(event["step"] >= update for event in trained(folder)):
                process.kill()
            time.sleep(0.02)
    if process.returncode == 0:
        raise SystemExit("the training that was to be killed had ended before")


def trained(folder: Path) -> list[dict[str, Any]]:
    """Return the training events of a log, as far as it is written."""
    log = folder / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("}")]
    return [event for event in events if event["event"] == "train"]


def last_loss(folder: Path) -> float:
    """Return the last loss of a training."""
    return round(trained(folder)[-1]["loss"], 4)


def weights(folder: Path) -> list[str]:
    """Return the digests of the last weights."""
    files = sorted((folder / "model").glob("*.safetensors"))
    if not files:
        raise SystemExit(f"{folder}: no weights")
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]


STAGES: dict[str, Callable[[Stage], None]] = {"tests": tests, "area": area, "step": step, "decoding": decoding, "resume": resume}


def unusable(arguments: argparse.Namespace) -> str:
    """Return why the options cannot work on this machine, or ""."""
    if not (math.isfinite(arguments.minutes) and arguments.minutes > 0):
        return f"--minutes: expected more than 0, found {arguments.minutes:g}"
    if arguments.data:
        missing = [path for path in map(Path, multi30k_files(arguments.data)[1::2]) if not path.is_file()]
        if missing:
            return f"--data: expected the folder of Multi30k's raw text, found no file {missing[0]}"
    if not arguments.rehearse and not torch.cuda.is_available():
        return "no CUDA device: nothing was run; with the extra triton, --rehearse runs the same on a CPU"
    if arguments.rehearse and {"tests", "area"} & {*arguments.stages} and importlib.util.find_spec("triton") is None:
        return "--rehearse: the stages tests and area need the package triton: pip install '.[triton]' in the clone (Linux only)"
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=arguments.out):
            pass
    except OSError as error:
        return f"--out: cannot write to {arguments.out}: {error.strerror}"
    return ""


def alone(command: Sequence[str], seconds: float, environment: dict[str, str]) -> int:
    """Run a stage; return its exit code, 124 where it took too long. However it ends, leave none of its processes and files."""
    with (
        # What is killed cannot remove its temporary folders.
        tempfile.TemporaryDirectory(prefix="regard-gpu-", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(command, env={**environment, "TMPDIR": folder}, process_group=0) as process,
    ):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all others of its group, and wait a little until they are gone."""
    until = time.monotonic() + 5
    with suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(0.05)


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def follow() -> None:
    """End a stage, its group and its temporary files with the program that began it, however that ends."""

    def end(number: int, frame: object) -> None:
        if (folder := Path(tempfile.gettempdir())).name.startswith("regard-gpu-"):
            shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG of <sys/prctl.h>


def leave(number: int, frame: object) -> None:
    """End this program; a second signal does not keep it from ending the stage and removing its files."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    parser = options(__doc__, out=RESULTS)
    parser.add_argument("--minutes", type=float, default=8.0, help="for all stages together, more than 0; default 8")
    parser.add_argument("--data", type=Path, help="the folder of Multi30k's raw text")
    parser.add_argument("--rehearse", action="store_true", help="small, on a CPU, Triton kernels interpreted; needs the extra triton")
    parser.add_argument("--stages", nargs="+", choices=SHARES, default=list(SHARES))
    parser.add_argument("--stage", choices=SHARES, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        follow()
        STAGES[arguments.stage](Stage(arguments.stage, arguments))
        return 0
    if why := unusable(arguments):
        print(why, file=sys.stderr)
        return 2
    # A stage is in a process group of its own, which no signal of the terminal reaches.
    for number in ENDING:
        signal.signal(number, leave)
    until, failed = time.monotonic() + 60 * arguments.minutes, []
    for name in arguments.stages:
        # What the stages before did not need is left to those that come.
        share = SHARES[name] / sum(SHARES[each] for each in arguments.stages[arguments.stages.index(name) :])
        seconds = max(10.0, share * (until - time.monotonic()))
        own = ["--stage", name, "--seconds", f"{seconds:.0f}", "--out", str(arguments.out)]
        own += ["--rehearse"] if arguments.rehearse else []
        own += ["--data", str(arguments.data)] if arguments.data else []
        environment = {**os.environ, **({"TRITON_INTERPRET": "1"} if arguments.rehearse and name == "area" else {})}
        print(f"== {name}: {seconds:.0f} s at most", flush=True)
        table, begun = arguments.out / f"gpu_{name}.json", time.time()
        # A stage stops at its time between two rows; one that hangs is killed a little later.
        if code := alone([sys.executable, __file__, *own], seconds + 30, environment):
            failed.append(name)
            print(f"== {name}: {'ran out of time and was killed' if code == 124 else f'exit code {code}'}", flush=True)
            if not table.exists() or table.stat().st_mtime < begun:
                older = f", and {table} holds those of an earlier run" if table.exists() else ""
                print(f"== {name}: no row was measured{older}", flush=True)
    if failed:
        print(f"== failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
