"""The table of mechanisms: names, location, equation, source, cost and setting of each. Imports nothing of the library."""

from __future__ import annotations

from typing import NamedTuple


class Cost(NamedTuple):
    """Additional time and memory of a mechanism, without constants."""

    time: str
    memory: str


class Mechanism(NamedTuple):
    """A mechanism: its name and aliases, location, source, equation, cost, and the setting that selects it."""

    name: str
    aliases: str
    where: str
    source: str
    equation: str
    cost: Cost
    setting: str = ""

    @property
    def slug(self) -> str:
        """The name in links and file names."""
        return self.name.replace(" ", "-").replace("'", "").lower()


# B batch, T queries, S keys, D features, A hidden size of an additive score, H heads, N areas, C inner size, M positions of a location
# score, L positions of a key-value window, r hops. "The score's" is the cost of the chosen score.
_DOT = Cost("O(B T S D)", "O(B T S)")
_ADDITIVE = Cost("O(B (T + S) D A + B T S A)", "O(B T S A); by the native CPU library (float32) O(B (T + S) A + B T S)")
_WINDOW = Cost("as the whole source: every score is computed, then masked", "O(B T S)")
_SORTED = Cost("the score's + O(B T S log S): a sort in place of the softmax's sum", "the score's + O(B T S)")
_STEPWISE = Cost("the score's, in T steps one after the other", "the score's")
_HEADS = Cost("O(B (T + S) D^2 + B T S D)", "O(B H T S) with weights or another score; else that of torch's fused attention")
_AREAS = Cost("O(B H T (S D + N)): scores of items, means of them for areas", "O(B H T N); by a kernel no T x S or T x N matrix")
_MADE_AREAS = Cost("O(B H T N D): a key and a value for every area", "O(B H N D + B H T N)")
_KEY_VALUE = Cost("O(B T (D^2 + L D))", "O(B T L D)")
_MASK = Cost("O(B T S)", "one byte for each pair, fewer where an axis is 1")
_PAIRS = Cost("O(B (T + S) D C + B T S C)", "O(B T S)")

