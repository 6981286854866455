"""Two answers to one prompt, of three and two tokens, worked by hand in the tests that use it.

    policy     -0.9 -0.5 -1.2     -0.3 -2.0
    old        -1.0 -0.8 -1.0     -0.5 -1.4
    rollout    -1.1 -0.7 -1.0     -0.4 -1.9
    reference  -1.2 -0.6 -1.1     -0.6 -1.5
    advantage  +1                 -1
    ratio pi/old       1.105171 1.349859 0.818731     1.221403 0.548812
    ratio old/rollout  1.105171 0.904837 1            0.904837 1.648721

A first position, and everything the second row lacks, is masked and holds NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.types.term import Counts, ModelOut, TokenBatch

NAN = float("nan")
POLICY = [[-0.9, -0.5, -1.2], [-0.3, -2.0, NAN]]
OLD = [[-1.0, -0.8, -1.0], [-0.5, -1.4, NAN]]
ROLLOUT = [[-1.1, -0.7, -1.0], [-0.4, -1.9, NAN]]
REFERENCE = [[-1.2, -0.6, -1.1], [-0.6, -1.5, NAN]]
ADVANTAGES = [[1.0, 1.0, 1.0], [-1.0, -1.0, NAN]]
COUNTS = Counts(tokens=5, rows=2, episodes=2, groups=1)


def after_prompt(rows: list[list[float]]) -> Tensor:
    """[2, 4]: one masked position before each row."""
    return torch.tensor([[NAN, *row] for row in rows])


def batch(**columns: list[list[float]]) -> TokenBatch:
    """The fixture as a batch; columns given by name replace its own."""
    mask = torch.tensor([[False, True, True, True], [False, True, True, False]])
    own = {
        "old_logprobs": OLD,
        "rollout_logprobs": ROLLOUT,
        "ref_logprobs": REFERENCE,
        "advantages": ADVANTAGES,
    }
    return TokenBatch(
        ids=torch.tensor([[3, 5, 6, 7], [3, 8, 2, 0]]),
        attention_mask=torch.tensor([[True] * 4, [True, True, True, False]]),
        loss_mask=mask,
        temperature=torch.ones(2, 4),
        columns={name: after_prompt(rows) for name, rows in {**own, **columns}.items()},
        row=torch.tensor([0, 1]),
        episode=torch.tensor([0, 1]),
        group=torch.tensor([0, 0]),
        segment=torch.tensor([[0, 1, 1, 1], [0, 2, 2, -1]]),
        row_tokens=torch.tensor([3, 2]),
        episode_tokens=torch.tensor([3, 2]),
    )


def model() -> ModelOut:
    """The policy's log-probs as a leaf that gathers a gradient."""
    return ModelOut(policy_logprobs=after_prompt(POLICY).requires_grad_())


def rows_of(tensor: Tensor) -> Tensor:
    """[5] the trained entries, row by row."""
    return tensor[torch.tensor([[False, True, True, True], [False, True, True, False]])]
