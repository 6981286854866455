"""Prompts too long for a model: left out with a count, or refused, before anything is sampled."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from posttrain.data.chat import Renderer
from posttrain.data.indexed import DerivedSource, IndexedSource
from posttrain.data.models import load_tokenizer
from posttrain.errors import ConfigError, DataError
from posttrain.types.message import Messages, Task
from posttrain.types.method import Source

_CHUNK = 1000
"""Prompts tokenised in one call."""

_log = logging.getLogger(__name__)


def prompt_lengths(renderer: Renderer, prompts: Sequence[Messages | str]) -> np.ndarray:
    """[prompts] int32: tokens of each, as the runner would render it."""
    lengths = np.zeros(len(prompts), np.int32)
    for start in range(0, len(prompts), _CHUNK):
        chunk = prompts[start : start + _CHUNK]
        lengths[start : start + len(chunk)] = renderer.lengths(chunk)
    return lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimit(DerivedSource):
    """A source without the prompts that are longer than a number of tokens.

    Lengths are counted once, in batches, and kept on disk: another start with the same rows,
    tokenizer and template does not count again.
    """

    source: IndexedSource
    max_tokens: int
    """Tokens a prompt may have, header of the reply included."""
    model: str
    """Whose tokenizer counts: as ``Trained.path``."""
    template: str | None = None
    """As ``Trained.template``."""
    long: Literal["drop", "refuse"] = "drop"
    """Leave longer prompts out and log how many, or raise."""
    shuffle: int | None = 0
    """Seed of the order in which tasks are drawn; None keeps the order of the source."""
    _memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"PromptLimit.max_tokens must be >= 1, got {self.max_tokens}.")

    @property
    @override
    def parts(self) -> tuple[Source, ...]:
        """The source."""
        return (self.source,)

    @property
    @override
    def order(self) -> int | None:
        """``shuffle``."""
        return self.shuffle

    @property
    def dropped(self) -> int:
        """Prompts left out."""
        return self.source.size() - len(self._kept())

    @override
    def size(self) -> int:
        """Prompts within the limit."""
        return len(self._kept())

    @override
    def at(self, index: int) -> Task:
        """One task within the limit."""
        return self.source.at(int(self._kept()[index]))

    def _kept(self) -> np.ndarray:
        if "kept" not in self._memo:
            lengths = self._lengths()
            kept = np.flatnonzero(lengths <= self.max_tokens)
            self._report(lengths)
            self._memo["kept"] = kept
        return self._memo["kept"]

    def _report(self, lengths: np.ndarray) -> None:
        over = np.flatnonzero(lengths > self.max_tokens)
        if not len(over):
            return
        first = int(over[0])
        text = (
            f"{len(over)} of {len(lengths)} prompts are longer than {self.max_tokens} tokens (row "
            f"{first} has {lengths[first]})"
        )
        if self.long == "refuse" or len(over) == len(lengths):
            raise DataError(f"{text}. Raise PromptLimit.max_tokens, or set long='drop'.")
        _log.warning("%s; they are left out", text)

    def _lengths(self) -> np.ndarray:
        renderer = Renderer(load_tokenizer(self.model), self.template)
        prompts = [self.source.at(i).prompt for i in range(self.source.size())]
        digest = hashlib.sha256(f"{renderer.tokenizer_hash} {renderer.template_hash}".encode())
        for part in _texts(prompts):
            digest.update(part)
        return _cached(digest.hexdigest()[:32], renderer, prompts)


def _texts(prompts: Sequence[Messages | str]) -> Iterator[bytes]:
    for prompt in prompts:
        yield repr(prompt).encode("utf-8", "surrogatepass") + b"\x00"


def _cached(name: str, renderer: Renderer, prompts: Sequence[Messages | str]) -> np.ndarray:
    """Lengths from the cache folder, or counted and put there; a folder it cannot use is no bar."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "posttrain"
    file = folder / "lengths" / f"{name}.npy"
    try:
        found = np.load(file)
        if found.shape == (len(prompts),):
            return found
    except (OSError, ValueError, EOFError):
        pass  # not counted yet, or the file is damaged
    lengths = prompt_lengths(renderer, prompts)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.npy")
        np.save(part, lengths)
        part.replace(file)
    except OSError as error:
        _log.warning("prompt lengths could not be kept in %s: %s", file.parent, error)
    return lengths
