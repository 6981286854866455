"""Exact comparison of the final answer with a gold text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from posttrain.errors import VerifierError
from posttrain.rewards.extract import Accept, after_reasoning, final_answer, fold
from posttrain.rewards.said import last_turn
from posttrain.types.episode import Group, RewardRow, Scope, Verdict
from posttrain.types.message import Task
from posttrain.types.method import Verifier


def graded_row(
    episode: int, *, name: str, weight: float, value: float | None, answer: str, note: str
) -> RewardRow:
    """The row of a graded answer; an empty ``answer`` is no answer, worth ``value``."""
    verdict = Verdict.GRADED if answer else Verdict.NO_ANSWER
    return RewardRow(Scope.EPISODE, episode, name, value, weight, verdict, note=note, answer=answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactAnswer(Verifier):
    """1 if the answer is the gold text, apart from case and spaces, else 0."""

    name: ClassVar[str] = "exact_answer"

    after: str = ""
    """The answer is what follows the last of these; empty: see ``accept``."""

    until: str = ""
    """The answer ends here; without it the response is unfinished and has no answer."""

    accept: Accept | None = Accept.MARKED
    """Where the answer may stand if ``after`` is empty; None: the whole response."""

    weight: float = 1.0
    """Multiplier in the total; 0 logs the reward without training on it."""

    @override
    def grade(self, task: Task, group: Group, episodes: Sequence[int]) -> list[RewardRow]:
        """One row an episode.

        Raises:
            VerifierError: the task has no gold text.
        """
        if not isinstance(task.gold, str | int) or not (gold := fold(str(task.gold))):
            raise VerifierError(
                f"gold answer {task.gold!r} of task {task.id!r} is no text, so nothing can be "
                "compared with it. Give a string, or drop the row."
            )
        return [self._row(gold, last_turn(group, e), e) for e in episodes]

    def extract(self, response: str) -> str:
        """The folded answer; empty when there is none."""
        text = after_reasoning(response)
        if self.after:
            _, mark, text = text.rpartition(self.after)
            text = text if mark else ""
        elif self.accept is not None:
            found = final_answer(response, accept=self.accept)
            text = found.text if found else ""
        if self.until:
            text, mark, _ = text.partition(self.until)
            text = text if mark else ""
        return fold(text)

    def _row(self, gold: str, response: str, episode: int) -> RewardRow:
        answer = self.extract(response)
        note = "compared as text" if answer else "no finished answer"
        value = float(answer == gold)
        return graded_row(
            episode, name=self.name, weight=self.weight, value=value, answer=answer, note=note
        )
