"""Translation runs: vocabularies and model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

from regard import progress
from regard.config import TranslationConfig
from regard.config.images import SecondImageConfig
from regard.data.input_pairs import PairVocabulary
from regard.data.vocabulary import Vocabulary
from regard.errors import ConfigError, DataError, listed
from regard.models import EncoderDecoder, Ensemble, build
from regard.models.image_embedding import ImageEmbedding
from regard.strict_json import parse_json
from regard.tasks.run_folder import CONFIG, DATA, load_model, read_config, run_path

if TYPE_CHECKING:
    from regard.data.image_tokens import ImageTokens

SHARED, SOURCE, TARGET = "vocabulary.json", "source.vocabulary.json", "target.vocabulary.json"
SECOND = "second.vocabulary.json"


class Vocabularies(NamedTuple):
    """The source and target vocabulary; the same object twice when they are shared. Of two inputs the source has a `PairVocabulary`."""

    source: Vocabulary
    target: Vocabulary

    @property
    def named(self) -> dict[str, Vocabulary]:
        """Each vocabulary of text by what it is of: source, target and, of two texts, second source."""
        if self.images is not None and isinstance(self.source, PairVocabulary):
            return {"source": self.source.inputs[0], "target": self.target}
        if isinstance(self.source, PairVocabulary):
            return {"source": self.source.inputs[0], "target": self.target, "second source": self.source.inputs[1]}
        return self._asdict()

    @property
    def images(self) -> ImageTokens | None:
        """Vocabulary of image names, if the second input is an image."""
        if not isinstance(self.source, PairVocabulary):
            return None
        from regard.data.image_tokens import ImageTokens  # and Pillow

        second = self.source.inputs[1]
        return second if isinstance(second, ImageTokens) else None

    def tell_missing_images(self) -> None:
        """Report the images since the last report that were named but missing, for a model that does without (`model.second.drop`)."""
        images = self.images
        if images is not None and images.absent:
            names = f"{listed(sorted(images.absent), most=2)}: no such image{'s' * (len(images.absent) > 1)} in {images.folder}"
            progress.message(f"{names}; read as sentences without an image", warning=True)
            images.absent.clear()

    def connect(self, model: EncoderDecoder[Any]) -> EncoderDecoder[Any]:
        """Let a model, or all of an ensemble, look images up here; returns the model."""
        if self.images is not None:
            for module in model.modules():
                if isinstance(module, ImageEmbedding):
                    module.images = self.images.read
        return model

    @property
    def sizes(self) -> dict[str, int]:
        """The entries of each, as `regard.models.build` takes them."""
        return {f"{name.split()[0]}_size": len(vocabulary) for name, vocabulary in self.named.items()}


class TranslationRun(NamedTuple):
    """A loaded run.

    Attributes:
        folder: the run folder.
        config: the run's configuration.
        vocabularies: of both sides.
        model: the trained model, in evaluation mode.
        weights: the weight file.
        members: the runs of an ensemble, this one first; empty for a single run.
    """

    folder: Path
    config: TranslationConfig
    vocabularies: Vocabularies
    model: EncoderDecoder[Any]
    weights: Path
    members: tuple[TranslationRun, ...] = ()

    def reading(self, languages: tuple[str, str] | None) -> TranslationRun:
        """Return the run with other `data.languages`, for files of other columns; itself for None."""
        if languages is None:
            return self
        data = self.config.data.model_copy(update={"languages": languages})
        return self._replace(config=self.config.model_copy(update={"data": data}))


def check_inputs(run: TranslationRun, lines: Sequence[str], source: str | Path, second: str | Path | None) -> None:
    """Check that no line of a model of two inputs lacks one that the model needs, and that its image can be read.

    Args:
        run: of one or two inputs.
        lines: with a tab between two inputs.
        source: the file that the lines or first inputs are from.
        second: the file of the second inputs, if they have one.

    Raises:
        DataError: names the file and the line.
    """
    if run.config.second is None:
        return
    how = "the source and the second input of a pair" if second is None else f"the second from --second-source {second}"
    for number, line in enumerate(lines, start=1):
        if missing := run.vocabularies.source.missing(line, how):
            folder = " (--images names the folder)" * missing.startswith("no image")
            raise DataError(f"{second or source}, line {number}: {missing}{folder}")


def run_files(config: TranslationConfig) -> tuple[str, ...]:
    """Return the names of the files, besides weights, that make up a run."""
    return (CONFIG, DATA, *dict.fromkeys(vocabulary_files(config)))


def open_translation_run(folder: str | Path) -> TranslationRun:
    """Open a trained run: configuration, vocabularies, verified weights.

    Args:
        folder: a run folder as `regard train` leaves it, finished or not.

    Returns:
        The `TranslationRun`; its model is in evaluation mode.

    Raises:
        CheckpointError: the folder is not a run, or a file in it is missing, damaged or does not fit.

    Example:
        >>> open_translation_run("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    folder = run_path(folder)
    config = read_config(folder, TranslationConfig)
    vocabularies = load_vocabularies(folder, config)
    model, weights = load_model(folder, lambda: build(config.model, **vocabularies.sizes), run_files(config))
    return TranslationRun(folder, config, vocabularies, vocabularies.connect(model), weights)


def open_ensemble(folders: Sequence[str | Path]) -> TranslationRun:
    """Open runs that decode together, by the mean of their probabilities.

    Args:
        folders: one or more run folders whose vocabularies hold the same; what is not a matter of the model is taken from the first, but
            for `data.max_length`, the smallest of all.

    Returns:
        The first `TranslationRun` with an `Ensemble` for its model; one folder alone is opened as it is.

    Raises:
        ConfigError: the vocabularies of two runs differ, or one needs both of two inputs and another does not.
        CheckpointError: see `open_translation_run`.

    Example:
        >>> open_ensemble(["no-such-run", "another"])
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    first, *others = [open_translation_run(folder) for folder in folders]
    if not others:
        return first
    for other in others:
        if (other.config.second is None) != (first.config.second is None):
            raise ConfigError(f"{other.folder} and {first.folder}: one reads two inputs, the other one; an ensemble reads the same")
        if _images(other.config) != _images(first.config):
            raise ConfigError(
                f"{other.folder} and {first.folder}: model.second.image differs; an ensemble reads the same images, in the same cells"
            )
        for side, own in _vocabulary_files(first).items():
            found = _vocabulary_files(other)[side]
            # Read, not compared by the byte: another release of the library may write the same in another order.
            if parse_json(own.read_bytes()) != parse_json(found.read_bytes()):
                raise ConfigError(
                    f"{other.folder}: its {side} vocabulary differs from that of {first.folder}; an ensemble needs equal vocabularies"
                )
    needed = next((run for run in (first, *others) if run.config.second is not None and not run.config.second.drop), None)
    able = next((run for run in (first, *others) if run.config.second is not None and run.config.second.drop), None)
    if needed is not None and able is not None:
        raise ConfigError(f"{needed.folder} and {able.folder}: one needs both inputs, the other does without (model.second.drop)")
    data = first.config.data.model_copy(update={"max_length": min(run.config.data.max_length for run in (first, *others))})
    model = first.vocabularies.connect(Ensemble([run.model for run in (first, *others)]).eval())
    return first._replace(config=first.config.model_copy(update={"data": data}), model=model, members=(first, *others))


def _images(config: TranslationConfig) -> tuple[Any, ...] | None:
    # Models of other networks, or with areas, read the same images if these have the same cells.
    image = None if config.second is None else config.second.image
    return None if image is None else (image.preprocessing, image.grid)


def _vocabulary_files(run: TranslationRun) -> dict[str, Path]:
    return {side: run.folder / name for side, name in zip(run.vocabularies.named, vocabulary_files(run.config), strict=True)}


def load_vocabularies(folder: Path, config: TranslationConfig) -> Vocabularies:
    """Read the vocabularies of a run folder.

    Raises:
        DataError: one is missing or damaged.
    """
    names = vocabulary_files(config)
    loaded = {name: Vocabulary.load(folder / name) for name in dict.fromkeys(names)}
    source, target, *second = (loaded[name] for name in names)
    if config.second is not None:
        image = config.second.image
        other = second[0] if image is None else _image_tokens(image, config)
        source = PairVocabulary(source, other, optional=config.second.drop > 0)
    if config.model.copy_attention:
        source.names_unknown = target.names_unknown = True
    return Vocabularies(source, target)


def _image_tokens(image: SecondImageConfig, config: TranslationConfig) -> ImageTokens:
    from regard.data.image_tokens import ImageTokens
    from regard.data.images import Preprocessing

    # Names are seen from where the training images are, until somebody says otherwise.
    folder = config.data.images if config.data.images is not None else Path(config.data.second_source or "").parent
    how = Preprocessing(**image.preprocessing)
    return ImageTokens(how, image.cells, Path(folder), optional=config.second is not None and config.second.drop > 0)


def vocabulary_files(config: TranslationConfig) -> tuple[str, ...]:
    """Return the names of the vocabularies of sources, of targets and, if there are any, of second inputs; one name where all share one.

    Example:
        >>> vocabulary_files(TranslationConfig())
        ('vocabulary.json', 'vocabulary.json')
    """
    own = (SOURCE, TARGET) if config.second is None or config.second.image is not None else (SOURCE, TARGET, SECOND)
    return (SHARED,) * len(own) if config.vocabulary.shared else own


def make_vocabularies(config: TranslationConfig, sample: Callable[[int, int], Iterable[str]], size: int) -> dict[str, bytes]:
    """Train the vocabularies on training text: the contents of their files, by name.

    Args:
        config: configuration of the run.
        sample: gives about so many (second argument) sources (0), targets (1) or second inputs (2).
        size: number of training pairs.

    Raises:
        DataError: there is no text in the pairs; names the files.
    """
    settings = config.vocabulary
    names = vocabulary_files(config)
    sides = {name: [side for side, own in enumerate(names) if own == name] for name in dict.fromkeys(names)}

    leaving = Event()

    def lines(chosen: list[int]) -> Iterator[str]:
        for side in chosen:
            for line in sample(side, settings.sample):
                if leaving.is_set():  # after Ctrl-C nobody waits for the end of the text
                    raise CancelledError
                yield line

    def made(name: str) -> bytes:
        options: dict[str, Any] = {"kind": settings.kind, "size": settings.size, "min_count": settings.min_count}
        read = (config.data.source, config.data.target, config.data.second_source)
        options["files"] = list(dict.fromkeys(str(read[side]) for side in sides[name] if read[side] is not None))
        told = {"name": name.removesuffix(".json").replace(".", " "), "total": len(sides[name]) * min(settings.sample, size)}
        return Vocabulary.train(lines(sides[name]), **options, **told).to_bytes()

    # Merges are found by one core: two vocabularies keep two at work.
    with ThreadPoolExecutor(len(sides)) as pool:
        begun = {name: pool.submit(copy_context().run, made, name) for name in sides}
        try:
            return {name: vocabulary.result() for name, vocabulary in begun.items()}
        finally:
            leaving.set()
