"""The number of usable cores: control groups of both versions, nested ones, and threads from their quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regard import cores
from regard.cores import PRODUCTS, THREADS, limit_products, limit_threads, quota_cores
from tests.tasks.tiny import FAMILIES, trained


def groups(folder: Path, line: str, files: dict[str, str]) -> int | None:
    """Return the quota with this line in the list of groups and these files below the mount."""
    listed = folder / "cgroup"
    listed.write_text(f"11:memory:/elsewhere\n{line}\n")
    for name, text in files.items():
        file = folder / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return quota_cores(listed, folder / "mount")


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/", {"cpu.max": "250000 100000\n"}, 3),  # rounded up: more threads than the quota lose little, fewer lose a core
        ("0::/", {"cpu.max": "5000 100000\n"}, 1),
        ("0::/", {"cpu.max": "max 100000\n"}, None),
        ("0::/", {}, None),
        ("0::/pod/box", {"pod/cpu.max": "200000 100000\n", "pod/box/cpu.max": "700000 100000\n"}, 2),  # the smallest of the ancestors
        ("0::/outside/name", {"cpu.max": "500000 100000\n"}, 5),  # the mount is the group itself
        ("4:cpu,cpuacct:/box", {"cpu,cpuacct/box/cpu.cfs_quota_us": "300000\n", "cpu,cpuacct/box/cpu.cfs_period_us": "50000\n"}, 6),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("4:cpuset:/", {"cpuset/cpu.cfs_quota_us": "100000\n", "cpuset/cpu.cfs_period_us": "100000\n"}, None),
        ("0::/", {"cpu.max": "100000 0\n"}, None),
        ("0::/", {"cpu.max": "nonsense\n"}, None),
    ],
)
def test_quota_of_control_groups(tmp_path: Path, line: str, files: dict[str, str], expected: int | None) -> None:
    assert groups(tmp_path, line, files) == expected


@pytest.mark.parametrize(
    ("quota", "given", "threads"),
    [(1, None, "1"), (7, None, None), (None, None, None), (1, "5", "5"), (1, "5,2", "5,2"), (1, "", "1"), (1, "abc", "1"), (1, "0", "1")],
)
def test_threads_follow_a_quota_below_the_cores(
    monkeypatch: pytest.MonkeyPatch, quota: int | None, given: str | None, threads: str | None
) -> None:
    monkeypatch.setattr(cores, "quota_cores", lambda: quota)
    monkeypatch.setattr(cores, "_affinity", lambda: 7)
    monkeypatch.delenv(THREADS, raising=False)
    if given is not None:
        monkeypatch.setenv(THREADS, given)
    limit_threads.cache_clear()
    try:
        changed = limit_threads()
        assert (os.environ.get(THREADS), changed) == (threads, threads is not None and threads != given)
    finally:
        monkeypatch.delenv(THREADS, raising=False)
        limit_threads.cache_clear()


@pytest.mark.parametrize(("given", "entries"), [(None, "256"), ("256", "256"), ("1000", "1000"), ("64", "64")])
def test_a_number_of_products_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, given: str | None, entries: str) -> None:
    monkeypatch.delenv(PRODUCTS)
    if given is not None:
        monkeypatch.setenv(PRODUCTS, given)
    limit_products()
    assert os.environ[PRODUCTS] == entries


@pytest.mark.parametrize(("kind", "entries"), [("gru", "256"), ("transformer", "64"), ("student", "256"), ("crossed", "64")])
def test_a_training_without_single_steps_keeps_fewer_products(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, entries: str
) -> None:
    monkeypatch.setenv(PRODUCTS, "256")
    trained(tmp_path, model=FAMILIES[kind])
    assert os.environ[PRODUCTS] == entries
