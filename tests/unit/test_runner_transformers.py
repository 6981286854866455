"""Rollouts on the transformers engine: interrupted anywhere, they go on bit for bit."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from rollout_kit import Fixed, Listed, ask_task, job, runner, same_groups
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.rollout.transformers import TransformersEngine
from posttrain.testing.byte_chat import VOCABULARY
from posttrain.types.ask import Ask, Decode
from posttrain.types.engine import ScoreItem
from posttrain.types.env import EnvFactory, Step
from posttrain.types.episode import Node
from posttrain.types.message import Message
from posttrain.types.probe import Logprobs


def engine() -> TransformersEngine:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.1, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return TransformersEngine({"policy": LlamaForCausalLM(config)}, compute="bfloat16")


@dataclass(frozen=True)
class Unpunctual(EnvFactory):
    """Two or three turns; answers when it likes."""

    deterministic: bool = True

    def __call__(self, task):
        return _Unpunctual()


class _Unpunctual:
    def __init__(self):
        self.turns = 0

    async def start(self, rng):
        self.last = 2 + int(rng.integers(2))
        return Step()

    async def step(self, action):
        await asyncio.sleep(random.random() * 0.01)
        self.turns += 1
        over = self.turns == self.last
        return Step(messages=(Message("user", "go on"),), reward=1.0, terminated=over)

    async def close(self):
        pass


class Tree(Fixed):
    """Two episodes, then branches of the second from within its second turn."""

    def __call__(self, task, group, state):
        if group.round == 0:
            return (Ask(n=2),)
        if group.round == 1 and task.env and len(group.episodes[1].segments) > 3:
            node = Node(1, group.episodes[1].segments[3], 1)
            return (Ask(at=node, n=2), Ask(decode=Decode(max_tokens=3, top_p=0.8)))
        return ()


TASKS = tuple(ask_task(f"t{i}", f"task {i}" * (i + 1), env="w" if i % 2 else "") for i in range(4))
SOURCE = Listed(TASKS, worlds={"w": Unpunctual()})
JOB = job(SOURCE, Tree(), 4)
STOPS = {"decode": Decode(max_tokens=6, stop_ids=tuple(range(64)))}


def test_killed_after_any_wave_and_resumed_it_is_bit_identical():
    stored = []
    expected = runner(engine(), **STOPS).rollout(JOB, on_wave=lambda g: stored.append(list(g)))
    assert len(stored) >= 3
    drawn = [s for g in expected for s in g.segments if s.action_mask.any()]
    assert len({s.text for s in drawn}) > 6
    assert max(e.round for g in expected for e in g.episodes) == 1
    for groups in stored:
        same_groups(runner(engine(), **STOPS).rollout(JOB, unfinished=groups), expected)


def test_a_stream_gives_the_same_rewards_and_honest_log_probs():
    talker = engine()
    groups = runner(talker, exact=False, **STOPS).rollout(JOB)
    checked = 0
    for group in groups:
        assert group.finished
        for segment in group.segments:
            if segment.action_mask.any() and "kept_logmass" not in segment.columns:
                context = group.context_ids(segment.context)
                item = ScoreItem(
                    model="policy", context=context, target=segment.ids, want=Logprobs()
                )
                (scored,) = talker.score([item])
                np.testing.assert_allclose(segment.rollout_logprobs, scored, atol=0.05)
                checked += 1
    assert checked >= 8


def test_failed_numbers_in_the_model_stop_the_rollout():
    broken = engine()
    with torch.no_grad():
        next(iter(broken._models.values())).model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(ArithmeticError, match="NaN"):
        runner(broken, **STOPS).rollout(JOB)
