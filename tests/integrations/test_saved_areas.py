"""The command line reads Hugging Face models that were saved with areas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.parametrize("mode", ["mean", "features"])
def test_a_model_saved_with_areas_is_checked_and_shown_with_them(call: Callable[..., Any], mode: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    from regard.integrations.transformers import enable_area
    from regard.observe.pretrained import records_of
    from regard.viewer import read_records

    sizes = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 7, "vocab_size": 19}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes)).eval()
    enable_area(model, max_area=3, layers=1, key_mode=mode)
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "b", "c"])}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    folder, records = tmp_path / "model", tmp_path / "records.json"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    checked = call("check", "--hf", folder)
    assert checked.code == 0
    assert checked.out.startswith(b"BertForSequenceClassification: no leak in ")
    assert "its areas are restored" in checked.err
    assert call("view", "--hf", folder, "--text", "a b c", "-o", records).code == 0
    (expected,), (found,) = records_of(model, tokenizer, ["a b c"]), read_records(records)
    assert [part.name for part in found.maps] == [part.name for part in expected.maps]
    for one, other in zip(found.maps, expected.maps, strict=True):
        assert one.weights == pytest.approx(other.weights, abs=1e-3)
