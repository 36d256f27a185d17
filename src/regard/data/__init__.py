"""Data loading: lines, pairs, captions, images, vocabularies, batches, and synthetic data sets."""

from typing import TYPE_CHECKING

from regard.lazy_names import lazy_names

if TYPE_CHECKING:
    from regard.data.batching import PlannedBatch, SequenceBatch, collate, plan_batches
    from regard.data.captions import CaptionExample, CaptionSet, read_captions
    from regard.data.image_archive import ArchivedImage, ImageArchive
    from regard.data.image_cache import ImageCache
    from regard.data.image_features import FeatureFile, write_features
    from regard.data.images import ImageList, Preprocessing, expand_images
    from regard.data.labelled import LabelledExample, LabelledFile, read_entailment, read_sentences
    from regard.data.lines import iter_lines, read_lines, single_line
    from regard.data.parallel import hold_out, read_pairs, write_parallel
    from regard.data.synthetic.dates import DateExample, generate_dates, split_dates
    from regard.data.synthetic.scene_files import read_scenes, write_scenes
    from regard.data.synthetic.scenes import Scene, SceneObject, SceneSettings, generate_scenes, is_grammatical, word_kind
    from regard.data.synthetic.toys import ToyExample, generate_toys, split_toys
    from regard.data.vocabulary import BOS, EOS, PAD, UNK, TokenizedText, Vocabulary
    from regard.data.word_vectors import WordVectors, read_vectors

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "ArchivedImage",
    "CaptionExample",
    "CaptionSet",
    "DateExample",
    "FeatureFile",
    "ImageArchive",
    "ImageCache",
    "ImageList",
    "LabelledExample",
    "LabelledFile",
    "PlannedBatch",
    "Preprocessing",
    "Scene",
    "SceneObject",
    "SceneSettings",
    "SequenceBatch",
    "TokenizedText",
    "ToyExample",
    "Vocabulary",
    "WordVectors",
    "collate",
    "expand_images",
    "generate_dates",
    "generate_scenes",
    "generate_toys",
    "hold_out",
    "is_grammatical",
    "iter_lines",
    "plan_batches",
    "read_captions",
    "read_entailment",
    "read_lines",
    "read_pairs",
    "read_scenes",
    "read_sentences",
    "read_vectors",
    "single_line",
    "split_dates",
    "split_toys",
    "word_kind",
    "write_features",
    "write_parallel",
    "write_scenes",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batching": "PlannedBatch SequenceBatch collate plan_batches",
        "captions": "CaptionExample CaptionSet read_captions",
        "image_archive": "ArchivedImage ImageArchive",
        "image_cache": "ImageCache",
        "image_features": "FeatureFile write_features",
        "images": "ImageList Preprocessing expand_images",
        "labelled": "LabelledExample LabelledFile read_entailment read_sentences",
        "lines": "iter_lines read_lines single_line",
        "parallel": "hold_out read_pairs write_parallel",
        "synthetic.dates": "DateExample generate_dates split_dates",
        "synthetic.scene_files": "read_scenes write_scenes",
        "synthetic.scenes": "Scene SceneObject SceneSettings generate_scenes is_grammatical word_kind",
        "synthetic.toys": "ToyExample generate_toys split_toys",
        "vocabulary": "BOS EOS PAD UNK TokenizedText Vocabulary",
        "word_vectors": "WordVectors read_vectors",
    },
)
