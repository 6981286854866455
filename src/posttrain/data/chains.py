"""Sums and differences read from left to right, modulo a small number: the tiny reasoner's task.

A question is a chain such as ``3-5+6``. Its *worked* solution restates every partial result,
``3-5=5,5+6=4`` modulo 7; its *direct* solution states the answer alone, ``=4``. Either way the
answer is what follows the last ``=``. A model of two layers can do one step at a time and cannot
do a whole chain at once, so a worked solution is worth its length and a direct one is a guess.

Problems are drawn, never stored. Whether one is held out depends on its text alone, so the two
splits cannot overlap whatever is drawn, in whatever order, at whatever level.

Everything here is a pure function; randomness is the generator passed in.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from posttrain.errors import ConfigError, DataError

Split = Literal["train", "heldout"]

HELDOUT_ONE_IN = 10
"""One question in so many is held out."""

_MAX_DRAWS_PER_PROBLEM = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainLevel:
    """How hard the chains are."""

    num_operands: tuple[int, ...]
    """The lengths a chain may have, each as likely as the next; every one at least 2."""

    modulus: int = 7
    """Operands and results are 0 .. modulus - 1; at least 2. A larger one is harder."""

    def __post_init__(self) -> None:
        """Refuse a level that has no problems."""
        if not self.num_operands or min(self.num_operands) < 2:
            raise ConfigError(
                "ChainLevel.num_operands must name at least one length, each 2 or more, "
                f"got {self.num_operands}. A chain of two operands has one step."
            )
        if self.modulus < 2:
            raise ConfigError(
                f"ChainLevel.modulus must be 2 or more, got {self.modulus}. "
                "Modulo 1 every answer is 0."
            )


STEPS = ChainLevel(num_operands=(2,))
"""One step: the table of sums and differences."""

SHORT = ChainLevel(num_operands=(2, 3, 4, 5))
"""What the warm start demonstrates: the steps, and the lengths that are evaluated."""

STANDARD = ChainLevel(num_operands=(3, 4, 5))
"""What is trained with rewards and evaluated."""

LONG = ChainLevel(num_operands=(6, 7, 8))
"""Longer than anything in the warm start."""

WIDE = ChainLevel(num_operands=(4, 5, 6), modulus=11)
"""A table more than twice the size; results may take two characters."""


@dataclass(frozen=True, slots=True)
class ChainProblem:
    """One chain. ``operators[i]`` stands between operand i and operand i + 1."""

    operands: tuple[int, ...]
    operators: str
    modulus: int

    def __post_init__(self) -> None:
        """Refuse a chain that cannot be read."""
        if len(self.operands) < 2 or len(self.operators) != len(self.operands) - 1:
            raise DataError(
                "a chain has two or more operands and one operator between each pair, got "
                f"operands {self.operands} and operators {self.operators!r}"
            )
        if set(self.operators) - {"+", "-"}:
            raise DataError(f"a chain's operators are '+' and '-', got {self.operators!r}")
        if not all(0 <= value < self.modulus for value in self.operands):
            raise DataError(
                f"a chain's operands are 0 .. {self.modulus - 1} (its modulus is {self.modulus}), "
                f"got {self.operands}"
            )

    @property
    def question(self) -> str:
        """The chain as asked, such as ``3-5+6``; the modulus is understood."""
        tail = zip(self.operators, self.operands[1:], strict=True)
        return str(self.operands[0]) + "".join(f"{sign}{value}" for sign, value in tail)

    @property
    def answer(self) -> str:
        """The last partial result."""
        return str(_partial_results(self)[-1])


def _partial_results(problem: ChainProblem) -> list[int]:
    """The running value after each operator."""
    value = problem.operands[0]
    results = []
    for sign, operand in zip(problem.operators, problem.operands[1:], strict=True):
        value = (value + operand if sign == "+" else value - operand) % problem.modulus
        results.append(value)
    return results


def worked_solution(problem: ChainProblem) -> str:
    """Every step with its result, such as ``3-5=5,5+6=4`` modulo 7."""
    results = _partial_results(problem)
    starts = [problem.operands[0], *results[:-1]]
    steps = zip(starts, problem.operators, problem.operands[1:], results, strict=True)
    return ",".join(f"{start}{sign}{operand}={result}" for start, sign, operand, result in steps)


def direct_solution(problem: ChainProblem) -> str:
    """The answer alone, such as ``=4``."""
    return f"={problem.answer}"


def demonstrate(problem: ChainProblem, rng: np.random.Generator, *, worked_share: float) -> str:
    """A correct solution: worked with probability ``worked_share``, else direct.

    Raises:
        ConfigError: ``worked_share`` is no probability.
    """
    if not 0.0 <= worked_share <= 1.0:
        raise ConfigError(f"worked_share must be in [0, 1], got {worked_share}")
    return worked_solution(problem) if rng.random() < worked_share else direct_solution(problem)


def max_solution_chars(level: ChainLevel) -> int:
    """Characters that hold every worked solution of a level; the end token comes on top."""
    width = len(str(level.modulus - 1))
    num_steps = max(level.num_operands) - 1
    return num_steps * (3 * width + 2) + num_steps - 1


def final_answer(text: str) -> str | None:
    """What follows the last ``=``, without surrounding blanks; None where there is no ``=``."""
    _, equals, answer = text.rpartition("=")
    return answer.strip() if equals else None


def is_correct(text: str, answer: str) -> bool:
    """Whether a solution's final answer is exactly ``answer``. How it got there is not judged."""
    return final_answer(text) == answer


