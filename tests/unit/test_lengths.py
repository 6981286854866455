from __future__ import annotations

import pytest
import torch

from posttrain.errors import ConfigError
from posttrain.objectives.lengths import soft_overlong


def test_soft_penalty_on_both_sides_of_both_knees():
    lengths = torch.tensor([0, 80, 81, 90, 100, 101])
    got = soft_overlong(lengths, max_tokens=100, cache_tokens=20)
    assert got.tolist() == pytest.approx([0.0, 0.0, -0.05, -0.5, -1.0, -1.0])


@pytest.mark.parametrize("cache", [0, 101])
def test_a_cache_outside_the_limit_is_refused(cache):
    with pytest.raises(ConfigError, match=rf"1..max_tokens \(100\), got {cache}"):
        soft_overlong(torch.tensor([1]), max_tokens=100, cache_tokens=cache)
