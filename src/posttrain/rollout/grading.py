"""Grading: verifiers under a deadline, and rows that can be trusted.

A verifier that fails, or takes too long, leaves its episodes unscored, never at 0. What is wrong
with the verifier itself (rows missing, values that are no numbers) is an error with the numbers.
Grading again changes nothing: an episode that has a verifier's row is not given to it again.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from posttrain.errors import (
    ConfigError,
    DataError,
    DeadlineError,
    PosttrainError,
    VerifierError,
    nearest,
)
from posttrain.rollout.waiting import in_thread, run_sync, together, within
from posttrain.types.episode import Group, RewardRow, Scope, Verdict
from posttrain.types.message import Task
from posttrain.types.method import Verifier

WITH_VALUE = (Verdict.GRADED, Verdict.NO_ANSWER)
THREADS = 8
"""Verifiers of one rollout that run at the same time."""


def grade(
    groups: Sequence[Group],
    verifiers: Mapping[str, Verifier],
    *,
    verifier_s: float,
    always: Mapping[str, Verifier] | None = None,
) -> list[Group]:
    """Groups with a row for every verifier and episode that had none.

    Args:
        groups: Any groups; refused ones are graded as well.
        verifiers: The source's, of which a task may name some.
        verifier_s: Seconds one verifier may take for the episodes of one group.
        always: The method's own, which grade every task, after the source's.

    Raises:
        DataError: a task names a verifier that is not there, or a verifier gave wrong rows.
    """

    async def all_of_them() -> list[Group]:
        slots = asyncio.Semaphore(THREADS)
        chosen = [chosen_verifiers(g.task, verifiers, always or {}) for g in groups]
        return await together(
            [
                grade_group(g, c, verifier_s=verifier_s, slots=slots)
                for g, c in zip(groups, chosen, strict=True)
            ]
        )

    return run_sync(all_of_them)


def chosen_verifiers(
    task: Task, verifiers: Mapping[str, Verifier], always: Mapping[str, Verifier]
) -> dict[str, Verifier]:
    """The verifiers of a task, the source's before the method's.

    Raises:
        ConfigError: source and method have a verifier of one name.
        DataError: the task names one that is not there.
    """
    twice = sorted(set(verifiers) & set(always))
    if twice:
        raise ConfigError(
            f"source and method both have verifiers named {twice}; rename the method's."
        )
    names = list(verifiers) if task.verifiers is None else task.verifiers
    for name in names:
        if name not in verifiers:
            raise DataError(
                f"task {task.id!r} names the verifier {name!r}; its source has "
                f"{sorted(verifiers)}.{nearest(name, verifiers)}"
            )
    return {**{name: verifiers[name] for name in names}, **always}


async def grade_group(
    group: Group,
    verifiers: Mapping[str, Verifier],
    *,
    verifier_s: float,
    slots: asyncio.Semaphore,
) -> Group:
    """The group graded by each verifier in turn; later ones see the rows of earlier ones."""
    for name, verifier in verifiers.items():
        episodes = _ungraded(group, name)
        if episodes:
            async with slots:
                rows = await _rows(group, name, verifier, episodes, verifier_s)
            group = group.add(rewards=rows)
    return group


def _ungraded(group: Group, name: str) -> list[int]:
    """Episodes to blame or praise the policy for, which have no row of the verifier yet."""
    rows = [r for r in group.rewards if r.verifier == name]
    if any(r.scope is Scope.GROUP for r in rows) and not any(
        r.scope is Scope.EPISODE for r in rows
    ):
        return []
    graded = {r.target for r in rows if r.scope is Scope.EPISODE}
    inside = {r.target for r in rows if r.scope not in (Scope.EPISODE, Scope.GROUP)}
    found, passed = [], set[int]()
    for e, episode in enumerate(group.episodes):
        own = set(episode.segments) - passed or set(episode.segments)
        passed |= own
        if e not in graded and inside.isdisjoint(own) and not episode.fault.infrastructure:
            found.append(e)
    return found


async def _rows(
    group: Group, name: str, verifier: Verifier, episodes: list[int], verifier_s: float
) -> list[RewardRow]:
    began = time.perf_counter()
    try:
        what = f"verifier {name!r} to grade {len(episodes)} episodes of group {group.group_id}"
        found = await within(_call(verifier, group, episodes), verifier_s, what)
    except VerifierError as error:
        rows = _unscored(name, episodes, Verdict.UNSCORABLE, str(error))
    except DeadlineError as error:
        rows = _unscored(name, episodes, Verdict.TIMEOUT, str(error))
    except PosttrainError:
        raise
    except Exception as error:  # noqa: BLE001  the verifier's boundary: reported in every row
        note = f"{type(error).__name__}: {error}"
        rows = _unscored(name, episodes, Verdict.UNSCORABLE, note)
    else:
        rows = _checked_rows(found, name, group, episodes)
    seconds = (time.perf_counter() - began) / max(len(rows), 1)
    return [
        replace(
            r, verifier=name, version=verifier.version, seconds=r.seconds if r.seconds else seconds
        )
        for r in rows
    ]


async def _call(verifier: Verifier, group: Group, episodes: Sequence[int]) -> Sequence[RewardRow]:
    """Its rows; what blocks runs in a thread."""

    def ask() -> Sequence[RewardRow] | Awaitable[Sequence[RewardRow]]:
        return verifier.grade(group.task, group, list(episodes))

    if inspect.iscoroutinefunction(verifier.grade):
        found = ask()
    else:
        found = await in_thread(ask, f"verifier-{type(verifier).__name__}")
    return await found if isinstance(found, Awaitable) else found


def _unscored(name: str, episodes: Sequence[int], verdict: Verdict, note: str) -> list[RewardRow]:
    return [RewardRow(Scope.EPISODE, e, name, None, verdict=verdict, note=note) for e in episodes]


def _checked_rows(
    found: object, name: str, group: Group, episodes: Sequence[int]
) -> list[RewardRow]:
    if not isinstance(found, Sequence):
        raise DataError(
            f"verifier {name!r} must give a sequence of RewardRow, got {type(found).__name__}."
        )
    rows = [_checked(row, name, group) for row in found]
    _check_targets(rows, name, group, episodes)
    return rows


def _checked(row: RewardRow, name: str, group: Group) -> RewardRow:
    """The row with a plain float or None as its value, and a verdict that fits.

    Raises:
        DataError: the value is no finite number, or contradicts the verdict.
    """
    if not isinstance(row, RewardRow):
        raise DataError(f"verifier {name!r} must give RewardRow objects, got {row!r:.80}.")
    where = f"verifier {name!r}, {row.scope} {row.target} of group {group.group_id}"
    if row.value is None:
        verdict = Verdict.UNSCORABLE if row.verdict in WITH_VALUE else row.verdict
        return replace(row, verdict=verdict)
    if row.verdict not in WITH_VALUE:
        raise DataError(
            f"{where}: the verdict {row.verdict} carries the value {row.value!r}. Only "
            f"{[str(v) for v in WITH_VALUE]} have one; give None."
        )
    return replace(row, value=finite(row.value, where))


def finite(value: object, where: str) -> float:
    """A reward as a plain float; bool and numpy numbers are accepted.

    Raises:
        DataError: it is no finite number.
    """
    number = isinstance(value, (bool, int, float, np.number, np.bool_))
    number |= isinstance(value, np.ndarray) and value.ndim == 0
    if not number or not math.isfinite(float(value)):  # pyright: ignore[reportArgumentType]
        raise DataError(
            f"{where}: a reward is a finite number, or None where nothing could be graded, got "
            f"{value!r:.80} ({type(value).__name__})."
        )
    return float(value)  # pyright: ignore[reportArgumentType]


def _check_targets(
    rows: Sequence[RewardRow], name: str, group: Group, episodes: Sequence[int]
) -> None:
    """Each name of episode rows once for every episode asked; other targets must exist."""
    if not rows:
        raise DataError(
            f"verifier {name!r} gave 0 rows for {len(episodes)} episodes of group "
            f"{group.group_id}. Give one an episode; None where it cannot be graded."
        )
    by_name: dict[str, Counter[int]] = {}
    for row in rows:
        if row.scope is Scope.EPISODE:
            by_name.setdefault(row.name, Counter())[row.target] += 1
        elif row.scope is not Scope.GROUP and not 0 <= row.target < len(group.segments):
            raise DataError(
                f"verifier {name!r} gave a {row.scope} row for segment {row.target} of group "
                f"{group.group_id}, which has {len(group.segments)} segments."
            )
    for row_name, targets in by_name.items():
        if targets != Counter(episodes):
            raise DataError(
                f"verifier {name!r} gave {targets.total()} rows {row_name!r} for {len(episodes)} "
                f"episodes of group {group.group_id}: episodes {list(episodes)} were asked, "
                f"{sorted(targets.elements())} came. Give one an episode, in any order."
            )
