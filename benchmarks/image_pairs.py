"""Prepare image and English to German: the sentences of Multi30k whose photograph is also in Flickr8k.

    python benchmarks/image_pairs.py --data FOLDER --out FOLDER/generated/image_pairs
    regard compare studies/image_german.yaml --data FOLDER

Multi30k names each sentence's photograph by Flickr's number, and Flickr8k's files begin with it. The split is Multi30k's: Flickr8k's own
would put photographs of the test set into the training set. Writes the files `PART.en`, `PART.de` and `PART.images` (file names, a line for
each sentence) for train, val and test, and the photographs beside them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness import options

from regard.data.image_archive import ImageArchive
from regard.data.lines import read_lines

PARTS = {"train": "train", "val": "val", "test": "test_2016_flickr"}


def prepare(data: Path, out: Path) -> dict[str, int]:
    """Write the files of all parts; return the number of sentences of each."""
    archive = ImageArchive(data / "flickr8k" / "flickr8k_96px.tar")
    names = {Path(name).name.partition("_")[0]: name for name in archive.names}
    raw, splits = data / "multi30k" / "task1" / "raw", data / "multi30k" / "task1" / "image_splits"
    out.mkdir(parents=True, exist_ok=True)
    counts = {}
    for part, title in PARTS.items():
        columns = [read_lines(splits / f"{title}.txt"), *(read_lines(raw / f"{title}.{language}.gz") for language in ("en", "de"))]
        rows = [row for row in zip(*columns, strict=True) if Path(row[0]).stem in names]
        for name, _, _ in rows:
            (out / name).write_bytes(archive[names[Path(name).stem]].read())
        for place, suffix in enumerate(("images", "en", "de")):
            (out / f"{part}.{suffix}").write_text("".join(f"{row[place]}\n" for row in rows), encoding="utf-8")
        counts[part] = len(rows)
    return counts


def main() -> None:
    """Prepare all parts and print their sizes."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of multi30k and flickr8k")
    given = parser.parse_args()
    if given.out is None:
        parser.error("--out: expected the folder to write")
    unfinished = given.out.with_name(given.out.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for part, count in prepare(given.data, unfinished).items():
        print(part, count)
    unfinished.rename(given.out)


if __name__ == "__main__":
    main()
