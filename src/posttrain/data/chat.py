"""Messages to token ids and back, with exact provenance: who wrote which token.

A conversation is only ever extended. What a seat drew stays as it was drawn; what a template puts
around it is rendered once, tokenised in its place and cut off by ids. Text is a view of ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from posttrain.data.chat_text import ChatText, Tools, eos_ids
from posttrain.data.chat_turns import ChatTurns
from posttrain.data.detokenise import Detokeniser
from posttrain.errors import DataError, TemplateError
from posttrain.types.message import Message, Messages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from posttrain.data.chat_check import ChatReport
    from posttrain.types.ask import Decode


class Renderer:
    """One tokenizer and one chat template.

    Args:
        tokenizer: A ``transformers`` tokenizer.
        template: A chat template, or a file of one, instead of the tokenizer's own.
        stop_ids: Further end ids of the model, e.g. the list of its generation config.
        reasoning: Tags around reasoning, as the model writes them.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str | None = None,
        *,
        stop_ids: Sequence[int] = (),
        reasoning: tuple[str, str] = ("<think>", "</think>"),
    ) -> None:
        self.tokenizer = tokenizer
        self.chat = ChatText(tokenizer, template)
        self.turns = ChatTurns(self.chat, stop_ids=stop_ids)
        self.reasoning = reasoning
        self._stop_ids = tuple(int(i) for i in stop_ids)
        self._detokeniser = Detokeniser(tokenizer)

    def prompt(self, messages: Messages, *, tools: Tools | None = None) -> np.ndarray:
        """[tokens] int32: the conversation and the header of the assistant's next turn.

        A last message of the assistant is a beginning that the model goes on with.

        Raises:
            TemplateError: there is no template, or it cannot render these roles.
            DataError: there are no messages.
        """
        return _array(self.chat.encode(self._chat_text(messages, tools)))

    def _chat_text(self, messages: Messages, tools: Tools | None = None) -> str:
        if not messages:
            raise DataError("a prompt has no messages: give at least one user message.")
        begun = messages[-1].content if messages[-1].role == "assistant" else ""
        asked = messages[:-1] if messages[-1].role == "assistant" else messages
        text = self.chat.render(asked, generation=True, tools=tools)
        return text + self.turns.derived_header + begun

    def lengths(self, prompts: Sequence[Messages | str]) -> np.ndarray:
        """[prompts] int32: tokens that ``prompt`` or ``raw`` would give for each, in one batch."""
        texts = [p if isinstance(p, str) else self._chat_text(p) for p in prompts]
        encoded = zip(prompts, self.chat.encode_all(texts), strict=True)
        return _array([len(self._begun(i) if isinstance(p, str) else i) for p, i in encoded])

    def raw(self, text: str) -> np.ndarray:
        """[tokens] int32: a string as it is, with the tokenizer's begin token exactly once."""
        return _array(self._begun(self.chat.encode(text)))

    def _begun(self, ids: list[int]) -> list[int]:
        prefix = self._prefix
        return ids if tuple(ids[: len(prefix)]) == prefix else [*prefix, *ids]

    @cached_property
    def _prefix(self) -> tuple[int, ...]:
        return self.chat.prefix()

    def bridge(
        self,
        messages: Messages,
        *,
        closed: bool,
        after: Sequence[int] | np.ndarray | None = None,
        tools: Tools | None = None,
    ) -> np.ndarray:
        """[tokens] int32: from the end of an assistant turn to the start of the next.

        Closes the turn where it is not closed, then the new messages, then the next header. None
        of these tokens was drawn, so none is trained.

        Args:
            messages: What was said after the turn.
            closed: Whether the turn ended with an end token of its own.
            after: The turn as it was drawn. With it a half-written end is completed and
                reasoning left open is closed.
            tools: As for ``prompt``.

        Raises:
            TemplateError: the template cannot put these roles after an assistant turn.
        """
        for role in {m.role for m in messages}:
            if not self.turns.follows(role):
                raise TemplateError(
                    f"the chat template of {self.chat.name!r} does not write a message of the "
                    f"role {role!r} after an assistant turn in its place. Use a role it knows "
                    "there (user, tool), or set Trained.template."
                )
        tail = self.turns.tail(messages, generation=True, tools=tools)
        turn = [] if after is None else [int(i) for i in after]
        drawn = self.turns.drawn_closing(tail, turn)
        if closed and not drawn:
            drawn = self.turns.closing(tail)
        return _array([*self._close_reasoning(turn), *tail[drawn:]])

    def _close_reasoning(self, turn: Sequence[int]) -> list[int]:
        """Ids that close reasoning a turn left open; empty where it is closed."""
        if not turn:
            return []
        begin, end = self.reasoning
        text = self.turns.header + self._detokeniser.text(turn, markers=True)
        return self.chat.encode(end) if text.rfind(begin) > text.rfind(end) else []

    def assistant(self, text: str) -> np.ndarray:
        """[tokens] int32 of a given assistant turn, its end-of-turn token included.

        Tokenised after a dummy header, so that a leading space is what the model would draw.
        """
        if not self.chat.has_template:
            return _array([*self.chat.encode(text), *eos_ids(self.tokenizer)[:1]])
        user = (Message("user", self.turns.words[0]),)
        head = self.chat.render(user, generation=True) + self.turns.derived_header
        before, whole = self.chat.encode(head), self.chat.encode(head + text)
        own = whole[len(before) :] if whole[: len(before)] == before else self.chat.encode(text)
        end = self.turns.end_of_turn or eos_ids(self.tokenizer)[:1]
        return _array([*own, *end])

    def decode(self, ids: Sequence[int] | np.ndarray) -> tuple[str, np.ndarray]:
        """Text without special tokens, and [tokens] int32 its length after each token."""
        return self._detokeniser.with_ends(ids)

    def message(self, ids: Sequence[int] | np.ndarray) -> Message:
        """What a seat drew, as the message an environment reads."""
        return Message("assistant", self._detokeniser.text(ids))

    def show(self, ids: Sequence[int] | np.ndarray, mask: Sequence[bool] | np.ndarray) -> str:
        """One line with all tokens as text and trained runs in brackets."""
        return self._detokeniser.show(ids, mask)

    def closes(self, ids: Sequence[int] | np.ndarray) -> bool:
        """Whether a drawn turn ended by itself: with an end id, or with the template's end text."""
        if len(ids) and int(ids[-1]) in self.end_ids:
            return True
        return any(self._detokeniser.text(ids).rstrip().endswith(s) for s in self.end_strings)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn when drawn."""
        return self._ends[0]

    @property
    def end_strings(self) -> tuple[str, ...]:
        """Strings that end a turn where the template closes it with several plain tokens."""
        return self._ends[1]

    @cached_property
    def _ends(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        if not self.chat.has_template:
            return tuple(dict.fromkeys((*eos_ids(self.tokenizer), *self._stop_ids))), ()
        text = self.turns.end_text
        return self.turns.end_ids, ((text,) if text else ())

    @property
    def template_hash(self) -> str:
        """Hash of the template's text; empty where there is none."""
        return self._hashes[0]

    @property
    def tokenizer_hash(self) -> str:
        """Hash of everything that decides how text becomes ids."""
        return self._hashes[1]

    @cached_property
    def _hashes(self) -> tuple[str, str]:
        template = _digest(self.chat.template()) if self.chat.has_template else ""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        vocabulary = sorted(self.tokenizer.get_vocab().items(), key=lambda item: item[1])
        whole = repr((vocabulary, sorted(self.turns.special)))
        return template, _digest(whole if backend is None else backend.to_str())

    def check(self, decode: Decode | None = None, *, chat: bool = True) -> ChatReport:
        """What would be trained, shown; problems that would train wrongly are errors.

        Args:
            decode: How turns are drawn, where its stop strings or ids end them.
            chat: Whether prompts are messages; strings need no template.

        Raises:
            TemplateError: with the trained tokens of a small conversation.
        """
        from posttrain.data.chat_check import check_chat, check_text

        return check_chat(self, decode) if chat else check_text(self, decode)


def _array(ids: Sequence[int]) -> np.ndarray:
    return np.asarray(ids, np.int32)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