def is_worked(text: str) -> bool:
    """Whether a solution shows a step before its answer, right or wrong."""
    return text.find("=") > 0


def split_of(question: str) -> Split:
    """The split a question belongs to: a hash of its text, the same on every machine."""
    digest = hashlib.blake2b(question.encode(), digest_size=8, person=b"chains").digest()
    return "heldout" if int.from_bytes(digest, "big") % HELDOUT_ONE_IN == 0 else "train"


def draw_problem(rng: np.random.Generator, level: ChainLevel) -> ChainProblem:
    """One problem, of either split."""
    num_operands = int(rng.choice(level.num_operands))
    operands = tuple(rng.integers(0, level.modulus, num_operands).tolist())
    operators = "".join("+-"[i] for i in rng.integers(0, 2, num_operands - 1))
    return ChainProblem(operands, operators, level.modulus)


def draw_problems(
    rng: np.random.Generator,
    level: ChainLevel,
    n: int,
    *,
    split: Split,
    distinct: bool = False,
) -> list[ChainProblem]:
    """``n`` problems of one split; with ``distinct``, no question twice.

    Raises:
        DataError: ``distinct`` was asked for and the level has too few problems.
    """
    problems: list[ChainProblem] = []
    seen: set[str] = set()
    for _ in range(n * _MAX_DRAWS_PER_PROBLEM):
        if len(problems) == n:
            break
        problem = draw_problem(rng, level)
        question = problem.question
        if split_of(question) != split or (distinct and question in seen):
            continue
        seen.add(question)
        problems.append(problem)
    if len(problems) < n:
        raise DataError(
            f"asked for {n} {'distinct ' if distinct else ''}{split} chains, found "
            f"{len(problems)} in {n * _MAX_DRAWS_PER_PROBLEM} draws at {level}. "
            "Ask for fewer, or for longer chains or a larger modulus."
        )
    return problems


def constant_answer_accuracy(problems: Sequence[ChainProblem]) -> float:
    """Accuracy of always giving the answer these problems have most often.

    Raises:
        DataError: there are no problems.
    """
    if not problems:
        raise DataError("constant_answer_accuracy needs at least one problem, got none")
    return max(Counter(problem.answer for problem in problems).values()) / len(problems)
