"""The runner with a real tokenizer and chat template."""

from __future__ import annotations

import numpy as np
from rollout_kit import Counting, Fixed, Listed, Rounds, ask_task, job, runner

from posttrain.data.chat import Renderer
from posttrain.rollout.scripted import ScriptedEngine
from posttrain.testing.toy import byte_tokenizer
from posttrain.types.ask import Ask, Decode, Given
from posttrain.types.episode import Node, Origin, Said, Stop

RENDERER = Renderer(byte_tokenizer())
TOKENIZER = RENDERER.tokenizer
SOURCE = Listed((ask_task("t", "go", env="w"),), graders={}, worlds={"w": Counting(turns=2)})


def engine(*answers: str) -> ScriptedEngine:
    said = iter(answers)
    return ScriptedEngine(
        reply=lambda _: next(said),
        encode=lambda text: TOKENIZER.encode(text, add_special_tokens=False),
        decode=lambda ids: RENDERER.decode(ids)[0],
    )


def rolled(talker, plan, source=SOURCE, **more):
    settings = {"renderers": {"policy": RENDERER}, "decode": Decode(max_tokens=40)}
    (group,) = runner(talker, **{**settings, **more}).rollout(job(source, plan, 1))
    return group


def test_a_conversation_reads_as_its_template_writes_it():
    group = rolled(engine("first é", "second"), Fixed(1))
    whole = group.context_ids([*group.segments[3].context])
    text = TOKENIZER.decode(np.concatenate([whole, group.segments[3].ids]).tolist())
    assert text == (
        "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\nfirst é<|im_end|>\n"
        "<|im_start|>user\n1:first é<|im_end|>\n<|im_start|>assistant\nsecond<|im_end|>"
    )
    assert group.text(1) == "first é"
    assert group.cut(1, 6) == 6
    assert group.template_hash == RENDERER.template_hash != ""


def test_a_turn_cut_by_a_stop_string_is_closed_untrained():
    group = rolled(
        engine("look <go", "second"), Fixed(1), decode=Decode(max_tokens=40, stop=("<",))
    )
    first, after = group.segments[1:3]
    assert (first.text, first.stop) == ("look <", Stop.STOP_STRING)
    assert TOKENIZER.decode(after.ids.tolist()).startswith("<|im_end|>\n<|im_start|>user\n1:look <")
    assert not after.action_mask.any()


def test_prefixes_restarts_and_own_prompts_meet_without_a_seam():
    prompt = (Said("system", "Hint."), Said("user", "go"))
    plan = Rounds(
        (
            (Ask(context=prompt, given=Given(text="be", ends_turn=False)),),
            (Ask(at=Node(0, 3, 2)),),
        )
    )
    single = Listed((ask_task("t", "go"),), graders={})
    group = rolled(engine("ginning", "lly"), plan, single)
    origins = [group.segments[s].origin for s in group.episodes[1].segments]
    assert origins == [Origin.OBSERVED, Origin.GIVEN, Origin.SAMPLED, Origin.SAMPLED]
    assert [group.episode_text(e) for e in (0, 1)] == ["beginning", "begilly"]
    last = group.segments[4]
    ids = np.concatenate([group.context_ids(last.context), last.ids])
    assert TOKENIZER.decode(ids.tolist()) == (
        "<|im_start|>system\nHint.<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n"
        "<|im_start|>assistant\nbegilly<|im_end|>"
    )
