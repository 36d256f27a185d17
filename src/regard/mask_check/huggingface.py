"""Adapters for Hugging Face models from their configuration, batches of random tokens, and loading from folders."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, DataError, missing_extra, shown
from regard.mask_check.adapter import Adapter, Inputs, Sequence, Side
from regard.mask_check.automatic import companions_of

LENGTH, ROWS = 9, 4
WINDOWS = ("sliding_window", "attention_window_size")
CACHES = ("cache", "past_key_values")
"""Names of the cache among the arguments and outputs of a model: of transformers 5.24, and of older ones."""
LONGEST = 40
"""Max columns of random tokens; enough to exceed a short attention window."""
SPECIAL = 10
"""Smallest random token id, if the vocabulary is large enough: lower ids are mostly special tokens."""


def is_hugging_face(model: nn.Module) -> bool:
    """Return whether a model is from Hugging Face transformers, without importing it."""
    return any(kind.__module__ == "transformers.modeling_utils" and kind.__name__ == "PreTrainedModel" for kind in type(model).__mro__)


def load_folder(folder: str | Path) -> nn.Module:
    """Load a model from a folder with `config.json` and safetensors weights; no code of the folder is run.

    Args:
        folder: as written by `save_pretrained`.

    Raises:
        DataError: it is no such folder, or its files do not fit; the message names it.
        MissingExtraError: transformers is not installed.

    Example:
        >>> load_folder("no-such-folder")
        Traceback (most recent call last):
            ...
        regard.errors.DataError: no-such-folder: no such folder
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder}: not the folder of a Hugging Face model, it has no config.json")
    try:
        import transformers
    except ImportError as error:
        raise missing_extra("a Hugging Face model needs transformers 5.20 or newer", "hf") from error
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        names = config.architectures or []
        kind = getattr(transformers, names[0], None) if names else transformers.AutoModel
        if kind is None:
            raise DataError(f"{folder}: transformers has no model {shown(names[0])}")
        with _no_progress_bar(transformers):
            return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False, use_safetensors=True)
    except DataError:
        raise
    except Exception as error:  # safetensors raises plain exceptions
        told = " ".join(str(error).split())
        raise DataError(f"{folder}: cannot be loaded as a Hugging Face model: {told}") from error


@contextmanager
def _no_progress_bar(transformers: Any) -> Iterator[None]:
    logging = transformers.utils.logging
    shown_before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown_before:
            logging.enable_progress_bar()


def hugging_face_adapter(model: Any, batch: Inputs | None) -> Adapter:
    """Return the adapter of a Hugging Face text model.

    Encoders may attend to all positions, decoders to earlier ones, both within their masks. A decoder is padded on both sides. For left
    padding it gets position ids that skip padding, as in `generate`, unless the user's batch is padded on the left without any. Its cache
    is checked if it has one.

    Args:
        model: a `PreTrainedModel`.
        batch: the user's, or None.

    """
    parameters = inspect.signature(model.forward).parameters
    name = "input_ids" if batch is None or "input_ids" in batch else "inputs_embeds"
    pad = _pad(model)
    companions = () if batch is None else companions_of(batch, name)
    mask = ("attention_mask",) if batch is None or "attention_mask" in batch else ()
    source = Sequence(name, mask=mask, pad=pad if mask or _ends_in_padding(model, batch) else None, companions=companions)
    if model.config.is_encoder_decoder:
        if type(model).__name__.endswith("ForSequenceClassification") and "decoder_input_ids" not in (batch or {}):
            base = f"check the model it is built on: regard.check(model.base_model), a {type(model.base_model).__name__}"
            raise ConfigError(f"{type(model).__name__}: its decoder reads the input of the encoder, which a check varies alone; {base}")
        return _encoder_decoder(model, batch, source)
    if not _is_decoder(model):
        return Adapter((source,), _call)
    # A sequence classifier finds the last token by the padding token, so the mask alone is not enough.
    labels = "labels" if batch is not None and "labels" in batch and batch["labels"].shape == batch[name].shape else None
    sequence = replace(source, causal=True, labels=labels)
    if "ForSequenceClassification" in type(model).__name__:
        return Adapter((replace(sequence, labels=None),), _call, skip=("padding content",))
    own: Side = "left" if _is_padded_left(batch) else "right"
    # Position ids that count columns fit one side; a left-padded batch without any is run as it is, and reported.
    by_column = batch is not None and "position_ids" in batch and "position_ids" not in companions
    sides: tuple[Side, ...] = (own,) if by_column or not mask else ("right", "left")
    call = _call if own == "left" else _call_as_generate
    if _cache_name(model) in parameters and name == "input_ids" and getattr(model.config, "use_cache", False):
        # A step of a recurrent layer reads one token, the first one many.
        chunked = not getattr(model, "_is_stateful", False)
        return Adapter((sequence,), call, _start, _step, chunked=chunked, window=_window(model), sides=sides)
    return Adapter((sequence,), call, sides=sides)


