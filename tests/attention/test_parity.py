"""Small cases that other projects publish in their tests, restated: our mechanisms with their inputs and weights give their numbers.

Each test names the project, the file and the case. The tolerance is half of the last digit they print, or what they allow themselves.
"""

from __future__ import annotations

import pytest
import torch

from regard import ops
from regard.attention import AdditiveScore, Attention, ConcatScore, CosineScore, DotScore, GeneralScore, MultiHeadAttention

# Keras prints three digits and cuts them instead of rounding.
THREE_DIGITS = {"rtol": 0.0, "atol": 1e-3}
FLOAT32 = {"rtol": 1e-6, "atol": 1e-6}


def tensor(*sentences):
    """Make a batch of what is given, most often of one sentence."""
    return torch.tensor(sentences)


def additive(query_weight, key_weight, vector):
    """Build an AdditiveScore without bias from W (A, Dq), U (A, Dk) and v (A,)."""
    score = AdditiveScore(query_weight.shape[1], key_weight.shape[1], len(vector))
    score.load_state_dict({"query.weight": query_weight, "key.weight": key_weight, "key.bias": torch.zeros(len(vector)), "vector": vector})
    return score


def plain_additive(vector):
    """Build v . tanh(q + k), Keras' form: nothing is projected."""
    return additive(torch.eye(len(vector)), torch.eye(len(vector)), vector)


def general(weight):
    """Build q^T W k."""
    score = GeneralScore(*weight.shape)
    score.load_state_dict({"key.weight": weight})
    return score


def scores(score, query, key):
    return score(query, score.project(key))


def attend(score, query, key, value, mask=None):
    return Attention(score)(query, key, value, mask=mask, need_weights=True)


# Keras, keras/src/layers/attention/attention_test.py and additive_attention_test.py

TWO = {
    "query": tensor([[1.0, 0.0], [0.0, 1.0]]),
    "key": tensor([[0.0, 1.0], [1.0, 0.0]]),
    "value": tensor([[1.0, 2.0], [3.0, 4.0]]),
}
SUMMED = (tensor([[1.727, 2.727], [2.272, 3.272]]), tensor([[0.636, 0.363], [0.363, 0.636]]))


def concat_of_sums():
    score = ConcatScore(2, 2, 2)
    score.load_state_dict({"weight": torch.cat([torch.eye(2), torch.eye(2)], dim=1), "vector": torch.ones(2)})
    return score


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (DotScore, (tensor([[2.462, 3.462], [1.538, 2.538]]), tensor([[0.269, 0.731], [0.731, 0.269]]))),
        (concat_of_sums, SUMMED),  # Attention(score_mode="concat")
        (lambda: plain_additive(torch.ones(2)), SUMMED),  # AdditiveAttention(use_scale=False)
    ],
    ids=["dot", "concat", "additive"],
)
def test_keras_attention_correctness(score, expected):
    found = attend(score(), **TWO)
    torch.testing.assert_close(found.context, expected[0], **THREE_DIGITS)
    torch.testing.assert_close(found.weights, expected[1], **THREE_DIGITS)


