"""Run a Hugging Face model on text or on an image, and record what attends to what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.errors import DataError, missing_extra, shortened
from regard.observe.recording import Recording
from regard.observe.watch import watch
from regard.viewer import AttentionRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

Texts = str | tuple[str, str] | Sequence[str] | Sequence[tuple[str, str]]


def watch_text(model: Any, tokenizer: Any, texts: Texts) -> tuple[Recording, list[list[str]], list[list[str]] | None]:
    """Run a model on texts and record it; an encoder-decoder on its own greedy output where none is given.

    Args:
        model: of Hugging Face, or called and configured as those are.
        tokenizer: its own.
        texts: one or several; with an output each is a pair.

    Returns:
        The recording, the tokens of each text, and of an encoder-decoder those of each decoder input, else None.

    Raises:
        DataError: a text has no tokens or more than the model takes, an output is given to a model that writes none, or one is missing.
    """
    rows: list[Any] = [texts] if isinstance(texts, str | tuple) else list(texts)
    sources: list[str] = [row if isinstance(row, str) else row[0] for row in rows]
    outputs: list[str] = [row[1] for row in rows if not isinstance(row, str)]
    writes = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    if len(outputs) not in (0, len(rows)) or (outputs and not writes):
        raise DataError("text: expected only texts, or, for an encoder-decoder, only pairs of a text and its output")
    with _evaluating(model):
        inputs = _encode(model, tokenizer, sources)
        if writes:
            inputs["decoder_input_ids"] = _decoder_inputs(model, tokenizer, inputs, outputs)
        with watch(model) as seen:
            model(**inputs)
    keys = [_tokens(tokenizer, ids, mask) for ids, mask in zip(inputs["input_ids"], _mask(inputs), strict=True)]
    if not writes:
        return seen, keys, None
    written = inputs["decoder_input_ids"]
    # The first token starts the output, and may be the one that pads.
    real = written != tokenizer.pad_token_id
    real[:, 0] = True
    return seen, keys, [_tokens(tokenizer, ids, mask) for ids, mask in zip(written, real, strict=True)]


def watch_image(model: Any, processor: Any, image: Any) -> Recording:
    """Run a vision model on an image and record it.

    Args:
        model: of Hugging Face, or called as those are.
        processor: its image processor.
        image: a file, or what the processor takes.

    Raises:
        DataError: the file cannot be read as an image.
    """
    if isinstance(image, str | Path):
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(image) as opened:
                image = opened.convert("RGB")
        except (OSError, UnidentifiedImageError) as error:
            raise DataError(f"{image}: cannot be read as an image ({error})") from error
    with _evaluating(model):
        inputs = _on_device(model, processor(images=image, return_tensors="pt"))
        with watch(model) as seen:
            model(**inputs)
    return seen


def records_of(model: Any, processor: Any, inputs: Sequence[str] | Sequence[Path], *, output: str | None = None) -> list[AttentionRecord]:
    """Run a model on texts or images, each alone, and return a record of each.

    Args:
        model: of Hugging Face.
        processor: its tokenizer or image processor.
        inputs: texts, or image files.
        output: what an encoder-decoder wrote to each text; None: its own greedy output.

    Raises:
        DataError: as `watch_text` and `watch_image`.
    """
    found = list[AttentionRecord]()
    for each in inputs:
        if isinstance(each, Path):
            found += watch_image(model, processor, each).records(image=each, title=each.name)
        else:
            seen, keys, queries = watch_text(model, processor, each if output is None else (each, output))
            found += seen.records(keys, queries, title=each)
    return found


def load_processor(folder: str | Path, *, images: bool = False) -> Any:
    """Read the tokenizer or image processor in the folder of a Hugging Face model; nothing is fetched, and no code in it runs.

    Raises:
        DataError: there is none, or it cannot be read; names the folder.
        MissingExtraError: transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise missing_extra("a Hugging Face model needs transformers 5.20 or newer", "hf") from error
    kind, what = (transformers.AutoImageProcessor, "image processor") if images else (transformers.AutoTokenizer, "tokenizer")
    try:
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises nothing more special
        raise DataError(f"{folder}: its {what} cannot be read: {shortened(' '.join(str(error).split()))}") from error


def _encode(model: nn.Module, tokenizer: Any, texts: Sequence[str]) -> dict[str, Tensor]:
    inputs = _on_device(model, tokenizer(list(texts), return_tensors="pt", padding=len(texts) > 1))
    length = inputs["input_ids"].shape[1]
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if not length:
        raise DataError(f"text: {texts[0]!r} has no tokens")
    if isinstance(most, int) and length > most:
        raise DataError(f"text: {length} tokens, and the model takes at most {most}")
    return inputs


def _decoder_inputs(model: Any, tokenizer: Any, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> Tensor:
    if not outputs:
        return model.generate(**inputs, do_sample=False, num_beams=1)[:, :-1]
    labels = _on_device(model, tokenizer(text_target=list(outputs), return_tensors="pt", padding=len(outputs) > 1))["input_ids"]
    return model.prepare_decoder_input_ids_from_labels(labels=labels)


def _mask(inputs: Mapping[str, Tensor]) -> Tensor:
    mask = inputs.get("attention_mask")
    return torch.ones_like(inputs["input_ids"]) if mask is None else mask


def _tokens(tokenizer: Any, ids: Tensor, real: Tensor) -> list[str]:
    # Padding behind the text is left out; what stands before it has a column, and keeps it.
    count = int(real.nonzero().max()) + 1
    return tokenizer.convert_ids_to_tokens(ids[:count].tolist())


def _on_device(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return {name: value.to(device) for name, value in inputs.items() if isinstance(value, Tensor)}


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Turn dropout and gradients off; afterwards each module is as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
