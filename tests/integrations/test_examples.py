"""The example runs as it is, and shows what it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "hf_area_attention.py"


def test_the_example_trains_shows_and_restores_a_model_with_areas(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, last = (float(loss) for loss in re.findall(r"loss (\S+) at first, (\S+) after", done.stdout)[0])
    assert last < first - 0.3
    assert "9 attention layers" in done.stdout
    assert "model.decoder.layers.0.encoder_attn: 6 items, 20 areas" in done.stdout
    assert "saved and brought back: the same outputs" in done.stdout
    assert list(tmp_path.iterdir()) == []
