"""One Hypothesis profile for the whole suite."""

from __future__ import annotations

import os

from hypothesis import settings

# The first torch call is slower than Hypothesis' default deadline.
settings.register_profile("posttrain", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("posttrain")
