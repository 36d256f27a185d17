"""A classifier of texts or text pairs as one graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.attention import StructuredAttention
from regard.integrations.graph import Graph, ModelGraphs, Value, Weights
from regard.integrations.graph_attention import encode, encode_crossed
from regard.integrations.graph_parts import embed, encode_recurrent, length_mask, linear, normalize, positions, text_input
from regard.models import SentenceClassifier
from regard.models.crossed import CrossedEncoder
from regard.models.pooling import GatedFusion, RecurrentSentenceEncoder, StatePooling


def label_graphs(model: SentenceClassifier, *, maps: bool) -> ModelGraphs:
    """Write a classifier as one graph; arguments and errors as in `regard.integrations.graph_models.model_graphs`."""
    weights = Weights(model)
    graph = Graph(weights, maps=maps)
    names = [""] if model.fusion is None else ["premise", "hypothesis"]
    texts = [text_input(graph, name) for name in names]
    embedded = [embed(model.embedding, tokens) for tokens, _, _ in texts]
    lengths, masks = [length for _, length, _ in texts], [mask for _, _, mask in texts]
    contexts = list[Value]()
    for name, states, mask, length in zip(names, _sentence_states(model, embedded, lengths, masks), masks, lengths, strict=True):
        context, shares = _pool(model.pooling, states, mask, length)
        contexts.append(context)
        if shares is not None:
            first, size = (f"{name}.", f"{name} S") if name else ("", "S")
            graph.output(f"{first}weights", shares, "float32", "B", "R", size)
    joined = _fuse(model, contexts)
    hidden = joined if model.head.hidden is None else linear(model.head.hidden, joined).apply("Relu")
    graph.output("logits", linear(model.head.output, hidden), "float32", "B", model.head.output.out_features)
    return ModelGraphs(weights, {"model": graph})


def _sentence_states(model: SentenceClassifier, embedded: Sequence[Value], lengths: Sequence[Value], masks: Sequence[Value]) -> list[Value]:
    if isinstance(model.encoder, RecurrentSentenceEncoder):
        own = model.encoder.encoder
        return [encode_recurrent(own, words, count)[0] for words, count in zip(embedded, lengths, strict=True)]
    graph, encoder = embedded[0].graph, model.encoder.encoder
    dim = model.embedding.embedding_dim
    placed = [words + positions(graph, graph.count(words.size(1)), dim, "paper") for words in embedded]
    if not isinstance(encoder, CrossedEncoder):
        return [encode(encoder, words, mask) for words, mask in zip(placed, masks, strict=True)]
    sizes = [words.size(1) for words in embedded]
    seen = list(masks)
    if model.encoder.same_length:
        longest = graph.add("Max", *sizes)
        zeros = [graph.zeros(words.size(0), longest - size, dim) for words, size in zip(placed, sizes, strict=True)]
        placed = [graph.concat([words, more], 1) for words, more in zip(placed, zeros, strict=True)]
        seen = [length_mask(count, longest) for count in lengths]
    first, second = encode_crossed(encoder, (placed[0], placed[1]), (seen[0], seen[1]))
    return [first.cut(1, 0, sizes[0]), second.cut(1, 0, sizes[1])]


def _pool(pooling: StructuredAttention | StatePooling, states: Value, mask: Value, lengths: Value) -> tuple[Value, Value | None]:
    # (B, R, D) of states (B, S, D), and weights (B, R, S).
    graph, real = states.graph, mask.unsqueeze(2)
    states = states.where(real, 0.0)
    if isinstance(pooling, StructuredAttention):
        found = linear(pooling.second, linear(pooling.first, states).tanh()).transpose(0, 2, 1)
        weights = normalize(found, mask.unsqueeze(1), pooling.normalizer)
        graph.attends(pooling, weights)
        return weights @ states, weights
    count = lengths.unsqueeze(1, 2).cast("float32")
    places = graph.count(states.size(1))
    if pooling.kind == "mean":
        weights = mask.cast("float32").unsqueeze(1) / count
        return weights @ states, weights
    if pooling.kind == "max":
        hidden = states.where(real, torch.finfo(torch.float32).min)
        best = graph.add("ReduceMax", hidden, axes=[1], keepdims=1)
        taken = graph.add("ArgMax", hidden, axis=1, keepdims=0).unsqueeze(2)  # (B, D, 1)
        return best, graph.add("Equal", taken, places).cast("float32").mean(1)
    last = graph.add("Equal", places.unsqueeze(0), (lengths - graph.integer(1)).unsqueeze(1)).cast("float32").unsqueeze(1)
    forward = graph.integers([-pooling.backward_dim]) if pooling.backward_dim else None
    ends = last @ states
    if forward is None:
        return ends, None
    return graph.concat([ends.cut(2, 0, forward), states.cut(1, 0, 1).cut(2, forward, 2**62)], 2), None


def _fuse(model: SentenceClassifier, contexts: Sequence[Value]) -> Value:
    graph, fusion = contexts[0].graph, model.fusion
    if isinstance(fusion, GatedFusion):
        # Hop by hop: (R, B, D) times (R, D, F).
        left, right = (
            context.transpose(1, 0, 2) @ graph.weight(weight)
            for context, weight in zip(contexts, (fusion.premise, fusion.hypothesis), strict=True)
        )
        return (left * right).transpose(1, 0, 2).reshape(0, -1)
    flat = [context.reshape(0, -1) for context in contexts]
    if fusion is None:
        return flat[0]
    premise, hypothesis = flat
    return graph.concat([premise, hypothesis, (premise - hypothesis).apply("Abs"), premise * hypothesis], 1)
