"""Text and images in, numbers out: reading lines, pairs, captions and images, vocabularies, batches, and the generated sets."""

from regard.data.batching import PlannedBatch, SequenceBatch, collate, plan_batches
from regard.data.captions import CaptionExample, CaptionSet, read_captions
from regard.data.dates import DateExample, generate_dates, split_dates
from regard.data.features import FeatureFile, write_features
from regard.data.image_archive import ArchivedImage, ImageArchive
from regard.data.image_store import ImageStore
from regard.data.images import ImageList, Preprocessing, expand_images
from regard.data.lines import iter_lines, read_lines, single_line
from regard.data.parallel import hold_out, read_pairs, write_parallel
from regard.data.scene_files import read_scenes, write_scenes
from regard.data.scenes import Scene, SceneObject, SceneSettings, generate_scenes, is_grammatical, word_kind
from regard.data.sentences import Labelled, LabelledFile, read_entailment, read_sentences
from regard.data.toys import ToyExample, generate_toys
from regard.data.vectors import WordVectors, read_vectors
from regard.data.vocabulary import BOS, EOS, PAD, UNK, Encoded, Vocabulary

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "ArchivedImage",
    "CaptionExample",
    "CaptionSet",
    "DateExample",
    "Encoded",
    "FeatureFile",
    "ImageArchive",
    "ImageList",
    "ImageStore",
    "Labelled",
    "LabelledFile",
    "PlannedBatch",
    "Preprocessing",
    "Scene",
    "SceneObject",
    "SceneSettings",
    "SequenceBatch",
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
    "word_kind",
    "write_features",
    "write_parallel",
    "write_scenes",
]
