from __future__ import annotations

import math

import pytest
import torch

from posttrain.objectives import kl

NAN = float("nan")


def tokens(gaps: list[float]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Policy minus reference is `gaps`; a masked NaN token is added."""
    policy = torch.tensor([[*gaps, NAN]], requires_grad=True)
    reference = torch.tensor([[0.0] * len(gaps) + [NAN]])
    return policy, reference, torch.tensor([[True] * len(gaps) + [False]])


def close(got: torch.Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(got, torch.tensor([[*expected, 0.0]]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        (kl.kl_k1, [0.5, -1.0], [1.0, 1.0]),
        (kl.kl_k2, [0.125, 0.5], [0.5, -1.0]),
        (kl.kl_k3, [0.1065307, math.e - 2], [1 - math.exp(-0.5), 1 - math.e]),
        (kl.kl_k3_straight_through, [0.1065307, math.e - 2], [0.5, -1.0]),
    ],
)
def test_estimator_value_and_slope(estimator, value, slope):
    policy, reference, mask = tokens([0.5, -1.0])
    got = estimator(policy, reference, mask)
    close(got, value)
    got.sum().backward()
    close(policy.grad, slope)


def test_k3_times_beta_is_added_to_the_loss():
    policy, reference, mask = torch.tensor([[-1.0]]), torch.tensor([[-1.5]]), torch.tensor([[True]])
    assert 0.04 * kl.kl_k3(policy, reference, mask).item() == pytest.approx(0.004261, abs=1e-6)


def test_ratio_times_k3_has_slope_ratio_times_gap():
    policy, reference, mask = tokens([0.5, -1.0])
    old = torch.tensor([[0.3, -0.6, NAN]])
    ratio = torch.where(mask, policy, 0.0) - torch.where(mask, old, 0.0)
    weighted = kl.kl_k3_weighted(ratio.exp(), policy, reference, mask)
    close(weighted, [math.exp(0.2) * 0.1065307, math.exp(-0.4) * (math.e - 2)])
    weighted.sum().backward()
    close(policy.grad, [math.exp(0.2) * 0.5, -math.exp(-0.4)])


@pytest.mark.parametrize("gap", [-199.0, 199.0])
def test_k3_stays_finite_when_models_disagree_and_is_counted(gap):
    policy, reference, mask = tokens([gap, 0.1])
    loss = kl.kl_k3(policy, reference, mask)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(policy.grad).all()
    counted = kl.kl_beyond_bound(policy, reference, mask)
    assert counted.tolist() == [[gap < 0, False, False]]
    # held below: constant, so no slope; above, nothing overflows and the slope is that of d
    assert policy.grad[0, 0].item() == (0.0 if gap < 0 else 1.0)


def test_k3_bound_is_the_callers():
    policy, reference, mask = tokens([-3.0])
    close(kl.kl_k3(policy, reference, mask, bound=2.0), [math.exp(2) - 3])
    assert kl.kl_beyond_bound(policy, reference, mask, bound=2.0)[0, 0]


def test_small_gaps_keep_their_digits():
    policy, reference, mask = tokens([1e-3])
    got = kl.kl_k3(policy, reference, mask)[0, 0].item()
    assert got == pytest.approx(5e-7, rel=1e-2)


P = torch.tensor([[[0.7, 0.2, 0.1], [0.25, 0.25, 0.5]]]).double()
Q = torch.tensor([[[0.5, 0.3, 0.2], [0.25, 0.25, 0.5]]]).double()


def test_exact_kl_in_both_directions_and_chunk_by_chunk():
    logits_p, logits_q = P.log() + 3.0, Q.log() - 1.0  # shifts change nothing
    forward = kl.kl_from_logits(logits_p, logits_q)
    assert forward.shape == (1, 2)
    expected = 0.7 * math.log(1.4) + 0.2 * math.log(2 / 3) + 0.1 * math.log(0.5)
    assert forward[0].tolist() == pytest.approx([expected, 0.0], abs=1e-7)
    assert kl.kl_from_logits(logits_q, logits_p)[0, 0].item() == pytest.approx(0.092033, abs=1e-6)
    chunk = kl.kl_from_logits(logits_p[0, :1], logits_q[0, :1])
    torch.testing.assert_close(chunk, forward[0, :1])


def test_exact_kl_gradient():
    logits = P[0, 0].log().requires_grad_()
    got = kl.kl_from_logits(logits, Q[0, 0].log())
    got.backward()  # p (log p/q - KL)
    expected = P[0, 0] * ((P[0, 0] / Q[0, 0]).log() - got.detach())
    torch.testing.assert_close(logits.grad, expected)


@pytest.mark.parametrize("divergence", [kl.kl_from_logits, kl.generalised_jsd])
def test_tokens_ruled_out_by_both_models_add_nothing(divergence):
    how = {"beta": 0.3} if divergence is kl.generalised_jsd else {}
    out = torch.full((1,), -torch.inf, dtype=torch.float64)
    p = torch.cat([P[0, 0].log(), out]).requires_grad_()
    q = torch.cat([Q[0, 0].log(), out]).requires_grad_()
    got = divergence(p, q, **how)
    torch.testing.assert_close(got, divergence(P[0, 0].log(), Q[0, 0].log(), **how))
    got.backward()
    assert torch.isfinite(p.grad).all()
    assert torch.isfinite(q.grad).all()


def test_a_token_only_the_first_model_allows_makes_the_kl_infinite():
    q = torch.tensor([0.0, 0.0, -torch.inf])
    assert kl.kl_from_logits(torch.zeros(3), q).item() == torch.inf
    assert kl.kl_from_logits(q, torch.zeros(3)).item() == pytest.approx(math.log(1.5))


def test_jsd_weights_the_teacher_by_beta():
    got = kl.generalised_jsd(P, Q, beta=0.1)
    other = kl.generalised_jsd(Q, P, beta=0.9)
    torch.testing.assert_close(got, other)
    teacher, student = P[0, 0].log(), Q[0, 0].log()
    assert kl.generalised_jsd(teacher, student, beta=0.1).item() == pytest.approx(
        0.007695, abs=1e-6
    )
