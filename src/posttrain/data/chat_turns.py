"""What a chat template puts around an assistant turn, learned from dummy conversations.

Two renderings that differ in the last character of a dummy assistant turn have the same text after
it: that text is what closes the turn and opens the next one. Its ids are read off inside the whole
rendering (never tokenised alone), after checking that no token reaches back into the turn. The
real history plays no part, so templates that rewrite earlier turns cannot change it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from posttrain.data.chat_text import ChatText, Tools, eos_ids, special_ids
from posttrain.errors import TemplateError
from posttrain.types.message import Message

_MAX_PAIRS = 6
"""Dummy turns tried before the template is refused."""


def _shared(one: Sequence[object], other: Sequence[object]) -> int:
    """Length of the common start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


class ChatTurns:
    """Header and end of an assistant turn, and the tail that follows one."""

    def __init__(self, text: ChatText, *, stop_ids: Sequence[int] = ()) -> None:
        self.text = text
        self.special = special_ids(text.tokenizer)
        self._stop_ids = tuple(int(i) for i in stop_ids)
        self._role_follows: dict[str, bool] = {}

    @cached_property
    def words(self) -> list[str]:
        """Dummy turns of one vocabulary item, known to encode and decode without loss.

        No two neighbours end in the same character.
        """
        found: list[str] = []
        for word in self._candidates():
            ids = self.text.encode(word)
            lossless = self.special.isdisjoint(ids) and self._decode(ids).strip() == word
            if ids and lossless and (not found or found[-1][-1] != word[-1]):
                found.append(word)
            if len(found) > _MAX_PAIRS:
                break
        if len(found) < 2:
            raise TemplateError(
                f"the tokenizer {self.text.name!r} has no two words that survive encoding and "
                "decoding, so its chat template cannot be taken apart. Check its vocabulary."
            )
        return found

    def _candidates(self) -> Iterator[str]:
        """Letters and digits the vocabulary has, then its first words; no others are encoded."""
        vocabulary = self.text.tokenizer.get_vocab()
        yield from (c for c in "1728abxyABXY305469" if {c, f"\u2581{c}"} & vocabulary.keys())
        for token in sorted(set(vocabulary.values()) - self.special):
            word = self._decode([token]).strip()
            if word.isalnum():
                yield word

    def _decode(self, ids: Sequence[int]) -> str:
        text = self.text.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        return str(text)

    def tail(
        self, messages: Sequence[Message], *, generation: bool, tools: Tools | None = None
    ) -> list[int]:
        """Ids after a dummy assistant turn's last token: its end, ``messages``, the next header."""
        for one, other in pairwise(self.words):
            first, after = self._split(one, other, messages, generation=generation, tools=tools)
            added = self.header if generation and self._header_is_derived else ""
            head, whole = self.text.encode(first), self.text.encode(first + after + added)
            if whole[: len(head)] == head:
                return whole[len(head) :]
        raise TemplateError(
            f"with the chat template of {self.text.name!r} the last token of an assistant turn "
            "reaches into what follows it, so no token says where the turn ends. Put a special "
            "token after assistant turns (Trained.template)."
        )

    def _split(
        self,
        one: str,
        other: str,
        messages: Sequence[Message],
        *,
        generation: bool,
        tools: Tools | None = None,
    ) -> tuple[str, str]:
        """Rendered text up to the end of the dummy turn ``one``, and after it."""
        user = Message("user", self.words[0])
        texts = [
            self.text.render(
                (user, Message("assistant", word), *messages), generation=generation, tools=tools
            )
            for word in (one, other)
        ]
        length = _shared(texts[0][::-1], texts[1][::-1])
        first, after = texts[0][: len(texts[0]) - length], texts[0][len(texts[0]) - length :]
        if not first.endswith(one):
            raise TemplateError(
                f"the chat template of {self.text.name!r} does not write an assistant turn as it "
                f"was given ({one!r} is missing from {texts[0]!r}). Set Trained.template to one "
                "that does."
            )
        return first, after

    @cached_property
    def _opening(self) -> tuple[str, str]:
        """The dummy user turn without and with the generation prompt."""
        user = (Message("user", self.words[0]),)
        return (
            self.text.render(user, generation=False),
            self.text.render(user, generation=True),
        )

    @cached_property
    def header(self) -> str:
        """Text that opens an assistant turn; taken from a whole turn if the template has none.

        Empty for templates whose user turns end where the assistant's begin.
        """
        plain, prompted = self._opening
        if prompted != plain:
            return prompted[len(plain) :] if prompted.startswith(plain) else ""
        word, other = self.words[:2]
        first, _ = self._split(word, other, (), generation=False)
        if not first.startswith(plain):
            return ""
        header = first[len(plain) : len(first) - len(word)].rstrip(" ")
        return header if header.strip() else ""

    @cached_property
    def _header_is_derived(self) -> bool:
        plain, prompted = self._opening
        return plain == prompted and bool(self.header)

    @property
    def derived_header(self) -> str:
        """The header to add where the template ignores the generation prompt, else empty."""
        return self.header if self._header_is_derived else ""

    @cached_property
    def _final(self) -> list[int]:
        return self.tail((), generation=False)

    @cached_property
    def _inner(self) -> list[int] | None:
        """Tail before another user turn; None if the template refuses a second one."""
        try:
            return self.tail((Message("user", self.words[0]),), generation=True)
        except TemplateError:
            return None

    @cached_property
    def _common(self) -> list[int]:
        """Closing ids a turn has both at the end of a conversation and before another turn."""
        if self._inner is None:
            return self._final
        return self._final[: _shared(self._final, self._inner)]

    @cached_property
    def end_of_turn(self) -> tuple[int, ...]:
        """Ids that belong to a given assistant turn after its text.

        Up to the last marker of the closing part; where there is no marker, up to the last token
        that is not blank. Templates that close the last turn with a marker of its own give that
        one; templates that write nothing after a turn give the end id that opens the next.
        """
        for ids, pick in ((self._common, max), (self._final, min)):
            marks = [i for i, token in enumerate(ids) if token in self._markers]
            if marks:
                return tuple(ids[: pick(marks) + 1])
        if self._inner and self._inner[0] in self._stops:
            return (self._inner[0],)
        text = self._decode(self._common).rstrip()
        lengths = (n for n in range(len(self._common) + 1))
        return tuple(
            self._common[
                : next(n for n in lengths if self._decode(self._common[:n]).rstrip() == text)
            ]
        )

    @cached_property
    def end_text(self) -> str:
        """Text that closes a turn where no marker does, else empty: it must be a stop string."""
        if self._markers.isdisjoint(self.end_of_turn):
            return self._decode(self.end_of_turn).strip()
        return ""

    @cached_property
    def _stops(self) -> frozenset[int]:
        return frozenset((*eos_ids(self.text.tokenizer), *self._stop_ids))

    @cached_property
    def _markers(self) -> frozenset[int]:
        return self.special | self._stops

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn when drawn."""
        first = next((i for i in self.end_of_turn if i in self._markers), None)
        found = () if first is None else (first,)
        return tuple(dict.fromkeys((*found, *eos_ids(self.text.tokenizer), *self._stop_ids)))

    def closing(self, tail: Sequence[int]) -> int:
        """Tokens at the start of ``tail`` that only close the turn before it."""
        end = self.end_of_turn
        if end and tuple(tail[: len(end)]) == end:
            return len(end)
        if tail and tail[0] in self._stops:
            return 1
        replaced = end and len(tail) >= len(end) and tail[len(end) - 1] in self._markers
        return len(end) if replaced else 0

    def drawn_closing(self, tail: Sequence[int], turn: Sequence[int]) -> int:
        """Tokens of the closing part of ``tail`` that ``turn`` already ends with."""
        closing = self.closing(tail)
        for length in range(min(closing, len(turn)), 0, -1):
            if list(turn[-length:]) == list(tail[:length]):
                return length
        if turn and turn[-1] in self.end_ids:
            return closing  # ended by another end token: it stands for the template's own
        return 0

    def follows(self, role: str) -> bool:
        """Whether a message of this role after an assistant turn appears in that place."""
        if role not in self._role_follows:
            one, other = self.words[:2]
            tails = [
                self._split(one, other, (Message(role, word),), generation=False)[1]
                for word in (one, other)
            ]
            self._role_follows[role] = tails[0] != tails[1]
        return self._role_follows[role]
