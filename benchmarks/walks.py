"""Which files of the package four pieces of work pass through, in the order in which each is reached first.

    python benchmarks/walks.py

Writes docs/results/walks.json and walks_files.json. Tiny models are trained, then each walk runs by `regard`'s own command in a fresh
process with a profile hook: one line through `translate`, a training batch of a Transformer with areas up to the optimizer's step, one
image through `caption`, and one POST /translate from the moment it is sent. Every module is imported before, so that imports count
nowhere. A return is a function reached for the first time in a file that was left before.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from harness import RESULTS, Table, options, regard, versions

from regard.data.synthetic.scene_files import write_scenes
from regard.data.synthetic.scenes import SceneSettings, generate_scenes

PACKAGE = Path(importlib.import_module("regard").__file__ or "").parent
# What review of commit 4df2b91 counted with such a hook on tiny models: files, functions, returns.
BEFORE = {"translate": (54, 225, 86), "train": (50, 216, 89), "caption": (47, 171, 59), "serve": (52, 196, 71)}
TITLES = {
    "translate": "one line through `translate`",
    "train": "a training batch with areas, up to the optimizer's step",
    "caption": "one image through `caption`",
    "serve": "one POST /translate",
}
SIZES = ["model.embed_dim=16", "model.ff_dim=16", "model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1"]
SOURCE, PORT = "ein Hund bellt", 18017


class Walk:
    """The functions of the package in the order in which they were reached first: (file, name)."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], None] = {}
        self.on = True

    def hook(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call."""
        code = frame.f_code
        if self.on and event == "call" and code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<"):
            self.seen.setdefault((code.co_filename.removeprefix(f"{PACKAGE}/").removesuffix(".py"), code.co_qualname))

    def figures(self) -> dict[str, Any]:
        """Return the files in order, and how many functions and returns there were."""
        files = [file for file, _ in self.seen]
        known: set[str] = set()
        returns = 0
        for number, file in enumerate(files):
            returns += file in known and files[number - 1] != file
            known.add(file)
        return {"files": list(dict.fromkeys(files)), "functions": len(self.seen), "returns": returns}


def walk(name: str, words: list[str]) -> dict[str, Any]:
    """Run a command under the hook in this process; return what it passed through."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from regard import cli

    for module in pkgutil.walk_packages([str(PACKAGE)], "regard."):
        with suppress(ImportError):  # the native library is no module; an extra may not be there
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    made = Walk()
    register_optimizer_step_post_hook(lambda *_: setattr(made, "on", False))
    if name == "serve":
        made.on = False
        threading.Thread(target=_post, args=(made,), daemon=True).start()
    sys.argv = ["regard", *words]
    sys.stdin = io.TextIOWrapper(io.BytesIO(f"{SOURCE}\n".encode()))
    threading.setprofile(made.hook)
    sys.setprofile(made.hook)
    with redirect_stdout(io.TextIOWrapper(io.BytesIO())):
        try:
            cli.main()
        except SystemExit as leaving:
            if leaving.code:
                raise
    sys.setprofile(None)
    return made.figures()


def _post(made: Walk) -> None:
    """Wait until the server is ready, ask once, and stop it."""
    address = f"http://127.0.0.1:{PORT}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).read()
            break
        except OSError:
            time.sleep(0.1)
    made.on = True
    request = urllib.request.Request(
        f"{address}/translate", json.dumps({"text": SOURCE}).encode(), headers={"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=30).read()
    made.on = False
    os.kill(os.getpid(), signal.SIGINT)


def prepare(folder: Path) -> dict[str, list[str]]:
    """Train the models; return the command of each walk."""
    texts = ["ein Hund bellt", "der Hund sieht ein Haus", "ein Haus", "das Haus sieht den Hund"] * 4
    (folder / "a").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    scenes = generate_scenes(13, seed=3, start=0, settings=SceneSettings(size=32, objects=(2, 2), radius=(3, 4), captions=2))
    captions, _ = write_scenes(folder, "train", scenes)
    text = ["--source", str(folder / "a"), "--target", str(folder / "a"), "recipe=none", "data.valid_size=2", "vocabulary.kind=character"]
    text += ["model.type=transformer", *SIZES, "training.max_updates=1", "training.workers=1", "decoding.max_length=9"]
    pictures = [
        "--captions",
        str(captions),
        "data.valid_size=2",
        "image.size=32",
        "training.max_updates=1",
        "model.encoder.channels=[3, 5]",
    ]
    train = ["train", "translation", *text]
    regard(*train, "--out", str(folder / "translation"))
    regard("train", "captioning", *pictures, "decoding.max_length=9", "--out", str(folder / "captioning"))
    image = next((folder / "train").glob("*.png"))
    return {
        "translate": ["translate", str(folder / "translation")],
        "train": [*train, "model.area.max_area=3", "--out", str(folder / "areas")],
        "caption": ["caption", str(folder / "captioning"), str(image)],
        "serve": ["serve", str(folder / "translation"), "--port", str(PORT)],
    }


def main() -> None:
    if sys.argv[1:2] == ["--walk"]:
        found = walk(sys.argv[2], sys.argv[3:])
        print(json.dumps(found))
        return
    arguments = options(__doc__, out=RESULTS / "walks.json").parse_args()
    columns = ["walk", "files before", "files", "functions before", "functions", "returns before", "returns"]
    note = f"`python benchmarks/walks.py`, {versions()}, native kernels; before: commit 4df2b91, counted by hand with a hook of this kind."
    table = Table(arguments.out, columns, note)
    orders = Table(
        arguments.out.with_stem(f"{arguments.out.stem}_files"), ["walk", "files of src/regard in the order of their first call"], ""
    )
    with tempfile.TemporaryDirectory() as name:
        for walked, words in prepare(Path(name)).items():
            command = [sys.executable, __file__, "--walk", walked, *words]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "REGARD_DEVICE": "cpu"})
            found = json.loads(done.stdout.splitlines()[-1])
            files, functions, returns = BEFORE[walked]
            table.add([TITLES[walked], files, len(found["files"]), functions, found["functions"], returns, found["returns"]])
            orders.add([TITLES[walked], ", ".join(f"`{file}`" for file in found["files"])])


if __name__ == "__main__":
    main()
