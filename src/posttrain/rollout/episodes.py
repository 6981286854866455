"""One episode: a seat speaks, the environment answers, until one of them or a limit stops it.

An interrupted episode is played again from its start with the samples it had, so that it reaches
the same place by the same way; only a new turn asks the engine. Seeds make the environment the
same again as far as it can be.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from posttrain.errors import EnvError
from posttrain.rollout.contexts import Sight
from posttrain.rollout.drafts import Draft
from posttrain.rollout.guard import GuardedEnv
from posttrain.rollout.prompts import Seating
from posttrain.rollout.restarts import Resumed, finished_turn, resume_at
from posttrain.rollout.seeds import turn_seed
from posttrain.rollout.tokens import Speaker, bad_logprob, given_segment, sampled_segment
from posttrain.rollout.waves import Sampler
from posttrain.types.ask import Ask, Decode
from posttrain.types.engine import Sample, SampleRequest
from posttrain.types.env import EnvFactory, Step
from posttrain.types.episode import Fault, Origin, Piece, RewardRow, Scope, Span, Stop, Verdict
from posttrain.types.message import Message
from posttrain.types.run import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What all episodes of a rollout share."""

    seating: Seating
    sampler: Sampler
    decode: Decode
    limits: Limits
    seed: int
    """The run's."""
    envs: Mapping[str, EnvFactory]
    """By task's ``env``; the empty name is the environment of one turn."""


