"""Exports a Transformer as a model folder of CTranslate2, a fast CPU engine for translation; needs the extra `ctranslate2`.

Both return the same hypotheses if they search alike. CTranslate2 divides scores by `length ** length_penalty` (Regard: `((5 + length) / 6)
** alpha`), has its own stopping rule for `length_penalty=0`, and never returns an empty hypothesis. So:

    in Regard        decoding.length_penalty 0
    in CTranslate2   translate_batch(..., length_penalty=1e-9, min_decoding_length=0, max_decoding_length=the same)

1e-9 changes no score (`length ** 1e-9` is 1 in float32) and selects Regard's stopping rule: as many finished hypotheses as beams.
`docs/migration.md` has an example.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.config import ModelConfig, TransformerConfig
from regard.data.shortlist import Shortlist
from regard.data.vocabulary import BOS, EOS, UNK
from regard.errors import ConfigError, missing_extra
from regard.integrations.portable_run import check_output, new_folder, vocabulary_entries
from regard.models import Encoder, Transformer, sinusoidal_positions
from regard.models.transformer_layers import DecoderLayer, EncoderLayer, FeedForward, SourceAttention
from regard.tasks.run_folder import run_task
from regard.tasks.shortlist import FILE as SHORTLIST
from regard.tasks.shortlist import read_shortlist
from regard.tasks.translation_run import SHARED, SOURCE, TARGET, open_translation_run

try:
    from ctranslate2.converters import utils
    from ctranslate2.specs import common_spec
    from ctranslate2.specs.transformer_spec import TransformerSpec
except ImportError as error:
    raise missing_extra("regard.integrations.ctranslate2 needs ctranslate2", "ctranslate2") from error

__all__ = ["export_run", "vocabulary_entries"]

# CTranslate2 limits the length of sentences; Regard does not. The folder contains the position table.
POSITIONS = 2048
_BREAKS = frozenset(" \t\n")
ACTIVATIONS = {"relu": common_spec.Activation.RELU, "swish": common_spec.Activation.SWISH, "gelu": common_spec.Activation.GELU}


def export_run(run: str | Path, folder: str | Path) -> None:
    """Write a trained run as a CTranslate2 model folder, in float32, with Regard's vocabulary files.

    Its tokens are the entries of Regard's vocabulary in the order of their ids. CTranslate2 appends the source's EOS itself.

    Args:
        run: a run folder.
        folder: must not exist, or must be empty.

    Raises:
        CheckpointError: the run cannot be opened.
        ConfigError: the folder is not empty, or CTranslate2 does not support the model; the message names the setting.

    Example:
        >>> export_run("no-such-run", "out")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    if (task := run_task(Path(run))) != "translation":
        raise ConfigError(f"{run}: a run of the task {task}, but CTranslate2 only translates; export it with --format onnx or html")
    opened, folder = open_translation_run(run), Path(folder)
    check_output(folder)
    check_config(opened.config.model)
    assert isinstance(opened.config.model, TransformerConfig)
    names = [SHARED, SHARED] if opened.config.vocabulary.shared else [SOURCE, TARGET]
    source, target = (vocabulary_entries(opened.folder / name) for name in names)
    spec = model_spec(cast(Transformer, opened.model), opened.config.model)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    special = {"bos_token": BOS, "eos_token": EOS, "unk_token": UNK, "decoder_start_token": BOS}
    settings: Any = spec.config
    for name, number in special.items():
        setattr(settings, name, target[number])
    settings.add_source_eos = True
    settings.layer_norm_epsilon = opened.config.model.norm_eps
    spec.validate()
    spec.optimize()
    with new_folder(folder) as new:
        spec.save(str(new))
        for name in set(names):
            shutil.copy(opened.folder / name, new / name)
        if (opened.folder / SHORTLIST).exists():
            (new / "vmap.txt").write_text(vocabulary_map(read_shortlist(opened), source, target), encoding="utf-8")


def vocabulary_map(shortlist: Shortlist, source: Sequence[str], target: Sequence[str]) -> str:
    r"""Return a shortlist as the vocabulary map of CTranslate2, for `translate_batch(..., use_vmap=True)`.

    One line per source token: the token, a tab, its target tokens with spaces between them. The first line, without a source token, has
    those of every sentence. Tokens with a space cannot be written, as in a vocabulary of characters; they are left out.

    Example:
        >>> vocabulary_map(Shortlist([4], {4: [5]}), ["<pad>", "<unk>", "<s>", "</s>", "ein"], ["<pad>", "<unk>", "<s>", "</s>", "a", "b"])
        '\t<unk> <s> </s> a\nein\tb\n'
    """

    def line(key: str, tokens: Iterable[int]) -> str:
        return f"{key}\t{' '.join(target[token] for token in tokens if not set(target[token]) & _BREAKS)}\n"

    rows = [(source[token], found) for token, found in sorted(shortlist.tokens.items()) if not set(source[token]) & _BREAKS]
    return "".join(line(key, found) for key, found in [("", shortlist.always), *rows])


