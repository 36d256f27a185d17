"""Models built from `regard.attention` and torch modules; `build` creates one from its configuration."""

from regard.models.attention_maps import LayerAttention
from regard.models.captioning import CaptionModel, CaptionTransformer, ShowAttendTell, build_captioner
from regard.models.classifier import SentenceClassifier, build_classifier
from regard.models.cross_attention import Source, cache_source, cross_attend
from regard.models.crossed import CrossedEncoder, CrossedEncoderLayer, CrossedSourceAttention, CrossedTransformer, swap_tokens
from regard.models.embedding import ScaledEmbedding, sinusoidal_positions
from regard.models.encoder_decoder import EncoderDecoder, RecurrentEncoderDecoder
from regard.models.ensemble import Ensemble, EnsembleState
from regard.models.factory import build, build_for_run
from regard.models.image_encoder import GivenFeatures, ImageEncoder, SmallCNN
from regard.models.input_rows import TwoInputs, split_inputs
from regard.models.language_model import LanguageModelOutput, LanguageModelState, RecurrentLanguageModel, StreamState, build_language_model
from regard.models.pointer_generator import CopyState, PointerGenerator
from regard.models.pooling import FeatureFusion, GatedFusion, LabelHead, PoolingOutput, StatePooling
from regard.models.readout import DeepReadout, TanhReadout
from regard.models.rnn_cells import RecurrentCell, RecurrentStack
from regard.models.rnn_decoder import Bridge, DecoderOutput, RecurrentDecoder
from regard.models.rnn_encoder import EncoderOutput, RecurrentEncoder
from regard.models.rnn_state import DecoderState
from regard.models.rnn_two_inputs import TwoInputRecurrent
from regard.models.transformer import Transformer, mean_source_weights
from regard.models.transformer_cache import AreaCache, CurrentStep, KeyValueCache, TransformerState
from regard.models.transformer_decoder import Decoder
from regard.models.transformer_layers import (
    CrossAttentionOutput,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    ResidualNorm,
    SourceAttention,
)
from regard.models.two_inputs import Corruption, JoinedEncoder, SerialDecoderLayer, TwoEncoders, TwoInputTransformer, TwoSourceAttention

__all__ = [
    "AreaCache",
    "Bridge",
    "CaptionModel",
    "CaptionTransformer",
    "CopyState",
    "Corruption",
    "CrossAttentionOutput",
    "CrossedEncoder",
    "CrossedEncoderLayer",
    "CrossedSourceAttention",
    "CrossedTransformer",
    "CurrentStep",
    "Decoder",
    "DecoderLayer",
    "DecoderOutput",
    "DecoderState",
    "DeepReadout",
    "Encoder",
    "EncoderDecoder",
    "EncoderLayer",
    "EncoderOutput",
    "Ensemble",
    "EnsembleState",
    "FeatureFusion",
    "FeedForward",
    "GatedFusion",
    "GivenFeatures",
    "ImageEncoder",
    "JoinedEncoder",
    "KeyValueCache",
    "LabelHead",
    "LanguageModelOutput",
    "LanguageModelState",
    "LayerAttention",
    "PointerGenerator",
    "PoolingOutput",
    "RecurrentCell",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "RecurrentEncoderDecoder",
    "RecurrentLanguageModel",
    "RecurrentStack",
    "ResidualNorm",
    "ScaledEmbedding",
    "SentenceClassifier",
    "SerialDecoderLayer",
    "ShowAttendTell",
    "SmallCNN",
    "Source",
    "SourceAttention",
    "StatePooling",
    "StreamState",
    "TanhReadout",
    "Transformer",
    "TransformerState",
    "TwoEncoders",
    "TwoInputRecurrent",
    "TwoInputTransformer",
    "TwoInputs",
    "TwoSourceAttention",
    "build",
    "build_captioner",
    "build_classifier",
    "build_for_run",
    "build_language_model",
    "cache_source",
    "cross_attend",
    "mean_source_weights",
    "sinusoidal_positions",
    "split_inputs",
    "swap_tokens",
]


def __dir__() -> list[str]:
    return sorted(__all__)
