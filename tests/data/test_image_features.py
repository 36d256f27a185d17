"""Features on disk: what was written comes back, a row at a time, and the file is ordinary safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from regard.data import FeatureFile, write_features
from regard.errors import DataError

IDS = ["b.jpg", "a.jpg", "ü 2.jpg", "10.jpg", "9.jpg"]
ROWS = np.random.default_rng(3).standard_normal((5, 6, 7)).astype(np.float32)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_features_come_back_by_id_in_any_order(tmp_path: Path, kind: type) -> None:
    write_features(tmp_path / "f.safetensors", IDS, iter(ROWS.astype(kind)), grid=(2, 3), encoder="timm resnet18")
    found = FeatureFile(tmp_path / "f.safetensors")
    assert (found.ids, found.grid, found.encoder, found.shape) == (tuple(IDS), (2, 3), "timm resnet18", (5, 6, 7))
    order = ["9.jpg", "ü 2.jpg", "9.jpg"]
    expected = torch.from_numpy(ROWS[[4, 2, 4]].astype(kind).astype(np.float32))
    assert torch.equal(found[order], expected)
    assert found[order].dtype == torch.float32
    assert found[[]].shape == (0, 6, 7)
    assert ("a.jpg" in found, "c.jpg" in found, len(found)) == (True, False, 5)


def test_the_file_is_what_safetensors_reads_and_what_it_writes_is_read(tmp_path: Path) -> None:
    write_features(tmp_path / "a", IDS, ROWS, grid=(2, 3))
    assert np.array_equal(load_file(tmp_path / "a")["features"], ROWS)
    tensors = {"another": np.zeros(11, np.float32), "features": ROWS}
    save_file(tensors, tmp_path / "b", {"ids": json.dumps(IDS), "grid": "2x3"})
    assert torch.equal(FeatureFile(tmp_path / "b")[IDS], torch.from_numpy(ROWS))


def test_rows_are_taken_one_at_a_time(tmp_path: Path) -> None:
    def rows() -> Iterator[np.ndarray]:
        for number in range(5):
            sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
            yield np.full((6, 99_991), number, np.float32)

    sizes: list[int] = []
    write_features(tmp_path / "f", IDS, rows(), grid=(2, 3))
    assert all(later > earlier for earlier, later in pairwise(sizes[1:]))


@pytest.mark.parametrize(
    ("ids", "rows", "message"),
    [
        ([], ROWS, "0 ids"),
        (["a", "a"], ROWS, "2 ids, 1 different"),
        (IDS[:3], ROWS, r"row 4: .*expected 3 rows"),
        (IDS, ROWS[:3], "3 rows, but 5 ids"),
        (IDS, [ROWS[0], ROWS[1, :, :5]], r"row 2: float32 \(6, 5\), expected 5 rows of float32 \(6, 7\)"),
        (IDS, [ROWS[0], ROWS[1].astype(np.float16)], r"row 2: float16"),
        (IDS, ROWS.astype(np.float64), r"row 1: float64"),
        (IDS, ROWS[:, :5], r"row 1: float32 \(5, 7\), expected float16 or float32 \(6, D\)"),
        (IDS, [], "0 rows, but 5 ids"),
    ],
)
def test_rows_that_do_not_fit_are_named_and_leave_no_file(tmp_path: Path, ids, rows, message: str) -> None:
    with pytest.raises(DataError, match=message):
        write_features(tmp_path / "f", ids, iter(rows), grid=(2, 3))
    assert list(tmp_path.iterdir()) == []


def test_a_grid_has_rows_and_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 1: float32 \(6, 7\), expected"):
        write_features(tmp_path / "f", IDS, ROWS, grid=(-2, -3))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_id_is_named(tmp_path: Path) -> None:
    write_features(tmp_path / "f", IDS, ROWS, grid=(2, 3))
    with pytest.raises(DataError, match=r"f: no features of x\.jpg"):
        FeatureFile(tmp_path / "f")[["a.jpg", "x.jpg"]]


def test_what_holds_no_features_is_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(DataError, match="f: no such file"):
        FeatureFile(path)
    ids = json.dumps(IDS)
    for tensors, metadata in (
        ({"features": ROWS}, None),
        ({"features": ROWS}, {"ids": ids}),
        ({"features": ROWS}, {"ids": "[", "grid": "2x3"}),
        ({"features": ROWS}, {"ids": json.dumps([[name] for name in IDS]), "grid": "2x3"}),
        ({"features": ROWS}, {"ids": json.dumps(list(range(5))), "grid": "2x3"}),
        ({"features": ROWS}, {"ids": ids, "grid": "-2x-3"}),
        ({"features": ROWS.astype(np.float64)}, {"ids": ids, "grid": "2x3"}),
        ({"features": ROWS[0]}, {"ids": ids, "grid": "2x3"}),
        ({"others": ROWS}, {"ids": ids, "grid": "2x3"}),
    ):
        save_file(tensors, path, metadata)
        with pytest.raises(DataError, match=r'expected ("features" \(N, L, D\)|ids that are text)|do not fit'):
            FeatureFile(path)
    for grid, names in (("2x5", IDS), ("2x3", IDS[:4]), ("2x3", [*IDS[:4], IDS[0]])):
        save_file({"features": ROWS}, path, {"ids": json.dumps(names), "grid": grid})
        with pytest.raises(DataError, match="do not fit"):
            FeatureFile(path)
    write_features(path, IDS, ROWS, grid=(2, 3))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="expected a safetensors file"):
        FeatureFile(path)
