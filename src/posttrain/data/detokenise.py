"""Text as a view of token ids: what they spell, where each token ends, which ones are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WINDOW = 6
"""Tokens decoded together to find the end of the last of them; longer than any character."""

OPEN, CLOSE = "\u27e6", "\u27e7"
"""Brackets around trained tokens in ``show``."""


class Detokeniser:
    """Decodes ids, remembering the text of single tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}

    def text(self, ids: Sequence[int] | np.ndarray, *, markers: bool = False) -> str:
        """Text of the ids, special tokens included when ``markers``."""
        text = self._tokenizer.decode(
            [int(i) for i in ids],
            skip_special_tokens=not markers,
            clean_up_tokenization_spaces=False,
        )
        return str(text)

    def with_ends(self, ids: Sequence[int] | np.ndarray) -> tuple[str, np.ndarray]:
        """Text without special tokens, and [tokens] int32 the text length after each token.

        Lengths never fall and the last is the length of the text. A token that holds only a part
        of a character ends where that character ends.
        """
        listed = [int(i) for i in ids]
        text = self.text(listed)
        pieces = [self._piece(i) for i in listed]
        if "".join(pieces) == text:
            ends = np.cumsum([len(p) for p in pieces], dtype=np.int64)
        else:
            ends = self._windowed(listed)
        ends = np.minimum(ends, len(text))
        if len(ends):
            ends[-1] = len(text)
            ends = np.minimum.accumulate(ends[::-1])[::-1]
        return text, ends.astype(np.int32)

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self.text([token])
        return self._pieces[token]

    def _windowed(self, ids: list[int]) -> np.ndarray:
        """Ends found by decoding the tokens since the last whole character, in context."""
        ends = np.zeros(len(ids), np.int64)
        start, known, settled = 0, 0, 0  # decoded from here; text before ``settled`` is known
        for i in range(len(ids)):
            base = self.text(ids[start:settled])
            full = self.text(ids[start : i + 1])
            ends[i] = known + len(full) - len(base)
            if not full.endswith("\ufffd") and len(full) > len(base):
                known = int(ends[i])
                start, settled = max(0, settled - _WINDOW if settled else 0), i + 1
        return ends

    def show(self, ids: Sequence[int] | np.ndarray, mask: Sequence[bool] | np.ndarray) -> str:
        """One line: all tokens as text, special ones included, trained runs in brackets."""
        out: list[str] = []
        start = 0
        flags = [bool(m) for m in mask]
        for i in range(1, len(flags) + 1):
            if i == len(flags) or flags[i] != flags[start]:
                text = self.text(ids[start:i], markers=True).replace("\n", "\\n")
                out.append(f"{OPEN}{text}{CLOSE}" if flags[start] else text)
                start = i
        return "".join(out)