def check_config(config: ModelConfig) -> None:
    """Refuse a model that CTranslate2 cannot run.

    Raises:
        ConfigError: the message names the setting.

    Example:
        >>> from regard.config import CrossedConfig
        >>> check_config(CrossedConfig())
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: model.type: crossed, but CTranslate2 runs standard Transformers only
    """
    if not isinstance(config, TransformerConfig):
        raise ConfigError(f"model.type: {config.type}, but CTranslate2 runs standard Transformers only")
    if config.decoder == "recurrent":
        raise ConfigError("model.decoder: recurrent, but CTranslate2 runs standard Transformers only")
    if config.second is not None:
        raise ConfigError("model.second: set, but CTranslate2 reads one input only")
    if config.area is not None:
        raise ConfigError("model.area: set, but CTranslate2 has no area attention")
    if config.copy_attention:
        raise ConfigError("model.copy_attention: true, but CTranslate2 copies no words")
    if config.normalizer != "softmax":
        raise ConfigError(f"model.normalizer: {config.normalizer}, but CTranslate2 computes the softmax only")


def model_spec(model: Transformer, config: TransformerConfig) -> TransformerSpec:
    """Write the weights of a model into a specification."""
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=ACTIVATIONS[config.activation],
        alignment_layer=model.decoder.alignment_layer,
        alignment_heads=config.num_heads,
    )
    encoder, decoder = cast(Encoder, model.encoder), model.decoder
    encodings = _array(sinusoidal_positions(torch.arange(POSITIONS), config.embed_dim, kind=config.positions))
    for part, ours in ((spec.encoder, encoder), (spec.decoder, decoder)):
        part.scale_embeddings = True
        part.position_encodings.encodings = encodings
        if ours.norm is not None:
            _norm(part.layer_norm, ours.norm)
    spec.encoder.embeddings[0].weight = _array(model.source_embedding.weight)
    spec.decoder.embeddings.weight = spec.encoder.embeddings[0].weight if config.share_embeddings else _array(model.target_embedding.weight)
    spec.decoder.projection.weight = spec.decoder.embeddings.weight if config.tie_embeddings else _array(model.output.weight)
    if model.output.bias is not None:
        spec.decoder.projection.bias = _array(model.output.bias)
    for part, layer in zip(spec.encoder.layer, encoder.layers, strict=True):
        _layer(part, cast(EncoderLayer, layer))
    for part, layer in zip(spec.decoder.layer, decoder.layers, strict=True):
        layer = cast(DecoderLayer, layer)
        _layer(part, layer)
        attention = cast(SourceAttention, layer.cross_attention).attention
        _linear(part.attention.linear[0], attention.query)
        _joined(part.attention.linear[1], attention.key, attention.value)
        _linear(part.attention.linear[2], attention.output)
        _norm(part.attention.layer_norm, layer.cross_attention_norm)
    return spec


def _layer(part: Any, layer: EncoderLayer | DecoderLayer) -> None:
    _joined(part.self_attention.linear[0], layer.attention.query, layer.attention.key, layer.attention.value)
    _linear(part.self_attention.linear[1], layer.attention.output)
    _norm(part.self_attention.layer_norm, layer.attention_norm)
    feed_forward: FeedForward = layer.feed_forward
    _linear(part.ffn.linear_0, feed_forward.hidden)
    _linear(part.ffn.linear_1, feed_forward.output)
    _norm(part.ffn.layer_norm, layer.feed_forward_norm)


def _joined(part: Any, *layers: nn.Linear) -> None:
    parts = []
    for layer in layers:
        parts.append(common_spec.LinearSpec())
        _linear(parts[-1], layer)
    utils.fuse_linear(part, parts)


def _linear(part: Any, layer: nn.Linear) -> None:
    part.weight, part.bias = _array(layer.weight), _array(layer.bias)


def _norm(part: Any, norm: nn.LayerNorm) -> None:
    part.gamma, part.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().float().numpy()
