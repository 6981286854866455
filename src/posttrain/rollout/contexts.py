"""What a seat is shown, laid out in a draft: spans checked, messages stored as segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.errors import ConfigError, EnvError
from posttrain.rollout.drafts import Draft
from posttrain.rollout.prompts import WHOLE, Seating, observed
from posttrain.types.episode import Origin, Piece, Span
from posttrain.types.message import Message


class Sight:
    """The eyes of one episode."""

    def __init__(self, draft: Draft, seating: Seating) -> None:
        self._draft = draft
        self._seating = seating

    def lay(
        self, seat: str, pieces: Sequence[Piece], messages: Sequence[Message], *, turn: int
    ) -> tuple[Span, ...]:
        """A new context of these pieces and then these messages.

        Raises:
            ConfigError: it is empty, or holds tokens of another tokenizer.
        """
        whole = [self._whole(p) for p in pieces]
        laid = self._seating.lay(seat, (*whole, *messages), ids=lambda s: self._draft.ids((s,)))
        context: tuple[Span, ...] = ()
        for part in laid:
            if not isinstance(part, Span):
                part = self.add(part, seat=seat, context=context, role="user", turn=turn)  # noqa: PLW2901
            context = (*context, part)
        if not context:
            raise ConfigError(
                f"seat {seat!r} of task {self._draft.base.task.id!r} is shown nothing: a context "
                "needs at least one message or segment."
            )
        self.check_tokenizer(seat, context)
        return context

    def add(
        self, ids: np.ndarray, *, seat: str, context: tuple[Span, ...], role: str, turn: int
    ) -> Span:
        """Store rendered tokens as an observed segment."""
        chat = self._seating.chat(seat)
        segment = observed(ids, chat, context=context, seat=seat, role=role, turn=turn)
        return self._draft.add(segment)

    def _whole(self, piece: Piece) -> Piece:
        if isinstance(piece, Span) and piece.tokens == WHOLE:
            return Span(piece.segment, self._draft.segment(piece.segment).num_tokens)
        return piece

    def prompt_segments(self, context: Sequence[Piece]) -> list[int]:
        """Segments of a plan's own context that nobody chose: where the episode's path begins.

        Raises:
            ConfigError: a span that the group does not have.
        """
        found: dict[int, None] = {}
        for piece in context:
            if isinstance(piece, Span):
                self._check(piece)
                if self._draft.segment(piece.segment).origin is Origin.OBSERVED:
                    found[piece.segment] = None
        return list(found)

    def _check(self, span: Span) -> None:
        group = self._draft.base
        if not 0 <= span.segment < len(group.segments):
            raise ConfigError(
                f"Ask.context names segment {span.segment} of group {group.group_id}, which has "
                f"{len(group.segments)}."
            )
        size = group.segments[span.segment].num_tokens
        if not (span.tokens == WHOLE or 0 <= span.tokens <= size):
            raise ConfigError(
                f"Ask.context keeps {span.tokens} tokens of segment {span.segment}, which has "
                f"{size}; {WHOLE} keeps all."
            )

    def along_path(self, pieces: Sequence[Piece]) -> list[Piece]:
        """An environment's pieces, which count along the episode, in the draft's numbering.

        Raises:
            EnvError: it names a segment that the episode does not have.
        """
        path = self._draft.path
        for piece in pieces:
            if isinstance(piece, Span) and not -len(path) <= piece.segment < len(path):
                raise EnvError(
                    f"Step.shows names segment {piece.segment} of an episode that has {len(path)}."
                )
        return [Span(path[p.segment], p.tokens) if isinstance(p, Span) else p for p in pieces]

    def check_tokenizer(self, seat: str, context: Sequence[Span]) -> None:
        """Refuse to show a seat the tokens of another tokenizer.

        Raises:
            ConfigError: naming both seats.
        """
        own = self._seating.chat(seat).tokenizer_hash
        for span in context:
            other = self._draft.segment(span.segment).seat
            if self._seating.chat(other).tokenizer_hash != own:
                raise ConfigError(
                    f"seat {seat!r} would be shown tokens of seat {other!r}, whose tokenizer "
                    "differs. Show it text: Said(role, text) in Step.shows or Ask.context."
                )
