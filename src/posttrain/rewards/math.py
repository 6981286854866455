"""Mathematical answers: extracted, compared by value, graded in processes that can be killed.

Wrong is a grade; what could not be graded is not. A gold answer that cannot be read, and a
comparison that hangs or crashes, leave the episode unscored, never at 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal, TypeAlias

from typing_extensions import override

from posttrain.errors import ConfigError, VerifierError
from posttrain.rewards.choices import chosen_letter
from posttrain.rewards.extract import Accept, final_answer, fold
from posttrain.rewards.isolation import Outcome, shared_workers
from posttrain.rewards.latex import normalise
from posttrain.rewards.numbers import parse_number, same_number
from posttrain.rewards.said import last_turn
from posttrain.types.episode import Group, RewardRow, Scope, Verdict
from posttrain.types.message import Task
from posttrain.types.method import Verifier

Kind: TypeAlias = Literal["auto", "numeric", "text", "multiple_choice"]

VERSION = "1"
"""Raised whenever some answer's verdict changes."""

_MAX_CHARS = 100_000
_MAX_EXPRESSION_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of one answer."""

    verdict: Verdict
    answer: str
    """The extracted answer, in the form equal answers share where that is cheap to know."""
    _: KW_ONLY
    correct: bool | None
    """None when nothing could be graded."""
    how: str
    """How it was compared, or why it was not."""
    version: str = VERSION

    @property
    def value(self) -> float | None:
        """1 or 0; None when nothing could be graded."""
        return None if self.correct is None else float(self.correct)


@dataclass(frozen=True, slots=True, kw_only=True)
class MathAnswer(Verifier):
    """1 if the final answer equals the gold answer by value, else 0."""

    name: ClassVar[str] = "math_answer"
    version: ClassVar[str] = VERSION

    kind: Kind = "auto"
    """What the gold answer is; ``auto`` reads it off the answer."""

    accept: Accept = Accept.MARKED
    """Where the answer may stand."""

    choices: tuple[str, ...] = ("A", "B", "C", "D")
    """Letters of a multiple-choice task."""

    deadline_s: float = 5.0
    """Seconds a comparison may take."""

    weight: float = 1.0
    """Multiplier in the total; 0 logs the reward without training on it."""

    def __post_init__(self) -> None:
        if not self.deadline_s > 0:
            raise ConfigError(f"MathAnswer.deadline_s must be > 0 seconds, got {self.deadline_s}.")

    @override
    def grade(self, task: Task, group: Group, episodes: Sequence[int]) -> list[RewardRow]:
        """One row an episode; equal answers are compared once.

        Raises:
            VerifierError: the gold answer cannot be read.
        """
        known: dict[str, Judgement] = {}
        rows = []
        for episode in episodes:
            response = last_turn(group, episode)
            extracted = self.extract(response)
            if extracted not in known:
                known[extracted] = self.judge_extracted(str(task.gold), extracted)
            rows.append(self._row(episode, known[extracted]))
        return rows

    def judge(self, gold: str, response: str) -> Judgement:
        """The judgement of a whole response.

        Raises:
            VerifierError: the gold answer cannot be read.
        """
        return self.judge_extracted(gold, self.extract(response))

    def extract(self, response: str) -> str:
        """The final answer as it was written; empty when there is none."""
        if self.kind == "multiple_choice":
            return chosen_letter(response, self.choices)
        found = final_answer(response, accept=self.accept)
        return found.text if found is not None else ""

    def judge_extracted(self, gold: str, answer: str) -> Judgement:
        """The judgement of an extracted answer; empty means none was given.

        Raises:
            VerifierError: the gold answer cannot be read.
        """
        if not gold.strip():
            raise VerifierError("the gold answer is empty, so nothing can be compared with it.")
        if not answer:
            self._check_gold(gold)
            return Judgement(Verdict.NO_ANSWER, "", correct=False, how="no finished answer")
        if len(answer) > _MAX_CHARS:
            self._check_gold(gold)
            how = f"{len(answer)} characters, more than {_MAX_CHARS}, are no final answer"
            return _wrong(answer, how)
        return self._quick(gold, answer) or self._thorough(gold, answer)

    def _quick(self, gold: str, answer: str) -> Judgement | None:
        """The judgement of what needs no algebra: texts, equal spellings, plain numbers."""
        expected, given = normalise(gold), normalise(answer)
        if self.kind in ("text", "multiple_choice"):
            expected, given = fold(expected), fold(given)
            return Judgement(
                Verdict.GRADED, given, correct=expected == given, how="compared as text"
            )
        x, y = parse_number(expected), parse_number(given)
        if x is not None and y is not None:
            return Judgement(
                Verdict.GRADED, y.canonical, correct=same_number(x, y), how="compared as numbers"
            )
        if self.kind == "auto" and expected.split() == given.split():
            return Judgement(Verdict.GRADED, _spelling(answer), correct=True, how="the same text")
        return None

    def _thorough(self, gold: str, answer: str) -> Judgement:
        """The judgement of a grading process."""
        self._check_gold(gold)
        shown = _spelling(answer)
        if len(answer) > _MAX_EXPRESSION_CHARS:
            how = f"an expression of more than {_MAX_EXPRESSION_CHARS} characters"
            return _wrong(shown, how)
        outcome = shared_workers().call(
            "posttrain.rewards.expressions:compare", gold, answer, deadline_s=self.deadline_s
        )
        if outcome.status != "done" or not isinstance(outcome.value, dict):
            return _ungraded(shown, outcome)
        if "gold" in outcome.value:
            raise VerifierError(f"gold answer {gold!r}: {outcome.value['gold']}.")
        correct = bool(outcome.value["equal"])
        return Judgement(Verdict.GRADED, shown, correct=correct, how=str(outcome.value["how"]))

    def _check_gold(self, gold: str) -> None:
        if self.kind != "numeric" or parse_number(normalise(gold)) is not None:
            return
        outcome = shared_workers().call(
            "posttrain.rewards.expressions:readable", gold, deadline_s=self.deadline_s
        )
        read = outcome.value if isinstance(outcome.value, dict) else {"gold": outcome.note}
        if "gold" in read or read.get("form") == "text":
            raise VerifierError(
                f"gold answer {gold!r} is no number or expression ({read.get('gold', 'text')}), "
                "so nothing can be compared with it. Drop the row, or use kind='text'."
            )

    def _row(self, episode: int, found: Judgement) -> RewardRow:
        return RewardRow(
            Scope.EPISODE,
            episode,
            self.name,
            found.value,
            self.weight,
            found.verdict,
            note=found.how,
            answer=found.answer,
        )


def _wrong(answer: str, how: str) -> Judgement:
    return Judgement(Verdict.GRADED, answer[:80], correct=False, how=f"wrong: {how}")


def _spelling(answer: str) -> str:
    return "".join(normalise(answer).split())


def _ungraded(answer: str, outcome: Outcome) -> Judgement:
    verdict = Verdict.TIMEOUT if outcome.status == "timeout" else Verdict.UNSCORABLE
    return Judgement(verdict, answer, correct=None, how=f"{outcome.status}: {outcome.note}")
