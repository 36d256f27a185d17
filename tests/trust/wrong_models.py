"""Run folders that are what a run folder is, and still must not be used: each a change to a good one."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from regard.data.vocabulary import Vocabulary
from regard.training.atomic_folder import FORMAT
from tests.trust.golden.make import ASKED

Change = Callable[[Path], object]
HUGE = 2**40
DEEP = 100_000
WEIGHTS = "model/model.safetensors"


class Wrong(NamedTuple):
    """A way to make a run wrong.

    Attributes:
        task: of the run that is changed.
        name: of the case.
        change: takes the run folder.
        sealed: whether the manifest is then written anew, so that every sha256 matches.
    """

    task: str
    name: str
    change: Change
    sealed: bool = True


def configured(**changes: Any) -> Change:
    """Return what changes settings: `model__embed_dim=3`; a value that is a dictionary replaces what is there."""

    def change(run: Path) -> None:
        path = run / "config.yaml"
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, value in changes.items():
            *parents, last = name.split("__")
            place = tree
            for parent in parents:
                place = place[parent]
            place[last] = value
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")

    return change


def written(name: str, data: bytes) -> Change:
    """Return what gives a file other contents."""
    return lambda run: (run / name).write_bytes(data)


def edited(name: str, edit: Callable[[Any], Any]) -> Change:
    """Return what edits a JSON file."""

    def change(run: Path) -> None:
        (run / name).write_text(json.dumps(edit(json.loads((run / name).read_bytes()))), encoding="utf-8")

    return change


def headed(edit: Callable[[dict[str, Any]], Any]) -> Change:
    """Return what edits the header of the weights; what is edited is written whatever it is."""

    def change(run: Path) -> None:
        path = run / WEIGHTS
        whole = path.read_bytes()
        size = struct.unpack("<Q", whole[:8])[0]
        header = edit(json.loads(whole[8 : 8 + size]))
        data = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(data)) + data + whole[8 + size :])

    return change


def first(header: dict[str, Any], **entry: Any) -> dict[str, Any]:
    """Return a header in which the entry of the first tensor is changed."""
    name = next(name for name in header if name != "__metadata__")
    return {**header, name: {**header[name], **entry}}


def vocabulary(edit: Callable[[dict[str, Any]], object]) -> Change:
    """Return what edits the entries of a vocabulary."""

    def change(tree: dict[str, Any]) -> dict[str, Any]:
        edit(tree["tokenizer"]["model"]["vocab"])
        return tree

    return edited("vocabulary.json", change)


def other_vocabulary(run: Path) -> None:
    """Write a vocabulary of another text."""
    kind = json.loads((run / "vocabulary.json").read_bytes())["kind"]
    Vocabulary.train(["quite another text", "with words 0 1 2 3 4 5 6 7 8 9"], kind=kind, size=500).save(run / "vocabulary.json")


def swapped(run: Path) -> None:
    """Let two entries of the vocabulary change places: as good a vocabulary, of the same size."""

    def edit(entries: dict[str, int]) -> None:
        one, other = list(entries)[-2:]
        entries[one], entries[other] = entries[other], entries[one]

    vocabulary(edit)(run)


def linked(name: str, target: Callable[[Path], Path | str]) -> Change:
    """Return what puts a link in the place of a file or folder, which `target` may move out of the run."""

    def change(run: Path) -> None:
        place = target(run / name)
        path = run / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(place)

    return change


def outside(path: Path) -> Path:
    """Move something out of its run, as it is."""
    run = next(parent for parent in path.parents if parent.name == "run")
    return Path(shutil.move(path, run.parent / f"elsewhere-{path.name}"))


def piped(name: str) -> Change:
    """Return what puts a pipe that nobody writes to in the place of a file."""

    def change(run: Path) -> None:
        (run / name).unlink()
        os.mkfifo(run / name)

    return change


def nested(kind: str) -> bytes:
    """Return JSON of a great depth."""
    return b"[" * DEEP + b"]" * DEEP if kind == "lists" else b'{"a":' * DEEP + b"1" + b"}" * DEEP


def bomb(levels: int = 7, width: int = 60) -> bytes:
    """Return a small YAML file that refers to its own parts so often that, written out, it fills no memory there is."""
    lines = ["l0: &l0 {a: 1}"]
    for level in range(1, levels):
        lines.append(f"l{level}: &l{level} {{{', '.join(f'k{i}: *l{level - 1}' for i in range(width))}}}")
    return "\n".join(lines).encode()


SIZES: dict[str, list[str]] = {
    "translation": [
        "embed_dim",
        "encoder_dim",
        "decoder_dim",
        "readout_dim",
        "encoder_layers",
        "decoder_layers",
        "attention__attention_dim",
    ],
    "captioning": ["embed_dim", "decoder_dim", "attention_dim", "feature_dim"],
    "classification": ["embed_dim", "hops", "attention_dim", "mlp_dim", "encoder__hidden_dim", "encoder__layers"],
    "entailment": ["embed_dim", "hops", "attention_dim", "mlp_dim", "fusion_dim", "encoder__hidden_dim", "encoder__layers"],
    "lm": ["embed_dim", "hidden_size", "layers"],
}
TRANSFORMER = {"type": "transformer", "embed_dim": 8, "ff_dim": 8, "num_heads": 1}
WHOLE: dict[str, list[dict[str, Any]]] = {
    "translation": [
        {**TRANSFORMER, "encoder_layers": 10**9},
        {**TRANSFORMER, "decoder_layers": 10**9},
        {**TRANSFORMER, "ff_dim": HUGE},
        {**TRANSFORMER, "embed_dim": HUGE},
        {**TRANSFORMER, "area": {"max_area": 10**9, "key_mode": "features"}},
        {"type": "crossed", "embed_dim": 8, "num_heads": 1, "encoder_layers": 10**9},
    ],
    "captioning": [
        {"type": "transformer", "embed_dim": 8, "num_heads": 1, "encoder_layers": 10**9, "encoder": {"channels": [3]}},
        {"encoder": {"channels": [10**9, 10**9]}},
        {"encoder": {"channels": [3] * 100_000}},
        {"area": {"height": 10**9, "width": 10**9}},
    ],
    "classification": [{"encoder": {"type": "transformer", "num_heads": 1, "num_layers": 10**9}}],
    "entailment": [{"encoder": {"type": "crossed", "num_heads": 1, "num_layers": 10**9}}],
    "lm": [{"attention": "key_value_predict", "hidden_size": 3 * 10**9}],
}


def of_configurations() -> list[Wrong]:
    """Return configurations that ask for another model, or for one of any size."""
    found = []
    for task, names in SIZES.items():
        for name in names:
            for size in (17, 10**6, 10**9, HUGE, 10**30):
                change = configured(**{f"model__{name}": size})
                found.append(Wrong(task, f"{name} of {size}", change))
    found += [Wrong(task, f"a model of {str(tree)[:60]}", configured(model=tree)) for task, trees in WHOLE.items() for tree in trees]
    files = {
        "lists within lists": b"[" * DEEP,
        "keys within keys": b"{a: " * DEEP,
        "a file that refers to its own parts": bomb(),
        "lists that refer to each other": bomb().replace(b"{a: 1}", b"[1, 1]"),
        "30 MB of keys": b"".join(b"key%d: 1\n" % number for number in range(2_000_000)),
        "30 MB of a comment": b"#" + b"x" * 30_000_000,
        "a name of 30 MB": b"task: " + b"x" * 30_000_000,
        "a tag that would call a function": b"!!python/object/apply:os.system ['true']\n",
        "bytes of no text": bytes(range(256)),
        "nothing": b"",
        "another task": b"task: summary\n",
        "a number of a thousand digits": b"training: {seed: " + b"9" * 1000 + b"}\n",
    }
    return [*found, *(Wrong("translation", f"config.yaml: {name}", written("config.yaml", data)) for name, data in files.items())]


def of_weights() -> list[Wrong]:
    """Return weights whose header is not what the data are, or not what the model is."""
    edits: dict[str, Callable[[dict[str, Any]], Any]] = {
        "a tensor of 2^80 numbers": lambda header: first(header, shape=[HUGE, HUGE]),
        "a tensor of 2^40 numbers": lambda header: first(header, shape=[HUGE]),
        "a negative shape": lambda header: first(header, shape=[-1, 3]),
        "a shape of a thousand axes": lambda header: first(header, shape=[1] * 1000),
        "offsets past the end": lambda header: first(header, data_offsets=[0, HUGE]),
        "offsets backwards": lambda header: first(header, data_offsets=[40, 0]),
        "another type": lambda header: first(header, dtype="F64"),
        "a type there is not": lambda header: first(header, dtype="X9"),
        "an own type of whole numbers": lambda header: first(header, dtype="I32"),
        "lists within lists": lambda header: nested("lists"),
        "keys within keys": lambda header: nested("keys"),
        "no header": lambda header: b"",
        "a list": lambda header: b"[]",
        "a tensor fewer": lambda header: dict(list(header.items())[:-1]),
        "a tensor under another name": lambda header: {
            f"other.{name}" if n == 1 else name: v for n, (name, v) in enumerate(header.items())
        },
        "a hundred thousand empty tensors": lambda header: {
            **header,
            **{f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)},
        },
    }
    whole: dict[str, bytes] = {
        "a header of 2^63 bytes": struct.pack("<Q", 2**63) + b"{}",
        "a header of 2^27 bytes": struct.pack("<Q", 2**27) + b"{}",
        "a pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
        "a zip": b"PK\x03\x04" + b"\0" * 400,
        "nothing": b"",
    }
    found = [Wrong(task, f"weights: {name}", headed(edit)) for task in ASKED for name, edit in edits.items()]
    return [*found, *(Wrong("lm", f"weights: {name}", written(WEIGHTS, data)) for name, data in whole.items())]


def of_small_files() -> list[Wrong]:
    """Return vocabularies, labels and manifests that are none, or those of another run."""
    found = []
    for task in ASKED:
        found += [
            Wrong(task, "the vocabulary of another text", other_vocabulary),
            Wrong(task, "a vocabulary in another order, not vouched for", swapped, sealed=False),
            *(
                Wrong(task, f"vocabulary.json: {kind} within {kind}", written("vocabulary.json", nested(kind)))
                for kind in ("lists", "keys")
            ),
            *(
                Wrong(task, f"manifest.json: {kind} within {kind}", written("model/manifest.json", nested(kind)), False)
                for kind in ("lists", "keys")
            ),
            *(
                Wrong(task, f"state.json: {kind} within {kind}", written("model/state.json", nested(kind)), False)
                for kind in ("lists", "keys")
            ),
        ]
    edits: dict[str, Callable[[dict[str, Any]], object]] = {
        "a number far too large": lambda entries: entries.update(x=HUGE),
        "a number twice": lambda entries: entries.update(x=5),
        "a number below 0": lambda entries: entries.update(x=-1),
        "a number that is none": lambda entries: entries.update(x="1"),
        "no special tokens": lambda entries: [entries.pop(name) for name in list(entries)[:4]],
        "no entries": lambda entries: entries.clear(),
    }
    found += [Wrong(task, f"vocabulary.json: {name}", vocabulary(edit)) for task in ("translation", "lm") for name, edit in edits.items()]
    found += [
        Wrong("lm", "vocabulary.json: another kind", edited("vocabulary.json", lambda tree: {**tree, "kind": "bpe"})),
        Wrong("lm", "vocabulary.json: a kind there is not", edited("vocabulary.json", lambda tree: {**tree, "kind": "../x"})),
        Wrong("lm", "vocabulary.json: another format", edited("vocabulary.json", lambda tree: {**tree, "format": "regard vocabulary 9"})),
        Wrong("classification", "labels.json: one more", edited("labels.json", lambda labels: [*labels, "more"])),
        Wrong("classification", "labels.json: one twice", edited("labels.json", lambda labels: [labels[0]] * len(labels))),
        Wrong("classification", "labels.json: numbers", edited("labels.json", lambda labels: list(range(len(labels))))),
        Wrong("classification", "labels.json: keys", edited("labels.json", lambda labels: dict.fromkeys(labels, 1))),
        Wrong("entailment", "labels.json: none", edited("labels.json", lambda labels: [])),
        Wrong("entailment", "labels.json: lists within lists", written("labels.json", nested("lists"))),
        Wrong("entailment", "labels.json: two million", edited("labels.json", lambda labels: [str(i) for i in range(2_000_000)])),
        Wrong("lm", "manifest.json: another format", edited("model/manifest.json", lambda tree: {**tree, "format": 9}), sealed=False),
        Wrong("lm", "manifest.json: a list", written("model/manifest.json", b"[]"), sealed=False),
    ]
    return found


def of_links() -> list[Wrong]:
    """Return links out of the folder, to themselves and to devices, pipes, and folders where files should be."""
    found = []
    for name in ("config.yaml", "vocabulary.json", "data.json", WEIGHTS, "model/manifest.json", "model/state.json", "model"):
        found.append(Wrong("translation", f"{name} is a link out of the folder", linked(name, outside), sealed=False))
        found.append(Wrong("lm", f"{name} is a link to itself", linked(name, lambda path: path), sealed=False))
        if name == "model":
            continue
        found.append(Wrong("lm", f"{name} is a link to a device without end", linked(name, lambda path: "/dev/zero"), sealed=False))
        found.append(Wrong("lm", f"{name} is a pipe", piped(name), sealed=False))
    found.append(Wrong("classification", "labels.json is a link out of the folder", linked("labels.json", outside), sealed=False))
    found.append(
        Wrong("classification", "a link that climbs", linked("labels.json", lambda path: f"../run/../../{path.name}"), sealed=False)
    )
    return found


def all_cases() -> list[Wrong]:
    """Return every case."""
    return [*of_configurations(), *of_weights(), *of_small_files(), *of_links()]


Manifest = Callable[[Path, dict[str, Any]], None]


def of_checkpoints() -> list[tuple[str, Callable[[Path, Manifest], object]]]:
    """Return changes of a checkpoint, which take its folder and what writes a manifest that vouches for itself."""

    def naming(name: str) -> Callable[[Path, Manifest], None]:
        def change(folder: Path, write: Manifest) -> None:
            tree = json.loads((folder / "manifest.json").read_bytes())
            write(folder, {"format": FORMAT, "files": {**tree["files"], name: "0" * 64}, "run_files": tree["run_files"]})

        return change

    def link(name: str) -> Callable[[Path, Manifest], None]:
        def change(folder: Path, write: Manifest) -> None:
            place = folder.parents[2] / f"elsewhere-{name or folder.name}"
            shutil.move(folder / name if name else folder, place)
            (folder / name if name else folder).symlink_to(place)

        return change

    def pipe(name: str) -> Callable[[Path, Manifest], None]:
        def change(folder: Path, write: Manifest) -> None:
            (folder / name).unlink()
            os.mkfifo(folder / name)

        return change

    names = ["../../../outside", "/etc/hostname", "..", ".", "", "a/b", "a\0b", "\ud800", "x" * 5000, "\n", "model.safetensors/"]
    changes: list[tuple[str, Callable[[Path, Manifest], object]]] = [
        (f"a manifest that names {name[:20]!r}", naming(name)) for name in names
    ]
    changes += [
        (f"{name or 'the checkpoint'} is a link out of the folder", link(name)) for name in ("", "manifest.json", "ema.safetensors")
    ]
    changes += [(f"{name} is a pipe", pipe(name)) for name in ("manifest.json", "state.json", "ema.safetensors")]
    return changes
