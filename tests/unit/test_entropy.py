from __future__ import annotations

import math

import pytest
import torch

from posttrain.objectives import entropy

PROBS = torch.tensor([[[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]]]).double()


def test_entropy_value_and_gradient():
    logits = (PROBS.log() + 2.0).requires_grad_()
    got = entropy.entropy_from_logits(logits)
    second = 0.4 * math.log(5) - 0.6 * math.log(0.6)
    assert got[0].tolist() == pytest.approx([1.5 * math.log(2), second])
    got[0, 0].backward()  # -p (log p + H)
    p = PROBS[0, 0]
    torch.testing.assert_close(logits.grad[0, 0], -p * (p.log() + got[0, 0].detach()))
    assert not logits.grad[0, 1].any()


def test_temperature_divides_the_logits():
    logits = torch.tensor([1.0, 0.0]).double()
    hot = torch.tensor([0.5, 0.0]).double()
    torch.testing.assert_close(
        entropy.entropy_from_logits(logits, temperature=2.0), entropy.entropy_from_logits(hot)
    )
    got = entropy.token_logprobs(logits.unsqueeze(0), torch.tensor([0]), temperature=2.0)
    assert got.item() == pytest.approx(-math.log(1 + math.exp(-0.5)))


def test_tokens_ruled_out_add_nothing():
    logits = torch.tensor([0.0, 0.0, -torch.inf], requires_grad=True)
    got = entropy.entropy_from_logits(logits)
    assert got.item() == pytest.approx(math.log(2))
    got.backward()
    assert torch.isfinite(logits.grad).all()


def test_half_precision_logits_are_widened():
    logits = torch.tensor([[3.0, 1.0, 0.5]], dtype=torch.bfloat16)
    got = entropy.token_logprobs(logits, torch.tensor([1]))
    assert got.dtype == torch.float32
    expected = 1 - math.log(math.exp(3) + math.exp(1) + math.exp(0.5))
    assert got.item() == pytest.approx(expected, abs=1e-6)
    assert entropy.widened(logits.double()).dtype == torch.float64


def test_chosen_tokens():
    got = entropy.token_logprobs(PROBS.log(), torch.tensor([[1, 2]]))
    assert got[0].tolist() == pytest.approx([math.log(0.25), math.log(0.6)])


def test_nucleus_mass_is_taken_out_of_the_ratio():
    logits = torch.tensor([[0.3, 0.3, 0.25, 0.15]]).log()
    kept = torch.tensor([[True, True, False, False]])
    trainer = entropy.token_logprobs(logits, torch.tensor([0]))
    mass = entropy.kept_log_mass(logits, kept)
    assert trainer.item() == pytest.approx(-1.203973, abs=1e-6)
    assert mass.exp().item() == pytest.approx(0.6)
    engine = -0.693147
    renormalised = entropy.renormalised_logprobs(trainer, mass)
    assert (renormalised - engine).exp().item() == pytest.approx(1.0, abs=1e-6)