@pytest.mark.parametrize("score", [DotScore, lambda: plain_additive(torch.ones(2))], ids=["dot", "additive"])
def test_keras_attention_with_mask(score):
    # test_attention_with_mask: a masked query gives zeros in their output but keeps its row of weights; with us the mask of a pair does
    # both, so the two are asked for apart.
    ones = torch.ones(1, 2, 2)
    values = tensor([True, False])
    queries = tensor([True, False])
    found = attend(score(), TWO["query"], ones, ones, queries.unsqueeze(-1) & values.unsqueeze(-2))
    assert torch.equal(found.context, tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert torch.equal(attend(score(), TWO["query"], ones, ones, values.unsqueeze(-2)).weights, tensor([[1.0, 0.0], [1.0, 0.0]]))


def test_keras_multi_head_correctness():
    # multi_head_attention_test.py, test_correctness: eight heads of size eight, every head projected by the identity; the kernel of the
    # output has the axes (head, feature, output), so that each output is the sum of one head's features.
    size = heads = 8
    attention = MultiHeadAttention(size, heads, head_dim=size, bias=False)
    stacked = torch.eye(size).repeat(heads, 1)
    weights = {
        "query.weight": stacked,
        "key.weight": stacked,
        "value.weight": stacked,
        "output.weight": torch.eye(size).repeat_interleave(size, dim=1),
    }
    attention.load_state_dict(weights)
    identity = torch.eye(size).unsqueeze(0)
    found = attention(identity, identity, torch.arange(64.0).reshape(1, size, size) / 100, need_weights=True)
    rows = tensor(2.406, 2.440, 2.473, 2.504, 2.535, 2.568, 2.602, 2.633)  # computed by them in float16
    torch.testing.assert_close(found.context, rows.expand(1, size, size).transpose(1, 2), rtol=0, atol=1e-2)
    expected = torch.full((size, size), 0.1187).fill_diagonal_(0.1691)
    torch.testing.assert_close(found.weights, expected.expand(1, heads, size, size), rtol=0, atol=1e-4)


# tf.keras, tensorflow/python/keras/layers/dense_attention_test.py

QUERIES = tensor([[1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3]])
KEYS = tensor([[1.5, 1.6, 1.7, 1.8], [2.5, 2.6, 2.7, 2.8], [3.5, 3.6, 3.7, 3.8]])
ITEMS = tensor([[1.6], [0.7], [-0.8]])
OTHERS = tensor([[0.5], [0.8], [-0.3]])
FIRST_TWO = tensor([True, True, False]).unsqueeze(-2)


def test_tf_keras_scores_multi_dim():
    expected = tensor([[7.64, 12.24, 16.84], [14.24, 22.84, 31.44]])
    torch.testing.assert_close(ops.dot_scores(QUERIES, KEYS), expected, **FLOAT32)
    found = scores(plain_additive(tensor(0.5, 0.6, 0.7, 0.8)), QUERIES, KEYS)
    expected = tensor([[2.58044532581, 2.59734317449, 2.59964024652], [2.59734317449, 2.59964024652, 2.59995130916]])
    torch.testing.assert_close(found, expected, **FLOAT32)


def test_tf_keras_softmax_of_scores_with_and_without_a_mask():
    table = tensor([[1.0, 0.0, 1.0]])
    masked = ops.masked_softmax(table, FIRST_TWO)
    torch.testing.assert_close(masked, tensor([[0.73105857863, 0.26894142137, 0.0]]), **FLOAT32)
    torch.testing.assert_close(masked @ ITEMS, tensor([[1.35795272077]]), **FLOAT32)
    free = ops.masked_softmax(table)
    torch.testing.assert_close(free, tensor([[0.42231879825, 0.15536240349, 0.42231879825]]), **FLOAT32)
    torch.testing.assert_close(free @ ITEMS, tensor([[0.44660872104]]), **FLOAT32)


@pytest.mark.parametrize(
    ("score", "key", "value", "context", "weights"),
    [
        (DotScore, ITEMS, ITEMS, 1.3561791301, (0.72908792234, 0.27091207765)),
        (DotScore, ITEMS, OTHERS, 0.58127362329, (0.72908792234, 0.27091207765)),
        (lambda: plain_additive(torch.tensor([0.5])), ITEMS, ITEMS, 1.15497245968, (0.50552495521, 0.49447504478)),
        (lambda: plain_additive(torch.tensor([0.5])), ITEMS, OTHERS, 0.64834251342, (0.50552495521, 0.49447504478)),
    ],
    ids=["dot", "dot with key", "additive", "additive with key"],
)
def test_tf_keras_multi_dim(score, key, value, context, weights):
    found = attend(score(), tensor([[1.1]]), key, value, FIRST_TWO)
    torch.testing.assert_close(found.context, tensor([[context]]), **FLOAT32)
    torch.testing.assert_close(found.weights, tensor([[*weights, 0.0]]), **FLOAT32)


def test_tf_keras_multi_dim_with_query_mask():
    query = tensor([[1.1], [-0.5]])
    expected = {
        DotScore(): (1.3561791301, [[0.72908792234, 0.27091207765, 0.0], [0.38936076605, 0.61063923394, 0.0]]),
        plain_additive(torch.tensor([0.5])): (1.15497245968, [[0.50552495521, 0.49447504478, 0.0], [0.57482427975, 0.42517572025, 0.0]]),
    }
    for score, (context, weights) in expected.items():
        both = attend(score, query, ITEMS, ITEMS, FIRST_TWO & tensor([[True], [False]]))
        torch.testing.assert_close(both.context, tensor([[context], [0.0]]), **FLOAT32)
        torch.testing.assert_close(attend(score, query, ITEMS, ITEMS, FIRST_TWO).weights, tensor(weights), **FLOAT32)


def test_tf_keras_self_attention_causal():
    found = attend(DotScore(), OTHERS, OTHERS, OTHERS, ops.causal_mask(3, 3)[None])
    weights = [[1.0, 0.0, 0.0], [0.44028635073, 0.55971364926, 0.0], [0.31395396638, 0.28693232061, 0.399113713]]
    torch.testing.assert_close(found.weights, tensor(weights), **FLOAT32)
    torch.testing.assert_close(found.context, tensor([[0.5], [0.66791409477], [0.26678872577]]), **FLOAT32)


# AllenNLP, tests/modules/attention and tests/modules/matrix_attention

COUNTING = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[7.0, 8.0, 9.0], [10.0, 11.0, 12.0]]])
ZEROS_ONES = torch.tensor([[[0.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]]])


