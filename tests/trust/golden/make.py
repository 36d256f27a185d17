"""The golden runs: of each released version one tiny run a task, what it is asked, and what it answered then.

python -m tests.trust.golden.make           writes those of this version, once; --replace as long as it is not released

    golden/0.1.0/translation/run/          as `regard train` leaves it, without checkpoints and log
    golden/0.1.0/translation/asked.json    the words of each command, and its standard input
    golden/0.1.0/translation/answers.json  what each command wrote
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard import __version__
from tests.tasks import tiny, tiny_captions, tiny_language, tiny_sentences

GOLDEN = Path(__file__).parent
RUN = "{run}"
SENTENCES = ["the film was a joy", "a bore", "", "riddle and dream of it", "unseen words only", "mess joy gem bore the plot"]
PAIRS = ["the dog\ta cat", "the saw\ta cow with a story", "", "\t", "one axe\tthe plane", "no tab at all"]
LINES = [*tiny.TEXTS, "", "Hund Hund Hund", "b"]
IMAGES = ["{images}/1.png", "{images}/2.png", "{images}/3.png"]

Ask = dict[str, Any]
ASKED: dict[str, list[Ask]] = {
    "translation": [
        {"words": ["translate", RUN, "--json"], "lines": [*LINES, "unbekannt: ÿ"]},
        {"words": ["translate", RUN, "--beam-size", "1", "--max-length", "5"], "lines": LINES},
    ],
    "captioning": [{"words": ["caption", RUN, *IMAGES, "--n-best", "2"], "lines": []}],
    "classification": [{"words": ["classify", RUN, "--json"], "lines": SENTENCES}],
    "entailment": [{"words": ["entail", RUN, "--json"], "lines": PAIRS, "code": 1}],
    "lm": [
        {"words": ["score", RUN, "--json"], "lines": LINES},
        {"words": ["generate", RUN, "--max-length", "7", "--json"], "lines": LINES},
    ],
}
"""What the run of each task is asked."""


def golden(version: str, task: str) -> Path:
    """Return the folder of the golden run of a version and task."""
    return GOLDEN / version / task


def versions() -> list[str]:
    """Return the versions that have golden runs."""
    return sorted(path.name for path in GOLDEN.iterdir() if path.name[0].isdigit())


def images(version: str) -> Path:
    """Return the folder of the images that the captioner of a version is shown."""
    return GOLDEN / version / "images"


def filled(words: list[str], run: Path, pictures: Path) -> list[str]:
    """Return the words of a command with the run and the images it is about."""
    return [word.replace(RUN, str(run)).replace("{images}", str(pictures)) for word in words]


def read_answers(out: bytes) -> list[Any]:
    """Return what a command wrote, a value a line: what is JSON is read, so that figures can be compared as such."""
    values = []
    for line in out.decode().removesuffix("\n").split("\n"):
        try:
            values.append(json.loads(line))
        except ValueError:
            values.append(line)
    return values


def difference(known: Any, found: Any, where: str = "answers") -> str | None:
    """Return where what is found is not what is known; None where it agrees. Figures may differ by rounding, and more may be told."""
    if isinstance(known, dict) and isinstance(found, dict):
        pairs = [(known[name], found.get(name), f"{where}.{name}") for name in known]
    elif isinstance(known, list) and isinstance(found, list):
        if len(known) != len(found):
            return f"{where}: {len(known)} before, {len(found)} now"
        pairs = [(one, other, f"{where}[{place}]") for place, (one, other) in enumerate(zip(known, found, strict=True))]
    elif isinstance(known, float) and isinstance(found, int | float):
        return None if math.isclose(known, found, rel_tol=1e-3, abs_tol=1e-4) else f"{where}: {known} before, {found} now"
    else:
        return None if known == found else f"{where}: {known!r} before, {found!r} now"
    return next((told for pair in pairs if (told := difference(*pair))), None)


def _train(task: str) -> Path:
    # In a folder of its own, with names as seen from there: what a run says of its data must not name this machine.
    folder = Path("made")
    folder.mkdir()
    training = {"max_updates": 100, "learning_rate": 0.02, "epochs": 100}
    match task:
        case "translation":
            return tiny.trained(folder, training=training)
        case "captioning":
            return tiny_captions.trained(folder, training={**training, "batch_tokens": 60})
        case "lm":
            tiny_language.run(folder, model={"embed_dim": 6, "hidden_size": 8, "num_layers": 1}, training=training)
        case _:
            tiny_sentences.train(tiny_sentences.configuration(folder, task=task, training=training), folder / "run")
    return folder / "run"


def _ask(words: list[str], lines: list[str], code: int) -> list[Any]:
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run([sys.executable, "-m", "regard", *words], input=text.encode(), stdout=subprocess.PIPE, check=False)
    assert done.returncode == code, done
    return read_answers(done.stdout)


def make(task: str, target: Path) -> None:
    """Train the run of a task, ask it, and write all of it to a folder."""
    asked, answers = ASKED[task], []
    run = _train(task)
    shutil.rmtree(run / "checkpoints")
    for name in ("log.jsonl", "images", "tokens"):
        if (run / name).is_dir():
            shutil.rmtree(run / name)
        (run / name).unlink(missing_ok=True)
    target.mkdir(parents=True)
    shutil.copytree(run, target / "run")
    if task == "captioning":
        pictures = sorted(path for path in Path("made").rglob("*.png"))[:3]
        target.with_name("images").mkdir()
        for number, path in enumerate(pictures, start=1):
            shutil.copy(path, target.with_name("images") / f"{number}.png")
    for ask in asked:
        answers.append(_ask(filled(ask["words"], target / "run", target.with_name("images")), ask["lines"], ask.get("code", 0)))
        # Two thirds of them or more differ, or they would not show much.
        assert len({json.dumps(answer) for answer in answers[-1]}) > len(ask["lines"]) // 2, answers[-1]
    for item in answers:
        for answer in item:
            if isinstance(answer, dict):
                answer.pop("image", None)  # its path
    for name, value in (("asked.json", asked), ("answers.json", answers)):
        (target / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def main() -> None:
    """Write the golden runs of this version."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replace", action="store_true", help="write them again: only while the version is not released")
    given = parser.parse_args()
    os.environ["REGARD_DEVICE"] = "cpu"
    place = GOLDEN / __version__
    if place.exists():
        if not given.replace:
            raise SystemExit(f"{place}: is there; a released version's runs stay as they are")
        shutil.rmtree(place)
    within: Callable[[str], Any] = contextlib.chdir
    for task in ASKED:
        with tempfile.TemporaryDirectory() as folder, within(folder):
            make(task, place / task)
        print(task, sum(path.stat().st_size for path in (place / task).rglob("*")), "bytes")


if __name__ == "__main__":
    main()