def reads_text(model: Any, batch: Inputs | None) -> bool:
    """Return whether a Hugging Face model reads text, which `hugging_face_adapter` supports.

    Raises:
        ConfigError: there is no batch, and the model reads no tokens.
    """
    parameters = inspect.signature(model.forward).parameters
    if batch is None and not {"input_ids", "attention_mask"} <= parameters.keys():
        name = getattr(model, "main_input_name", "pixel_values")
        raise ConfigError(
            f"{type(model).__name__}: it takes no input_ids with an attention_mask, so no batch can be made for it; give one in Python: "
            f"regard.check(model, {{{name!r}: ...}})"
        )
    given = parameters if batch is None else batch
    return "attention_mask" in parameters and any(name in given and name in parameters for name in ("input_ids", "inputs_embeds"))


def told(adapter: Adapter, causal: bool | Literal["strict"] | None, pad: int | None, call: Callable[[Any, Inputs], Any] | None) -> Adapter:
    """Return the adapter with the user's arguments in place of the configuration's."""
    *others, last = adapter.sequences
    if causal is not None and causal != last.causal:
        last = replace(last, causal=causal)
        if not causal:  # a model that sees later tokens cannot decode with a cache
            adapter = replace(adapter, start=None, step=None, chunked=False)
    sequences = (*others, last)
    if pad is not None:
        sequences = (replace(sequences[0], pad=pad), *sequences[1:])
    if call is not None:
        adapter = replace(adapter, call=call, start=None, step=None, chunked=False, sides=adapter.sides[:1])
    return replace(adapter, sequences=sequences)


