"""Small models of every family, with batches to explain; and a Transformer that copies, its weights set by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard import ops
from regard.config import (
    ClassificationConfig,
    ClassifierConfig,
    EntailmentModelConfig,
    LanguageModelConfig,
    TransformerConfig,
    TranslationConfig,
    validate,
)
from regard.config.captioning import CaptionTransformerConfig, GridAreaConfig, ShowConfig, SmallCNNConfig
from regard.explanations import CaptionBatch, LabelBatch, LanguageBatch, ModelBatch, TranslationBatch
from regard.models import ScaledEmbedding, build, build_captioner, build_classifier, build_language_model
from tests.tasks.tiny import FAMILIES

VOCABULARY = 19
BOS, EOS = 2, 3
SOURCES = [[4, 5, 6, 7, 8], [9, 10, 4], [11, 12, 13, 14, 15, 16, 17]]
TARGETS = [[6, 5, 7], [12], [13, 14, 15, 5]]
ENCODERS: dict[str, dict[str, Any]] = {
    "label lstm": {"embed_dim": 6, "encoder": {"hidden_size": 5}, "attention_dim": 7, "hops": 3, "mlp_dim": 11},
    "label transformer": {"embed_dim": 12, "encoder": {"type": "transformer", "ff_dim": 13, "num_heads": 2}, "attention_dim": 7, "hops": 3},
    "label post": {
        "embed_dim": 12,
        "encoder": {"type": "transformer", "ff_dim": 13, "num_heads": 2, "norm": "post"},
        "attention_dim": 7,
        "hops": 3,
    },
    "label mean": {"embed_dim": 12, "encoder": {"type": "transformer", "ff_dim": 13, "num_heads": 2}, "pooling": "mean"},
}
CAPTIONERS = {
    "show soft": ShowConfig(encoder=SmallCNNConfig(channels=(5, 7)), feature_dim=7, embed_dim=6, decoder_dim=5, attention_dim=3),
    "show hard": ShowConfig(
        encoder=SmallCNNConfig(channels=(5, 7)), feature_dim=7, embed_dim=6, decoder_dim=5, attention_dim=3, attention="hard"
    ),
    "caption transformer": CaptionTransformerConfig(
        encoder=SmallCNNConfig(channels=(5, 7)), embed_dim=12, ff_dim=13, num_heads=2, area=GridAreaConfig()
    ),
}
NAMES = [*FAMILIES, *ENCODERS, "entailment crossed", "language", "language without attention", *CAPTIONERS]


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return tokens (B, S) and lengths (B,)."""
    size = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (size - len(row))] for row in rows]), torch.tensor([len(row) for row in rows])


def pairs(model: Any, sources: list[list[int]] = SOURCES, targets: list[list[int]] = TARGETS) -> TranslationBatch:
    """Return sentence pairs as a batch."""
    source, source_lengths = padded([[*row, EOS] for row in sources])
    target_output, target_lengths = padded([[*row, EOS] for row in targets])
    target_input, _ = padded([[BOS, *row] for row in targets])
    return TranslationBatch(model, source, source_lengths, target_input, target_output, target_lengths)


def translator(settings: dict[str, Any]) -> Any:
    """Return a model of translation with random weights that differ by token."""
    config = validate({"task": "translation", "model": settings}, "test")
    assert isinstance(config, TranslationConfig)
    return build(config.model, source_size=VOCABULARY, target_size=VOCABULARY).eval()


def batch_of(name: str) -> ModelBatch:
    """Return a batch of three examples (captions: two) of a family, in float64, its weights drawn from the same seed every time."""
    torch.manual_seed(5)
    if name in FAMILIES:
        return pairs(translator(FAMILIES[name]).double())
    if name in CAPTIONERS:
        model = build_captioner(CAPTIONERS[name], image_size=12, vocab_size=VOCABULARY).eval().double()
        output, lengths = padded([[*row, EOS] for row in TARGETS[:2]])
        return CaptionBatch(model, torch.rand(2, 3, 12, 12).double(), padded([[BOS, *row] for row in TARGETS[:2]])[0], output, lengths)
    if name.startswith("language"):
        kind = "none" if "without" in name else "key_value"
        config = LanguageModelConfig(embed_dim=6, hidden_size=10, window=3, attention=kind)
        goals, lengths = padded([[*row, EOS] for row in SOURCES])
        model = build_language_model(config, vocab_size=VOCABULARY).eval().double()
        return LanguageBatch(model, padded([[BOS, *row] for row in SOURCES])[0], goals, lengths)
    labels = torch.tensor([2, 0, 1])
    if name == "entailment crossed":
        config = EntailmentModelConfig(
            embed_dim=12, encoder={"type": "crossed", "ff_dim": 13, "num_heads": 2}, attention_dim=7, hops=3, fusion_dim=5
        )
        model = build_classifier(config, vocab_size=VOCABULARY, classes=3, unknown=1).eval().double()
        texts = [padded(SOURCES), padded(TARGETS)]
    else:
        config = validate({"task": "classification", "model": ENCODERS[name]}, "test", kind=ClassificationConfig).model
        assert isinstance(config, ClassifierConfig)
        model = build_classifier(config, vocab_size=VOCABULARY, classes=3, unknown=1).eval().double()
        texts = [padded(SOURCES)]
    return LabelBatch(model, [text for text, _ in texts], [count for _, count in texts], labels)


def sorter(*, norm: str = "pre", layers: int = 1) -> Any:
    """Return a Transformer that copies: output t is the source token 4 + t wherever it stands, and the end of the source is its last.

    The source's self-attention and the target's add nothing; the target embeds nothing but positions; attention to the source finds the
    token by its vector, and the output layer reads what was found. Decoder layers after the first add nothing.
    """
    dim, content = 64, torch.arange(32, 64, 2)[:VOCABULARY]  # features in which a position under ten is next to nothing
    config = TransformerConfig(embed_dim=dim, ff_dim=7, num_heads=1, encoder_layers=1, decoder_layers=layers, norm=norm)
    model: Any = build(config, source_size=len(content), target_size=len(content)).eval()
    model.target_embedding = ScaledEmbedding(len(content), dim)
    model.output = ops.Linear(dim, len(content), bias=False)
    tokens = torch.zeros(len(content), dim)
    tokens[torch.arange(len(content)), content] = 1.0
    reads = torch.zeros(dim, dim)
    reads[content, content] = 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.zero_()
        model.source_embedding.weight.copy_(tokens)
        cross = model.decoder.layers[0].cross_attention.attention
        cross.key.weight.copy_(reads)
        cross.value.weight.copy_(reads)
        cross.output.weight.copy_(3 * reads)
        model.output.weight.copy_(tokens / 2)
        size = 6
        layer = model.decoder.layers[0]
        states = model.embed(model.target_embedding, torch.zeros(1, size, dtype=torch.long))
        states = layer.attention_norm.after(states, torch.zeros_like(states))
        wanted = tokens[[*range(4, 3 + size), EOS]]
        cross.query.weight.copy_((torch.linalg.pinv(layer.cross_attention_norm.before(states)[0]) @ (20 * wanted)).T)
    return model
