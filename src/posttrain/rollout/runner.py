"""The runner: draws tasks, grows a group for each, and keeps or redraws them.

It knows asks, budgets and deadlines, and no method. In exact mode requests go to the engine in
waves, so that the same job gives the same groups to the last bit, whether or not it was
interrupted: after each wave the groups so far can be stored, and a rollout that is given them goes
on from there. Episodes that had ended are not played again; one that had not is played again from
its start with the samples it had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from posttrain.errors import CheckpointError
from posttrain.rollout.episodes import Stage
from posttrain.rollout.grading import THREADS, grade
from posttrain.rollout.groups import Crew, Growing, ProbeStage, Tally
from posttrain.rollout.jobs import Job, begin, draw_tasks
from posttrain.rollout.prompts import Chat, Seating
from posttrain.rollout.waiting import run_sync, together
from posttrain.rollout.waves import Sampler, Stream, Waves
from posttrain.types.ask import Decode
from posttrain.types.engine import Engine
from posttrain.types.episode import Fault, Group, Key, Origin, Verdict
from posttrain.types.events import Emit, Event, Progress, Warned
from posttrain.types.method import Source, Verifier
from posttrain.types.models import Seat
from posttrain.types.run import Limits

__all__ = ["Job", "Runner"]

OnWave = Callable[[Sequence[Group]], None]


class Runner:
    """Samples groups with an engine.

    Args:
        engine: Draws the tokens.
        renderers: By seat.
        seats: By name.
        decode: How tokens are drawn where an ask does not say.
        limits: Budgets and deadlines.
        seed: The run's; every seed here is a hash of it.
        exact: Sample in waves, so that a repeated or resumed job gives the same groups.
        emit: Takes progress and warnings.
        probe: Writes the columns of probes that plans read between rounds.
    """

    def __init__(  # noqa: PLR0913  what a run is made of, each once
        self,
        *,
        engine: Engine,
        renderers: Mapping[str, Chat],
        seats: Mapping[str, Seat],
        decode: Decode,
        limits: Limits,
        seed: int,
        exact: bool,
        emit: Emit | None = None,
        probe: ProbeStage | None = None,
    ) -> None:
        self.seating = Seating(seats, renderers)
        self.limits = limits
        self._engine = engine
        self._decode = decode
        self._seed = seed
        self._exact = exact
        self._emit: Emit = emit or _ignore
        self._probe = probe

    def rollout(
        self,
        job: Job,
        *,
        unfinished: Sequence[Group] = (),
        on_wave: OnWave | None = None,
    ) -> list[Group]:
        """The groups of a job, in the order they were drawn, graded.

        Groups that ``job.keep`` refused are among them, marked; as many tasks were drawn as there
        are groups.

        Args:
            job: What to sample.
            unfinished: Groups of this job that an earlier call stored.
            on_wave: Exact mode: given all groups so far between waves, to store them.

        Raises:
            ConfigError: A plan, a seat, an environment or a source cannot mean what was written.
            DataError: Tasks or reward rows that cannot be used.
            EngineError: The engine failed as a whole; its own error is the cause.
            DeadlineError: The engine stayed silent for ``limits.episode_s``.
        """
        if on_wave is not None and not self._exact:
            on_wave = None  # a stream has no moment at which nothing is under way
        job.check_reads(can_probe=self._probe is not None)
        return run_sync(lambda: _Rollout(self, job, unfinished, on_wave).run())

    def grade(
        self,
        groups: Sequence[Group],
        *,
        source: Source,
        verifiers: Mapping[str, Verifier] | None = None,
    ) -> list[Group]:
        """The groups with every reward row that is missing."""
        return grade(groups, source.verifiers, verifier_s=self.limits.verifier_s, always=verifiers)

    def _sampler(self, *, spent: int, between: Callable[[], None] | None) -> Sampler:
        if self._exact:
            limits = self.limits
            return Waves(
                self._engine,
                wait_s=limits.episode_s,
                spent=spent,
                between=between,
                stuck_s=limits.episode_s + 10 * (limits.env_s + limits.verifier_s),
            )
        return Stream(self._engine, wait_s=self.limits.episode_s, spent=spent)


def _ignore(event: Event, /) -> None:
    """Take an event and do nothing."""


class _Rollout:
    """One call of ``Runner.rollout``."""

    def __init__(
        self, runner: Runner, job: Job, unfinished: Sequence[Group], on_wave: OnWave | None
    ) -> None:
        self.runner, self.job, self.on_wave = runner, job, on_wave
        self.stored = {g.key: g for g in unfinished}
        self.done: list[Group] = []
        self.growing: list[Growing] = []

    async def run(self) -> list[Group]:
        runner = self.runner
        sampler = runner._sampler(
            spent=sum(map(_num_sampled, self.stored.values())),
            between=self._store if self.on_wave is not None else None,
        )
        stage = Stage(
            seating=runner.seating,
            sampler=sampler,
            decode=runner._decode,
            limits=runner.limits,
            seed=runner._seed,
            envs=self.job.envs,
        )
        crew = Crew(
            job=self.job,
            stage=stage,
            capabilities=runner._engine.capabilities,
            probe=runner._probe,
            slots=asyncio.Semaphore(THREADS),
            tally=Tally(lambda done, known: self._progress(done, known, sampler)),
        )
        try:
            await self._draw_until_kept(crew)
        finally:
            await sampler.close()
        self._warn()
        return self.done

    async def _draw_until_kept(self, crew: Crew) -> None:
        keep, missing, attempt = self.job.keep, self.job.num_groups, 0
        self.attempts = 0
        while missing:
            groups = await self._grow(crew, missing, attempt)
            refused = [keep is not None and not keep(group, self.job.state) for group in groups]
            self.done += [replace(g, refused=r) for g, r in zip(groups, refused, strict=True)]
            self.growing = []
            attempt += 1
            missing = sum(refused)
            if keep is None or attempt > keep.max_redraws or self._spent(crew):
                break
        self.attempts = attempt
        if self.stored:
            raise CheckpointError(
                f"unfinished groups {sorted(self.stored)} do not belong to step {self.job.step} of "
                f"phase {self.job.phase} with {self.job.num_groups} groups. Start the step afresh "
                "by deleting the unfinished groups."
            )

    async def _grow(self, crew: Crew, num: int, attempt: int) -> list[Group]:
        first = len(self.done)
        tasks = draw_tasks(self.job, num, seed=self.runner._seed, drawn=first, attempt=attempt)
        for number, task in enumerate(tasks, start=first):
            key: Key = (self.job.phase, self.job.step, number)
            group = begin(key, task, self.runner.seating, self.stored.pop(key, None))
            self.growing.append(Growing.of(crew, group))
        crew.stage.sampler.enter(sum(not g.group.finished for g in self.growing))
        return await together([g.run() for g in self.growing])

    def _spent(self, crew: Crew) -> bool:
        """Whether the budget forbids redraws; those an earlier process began go on."""
        limit = self.runner.limits.sampled_tokens
        begun = any(key[2] >= len(self.done) for key in self.stored)
        return bool(limit) and crew.stage.sampler.spent >= limit and not begun

    def _store(self) -> None:
        if self.on_wave is not None:
            later = [self.stored[key] for key in sorted(self.stored)]
            self.on_wave([*self.done, *(g.snapshot() for g in self.growing), *later])

    # --- what is told -------------------------------------------------------------------------

    def _progress(self, done: int, known: int, sampler: Sampler) -> None:
        self.runner._emit(
            Progress(stage="rollout", done=done, total=known, sampled_tokens=sampler.spent)
        )

    def _warn(self) -> None:
        for text in (*_failures(self.done), *self._nothing_kept()):
            self.runner._emit(Warned(text=text))

    def _nothing_kept(self) -> list[str]:
        if not self.done or not all(g.refused for g in self.done):
            return []
        return [
            f"{type(self.job.keep).__name__} refused every group ({len(self.done)}, in "
            f"{self.attempts} attempts a place), so this step has nothing to learn from. "
            f"{_reward_range(self.done)} Use easier or harder tasks, or larger groups."
        ]


def _num_sampled(group: Group) -> int:
    sampled = (s for s in group.segments if s.origin is Origin.SAMPLED)
    return sum(int(np.isfinite(s.rollout_logprobs).sum()) for s in sampled)


def _failures(groups: Sequence[Group]) -> list[str]:
    """One text a kind of failure, with the first note."""
    found: dict[str, str] = {}
    for group in groups:
        for episode in group.episodes:
            if episode.fault not in (Fault.NONE, Fault.POLICY):
                text = f"an episode failed, fault of the {episode.fault}: {episode.note}"
                found.setdefault(episode.fault, text)
        for row in group.rewards:
            if row.verdict in (Verdict.UNSCORABLE, Verdict.TIMEOUT):
                text = f"verifier {row.verifier!r} could not grade ({row.verdict}): {row.note}"
                found.setdefault(f"{row.verifier} {row.verdict}", text)
    return list(found.values())


def _reward_range(groups: Sequence[Group]) -> str:
    totals = np.concatenate([g.totals() for g in groups])
    known = totals[np.isfinite(totals)]
    if not len(known):
        return "No episode has a reward."
    return f"Their rewards lie in [{known.min():g}, {known.max():g}]."
