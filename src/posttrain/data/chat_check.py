"""What a chat template would train, checked before a run on a conversation of two turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from posttrain.data.conversations import conversation
from posttrain.errors import TemplateError
from posttrain.types.message import Message, Messages

if TYPE_CHECKING:
    from posttrain.data.chat import Renderer
    from posttrain.types.ask import Decode


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReport:
    """What a check found."""

    shown: str
    """A small conversation, trained tokens in brackets."""
    end_ids: tuple[int, ...]
    notes: tuple[str, ...] = ()
    """Things that work and are worth knowing."""


def check_chat(renderer: Renderer, decode: Decode | None = None) -> ChatReport:
    """Check a renderer of chat messages.

    Raises:
        TemplateError: no template, no end of turn, a doubled begin token, or reasoning left open.
    """
    renderer.chat.template()
    words = renderer.turns.words
    messages = (
        Message("user", words[0]),
        Message("assistant", words[1]),
        Message("user", words[0]),
        Message("assistant", words[1]),
    )
    ids, mask = _trained(renderer, messages)
    shown = renderer.show(ids, mask)
    _refuse_endless(renderer, decode, shown)
    _refuse_doubled_begin(renderer, ids, shown)
    _refuse_open_reasoning(renderer, words)
    return ChatReport(shown=shown, end_ids=renderer.end_ids, notes=_notes(renderer, messages, ids))


def check_text(renderer: Renderer, decode: Decode | None = None) -> ChatReport:
    """Check a renderer of string prompts: they need no template, but they need an end.

    Raises:
        TemplateError: nothing can end a completion.
    """
    prompt, own = renderer.raw("a"), renderer.chat.encode("a")
    end = renderer.end_ids[:1]
    ids = np.concatenate([prompt, own, end]).astype(np.int32)
    shown = renderer.show(ids, np.arange(len(ids)) >= len(prompt))
    if not renderer.end_ids and not (decode is not None and (decode.stop or decode.stop_ids)):
        raise TemplateError(
            f"the tokenizer {renderer.chat.name!r} has no end token, so only the length limit "
            "would end a completion. Set its eos_token, or Decode(stop=...) or "
            f"Decode(stop_ids=...). Trained tokens are in brackets: {shown}"
        )
    return ChatReport(shown=shown, end_ids=renderer.end_ids)


def _trained(renderer: Renderer, messages: Messages) -> tuple[np.ndarray, np.ndarray]:
    try:
        return conversation(renderer, messages)
    except TemplateError:  # a template for one exchange only
        return conversation(renderer, messages[:2])


def _refuse_endless(renderer: Renderer, decode: Decode | None, shown: str) -> None:
    end = renderer.turns.end_of_turn
    if not set(end).isdisjoint(renderer.end_ids):
        return
    if renderer.end_strings:  # they end a turn as a stop string
        return
    if decode is not None and (decode.stop or not set(end).isdisjoint(decode.stop_ids)):
        return
    name = renderer.chat.name
    eos = renderer.tokenizer.eos_token
    raise TemplateError(
        f"the chat template of {name!r} writes no end token after an assistant turn (the "
        f"tokenizer's is {eos!r}), so generation never stops. Set Trained.template to a template "
        f"that ends assistant turns with it. Trained tokens are in brackets: {shown}"
    )


def _refuse_doubled_begin(renderer: Renderer, ids: np.ndarray, shown: str) -> None:
    bos = renderer.tokenizer.bos_token_id
    if bos is not None and len(ids) > 1 and ids[0] == bos and ids[1] == bos:
        raise TemplateError(
            f"the chat template of {renderer.chat.name!r} writes the begin token "
            f"{renderer.tokenizer.bos_token!r} twice. Take one of them out (Trained.template). "
            f"Trained tokens are in brackets: {shown}"
        )


def _refuse_open_reasoning(renderer: Renderer, words: list[str]) -> None:
    """Refuse a template that cuts reasoning out of earlier turns and leaves a tag behind."""
    begin, end = renderer.reasoning
    said = f"{begin}{words[0]}{end}{words[1]}"
    messages = (
        Message("user", words[0]),
        Message("assistant", said),
        Message("user", words[0]),
    )
    try:
        text = renderer.chat.render(messages, generation=False)
    except TemplateError:
        return
    if text.count(begin) > text.count(end):
        shown = text.replace("\n", "\\n")
        raise TemplateError(
            f"the chat template of {renderer.chat.name!r} leaves {begin!r} without its {end!r} in "
            "an earlier turn. Keep earlier reasoning whole or cut it out whole "
            f"(Trained.template). It renders: {shown}"
        )


def _notes(renderer: Renderer, messages: Messages, ids: np.ndarray) -> tuple[str, ...]:
    notes: list[str] = []
    tokenizer = renderer.tokenizer
    if renderer.turns.derived_header:
        header = renderer.turns.derived_header
        notes.append(f"the template has no generation prompt; {header!r} was taken from its turns")
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id in renderer.end_ids:
        notes.append(
            f"{tokenizer.pad_token!r} both pads and ends a turn; padding is told apart by place"
        )
    eos = tokenizer.eos_token_id
    if renderer.end_strings:
        notes.append(
            f"the template ends turns with the text {renderer.turns.end_text!r}, which is no "
            "single token; it is a stop string"
        )
    elif eos is not None and eos not in renderer.turns.end_of_turn:
        ends = renderer.show(renderer.turns.end_of_turn, [False] * len(renderer.turns.end_of_turn))
        notes.append(f"turns end with {ends!r}; the tokenizer's {tokenizer.eos_token!r} ends too")
    if not _extends(renderer, messages, ids):
        notes.append("the template rewrites or cuts earlier turns; drawn turns are kept as drawn")
    return tuple(notes)


def _extends(renderer: Renderer, messages: Messages, ids: np.ndarray) -> bool:
    """Whether rendering everything again gives the start of what the parts give."""
    begin, end = renderer.reasoning
    thought = Message("assistant", f"{begin}{messages[0].content}{end}{messages[1].content}")
    try:
        again = renderer.chat.encode(renderer.chat.render(messages, generation=False))
        kept = thought.content in renderer.chat.render(
            (messages[0], thought, messages[2]), generation=False
        )
    except TemplateError:
        return True
    return kept and again[: len(ids)] == ids.tolist()
