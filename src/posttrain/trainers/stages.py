"""SCORE, CREDIT and UPDATE: each takes stored groups and gives groups that can be stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from torch import Tensor

from posttrain.errors import ConfigError, InternalError
from posttrain.trainers.batch import Render, Row, build_rows, collate, count, split, term_sets
from posttrain.types.engine import Learner, ScoreItem
from posttrain.types.episode import Column, Group, Piece, Span
from posttrain.types.method import Columns, Credit, Method, State
from posttrain.types.probe import AsSampled, Logprobs, OwnTokens, Probe, TopK
from posttrain.types.term import Reach, Stats, Tally, Term

POLICY_COLUMN = "policy_logprobs"
"""Log-probs at the first optimiser step on a token, kept so that losses can be recomputed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """What an update needs beside groups and method."""

    microbatch_tokens: int
    render: Render | None = None
    progress: Callable[[int, int], None] | None = None
    """Called with micro-batches done and to do."""


# --- SCORE ------------------------------------------------------------------------------------


def deferred_probes(method: Method) -> frozenset[str]:
    """Probes the update's own first pass can serve: nothing reads them before, nothing moves.

    With one optimiser step a batch, the policy's log-probs under the sampled context *are* the
    old ones, so a separate pass would compute the same numbers again.
    """
    early = (method.credit.reads if method.credit else frozenset()) | method.plan.reads
    return frozenset(
        p.name
        for p in method.probes
        if method.updates.num_steps == 1
        and p.name not in early
        and list(method.terms) == [p.model]
        and isinstance(p.want, Logprobs)
        and isinstance(p.view, AsSampled)
        and isinstance(p.target, OwnTokens)
        and all(isinstance(t.view, AsSampled) for t in method.terms[p.model])
    )


def probe_stage(
    groups: Sequence[Group],
    probes: Sequence[Probe],
    learner: Learner,
    *,
    render: Render | None = None,
) -> list[Group]:
    """Groups with each probe's column on every segment that trains and has none yet."""
    groups = list(groups)
    for probe in probes:
        where, items = [], []
        for g, group in enumerate(groups):
            for s, segment in enumerate(group.segments):
                if segment.trains and not group.refused and probe.name not in segment.columns:
                    item = _item(group, s, probe, render)
                    if item is not None:
                        where.append((g, s))
                        items.append(item)
        found: dict[int, dict[int, dict[str, Column]]] = {}
        for (g, s), values in zip(where, learner.score(items) if items else [], strict=True):
            made = _columns(probe, values, groups[g].segments[s].num_tokens, learner)
            found.setdefault(g, {})[s] = made
        for g, columns in found.items():
            groups[g] = groups[g].with_columns(columns)
    return groups


def _item(group: Group, s: int, probe: Probe, render: Render | None) -> ScoreItem | None:
    segment = group.segments[s]
    context = probe.view(group.task, group, s)
    target = probe.target(group.task, group, s)
    if context is None or not segment.num_tokens:
        return None
    own = segment.ids if target is None else piece_ids(group, target, segment.seat, render)
    return ScoreItem(
        model=probe.model,
        context=piece_ids(group, context, segment.seat, render),
        target=own,
        want=probe.want,
        temperature=segment.temperature if segment.temperature > 0 else 1.0,
    )


def piece_ids(
    group: Group, pieces: tuple[Piece, ...], seat: str, render: Render | None
) -> np.ndarray:
    """Token ids of pieces; messages among them need ``render``."""
    spans = [p for p in pieces if isinstance(p, Span)]
    if len(spans) == len(pieces):
        return group.context_ids(spans)
    if render is None:
        raise ConfigError(
            f"a view of group {group.group_id} holds messages, and no renderer was passed to make "
            "tokens of them."
        )
    return render(group, pieces, seat)


def _columns(
    probe: Probe, values: np.ndarray, num_tokens: int, learner: Learner
) -> dict[str, Column]:
    view = type(probe.view).__name__
    version = learner.version(probe.model)
    if not isinstance(probe.target, OwnTokens):
        mean = float(np.mean(values)) if len(values) else float("nan")
        values = np.full(num_tokens, mean, np.float32)
    made = Column(values.astype(np.float32), model=probe.model, version=version, view=view)
    if not isinstance(probe.want, TopK):
        return {probe.name: made}
    half = values.shape[1] // 2
    ids = Column(values[:, half:], model=probe.model, version=version, view=view)
    top = Column(values[:, :half], model=probe.model, version=version, view=view)
    return {probe.name: top, f"{probe.name}.ids": ids}


# --- CREDIT -----------------------------------------------------------------------------------


def credit_stage(groups: Sequence[Group], credit: Credit | None, state: State) -> list[Group]:
    """Groups with the credit's columns on their segments."""
    if credit is None:
        return list(groups)
    columns = credit(groups, state)
    total = sum(len(g.segments) for g in groups)
    for name, arrays in columns.items():
        if len(arrays) != total:
            raise InternalError(
                f"{type(credit).__name__} wrote {len(arrays)} arrays of {name!r} for {total} "
                "segments: one a segment, over all groups in order."
            )
    return _spread(groups, columns, model=type(credit).__name__)


def _spread(groups: Sequence[Group], columns: Columns, *, model: str) -> list[Group]:
    first = 0
    done = []
    for group in groups:
        made: dict[int, dict[str, Column]] = {}
        for s in range(len(group.segments)):
            for name, arrays in columns.items():
                values = np.asarray(arrays[first + s], np.float32)
                if np.isfinite(values).any():
                    made.setdefault(s, {})[name] = Column(values, model=model)
        first += len(group.segments)
        done.append(group.with_columns(made))
    return done


