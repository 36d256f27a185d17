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
def test_no_request_made_from_the_description_is_answered_otherwise_than_described(tmp_path: Path, run_folder: Path) -> None:
    # Room for the longest lines, as many as may be: the description of a body cannot say how many bytes it has.
    with serving(tmp_path, "--max-body", 4_000_000, runs=[run_folder]) as server:
        address = f"http://127.0.0.1:{server.port}/openapi.json"
        phases = ["--checks", "all", "--phases", "coverage,fuzzing", "--max-examples", "50", "--seed", "1", "--request-timeout", "300"]
        done = subprocess.run([str(TOOL), "run", address, *phases], capture_output=True, text=True, check=False)
        logged = server.logged()
    assert done.returncode == 0, done.stdout[-5000:]
    assert "No issues found" in done.stdout
    assert int(re.findall(r"(\d+) generated", done.stdout)[0]) > 300
    statuses = {line["status"] for line in logged if line["event"] == "request"}
    assert {200, 405, 415, 422} <= statuses <= {200, 400, 403, 404, 405, 408, 413, 415, 421, 422, 499}
