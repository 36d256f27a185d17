"""Runs a Hugging Face model on text or an image and records its attention."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, DataError, missing_extra, shortened, shown
from regard.observe.explained import add_explanations
from regard.observe.predictions import add_prediction, generates, real_outputs
from regard.observe.pretrained_batch import PretrainedBatch, image_batch, text_batch
from regard.observe.recording import Recording
from regard.observe.watch import watch
from regard.viewer import AttentionRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCABULARIES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken*")
"""Patterns of the files that hold the vocabulary of a tokenizer."""
SETTINGS = {"tokenizer_config.json"}
"""Files of these names that hold settings alone."""

Texts = str | tuple[str, str] | Sequence[str] | Sequence[tuple[str, str]]


class Watched(NamedTuple):
    """A recorded run on texts.

    Attributes:
        seen: the recording.
        keys: tokens of each text.
        queries: tokens of each decoder input of an encoder-decoder, else None.
        inputs: the model's inputs.
        logits: of its output, if it has any.
    """

    seen: Recording
    keys: list[list[str]]
    queries: list[list[str]] | None
    inputs: dict[str, Tensor]
    logits: Tensor | None


def watch_text(model: Any, tokenizer: Any, texts: Texts) -> Watched:
    """Run a model on texts and record it; an encoder-decoder without given outputs runs on its own greedy ones.

    Args:
        model: a Hugging Face model, or one with the same interface and configuration.
        tokenizer: its tokenizer.
        texts: one or several. A pair is, for a generative encoder-decoder, a text and its output; for other models two texts in one input,
            such as premise and hypothesis.

    Raises:
        DataError: there is no text, a text has no tokens or is longer than the model allows, a pair is given to a decoder, texts and pairs
            are mixed, or the tokenizer or the model is of another kind.
    """
    rows = _read_texts(texts)
    _check_pair(model, tokenizer)
    firsts: list[str] = [row if isinstance(row, str) else row[0] for row in rows]
    seconds: list[str] = [row[1] for row in rows if not isinstance(row, str)]
    writes = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    if len(seconds) not in (0, len(rows)) or (seconds and generates(model) and not writes):
        raise DataError(
            "text: expected only texts, or only pairs: a text and its output for an encoder-decoder, or the two texts of a classifier"
        )
    with _evaluating(model):
        inputs = _encode(model, tokenizer, firsts, [] if generates(model) else seconds)
        if writes:
            inputs["decoder_input_ids"] = _decoder_inputs(model, tokenizer, inputs, seconds)
        with watch(model) as seen:
            logits = _logits(model(**inputs))
    keys = [_tokens(tokenizer, ids, mask) for ids, mask in zip(inputs["input_ids"], _mask(inputs), strict=True)]
    if not writes:
        return Watched(seen, keys, None, inputs, logits)
    written = inputs["decoder_input_ids"]
    real = real_outputs(tokenizer, written)
    return Watched(seen, keys, [_tokens(tokenizer, ids, mask) for ids, mask in zip(written, real, strict=True)], inputs, logits)


def _read_texts(texts: Any) -> list[Any]:
    rows: list[Any] = [texts] if isinstance(texts, str | tuple) or not isinstance(texts, Iterable) else list(texts)
    if not rows:
        raise DataError("text: expected one text or several, found none")
    for row in rows:
        pair = isinstance(row, tuple | list) and len(row) == 2 and all(isinstance(part, str) for part in row)
        if not isinstance(row, str) and not pair:
            raise DataError(f"text: expected a text or a pair of texts, found {shown(row)}")
    return rows


def _check_pair(model: Any, tokenizer: Any) -> None:
    """Check that a model takes the output of a tokenizer, by their interfaces."""
    otherwise = "use regard.watch and view(seen, tokens)"
    if not callable(getattr(tokenizer, "convert_ids_to_tokens", None)) or not callable(tokenizer):
        raise DataError(f"tokenizer: expected one of Hugging Face, found {shown(tokenizer)}; for others {otherwise}")
    names = inspect.signature(model.forward).parameters
    if "input_ids" not in names and not any(each.kind is each.VAR_KEYWORD for each in names.values()):
        raise DataError(f"{type(model).__name__}: its forward takes no input_ids, so a tokenizer cannot feed it; {otherwise}")


def watch_image(model: Any, processor: Any, image: Any) -> tuple[Recording, dict[str, Tensor], Tensor | None]:
    """Run a vision model on an image; return the recording, the inputs, and the logits if the output has any.

    Args:
        model: a Hugging Face model, or one with the same interface.
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
            logits = _logits(model(**inputs))
    return seen, inputs, logits