@dataclass(slots=True)
class Play:
    """The playing of one draft."""

    stage: Stage
    ask: Ask
    draft: Draft
    samples: dict[int, Sample] = field(default_factory=dict)
    """Samples by turn that an interrupted play of this episode had."""
    seat: str = ""
    context: tuple[Span, ...] = ()
    turn: int = 0
    spoken: list[Span] = field(default_factory=list)
    """What was said in this turn so far."""
    turn_is_over: bool = False
    rewards: list[float] = field(default_factory=list)
    """What the environment gave for the turns so far."""
    began: float = field(default_factory=time.monotonic)
    queued_s: float = 0.0

    @property
    def sight(self) -> Sight:
        """What lays out contexts in the draft."""
        return Sight(self.draft, self.stage.seating)

    async def run(self) -> Draft:
        """Play to the end; what fails outside the policy ends the episode, not the run.

        Raises:
            ConfigError: the ask, a seat or an environment cannot mean what was written.
            EngineError: the engine failed as a whole.
        """
        task = self.draft.base.task
        env = GuardedEnv(self.stage.envs[task.env], task, seconds=self.stage.limits.env_s)
        try:
            await self._open(env)
            while not self.draft.ended:
                await self._speak()
                if not self.draft.ended:
                    await self._answer(env)
        except EnvError as error:
            self.draft.end(Stop.FAILED, Fault.ENVIRONMENT, str(error))
        finally:
            await self._close(env)
        self._settle()
        return self.draft

    async def _close(self, env: GuardedEnv) -> None:
        try:
            await env.close()
        except EnvError as error:
            head = self.draft.head
            self.draft.head = replace(head, note="; ".join(filter(None, (head.note, str(error)))))

    # --- how it begins ------------------------------------------------------------------------

    async def _open(self, env: GuardedEnv) -> None:
        if self.ask.at is not None:
            self._take_up(await resume_at(self.draft, self.ask.at, env, self.stage.seating))
            if self.turn_is_over:
                await self._answer(env)
            return
        step = await env.start(self.draft.head.seed)
        self.seat = self._speaker(step)
        if self.ask.context is not None:
            self.draft.path = self.sight.prompt_segments(self.ask.context)
            self._look_at(self.ask.context, step.messages)
        elif step.shows is not None:
            self.draft.path = [0]
            self._look_at(self.sight.along_path(step.shows), step.messages)
        else:
            self._see_task(step.messages)
        self._remember(env)

    def _see_task(self, opening: tuple[Message, ...]) -> None:
        """The task's prompt: the group's first segment, or a rendering of its own."""
        seating, first = self.stage.seating, self.draft.segment(0)
        if not opening and seating.shares_prompt(self.seat, first.seat):
            self.draft.path, self.context = [0], (Span(0, first.num_tokens),)
            return
        prompt = seating.task_prompt(self.draft.base.task, self.seat, opening)
        self.draft.path = []
        self.context = (self.draft.add(prompt),)

    def _take_up(self, at: Resumed) -> None:
        self.seat = at.seat if self.ask.seat == "policy" else self.ask.seat
        self.turn, self.context, self.spoken = at.turn, at.context, list(at.spoken)
        self.rewards, self.turn_is_over = list(at.rewards), at.turn_is_over
        if at.turn_is_over and not self.draft.base.task.env:
            raise finished_turn(self.ask, self.draft.base)
        self.sight.check_tokenizer(self.seat, self.context)

    # --- one turn -----------------------------------------------------------------------------

    async def _speak(self) -> None:
        """Give or draw the rest of this turn."""
        given, self.ask = self.ask.given, replace(self.ask, given=None)
        if given is not None:
            decode = self.ask.decode or self.stage.decode
            self._say(self.draft.add(given_segment(given, self._who(decode))))
            if given.ends_turn:
                return
        decode = self._decode()
        if decode is None:
            return
        sample = await self._sample(decode)
        bad = bad_logprob(sample, num_forced=len(decode.forced))
        if sample.stop is Stop.FAILED or bad:
            self.draft.end(Stop.FAILED, Fault.ENGINE, bad or "the engine failed on this request")
            return
        stop = self._reason(sample.stop, decode)
        self._say(self.draft.add(sampled_segment(sample, stop, self._who(decode))))
        if stop is Stop.ABORTED:
            self.draft.end(stop, Fault.SCHEDULER, "the engine gave the request back unfinished")
        elif stop.truncated:
            self.draft.end(stop)

    def _say(self, span: Span) -> None:
        self.spoken.append(span)
        self.context = (*self.context, span)

    def _who(self, decode: Decode) -> Speaker:
        return Speaker(
            seat=self.seat,
            model=self.stage.seating.seat(self.seat).model,
            chat=self.stage.seating.chat(self.seat),
            context=self.context,
            turn=self.turn,
            ask=self.ask,
            decode=decode,
        )

    def _decode(self) -> Decode | None:
        """How this turn is drawn, within the limits; None if a limit ends the episode here."""
        limits, decode = self.stage.limits, self.ask.decode or self.stage.decode
        spent_s = time.monotonic() - self.began - self.queued_s
        if spent_s > limits.episode_s and self.turn not in self.samples:
            note = f"{spent_s:.1f} s passed; Limits.episode_s is {limits.episode_s:g}"
            self.draft.end(Stop.DEADLINE, Fault.SCHEDULER, note)
            return None
        if not limits.max_context:
            return decode
        size = sum(s.tokens for s in self.context)
        room = limits.max_context - size
        if room < 1:
            note = f"the context has {size} tokens; Limits.max_context is {limits.max_context}"
            path = (self.draft.segment(s) for s in self.draft.path)
            spoke = any(s.origin is not Origin.OBSERVED for s in path)
            self.draft.end(Stop.MAX_CONTEXT, Fault.NONE if spoke else Fault.SCHEDULER, note)
            return None
        return replace(decode, max_tokens=min(decode.max_tokens, room))

    def _reason(self, stop: Stop, decode: Decode) -> Stop:
        """The engine's reason; a limit that only the context set is the context's."""
        asked = (self.ask.decode or self.stage.decode).max_tokens
        cut = stop is Stop.MAX_TOKENS and decode.max_tokens < asked
        return Stop.MAX_CONTEXT if cut else stop

    async def _sample(self, decode: Decode) -> Sample:
        if self.turn in self.samples:
            return self.samples.pop(self.turn)
        base, head = self.draft.base, self.draft.head
        chat = self.stage.seating.chat(self.seat)
        order = (*base.key, head.round, head.ask, head.member, self.turn)
        ends = tuple(dict.fromkeys((*chat.end_ids, *decode.stop_ids)))
        strings = tuple(dict.fromkeys((*decode.stop, *chat.end_strings)))
        request = SampleRequest(
            key=f"{head.episode_id}/{self.turn}",
            model=self.stage.seating.seat(self.seat).model,
            ids=self.draft.ids(self.context),
            decode=replace(decode, stop=strings),
            stop_ids=ends,
            seed=turn_seed(head.seed, self.turn),
        )
        drawn = await self.stage.sampler.draw(order, request)
        self.queued_s += drawn.queued_s
        return drawn.sample

    # --- the answer ---------------------------------------------------------------------------

    async def _answer(self, env: GuardedEnv) -> None:
        """Let the environment answer the turn, and see who speaks next and what they see."""
        chat = self.stage.seating.chat(self.seat)
        turn = self.draft.ids(self.spoken)
        step = await env.step(chat.message(turn))
        if step.reward is not None:
            self._reward(float(step.reward))
        last = step.terminated or self.turn + 1 >= self.stage.limits.max_turns
        self.seat, self.turn, self.spoken = self._speaker(step), self.turn + 1, []
        if not last and step.shows is not None:
            self._look_at(self.sight.along_path(step.shows), step.messages)
        elif not last or step.messages:
            self._observe(step.messages, turn)
        if last:
            self.draft.end(Stop.COMPLETED if step.terminated else Stop.MAX_TURNS)
        else:
            self._remember(env)

    def _reward(self, value: float) -> None:
        """Note a turn's reward, once for the segment that ends the turn."""
        self.rewards.append(value)
        segment = self.spoken[-1].segment
        if segment >= len(self.draft.base.segments):
            self.draft.turn_rewards.append((segment, value))

    def _speaker(self, step: Step) -> str:
        """The seat that speaks next: ``policy`` stands for the seat that was asked."""
        return self.ask.seat if step.seat == "policy" else step.seat

    def _observe(self, messages: Sequence[Message], turn: np.ndarray) -> None:
        """Put the messages after the turn that was just said."""
        self.sight.check_tokenizer(self.seat, self.context)
        chat = self.stage.seating.chat(self.seat)
        ids = chat.bridge(tuple(messages), closed=chat.closes(turn), after=turn)
        role = messages[-1].role if messages else ""
        span = self.sight.add(ids, seat=self.seat, context=self.context, role=role, turn=self.turn)
        self.context = (*self.context, span)

    def _look_at(self, pieces: Sequence[Piece], messages: Sequence[Message]) -> None:
        """See a context of its own instead of everything so far."""
        self.context = self.sight.lay(self.seat, pieces, messages, turn=self.turn)

    # --- what stays ---------------------------------------------------------------------------

    def _remember(self, env: GuardedEnv) -> None:
        state = env.save()
        if state is not None:
            self.draft.env_states[self.draft.path[-1]] = state

    def _settle(self) -> None:
        """The episode's reward from its environment, if it gives any."""
        draft = self.draft
        if draft.head.fault.infrastructure or not draft.base.task.env:
            return
        if self.rewards:
            total = float(sum(self.rewards))
            draft.total = RewardRow(Scope.EPISODE, 0, "env", total, verifier="env")
        elif draft.head.stop.truncated:
            draft.total = RewardRow(
                Scope.EPISODE,
                0,
                "env",
                0.0,
                verdict=Verdict.NO_ANSWER,
                verifier="env",
                note=f"stopped ({draft.head.stop}) before the environment gave a reward",
            )
