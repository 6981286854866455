"""Answers to reasoning-gym's problems, scored by the data set's own rule.

The rule runs in a grading process, on the problem made again from its seed. Some rules evaluate
the answer as Python; for their data sets an answer that calls, indexes or looks into anything is
wrong before the rule sees it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from posttrain.errors import MissingExtraError, VerifierError
from posttrain.rewards.extract import Accept, final_answer
from posttrain.rewards.isolation import shared_workers
from posttrain.rewards.said import last_turn
from posttrain.types.episode import Group, RewardRow, Scope, Verdict
from posttrain.types.message import Task
from posttrain.types.method import Verifier

_COLUMNS = ("dataset", "options", "seed", "index", "size", "question")


@dataclass(frozen=True, slots=True, kw_only=True)
class GymAnswer(Verifier):
    """The score of the final answer, 0 to 1."""

    name: ClassVar[str] = "reasoning_gym"

    accept: Accept = Accept.MARKED
    """Where the answer may stand."""

    partial: bool = True
    """Keep scores between 0 and 1, which many data sets give for parts of the answer or for its
    form; False counts only full marks."""

    deadline_s: float = 10.0
    """Seconds a score may take."""

    weight: float = 1.0
    """Multiplier in the total; 0 logs the reward without training on it."""

    @override
    def grade(self, task: Task, group: Group, episodes: Sequence[int]) -> list[RewardRow]:
        """One row an episode; equal answers are scored once.

        Raises:
            VerifierError: the task does not come from ``ReasoningGym``, or another version of
                the package makes another problem from its seed.
            MissingExtraError: reasoning-gym is not installed.
        """
        missing = [c for c in _COLUMNS if c not in task.columns]
        if missing:
            raise VerifierError(
                f"task {task.id!r} has no columns {missing}; GymAnswer grades tasks of the source "
                "ReasoningGym."
            )
        if importlib.util.find_spec("reasoning_gym") is None:
            raise MissingExtraError("reasoning-gym", extra="tasks", purpose="GymAnswer")
        known: dict[str, tuple[float | None, Verdict, str]] = {"": _NOTHING}
        rows = []
        for episode in episodes:
            found = final_answer(last_turn(group, episode), accept=self.accept)
            answer = found.text if found else ""
            if answer not in known:
                known[answer] = self._score(task, answer)
            rows.append(self._row(episode, answer, known[answer]))
        return rows

    def _row(
        self, episode: int, answer: str, found: tuple[float | None, Verdict, str]
    ) -> RewardRow:
        value, verdict, note = found
        return RewardRow(
            Scope.EPISODE,
            episode,
            self.name,
            value,
            self.weight,
            verdict,
            note=note,
            answer=answer,
        )

    def _score(self, task: Task, answer: str) -> tuple[float | None, Verdict, str]:
        problem = {name: task.columns[name] for name in _COLUMNS}
        outcome = shared_workers(preload="reasoning_gym").call(
            "posttrain.rewards.gym_score:score", problem, answer, deadline_s=self.deadline_s
        )
        if outcome.status != "done" or not isinstance(outcome.value, dict):
            verdict = Verdict.TIMEOUT if outcome.status == "timeout" else Verdict.UNSCORABLE
            return None, verdict, f"{outcome.status}: {outcome.note}"
        if "changed" in outcome.value:
            raise VerifierError(f"task {task.id!r}: {outcome.value['changed']}")
        score = float(outcome.value["score"])
        value = score if self.partial else float(score >= 1.0)
        return value, Verdict.GRADED, str(outcome.value["how"])


_NOTHING = (0.0, Verdict.NO_ANSWER, "no finished answer")
