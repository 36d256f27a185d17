"""Reads files of other toolkits: safetensors weights, settings, token lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor

from regard.config.load import read_yaml
from regard.data.lines import read_lines
from regard.errors import CheckpointError, ConfigError, DataError, shown
from regard.integrations.migrate import ActivationName, Converted, ToolkitName, convert
from regard.strict_json import parse_json
from regard.training.weights import open_tensors

ACTIVATIONS: dict[str, ActivationName] = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}


class ToolkitVocabulary(NamedTuple):
    """Vocabulary of one side in the toolkit's numbering.

    Attributes:
        words: all entries.
        pad: id of padding.
        unk: id of the unknown token.
        eos: id of EOS.
        start: id of the decoder's first input.
        bos: id of the start token's entry in the output layer; it is never generated.
    """

    words: list[str]
    pad: int
    unk: int
    eos: int
    start: int
    bos: int


class Imported(NamedTuple):
    """Files of another toolkit.

    Attributes:
        converted: the model.
        source: tokens of the source.
        target: tokens of the target.
        models: SentencePiece models of source and target, as the bytes of their files; None without.
        never: target ids that the toolkit's own softmax does not have.
        decoding: the toolkit's decoding settings that Regard has.
    """

    converted: Converted
    source: ToolkitVocabulary
    target: ToolkitVocabulary
    models: tuple[bytes, bytes] | None = None
    never: tuple[int, ...] = ()
    decoding: dict[str, Any] = {}  # noqa: RUF012 - a field of a tuple; nobody adds to it


def read_any(
    path: Path, kind: ToolkitName, source: Path | None, target: Path | None, *, num_heads: int | None, activation: ActivationName | None
) -> Imported:
    """Read an exported model: for Marian and JoeyNMT a folder, for fairseq a file, with vocabularies given or beside it.

    Raises:
        ConfigError: a required option is missing, or a redundant one given; the message names it.
        RegardError: see `load_marian`, `load_joeynmt`, `regard.integrations.migrate.convert`.

    Example:
        >>> read_any(Path("model.safetensors"), "fairseq", None, None, num_heads=None, activation=None)
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: --source-vocabulary, --target-vocabulary, --heads: needed, a fairseq model does not tell
    """
    if kind == "fairseq":
        if source is None or target is None or num_heads is None:
            raise ConfigError("--source-vocabulary, --target-vocabulary, --heads: needed, a fairseq model does not tell")
        return read_fairseq(path, source=source, target=target, num_heads=num_heads, activation=activation or "relu")
    if num_heads is not None or activation is not None:
        raise ConfigError(f"--heads, --activation: a {kind} folder tells them itself")
    return (read_marian if kind == "marian" else read_joeynmt)(path, source=source, target=target)


def load_marian(folder: str | Path) -> Converted:
    """Read a MarianMTModel from `save_pretrained`: config.json and model.safetensors.

    Args:
        folder: contains both.

    Returns:
        Settings and weights; `build()` returns the model. Its token ids are those of Marian's tokenizer, its first decoder token is
        `decoder_start_token_id`.

    Raises:
        CheckpointError: a file is missing or damaged, or a weight does not fit; the message names it.
        ConfigError: the model uses something unsupported; the message names the key of config.json.
    """
    folder = Path(folder)
    return _marian(folder, _settings(folder / "config.json"))


def read_marian(folder: Path, *, source: Path | None = None, target: Path | None = None) -> Imported:
    """Read a Marian model, its vocabulary entries and its SentencePiece models.

    Args:
        folder: contains config.json, model.safetensors and, to tokenize raw text, source.spm and target.spm.
        source: vocabulary of the source; None: `vocab.json`.
        target: vocabulary of the target; None: `target_vocab.json`, or that of the source.
    """
    settings = _settings(folder / "config.json")
    source = source or folder / "vocab.json"
    own = folder / "target_vocab.json"
    target = target or (own if own.is_file() else source)
    special = {name: settings.get(f"{name}_token_id") for name in ("pad", "eos", "decoder_start")}
    for name, number in special.items():
        if not isinstance(number, int):
            raise ConfigError(f"{folder / 'config.json'}: {name}_token_id is {shown(number)}, expected a number")
    numbers = cast(dict[str, int], special)
    sides = (_marian_tokens(source, numbers), _marian_tokens(target, numbers))
    # Marian has no <pad>; the conversion to Hugging Face's format adds it, with a logit of 0 that would take a share of the probability.
    return Imported(
        _marian(folder, settings),
        *sides,
        models=_sentencepiece_models(folder),
        never=(numbers["pad"],),
        decoding=_marian_decoding(folder, settings),
    )


def load_joeynmt(folder: str | Path) -> Converted:
    """Read a JoeyNMT Transformer: config.yaml and model.safetensors.

    Args:
        folder: contains both; docs/migration.md shows how to convert a checkpoint.

    Returns:
        Settings and weights; `build()` returns the model. Its token ids are those of JoeyNMT's vocabularies.

    Raises:
        CheckpointError: a file is missing or damaged, or a weight does not fit; the message names it.
        ConfigError: config.yaml is missing or damaged, or the model uses something unsupported; the message names the key.
    """
    folder = Path(folder)
    path = folder / "config.yaml"
    model = read_yaml(path).get("model")
    sides = {name: model.get(name) for name in ("encoder", "decoder")} if isinstance(model, Mapping) else {}
    if not sides or not all(isinstance(side, Mapping) for side in sides.values()):
        raise ConfigError(f"{path}: expected settings under model.encoder and model.decoder")
    encoder, decoder = (cast(Mapping[str, Any], side) for side in sides.values())
    for name, side in (("encoder", encoder), ("decoder", decoder)):
        key = f"{path}: model.{name}"
        _expect(f"{key}.type", side.get("type"), "transformer")
        _expect(f"{key}.alpha", side.get("alpha", 1.0), 1.0)
        # Otherwise JoeyNMT builds a pre-norm encoder without a last LayerNorm, which Regard does not have.
        if side.get("layer_norm") not in ("pre", "post"):
            raise ConfigError(f"{key}.layer_norm: {shown(side.get('layer_norm'))}, expected pre or post")
        _expect(f"{key}.layer_norm", side["layer_norm"], encoder["layer_norm"])
        _expect(f"{key}.num_heads", side.get("num_heads"), encoder.get("num_heads"))
        _expect(f"{key}.activation", side.get("activation", "relu"), encoder.get("activation", "relu"))
        _expect(f"{key}.embeddings.scale", _scale(side), _scale(encoder))
    return convert(
        read_tensors(folder / "model.safetensors"),
        "joeynmt",
        num_heads=_number(f"{path}: model.encoder.num_heads", encoder.get("num_heads")),
        activation=_activation(f"{path}: model.encoder.activation", encoder.get("activation", "relu")),
        scaled=_scale(encoder),
    )


def read_joeynmt(folder: Path, *, source: Path | None = None, target: Path | None = None) -> Imported:
    """Read a JoeyNMT model and its entries, from `src_vocab.txt` and `trg_vocab.txt` or the files given."""
    sides = (source or folder / "src_vocab.txt", target or folder / "trg_vocab.txt")
    return Imported(load_joeynmt(folder), _joeynmt_tokens(sides[0]), _joeynmt_tokens(sides[1]))


def read_fairseq(file: Path, *, source: Path, target: Path, num_heads: int, activation: ActivationName = "relu") -> Imported:
    """Read a fairseq Transformer, a safetensors file, and its two dictionaries (`dict.de.txt`)."""
    converted = convert(read_tensors(file), "fairseq", num_heads=num_heads, activation=activation)
    return Imported(converted, _fairseq_tokens(source), _fairseq_tokens(target))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        CheckpointError: the file is missing, damaged or of another type; pickles are never opened.

    Example:
        >>> read_tensors(Path("best.ckpt"))
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: best.ckpt: only .safetensors files are read; docs/migration.md says how to make one
    """
    if path.suffix != ".safetensors":
        raise CheckpointError(f"{path}: only .safetensors files are read; docs/migration.md says how to make one")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; docs/migration.md says how to make it")
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in list(file.keys())}


