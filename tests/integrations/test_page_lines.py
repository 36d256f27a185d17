"""A page with a language model inside tells the log-probabilities and weights of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.errors import ConfigError
from regard.integrations.page_model import page_model
from regard.integrations.portable_run import OpenedRun
from regard.tasks.language_prediction import LanguageModel
from regard.viewer import page_records
from regard.viewer.page import render_page
from tests.integrations.test_page_model import WITHIN, answers, compare_maps
from tests.tasks.tiny_language import ATTENDING, TEXTS, language_model
from tests.viewer.conftest import driver  # noqa: F401 - a fixture

LINES = [*filter(None, TEXTS), "ein x", "e" * 23]


def opened(found: LanguageModel, folder: Path) -> OpenedRun:
    found.run.vocabulary.save(folder / "vocabulary.json")
    return OpenedRun(folder, found.run.config, found.run.model, {"text": "vocabulary.json"}, ())


@pytest.mark.parametrize("kind", ["character", "word"])
@pytest.mark.parametrize("attention", ATTENDING)
def test_the_record_of_a_line_is_that_of_the_run(driver: Any, attention: str, kind: str, tmp_path: Path) -> None:  # noqa: F811
    found = language_model(kind, model={"attention": attention})
    found = LanguageModel(found.run._replace(folder=tmp_path))
    page = tmp_path / "model.html"
    page.write_text(render_page([], live=True, models=["run"], task="lm", embedded=page_model(opened(found, tmp_path))), encoding="utf-8")
    for line, (there,) in zip(LINES, answers(driver, page, "answer({ text })", LINES), strict=True):
        record = found.record(line)
        assert record is not None
        here = json.loads(json.dumps(page_records([record])[0]))
        assert (there["items"], there["main"]) == (here["items"], here["main"])
        assert [each["name"] for each in there["maps"]] == ["window"]
        compare_maps(there["maps"][0], here["maps"][0])
        np.testing.assert_allclose(there["scores"]["text"], here["scores"]["text"], atol=WITHIN)
        first = [[each[0][0] for each in given["alternatives"]["text"]] for given in (there, here)]
        assert first[0] == first[1]


def test_a_language_model_without_attention_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.attention: none"):
        page_model(opened(language_model(model={"attention": "none"}), tmp_path))