def text_records(model: Any, tokenizer: Any, texts: Texts, *, methods: Sequence[str] = (), title: str = "") -> list[AttentionRecord]:
    """Run a model on texts, one at a time, and return a record of each, with its prediction and the scores of explanation methods.

    One at a time, because decoders such as GPT-2 have no padding token.

    Raises:
        DataError: see `watch_text`.
        ConfigError: a method cannot be computed; the message says why.
    """
    records = list[AttentionRecord]()
    for row in _read_texts(texts):
        found = watch_text(model, tokenizer, [row])
        (record,) = found.seen.records(found.keys, found.queries, title=title)
        record = add_prediction(record, model, found.logits, tokenizer)
        records += _explained([record], model, found.seen, methods, functools.partial(text_batch, model, tokenizer, found.inputs))
    return records


def image_records(
    model: Any,
    processor: Any,
    image: Any,
    *,
    grid: tuple[int, int] | None = None,
    methods: Sequence[str] = (),
    title: str = "",
) -> list[AttentionRecord]:
    """Run a vision model on an image and return its record, with its prediction and the scores of explanation methods.

    Raises:
        DataError: see `watch_image`.
        ConfigError: a method cannot be computed; the message says why.
    """
    seen, inputs, logits = watch_image(model, processor, image)
    records = [add_prediction(record, model, logits) for record in seen.records(image=image, grid=grid, title=title)]
    if grid is not None:
        seen.patches = seen.patches._replace(grid=grid)
    grid = seen.patches.grid
    return _explained(records, model, seen, methods, lambda: image_batch(model, inputs["pixel_values"], grid or (1, 1)))


def _explained(
    records: list[AttentionRecord], model: Any, seen: Recording, methods: Sequence[str], make: Callable[[], PretrainedBatch]
) -> list[AttentionRecord]:
    if not methods:
        return records
    with _evaluating(model):
        try:
            batch = make()
        except ConfigError as error:  # no head: only methods that use attention alone
            batch = error
        return add_explanations(records, seen, batch, methods)


def records_of(
    model: Any, processor: Any, inputs: Sequence[str] | Sequence[Path], *, output: str | None = None, methods: Sequence[str] = ()
) -> list[AttentionRecord]:
    """Run a model on texts or images, one at a time, and return a record of each.

    Args:
        model: a Hugging Face model.
        processor: its tokenizer or image processor.
        inputs: texts, for an encoder also two texts with a tab between them, or image files.
        output: the outputs of an encoder-decoder; None: its own greedy ones.
        methods: names of explanation methods whose scores are added; "all": all that can be computed.

    Raises:
        DataError: see `watch_text` and `watch_image`.
        ConfigError: a method cannot be computed; the message says why.
    """
    found = list[AttentionRecord]()
    for each in inputs:
        if isinstance(each, Path):
            found += image_records(model, processor, each, methods=methods, title=each.name)
        else:
            parts = [each] if generates(model) else each.split("\t", 1)
            parts += [] if output is None else [output]
            row = each if len(parts) == 1 else tuple(parts)
            found += text_records(model, processor, row, methods=methods, title=" / ".join(each.split("\t")))  # type: ignore[arg-type]
    return found


def load_processor(folder: str | Path, *, images: bool = False) -> Any:
    """Load the tokenizer or image processor from a model folder, offline and without running its code.

    Raises:
        DataError: it is missing or cannot be read; the message names the folder.
        MissingExtraError: transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise missing_extra("a Hugging Face model needs transformers 5.20 or newer", "hf") from error
    kind, what = (transformers.AutoImageProcessor, "image processor") if images else (transformers.AutoTokenizer, "tokenizer")
    _check_input_kind(Path(folder), images)
    try:
        processor = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises plain exceptions
        raise DataError(f"{folder}: its {what} cannot be read: {shortened(' '.join(str(error).split()))}") from error
    if not images:
        _check_vocabulary(Path(folder), processor)
    return processor


def _check_vocabulary(folder: Path, tokenizer: Any) -> None:
    """Refuse a folder without the files of a tokenizer: transformers then makes an empty one of the model's kind."""
    names = getattr(tokenizer, "vocab_files_names", {}).values()  # none: a tokenizer of bytes or characters
    found = [path.name for pattern in VOCABULARIES for path in folder.glob(pattern)]
    if names and not any((folder / name).is_file() for name in names) and not {*found} - SETTINGS:
        expected = " or ".join(dict.fromkeys(["tokenizer.json", *names]))
        raise DataError(f"{folder}: holds no tokenizer; expected {expected}, as tokenizer.save_pretrained({str(folder)!r}) writes")