def _sentencepiece_models(folder: Path) -> tuple[bytes, bytes] | None:
    paths = [folder / "source.spm", folder / "target.spm"]
    missing = [path for path in paths if not path.exists()]
    if len(missing) == 2:
        return None
    if missing:
        raise CheckpointError(f"{missing[0]}: no such file, expected source.spm and target.spm, or neither of them")
    try:
        source, target = (path.read_bytes() for path in paths)
    except OSError as error:
        raise CheckpointError(f"{folder}: source.spm or target.spm cannot be read ({error.strerror})") from error
    return source, target


def _marian(folder: Path, settings: Mapping[str, Any]) -> Converted:
    path = folder / "config.json"
    _expect(f"{path}: model_type", settings.get("model_type"), "marian")
    # Keys of older versions that no published model of this type uses.
    for key, expected in (
        ("normalize_before", False),
        ("normalize_embedding", False),
        ("add_final_layer_norm", False),
        ("static_position_embeddings", True),
    ):
        _expect(f"{path}: {key}", settings.get(key, expected), expected)
    _expect(f"{path}: decoder_attention_heads", settings.get("decoder_attention_heads"), settings.get("encoder_attention_heads"))
    return convert(
        read_tensors(folder / "model.safetensors"),
        "marian",
        num_heads=_number(f"{path}: encoder_attention_heads", settings.get("encoder_attention_heads")),
        activation=_activation(f"{path}: activation_function", settings.get("activation_function", "gelu")),
        scaled=bool(settings.get("scale_embedding", False)),
    )


