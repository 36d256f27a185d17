"""Captioners as graphs."""

from __future__ import annotations

from regard.integrations.graph import ModelGraphs
from regard.integrations.graph_attention import attend_items, encode
from regard.integrations.graph_generator import Generator, Source, carry_layers, layer_states, source_items, step_stack
from regard.integrations.graph_images import image_features
from regard.integrations.graph_parts import embed, linear, positions
from regard.integrations.graph_transformers import Sources, decoder_graphs
from regard.models.captioning import CaptionTransformer, ShowAttendTell, grid_positions


def show_graphs(model: ShowAttendTell, *, maps: bool) -> ModelGraphs:
    """Write a Show, Attend and Tell model as graphs; see `regard.integrations.graph_models.model_graphs`."""
    generator, decoder = Generator(model, maps=maps), model.decoder
    features = linear(model.project, image_features(model.image_encoder, generator.encoder))
    dim, size = model.project.out_features, decoder.stack.hidden_size
    mean = features.mean(1)
    first = linear(decoder.first_hidden, mean).tanh(), linear(decoder.first_cell, mean).tanh()
    layers = layer_states(generator, [first], size)
    feed = generator.state("feed", generator.encoder.zeros(features.size(0), 1, dim), dim) if decoder.look_last else None
    memory = source_items(generator, decoder.attention, Source(features, dim))
    embedded = embed(decoder.embedding, generator.tokens)
    if feed is not None:
        layers = step_stack(decoder.stack, embedded, layers, feed)
    query = layers[-1][0]
    found = attend_items(decoder.attention, query, memory, generator.position)
    context = linear(decoder.gate, query).sigmoid() * found.context
    if feed is None:
        layers = step_stack(decoder.stack, embedded, layers, context)
    else:
        generator.carry("feed", context, dim)
    carry_layers(generator, layers, size)
    readout = (embedded + linear(decoder.state, layers[-1][0]) + linear(decoder.context, context)).tanh()
    return generator.finish(model.output, readout, found.weights)


def caption_graphs(model: CaptionTransformer, *, maps: bool) -> ModelGraphs:
    """Write a captioning Transformer as graphs; see `regard.integrations.graph_models.model_graphs`."""
    generator, dim = Generator(model, maps=maps), model.embedding.embedding_dim
    cells = linear(model.project, image_features(model.image_encoder, generator.encoder))
    places = generator.encoder.weight(grid_positions(model.grid, dim), "positions.grid")
    states = encode(model.encoder, cells + places, None)
    place = positions(generator.step, generator.position.unsqueeze(0), dim, "paper")
    word = embed(model.embedding, generator.tokens) + place
    return decoder_graphs(generator, model.decoder, word, Sources([Source(states, dim)]), model.output)
