"""What a policy that knows nothing would score; look before choosing a task."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from posttrain.errors import DataError
from posttrain.types.message import JSON, Task


def best_constant(tasks: Sequence[Task]) -> tuple[JSON, float]:
    """The gold answer most tasks share, and the accuracy of always giving it.

    Golds compare as they are written; of equally frequent ones the first counts.

    Raises:
        DataError: there are no tasks, or one has no gold answer.
    """
    missing = [t.id for t in tasks if t.gold is None]
    if not tasks or missing:
        raise DataError(
            f"best_constant needs tasks with gold answers, got {len(tasks)} tasks, "
            f"{len(missing)} of them without one {missing[:3]}."
        )
    counts = Counter(json.dumps(t.gold, sort_keys=True) for t in tasks)
    text, count = counts.most_common(1)[0]
    return json.loads(text), count / len(tasks)
