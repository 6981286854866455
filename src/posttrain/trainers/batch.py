"""From stored groups to rows of tokens, and from rows to micro-batches.

A row is a sequence of tokens in the order the model reads them. A segment that trains is scored in
the context its term's view gives; segments whose contexts continue one another share a row, so a
conversation of several turns is one row unless its history was rewritten. A segment is trained once
a term, whatever number of episodes pass through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from posttrain.errors import ConfigError, DataError
from posttrain.types.episode import Group, Origin, Piece, Said, Segment, Span
from posttrain.types.term import Counts, Reach, Term, TokenBatch

Render: TypeAlias = Callable[[Group, tuple[Piece, ...], str], np.ndarray]
"""Token ids of a context with messages in it, for a seat."""

GIVEN = frozenset({Origin.GIVEN, Origin.REPLAYED, Origin.EDITED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence; arrays have one value a token, columns are NaN where they have none."""

    ids: np.ndarray
    loss_mask: np.ndarray
    temperature: np.ndarray
    segment: np.ndarray
    """Segment number in the step, -1 on tokens that come from a rendered message."""
    columns: Mapping[str, np.ndarray]
    episode: int
    group: int
    payloads: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens in the row, context included."""
        return len(self.ids)

    @property
    def num_trained(self) -> int:
        """Tokens the term trains."""
        return int(self.loss_mask.sum())


@dataclass(slots=True)
class _Open:
    """A row while it grows."""

    spans: list[Span]
    ids: list[np.ndarray]
    masks: dict[int, np.ndarray]
    """By span position: which of its tokens train."""
    first: int
    """Its first trained segment."""


def term_sets(terms: Sequence[Term]) -> list[tuple[Term, ...]]:
    """Terms grouped by the rows they need: equal view and equal choice of tokens."""
    sets: list[list[Term]] = []
    for term in terms:
        for found in sets:
            if found[0].view == term.view and found[0].tokens == term.tokens:
                found.append(term)
                break
        else:
            sets.append([term])
    return [tuple(s) for s in sets]


def trained_tokens(segment: Segment, terms: Sequence[Term]) -> np.ndarray:
    """[tokens] bool, the tokens of a segment that terms which share rows train.

    If any of them reads advantages, tokens without one (unscored episodes) are left out of all.
    """
    term = terms[0]
    nothing = np.zeros(segment.num_tokens, bool)
    if term.tokens == "observed":
        seen = segment.origin is Origin.OBSERVED and segment.turn > 0
        return ~nothing if seen else nothing
    if not segment.trains:
        return nothing
    given = ~segment.action_mask if segment.origin in GIVEN else nothing
    mask = {
        "drawn": segment.drawn,
        "given": given,
        "trained": segment.drawn | given,
    }[term.tokens]
    if any("advantages" in t.reads for t in terms):
        column = segment.columns.get("advantages")
        mask = mask & np.isfinite(column.values) if column is not None else nothing
    return mask


def build_rows(
    groups: Sequence[Group], terms: Sequence[Term], *, model: str, render: Render | None = None
) -> list[Row]:
    """Rows of the groups for terms that share a view and a choice of tokens.

    Args:
        groups: All groups of the step; refused ones give no rows.
        terms: One of ``term_sets``.
        model: Only segments this model spoke (or was given) are trained.
        render: Makes ids of messages in a view's context.

    Raises:
        DataError: a trained token has nothing before it, so it has no log-prob.
    """
    rows: list[Row] = []
    first_segment = first_episode = 0
    for number, group in enumerate(groups):
        if not group.refused:
            numbers = (number, first_segment, first_episode)
            rows += _group_rows(group, terms, model, render, numbers)
        first_segment += len(group.segments)
        first_episode += len(group.episodes)
    return rows


def _group_rows(
    group: Group,
    terms: Sequence[Term],
    model: str,
    render: Render | None,
    numbers: tuple[int, int, int],
) -> list[Row]:
    open_rows: list[_Open] = []
    alone: list[_Open] = []
    found = []
    for s, segment in enumerate(group.segments):
        mask = trained_tokens(segment, terms)
        if segment.model not in ("", model) or not mask.any():
            continue
        context = terms[0].view(group.task, group, s)
        if context is not None:
            found.append((s, context, mask))
    for s, context, mask in sorted(found, key=lambda f: (_length(f[1]), f[0])):
        spans = [p for p in context if isinstance(p, Span)]
        if len(spans) < len(context):
            alone.append(_rendered(group, s, context, mask, render))
            continue
        row = _continued(open_rows, spans)
        if row is None:
            row = _Open(spans=[], ids=[], masks={}, first=s)
            open_rows.append(row)
        for span in spans[len(row.spans) :]:
            row.spans.append(span)
            row.ids.append(group.segments[span.segment].ids[: span.tokens])
        row.masks[len(row.spans)] = mask
        row.spans.append(Span(s, len(mask)))
        row.ids.append(group.segments[s].ids)
    return [_close(group, row, numbers) for row in (*open_rows, *alone)]


def _length(context: Iterable[Piece]) -> int:
    return sum(p.tokens if isinstance(p, Span) else len(p.text) for p in context)


def _continued(rows: Sequence[_Open], spans: Sequence[Span]) -> _Open | None:
    """The longest open row that the context begins with."""
    fits = [r for r in rows if list(spans[: len(r.spans)]) == r.spans]
    return max(fits, key=lambda r: len(r.spans), default=None)


def _rendered(
    group: Group, s: int, context: tuple[Piece, ...], mask: np.ndarray, render: Render | None
) -> _Open:
    """A row of its own: its context holds messages that only a template turns into ids."""
    if render is None:
        said = next(p for p in context if isinstance(p, Said))
        raise ConfigError(
            f"a view puts the message {said.role}: {said.text[:40]!r} before segment {s} of group "
            f"{group.group_id}, and no renderer was passed to make tokens of it."
        )
    ids = render(group, context, group.segments[s].seat)
    spans = [Span(-1, len(ids)), Span(s, len(mask))]
    return _Open(spans=spans, ids=[ids, group.segments[s].ids], masks={1: mask}, first=s)


def _close(group: Group, row: _Open, numbers: tuple[int, int, int]) -> Row:
    number, first_segment, first_episode = numbers
    lengths = [span.tokens for span in row.spans]
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    loss_mask = np.zeros(total, bool)
    temperature = np.ones(total, np.float32)
    segment = np.full(total, -1, np.int64)
    names = {n for s in row.spans if s.segment >= 0 for n in group.segments[s.segment].columns}
    columns = {n: np.full(total, np.nan, np.float32) for n in (*names, "rollout_logprobs")}
    payloads: dict[str, np.ndarray] = {}
    for at, (span, end) in enumerate(zip(row.spans, ends, strict=True)):
        where = slice(int(end) - span.tokens, int(end))
        if span.segment < 0:
            continue
        source = group.segments[span.segment]
        segment[where] = first_segment + span.segment
        temperature[where] = source.temperature
        payloads.update(source.payloads)
        if at in row.masks:
            loss_mask[where] = row.masks[at]
            columns["rollout_logprobs"][where] = source.rollout_logprobs
            for name, column in source.columns.items():
                if column.values.ndim == 1:
                    columns[name][where] = column.values
    if loss_mask[0]:
        raise DataError(
            f"group {group.group_id}: the first token of a row is trained, but nothing comes "
            "before it, so it has no log-prob. Give the task a prompt (or the tokenizer a "
            "beginning-of-sequence token)."
        )
    holders = (e for e, ep in enumerate(group.episodes) if row.first in ep.segments)
    return Row(
        ids=np.concatenate(row.ids).astype(np.int64),
        loss_mask=loss_mask,
        temperature=temperature,
        segment=segment,
        columns=columns,
        episode=first_episode + next(holders, 0),
        group=number,
        payloads=payloads,
    )


def count(rows: Sequence[Row]) -> Counts:
    """Sizes of a whole optimiser step."""
    trained = [r for r in rows if r.num_trained]
    return Counts(
        tokens=sum(r.num_trained for r in trained),
        rows=len(trained),
        episodes=len({r.episode for r in trained}),
        groups=len({r.group for r in trained}),
    )


def split(rows: Sequence[Row], *, max_tokens: int, reach: Reach) -> list[list[Row]]:
    """Micro-batches of at most ``max_tokens`` padded tokens, longest rows first.

    Rows that must meet in one call (``reach`` pair or group: a group's rows) stay together, so a
    micro-batch may exceed the budget when one unit does.
    """
    units: dict[object, list[Row]] = {}
    for at, row in enumerate(rows):
        units.setdefault(row.group if reach in ("pair", "group") else (at,), []).append(row)
    width = {k: max(r.num_tokens for r in unit) for k, unit in units.items()}
    batches: list[list[Row]] = []
    widest = 0
    for key in sorted(units, key=lambda k: -width[k]):
        unit = units[key]
        if not batches or widest * (len(batches[-1]) + len(unit)) > max_tokens:
            batches.append([])
            widest = width[key]
        batches[-1] += unit
    return batches


def collate(rows: Sequence[Row], *, all_rows: Sequence[Row] | None = None) -> TokenBatch:
    """A right-padded batch on the CPU.

    Args:
        rows: Rows of the micro-batch.
        all_rows: Rows of the whole optimiser step, for the sizes of episodes cut into several rows.
    """
    width = max(r.num_tokens for r in rows)
    per_episode: dict[int, int] = {}
    for row in all_rows if all_rows is not None else rows:
        per_episode[row.episode] = per_episode.get(row.episode, 0) + row.num_trained
    place = {id(r): i for i, r in enumerate(all_rows if all_rows is not None else rows)}
    names = sorted({name for row in rows for name in row.columns})
    nan = float("nan")
    return TokenBatch(
        ids=_padded([r.ids for r in rows], width, fill=0),
        attention_mask=_padded([np.ones(r.num_tokens, bool) for r in rows], width, fill=False),
        loss_mask=_padded([r.loss_mask for r in rows], width, fill=False),
        temperature=_padded([r.temperature for r in rows], width, fill=1.0),
        columns={
            name: _padded(
                [r.columns.get(name, np.full(r.num_tokens, nan, np.float32)) for r in rows],
                width,
                fill=nan,
            )
            for name in names
        },
        row=torch.tensor([place[id(r)] for r in rows]),
        episode=torch.tensor([r.episode for r in rows]),
        group=torch.tensor([r.group for r in rows]),
        segment=_padded([r.segment for r in rows], width, fill=-1),
        row_tokens=torch.tensor([r.num_trained for r in rows]),
        episode_tokens=torch.tensor([per_episode[r.episode] for r in rows]),
        payloads={
            name: torch.from_numpy(np.stack([r.payloads[name] for r in rows]))
            for name in (rows[0].payloads if all(r.payloads for r in rows) else ())
        },
    )


def _padded(arrays: Sequence[np.ndarray], width: int, *, fill: float) -> Tensor:
    out = np.full((len(arrays), width), fill, arrays[0].dtype)
    for i, array in enumerate(arrays):
        out[i, : len(array)] = array
    return torch.from_numpy(out)


def on_device(batch: TokenBatch, device: torch.device) -> TokenBatch:
    """The batch with every tensor on ``device``."""
    if device.type == "cpu":
        return batch
    moved = {
        name: value.to(device, non_blocking=True)
        for name in batch.__dataclass_fields__
        if isinstance(value := getattr(batch, name), Tensor)
    }
    columns = {k: v.to(device, non_blocking=True) for k, v in batch.columns.items()}
    payloads = {k: v.to(device, non_blocking=True) for k, v in batch.payloads.items()}
    return replace(batch, **moved, columns=columns, payloads=payloads)
