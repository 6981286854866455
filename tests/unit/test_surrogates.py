from __future__ import annotations

import pytest
import torch
from torch import Tensor

from posttrain.objectives import surrogates

NAN = float("nan")


def tokens(ratio: list[float], advantage: list[float]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs with gradient, their ratio to 0, advantages, mask; a masked NaN token is added."""
    logprobs = torch.tensor([[*ratio, NAN]]).log().requires_grad_()
    mask = torch.tensor([[True] * len(ratio) + [False]])
    shown = torch.where(mask, logprobs, 0.0).exp()
    return logprobs, shown, torch.tensor([[*advantage, NAN]]), mask


def close(got: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(got, torch.tensor([[*expected, 0.0]]), rtol=0, atol=1e-6)


def test_clipped_surrogate_on_both_sides_of_both_bounds():
    # r        0.5  1.5  0.5  1.5  1.25  0.9      bounds [0.8, 1.28]
    # A        2    2   -1   -1    1    -1
    # r A      1    3   -.5  -1.5  1.25 -.9
    # bound A  1.6  2.56 -.8 -1.28 1.25 -.9
    logprobs, ratio, advantage, mask = tokens(
        [0.5, 1.5, 0.5, 1.5, 1.25, 0.9], [2, 2, -1, -1, 1, -1]
    )
    loss = surrogates.clipped_surrogate(ratio, advantage, mask, clip_low=0.2, clip_high=0.28)
    close(loss, [-1.0, -2.56, 0.8, 1.5, -1.25, 0.9])
    loss.sum().backward()
    close(logprobs.grad, [-1.0, 0, 0, 1.5, -1.25, 0.9])


def test_symmetric_bounds():
    _, ratio, advantage, mask = tokens([1.3, 1.3, 0.7, 0.7], [1, -1, 1, -1])
    loss = surrogates.clipped_surrogate(ratio, advantage, mask, clip_low=0.2, clip_high=0.2)
    close(loss, [-1.2, 1.3, -0.7, 0.8])


def test_clip_masks_say_where_the_clipped_branch_is_taken():
    _, ratio, advantage, mask = tokens([0.5, 1.5, 0.5, 1.5, 1.5], [2, 2, -1, -1, 0])
    above = surrogates.clipped_above(ratio, advantage, mask, clip_high=0.28)
    below = surrogates.clipped_below(ratio, advantage, mask, clip_low=0.2)
    assert above.tolist() == [[False, True, False, False, False, False]]
    assert below.tolist() == [[False, False, True, False, False, False]]
    wide = surrogates.clipped_above(ratio, advantage, mask, clip_high=0.6)
    assert not wide.any()


def test_dual_clip_bounds_the_bad_token_that_became_likely():
    logprobs, ratio, advantage, mask = tokens([6.0, 2.0, 6.0, 0.5], [-1, -1, 1, -2])
    loss = surrogates.dual_clipped_surrogate(
        ratio, advantage, mask, clip_low=0.2, clip_high=0.2, ceiling=3.0
    )
    close(loss, [3.0, 2.0, -1.2, 1.6])
    loss.sum().backward()
    close(logprobs.grad, [0, 2.0, 0, 0])
    held = surrogates.dual_capped(ratio, advantage, mask, ceiling=3.0)
    assert held.tolist() == [[True, False, False, False, False]]


def test_cap_on_the_free_branch():
    logprobs, ratio, advantage, mask = tokens([6.0, 2.0, 6.0, 0.5], [-1, -1, 1, -1])
    loss = surrogates.capped_clipped_surrogate(
        ratio, advantage, mask, clip_low=0.2, clip_high=0.28, cap=4.0
    )
    close(loss, [4.0, 2.0, -1.28, 0.8])
    loss.sum().backward()
    close(logprobs.grad, [0, 2.0, 0, 0])


def test_policy_gradient_has_slope_minus_advantage():
    logprobs, _, advantage, mask = tokens([0.5, 0.25], [3, -2])
    loss = surrogates.policy_gradient(logprobs, advantage, mask)
    close(loss, [-3 * logprobs[0, 0].item(), 2 * logprobs[0, 1].item()])
    loss.sum().backward()
    close(logprobs.grad, [-3, 2])


def test_unclipped_surrogate():
    logprobs, ratio, advantage, mask = tokens([5.0, 0.25], [3, -2])
    loss = surrogates.unclipped_surrogate(ratio, advantage, mask)
    close(loss, [-15, 0.5])
    loss.sum().backward()
    close(logprobs.grad, [-15, 0.5])


CLIP = {"clip_low": 0.2, "clip_high": 0.2}


@pytest.mark.parametrize(
    ("surrogate", "how"),
    [
        (surrogates.policy_gradient, {}),
        (surrogates.unclipped_surrogate, {}),
        (surrogates.clipped_surrogate, CLIP),
        (surrogates.dual_clipped_surrogate, CLIP | {"ceiling": 3.0}),
        (surrogates.capped_clipped_surrogate, CLIP | {"cap": 4.0}),
    ],
)
def test_advantages_get_no_gradient(surrogate, how):
    _, ratio, advantage, mask = tokens([1.1, 6.0], [1, -1])
    advantage.requires_grad_()
    surrogate(ratio, advantage, mask, **how).sum().backward()
    assert advantage.grad is None


def test_a_trained_nan_stays_visible():
    mask = torch.tensor([[True, True]])
    ratio, advantage = torch.tensor([[1.0, NAN]]), torch.ones(1, 2)
    loss = surrogates.clipped_surrogate(ratio, advantage, mask, clip_low=0.2, clip_high=0.2)
    assert loss.isnan().tolist() == [[False, True]]