def test_allennlp_additive_attention():
    # additive_attention_test.py; their matrices stand on the right of the vectors.
    score = additive(
        torch.tensor([[-0.2, 0.3], [-0.5, 0.5]]).T.contiguous(),
        torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, -1.0]]).T.contiguous(),
        torch.tensor([1.0, -1.0]),
    )
    vectors = torch.tensor([[[0.7, -0.8]], [[0.4, 0.9]]])
    matrices = torch.tensor(
        [
            [[1.0, -1.0, 3.0], [0.5, -0.3, 0.0], [0.2, -1.0, 1.0], [0.7, 0.8, -1.0]],
            [[-2.0, 3.0, -3.0], [0.6, 0.2, 2.0], [0.5, -0.4, -1.0], [0.2, 0.2, 0.0]],
        ]
    )
    expected = torch.tensor([[[1.975072, -0.04997836, 1.2176098, -0.9205586]], [[-1.4851665, 1.489604, -1.890285, -1.0672251]]])
    torch.testing.assert_close(scores(score, vectors, matrices), expected, **FLOAT32)


def test_allennlp_bilinear_attention():
    # bilinear_attention_test.py and bilinear_matrix_attention_test.py; they add a bias of 0.1 to every score, which no softmax sees.
    score = general(torch.tensor([[-0.3, 0.5], [2.0, -1.0]]))
    expected = tensor([[1.8, -0.4], [3.5, -0.9]])
    torch.testing.assert_close(scores(score, tensor([[1.0, 1.0], [2.0, 2.0]]), torch.eye(2).unsqueeze(0)) + 0.1, expected, **FLOAT32)


def test_allennlp_bilinear_attention_with_input_biases():
    # bilinear_matrix_attention_test.py: a one is appended to both inputs.
    score = general(torch.tensor([[-0.3, 0.5, 1.0], [2.0, -1.0, -1.0], [1.0, 0.5, 1.0]]))
    query, key = tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 1.0]]), tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    torch.testing.assert_close(scores(score, query, key) + 0.1, tensor([[3.8, 1.1], [5.5, 0.6]]), **FLOAT32)


