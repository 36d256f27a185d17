"""Records of a training: read, grouped by example, and drawn as an animation."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.errors import DataError
from regard.viewer import AttentionMap, AttentionRecord, Grid, TrainingPoint, group_by_example, read_history, save_animation, write_records
from tests.viewer import samples


def trained(updates: int = 5, *, title: str = "validation sentence 3", model: str = "run") -> list[AttentionRecord]:
    """An alignment that grows sharper with every update."""
    found = []
    for number in range(updates):
        weights = samples.rows_of(len(samples.TARGET), len(samples.SOURCE), 3, sharp=number)
        made = AttentionRecord.alignment(samples.SOURCE, samples.TARGET, weights, title=title)
        found.append(replace(made, model=model, point=TrainingPoint(100 * number, None if number == 0 else 5.5 - number)))
    return found


def test_a_point_survives_a_file_and_records_without_one_are_as_before(tmp_path: Path) -> None:
    records = [*trained(2), samples.alignment()]
    write_records(tmp_path / "attention.jsonl", records)
    assert [record.to_json() for record in read_history(tmp_path)] == [record.to_json() for record in records]
    assert [record.point for record in read_history(tmp_path)] == [TrainingPoint(0), TrainingPoint(100, 4.5), None]
    assert "point" not in samples.alignment().to_json()


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"update": -1}, "point: update: expected a whole number of 0 or more, found -1"),
        ({"update": 1, "loss": float("nan")}, "point: loss: expected a finite number"),
        ({"loss": 1.0}, "point: update: missing"),
        ({"update": 1, "epoch": 2}, "point: epoch: unknown field"),
        (3, "point: expected a point of a training"),
    ],
)
def test_a_point_that_does_not_fit_is_refused(point: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        AttentionRecord({}, point=point)  # type: ignore[arg-type]


def test_a_line_that_is_being_written_is_left_out_and_a_damaged_one_named(tmp_path: Path) -> None:
    path = tmp_path / "attention.jsonl"
    write_records(path, trained(3))
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert len(read_history(tmp_path)) == 2
    assert len(read_history(path)) == 2
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(DataError, match=r"attention\.jsonl, line 1: "):
        read_history(tmp_path)


def test_images_are_taken_from_the_first_record_of_their_example(tmp_path: Path) -> None:
    records = []
    for update in (0, 7):
        for title, width in (("a", 20), ("b", 30)):
            image = samples.picture(width, 20) if update == 0 else None
            records.append(AttentionRecord({"image": Grid(2, 3, image)}, title=title, point=TrainingPoint(update)))
    records.append(AttentionRecord({"image": Grid(2, 3)}, title="a"))
    write_records(tmp_path / "attention.jsonl", records)
    images = [record.items["image"].image for record in read_history(tmp_path)]
    assert images == [samples.picture(20, 20), samples.picture(30, 20)] * 2 + [None]


def test_records_are_grouped_by_model_and_title_and_ordered_by_update() -> None:
    one, two = trained(3), trained(2, model="other")
    alone = samples.alignment()
    groups = group_by_example([one[2], alone, one[0], two[0], alone, one[1], two[1]])
    assert groups == [one, [alone], two, [alone]]


def test_an_animation_has_a_picture_per_update_in_the_same_colours(tmp_path: Path) -> None:
    save_animation(trained(5), tmp_path / "a.gif")
    save_animation(trained(5), tmp_path / "b.gif")
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()
    with Image.open(tmp_path / "a.gif") as animation:
        assert animation.n_frames == 5  # type: ignore[attr-defined]
        assert animation.info["loop"] == 0
        frames, durations = [], []
        for number in range(5):
            animation.seek(number)
            durations.append(animation.info["duration"])
            frames.append(np.asarray(animation.convert("L"), np.float64))
    assert durations == [400] * 4 + [2400]
    assert all((a != b).any() for a, b in itertools.pairwise(frames))
    assert frames[0].min() <= 5, "text is black"
    # The even weights of the first update, all 1/5, are paler than the largest of the last.
    dark = [(frame < 80).sum() for frame in frames]
    assert dark[-1] > dark[0]


@pytest.mark.parametrize("photograph", [True, False])
def test_an_animation_over_an_image_has_a_panel_per_word(tmp_path: Path, photograph: bool) -> None:
    grid = Grid(2, 3, samples.picture(60, 40) if photograph else None)
    first, second = np.full((2, 6), 1 / 6), np.eye(6)[:2]
    maps = [AttentionMap("image", "cross", "target", "image", weights) for weights in (first, second)]
    points = [TrainingPoint(0, 3.0), TrainingPoint(9, 1.0)]
    records = [AttentionRecord({"image": grid, "target": ["a", "dog"]}, [own], point=at) for own, at in zip(maps, points, strict=True)]
    save_animation(records, tmp_path / "a.gif")
    frames = []
    with Image.open(tmp_path / "a.gif") as animation:
        for number in range(2):
            animation.seek(number)
            frames.append(np.asarray(animation.convert("RGB"), np.float64))
    # Below the title, which changes, are the photograph and a panel per word; only the panels change, all of them.
    height, width = frames[0].shape[:2]
    changed = np.abs(frames[0] - frames[1])[height // 3 : height // 2].max(axis=(0, 2)) > 8
    parts = [bool(part.any()) for part in np.array_split(changed[width // 20 : width * 19 // 20], 3 if photograph else 2)]
    assert parts == ([False, True, True] if photograph else [True, True])


def test_one_map_and_head_can_be_animated(tmp_path: Path) -> None:
    record = samples.transformer()
    records = [replace(record, point=TrainingPoint(update)) for update in (0, 9)]
    save_animation(records, tmp_path / "a.gif", map=record.maps[1].name, head=1)
    with pytest.raises(DataError, match="no such map"):
        save_animation(records, tmp_path / "b.gif", map="strange")
    assert not (tmp_path / "b.gif").exists()


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (trained(1), "two updates or more, found 1"),
        ([*trained(2), *trained(2, title="another")], "one example at several updates"),
        ([samples.alignment(), samples.alignment()], "one example at several updates"),
        (
            [replace(AttentionRecord.alignment(["a"], [word], [[1.0]]), point=TrainingPoint(at)) for at, word in enumerate("bc")],
            "the items of alignment change from update to update",
        ),
    ],
)
def test_what_cannot_be_animated_is_refused(tmp_path: Path, records: list[AttentionRecord], message: str) -> None:
    with pytest.raises(DataError, match=message):
        save_animation(records, tmp_path / "a.gif")
    with pytest.raises(DataError, match=r"ends in \.gif"):
        save_animation(trained(2), tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []
