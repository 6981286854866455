"""A renderer without a tokenizer: one token a byte, so that every id in a test can be read.

Messages are ``role bytes... END``; ids from 256 on are the end of a turn and the roles.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import numpy as np

from posttrain.types.message import Message, Messages

END = 256
ROLES = {"system": 257, "user": 258, "assistant": 259, "tool": 260}
VOCABULARY = 261


class ByteChat:
    """The byte-level counterpart of ``posttrain.data.chat.Renderer``."""

    end_ids = (END,)
    end_strings: tuple[str, ...] = ()

    def __init__(self, name: str = "bytes") -> None:
        self.template_hash = name
        self.tokenizer_hash = name

    def prompt(self, messages: Messages) -> np.ndarray:
        """[tokens] int32: the messages and the assistant's header."""
        return self._ids([*self._messages(messages), ROLES["assistant"]])

    def raw(self, text: str) -> np.ndarray:
        """[tokens] int32: the bytes of the text."""
        return self._ids([*text.encode()])

    def bridge(
        self, messages: Messages, *, closed: bool, after: np.ndarray | None = None
    ) -> np.ndarray:
        """[tokens] int32: the end of the turn if it is open, the messages, the next header."""
        del after
        end = [] if closed else [END]
        return self._ids([*end, *self._messages(messages), ROLES["assistant"]])

    def assistant(self, text: str) -> np.ndarray:
        """[tokens] int32: a given turn and its end."""
        return self._ids([*text.encode(), END])

    def decode(self, ids: Sequence[int] | np.ndarray) -> tuple[str, np.ndarray]:
        """Text, and [tokens] int32 its length after each token; a cut character has none yet."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text, ends = "", []
        for token in ids:
            text += decoder.decode(bytes([int(token)])) if token < END else ""
            ends.append(len(text))
        return text, np.array(ends, np.int32)

    def message(self, ids: Sequence[int] | np.ndarray) -> Message:
        """What was said, without the end."""
        return Message("assistant", self.decode(ids)[0])

    def closes(self, ids: Sequence[int] | np.ndarray) -> bool:
        """Whether the turn ended with its end token."""
        return len(ids) > 0 and int(ids[-1]) == END

    @staticmethod
    def _messages(messages: Messages) -> list[int]:
        return [i for m in messages for i in (ROLES[m.role], *m.content.encode(), END)]

    @staticmethod
    def _ids(ids: Sequence[int]) -> np.ndarray:
        return np.asarray(ids, np.int32)
