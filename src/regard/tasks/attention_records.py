"""Attention records of runs, and their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.config import with_options
from regard.data.image_features import FeatureFile
from regard.data.vocabulary import EOS
from regard.errors import ConfigError, DataError, NoAttentionError
from regard.tasks.captioning_prediction import Captioner
from regard.tasks.classification_run import SentenceRun, open_sentence_run
from regard.tasks.explained_examples import label_batches, language_batches, pair_batch, report_cut, translation_batches
from regard.tasks.explained_records import add_methods, check_methods
from regard.tasks.hop_attention import line_records, without_empty
from regard.tasks.language_prediction import MAX_RECORD_TOKENS, language_records
from regard.tasks.language_training import LanguageRun, open_language_run
from regard.tasks.run_folder import run_task
from regard.tasks.translation_prediction import Translation, Translator
from regard.tasks.translation_run import TranslationRun
from regard.tasks.unknown_tokens import tell_unknown, tell_unknown_pairs
from regard.viewer import AttentionRecord, Tokens, group_by_example, save_animation, save_page, save_picture, write_records

LABEL = "label"


def attention_records(
    folder: str | Path,
    seen: Sequence[str] | Sequence[Path],
    *,
    target: str | None = None,
    beam_size: int | None = None,
    methods: Sequence[str] = (),
    images: Path | None = None,
    features: Path | None = None,
) -> list[AttentionRecord]:
    """Record the attention of a run of any task.

    Args:
        folder: a run folder.
        seen: inputs: lines of text, or image paths for a captioner.
        target: for translation and captioning, use this output instead of the model's own.
        beam_size: for these, hypotheses of the search; None takes the run's setting.
        methods: explanation methods to add as maps: names of `regard.explanations.METHODS`, or "all".
        images: folder of the images that second inputs name; None: that of the training images.
        features: of a captioner of precomputed features, a file that has those of the images.

    Returns:
        One record per non-empty input.

    Raises:
        ConfigError: the model has no attention, text is given to a captioner or images to another run, `target` or `beam_size` do not go
            with the task or the number of lines, or a method is unknown or not defined for the model.
        DataError: no input, or an image cannot be read.

    Example:
        >>> attention_records("no-such-run", ["a joy"])
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    check_methods(methods)
    task = run_task(Path(folder))
    files = [each for each in seen if isinstance(each, Path)]
    if task == "captioning":
        if len(files) < len(seen) or not files:
            raise ConfigError(f"{folder}: a captioner reads images (--image FILE), not text")
        return _captioned(folder, files, target, beam_size, methods, features)
    if features is not None:
        raise ConfigError(f"--features: {folder} is a run of the task {task}, which reads none")
    if files:
        raise ConfigError(f"--image: {folder} is a run of the task {task}, which reads text")
    lines = [str(each) for each in seen]
    if task == "translation":
        return translation_records(folder, lines, target=target, beam_size=beam_size, methods=methods, images=images)
    if (target, beam_size) != (None, None):
        raise ConfigError(f"--target, --beam-size: not for a run of the task {task}")
    if not methods:
        return (language_records if task == "lm" else line_records)(folder, lines)
    if task == "lm":
        run = open_language_run(folder)
        return [explained_line(run, record, methods) for record in language_records(folder, lines)]
    sentences = open_sentence_run(folder)
    return [explained_label(sentences, record, methods) for record in line_records(folder, lines)]


def explained_line(run: LanguageRun, record: AttentionRecord, methods: Sequence[str]) -> AttentionRecord:
    """Add what methods of explanation say to the record of a line, if it has tokens; see `add_methods`."""
    text = [record.items["text"].text]
    if not run.vocabulary.encode_ids(text)[0]:
        return record  # the end alone, predicted from the start alone
    (found,) = language_batches(run, text, most=MAX_RECORD_TOKENS)
    return add_methods(record, found.batch, methods, query="text", keys=["read"], kind="self")


def explained_label(run: SentenceRun, record: AttentionRecord, methods: Sequence[str]) -> AttentionRecord:
    """Add what methods of explanation say to the record of a label; see `add_methods`."""
    assert record.prediction is not None
    names = [name for name in ("text", "premise", "hypothesis") if name in record.items]
    (found,) = label_batches(run, [[record.items[name].text for name in names]])
    record = replace(record, items={**record.items, LABEL: Tokens([record.prediction.label], marks="none")})
    return add_methods(record, found.batch, methods, query=LABEL, keys=names, kind="hops")


def _captioned(
    folder: str | Path,
    images: Sequence[Path],
    target: str | None,
    beam_size: int | None,
    methods: Sequence[str],
    features: Path | None,
) -> list[AttentionRecord]:
    captioner = Captioner.open(folder)
    if target is not None and len(images) != 1:
        raise ConfigError(f"--target: goes with one image, found {len(images)}")
    decoding = with_options(captioner.run.config.decoding, {"beam_size": beam_size})
    known = None if features is None else FeatureFile(features)
    return [captioner.record(image, text=target, decoding=decoding, methods=methods, features=known) for image in images]


