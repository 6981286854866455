"""SFT: imitate given answers.

Paper      behaviour cloning; for language models InstructGPT, arXiv:2203.02155, section 3.5.
Formula    loss = -sum log pi(y_t) / trained tokens of the step
Needs      tasks with a column of answers, or prompts that end with an assistant message; no reward.
Differs    the answer alone is trained, never the prompt; the mean is over the tokens of the whole
           optimiser step, not of each micro-batch.
Defaults   the token mean of TRL and verl; one pass over each batch.
Checked    tests/unit/test_methods.py; tests/unit/test_parts_terms.py.
"""

from __future__ import annotations

from typing import Literal

from posttrain.parts.aggregation import TokenMean
from posttrain.parts.plans import Demonstrations
from posttrain.parts.terms import CrossEntropy
from posttrain.types.method import Method


def sft(*, column: str = "completion", turns: Literal["last", "all"] = "last") -> Method:
    """Compose supervised fine-tuning from its parts.

    Args:
        column: Column of the task with the answer to imitate.
        turns: Which assistant messages of a conversation are imitated.
    """
    return Method(
        name="sft",
        plan=Demonstrations(column=column, turns=turns),
        terms={"policy": (CrossEntropy(aggregation=TokenMean()),)},
    )
