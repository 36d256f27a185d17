"""Image encoders as graph operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from regard.attention import NonLocal
from regard.errors import ConfigError
from regard.integrations.graph import Graph, Value
from regard.integrations.graph_parts import length_mask, linear, normalize
from regard.models.embedding import grid_positions
from regard.models.image_embedding import ImageEmbedding
from regard.models.image_encoder import GivenFeatures, ImageEncoder, SmallCNN


def image_features(encoder: ImageEncoder, graph: Graph, name: str = "images") -> Value:
    """Declare images as an input, or their features; return the features (B, L, D)."""
    cells = encoder.grid[0] * encoder.grid[1]
    if isinstance(encoder, GivenFeatures):
        return graph.input("features", "float32", "B", cells, encoder.output_dim)
    if not isinstance(encoder, SmallCNN):
        raise ConfigError("model.encoder.type: timm, whose networks are not exported; use precomputed features")
    x = graph.input(name, "float32", "B", 3, encoder.image_size, encoder.image_size)
    for number, step in enumerate(step for stage in encoder.stages for step in cast(Sequence[nn.ModuleDict], stage)):
        convolution, batch_norm = cast(nn.Conv2d, step["convolution"]), cast(nn.BatchNorm2d, step["norm"])
        kernel, bias = _folded(convolution, batch_norm)
        weights = graph.weight(kernel, f"convolution.{number}.weight"), graph.weight(bias, f"convolution.{number}.bias")
        x = graph.add("Conv", x, *weights, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[convolution.stride[0]] * 2).apply("Relu")
    x = x.transpose(0, 2, 3, 1).reshape(0, cells, -1)
    if encoder.non_local is not None:
        x = _non_local(encoder.non_local, x, cells)
    if encoder.coordinates:
        end = encoder.coordinates
        places = torch.cartesian_prod(*(torch.linspace(-end, end, length) for length in encoder.grid)).unsqueeze(0)
        shape = graph.concat([x.size(0), graph.integers([cells, 2])], 0)
        x = graph.concat([x, graph.add("Expand", graph.weight(places, "coordinates"), shape)], 2)
    return linear(encoder.cell, x).apply("Relu")


def image_states(graph: Graph, embedding: ImageEmbedding) -> tuple[Value, Value, Value]:
    """Declare images as the second input; return its states (B, L, E), lengths (B,) and the mask (B, L).

    The states are the cells and the vector of the end, unless the model takes cells only; of a missing image, whose length is 1, that
    vector alone.
    """
    dim, lengths = embedding.end.shape[0], graph.input("second.lengths", "int64", "B")
    features = image_features(embedding.image_encoder, graph, "second.images")
    places = graph.weight(grid_positions(embedding.image_encoder.grid, dim), "second.positions")
    cells = linear(embedding.project, features) + places
    end = graph.add("Expand", graph.weight(embedding.end), graph.concat([cells.size(0), graph.integers([1, dim])], 0))
    given = graph.add("Less", graph.integer(1), lengths).unsqueeze(1, 2)
    states = graph.add("Where", given, cells if embedding.cells_only else graph.concat([cells, end], 1), end)
    return states, lengths, length_mask(lengths, states.size(1))


def _non_local(block: NonLocal, x: Value, cells: int) -> Value:
    query, key = (x, x) if block.query is None or block.key is None else (linear(block.query, x), linear(block.key, x))
    if block.vector is None:
        scores = query @ key.transpose(0, 2, 1)
    else:
        vector, inner = block.vector.unsqueeze(1), block.inner_dim
        name = x.graph.weights.name_of(block.vector)
        of_query, of_key = x.graph.weight(vector[:inner], f"{name}.query"), x.graph.weight(vector[inner:], f"{name}.key")
        scores = (query @ of_query + (key @ of_key).transpose(0, 2, 1)).apply("Relu")
    weights = normalize(scores, None, block.normalizer) if block.form in ("gaussian", "embedded_gaussian") else scores / cells
    return linear(block.output, weights @ linear(block.value, x)) + x


@torch.no_grad()
def _folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    # In evaluation a batch norm is affine per channel: merge it into the convolution.
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return convolution.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale
