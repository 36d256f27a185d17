"""On Ray the same workers do the same work; needs the extra `ray`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.test_process_worker import WORKER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray (pip install '.[ray]')"),
]
PORT = 6397
DRIVER = """
import json, sys
from regard.jobs import open_pool
pool = open_pool(["doubling_worker"], on=sys.argv[1], workers=int(sys.argv[2]) if len(sys.argv) > 2 else None)
answers = {}
pool.run({str(number): {"do": "double", "number": number} for number in range(7)}, answers.__setitem__)
print(json.dumps([pool.count, answers]))
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    words = ["start", "--head", "--port", str(PORT), "--num-cpus", "3", "--include-dashboard=false", "--disable-usage-stats"]
    # With a token, as after a temporary cluster of `--on ray`, which makes one.
    home = tmp_path_factory.mktemp("home")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("ab" * 32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        subprocess.run([*ray, *words], check=True, capture_output=True, timeout=120)
        yield f"127.0.0.1:{PORT}"
        subprocess.run([*ray, "stop", "--force"], check=True, capture_output=True, timeout=120)


def drive(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "doubling_worker.py").write_text(WORKER)
    return subprocess.run([sys.executable, "-c", DRIVER, *words], cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_jobs_are_done_in_the_folder_of_who_hands_them_out(address: str, tmp_path: Path) -> None:
    done = drive(tmp_path, address)
    assert done.returncode == 0, done.stderr
    count, answers = json.loads(done.stdout.splitlines()[-1])
    assert count == 3
    assert answers == {str(number): {"twice": 2 * number, "threads": "1"} for number in range(7)}
    assert done.stderr.count("this is no answer") == 7


def test_more_workers_than_there_is_room_for_wait(address: str, tmp_path: Path) -> None:
    done = drive(tmp_path, address, "5")
    assert done.returncode == 0, done.stderr
    count, answers = json.loads(done.stdout.splitlines()[-1])
    assert (count, len(answers)) == (5, 7)


def test_an_address_without_a_cluster_is_named(tmp_path: Path) -> None:
    done = drive(tmp_path, "127.0.0.1:6")
    assert "ConfigError: --on 127.0.0.1:6: no Ray cluster there" in done.stderr


@pytest.mark.parametrize("wrong", ["nonsense", "127.0.0.1:99999", ":6379"])
def test_what_is_no_address_is_told(tmp_path: Path, wrong: str) -> None:
    assert f'ConfigError: --on {wrong}: expected "ray" or the address of a Ray cluster' in drive(tmp_path, wrong).stderr