MECHANISMS = (
    Mechanism(
        "additive score",
        "Bahdanau attention, MLP attention",
        "AdditiveScore",
        "Bahdanau 2015, A.1.2",
        "e = v . tanh(W q + U k + b)",
        _ADDITIVE,
        "model.attention.score=additive",
    ),
    Mechanism(
        "concat score",
        "Luong concat",
        "ConcatScore",
        "Luong 2015, 3.1",
        "e = v . tanh(W [q; k])",
        _ADDITIVE,
        "model.attention.score=concat",
    ),
    Mechanism("dot score", "Luong dot", "DotScore()", "Luong 2015, 3.1", "e = q . k", _DOT, "model.attention.score=dot"),
    Mechanism(
        "scaled dot score",
        "Vaswani attention",
        "DotScore(scaled=True)",
        "Vaswani 2017, Eq. 1",
        "e = q . k / sqrt(D)",
        _DOT,
        "model.attention.score=scaled_dot",
    ),
    Mechanism(
        "general score",
        "Luong attention, bilinear, multiplicative",
        "GeneralScore",
        "Luong 2015, 3.1",
        "e = q^T W k",
        Cost("O(B S D^2 + B T S D)", "O(B S D + B T S)"),
        "model.attention.score=general",
    ),
    Mechanism(
        "location score",
        "Luong location",
        "LocationScore",
        "Luong 2015, Eq. 8",
        "e_s = (W q)_s for s < M, else -inf",
        Cost("O(B T D M), whatever the keys", "O(B T M)"),
        "model.attention.score=location",
    ),
    Mechanism(
        "cosine score",
        "Graves content addressing, NTM",
        "CosineScore",
        "Graves 2014, Eq. 5",
        "e = beta cos(q, k)",
        _DOT,
        "model.attention.score=cosine",
    ),
    Mechanism(
        "generic attention",
        "attention over items given a context; the additive score in other letters",
        "AdditiveScore",
        "Bahdanau 2015, A.1.2",
        "m_i = tanh(W_c c + W_y y_i); s_i = exp(w . m_i) / sum_j exp(w . m_j); z = sum_i s_i y_i",
        _ADDITIVE,
    ),
    Mechanism(
        "whole source",
        "global, soft attention",
        "Attention(score)",
        "Bahdanau 2015, Eq. 5-6",
        "a = softmax(e); c = sum_s a_s v_s",
        Cost("the score's + O(B T S D)", "the score's + O(B T S)"),
        "model.attention.window=global",
    ),
    Mechanism(
        "hard attention",
        "stochastic attention, Show Attend and Tell",
        "HardChoice, ScoreFunctionEstimator",
        "Xu 2015, 4.1",
        "s ~ Multinoulli(a); c = v_s; dL = dlog p(y|s) + lambda_r (log p(y|s) - b) dlog p(s|a) + lambda_e dH[s]",
        Cost("the score's + O(B T S D)", "the score's + O(B T S)"),
        "model.attention=hard",
    ),
    Mechanism(
        "monotonic window",
        "Luong local-m",
        "MonotonicWindow",
        "Luong 2015, 3.2",
        "p_t = t; a = softmax(e) over [p_t - R, p_t + R]",
        _WINDOW,
        "model.attention.window=local_m",
    ),
    Mechanism(
        "predictive window",
        "Luong local-p",
        "PredictiveWindow",
        "Luong 2015, Eq. 9-10",
        "p_t = S sigmoid(v . tanh(W q)); a = softmax(e) over [p_t - R, p_t + R] * exp(-(s - p_t)^2 / (2 (R/2)^2))",
        Cost("as the whole source + O(B T D^2)", "O(B T S)"),
        "model.attention.window=local_p",
    ),
    Mechanism(
        "sparsemax",
        "Euclidean projection onto the simplex, 2-entmax",
        'ops.sparsemax, Attention(normalizer="sparsemax")',
        "Martins 2016, Eq. 1-11",
        "a_s = max(e_s - tau, 0), with tau such that sum_s a_s = 1; de = diag(u) da - u (u . da) / sum_s u_s, u_s = [a_s > 0]",
        _SORTED,
        "model.attention.normalizer=sparsemax",
    ),
    Mechanism(
        "entmax",
        "1.5-entmax, between softmax and sparsemax",
        'ops.entmax15, Attention(normalizer="entmax15")',
        "Peters 2019, Eq. 9, Prop. 2",
        "a_s = max(e_s / 2 - tau, 0)^2, with tau such that sum_s a_s = 1; de = diag(u) da - u (u . da) / sum_s u_s, u_s = sqrt(a_s)",
        _SORTED,
        "model.attention.normalizer=entmax15",
    ),
    Mechanism("length mask", "padding mask", "ops.length_mask", "common practice", "s may be attended iff s < length", _MASK),
    Mechanism("causal mask", "look-ahead mask", "ops.causal_mask", "Vaswani 2017, 3.2.3", "t may attend s iff s <= t + S - T", _MASK),
    Mechanism(
        "block mask", "packed sequences, documents", "ops.block_mask", "common practice", "t may attend s iff block(t) = block(s)", _MASK
    ),
    Mechanism(
        "attend before the cell",
        "Bahdanau's order",
        "RecurrentDecoder(attend_first=True)",
        "Bahdanau 2015, Eq. 4",
        "h_{t-1} -> a_t -> c_t -> h_t",
        _STEPWISE,
        "model.attention.query_state=previous",
    ),
    Mechanism(
        "attend after the cell",
        "Luong's order",
        "RecurrentDecoder(attend_first=False)",
        "Luong 2015, 3",
        "h_t -> a_t -> c_t -> h~_t = tanh(W_c [c_t; h_t])",
        Cost("the score's, for all T steps at once in training", "the score's"),
        "model.attention.query_state=current",
    ),
    Mechanism(
        "input feeding",
        "Luong input feeding",
        "RecurrentDecoder(input_feeding=True)",
        "Luong 2015, 3.3",
        "h_t = cell([y_{t-1}; h~_{t-1}], h_{t-1})",
        _STEPWISE,
        "model.attention.input_feeding=true",
    ),
    Mechanism(
        "no attention",
        "Sutskever, Cho: a fixed context vector",
        "RecurrentDecoder(attention=None)",
        "Cho 2014, 2.2",
        "c = [last forward state; last backward state], the same for every t",
        Cost("O(B D)", "O(B D)"),
        "model.attention=null",
    ),
    Mechanism(
        "coverage",
        "coverage vector and coverage loss",
        "AdditiveScore(coverage=True), ops.coverage_loss",
        "See 2017, Eq. 10-13",
        "c_t = sum_{t' < t} a_t'; e_s = v . tanh(W q + U k + w_c c_ts + b); L = lambda sum_ts min(a_ts, c_ts); "
        "dL/da_ts = lambda ([a_ts < c_ts] + sum_{t' > t} [c_t's < a_t's])",
        Cost("the additive score's + O(B T S A), in T steps one after the other", "O(B T S A) in training"),
        "model.attention.coverage=true",
    ),
    Mechanism(
        "pointer-generator",
        "copy attention, copy mechanism",
        "PointerGenerator, ops.copy_log_probs",
        "See 2017, Eq. 8-10",
        "p_gen = sigmoid(w . readout + b); p(w) = p_gen P_vocab(w) + (1 - p_gen) sum_{s: x_s = w} a_s; "
        "dp(w) = P_vocab(w) dp_gen + p_gen dP_vocab(w) + sum_{s: x_s = w} ((1 - p_gen) da_s - a_s dp_gen)",
        Cost("the model's + O(B T (V + S^2))", "the model's + O(B T (V + S) + B S^2)"),
        "model.copy_attention=true",
    ),
    Mechanism(
        "multi-head attention",
        "Transformer attention",
        "MultiHeadAttention",
        "Vaswani 2017, 3.2.2",
        "head_h = attention(W_q,h q, W_k,h k, W_v,h v); c = W_o [head_1; ...; head_H]",
        _HEADS,
        "model.type=transformer",
    ),
    Mechanism(
        "self-attention",
        "intra-attention",
        "MultiHeadAttention",
        "Vaswani 2017, 3.2.3",
        "q, k and v are maps of the same states",
        _HEADS,
        "model.type=transformer",
    ),
    Mechanism(
        "structured self-attention",
        "self-attentive sentence embedding, r hops",
        "StructuredAttention, ops.redundancy_penalty",
        "Lin 2017, Eq. 6-8",
        "A = softmax(W_s2 tanh(W_s1 H^T)); M = A H; P = ||A A^T - I||_F^2",
        Cost("O(B S A (D + r) + B r S D)", "O(B S (A + r))"),
    ),
    Mechanism(
        "key-value attention",
        "key-value memory of a language model",
        "KeyValueAttention(parts=2)",
        "Daniluk 2017, 2.2",
        "[k_i; v_i] = h_i; a_i = softmax(w . tanh(W_Y k_j + W_h k_i)), j = i-L..i-1; r_i = sum_j a_ij v_j; h*_i = tanh(W_r r_i + W_x v_i)",
        _KEY_VALUE,
    ),
    Mechanism(
        "key-value-predict attention",
        "three-way split",
        "KeyValueAttention(parts=3)",
        "Daniluk 2017, 2.3",
        "[k_i; v_i; p_i] = h_i; a_i and r_i as key-value attention; h*_i = tanh(W_r r_i + W_x p_i)",
        _KEY_VALUE,
    ),
    Mechanism(
        "n-gram recurrent network",
        "N-gram RNN, 4-gram RNN: a part of each of the last states, no attention",
        "NGramReadout, ops.ngram_parts",
        "Daniluk 2017, 2.4",
        "h_i = [h_i^1; ...; h_i^{N-1}]; h*_i = tanh(W_N [h_i^1; h_{i-1}^2; ...; h_{i-N+2}^{N-1}])",
        Cost("O(B T D^2)", "O(B T D)"),
    ),
    Mechanism(
        "area attention",
        "1-D areas, Eq. 3 and 4",
        "Areas(max_area), ops.area_attention",
        "Li 2018, Eq. 3-4",
        "an area is 1 to max_area adjacent items; k_area = mean of its keys; v_area = sum of its values; c = sum of a_area v_area",
        _AREAS,
        "model.attention.area.max_area=5",
    ),
    Mechanism(
        "area attention on a grid",
        "2-D areas, image areas",
        "Areas(max_area, grid), ops.area_attention",
        "Li 2018, 3, Fig. 2",
        "an area is a rectangle of at most (height, width) items; keys and values as above",
        _AREAS,
        "model.second.image.area.height=2",
    ),
    Mechanism(
        "multi-head area attention",
        "area Transformer",
        "MultiHeadAttention(areas)",
        "Li 2018, 3",
        "head_h = area_attention(W_q,h q, W_k,h k, W_v,h v); c = W_o [head_1; ...; head_H]",
        Cost("O(B (T + S) D^2 + B T S D + B H T N)", "O(B H T N); by a kernel no T x S or T x N matrix"),
        "model.area.max_area=5",
    ),
    Mechanism(
        "area features",
        "Eq. 9, learned area keys",
        'Areas(key_mode="features"), ops.area_features',
        "Li 2018, 3.1, Eq. 5-9",
        "k_area = W_d relu(W_mu mu + W_sigma sigma + W_e [e^w; e^h])",
        Cost("O(B H N D^2 + B H T N D)", "O(B H N D + B H T N)"),
        "model.area.key_mode=features",
    ),
    Mechanism(
        "other area keys",
        "max, sample, concat, max_concat, sum, sample_concat, sample_sum",
        "Areas(key_mode), ops.area_keys",
        "the authors' code, tensor2tensor",
        "max: largest features; sample: mu + sigma * noise; the others: two dense layers over mu, sigma, max or sample and the size",
        _MADE_AREAS,
        "model.area.key_mode=max",
    ),
    Mechanism(
        "other area values",
        "mean, max",
        "Areas(value_mode), ops.area_values",
        "the authors' code, tensor2tensor",
        "v_area = mean of its values, or their largest features",
        Cost("mean: as area attention; max: O(B H T N D)", "mean: as area attention; max: O(B H N D + B H T N)"),
        "model.area.value_mode=mean",
    ),
    Mechanism(
        "best areas",
        "top-k areas, temperature",
        "Areas(top_k, temperature), ops.area_softmax",
        "the authors' code, tensor2tensor",
        "a = softmax(e / temperature) over the top_k areas of each query",
        Cost("by ops.area_attention O(B H T (S D + N)); by a module O(B H T N D)", "O(B H T N); by a module also O(B H N D)"),
        "model.area.top_k=8",
    ),
    Mechanism(
        "crossed co-attention",
        "Two-Headed Monster, CCN",
        "CrossedAttention",
        "Li 2019, 2.2",
        "left = attention(q = x2, k = v = x1); right = attention(q = x1, k = v = x2)",
        Cost("that of the two attentions", "that of the two attentions"),
        "model.type=crossed",
    ),
    Mechanism(
        "non-local co-attention",
        "generic co-attention",
        "NonLocal(other_dim)",
        "Li 2019, Eq. 3-4",
        "y_i = 1 / C(x) sum_j f(x2_i, x1_j) g(x1_j), and its mirror image",
        _PAIRS,
    ),
    Mechanism(
        "non-local gaussian",
        "non-local means",
        'NonLocal(form="gaussian"), ops.nonlocal_attention',
        "Wang 2018, Eq. 2",
        "f = exp(x_i . x_j); C = sum_j f",
        Cost("O(B S D C + B T S D)", "O(B T S)"),
        "model.encoder.non_local=gaussian",
    ),
    Mechanism(
        "non-local embedded gaussian",
        "self-attention, without the scale",
        'NonLocal(form="embedded_gaussian"), ops.nonlocal_attention',
        "Wang 2018, Eq. 3",
        "f = exp((W_theta x_i) . (W_phi x_j)); C = sum_j f",
        _PAIRS,
        "model.encoder.non_local=embedded_gaussian",
    ),
    Mechanism(
        "non-local dot",
        "dot product without softmax",
        'NonLocal(form="dot"), ops.nonlocal_attention',
        "Wang 2018, Eq. 4",
        "f = (W_theta x_i) . (W_phi x_j); C = S",
        Cost("O(B (T + S) (D C + C^2)); with weights as embedded gaussian", "O(B C^2); with weights O(B T S)"),
        "model.encoder.non_local=dot",
    ),
    Mechanism(
        "non-local concat",
        "relation networks",
        'NonLocal(form="concat"), ops.nonlocal_attention',
        "Wang 2018, Eq. 5",
        "f = relu(w_f . [W_theta x_i; W_phi x_j]); C = S",
        _PAIRS,
        "model.encoder.non_local=concat",
    ),
)