def test_allennlp_dot_product_attention():
    torch.testing.assert_close(scores(DotScore(), ZEROS_ONES, COUNTING), torch.tensor([[[0.0, 0.0]], [[24.0, 33.0]]]))


def test_allennlp_scaled_dot_product_attention():
    # scaled_dot_product_attention_test.py divides by sqrt(9) although there are three features; six zeros more make it nine.
    query = ZEROS_ONES.transpose(0, 1).expand(2, 2, 3)
    query, key = (torch.nn.functional.pad(x, (0, 6)) for x in (query, COUNTING))
    torch.testing.assert_close(
        scores(DotScore(scaled=True), query, key), torch.tensor([[[0.0, 0.0], [2.0, 5.0]], [[0.0, 0.0], [8.0, 11.0]]])
    )


def test_allennlp_cosine_attention():
    expected = torch.tensor([[[0.0, 0.0]], [[0.9948, 0.9973]]])
    torch.testing.assert_close(scores(CosineScore(), ZEROS_ONES, COUNTING), expected, rtol=0, atol=5e-5)


def test_allennlp_linear_attention():
    # linear_attention_test.py: the score is w . [q; k] + b. What the query adds is the same for all keys and cancels in the softmax; what
    # is left is a dot product with the key's part of w, which then is the query.
    found = attend(DotScore(), tensor([[-1.0, 1.0, 1.0]]), COUNTING[:1], COUNTING[:1])
    torch.testing.assert_close(found.weights, tensor([[0.0474, 0.9526]]), rtol=0, atol=5e-5)


# JoeyNMT, test/unit/test_attention.py. Its weights and inputs come from torch's generator with seed 42: first its layers are built (key,
# query, energy; for Luong the key alone), then queries and keys are drawn. The projected keys, which it prints as well, show whether torch
# still draws these numbers.

FOUR_DIGITS = {"rtol": 0.0, "atol": 1e-4}
BATCH, TARGET, SOURCE, QUERY, KEY = 6, 4, 5, 5, 3
LENGTHS = torch.tensor([2, 3, 5, 5, 4, 5])
SHOWN = [0, 1, 5]  # the sentences whose numbers are compared: two padded ones and a full one


def drawn(*layers):
    """Build JoeyNMT's layers (inputs, outputs), then draw queries and keys, from seed 42."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(42)
        weights = [torch.nn.Linear(*sizes, bias=False).weight.detach() for sizes in layers]
        return weights, torch.rand(BATCH, TARGET, QUERY), torch.rand(BATCH, SOURCE, KEY)


def drawn_keys(*layers):
    """Draw the keys of its tests of the projection alone, which come right after the layers."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(42)
        weights = [torch.nn.Linear(*sizes, bias=False).weight.detach() for sizes in layers]
        return weights, torch.rand(BATCH, SOURCE, KEY)


def compare(score, queries, keys, contexts, weights):
    found = attend(score, queries, keys, keys, ops.length_mask(LENGTHS, SOURCE).unsqueeze(1))
    torch.testing.assert_close(found.context[SHOWN], torch.tensor(contexts), **FOUR_DIGITS)
    torch.testing.assert_close(found.weights[SHOWN], torch.tensor(weights), **FOUR_DIGITS)
    assert (found.weights.masked_select(~ops.length_mask(LENGTHS, SOURCE).unsqueeze(1)) == 0).all()


def test_joeynmt_projected_keys():
    (key, query, energy), keys = drawn_keys((KEY, 7), (QUERY, 7), (7, 1))
    expected = [[0.4042, 0.1373, 0.3308, 0.2317, 0.3011, 0.2978, -0.0975], [0.4740, 0.4829, -0.0853, -0.2634, 0.4623, 0.0333, -0.2702]]
    torch.testing.assert_close(additive(query, key, energy[0]).project(keys)[0, :2], torch.tensor(expected), **FOUR_DIGITS)
    (key,), keys = drawn_keys((KEY, QUERY))
    expected = [[0.5362, 0.1826, 0.4716, 0.3245, 0.4122], [0.3819, 0.0934, 0.2750, 0.2311, 0.2378]]
    torch.testing.assert_close(general(key).project(keys)[0, :2], torch.tensor(expected), **FOUR_DIGITS)