def _check_input_kind(folder: Path, images: bool) -> None:
    reads_images = any((folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json"))
    reads_text = any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json"))
    if reads_images and not reads_text and not images:
        raise DataError(f"{folder}: has an image processor and no tokenizer; give images, not texts")
    if reads_text and not reads_images and images:
        raise DataError(f"{folder}: has a tokenizer and no image processor; give texts, not images")


def _encode(model: nn.Module, tokenizer: Any, texts: Sequence[str], seconds: Sequence[str]) -> dict[str, Tensor]:
    given = [list(texts), list(seconds)] if seconds else [list(texts)]
    inputs = _on_device(model, tokenizer(*given, return_tensors="pt", padding=len(texts) > 1))
    length = inputs["input_ids"].shape[1]
    if not length:
        raise DataError(f"text: {texts[0]!r} has no tokens")
    _check_length("text", length, model, "encoder")
    return inputs


def _check_length(what: str, length: int, model: Any, half: Literal["encoder", "decoder"]) -> None:
    # A model that was made of two has a configuration for each half, and perhaps a module of that name.
    config, key = getattr(model, "config", None), "max_position_embeddings"
    configs = [getattr(config, half, None), config, getattr(config, "text_config", None)]
    most = next((found for each in configs if (found := getattr(each, key, None)) is not None), None)
    part = getattr(model, half, model) if hasattr(configs[0], key) else model
    for name, table in part.named_modules():
        # Positions of the RoBERTa family begin behind the index of padding.
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding) and table.padding_idx is not None:
            most = min(most or table.num_embeddings, table.num_embeddings - table.padding_idx - 1)
    if isinstance(most, int) and length > most:
        raise DataError(f"{what}: {length} tokens, and the model takes at most {most}")


def _decoder_inputs(model: Any, tokenizer: Any, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> Tensor:
    if not generates(model):  # a classifier such as BartForSequenceClassification reads its input in the decoder, too
        ids, start = inputs["input_ids"], model.config.decoder_start_token_id
        return torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)
    if not outputs:
        return model.generate(**inputs, do_sample=False, num_beams=1)[:, :-1]
    labels = _on_device(model, tokenizer(text_target=list(outputs), return_tensors="pt", padding=len(outputs) > 1))["input_ids"]
    _check_length("output", labels.shape[1], model, "decoder")
    prepare, start = (getattr(model, name, None) for name in ("prepare_decoder_input_ids_from_labels", "generation_config"))
    try:
        if prepare is not None:
            return prepare(labels=labels)
        first = torch.full_like(labels[:, :1], start.decoder_start_token_id)  # type: ignore[union-attr]
    except (AttributeError, TypeError, ValueError) as error:  # no such number
        raise ConfigError(f"{type(model).__name__}: its configuration names no decoder_start_token_id; give no output") from error
    return torch.cat([first, labels[:, :-1]], 1)


def _logits(output: Any) -> Tensor | None:
    found = getattr(output, "logits", None)
    return found if isinstance(found, Tensor) else None


def _mask(inputs: Mapping[str, Tensor]) -> Tensor:
    mask = inputs.get("attention_mask")
    return torch.ones_like(inputs["input_ids"]) if mask is None else mask


def _tokens(tokenizer: Any, ids: Tensor, real: Tensor) -> list[str]:
    # Padding after the text is dropped; padding before it keeps its column.
    count = int(real.nonzero().max()) + 1
    return tokenizer.convert_ids_to_tokens(ids[:count].tolist())


def _on_device(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return {name: value.to(device) for name, value in inputs.items() if isinstance(value, Tensor)}


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Disable dropout and gradients; restore each module's mode afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
