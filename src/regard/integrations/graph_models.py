"""Trained models as graphs: encoder and step for generators, one graph for classifiers."""

from __future__ import annotations

from torch import nn

from regard.attention import KeyValueAttention, NGramReadout
from regard.errors import ConfigError
from regard.integrations.graph import ModelGraphs, Value
from regard.integrations.graph_captions import caption_graphs, show_graphs
from regard.integrations.graph_generator import Generator, carry_layers, layer_states, step_stack
from regard.integrations.graph_labels import label_graphs
from regard.integrations.graph_parts import embed, linear, normalize
from regard.integrations.graph_recurrent import recurrent_graphs
from regard.integrations.graph_transformers import transformer_graphs
from regard.models import RecurrentEncoderDecoder, SentenceClassifier, Transformer
from regard.models.captioning import CaptionTransformer, ShowAttendTell
from regard.models.language_model import RecurrentLanguageModel
from regard.models.pointer_generator import PointerGenerator


def model_graphs(model: nn.Module, *, maps: bool = False) -> ModelGraphs:
    """Write a model as graphs.

    Args:
        model: in evaluation mode.
        maps: see `Graph`.

    Raises:
        ConfigError: a part of the model cannot be exported; the message names it.

    Example:
        >>> from regard.config import RNNConfig
        >>> from regard.models import build
        >>> graphs = model_graphs(build(RNNConfig(), source_size=11, target_size=13))
        >>> [port.name for port in graphs.graphs["step"].outputs]
        ['next.layer.0.0', 'logits', 'weights']
    """
    match model:
        case RecurrentEncoderDecoder():
            return recurrent_graphs(model, maps=maps)
        case Transformer():
            return transformer_graphs(model, maps=maps)
        case ShowAttendTell():
            return show_graphs(model, maps=maps)
        case CaptionTransformer():
            return caption_graphs(model, maps=maps)
        case RecurrentLanguageModel():
            return _language(model, maps)
        case SentenceClassifier():
            return label_graphs(model, maps=maps)
        case PointerGenerator():
            raise ConfigError("model.copy_attention: true, but the export copies no source words")
        case _:
            raise ConfigError(f"{type(model).__name__}: this model cannot be exported")


def _language(model: RecurrentLanguageModel, maps: bool) -> ModelGraphs:
    generator, size = Generator(model, maps=maps), model.stack.hidden_size
    batch = generator.encoder.input("batch", "int64", 1)
    zero = generator.encoder.zeros(batch, 1, size)
    layers = layer_states(generator, [(zero, zero) for _ in model.stack.cells], size)
    layers = step_stack(model.stack, embed(model.embedding, generator.tokens), layers, None)
    carry_layers(generator, layers, size)
    top, weights = layers[-1][0], None
    if model.attention is not None:
        top, weights = _recent(generator, model.attention, top, batch)
    if model.ngram is not None:
        top = _ngram(generator, model.ngram, top, batch)
    readout = top if model.project is None else linear(model.project, top)
    return generator.finish(model.output, readout, weights, 0 if model.attention is None else model.attention.window)


def _ngram(generator: Generator, readout: NGramReadout, state: Value, batch: Value) -> Value:
    step, window, dim = generator.step, readout.window, readout.input_dim
    if window:
        past = generator.state("past", generator.encoder.zeros(batch, 1, window, dim), window, dim)
        whole, width = step.concat([past, state.unsqueeze(2)], 2), dim // (window + 1)  # (B, K, N - 1, D), oldest first
        places = [whole.cut(2, window - back, window - back + 1) for back in range(window + 1)]
        state = step.concat([place.cut(-1, back * width, (back + 1) * width).squeeze(2) for back, place in enumerate(places)], 2)
        generator.carry("past", whole.cut(2, 1, window + 1), window, dim)
    return linear(readout.output, state).tanh()


def _recent(generator: Generator, attention: KeyValueAttention, state: Value, batch: Value) -> tuple[Value, Value]:
    encoder, step, parts, window = generator.encoder, generator.step, attention.parts, attention.window
    dim = attention.input_dim // parts
    empty = encoder.zeros(batch, 1, window, dim)
    key, value, predict = (state.cut(-1, n * dim, (n + 1) * dim) for n in (0, min(1, parts - 1), parts - 1))
    keys, values = generator.state("keys", empty, window, dim), generator.state("values", empty, window, dim)
    seen = generator.state("seen", encoder.zeros(batch, 1, window), window)
    column = step.weight(attention.vector.unsqueeze(1), f"{step.weights.name_of(attention.vector)}.column")
    found = ((linear(attention.query, key).unsqueeze(2) + keys).tanh() @ column).squeeze(3)  # (B, K, L)
    weights = normalize(found, step.add("Greater", seen, step.number(0.5)), attention.normalizer)
    step.attends(attention, weights)
    read = (weights.unsqueeze(2) @ values).squeeze(2)
    for name, past, new in (("keys", keys, linear(attention.key, key)), ("values", values, value)):
        generator.carry(name, step.concat([past, new.unsqueeze(2)], 2).cut(2, 1, window + 1), window, dim)
    one = (key.cut(-1, 0, 1) * 0.0) + 1.0
    generator.carry("seen", step.concat([seen, one], 2).cut(2, 1, window + 1), window)
    return (linear(attention.read, read) + linear(attention.predict, predict)).tanh(), weights