def test_joeynmt_bahdanau_forward():
    (key, query, energy), queries, keys = drawn((KEY, 7), (QUERY, 7), (7, 1))
    contexts = [
        [[0.5080, 0.5832, 0.5614], [0.5096, 0.5816, 0.5596], [0.5092, 0.5820, 0.5601], [0.5079, 0.5833, 0.5615]],
        [[0.4709, 0.5817, 0.3091], [0.4720, 0.5793, 0.3063], [0.4704, 0.5825, 0.3102], [0.4709, 0.5814, 0.3090]],
        [[0.5649, 0.5749, 0.4960], [0.5660, 0.5763, 0.4988], [0.5658, 0.5754, 0.4984], [0.5662, 0.5766, 0.4991]],
    ]
    weights = [
        [[0.4904, 0.5096, 0, 0, 0], [0.4859, 0.5141, 0, 0, 0], [0.4871, 0.5129, 0, 0, 0], [0.4906, 0.5094, 0, 0, 0]],
        [[0.3314, 0.3278, 0.3408, 0, 0], [0.3337, 0.3230, 0.3433, 0, 0], [0.3301, 0.3297, 0.3402, 0, 0], [0.3312, 0.3275, 0.3413, 0, 0]],
        [
            [0.1999, 0.1888, 0.1951, 0.2009, 0.2153],
            [0.2035, 0.1885, 0.1956, 0.1972, 0.2152],
            [0.2025, 0.1885, 0.1950, 0.1980, 0.2159],
            [0.2044, 0.1884, 0.1955, 0.1970, 0.2148],
        ],
    ]
    compare(additive(query, key, energy[0]), queries, keys, contexts, weights)


def test_joeynmt_luong_forward():
    (key,), queries, keys = drawn((KEY, QUERY))
    contexts = [
        [[0.5347, 0.2918, 0.4707], [0.5062, 0.2657, 0.4117], [0.4969, 0.2572, 0.3926], [0.5320, 0.2893, 0.4651]],
        [[0.5210, 0.6707, 0.4343], [0.5111, 0.6809, 0.4274], [0.5156, 0.6622, 0.4274], [0.5046, 0.6634, 0.4175]],
        [[0.4581, 0.4343, 0.5151], [0.4493, 0.4297, 0.5348], [0.4399, 0.4265, 0.5419], [0.4833, 0.4570, 0.4855]],
    ]
    weights = [
        [[0.3238, 0.6762, 0, 0, 0], [0.4090, 0.5910, 0, 0, 0], [0.4367, 0.5633, 0, 0, 0], [0.3319, 0.6681, 0, 0, 0]],
        [[0.2483, 0.3291, 0.4226, 0, 0], [0.2353, 0.3474, 0.4174, 0, 0], [0.2725, 0.3322, 0.3953, 0, 0], [0.2803, 0.3476, 0.3721, 0, 0]],
        [
            [0.2362, 0.1929, 0.2128, 0.1859, 0.1723],
            [0.2230, 0.2118, 0.2116, 0.1890, 0.1646],
            [0.2118, 0.2251, 0.2039, 0.1891, 0.1700],
            [0.2859, 0.1874, 0.2083, 0.1583, 0.1601],
        ],
    ]
    compare(general(key), queries, keys, contexts, weights)


# tensor2tensor, tensor2tensor/layers/area_attention_test.py


def pairs(*odd):
    """[[1, 2], [3, 4]] from 1, 3: their features come in such pairs."""
    return torch.tensor([[[o, o + 1.0] for o in odd], [[o + 0.1, o + 1.1] for o in odd]])


