"""Models, built of `regard.attention` and torch parts; `build` makes one from its configuration."""

from regard.models.build import build
from regard.models.captioning import CaptionModel, CaptionTransformer, ShowAttendTell, build_captioner
from regard.models.cell import RecurrentCell, RecurrentStack
from regard.models.crossed import CrossedEncoder, CrossedEncoderLayer, CrossedReader, CrossedTransformer, swap_tokens
from regard.models.decoder import Bridge, DecoderOutput, RecurrentDecoder
from regard.models.embedding import ScaledEmbedding, sinusoidal_positions
from regard.models.encoder import Encoded, RecurrentEncoder
from regard.models.ensemble import Ensemble, EnsembleState
from regard.models.image_encoder import GivenFeatures, ImageEncoder, SmallCNN
from regard.models.labeller import Labeller, build_labeller
from regard.models.language import LanguageOutput, LanguageState, Past, RecurrentLanguageModel, build_language_model
from regard.models.look import LayerWeights
from regard.models.of_run import build_for
from regard.models.readout import DeepReadout, TanhReadout
from regard.models.recurrent_state import DecoderState
from regard.models.sentences import FeatureFusion, GatedFusion, LabelHead, Pooled, StatePooling
from regard.models.sequence import EncoderDecoder, RecurrentEncoderDecoder
from regard.models.source import Source, recall, remember
from regard.models.transformer import Transformer, shown_weights
from regard.models.transformer_decoder import Decoder
from regard.models.transformer_layers import (
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    Reading,
    ResidualNorm,
    SourceReader,
)
from regard.models.transformer_state import AreaStore, Newest, Store, TransformerState

__all__ = [
    "AreaStore",
    "Bridge",
    "CaptionModel",
    "CaptionTransformer",
    "CrossedEncoder",
    "CrossedEncoderLayer",
    "CrossedReader",
    "CrossedTransformer",
    "Decoder",
    "DecoderLayer",
    "DecoderOutput",
    "DecoderState",
    "DeepReadout",
    "Encoded",
    "Encoder",
    "EncoderDecoder",
    "EncoderLayer",
    "Ensemble",
    "EnsembleState",
    "FeatureFusion",
    "FeedForward",
    "GatedFusion",
    "GivenFeatures",
    "ImageEncoder",
    "LabelHead",
    "Labeller",
    "LanguageOutput",
    "LanguageState",
    "LayerWeights",
    "Newest",
    "Past",
    "Pooled",
    "Reading",
    "RecurrentCell",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "RecurrentEncoderDecoder",
    "RecurrentLanguageModel",
    "RecurrentStack",
    "ResidualNorm",
    "ScaledEmbedding",
    "ShowAttendTell",
    "SmallCNN",
    "Source",
    "SourceReader",
    "StatePooling",
    "Store",
    "TanhReadout",
    "Transformer",
    "TransformerState",
    "build",
    "build_captioner",
    "build_for",
    "build_labeller",
    "build_language_model",
    "recall",
    "remember",
    "shown_weights",
    "sinusoidal_positions",
    "swap_tokens",
]
