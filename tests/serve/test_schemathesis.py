"""Whatever a tool makes of the description, the server answers as the description says. The tool is not among our dependencies:

pip install schemathesis && pytest -m slow tests/serve/test_schemathesis.py
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serve.driver import serving

TOOL = shutil.which("schemathesis")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(TOOL is None, reason="schemathesis is not on PATH")
@pytest.mark.parametrize("task", ["run_folder", "classifier_folder", "entailer_folder", "captioner_folder"])
def test_no_request_made_from_the_description_is_answered_otherwise_than_described(
    task: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(task)
    # A description cannot say which texts are images: what it lets through may be refused. A caption of random weights does not end by
    # itself, and a thousand words of it take longer than a request may.
    captions = task == "captioner_folder"
    refusing = ["--exclude-checks", "positive_data_acceptance"]
    # Nor that `prefix` has as many entries as `text`.
    prefixed = "^/(translate|attention)$"
    alone = {"run_folder": [["--exclude-path-regex", prefixed], ["--include-path-regex", prefixed, *refusing]]}
    parts = alone.get(task, [refusing if captions else []])
    options = ["--max-output", 50] if captions else []
    # Room for the longest lines, as many as may be: the description of a body cannot say how many bytes it has.
    with serving(tmp_path, "--max-body", 4_000_000, *options, runs=[folder]) as server:
        address = f"http://127.0.0.1:{server.port}/openapi.json"
        phases = ["--checks", "all", "--phases", "examples,coverage,fuzzing", "--max-examples", "50", "--seed", "1"]
        phases += ["--request-timeout", "300"]
        told = ""
        for part in parts:
            done = subprocess.run([str(TOOL), "run", address, *phases, *part], capture_output=True, text=True, check=False, cwd=tmp_path)
            assert done.returncode == 0, done.stdout[-5000:]
            # Of images it warns that most are refused, which is no failure.
            assert captions or "No issues found" in done.stdout
            told += done.stdout
        logged = server.logged()
    assert sum(map(int, re.findall(r"(\d+) generated", told))) > 150
    statuses = {line["status"] for line in logged if line["event"] == "request"}
    assert {200, 405, 415, 422} <= statuses <= {200, 400, 403, 404, 405, 408, 413, 415, 421, 422, 499}
