"""Precomputed image features: a memory-mapped safetensors file with row ids."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from regard.data.lines import open_whole, unreadable
from regard.errors import DataError, counted
from regard.strict_json import parse_json

NAME = "features"
TYPES = {"float16": "F16", "float32": "F32"}


def write_features(path: str | Path, ids: Sequence[str], rows: Iterable[np.ndarray], *, grid: tuple[int, int], encoder: str = "") -> None:
    """Write features into a safetensors file with the tensor "features" (N, L, D), one row in memory at a time.

    Ids, grid and encoder are in the file's metadata. The file is written atomically.

    Args:
        path: the file.
        ids: a unique name per row (`CaptionSet.ids`).
        rows: an array (L, D) per id, float16 or float32, of equal shape and dtype.
        grid: height h and width w of the grid of cells; L = h * w, row by row.
        encoder: description of the encoder.

    Raises:
        DataError: no or repeated ids, wrong shapes or dtypes, unequal numbers of rows and ids, or the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_features(Path(folder, "f"), ["a", "b"], (np.full((6, 5), n, np.float16) for n in (1, 2)), grid=(2, 3))
        ...     FeatureFile(Path(folder, "f"))[["b"]].mean()
        tensor(2.)
    """
    path = Path(path)
    if not ids or len(set(ids)) < len(ids):
        raise DataError(f"{path}: {counted(len(ids), 'id')}, {len(set(ids))} different: expected at least one, none twice")
    with open_whole(path) as stream:
        count, first = 0, None
        for count, row in enumerate(rows, start=1):
            if first is None:
                first = row
                stream.write(_header(ids, _checked(first, grid, path), encoder=encoder, grid=grid))
            if count > len(ids) or row.shape != first.shape or row.dtype != first.dtype:
                expected = f"expected {len(ids)} rows of {first.dtype} {first.shape}"
                raise DataError(f"{path}, row {count}: {row.dtype} {row.shape}, {expected}")
            stream.write(np.ascontiguousarray(row).astype(row.dtype.newbyteorder("<"), copy=False).tobytes())
        if count != len(ids):
            raise DataError(f"{path}: {counted(count, 'row')}, but {counted(len(ids), 'id')}")


class FeatureFile:
    """Features read from a file of `write_features`, or any safetensors file with "features" (N, L, D) and such metadata.

    `features[ids]` gives float32 (n, L, D) and reads only these rows from the disk.

    Args:
        path: the file.

    Attributes:
        ids: names of the rows.
        grid: height and width of the grid of cells.
        encoder: description of the encoder, or "".
        shape: (N, L, D).

    Raises:
        DataError: the file is missing, not a safetensors file, or without such features.

    Example:
        >>> FeatureFile("missing.safetensors")
        Traceback (most recent call last):
        regard.errors.DataError: missing.safetensors: no such file

    For an example see `write_features`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with safe_open(self.path, framework="numpy") as opened:  # checks lengths and offsets
                metadata = opened.metadata() or {}
                names = list(opened.keys())
            with open(self.path, "rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = parse_json(stream.read(length))
        except (OSError, ValueError, SafetensorError) as error:
            if isinstance(error, OSError):
                raise unreadable(path, error) from error
            advice = "; regard.data.image_features.write_features makes one from arrays"
            raise DataError(f"{path}: expected a safetensors file of features ({error}){advice}") from error
        try:
            self.ids: tuple[str, ...] = tuple(parse_json(metadata["ids"]))
            if not all(isinstance(name, str) for name in self.ids):
                raise DataError(f"{path}: expected ids that are text, the names of images")
            height, width = (int(part) for part in metadata["grid"].split("x"))
            entry = header[NAME]
            kind = {"F16": "<f2", "F32": "<f4"}[entry["dtype"]]
            rows, cells, depth = entry["shape"]
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(f'{path}: expected "{NAME}" (N, L, D) of F16 or F32 with ids and grid, found {names}') from error
        if min(height, width) < 1 or rows != len(self.ids) or cells != height * width or len(set(self.ids)) < rows:
            raise DataError(f"{path}: {len(self.ids)} ids and grid {height}x{width} do not fit features {(rows, cells, depth)}")
        self.grid = (height, width)
        self.encoder = metadata.get("encoder", "")
        self.shape: tuple[int, int, int] = (rows, cells, depth)
        self._rows = {name: number for number, name in enumerate(self.ids)}
        self._values = np.memmap(self.path, kind, "r", offset=8 + length + entry["data_offsets"][0], shape=self.shape)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def id_of(self, image: str | Path) -> str:
        """Return the id of an image: its path as given, or else the longest end of it that is an id, such as the name of its file.

        Raises:
            DataError: none is in the file.
        """
        parts = Path(image).parts
        ends = ("/".join(parts[start:]) for start in range(len(parts)))
        found = next((name for name in (str(image), *ends) if name in self._rows), None)
        if found is None:
            raise DataError(f"{self.path}: no features of {image}; it has ids such as {self.ids[0]}")
        return found

    def __getitem__(self, ids: Sequence[str]) -> torch.Tensor:
        """Return the features of some images: float32 (n, L, D), a copy.

        Raises:
            DataError: an id is not in the file.
        """
        unknown = next((name for name in ids if name not in self._rows), None)
        if unknown is not None:
            raise DataError(f"{self.path}: no features of {unknown}")
        numbers = np.array([self._rows[name] for name in ids], dtype=np.int64)
        return torch.from_numpy(np.asarray(self._values[numbers], dtype=np.float32))


def _checked(row: np.ndarray, grid: tuple[int, int], path: Path) -> np.ndarray:
    if row.ndim != 2 or min(grid) < 1 or row.shape[0] != grid[0] * grid[1] or 0 in row.shape or row.dtype.name not in TYPES:
        expected = f"float16 or float32 ({grid[0] * grid[1]}, D) for a grid of {grid[0]}x{grid[1]}"
        raise DataError(f"{path}, row 1: {row.dtype} {row.shape}, expected {expected}")
    return row


def _header(ids: Sequence[str], row: np.ndarray, *, grid: tuple[int, int], encoder: str) -> bytes:
    metadata = {"ids": json.dumps(list(ids)), "grid": f"{grid[0]}x{grid[1]}", "encoder": encoder}
    tensor = {"dtype": TYPES[row.dtype.name], "shape": [len(ids), *row.shape], "data_offsets": [0, len(ids) * row.nbytes]}
    text = json.dumps({"__metadata__": metadata, NAME: tensor}).encode()
    text += b" " * (-len(text) % 8)  # the data start at a multiple of 8, as safetensors writes them
    return struct.pack("<Q", len(text)) + text
