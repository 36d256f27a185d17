"""The choice of one position and the estimator that trains it: against the paper by enumeration, and against the authors' code."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import pytest
import torch

from regard import ops
from regard.attention import Attention, DotScore, HardChoice, ScoreFunctionEstimator, record_weights
from regard.errors import ConfigError, ShapeError
from tests.reference import hard as reference

B, T, N = 5, 3, 7


def rows(*shape, dtype=torch.float64):
    return torch.softmax(torch.randn(*shape, dtype=torch.float64), -1).to(dtype)


def always(**settings):
    return HardChoice(half_soft=0.0, **settings)


# The choice


def test_training_draws_one_position_a_row_and_gives_its_log_probability():
    weights = rows(B, T, N)
    chosen = always()(weights)
    assert chosen.sampled.all()
    assert ((chosen.weights == 0) | (chosen.weights == 1)).all()
    assert (chosen.weights.sum(-1) == 1).all()
    torch.testing.assert_close(chosen.log_prob, (chosen.weights * weights).sum(-1).log())
    torch.testing.assert_close(chosen.entropy, -(weights * weights.log()).sum(-1))


def test_the_mean_of_many_draws_is_the_weights():
    weights = rows(1, T, N)
    chosen = always()(weights.expand(9001, T, N), torch.Generator().manual_seed(5))
    torch.testing.assert_close(chosen.weights.mean(0), weights[0], rtol=0, atol=0.03)


def test_a_draw_has_no_gradient_and_its_log_probability_has():
    weights = rows(B, T, N).requires_grad_()
    assert not HardChoice().eval()(weights, mode="sample").weights.requires_grad
    chosen = always()(weights)
    (gradient,) = torch.autograd.grad((chosen.weights * torch.arange(N)).sum(), weights)
    assert (gradient == 0).all()
    chosen = HardChoice(half_soft=1.0)(weights)
    (gradient,) = torch.autograd.grad((chosen.weights * torch.arange(N)).sum(), weights)  # expected weights learn as soft attention does
    assert (gradient != 0).any()
    (gradient,) = torch.autograd.grad(always()(weights).log_prob.sum(), weights)
    assert (gradient != 0).any()


@pytest.mark.parametrize("shape", [(401, T, N), (401, 2, T, N)])
def test_an_example_keeps_its_expected_weights_in_all_steps_or_in_none(shape):
    weights = rows(*shape)
    chosen = HardChoice(half_soft=0.25)(weights)
    flat = chosen.sampled.flatten(1)
    assert (flat.all(1) | ~flat.any(1)).all()
    assert flat.all(1).double().mean().item() == pytest.approx(0.75, abs=0.11)  # five standard deviations
    torch.testing.assert_close(chosen.weights[~flat[:, 0]], weights[~flat[:, 0]])
    assert (chosen.log_prob[~flat[:, 0]] == 0).all()
    assert (chosen.entropy > 0).all()  # the bonus counts for all of them


def test_the_coin_per_batch_falls_the_same_for_all():
    choice, seen = HardChoice(half_soft_per="batch"), []
    for _ in range(61):
        sampled = choice(rows(B, T, N)).sampled
        assert sampled.all() or not sampled.any()
        seen.append(bool(sampled.all()))
    assert 0.2 < sum(seen) / 61 < 0.8


def test_a_decoder_tosses_once_and_keeps_the_coins_for_every_step():
    choice, weights = HardChoice(), rows(101, T, N)
    soft = choice.soft_rows(101)
    assert 20 < soft.sum() < 81
    for t in range(T):
        step = choice(weights[:, t : t + 1], soft=soft)
        assert torch.equal(step.sampled, ~soft.unsqueeze(1))
    assert torch.equal(choice(weights, soft=soft).sampled, ~soft.unsqueeze(1).expand(101, T))


def test_the_first_batches_keep_their_expected_weights_and_the_count_is_saved():
    choice, weights = HardChoice(half_soft=0.0, soft_batches=3), rows(B, T, N)
    for number in range(5):
        assert choice(weights).sampled.any().item() == (number >= 3)
    resumed = HardChoice(half_soft=0.0, soft_batches=3)
    assert not resumed(weights).sampled.any()
    resumed.load_state_dict(choice.state_dict())
    assert resumed(weights).sampled.all()
    choice.eval()(weights)
    assert choice.tossed == 5, "what is not training does not count"
    # A decoder's one toss is one batch, however many steps it makes.
    decoder = HardChoice(half_soft=0.0, soft_batches=1)
    soft = decoder.soft_rows(B)
    assert soft.all()
    for _ in range(T):
        assert not decoder(weights, soft=soft).sampled.any()
    assert not decoder.soft_rows(B).any()


def test_rows_without_a_batch_are_one_example():
    for _ in range(7):
        sampled = HardChoice()(rows(T, N)).sampled
        assert sampled.shape == (T,)
        assert sampled.all() or not sampled.any()


def test_the_modes_of_test_time():
    weights = rows(B, T, N)
    choice = HardChoice("argmax").eval()
    best = choice(weights)
    assert torch.equal(best.weights.argmax(-1), weights.argmax(-1))
    assert (best.weights.sum(-1) == 1).all()
    assert not best.sampled.any()
    torch.testing.assert_close(best.log_prob, weights.amax(-1).log())
    expected = choice(weights, mode="expected")
    torch.testing.assert_close(expected.weights, weights)
    assert (expected.log_prob == 0).all()
    assert not expected.sampled.any()
    drawn = choice(weights.repeat(23, 1, 1), mode="sample")
    assert drawn.sampled.all()
    assert not torch.equal(drawn.weights, choice(weights.repeat(23, 1, 1)).weights)
    assert torch.equal(HardChoice("expected").eval()(weights).weights, expected.weights)
    assert HardChoice("sample").eval()(weights).sampled.all()
    assert torch.equal(HardChoice().train()(weights, mode="argmax").weights, best.weights)  # a mode given at the call wins


def test_neither_argmax_nor_expected_uses_up_randomness():
    choice, state = HardChoice().eval(), torch.get_rng_state()
    choice(torch.ones(B, T, N))
    choice(torch.ones(B, T, N), mode="expected")
    assert torch.equal(torch.get_rng_state(), state)


def test_the_same_seed_chooses_the_same_with_and_without_a_generator():
    weights, choice = rows(101, T, N), HardChoice()
    first, second = (choice(weights, torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    state = torch.get_rng_state()
    choice(weights, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), state)
    torch.default_generator.manual_seed(3)
    first = choice(weights)
    torch.default_generator.manual_seed(3)
    assert all(torch.equal(one, other) for one, other in zip(first, choice(weights), strict=True))


def test_rows_that_do_not_sum_to_one_are_normalized_first():
    weights, scale = rows(B, T, N), torch.tensor([0.25, 1.0, 8.0]).view(1, T, 1).double()
    for mode in ("expected", "argmax", "sample"):
        generators = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
        plain, scaled = (HardChoice()(w, g, mode=mode) for w, g in zip((weights, weights * scale), generators, strict=True))
        torch.testing.assert_close(scaled, plain)


@pytest.mark.parametrize("mode", ["train", "sample", "argmax", "expected"])
def test_an_empty_row_is_zeros_with_zero_gradients(mode):
    scores = torch.randn(2, T, N, requires_grad=True)
    mask = torch.ones(2, T, N, dtype=torch.bool)
    mask[0, 1] = mask[1] = False
    empty = ~mask.any(-1)
    chosen = always()(ops.masked_softmax(scores, mask), mode=None if mode == "train" else mode)
    assert (chosen.weights[empty] == 0).all()
    assert (chosen.log_prob[empty] == 0).all()
    assert (chosen.entropy[empty] == 0).all()
    assert not chosen.sampled[empty].any()
    assert (chosen.weights[~empty].sum(-1) > 0.99).all()
    (gradient,) = torch.autograd.grad(chosen.weights.sum() + chosen.log_prob.sum() + chosen.entropy.sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient[empty] == 0).all()
    assert (gradient[~empty] != 0).any()


@pytest.mark.parametrize("mode", ["train", "sample", "argmax", "expected"])
def test_a_row_of_nan_stays_nan(mode):
    weights = rows(2, T, N)
    weights[1, 2, 4] = math.nan
    chosen = always()(weights, mode=None if mode == "train" else mode)
    assert chosen.weights[1, 2].isnan().all()
    assert chosen.entropy[1, 2].isnan()
    assert chosen.weights.isfinite().sum() == (2 * T - 1) * N
    assert not chosen.sampled[1, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("half_soft", [0.0, 1.0])
def test_weights_keep_their_dtype_and_the_rest_is_wide(dtype, half_soft):
    chosen = HardChoice(half_soft=half_soft)(rows(B, T, N, dtype=dtype))
    assert chosen.weights.dtype == dtype
    assert chosen.log_prob.dtype == chosen.entropy.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0), (2, 3, 1), (1, 1, 1)])
@pytest.mark.parametrize("mode", [None, "sample", "argmax", "expected"])
def test_empty_and_single_axes(shape, mode):
    chosen = HardChoice()(torch.ones(shape), mode=mode)
    assert chosen.weights.shape == shape
    assert chosen.log_prob.shape == chosen.entropy.shape == chosen.sampled.shape == shape[:-1]
    assert (chosen.weights == 1 / max(1, shape[-1])).all() or shape[-1] == 5


def test_the_choice_compiles_in_one_graph_and_exports():
    weights = rows(B, T, N)
    choice = HardChoice()
    torch.default_generator.manual_seed(13)
    expected = choice(weights)
    torch.default_generator.manual_seed(13)
    found = torch.compile(choice, fullgraph=True, backend="eager")(weights)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    batch, steps = torch.export.Dim("batch"), torch.export.Dim("steps")
    exported = torch.export.export(choice, (weights,), dynamic_shapes={"weights": {0: batch, 1: steps}}).module()
    assert exported(rows(B + 2, T + 4, N)).sampled.shape == (B + 2, T + 4)
    best = torch.export.export(HardChoice().eval(), (weights,)).module()
    torch.testing.assert_close(best(weights), HardChoice().eval()(weights))


def test_wrong_settings_and_shapes_are_named():
    with pytest.raises(ConfigError, match="'sample', 'argmax' or 'expected', found 'greedy'"):
        HardChoice("greedy")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="found 'greedy'"):
        HardChoice()(rows(B, T, N), mode="greedy")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="'example' or 'batch', found 'step'"):
        HardChoice(half_soft_per="step")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"found 1\.5"):
        HardChoice(half_soft=1.5)
    with pytest.raises(ConfigError, match="equal to 0, found -1"):
        HardChoice(soft_batches=-1)
    with pytest.raises(ShapeError, match=r"\(5,\).*\(3,\)"):
        HardChoice()(rows(B, T, N), soft=torch.ones(T, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"\(7,\)"):
        HardChoice()(rows(N))


def test_the_choice_shows_its_settings_and_saves_nothing():
    assert repr(HardChoice()) == "HardChoice(mode='argmax', half_soft=0.5, half_soft_per='example')"
    assert HardChoice().state_dict() == {}
    assert repr(HardChoice(soft_batches=7)).endswith(", soft_batches=7)")


# The estimator against the authors' code


@pytest.mark.parametrize("reward", ["sentence", "step"])
@pytest.mark.parametrize("soft", [False, True])
def test_the_scaling_of_the_code_is_that_of_its_known_gradients(reward, soft):
    logits = torch.randn(B, T, N, dtype=torch.float64, requires_grad=True)
    weights = torch.softmax(logits, -1)
    nll = torch.rand(B, T, dtype=torch.float64) * 4
    chosen = HardChoice(half_soft=float(soft), half_soft_per="batch")(weights)
    estimator = ScoreFunctionEstimator(reward=reward, scaling="code").double()
    estimator.baseline.fill_(-1.7)  # theirs follows the cost: 1.7
    (found,) = torch.autograd.grad(estimator(nll, chosen.log_prob, chosen.entropy, chosen.sampled), logits)
    alpha = weights.detach().numpy()
    known = reference.known_gradients(alpha, chosen.weights.detach().numpy(), nll.numpy(), 1.7, sum_cost=reward == "sentence")
    for b, t in itertools.product(range(B), range(T)):
        torch.testing.assert_close(found[b, t], torch.tensor(reference.through_softmax(alpha[b, t], known[b, t])))
    assert -estimator.baseline.item() == pytest.approx(0.9 * 1.7 + 0.1 * nll.mean().item())


def test_the_scaling_of_the_code_is_a_tenth_of_the_batch_written_as_means():
    logits = torch.randn(64, T, N, dtype=torch.float64, requires_grad=True)
    nll = torch.rand(64, T, dtype=torch.float64) * 4
    chosen = always()(torch.softmax(logits, -1))
    code = ScoreFunctionEstimator(scaling="code")(nll, chosen.log_prob, chosen.entropy)
    # the same with a mean over the batch and the mean-per-word reward, lambda_r = B / 10 and lambda_e = 0.002 B
    means = ops.score_function_loss(-nll.mean(1, keepdim=True), chosen.log_prob, chosen.entropy, reward_weight=6.4, entropy_weight=0.128)
    torch.testing.assert_close(code, means)


# The estimator against the paper, by enumeration


def enumerated(estimator, first, second, table):
    """The expectation over all (i, j) of the gradient of cross-entropy plus term; table (N, N, 2) log-likelihoods of both words."""
    totals = [torch.zeros_like(part) for part in (first, second, table)]
    for i, j in itertools.product(range(len(first)), range(len(first))):
        weights = torch.stack([torch.softmax(first, -1), torch.softmax(second[i], -1)])
        position = torch.tensor([i, j])
        log_prob, entropy = ops.position_log_prob(weights, position), ops.weights_entropy(weights)
        nll = -table[i, j]
        loss = nll.sum() + estimator(nll.unsqueeze(0), log_prob.unsqueeze(0), entropy.unsqueeze(0))
        gradients = torch.autograd.grad(loss, (first, second, table), allow_unused=True)
        share = log_prob.sum().exp().item()
        totals = [total if gradient is None else total + share * gradient for total, gradient in zip(totals, gradients, strict=True)]
    return totals


def problem(*, recurrent):
    """Three positions, two steps; in the recurrent one the first choice touches the second distribution and the second word."""
    first, second, table = torch.randn(3), torch.randn(3, 3), torch.randn(3, 3, 2)
    table[:, :, 0] = table[:, :1, 0]  # the first word knows the first choice only
    if not recurrent:
        second, table[:, :, 1] = second[:1].repeat(3, 1), table[:1, :, 1]
    return [part.double().requires_grad_() for part in (first, second, table)]


def exact(first, second, table, *, entropy_weight=0.0):
    """The gradient of -L_s in each argument, by central differences of the sum over all choices."""
    arrays = [part.detach().numpy() for part in (first, second, table)]

    def objective(*parts):
        bonus = sum(reference.entropy(reference.softmax(row)) for row in (parts[0], parts[1][0]))
        return -reference.expected_log_likelihood(*parts) - entropy_weight * bonus

    return [torch.tensor(reference.difference(lambda x, k=k: objective(*arrays[:k], x, *arrays[k + 1 :]), arrays[k])) for k in range(3)]


@pytest.mark.parametrize("reward", ["sentence", "return"])
@pytest.mark.parametrize("baseline", [0.0, -0.7])
def test_the_expected_gradient_is_the_exact_one_for_any_decoder(reward, baseline):
    estimator = ScoreFunctionEstimator(reward=reward, entropy_weight=0.0).double().eval()
    estimator.baseline.fill_(baseline)
    parts = problem(recurrent=True)
    torch.testing.assert_close(enumerated(estimator, *parts), exact(*parts), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("reward", ["sentence", "step", "return"])
def test_the_expected_gradient_is_the_exact_one_with_its_entropy_if_steps_are_independent(reward):
    estimator = ScoreFunctionEstimator(reward=reward, entropy_weight=0.3).double().eval()
    estimator.baseline.fill_(-0.7)
    first, second, table = problem(recurrent=False)
    found = enumerated(estimator, first, second, table)
    expected = exact(first, second, table, entropy_weight=0.3)
    # the copies of one second distribution learn together
    found[1], expected[1] = found[1].sum(0), expected[1].sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_the_reward_of_a_step_is_biased_if_a_choice_touches_later_words():
    estimator = ScoreFunctionEstimator(reward="step", entropy_weight=0.0).double().eval()
    parts = problem(recurrent=True)
    assert not torch.allclose(enumerated(estimator, *parts)[0], exact(*parts)[0], atol=0.01)


# The estimator at work


@pytest.mark.parametrize(
    "settings", [{}, {"reward": "step"}, {"reward": "return"}, {"scaling": "code"}, {"scaling": "code", "reward": "step"}]
)
def test_training_with_it_finds_the_cheap_positions(settings):
    logits = torch.zeros(T, N, requires_grad=True)
    cost = 1 + 2 * torch.rand(T, N)
    choice, estimator = HardChoice(), ScoreFunctionEstimator(**settings)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(150):
        chosen = choice(torch.softmax(logits, -1).expand(23, T, N))
        nll = (chosen.weights.detach() * cost).sum(-1)  # detached: only the estimator can teach
        optimizer.zero_grad()
        estimator(nll, chosen.log_prob, chosen.entropy, chosen.sampled).backward()
        optimizer.step()
    untrained, best = cost.mean(), cost.amin(-1).mean()
    trained = (torch.softmax(logits, -1) * cost).sum(-1).mean()
    assert trained < best + 0.3 * (untrained - best)


def test_the_baseline_lowers_the_variance():
    cost = 3 + torch.rand(T, N)
    logits = torch.randn(T, N, requires_grad=True)

    def spread(estimator):
        gradients = []
        for _ in range(211):
            chosen = always()(torch.softmax(logits, -1).expand(2, T, N))
            nll = (chosen.weights * cost).sum(-1)
            gradients.append(torch.autograd.grad(estimator(nll, chosen.log_prob, chosen.entropy), logits)[0])
        return torch.stack(gradients).var(0).sum().item()

    warm = ScoreFunctionEstimator()
    spread(warm)
    assert spread(warm.eval()) < 0.2 * spread(ScoreFunctionEstimator().eval())


def test_the_baseline_moves_after_it_was_used_and_only_in_training():
    nll, entropy = torch.tensor([[1.0, 2.0, 3.0], [2.0, 2.0, 5.0]]), torch.zeros(2, 3)
    estimator = ScoreFunctionEstimator(decay=0.75)
    for before, after in ((0.0, -1.875), (-1.875, -3.28125)):  # the mean of -6 and -9 is -7.5
        log_prob = torch.zeros(2, 3, requires_grad=True)
        (gradient,) = torch.autograd.grad(estimator(nll, log_prob, entropy), log_prob)
        torch.testing.assert_close(gradient[:, 0], (torch.tensor([6.0, 9.0]) + before) / 2)
        assert estimator.baseline.item() == after
    estimator.eval()(nll, torch.zeros(2, 3), entropy)
    assert estimator.baseline.item() == -3.28125


@pytest.mark.parametrize(("reward", "mean"), [("sentence", -(6 + 3) / 2), ("step", -(1 + 2 + 3 + 3) / 4), ("return", -(6 + 5 + 3 + 3) / 4)])
def test_the_baseline_is_a_mean_over_real_steps(reward, mean):
    nll = torch.tensor([[1.0, 2.0, 3.0], [3.0, math.nan, math.nan], [math.nan] * 3])
    mask = torch.tensor([[True] * 3, [True, False, False], [False] * 3])
    estimator = ScoreFunctionEstimator(reward=reward, decay=0.0)
    term = estimator(nll, torch.zeros(3, 3, requires_grad=True), torch.zeros(3, 3), None, mask)
    assert term.isfinite()
    assert estimator.baseline.item() == pytest.approx(mean)


def test_the_reward_of_the_code_is_a_mean_over_real_words():
    nll, mask = torch.tensor([[1.0, 2.0, 6.0], [4.0, 99.0, 99.0]]), torch.tensor([[True] * 3, [True, False, False]])
    log_prob = torch.zeros(2, 3, requires_grad=True)
    estimator = ScoreFunctionEstimator(scaling="code")
    (gradient,) = torch.autograd.grad(estimator(nll, log_prob, torch.zeros(2, 3), None, mask), log_prob)
    torch.testing.assert_close(gradient, torch.tensor([[0.3, 0.3, 0.3], [0.4, 0.0, 0.0]]))
    assert estimator.baseline.item() == pytest.approx(-0.35)


def test_a_broken_or_empty_batch_leaves_the_baseline():
    estimator = ScoreFunctionEstimator()
    estimator.baseline.fill_(-2.0)
    zeros = torch.zeros(2, 3)
    assert estimator(torch.full((2, 3), math.nan), zeros, zeros).isnan()  # loud in the loss
    estimator(torch.ones(2, 3), zeros, zeros, None, torch.zeros(2, 3, dtype=torch.bool))
    for shape in ((0, 3), (2, 0)):
        assert estimator(torch.ones(shape), torch.ones(shape), torch.ones(shape)).item() == 0
    assert estimator.baseline.item() == -2.0


def test_the_words_get_no_gradient_from_the_term():
    nll = torch.rand(B, T, requires_grad=True)
    log_prob = torch.randn(B, T, requires_grad=True)
    ScoreFunctionEstimator()(nll, log_prob, torch.zeros(B, T)).backward()
    assert nll.grad is None
    assert log_prob.grad is not None


def test_the_baseline_is_saved_under_a_name_that_does_not_change():
    estimator = ScoreFunctionEstimator()
    estimator(torch.ones(B, T), torch.zeros(B, T), torch.zeros(B, T))
    state = estimator.state_dict()
    assert {name: (tuple(value.shape), value.dtype) for name, value in state.items()} == {"baseline": ((), torch.float32)}
    other = ScoreFunctionEstimator()
    other.load_state_dict(state)
    assert other.baseline.item() == pytest.approx(-0.1 * T)


def test_it_compiles_in_one_graph_with_its_baseline():
    plain, nll = ScoreFunctionEstimator(), torch.rand(B, T)
    compiled_module = ScoreFunctionEstimator()
    compiled = torch.compile(compiled_module, fullgraph=True, backend="eager")
    log_prob, entropy, mask = torch.randn(B, T), torch.rand(B, T), torch.rand(B, T) < 0.7
    for _ in range(2):
        expected, found = plain(nll, log_prob, entropy, None, mask), compiled(nll, log_prob, entropy, None, mask)
        torch.testing.assert_close(found, expected)
        assert compiled_module.baseline.item() == pytest.approx(plain.baseline.item())
    assert plain.baseline.item() < 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward": "word"}, "reward should be 'sentence', 'step' or 'return', found 'word'"),
        ({"scaling": "mean"}, "scaling should be 'paper' or 'code', found 'mean'"),
        ({"reward": "return", "scaling": "code"}, "not in the authors' code"),
        ({"decay": 1.5}, r"decay should be less than or equal to 1, found 1\.5"),
        ({"reward_weight": -1.0}, r"reward_weight should be greater than or equal to 0, found -1\.0"),
        ({"entropy_weight": math.nan}, r"entropy_weight should be .*found nan"),
    ],
)
def test_wrong_settings_of_the_estimator_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        ScoreFunctionEstimator(**settings)


def test_wrong_shapes_of_the_estimator_name_all():
    with pytest.raises(ShapeError, match=r"\(5, 3\), \(5, 7\)"):
        ScoreFunctionEstimator()(torch.ones(B, T), torch.ones(B, N), torch.ones(B, T))
    with pytest.raises(ShapeError, match=r"\(5, 7\)"):
        ScoreFunctionEstimator()(torch.ones(B, T), torch.ones(B, T), torch.ones(B, N))
    with pytest.raises(ShapeError, match=r"\(3, 5\)"):
        ScoreFunctionEstimator()(torch.ones(B, T), torch.ones(B, T), torch.ones(B, T), None, torch.ones(T, B, dtype=torch.bool))


def test_the_estimator_shows_its_settings():
    assert repr(ScoreFunctionEstimator(scaling="code")) == (
        "ScoreFunctionEstimator(reward='sentence', scaling='code', reward_weight=0.1, entropy_weight=0.002, decay=0.9)"
    )


def test_recording_what_is_drawn_in_evaluation_records_it_and_changes_nothing():
    attention, x = Attention(DotScore(), choice=HardChoice(mode="sample")).eval(), torch.randn(4, 8, 6)
    torch.manual_seed(1)
    plain = attention(x, x, x, need_weights=True).weights
    after = torch.rand(3)
    torch.manual_seed(1)
    with record_weights() as recorded:
        found = attention(x, x, x, need_weights=True).weights
    assert torch.equal(found, plain)
    assert torch.equal(recorded[0].weights[:, 0], plain)
    assert torch.equal(torch.rand(3), after)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["argmax", "expected"])
def test_a_choice_can_be_traced(mode: Literal["argmax", "expected"]) -> None:
    weights, other = torch.rand(2, 3, 5), torch.rand(2, 3, 5)
    choice = HardChoice(mode).eval()
    program = torch.jit.trace(lambda given: tuple(choice(given)), (weights,), check_trace=False)
    for found, expected in zip(program(other), choice(other), strict=True):
        assert torch.equal(found, expected)
