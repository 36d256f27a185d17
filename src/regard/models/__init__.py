"""Models, built of `regard.attention` and torch parts; `build` makes one from its configuration."""

from regard.models.build import build
from regard.models.cell import RecurrentCell, RecurrentStack
from regard.models.decoder import Bridge, DecoderOutput, DecoderState, RecurrentDecoder
from regard.models.embedding import ScaledEmbedding
from regard.models.encoder import Encoded, RecurrentEncoder
from regard.models.readout import DeepReadout, TanhReadout
from regard.models.sequence import RecurrentEncoderDecoder

__all__ = [
    "Bridge",
    "DecoderOutput",
    "DecoderState",
    "DeepReadout",
    "Encoded",
    "RecurrentCell",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "RecurrentEncoderDecoder",
    "RecurrentStack",
    "ScaledEmbedding",
    "TanhReadout",
    "build",
]
