"""One group: its plan asks, the asks are played, what the plan reads is written, and again.

Groups know nothing of one another. A plan is asked twice each time, and must answer alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from posttrain.errors import ConfigError
from posttrain.rollout.drafts import UNFINISHED, Draft, Place, journal, merge, reopen
from posttrain.rollout.episodes import Play, Stage
from posttrain.rollout.grading import grade_group
from posttrain.rollout.jobs import Job
from posttrain.rollout.seeds import episode_seed
from posttrain.rollout.waiting import together
from posttrain.types.ask import Ask
from posttrain.types.engine import Capability
from posttrain.types.episode import Episode, Fault, Group, Stop
from posttrain.types.method import Verifier
from posttrain.types.probe import Probe

MAX_ROUNDS = 1000
"""Rounds after which a plan that still asks is refused."""

ProbeStage: TypeAlias = Callable[[Sequence[Group], Sequence[Probe]], list[Group]]
"""Writes probes' columns on groups."""


@dataclass(slots=True)
class Tally:
    """Episodes of a rollout so far."""

    report: Callable[[int, int], None]
    """Takes episodes done and known."""
    done: int = 0
    known: int = 0

    def add(self, *, known: int = 0, done: int = 0) -> None:
        """Count and report."""
        self.known += known
        self.done += done
        if done:
            self.report(self.done, self.known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """What all groups of a rollout share."""

    job: Job
    stage: Stage
    capabilities: frozenset[Capability]
    probe: ProbeStage | None
    slots: asyncio.Semaphore
    """Bounds the verifiers that run at once."""
    tally: Tally


@dataclass(slots=True)
class Growing:
    """A group in progress."""

    crew: Crew
    group: Group
    """As its round began."""
    drafts: list[Draft] = field(default_factory=list)
    """Of the round under way."""
    stored: dict[Place, Draft] = field(default_factory=dict)
    """Of that round, from an earlier process."""
    playing: int = 0

    @classmethod
    def of(cls, crew: Crew, group: Group) -> Growing:
        """A group that is new, or goes on, or is finished already."""
        if group.finished:
            return cls(crew, group)
        base, stored = reopen(group)
        return cls(crew, base, stored=stored)

    def snapshot(self) -> Group:
        """The group with what its round has so far."""
        return merge(self.group, self.drafts)

    async def run(self) -> Group:
        """Grow until the plan asks for nothing."""
        if self.group.finished:
            return self.group
        sampler, limits = self.crew.stage.sampler, self.crew.stage.limits
        out_of_budget = False
        while not out_of_budget:
            asks = self._asks()
            if not asks:
                break
            spent = limits.sampled_tokens and sampler.spent >= limits.sampled_tokens
            out_of_budget = bool(spent) and not self.stored
            await self._round(asks, out_of_budget=out_of_budget)
        self.group = replace(await self._grade(lambda _: True), finished=True)
        sampler.leave()
        return self.group

    def _asks(self) -> tuple[Ask, ...]:
        plan, state = self.crew.job.plan, self.crew.job.state
        name = type(plan).__name__
        asks = tuple(plan(self.group.task, self.group, state))
        if asks != tuple(plan(self.group.task, self.group, state)):
            raise ConfigError(
                f"plan {name} answers otherwise when it is asked again about group "
                f"{self.group.group_id} in round {self.group.round}. A plan may depend on the "
                "task, the group and the state alone: no randomness, no clock, no count of calls."
            )
        if asks and self.group.round >= MAX_ROUNDS:
            raise ConfigError(
                f"plan {name} still asks in round {MAX_ROUNDS} of group {self.group.group_id}. "
                "A plan must end by asking for nothing; look at Group.round."
            )
        for ask in asks:
            self._check(ask)
        return asks

    def _check(self, ask: Ask) -> None:
        self.crew.stage.seating.seat(ask.seat)
        decode = ask.decode or self.crew.stage.decode
        needs: dict[Capability, object] = {
            "mixture": decode.mixture,
            "stop_when": decode.stop_when,
        }
        for capability, wanted in needs.items():
            if wanted is not None and capability not in self.crew.capabilities:
                raise ConfigError(
                    f"Decode.{capability} needs an engine that has the capability {capability!r}; "
                    f"this one has {sorted(self.crew.capabilities)}."
                )

    # --- one round ----------------------------------------------------------------------------

    async def _round(self, asks: Sequence[Ask], *, out_of_budget: bool) -> None:
        asked = [(a, ask, m) for a, ask in enumerate(asks) for m in range(ask.n)]
        stored, self.stored = self.stored, {}
        plays = []
        for a, ask, m in asked:
            found = stored.get((a, m))
            if found is not None and found.ended:
                self.drafts.append(found)
                continue
            draft = self._draft(a, ask, m)
            self.drafts.append(draft)
            samples = {} if found is None else journal(found)
            plays.append(Play(self.crew.stage, ask, draft, samples))
        self.crew.tally.add(known=len(asked), done=len(asked) - len(plays))
        if out_of_budget:
            for play in plays:
                play.draft.end(Stop.BUDGET, Fault.SCHEDULER, "Limits.sampled_tokens is used up")
        elif plays:
            self.playing = len(plays)
            self.crew.stage.sampler.fork(len(plays))
            await together([self._play(play) for play in plays])
        self.group, self.drafts = merge(self.group, self.drafts), []
        await self._write_what_the_plan_reads()
        self.group = replace(self.group, round=self.group.round + 1)

    def _draft(self, a: int, ask: Ask, m: int) -> Draft:
        group = self.group
        seed = episode_seed(self.crew.stage.seed, group.key, round_=group.round, ask=a, member=m)
        head = Episode(
            episode_id=f"{group.group_id}/{group.round}.{a}.{m}",
            segments=(0,),
            seed=seed,
            round=group.round,
            ask=a,
            member=m,
            tag=ask.tag,
            stop=Stop.ABORTED,
            fault=Fault.SCHEDULER,
            note=UNFINISHED,
            start=ask.at,
        )
        return Draft(group, head)

    async def _play(self, play: Play) -> None:
        await play.run()
        self.crew.tally.add(done=1)
        self.playing -= 1
        if self.playing:  # the last one hands its turn back to the group
            self.crew.stage.sampler.leave()

    # --- what is read between rounds ----------------------------------------------------------

    async def _write_what_the_plan_reads(self) -> None:
        reads = self.crew.job.plan.reads
        if reads:
            self.group = await self._grade(lambda name: "*" in reads or name in reads)
        probes = [p for p in self.crew.job.probes if p.name in reads]
        if probes and self.crew.probe is not None:
            self.group = self.crew.probe([self.group], probes)[0]

    async def _grade(self, chosen: Callable[[str], bool]) -> Group:
        graders: dict[str, Verifier] = {
            name: v for name, v in self.crew.job.graders(self.group.task).items() if chosen(name)
        }
        limits = self.crew.stage.limits
        return await grade_group(
            self.group, graders, verifier_s=limits.verifier_s, slots=self.crew.slots
        )