def test_tensor2tensor_area_features_1d():
    # testComputeAreaFeatures1D
    features = pairs(1.0, 3.0, 5.0, 7.0, 9.0)
    found = ops.area_features(features, 3, epsilon=0.0)
    widths = torch.tensor([1] * 5 + [2] * 4 + [3] * 3)
    mean = pairs(1.0, 3.0, 5.0, 7.0, 9.0, 2.0, 4.0, 6.0, 8.0, 3.0, 5.0, 7.0)
    deviation = torch.tensor([0.0, 1.0, 1.63299])[widths - 1].unsqueeze(-1).expand(2, 12, 2)
    first = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [4, 6], [8, 10], [12, 14], [16, 18], [9, 12], [15, 18], [21, 24]]
    second = [[1.1, 2.1], [3.1, 4.1], [5.1, 6.1], [7.1, 8.1], [9.1, 10.1], [4.2, 6.2], [8.2, 10.2], [12.2, 14.2], [16.2, 18.2]]
    second += [[9.3, 12.3], [15.3, 18.3], [21.3, 24.3]]
    total = torch.tensor([first, second])
    torch.testing.assert_close(found.mean, mean, **FLOAT32)
    torch.testing.assert_close(found.std, deviation, rtol=0, atol=1e-2)
    torch.testing.assert_close(found.sum, total, rtol=1e-6, atol=1e-5)
    assert found.height.tolist() == [1] * 12
    assert found.width.tolist() == widths.tolist()
    torch.testing.assert_close(ops.area_keys(features, 3, mode="mean"), mean, **FLOAT32)
    torch.testing.assert_close(ops.area_values(features, 3, mode="sum"), total, rtol=1e-6, atol=1e-5)


def test_tensor2tensor_area_features_2d():
    # testComputeAreaFeatures2D: two rows of three, areas of up to 2 x 3
    features = pairs(1.0, 3.0, 5.0, 7.0, 9.0, 11.0)
    found = ops.area_features(features, (2, 3), (2, 3), epsilon=0.0)
    mean = pairs(1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 2.0, 4.0, 8.0, 10.0, 3.0, 9.0, 4.0, 6.0, 8.0, 5.0, 7.0, 6.0)
    heights = [1] * 12 + [2] * 6
    widths = [1] * 6 + [2] * 4 + [3] * 2 + [1] * 3 + [2] * 2 + [3]
    sizes = (torch.tensor(heights) * torch.tensor(widths)).unsqueeze(-1)
    torch.testing.assert_close(found.mean, mean, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(found.sum, mean * sizes, rtol=1e-6, atol=1e-5)
    assert found.height.tolist() == heights
    assert found.width.tolist() == widths
    torch.testing.assert_close(ops.area_keys(features, (2, 3), (2, 3), mode="mean"), mean, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(ops.area_values(features, (2, 3), (2, 3), mode="sum"), mean * sizes, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("max_area", "grid", "key_mode", "value_mode"),
    [((3, 3), (10, 10), "mean", "sum"), ((3, 3), (10, 10), "max", "max"), (3, None, "max", "max")],
    ids=["testAreaMean", "test2DAreaMax", "test1DAreaMax"],
)
def test_tensor2tensor_gradients_of_area_attention_are_finite(max_area, grid, key_mode, value_mode):
    # They ask for finite numbers from features between -10 and 10, some of them padded, with fewer examples here.
    generator = torch.Generator().manual_seed(73)
    query, key, value = ((torch.rand(3, 2, n, 13, generator=generator) * 20 - 10).requires_grad_() for n in (5, 100, 100))
    mask = None if grid is not None else ops.length_mask(torch.tensor([7, 53, 100]), 100)[:, None, None]
    context = ops.area_attention(query, key, value, max_area=max_area, grid=grid, mask=mask, key_mode=key_mode, value_mode=value_mode)
    gradients = torch.autograd.grad(context.square().mean(), (query, key, value))
    assert all(part.isfinite().all() for part in (context, *gradients))
    assert all((part != 0).any() for part in gradients)