# --- UPDATE -----------------------------------------------------------------------------------


def update_stage(
    groups: Sequence[Group], method: Method, learner: Learner, settings: UpdateSettings
) -> tuple[list[Group], dict[str, float]]:
    """Train every model of the method on the groups; returns them with ``policy_logprobs``.

    Raises:
        NumericsError: a loss or gradient is not finite.
    """
    groups = list(groups)
    deferred = deferred_probes(method)
    tallies: dict[str, Tally] = {}
    logged: list[Mapping[str, float]] = []
    for _ in range(method.updates.epochs):
        for part in parts_of(len(groups), method.updates.minibatches):
            for model in method.terms:
                done = _update_model(groups, part, method, model, (learner, settings, deferred))
                if done is None:
                    continue
                recorded, metrics, found = done
                logged.append(metrics)
                for name, tally in found.items():
                    tallies[name] = tallies[name].merge(tally) if name in tallies else tally
                for g, columns in recorded.items():
                    groups[g] = groups[g].with_columns(columns)
    numbers = {name: tally.value for name, tally in tallies.items()}
    for name in {k for m in logged for k in m}:
        numbers[name] = float(np.mean([m[name] for m in logged if name in m]))
    numbers["num_updates"] = float(len(logged))
    return groups, numbers


def parts_of(total: int, parts: int) -> list[range]:
    """``range(total)`` cut in order into parts whose sizes differ by at most 1; none is empty."""
    edges = np.linspace(0, total, min(parts, total) + 1).round().astype(int)
    return [range(int(a), int(b)) for a, b in pairwise(edges)]


def _update_model(
    groups: Sequence[Group],
    part: range,
    method: Method,
    model: str,
    means: tuple[Learner, UpdateSettings, frozenset[str]],
) -> tuple[dict[int, dict[int, dict[str, Column]]], dict[str, float], dict[str, Tally]] | None:
    """One optimiser step on one model; None when no token trains."""
    learner, settings, deferred = means
    chosen = [groups[g] for g in part]
    work = []
    for terms in term_sets(method.terms[model]):
        rows = build_rows(chosen, terms, model=model, render=settings.render)
        rows = [r for r in rows if r.num_trained]
        if rows:
            work.append((terms, rows, split(rows, max_tokens=settings.microbatch_tokens,
                                            reach=_widest(terms))))  # fmt: skip
    if not work:
        return None
    recorded: dict[int, dict[int, dict[str, Column]]] = {}
    tallies: dict[str, Tally] = {}
    loss = 0.0
    done, to_do = 0, sum(len(batches) for _, _, batches in work)
    for terms, rows, batches in work:
        counts = [count(rows)] * len(terms)
        stats = _stats(learner, model, terms, rows, batches)
        for batch_rows in batches:
            batch = collate(batch_rows, all_rows=rows)
            out = learner.forward_backward(
                model, batch, terms, counts, stats, rule=method.gradient, current=deferred
            )
            loss += out.loss
            for name, tally in out.metrics.items():
                tallies[name] = tallies[name].merge(tally) if name in tallies else tally
            values = out.policy_logprobs.float().cpu().numpy()
            names = (POLICY_COLUMN, *deferred)
            _record(recorded, chosen, part, batch_rows, (values, names, model, learner))
            done += 1
            if settings.progress is not None:
                settings.progress(done, to_do)
    metrics = {"loss": loss, **learner.optim_step(model, rule=method.gradient)}
    return recorded, metrics, tallies


def _widest(terms: Sequence[Term]) -> Reach:
    order: tuple[Reach, ...] = ("group", "pair", "sequence", "step")
    found = {t.reach for t in terms}
    for reach in order:
        if reach in found:
            return reach
    return "token"


def _stats(
    learner: Learner,
    model: str,
    terms: Sequence[Term],
    rows: Sequence[Row],
    batches: Sequence[Sequence[Row]],
) -> list[Stats | None]:
    """Merged first-pass sums of the terms that need the whole step."""
    if all(t.reach != "step" for t in terms):
        return [None] * len(terms)
    merged: list[dict[str, Tensor]] = [{} for _ in terms]
    for batch_rows in batches:
        sums = learner.summarise(model, collate(batch_rows, all_rows=rows), terms)
        for into, new in zip(merged, sums, strict=True):
            for name, value in new.items():
                into[name] = into[name] + value if name in into else value
    found: list[Stats | None] = []
    for sums, term in zip(merged, terms, strict=True):
        found.append(sums if term.reach == "step" else None)
    return found


def _record(
    recorded: dict[int, dict[int, dict[str, Column]]],
    chosen: Sequence[Group],
    part: range,
    rows: Sequence[Row],
    made: tuple[np.ndarray, Sequence[str], str, Learner],
) -> None:
    """Keep the log-probs of the first pass over each segment."""
    values, names, model, learner = made
    firsts = np.cumsum([0, *(len(g.segments) for g in chosen)])
    for r, row in enumerate(rows):
        group = chosen[row.group]
        for number in np.unique(row.segment[row.loss_mask]):
            s = int(number - firsts[row.group])
            old = group.segments[s].columns
            if POLICY_COLUMN in old:
                continue
            where = np.flatnonzero(row.segment == number)
            array = np.where(row.loss_mask[where], values[r, where], np.nan).astype(np.float32)
            column = Column(array, model=model, version=learner.version(model))
            new = {name: column for name in names if name not in old}
            recorded.setdefault(part[row.group], {}).setdefault(s, {}).update(new)