def hugging_face_batch(model: Any) -> Inputs:
    """Return a batch of random tokens for a Hugging Face text model, with rows of different lengths."""
    generator = torch.Generator().manual_seed(3)
    pad, size = _pad(model) or 0, _vocabulary(model)
    window = _window(model) or 0
    length = max(LENGTH, window + 5) if window + 5 <= min(LONGEST, getattr(model.config, "max_position_embeddings", LONGEST)) else LENGTH
    tokens = torch.randint(min(SPECIAL, size // 2), size, (ROWS, length), generator=generator)
    tokens = torch.where(tokens == pad, (tokens + 1) % size, tokens)
    mask = torch.arange(length) < torch.tensor([length - 2 * row for row in range(ROWS)]).unsqueeze(1)
    batch = {"input_ids": torch.where(mask, tokens, pad), "attention_mask": mask.long()}
    if model.config.is_encoder_decoder:
        target = torch.randint(min(SPECIAL, size // 2), size, (ROWS, LENGTH - 1), generator=generator)
        batch["decoder_input_ids"] = torch.where(target == pad, (target + 1) % size, target)
    return {key: value.to(model.device) for key, value in batch.items()}


def _vocabulary(model: Any) -> int:
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        embedding = None
    if not isinstance(embedding, nn.Embedding):
        raise ConfigError(f"{type(model).__name__}: it has no embedding of tokens; give a batch")
    return embedding.num_embeddings


def _window(model: Any) -> int | None:
    config = model.config.get_text_config()
    found = [size for name in WINDOWS if isinstance(size := getattr(config, name, None), int)]
    return found[0] if found else None


def _pad(model: Any) -> int | None:
    pad = getattr(model.config.get_text_config(), "pad_token_id", None)
    return pad if isinstance(pad, int) and 0 <= pad < _vocabulary(model) else 0


def _ends_in_padding(model: Any, batch: Inputs | None) -> bool:
    """Return whether some but not all rows end in the padding token: a missing mask. An end-of-text token may be a real token."""
    config = model.config.get_text_config()
    pad, tokens = getattr(config, "pad_token_id", None), None if batch is None else batch.get("input_ids")
    if pad is None or not isinstance(tokens, Tensor) or tokens.ndim != 2 or pad == getattr(config, "eos_token_id", None):
        return False
    ends = tokens[:, -1] == pad
    return bool(ends.any()) and not bool(ends.all())


def _is_decoder(model: Any) -> bool:
    config = model.config.get_text_config()
    if config.model_type == "xlnet":  # bidirectional, unless it gets a perm_mask or is built for one direction
        return config.attn_type == "uni"
    if config.model_type in ("xlm", "flaubert"):  # either, by a setting
        return config.causal
    if getattr(config, "is_decoder", False) or model.can_generate():
        return True
    # A decoder without output layer cannot generate; known decoder classes are causal.
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

    kind = config.model_type
    return kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _encoder_decoder(model: Any, batch: Inputs | None, source: Sequence) -> Adapter:
    if batch is not None and "decoder_input_ids" not in batch and "labels" in batch:
        # The decoder input is made of the labels: output t may depend on those before t.
        return Adapter((source, Sequence("labels", causal="strict")), _call)
    mask = ("decoder_attention_mask",) if batch is not None and "decoder_attention_mask" in batch else ()
    target = Sequence("decoder_input_ids", mask=mask, causal=True, pad=_pad(model) if mask else None)
    if getattr(model.config, "use_cache", False):
        return Adapter((source, target), _call, _start, _step, chunked=True)
    return Adapter((source, target), _call)


def _call(model: Any, inputs: Inputs) -> Any:
    extra: Inputs = {}
    parameters = inspect.signature(model.forward).parameters
    if "use_cache" in parameters:
        extra["use_cache"] = False
    output = model(**inputs, **extra, return_dict=True)
    # The cache is no output to compare; a loss has no positions.
    return {key: value for key, value in output.items() if key not in (*CACHES, "loss")}


def _call_as_generate(model: Any, inputs: Inputs) -> Any:
    # With left padding `generate` passes position ids that count real tokens.
    if _is_padded_left(inputs) and "position_ids" in inspect.signature(model.forward).parameters and "position_ids" not in inputs:
        inputs = inputs | {"position_ids": (inputs["attention_mask"].long().cumsum(-1) - 1).clamp(min=0)}
    return _call(model, inputs)


def _is_padded_left(batch: Inputs | None) -> bool:
    mask = None if batch is None else batch.get("attention_mask")
    return mask is not None and mask.ndim == 2 and bool((mask[:, 0] == 0).any())


def _cache_name(model: Any) -> str:
    # What the model's forward pass calls its cache.
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in CACHES if name in parameters), CACHES[-1])


def _start(model: Any, inputs: Inputs) -> dict[str, Any]:
    state: dict[str, Any] = {"attention_mask": inputs.get("attention_mask"), "position_ids": inputs.get("position_ids"), "read": 0}
    if getattr(model, "_is_stateful", False):
        # As in `generate`: cache and positions are passed. Layers with internal state lose it without a cache.
        from transformers import DynamicCache

        model(inputs["input_ids"][:, :1], use_cache=False)
        state["cache"] = DynamicCache(config=model.config.get_text_config())
        if state["position_ids"] is None:
            state["position_ids"] = torch.arange(inputs["input_ids"].shape[1], device=model.device).expand(inputs["input_ids"].shape)
    if model.config.is_encoder_decoder:
        encoded = {key: value for key, value in inputs.items() if key in ("input_ids", "inputs_embeds", "attention_mask")}
        state["encoder_outputs"] = model.get_encoder()(**encoded, return_dict=True)
    return state


def _step(model: Any, tokens: Tensor, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    read = state["read"] + tokens.shape[1]
    cache = state.get("cache")
    given: Inputs = {_cache_name(model): cache, "use_cache": True, "return_dict": True}
    mask = state["attention_mask"]
    if state["read"] and model.config.model_type in ("mamba", "falcon_mamba"):  # its `generate` gives the mask to the first step alone
        mask = None
    if model.config.is_encoder_decoder:
        given |= {"decoder_input_ids": tokens, "encoder_outputs": state["encoder_outputs"], "attention_mask": mask}
    else:
        given |= {"input_ids": tokens, "attention_mask": None if mask is None else mask[:, :read]}
        if state["position_ids"] is not None:
            given["position_ids"] = state["position_ids"][:, state["read"] : read]
    output = model(**given)
    kept = next((output[key] for key in CACHES if key in output), cache)
    shown_outputs = {key: output[key] for key in ("logits", "last_hidden_state") if key in output}
    return shown_outputs, state | {"cache": kept, "read": read}
