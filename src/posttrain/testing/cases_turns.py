"""Token cases on turns: what was drawn stays, what was seen is its context, the rest is masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from tokenizers import decoders

from posttrain.data.chat import Renderer
from posttrain.data.conversations import SeenTurn, record_turns
from posttrain.objectives.returns import place_on_last
from posttrain.rewards.functions import RewardFunction
from posttrain.rewards.said import completion_of
from posttrain.testing.case_file import Facts, Given, NotYetError
from posttrain.testing.toy import byte_tokenizer, word_tokenizer
from posttrain.testing.toy_ids import (
    HEADERS,
    ToolRounds,
    id_renderer,
    rows_of,
    sample,
    sampled_segments,
    training_rows,
    word,
    words,
)
from posttrain.trainers.batch import Row
from posttrain.types.episode import Episode, Group, Segment
from posttrain.types.message import Message, Task

LOGPROB = -0.5
FOLLOWED_BY = {"next user turn": "user", "user turn": "user", "tool result": "tool",
               "tool output": "tool", "next tool result": "tool"}  # fmt: skip


def seen(prompt: Sequence[int], drawn: Sequence[int]) -> SeenTurn:
    """A turn with a known log-prob a token."""
    return SeenTurn(prompt=prompt, drawn=drawn, logprobs=[LOGPROB] * len(drawn))


def trained_ids(row: Row) -> list[int]:
    """Ids of a row that are trained."""
    return row.ids[row.loss_mask].tolist()


def row_facts(rows: Sequence[Row]) -> dict[str, Any]:
    """What training rows say of themselves."""
    masks = [row.loss_mask.astype(int).tolist() for row in rows]
    facts: dict[str, Any] = {
        "rows": len(rows),
        "trained_ids": [trained_ids(row) for row in rows],
        "loss_masks": masks,
        "trainable": sum(map(sum, masks)),
    }
    if len(rows) == 1:
        facts |= {
            "training_ids": rows[0].ids.tolist(),
            "ids": rows[0].ids.tolist(),
            "loss_mask": masks[0],
            "mask": masks[0],
            "length": rows[0].num_tokens,
            "attention_mask": [1] * rows[0].num_tokens,
        }
    return facts


def turns(given: Given, _expected: Given) -> Facts:
    """Turns of one episode as some engine saw them; a changed history opens a new row."""
    listed: list[SeenTurn] = []
    for number in range(1, 100):
        names = (f"turn{number}_prompt", f"turn{number}_prompt_after_template")
        name = next((n for n in names if n in given), None)
        if name is None:
            break
        prompt = [int(i) for i in given[name]]
        listed.append(seen(prompt, given.get(f"turn{number}_completion", [0])))
    found = record_turns(listed)
    rows = training_rows(found.segments)
    honest = _each_on_what_it_saw(rows, found.segments, listed)
    return row_facts(rows) | {"detected": found.breaks > 0, "silent_training": not honest}


def _each_on_what_it_saw(
    rows: Sequence[Row], segments: Sequence[Segment], listed: Sequence[SeenTurn]
) -> bool:
    """Whether every drawn segment stands in some row right behind the prompt it was drawn for."""
    drawn = [number for number, s in enumerate(segments) if s.trains]
    for number, turn in zip(drawn, listed, strict=True):
        row = next((r for r in rows if (r.segment == number).any()), None)
        if row is None:
            return False
        before = row.ids[: int(np.argmax(row.segment == number))]
        if not np.array_equal(before, np.asarray(turn.prompt)):
            return False
    return True


def retokenised(given: Given, _expected: Given) -> Facts:
    """A tool round where the text of the drawn ids would encode to other ids."""
    if "sampled_ids" in given:
        drawn = [int(i) for i in given["sampled_ids"]]
    else:
        drawn = list(range(10, 10 + int(given["sampled_len"])))
    given.get("sampled_len")
    given.get("reencoded_len")
    other = [int(i) for i in given.get("reencoded_ids", [3])]
    text = str(given.get("decoded", "x" * (len(drawn) + 1)))
    renderer = _ambiguous(drawn, other, text)
    end = renderer.end_ids[0]
    replies = iter([drawn, [end]])
    group = sample(renderer, lambda _: next(replies), env=ToolRounds({"0": 1}))[0]
    first = next(number for number, s in enumerate(group.segments) if s.trains)
    row = rows_of([group])[0]
    own = row.segment == first
    trained = row.ids[own & row.loss_mask].tolist()
    return {
        "training_ids": trained,
        "trained_ids": [trained],
        "ids": trained,
        "loss_mask": row.loss_mask[own].astype(int).tolist(),
        "len_ids": int(own.sum()),
        "len_logprobs": int(np.isfinite(row.columns["rollout_logprobs"][own]).sum()),
        "len_mask": int(row.loss_mask[own].sum()),
        "labels_len": int(own.sum()),
        "length": int(own.sum()),
    }


def _ambiguous(drawn: Sequence[int], other: Sequence[int], text: str) -> Renderer:
    """Drawn ids that spell ``text`` together, which alone would be encoded as one other id."""
    if len(text) < len(drawn) or len(set(drawn)) < len(drawn):
        text = "".join(chr(97 + i % 26) for i in range(len(drawn)))
    highest = max(*drawn, *other)
    last = len(drawn) - 1
    pieces = {token: text[i] if i < last else text[last:] for i, token in enumerate(drawn)}
    if len(other) == 1 and other[0] not in pieces:
        pieces[other[0]] = text
    vocabulary = {pieces.get(i, word(i)): i for i in range(highest + 1)}
    vocabulary |= {header: highest + 1 + place for place, header in enumerate(HEADERS)}
    template = (
        "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    tokenizer = word_tokenizer(vocabulary, template=template, markers=HEADERS, eos="<end>")
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    return Renderer(tokenizer)


def segments(given: Given, expected: Given) -> Facts:
    """Parts of one episode in order: numbers of tokens, or texts that are scored."""
    parts = [(str(role), size) for role, size in given["segments"]]
    if any(isinstance(size, str) for _, size in parts):
        return _scored_text(parts, given, expected)
    total = sum(size for _, size in parts)
    mask = [role in ("assistant", "policy") for role, size in parts for _ in range(size)]
    ids = list(range(1, total + 1))
    return row_facts(training_rows(_runs(ids, mask)))


def _runs(ids: Sequence[int], mask: Sequence[bool]) -> tuple[Segment, ...]:
    """Segments of an episode whose drawn tokens are those of the mask."""
    listed: list[SeenTurn] = []
    at = 0
    for drawn, run in groupby(mask):
        size = len(list(run))
        if drawn:
            listed.append(seen(ids[:at], ids[at : at + size]))
        at += size
    if not listed:
        raise NotYetError("a case in which the policy wrote nothing")
    return record_turns(listed).segments


def contains(completions: list[str], gold: str) -> list[float]:
    """1 where the gold answer stands in what the policy said."""
    return [float(str(gold) in text) for text in completions]


def _scored_text(parts: Sequence[tuple[str, Any]], given: Given, expected: Given) -> Facts:
    """What a reward function is given, what it says, and where the number lands."""
    renderer = Renderer(byte_tokenizer())
    encoded = [(role, renderer.chat.encode(str(text))) for role, text in parts]
    ids = [*renderer.chat.encode("?")]
    listed = []
    for role, piece in encoded:
        if role == "assistant":
            listed.append(seen(ids.copy(), piece))
        ids += piece
    recorded = record_turns(listed, renderer=renderer).segments
    episode = Episode(episode_id="e", segments=tuple(range(len(recorded))))
    task = Task(id="case", prompt="?", gold=given.get("gold"))
    group = Group(key=(0, 0, 0), task=task, segments=recorded, episodes=(episode,))
    graded = group.add(rewards=list(RewardFunction(contains)._rows(contains(
        [str(completion_of(task, group, 0))], str(task.gold)), [0])))  # fmt: skip
    row = rows_of([graded])[0]
    landed = place_on_last(torch.tensor([1.0]), torch.from_numpy(row.loss_mask).unsqueeze(0))[0]
    at = int(landed.nonzero()[0])
    last = int(np.flatnonzero(row.loss_mask)[-1])
    place = "last assistant token" if at == last and int(landed.sum()) == 1 else f"token {at}"
    total = graded.total(0)
    return {
        "text_scored": str(completion_of(task, group, 0)),
        "reward": total,
        "reward_position": place if "reward_position" in expected else None,
    }


def masked_by_tools(given: Given, _expected: Given) -> Facts:
    """A mask that says which tokens of a completion a tool wrote."""
    mask = [bool(m) for m in given["tool_mask"]]
    name = next((n for n in ("ids", "sampled_ids", "completion") if n in given), None)
    ids = [int(i) for i in given[name]] if name else list(range(1, len(mask) + 1))
    rows = training_rows(_runs([0, *ids], [False, *mask]))
    row = rows[0]
    found = row.loss_mask[1:].astype(int).tolist()
    found += [0] * (len(mask) - len(found))  # what a tool wrote last conditions nothing
    return {"loss_mask": found, "mask": found, "trainable": sum(found), "rows": len(rows)}


def appended(given: Given, _expected: Given) -> Facts:
    """A turn that did not end by itself, closed by the renderer before the next message."""
    drawn, end = [int(i) for i in given["sampled"]], int(given["library_appends"])
    _known_stop(given)
    renderer = id_renderer([*drawn, end], ends=(end,))
    prompt = renderer.prompt((Message("user", words(drawn[:1])),))
    tail = renderer.bridge((Message("user", words(drawn[:1])),), closed=False, after=drawn)
    following = [*prompt.tolist(), *drawn, *tail.tolist()]
    found = record_turns([seen(prompt.tolist(), drawn), seen(following, [end])])
    row = training_rows(found.segments)[0]
    window = slice(len(prompt), len(prompt) + len(drawn) + 1)
    mask = row.loss_mask[window].astype(int).tolist()
    return {
        "ids": row.ids[window].tolist(),
        "loss_mask": mask,
        "mask": mask,
        "trainable": sum(mask),
    }


def _known_stop(given: Given) -> None:
    stop = str(given.get("stop_reason", "stop string"))
    if stop not in ("stop string", "stop_string", "length", "max_tokens", "timeout", "abort"):
        raise NotYetError(f"unknown stop_reason {stop!r}")


def cut_reasoning(given: Given, _expected: Given) -> Facts:
    """A turn cut inside its reasoning, and the prompt of the turn after it."""
    begin, end = int(given["think_open"]), int(given["think_close"])
    drawn = [int(i) for i in given["turn1_completion"]]
    _known_stop(given)
    then = str(given.get("then", "next user turn"))
    if then not in FOLLOWED_BY:
        raise NotYetError(f"unknown then {then!r}")
    renderer = id_renderer([*drawn, begin, end], reasoning=(begin, end))
    prompt = [int(i) for i in given.get("turn1_prompt", [])] or renderer.prompt(
        (Message("user", "<tool>"),)
    ).tolist()
    message = Message(FOLLOWED_BY[then], "<tool>")
    tail = renderer.bridge((message,), closed=False, after=drawn).tolist()
    following = [*prompt, *drawn, *tail]
    found = record_turns([seen(prompt, drawn), seen(following, [renderer.end_ids[0]])])
    row = training_rows(found.segments)[0]
    added = row.loss_mask[len(prompt) + len(drawn) : len(following)]
    return {
        "open_block_in_next_prompt": _is_open(following, begin, end),
        "added_tokens_trained": bool(added.any()),
        "ids": following,
        "loss_mask": row.loss_mask[: len(following)].astype(int).tolist(),
    }


def _is_open(ids: Sequence[int], begin: int, end: int) -> bool:
    depth = 0
    for token in ids:
        depth = depth + 1 if token == begin else max(0, depth - 1) if token == end else depth
    return depth > 0


def resumed(given: Given, _expected: Given) -> Facts:
    """A completion that was interrupted: old tokens with their mask, then new ones."""
    old, new = [[int(i) for i in given[name]] for name in ("old_tokens", "new_tokens")]
    mask = [bool(m) for m in given.get("old_mask", [1] * len(old))] + [True] * len(new)
    rows = training_rows(_runs([0, *old, *new], [False, *mask]))
    ids = [row.ids[1:].tolist() for row in rows]
    masks = [row.loss_mask[1:].astype(int).tolist() for row in rows]
    return {
        "rows": len(rows),
        "ids": ids[0],
        "training_ids": ids[0],
        "trained_ids": [trained_ids(row) for row in rows],
        "loss_mask": masks[0],
        "mask": masks[0],
        "len_ids": len(ids[0]),
        "len_mask": len(masks[0]),
        "len_logprobs": len(rows[0].columns["rollout_logprobs"]) - 1,
        "length": len(ids[0]),
        "trainable": sum(masks[0]),
    }


def tool_rounds(given: Given, expected: Given) -> Facts:
    """A batch in which some rows go on after a tool: each from its own context."""
    chosen = [int(i) for i in given["rows_needing_tool_round"]]
    number = _batch_size(given, chosen)
    renderer = id_renderer(range(number + 1))
    end = renderer.end_ids[0]
    env = ToolRounds({str(i): 1 for i in chosen})
    prompts = [words([i]) for i in range(number)]
    groups = sample(renderer, lambda request: [*request.ids[1:2].tolist(), end],
                    prompts=prompts, env=env)  # fmt: skip
    sources = {i: _went_on_from(groups, i) for i in range(number)}
    continued = {i: source for i, source in sources.items() if source is not None}
    form = expected.get("continuation_source")
    listed = [continued[i] for i in sorted(continued)]
    return {
        "continuation_source": continued if isinstance(form, Mapping) else listed,
        "rows": number,
        "completions": sum(len(sampled_segments(g)) for g in groups),
    }


def _batch_size(given: Given, chosen: Sequence[int]) -> int:
    for name in ("prompts", "rows", "completions", "batch"):
        if name in given:
            value = given[name]
            return len(value) if isinstance(value, list) else int(value)
    return max(chosen, default=0) + 1


def _went_on_from(groups: Sequence[Group], row: int) -> int | None:
    """The row whose prompt stands in the context of this row's second turn."""
    drawn = sampled_segments(groups[row])
    if len(drawn) < 2:
        return None
    context = groups[row].context_ids(drawn[1].context).tolist()
    found = [
        i
        for i, g in enumerate(groups)
        if g.segments[0].ids.tolist() == context[: len(g.segments[0].ids)]
    ]
    return found[0] if len(found) == 1 else -1