def translation_records(
    folder: str | Path,
    lines: Sequence[str],
    *,
    target: str | None = None,
    beam_size: int | None = None,
    methods: Sequence[str] = (),
    images: Path | None = None,
) -> list[AttentionRecord]:
    """Translate lines with a run and record the attention.

    Args:
        folder: a run folder.
        lines: sentences.
        target: use this translation of the only line instead of the model's own.
        beam_size: beam size; None: the run's.
        methods: see `attention_records`.
        images: see `attention_records`.

    Returns:
        One record per non-empty line.

    Raises:
        ConfigError: the model has no attention, or `target` comes with several lines.
        DataError: all lines are empty.
    """
    translator = Translator.open(folder)
    if images is not None and translator.run.vocabularies.images is not None:
        translator.use_images(images)
    if not translator.run.config.model.attends:
        raise NoAttentionError(f"{folder}: this model has no attention to show")
    if target is not None:
        if len(lines) != 1:
            raise ConfigError(f"--target: goes with one sentence, found {len(lines)}")
        if not target.strip():
            raise DataError("no attention to show: --target holds no text")
        vocabularies, limit = translator.run.vocabularies, translator.run.config.data.max_length
        tell_unknown_pairs(vocabularies, [(lines[0], target)])
        if not methods:  # which tell it themselves
            sides = vocabularies.source.encode(lines[0]), vocabularies.target.encode(target)
            report_cut(int(any(len(side.ids) > limit for side in sides)), limit)
        found = [translator.align_layers(lines[0], target)]
        if found[0] is not None and methods:
            pairs = translation_batches(translator.run, [(lines[0], target)])
            found = [add_methods(found[0], pairs[0].batch, methods, query="target", keys=_read_items(found[0]), kind="alignment")]
    else:
        decoding = with_options(translator.run.config.decoding, {"beam_size": beam_size})
        translations = translator.translate(lines, decoding=decoding, n_best=decoding.beam_size, need_attention=True)
        tell_unknown(translator.run.vocabularies.source.kind, "source vocabulary", [item.source for item in translations])
        report_cut(sum(item.truncated > 0 for item in translations), translator.run.config.data.max_length)
        found = [translator.record(line, item) for line, item in zip(lines, translations, strict=True)]
        if methods:
            found = [
                record and explained_translation(translator.run, record, item, methods)
                for record, item in zip(found, translations, strict=True)
            ]
    translator.run.vocabularies.tell_missing_images()
    return without_empty(found)


def explained_translation(
    run: TranslationRun, record: AttentionRecord, translation: Translation, methods: Sequence[str]
) -> AttentionRecord:
    """Add what methods of explanation say to the record of a translation; see `add_methods`."""
    target = [token for token in translation.hypotheses[0].tokens if token != EOS]
    batch = pair_batch(run, [list(translation.source.ids)], [target])
    return add_methods(record, batch, methods, query="target", keys=_read_items(record), kind="alignment")


def _read_items(record: AttentionRecord) -> list[str]:
    # Two texts are one source, with the end of the first between them; an image is apart.
    return [name for name in ("source", "image") if name in record.items]


def side_by_side(
    folders: Sequence[str | Path],
    seen: Sequence[str] | Sequence[Path],
    *,
    target: str | None = None,
    beam_size: int | None = None,
    methods: Sequence[str] = (),
    images: Path | None = None,
    features: Path | None = None,
) -> list[AttentionRecord]:
    """Record the attention of several runs: per line or image one record of each run, named after its folder.

    Args:
        folders: run folders, of tasks with the same kind of input.
        seen: see `attention_records`, also for the rest.
        target: instead of the models' own output.
        beam_size: beam size.
        methods: explanation methods.
        images: see `attention_records`.
        features: see `attention_records`.

    Raises:
        ConfigError: see `attention_records`.
        DataError: see `attention_records`.
    """
    given: dict[str, Any] = {"target": target, "beam_size": beam_size, "methods": methods, "images": images, "features": features}
    found = [attention_records(folder, seen, **given) for folder in folders]
    names = [Path(folder).name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [replace(record, model=name) for same in zip(*found, strict=True) for record, name in zip(same, names, strict=True)]


def choose_example(records: Sequence[AttentionRecord], number: int) -> list[AttentionRecord]:
    """Return the records of one example: one, or one per recorded update of a training.

    Args:
        records: all records.
        number: number of the example, from 1.

    Raises:
        ConfigError: there are fewer; says how many.

    Example:
        >>> choose_example([AttentionRecord({}, title="a"), AttentionRecord({}, title="b")], 2)[0].title
        'b'
    """
    groups = group_by_example(records)
    if number > len(groups):
        raise ConfigError(f"--example {number}: there {'is 1 example' if len(groups) == 1 else f'are {len(groups)} examples'}")
    return groups[number - 1]


def save_records(records: Sequence[AttentionRecord], path: Path, *, map: str | None = None, head: int | None = None) -> None:
    """Write records in the format of the file's extension.

    Args:
        records: the records.
        path: the file: .html a page, .json records, .png .svg .pdf a picture of the only example, at the last update recorded of a
            training, .gif an animation of the only example over the updates of a training.
        map: for a picture the name of a map, see `AttentionRecord.matrix`.
        head: for a picture which head, from 0.

    Raises:
        DataError: another ending, a picture or an animation of several examples, or no such map or head.
    """
    match path.suffix.lower():
        case ".html":
            save_page(records, path)
        case ".json":
            write_records(path, records)
        case ".png" | ".svg" | ".pdf" | ".gif" as ending:
            groups = group_by_example(records)
            if len(groups) != 1:
                shows = "an animation" if ending == ".gif" else "a picture"
                raise DataError(f"{path}: {shows} shows one example, found {len(groups)}; choose one by --example, or write a .html page")
            if ending == ".gif":
                save_animation(groups[0], path, map=map, head=head)
            else:
                save_picture(groups[0][-1], path, map=map, head=head)
        case _:
            raise DataError(f"{path}: expected a name ending in .html, .json, .png, .svg, .pdf or .gif")
