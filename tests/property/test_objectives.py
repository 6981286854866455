"""Laws that hold for any batch: padding, permutation, splitting, and what reduces to what."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from posttrain.objectives import advantages, kl, ratios, returns, surrogates
from posttrain.objectives import weights as aggregation
from posttrain.objectives.batch_advantages import center_then_standardise, whiten_tokens
from posttrain.objectives.lengths import soft_overlong
from posttrain.objectives.masking import spread_over_tokens

NAN = float("nan")
masks = st.integers(1, 5).flatmap(
    lambda width: st.lists(
        st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=5
    ).map(torch.tensor)
)
seeds = st.integers(0, 2**31 - 1)
grid_rewards = st.lists(st.sampled_from([NAN, 0.0, 0.1, 0.35, 1.0, -2.0]), min_size=1, max_size=9)
MODES = {
    "token_sum": aggregation.token_sum,
    "token_mean": aggregation.token_mean,
    "sequence_mean": aggregation.sequence_mean,
    "sequence_sum": aggregation.sequence_sum,
    "constant_length": lambda m: aggregation.constant_length(m, length=7),
    "delta_l": aggregation.delta_l,
    "per_rollout": lambda m: aggregation.per_rollout(m, torch.arange(len(m)) // 2),
}
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
ESTIMATORS = {
    "center": advantages.center_by_group,
    "standardise": advantages.standardise_by_group,
    "leave_one_out": advantages.leave_one_out,
    "best_minus_second": advantages.best_minus_second,
    "center_then_standardise": center_then_standardise,
}
every_estimator = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)


def draw(seed: int, mask: Tensor, scale: float = 0.5) -> Tensor:
    """Numbers on trained tokens, NaN behind the mask."""
    generator = torch.Generator().manual_seed(seed)
    numbers = scale * torch.randn(mask.shape, generator=generator, dtype=torch.float64)
    return torch.where(mask, numbers, torch.nan)


def clipped(policy: Tensor, old: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    ratio = ratios.bounded_exp(ratios.token_log_ratio(policy, old, mask))
    return surrogates.clipped_surrogate(ratio, advantage, mask, clip_low=0.2, clip_high=0.28)


def loss_and_slope(seed: int, mask: Tensor, weights: Tensor, pad: tuple[int, ...] = (0, 0)):
    """A PPO loss with a k3 term; `pad` adds columns or rows of NaN."""
    policy, old, adv, ref = (
        torch.nn.functional.pad(draw(seed + i, mask), pad, value=NAN) for i in range(4)
    )
    wide = torch.nn.functional.pad(mask, pad, value=False)
    policy.requires_grad_()
    token_loss = clipped(policy, old, adv, wide) + 0.1 * kl.kl_k3(policy, ref, wide)
    loss = aggregation.weighted_sum(token_loss, weights)
    loss.backward()
    return loss.detach(), policy.grad


@every_mode
@given(mask=masks, columns=st.integers(0, 3), rows=st.integers(0, 2), seed=seeds)
def test_padding_with_nan_changes_no_loss_and_no_gradient(mode, mask, columns, rows, seed):
    pad = (0, columns, 0, rows)
    loss, slope = loss_and_slope(seed, mask, mode(mask))
    wide = mode(torch.nn.functional.pad(mask, pad, value=False))
    wide_loss, wide_slope = loss_and_slope(seed, mask, wide, pad)
    torch.testing.assert_close(wide_loss, loss)
    torch.testing.assert_close(wide_slope, torch.nn.functional.pad(slope, pad))
    assert torch.isfinite(wide_slope).all()


@given(mask=masks, cut=st.integers(0, 5), seed=seeds)
def test_micro_batches_with_the_counts_of_the_step_add_up(mask, cut, seed):
    ids = torch.arange(len(mask)) // 2
    tokens = mask.sum(-1)
    rollout = torch.zeros_like(tokens).index_add(0, ids, tokens)
    rows, total = aggregation.trained_rows(mask), aggregation.delta_l_total(mask)
    by_part = {
        "token_mean": lambda s: aggregation.token_mean(mask[s], num_tokens=mask.sum()),
        "sequence_mean": lambda s: aggregation.sequence_mean(mask[s], num_rows=rows),
        "sequence_sum": lambda s: aggregation.sequence_sum(mask[s], num_rows=int(rows)),
        "constant_length": lambda s: aggregation.constant_length(mask[s], length=7, num_rows=rows),
        "delta_l": lambda s: aggregation.delta_l(mask[s], total=total),
        "per_rollout": lambda s: aggregation.per_rollout(
            mask[s], ids[s], rollout_tokens=rollout[ids][s], num_rollouts=(rollout > 0).sum()
        ),
    }
    for name, part in by_part.items():
        parts = torch.cat([part(slice(0, cut)), part(slice(cut, None))])
        whole_loss, whole_slope = loss_and_slope(seed, mask, MODES[name](mask))
        loss, slope = loss_and_slope(seed, mask, parts)
        torch.testing.assert_close(loss, whole_loss)
        torch.testing.assert_close(slope, whole_slope)


@every_mode
@given(mask=masks)
def test_weights_are_finite_positive_on_trained_tokens_and_zero_elsewhere(mode, mask):
    weights = mode(mask)
    assert torch.isfinite(weights).all()
    assert (weights > 0).equal(mask)


@given(mask=masks, seed=seeds)
def test_on_policy_every_surrogate_has_the_gradient_of_reinforce(mask, seed):
    policy = draw(seed, mask).requires_grad_()
    old, adv = policy.detach().clone(), draw(seed + 1, mask)
    (expected,) = torch.autograd.grad(
        surrogates.policy_gradient(policy, adv, mask).sum(), policy, allow_unused=True
    )
    for level in (
        ratios.token_log_ratio,
        ratios.prefix_log_ratio,
        ratios.prefix_min_log_ratio,
        ratios.sequence_token_log_ratio,
    ):
        ratio = ratios.bounded_exp(level(policy, old, mask))
        torch.testing.assert_close(ratio.detach(), torch.ones_like(ratio))
        loss = surrogates.clipped_surrogate(ratio, adv, mask, clip_low=0.2, clip_high=0.28)
        (slope,) = torch.autograd.grad(loss.sum(), policy)
        torch.testing.assert_close(slope, expected)
        assert not surrogates.clipped_above(ratio, adv, mask, clip_high=0.2).any()
        assert not surrogates.clipped_below(ratio, adv, mask, clip_low=0.2).any()


@given(mask=masks, seed=seeds)
def test_sequence_ratio_equals_its_token_form_when_a_row_has_one_advantage(mask, seed):
    policy, old = draw(seed, mask, 0.2).requires_grad_(), draw(seed + 1, mask, 0.2)
    adv = spread_over_tokens(draw(seed + 2, torch.ones(len(mask), 1).bool())[:, 0], mask)
    row = ratios.sequence_mean_log_ratio(policy, old, mask)
    results = []
    for log_ratio in (
        spread_over_tokens(row, mask),
        ratios.sequence_token_log_ratio(policy, old, mask),
    ):
        ratio = ratios.bounded_exp(log_ratio)
        token_loss = surrogates.clipped_surrogate(ratio, adv, mask, clip_low=0.1, clip_high=0.1)
        loss = aggregation.weighted_sum(token_loss, aggregation.sequence_mean(mask))
        results.append((loss.detach(), torch.autograd.grad(loss, policy, retain_graph=True)[0]))
    torch.testing.assert_close(results[0], results[1])


@every_estimator
@given(rewards=grid_rewards, groups=st.integers(1, 3), seed=seeds)
def test_permuting_rows_permutes_advantages(estimate, rewards, groups, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor(rewards, dtype=torch.float64)
    ids = torch.randint(-5, -5 + groups, (len(values),), generator=generator)
    order = torch.randperm(len(values), generator=generator)
    torch.testing.assert_close(
        estimate(values[order], ids[order]), estimate(values, ids)[order], rtol=0, atol=1e-9
    )


@given(rewards=grid_rewards, groups=st.integers(1, 3), shift=st.sampled_from([-3.0, 0.25, 8.0]))
def test_group_advantages_sum_to_zero_and_ignore_a_shift(rewards, groups, shift):
    values = torch.tensor(rewards, dtype=torch.float64)
    ids = torch.arange(len(values)) % groups
    for estimate in (
        advantages.center_by_group,
        advantages.standardise_by_group,
        advantages.leave_one_out,
    ):
        got = estimate(values, ids)
        sums = torch.zeros(groups, dtype=torch.float64).index_add(0, ids, got)
        torch.testing.assert_close(sums, torch.zeros_like(sums), rtol=0, atol=1e-9)
        torch.testing.assert_close(estimate(values + shift, ids), got, rtol=0, atol=1e-6)
        assert got[values.isnan()].eq(0).all()


@given(rewards=st.lists(st.floats(-5, 5), min_size=2, max_size=9))
def test_leave_one_out_is_a_multiple_of_centring(rewards):
    values = torch.tensor(rewards, dtype=torch.float64)
    ids, size = torch.zeros(len(values), dtype=torch.long), len(values)
    expected = size / (size - 1) * advantages.center_by_group(values, ids)
    torch.testing.assert_close(advantages.leave_one_out(values, ids), expected)
    others = (values.sum() - values) / (size - 1)
    torch.testing.assert_close(expected, values - others, rtol=0, atol=1e-9)


@given(value=st.floats(-1e6, 1e6, width=32), size=st.integers(1, 40))
def test_no_spread_is_exactly_zero_in_float32(value, size):
    values, ids = torch.full((size,), value), torch.zeros(size, dtype=torch.long)
    for estimate in ESTIMATORS.values():
        assert not estimate(values, ids).any()
    assert not whiten_tokens(values.unsqueeze(0), torch.ones(1, size).bool()).any()


@given(mask=masks, seed=seeds)
def test_whitened_tokens_have_mean_zero_and_variance_one(mask, seed):
    assume(int(mask.sum()) >= 2)
    white = whiten_tokens(draw(seed, mask, 3.0), mask, ddof=0)[mask]
    assert abs(white.mean().item()) < 1e-9
    assert abs(white.var(correction=0).item() - 1) < 1e-3
    assert torch.isfinite(white).all()


@given(mask=masks, seed=seeds)
def test_gae_with_all_ones_is_return_minus_value(mask, seed):
    rewards, values = draw(seed, mask), draw(seed + 1, mask)
    got = returns.gae_advantages(rewards, values, mask, gamma=1.0, lam=1.0)
    future = returns.reward_to_go(rewards, mask, gamma=1.0)
    torch.testing.assert_close(got[mask], (future - values)[mask])
    target = returns.gae_returns(rewards, values, mask, gamma=1.0, lam=1.0)
    torch.testing.assert_close(target, future)


@given(
    length=st.integers(1, 6),
    at=st.integers(0, 6),
    gamma=st.sampled_from([1.0, 0.9, 0.0]),
    lam=st.sampled_from([1.0, 0.95, 0.3, 0.0]),
    seed=seeds,
)
def test_gae_against_a_plain_loop_with_an_observation_anywhere(length, at, gamma, lam, seed):
    all_trained = torch.ones(1, length).bool()
    rewards, values = draw(seed, all_trained), draw(seed + 1, all_trained)
    expected, following, advantage = [], 0.0, 0.0
    for t in reversed(range(length)):
        delta = rewards[0, t] + gamma * following - values[0, t]
        advantage = delta + gamma * lam * advantage
        following = values[0, t]
        expected.insert(0, advantage)
    at = min(at, length)

    def insert(row: Tensor, what: float) -> Tensor:
        return torch.cat([row[:, :at], torch.full((1, 1), what), row[:, at:]], dim=-1)

    mask = insert(all_trained.double(), 0.0).bool()
    got = returns.gae_advantages(
        insert(rewards, 1e9), insert(values, NAN), mask, gamma=gamma, lam=lam
    )
    torch.testing.assert_close(got[mask], torch.stack(expected))


@given(seed=seeds)
def test_k2_gradient_is_the_policy_gradient_with_reward_minus_k1(seed):
    generator = torch.Generator().manual_seed(seed)
    logits, ref = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    logprobs = logits.log_softmax(-1).unsqueeze(0)  # every token of a vocabulary of 5, once
    probs, mask = logprobs.detach().exp(), torch.ones(1, 5).bool()
    args = logprobs, ref.log_softmax(-1).unsqueeze(0), mask

    def slope(token_loss: Tensor) -> Tensor:
        loss = (probs * token_loss).sum()  # expectation over what is drawn, which has no gradient
        return torch.autograd.grad(loss, logits, retain_graph=True)[0]

    by_reward = slope(surrogates.policy_gradient(logprobs, -kl.kl_k1(*args), mask))
    exact = torch.autograd.grad(kl.kl_from_logits(logits, ref), logits, retain_graph=True)[0]
    ratio = (logprobs - logprobs.detach()).exp()
    torch.testing.assert_close(by_reward, exact)
    torch.testing.assert_close(slope(kl.kl_k2(*args)), exact)
    torch.testing.assert_close(slope(kl.kl_k3_weighted(ratio, *args)), exact)
    torch.testing.assert_close(slope(kl.kl_k3_straight_through(*args)), exact)
    torch.testing.assert_close(slope(kl.kl_k1(*args)), torch.zeros(5).double(), rtol=0, atol=1e-12)
    value = kl.kl_from_logits(logits, ref)
    torch.testing.assert_close((probs * kl.kl_k1(*args)).sum(), value)
    torch.testing.assert_close((probs * kl.kl_k3(*args)).sum(), value)


@given(max_tokens=st.integers(2, 60), data=st.data())
def test_soft_overlong_is_continuous_and_never_rises(max_tokens, data):
    cache = data.draw(st.integers(1, max_tokens))
    got = soft_overlong(torch.arange(2 * max_tokens), max_tokens=max_tokens, cache_tokens=cache)
    steps = got.diff()
    assert (steps <= 0).all()
    assert (steps >= -1 / cache - 1e-6).all()
    assert got[max_tokens - cache] == 0
    assert got[max_tokens] == -1


@given(lengths=st.lists(st.integers(1, 100_000), min_size=1, max_size=5))
def test_length_adaptive_lambda_is_a_decay(lengths):
    got = returns.length_adaptive_lambda(torch.tensor(lengths), alpha=0.05)
    assert ((got >= 0) & (got <= 1)).all()
