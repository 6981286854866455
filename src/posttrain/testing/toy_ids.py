"""Token ids without a real tokenizer: id n is a word of its own, and a chat template around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from typing_extensions import override

from posttrain.data.chat import Renderer
from posttrain.data.sources import Rows
from posttrain.parts.credit import RewardItself
from posttrain.parts.plans import FixedGroup
from posttrain.parts.terms import PolicyGradient
from posttrain.rollout.runner import Job, Runner
from posttrain.rollout.scripted import ScriptedEngine
from posttrain.testing.toy import word_tokenizer
from posttrain.trainers.batch import Row, build_rows
from posttrain.trainers.stages import credit_stage
from posttrain.types.ask import Decode
from posttrain.types.engine import SampleRequest
from posttrain.types.env import Env, EnvFactory, Step
from posttrain.types.episode import Episode, Group, RewardRow, Scope, Segment
from posttrain.types.message import Message, Task
from posttrain.types.models import Seat
from posttrain.types.run import Limits

HEADERS = ("<user>", "<assistant>", "<tool>", "<system>", "<end>")
PROMPT = "<user>"
"""A prompt of one token."""


def word(token: int) -> str:
    """The text of an id; no word is a part of another."""
    return f"x{token}w{token % 10}"


def words(ids: Iterable[int]) -> str:
    """The text of several ids."""
    return " ".join(word(i) for i in ids)


def id_renderer(
    known: Iterable[int],
    *,
    ends: Sequence[int] = (),
    pad: int | None = None,
    special: Iterable[int] = (),
    reasoning: tuple[int, int] | None = None,
) -> Renderer:
    """A renderer whose tokenizer knows these ids; turns end with the first of ``ends``.

    Without ``ends`` turns end with a marker that is none of the ids.
    """
    highest = max((*known, *ends, *((pad,) if pad is not None else ()), *special, 1))
    names = [*map(word, range(highest + 1)), *HEADERS]
    end = word(ends[0]) if ends else "<end>"
    template = (
        "{% for m in messages %}<{{ m.role }}> {{ m.content }} " + end + " {% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    tokenizer = word_tokenizer(
        {name: i for i, name in enumerate(names)},
        template=template,
        markers=(*HEADERS, *map(word, (*ends, *special))),
        eos=end,
        pad=None if pad is None else word(pad),
    )
    tags = ("<think>", "</think>") if reasoning is None else tuple(map(word, reasoning))
    return Renderer(tokenizer, stop_ids=tuple(ends[1:]), reasoning=(tags[0], tags[1]))


def training_rows(segments: Sequence[Segment]) -> list[Row]:
    """Rows of one episode over these segments, rewarded with 1, for a policy term."""
    episode = Episode(episode_id="0-0-0/0", segments=tuple(range(len(segments))))
    group = Group(
        key=(0, 0, 0),
        task=Task(id="case", prompt="-"),
        segments=tuple(segments),
        episodes=(episode,),
    )
    return rows_of([group])


def rows_of(groups: Sequence[Group]) -> list[Row]:
    """Rows of groups for a policy term, credited with their rewards, or 1 where there are none."""
    rewarded = [g if g.rewards else g.add(rewards=_ones(g)) for g in groups]
    credited = credit_stage(rewarded, RewardItself(), {})
    return build_rows(credited, [PolicyGradient()], model="policy")


def _ones(group: Group) -> list[RewardRow]:
    return [RewardRow(Scope.EPISODE, e, "reward", 1.0) for e in range(len(group.episodes))]


@dataclass(frozen=True)
class ToolRounds(EnvFactory):
    """Answers with a tool message after each of the first turns of chosen tasks."""

    rounds: Mapping[str, int]
    """Tool rounds by task id; other tasks end with their first turn."""
    answer: str = "<tool>"

    @override
    def __call__(self, task: Task) -> Env:
        """A fresh environment."""
        return _ToolRounds(self.rounds.get(task.id, 0), self.answer)


class _ToolRounds:
    def __init__(self, rounds: int, answer: str) -> None:
        self._left, self._answer = rounds, answer

    async def start(self, rng: np.random.Generator) -> Step:
        del rng
        return Step()

    async def step(self, action: Message) -> Step:
        del action
        await asyncio.sleep(0)
        if not self._left:
            return Step(reward=1.0, terminated=True)
        self._left -= 1
        return Step(messages=(Message("tool", self._answer),))

    async def close(self) -> None:
        """Nothing is held."""


def sample(
    renderer: Renderer,
    reply: Callable[[SampleRequest], Sequence[int]],
    *,
    prompts: Sequence[str] = (PROMPT,),
    samples: int = 1,
    env: EnvFactory | None = None,
    decode: Decode | None = None,
) -> list[Group]:
    """Groups that a run would sample where the engine draws what ``reply`` says.

    Prompts are user messages where an environment answers, plain strings otherwise; a task's id is
    its place.
    """
    rows = tuple({"prompt": text, "id": str(i)} for i, text in enumerate(prompts))
    source = Rows(rows, shuffle=None, env=env, chat=env is not None)
    engine = ScriptedEngine(reply=reply, decode=lambda ids: renderer.decode(ids)[0])
    runner = Runner(
        engine=engine,
        renderers={"policy": renderer},
        seats={"policy": Seat()},
        decode=decode or Decode(max_tokens=1 << 12),
        limits=Limits(),
        seed=0,
        exact=True,
    )
    drawn = {"draws": pa.table({"count": pa.array([0], pa.int64())})}
    plan = FixedGroup(size=samples)
    job = Job(phase=0, step=0, num_groups=len(rows), source=source, plan=plan, state=drawn)
    return runner.rollout(job)


def sampled_segments(group: Group) -> list[Segment]:
    """Segments the policy drew, in order."""
    return [s for s in group.segments if s.trains]