def _marian_decoding(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    # The beam of generation_config.json, in older folders of config.json.
    path = folder / "generation_config.json"
    own = _settings(path) if path.exists() else {}
    name, found = (path.name, own["num_beams"]) if "num_beams" in own else ("config.json", settings.get("num_beams"))
    return {} if found is None else {"beam_size": _number(f"{folder / name}: num_beams", found)}


def _marian_tokens(path: Path, special: Mapping[str, int]) -> ToolkitVocabulary:
    numbers = _settings(path)
    words = sorted(numbers, key=lambda word: numbers[word]) if all(isinstance(n, int) for n in numbers.values()) else []
    if [numbers[word] for word in words] != list(range(len(numbers))) or "<unk>" not in numbers:
        raise DataError(f"{path}: expected tokens numbered from 0, <unk> among them")
    start = special["decoder_start"]
    return ToolkitVocabulary(words, special["pad"], numbers["<unk>"], special["eos"], start=start, bos=start)


def _joeynmt_tokens(path: Path) -> ToolkitVocabulary:
    words = read_lines(path)
    special = ["<pad>", "<unk>", "</s>", "<s>"]
    if sorted(words[:4]) != sorted(special):
        raise DataError(f"{path}: lines 1 to 4: expected <unk>, <pad>, <s> and </s>, found {', '.join(words[:4])}")
    pad, unk, eos, bos = map(words.index, special)
    return ToolkitVocabulary(words, pad, unk, eos, start=bos, bos=bos)


def _fairseq_tokens(path: Path) -> ToolkitVocabulary:
    words = ["<s>", "<pad>", "</s>", "<unk>"]
    for number, line in enumerate(read_lines(path), start=1):
        word, _, count = line.rpartition(" ")
        if not word or not count.isdigit():
            raise DataError(f"{path}: line {number}: expected a token and its count, found {shown(line[:40])}")
        words.append(word)
    return ToolkitVocabulary(words, pad=1, unk=3, eos=2, start=2, bos=0)


def _settings(path: Path) -> dict[str, Any]:
    try:
        tree = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not JSON") from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path}: expected keys and values, found {type(tree).__name__}")
    return tree


def _scale(side: Mapping[str, Any]) -> bool:
    embeddings = side.get("embeddings")
    return bool(embeddings.get("scale", False)) if isinstance(embeddings, Mapping) else False


def _expect(where: str, found: object, expected: object) -> None:
    if found != expected:
        raise ConfigError(f"{where}: {shown(found)}, expected {shown(expected)}")


def _number(where: str, found: object) -> int:
    if not isinstance(found, int):
        raise ConfigError(f"{where}: {shown(found)}, expected a number")
    return found


def _activation(where: str, found: object) -> ActivationName:
    if found not in ACTIVATIONS:
        raise ConfigError(f"{where}: {shown(found)}, expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[cast(str, found)]
